"""Mixed images and labels, against the loop of the authors' code, and through the steps of clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, kstest
from tests.defenses.tensors import streams

from leakbench.defenses.base import Defense, Schedule
from leakbench.defenses.clients import DefendedClients, Examples, calibrated
from leakbench.defenses.dp_sgd import DPSGD
from leakbench.defenses.mixup import MixUp
from leakbench.errors import Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.federated.layered_steps import LayeredSteps
from leakbench.federated.local import LocalTraining
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, build_network
from leakbench.models.layered import LayeredNetwork
from leakbench.models.lenet import LeNet

CLASSES = 10


def ready(alpha: float = 1.0) -> Defense:
    return calibrated(MixUp(alpha=alpha), ClientData(torch.zeros(1, 1, 1, 2, 2), CLASSES))


def batch(n: int, size: int, side: int = 8, seed: int = 0) -> Examples:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, size, 1, side, side, generator=generator)
    return Examples(images, torch.randint(CLASSES, (n, size), generator=generator))


def draws(client: int, alpha: float, size: int) -> tuple[float, list[int]]:
    """The weight and the order of a client, from its streams."""
    order = streams(client).child("order").uniform(size)[0].argsort().tolist()
    return float(beta.ppf(float(streams(client).child("weight").uniform(1)), alpha, alpha)), order


def network() -> Network:
    return build_network(LeNet(), (1, 8, 8), CLASSES, seed=0)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_images_and_labels_by_a_literal_loop(alpha: float) -> None:
    images, labels = batch(2, 5)
    mixed, soft = ready(alpha).protect_data(images, labels, streams(0, 1))
    for client in range(2):
        weight, order = draws(client, alpha, 5)
        for place in range(5):
            other = order[place]
            expected = weight * images[client, place] + (1 - weight) * images[client, other]
            torch.testing.assert_close(mixed[client, place], expected)
            probabilities = torch.zeros(CLASSES)
            probabilities[labels[client, place]] += weight
            probabilities[labels[client, other]] += 1 - weight
            torch.testing.assert_close(soft[client, place], probabilities)


@pytest.mark.parametrize("local", [LocalTraining(), LocalTraining(steps=2, rate=0.1, batch_size=2)])
def test_the_gradient_is_that_of_the_authors_loss(local: LocalTraining) -> None:
    """``w loss(x, y) + (1 - w) loss(x, y')``, with no labels but the classes of both images."""
    model, examples = network(), batch(2, 4)
    clients = DefendedClients(ready(), streams(0, 1), examples)
    steps = clients.step(
        lambda mixed: ClientSteps(model, model.parameters, *mixed, streams(0, 1), local), streams(0, 1)
    ).steps
    for client in range(2):
        weight, order = draws(client, 1.0, 4)
        images, labels = examples.inputs[client], examples.labels[client]
        mixed = weight * images + (1 - weight) * images[order]
        parameters, size = model.parameters, local.batch_size or 4
        for step in range(local.steps):
            part = slice(step * size % 4, step * size % 4 + size)
            losses = [model.gradient(parameters, mixed[part], each[part]) for each in (labels, labels[order])]
            parameters = parameters - local.rate * (weight * losses[0] + (1 - weight) * losses[1])
        expected = (model.parameters - parameters) / local.rate
        torch.testing.assert_close(steps.gradient[client], expected, rtol=1e-4, atol=1e-6)


def test_gradients_of_single_samples_add_up_however_they_are_computed() -> None:
    model, examples = network(), batch(2, 4)
    mixed = DefendedClients(ready(), streams(0, 1), examples).protect_data(examples, streams(0, 1))
    steps = ClientSteps(model, model.parameters, *mixed, streams(0, 1))
    torch.testing.assert_close(steps.per_sample_gradient.mean(dim=1), steps.gradient, rtol=1e-4, atol=1e-6)
    layered = LayeredNetwork.of(model)
    assert layered is not None
    by_layer = LayeredSteps(model, layered, model.parameters[None], *mixed, streams(0, 1))
    torch.testing.assert_close(by_layer.gradient, steps.gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(by_layer.loss, steps.loss)
    noiseless = DPSGD(multiplier=0, clip=1e6).protect_update(steps, streams(0, 1)).view()
    torch.testing.assert_close(noiseless, steps.gradient, rtol=1e-4, atol=1e-6)


@given(st.integers(1, 6), st.integers(1, 3), st.floats(0.05, 20), st.integers(0, 9))
def test_mixing_moves_nothing_but_between_the_images_of_a_client(size: int, n: int, alpha: float, seed: int) -> None:
    images, labels = batch(n, size, side=2, seed=seed)
    of_clients = streams(*range(n))
    mixed, soft = ready(alpha).protect_data(images, labels, of_clients)
    assert soft.shape == (n, size, CLASSES) and bool((soft >= 0).all())
    torch.testing.assert_close(soft.sum(dim=2), torch.ones(n, size))
    counts = torch.nn.functional.one_hot(labels, CLASSES).sum(dim=1).float()
    torch.testing.assert_close(soft.sum(dim=1), counts)
    torch.testing.assert_close(mixed.sum(dim=1), images.sum(dim=1), rtol=1e-4, atol=1e-4)
    assert bool((mixed.amax(dim=1) <= images.amax(dim=1) + 1e-5).all())
    alone = ready(alpha).protect_data(images[-1:], labels[-1:], streams(n - 1))
    torch.testing.assert_close(alone[0][0], mixed[-1])
    if size == 1:
        torch.testing.assert_close(mixed, images)


@pytest.mark.parametrize("alpha", [0.3, 1.0, 5.0])
def test_weights_are_beta(alpha: float) -> None:
    images = torch.tensor([0.0, 1.0]).view(1, 2, 1, 1, 1).expand(4000, 2, 1, 1, 1)
    mixed, _ = ready(alpha).protect_data(images, torch.zeros(4000, 2, dtype=torch.long), streams(*range(4000)))
    first = mixed[:, 0].flatten().double().numpy()
    # Half of the orders of two images change nothing, and weights of 0 are rare.
    chosen = first[np.array([draws(client, 1, 2)[1] == [1, 0] for client in range(4000)])]
    assert 1800 < len(chosen) < 2200
    assert kstest(chosen, beta(alpha, alpha).cdf).pvalue > 1e-3


@pytest.mark.parametrize("data", [None, ClientData(torch.zeros(1, 1, 1, 2, 2))])
def test_without_classes_there_is_nothing_to_mix(data: Any) -> None:
    defense = MixUp() if data is None else MixUp().calibrate(data)
    images, labels = batch(1, 2)
    with pytest.raises(Infeasible, match="'mixup' knows no classes"):
        defense.protect_data(images, labels, streams(0))
    model = network()
    steps = ClientSteps(model, model.parameters, images, labels, streams(0))
    with pytest.raises(Infeasible, match="'mixup' knows no classes"):
        defense.protect_update(steps, streams(0))


def test_it_promises_nothing() -> None:
    assert MixUp().privacy(Schedule(10)).epsilon is None and "exact" in MixUp().privacy(Schedule(10)).basis
    assert MixUp().adaptive == ({"name": "unmixed"},) and MixUp.acts_on == "data"
