"""What the released notebook plots as Fig. 14, from its formula entry by entry."""

from __future__ import annotations

from collections.abc import Callable

import torch

from leakbench.defenses.optimal import OptimalClippedNoise
from leakbench.federated.step import ClientSteps
from leakbench.papers.optimal_defense.jobs.plotted_noise import PROBES, PlottedNoiseJob
from leakbench.randomness import Streams

CLIENTS = 3


def test_ratios_of_the_last_client_without_an_absolute_value(
    fixed_steps: Callable[[torch.Tensor, torch.Tensor], ClientSteps],
) -> None:
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(2 * CLIENTS, 7, generator=generator, dtype=torch.float64)
    sensitivity = torch.rand(2 * CLIENTS, 7, generator=generator, dtype=torch.float64)
    steps = fixed_steps(gradient, sensitivity)
    defense = OptimalClippedNoise(scale=0.1)
    assert defense.probes == PROBES
    message = defense.protect_update(steps, Streams([("client", row) for row in range(2 * CLIENTS)]))
    kind = PlottedNoiseJob(clients=CLIENTS, batch_size=1, images_per_client=1, steps=1, rate=0.1)
    found = kind.noise_variance(steps, message)
    assert found is not None and found.shape == (2, 7)
    for run, row in enumerate((CLIENTS - 1, 2 * CLIENTS - 1)):
        deviations = []
        for g, a in zip(gradient[row].tolist(), sensitivity[row].tolist(), strict=True):
            deviations.append(min(max(a**0.5 / max(g, 1e-6), 1e-6), 1e6) ** 0.5)
        size = (sum(each**2 for each in deviations) / len(deviations)) ** 0.5
        expected = torch.tensor([each / size for each in deviations], dtype=torch.float64)
        torch.testing.assert_close(found[run].sqrt(), expected)
