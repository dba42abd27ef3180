"""Exact batches behind a fully connected first layer with ReLU, and where there are none."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from tests.attacks.test_analytic import layers, observe, refused, tied, victims

from leakbench.attacks.analytic import Analytic
from leakbench.attacks.base import ATTACKS, ClientSetup, Knowledge, Observations, Reconstruction
from leakbench.attacks.spear import Spear
from leakbench.data.base import ImageDataset
from leakbench.data.embedded import Digits, Photos
from leakbench.defenses.soteria import Soteria
from leakbench.federated.local import LocalTraining
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.linear import MLP
from leakbench.randomness import Streams


def attack(observations: Observations, rows: range | None = None, **parameters: float) -> Reconstruction:
    streams = Streams([("spear", row) for row in rows or range(len(observations))])
    return Spear.model_validate(parameters).reconstruct(observations, Knowledge(), streams)


def errors(found: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """Largest error of each image ``[n, B]`` to the nearest of those found, which are in any order."""
    return torch.cdist(images.flatten(2), found.flatten(2), p=torch.inf).amin(dim=2)


@pytest.mark.parametrize("data", [Digits(), Photos()], ids=lambda data: data.name)
@pytest.mark.parametrize("batch", [1, 2, 5, 8])
def test_batches_are_exact(data: ImageDataset, batch: int) -> None:
    images, labels = victims(data, n=4, batch=batch)
    found = attack(observe(build_network(MLP(width=200), data.shape, data.classes, seed=0), images, labels))
    assert found.images.shape == images.shape and found.diverged_at.eq(-1).all()
    assert errors(found.images, images).max() < 1e-3


def literal(seen: Observations, row: int, network: Network) -> torch.Tensor:
    """The images by the paper's words: every choice of B - 1 neurons, and of the sparsest columns, by activations."""
    batch, layer = seen.batch_shape[0], network.first_linear
    assert layer is not None and layer.bias is not None
    gradient, parameters = seen.gradients[row].double(), network.parameters.double()
    u, s, v = torch.linalg.svd(layer.weights(gradient), full_matrices=False)
    left, right = u[:, :batch], s[:batch, None] * v[:batch]
    candidates: list[tuple[int, torch.Tensor]] = []
    alive = [neuron for neuron in range(layer.outputs) if left[neuron].norm() > 1e-6]
    for chosen in itertools.combinations(alive, batch - 1):
        q = torch.linalg.svd(left[list(chosen)])[2][-1]
        candidates.append((int((left @ q).abs().lt(1e-4).sum()), q))
    sparse: list[torch.Tensor] = []
    for _, q in sorted(candidates, key=lambda each: -each[0]):
        if len(sparse) < 12 and all(float((q @ other).abs()) < 0.999 for other in sparse):
            sparse.append(q)
    best, images = -1.0, torch.zeros_like(right)
    for columns in itertools.combinations(sparse, batch):
        matrix = torch.stack(columns, dim=1)
        scale = torch.linalg.lstsq(left @ matrix, gradient[layer.bias][:, None]).solution[:, 0]
        tried = torch.linalg.pinv(matrix * scale) @ right
        outputs = tried @ layer.weights(parameters).T + parameters[layer.bias]
        agreement = float(((outputs.T > 0) == ((left @ matrix).abs() > 1e-4)).double().mean())
        if agreement > best:
            best, images = agreement, tried
    return images


def test_against_all_choices_of_neurons() -> None:
    _, labels = victims(Digits(size=8), n=3, batch=3)
    images = torch.randn(3, 3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    network = build_network(MLP(width=24), (1, 8, 8), 10, seed=1)
    seen = observe(network, images, labels)
    found = attack(seen).images
    for row in range(3):
        slow = literal(seen, row, network).float().view(1, 3, 1, 8, 8)
        assert errors(slow, images[row : row + 1]).max() < 1e-3
        assert errors(found[row : row + 1], slow).max() < 1e-3


def test_one_image_is_that_of_analytic() -> None:
    images, labels = victims(Photos(), n=3)
    seen = observe(build_network(MLP(width=50), (3, 32, 32), 10, seed=0), images, labels)
    streams = Streams([("analytic", row) for row in range(3)])
    torch.testing.assert_close(
        attack(seen).images, Analytic().reconstruct(seen, Knowledge(), streams).images, rtol=0, atol=1e-4
    )


def test_a_client_alone_gives_the_same() -> None:
    images, labels = victims(Digits(size=8), n=20, batch=4)
    seen = observe(build_network(MLP(width=100), (1, 8, 8), 10, seed=0), images, labels)
    together = attack(seen, draws=5000)  # in which one client of the second group is not found, and the others are
    alone = Observations(seen.network, seen.parameters, seen.gradients[18:19], seen.batch_shape)
    lone = attack(alone, range(18, 19), draws=5000)
    assert together.diverged_at.tolist().count(0) == 1 and together.diverged_at[18] == -1
    torch.testing.assert_close(lone.images[0], together.images[18], rtol=0, atol=1e-5)


def test_what_is_not_exact_is_marked_and_leaves_the_others_alone() -> None:
    """Noise, a value that is not finite, nothing, and dead neurons."""
    images, labels = victims(Digits(size=8), n=5, batch=3)
    seen = observe(build_network(MLP(width=100), (1, 8, 8), 10, seed=0), images, labels)
    seen.gradients[0] += 0.01 * torch.randn(seen.gradients.shape[1], generator=torch.Generator().manual_seed(0))
    seen.gradients[1, 0] = torch.nan
    seen.gradients[2] = 0.0
    found = attack(seen, draws=5000)
    assert found.diverged_at.tolist() == [0, 0, 0, -1, -1]
    assert found.images[:3].eq(0).all()
    assert errors(found.images[3:], images[3:]).max() < 1e-3


def test_a_defense_of_the_last_layer_alone_falls() -> None:
    images, labels = victims(Digits(size=8), n=2, batch=4)
    seen = observe(build_network(MLP(width=100), (1, 8, 8), 10, seed=0), images, labels)
    streams = Streams([("defended", row) for row in range(2)])
    steps = ClientSteps(seen.network, seen.parameters, images, labels, streams)
    sent = Soteria(fraction=0.8).protect_update(steps, streams).view()
    assert not torch.equal(sent, seen.gradients)
    assert errors(attack(replace(seen, gradients=sent)).images, images).max() < 1e-3


def test_wrong_images_are_not_taken() -> None:
    """The activations of what was found are held against the gradient's zeros; another model has others."""
    images, labels = victims(Digits(size=8), n=1, batch=3)
    seen = observe(build_network(MLP(width=100), (1, 8, 8), 10, seed=0), images, labels)
    other = build_network(MLP(width=100), (1, 8, 8), 10, seed=1).parameters
    assert attack(Observations(seen.network, other, seen.gradients, seen.batch_shape), draws=5000).diverged_at == 0


@pytest.mark.parametrize(
    ("network", "batch", "reason"),
    [
        (build_network(SimpleConvNet(width=2), (1, 9, 9), 10, 0), 2, "begins otherwise"),
        (build_network(MLP(width=20, activation="sigmoid"), (1, 9, 9), 10, 0), 2, "looks for the zeros that ReLU"),
        (
            build_network(MLP(width=3), (1, 9, 9), 10, 0),
            4,
            "at least 4 units and inputs .* has 3 and 81",
        ),
        (layers(torch.nn.Flatten(), torch.nn.Linear(81, 10)), 2, "behind the first layer comes nothing"),
        (
            layers(
                torch.nn.Flatten(), torch.nn.Linear(81, 10), torch.nn.Tanh(), torch.nn.Linear(10, 10), torch.nn.ReLU()
            ),
            2,
            "behind the first layer comes Tanh",
        ),
        (tied(), 2, "'3.weight' is the same tensor"),
        (layers(torch.nn.Flatten(), torch.nn.Linear(81, 10, bias=False), torch.nn.ReLU()), 2, "that layer has none"),
    ],
)
def test_infeasible(network: Network, batch: int, reason: str) -> None:
    refused(Spear(), network, batch, f"{reason}.*; list ")


@pytest.mark.parametrize("local", [LocalTraining(steps=2, rate=0.1), LocalTraining(steps=1, batch_size=1)])
def test_several_steps(local: LocalTraining) -> None:
    network = build_network(MLP(width=50), (1, 9, 9), 10, seed=0)
    refused(Spear(), network, 2, "clients take several; list 'cocktail_party'", local)


def test_one_step_is_a_gradient_at_any_rate() -> None:
    images, labels = victims(Digits(size=8), n=1, batch=2)
    network, local = build_network(MLP(width=50), (1, 8, 8), 10, seed=0), LocalTraining(rate=0.1)
    Spear().check_clients(ClientSetup(MLP(width=50), network, local, (2, 1, 8, 8)))
    assert errors(attack(observe(network, images, labels, local)).images, images).max() < 1e-3


def test_it_needs_nothing() -> None:
    assert ATTACKS.get("spear") is Spear and Spear().needs == frozenset() and Spear.observes
