"""Noise by sensitivity: where it goes, how much of it, and how the readings of the paper differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from leakbench.defenses.optimal import OptimalClippedNoise, OptimalNoise, OptimalPruning, OptimalRounding, Rounding
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network
from leakbench.randomness import Streams

Fixed = Callable[[torch.Tensor, torch.Tensor], ClientSteps]


class Ones(Streams):
    """Noise of one standard deviation, everywhere."""

    def normal(self, *shape: int, device: torch.device | None = None) -> torch.Tensor:
        return torch.ones(len(self), *shape)


def variance(defense: OptimalNoise, steps: ClientSteps) -> torch.Tensor:
    clip = defense.clip if isinstance(defense, OptimalClippedNoise) else torch.inf
    noise = defense.protect_update(steps, Ones([("one",)])).view() - steps.gradient.clamp(-clip, clip)
    return noise[0].square()


@pytest.fixture
def steps(fixed_steps: Fixed) -> ClientSteps:
    norms = torch.tensor([[0.6, 5.0, 0.2, 0.7, 0.1]], dtype=torch.float64)
    return fixed_steps(torch.tensor([[0.3, -2.0, 0.05, 1.0, -0.2]], dtype=torch.float64), norms.square())


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({"scale_mode": "rms"}, (0.01538462, 0, 0.03076923, 0, 0.00384615)),
        ({"scale_mode": "fro"}, (0.04444444, 0, 0.08888889, 0, 0.01111111)),
        # U2 = -sum g^2 variance: the ratios (2, 0, 4, 0, 0.5) over 0.18 + 0.01 + 0.02
        ({"scale_mode": "u2"}, (0.95238095, 0, 1.90476190, 0, 0.23809524)),
        # sensitivities are squared norms: (1.2, 0, 0.8, 0, 0.05)
        ({"form": "as_printed"}, (0.02926829, 0, 0.01951220, 0, 0.00121951)),
        # |g| = P does not count as clipped: (2, 0, 4, 0.7, 0.5)
        ({"form": "as_released"}, (0.01388889, 0, 0.02777778, 0.00486111, 0.00347222)),
    ],
)
def test_clipped_coordinates_get_no_noise(
    steps: ClientSteps, parameters: dict[str, Any], expected: tuple[float, ...]
) -> None:
    """The mask comes before the normalisation: the others get all of the noise."""
    found = variance(OptimalClippedNoise(scale=0.1, clip=1.0, **parameters), steps)
    assert found.tolist() == pytest.approx(expected, rel=2e-6)
    assert [value == 0 for value in found.tolist()] == [value == 0 for value in expected]


def test_what_is_sent_is_clipped(steps: ClientSteps) -> None:
    sent = OptimalClippedNoise(scale=0.1, clip=1.0).protect_update(steps, Streams([("client",)])).view()[0]
    assert sent[1] == -1 and sent[3] == 1
    assert sent[0] != 0.3


def test_nothing_is_left_to_noise_when_everything_is_clipped(steps: ClientSteps) -> None:
    sent = OptimalClippedNoise(scale=0.1, clip=0.01).protect_update(steps, Streams([("client",)])).view()
    torch.testing.assert_close(sent, 0.01 * steps.gradient.sign(), rtol=0, atol=0)


def test_a_wide_clip_changes_nothing(steps: ClientSteps) -> None:
    clipped, plain = OptimalClippedNoise(scale=0.1, clip=10), OptimalNoise(scale=0.1)
    torch.testing.assert_close(variance(clipped, steps), variance(plain, steps))
    assert variance(plain, steps).gt(0).all()
    assert variance(plain, steps).mean().sqrt().item() == pytest.approx(0.1)


def test_floors_of_the_released_code(fixed_steps: Fixed) -> None:
    """1e-8 for noise and pruning, 1e-6 for clipped noise."""
    steps = fixed_steps(torch.tensor([[1e-7, 1e-3]]).double(), torch.tensor([[1e-6, 1e-6]]).double())
    ratios = {
        (OptimalNoise, "corrected"): 1e3,
        (OptimalClippedNoise, "corrected"): 1e3,
        (OptimalNoise, "as_released"): 1e4,
        (OptimalClippedNoise, "as_released"): 1e3,
    }
    for (cls, form), ratio in ratios.items():
        found = variance(cls(scale=0.1, form=form), steps)
        assert float(found[0] / found[1]) == pytest.approx(ratio, rel=1e-6)


def test_equal_scales_spend_less_utility_than_isotropic_noise(tiny_network: Network) -> None:
    draw = torch.Generator().manual_seed(0)
    steps = ClientSteps(
        tiny_network,
        tiny_network.parameters,
        torch.randn(1, 4, 1, 8, 8, generator=draw),
        torch.tensor([[1, 2, 3, 4]]),
        Streams([("client",)]),
    )
    spent = (variance(OptimalNoise(scale=0.1), steps) * steps.gradient[0].square()).sum()
    assert spent < 0.5 * 0.1**2 * steps.gradient.square().sum()


@pytest.mark.parametrize(
    "defense", [OptimalNoise(scale=0.1), OptimalClippedNoise(scale=0.1), OptimalPruning(fraction=0.5)], ids=repr
)
def test_the_estimate_is_the_one_asked_for(defense: OptimalNoise | OptimalPruning, tiny_network: Network) -> None:
    class Asked(ClientSteps):
        asked: tuple[int, str] | None = None

        def sensitivity(self, probes: int = 10, kind: Any = "gaussian", draw: int = 0) -> torch.Tensor:
            assert draw == 0
            self.asked = (probes, kind)
            return super().sensitivity(probes, kind, draw)

    draw = torch.Generator().manual_seed(0)
    steps = Asked(
        tiny_network,
        tiny_network.parameters,
        torch.randn(1, 1, 1, 8, 8, generator=draw),
        torch.tensor([[1]]),
        Streams([("client",)]),
    )
    default = defense.protect_update(steps, Streams([("client",)])).view()
    assert steps.asked == (10, "gaussian")
    other = defense.model_copy(update={"probes": 3, "probe_kind": "rademacher"})
    assert not torch.equal(other.protect_update(steps, Streams([("client",)])).view(), default)
    assert steps.asked == (3, "rademacher")


def rounded(defense: Rounding | OptimalRounding, steps: ClientSteps) -> list[float]:
    found: list[float] = defense.protect_update(steps, Ones([("one",)])).view()[0].tolist()
    return found


class TestRounding:
    def test_to_one_step(self, steps: ClientSteps) -> None:
        assert rounded(Rounding(scale=0.25), steps) == pytest.approx([0.25, -2.0, 0.0, 1.0, -0.25])
        assert rounded(Rounding(scale=0.0), steps) == steps.gradient[0].tolist()

    @pytest.mark.parametrize(
        ("form", "ratios"),
        [
            ("corrected", [2.0, 2.5, 4.0, 0.7, 0.5]),
            ("as_printed", [1.2, 12.5, 0.8, 0.49, 0.05]),
            # A negative entry counts as one of 1e-6, and no ratio exceeds 1e6.
            ("as_released", [2.0, 1e6, 4.0, 0.7, 1e5]),
        ],
    )
    def test_to_steps_in_the_place_of_standard_deviations(
        self, steps: ClientSteps, form: Any, ratios: list[float]
    ) -> None:
        mean = sum(ratios) / len(ratios)
        expected = []
        for entry, ratio in zip(steps.gradient[0].tolist(), ratios, strict=True):
            step = 0.3 * (ratio / mean) ** 0.5
            expected.append(round(entry / step) * step)
        assert rounded(OptimalRounding(scale=0.3, form=form), steps) == pytest.approx(expected)
