"""Observations of clients that each hold a model of their own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.gradient_matching import GradientMatching, Search
from leakbench.attacks.objectives import L2
from leakbench.attacks.optimisers import LBFGS
from leakbench.attacks.presets import DLGWolfe
from leakbench.errors import Infeasible, ObservationError
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, build_network
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams

SHAPE, CLASSES, BATCH = (1, 8, 8), 4, 2


def networks(count: int) -> list[Network]:
    return [build_network(LeNet(width=4), SHAPE, CLASSES, seed) for seed in range(count)]


def observed(network: Network, parameters: torch.Tensor, streams: Streams) -> Observations:
    n = len(streams)
    images = torch.rand(n, BATCH, *SHAPE, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(n * BATCH).remainder(CLASSES).view(n, BATCH)
    steps = ClientSteps(network, parameters, images, labels, streams)
    return Observations(network, parameters, steps.gradient, (BATCH, *SHAPE))


def keys(count: int) -> Streams:
    return Streams([("several models", row) for row in range(count)])


def test_each_is_attacked_at_its_own() -> None:
    every = networks(3)
    seen = observed(every[0], torch.stack([network.parameters for network in every]), keys(3))
    seen.check()
    attack = DLGWolfe(iterations=8, restarts=2)
    together = attack.reconstruct(seen, Knowledge(), keys(3))
    for row, network in enumerate(every):
        alone = Observations(network, network.parameters, seen.gradients[row : row + 1], seen.batch_shape)
        found = attack.reconstruct(alone, Knowledge(), Streams(keys(3).keys[row : row + 1]))
        torch.testing.assert_close(together.images[row], found.images[0], rtol=1e-3, atol=1e-3)


def test_residuals_are_of_its_own() -> None:
    every = networks(2)
    seen = observed(every[0], torch.stack([network.parameters for network in every]), keys(2))
    attack = GradientMatching(objective=L2(), optimiser=LBFGS(), iterations=1)
    labels = torch.arange(2 * BATCH).remainder(CLASSES).view(2, BATCH)
    found = attack.reconstruct(seen, Knowledge(labels=labels), keys(2))
    residuals = Search(attack, seen, Knowledge(labels=labels)).residuals(found)
    for row, network in enumerate(every):
        expected = network.gradient(network.parameters, found.images[row], labels[row]) - seen.gradients[row]
        torch.testing.assert_close(residuals[row], expected, rtol=1e-4, atol=1e-6)


def test_one_model_for_all() -> None:
    (network,) = networks(1)
    seen = observed(network, network.parameters, keys(2))
    assert torch.equal(seen.one_model("anything"), network.parameters)


def test_who_cannot_says_so() -> None:
    every = networks(2)
    seen = observed(every[0], torch.stack([network.parameters for network in every]), keys(2))
    counting = DLGWolfe(iterations=1, labels="counts")
    with pytest.raises(Infeasible, match="counts: the clients hold 2 models; attack those of one model at a time"):
        counting.reconstruct(seen, Knowledge(), keys(2))


def test_as_many_models_as_observations() -> None:
    every = networks(2)
    seen = observed(every[0], torch.stack([network.parameters for network in every]), keys(2))
    with pytest.raises(ObservationError, match="parameters of shape"):
        replace(seen, parameters=seen.parameters[:1]).check()
