"""The exact image behind a fully connected first layer, and where there is none."""

from __future__ import annotations

import pytest
import torch

from leakbench.attacks.adaptive import Masked
from leakbench.attacks.analytic import Analytic
from leakbench.attacks.base import ATTACKS, Attack, ClientSetup, Knowledge, Observations, Reconstruction
from leakbench.data.base import ImageDataset
from leakbench.data.embedded import Digits, Photos
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.metrics.image import psnr
from leakbench.models.base import Model, Network, build_network
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.models.linear import MLP, Linear
from leakbench.randomness import Streams

FEASIBLE = [Linear(), MLP(width=12), MLP(width=12, activation="sigmoid")]


def attack(observations: Observations) -> Reconstruction:
    streams = Streams([("analytic", row) for row in range(len(observations))])
    return Analytic().reconstruct(observations, Knowledge(), streams)


def observe(
    network: Network, images: torch.Tensor, labels: torch.Tensor, local: LocalTraining = ONE_STEP
) -> Observations:
    """What clients with images ``[n, B, C, H, W]`` send."""

    def update(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return local.update(network, network.parameters, images, labels)

    _, batch, channels, height, width = images.shape
    gradients = torch.func.vmap(update)(images, labels)
    return Observations(network, network.parameters, gradients, (batch, channels, height, width), local)


def victims(data: ImageDataset, n: int = 12, batch: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    samples = data.load("test", range(n * batch))
    return data.normalise(samples.values).unflatten(0, (n, batch)), samples.labels.unflatten(0, (n, batch))


@pytest.mark.parametrize("data", [Digits(), Photos()], ids=lambda data: data.name)
@pytest.mark.parametrize("model", FEASIBLE, ids=str)
@pytest.mark.parametrize("local", [ONE_STEP, LocalTraining(steps=3, rate=0.05)], ids=["gradient", "update"])
def test_the_image_is_exact(data: ImageDataset, model: Model, local: LocalTraining) -> None:
    images, labels = victims(data)
    found = attack(observe(build_network(model, data.shape, data.classes, seed=0), images, labels, local))
    assert found.images.shape == images.shape and found.diverged_at.eq(-1).all()
    assert (found.images - images).square().flatten(1).mean(dim=1).max() < 1e-8
    if local is ONE_STEP:  # an update is a difference of parameters, which rounds
        estimate, truth = (data.denormalise(image).flatten(0, 1).clamp(0, 1) for image in (found.images, images))
        assert psnr(estimate, truth).min() > 100


@pytest.mark.parametrize("model", FEASIBLE, ids=str)
def test_double_precision_leaves_its_own_rounding_alone(model: Model) -> None:
    data = Photos()
    images, labels = victims(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = Network(model.build(data.shape, data.classes).double())
    torch.testing.assert_close(
        attack(observe(network, images.double(), labels)).images, images.double(), rtol=0, atol=1e-10
    )


def test_least_squares_over_neurons() -> None:
    """With noise on the gradient, against a solver; the scale of the gradient is of no effect."""
    images, labels = victims(Digits(size=8), n=5)
    seen = observe(build_network(MLP(width=12), (1, 8, 8), 10, seed=0), images, labels)
    noise = torch.randn(seen.gradients.shape, generator=torch.Generator().manual_seed(0))
    gradients = (seen.gradients + 0.02 * noise).double()
    for scale in (1.0, 1e-25):
        scaled = Observations(seen.network, seen.parameters, (scale * gradients).float(), seen.batch_shape)
        found = attack(scaled).images.flatten(1)
        for row in range(5):
            named = seen.network.unflatten(gradients[row])
            solved = torch.linalg.lstsq(named["1.bias"][:, None], named["1.weight"]).solution[0]
            torch.testing.assert_close(found[row], solved.float(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bad", [0.0, torch.nan, torch.inf])
def test_rows_without_an_image_are_marked_and_leave_the_others_alone(bad: float) -> None:
    images, labels = victims(Digits(size=8), n=4)
    seen = observe(build_network(Linear(), (1, 8, 8), 10, seed=0), images, labels)
    seen.gradients[1] = bad
    found = attack(seen)
    assert found.diverged_at.tolist() == [-1, 0, -1, -1]
    assert found.images[1].eq(0).all()
    torch.testing.assert_close(found.images[[0, 2, 3]], images[[0, 2, 3]], rtol=0, atol=1e-4)


def test_dead_neurons() -> None:
    """No hidden unit is active: nothing of the image is in the gradient."""
    network = build_network(MLP(width=4), (1, 8, 8), 10, seed=0)
    images, labels = victims(Digits(size=8), n=2)
    parameters = network.parameters.clone()
    layer = network.first_linear
    assert layer is not None and layer.bias is not None
    parameters[layer.bias] = -1e3
    gradients = torch.stack([network.gradient(parameters, images[row], labels[row]) for row in range(2)])
    found = attack(Observations(network, parameters, gradients, (1, 1, 8, 8)))
    assert found.diverged_at.tolist() == [0, 0] and found.images.eq(0).all()


def layers(*modules: torch.nn.Module) -> Network:
    return Network(torch.nn.Sequential(*modules))


def tied(*, whole: bool = False) -> Network:
    """A network for 81 pixels whose first layer runs twice, or whose weights are those of a later layer too."""
    first = torch.nn.Linear(81, 81)
    second = first if whole else torch.nn.Linear(81, 81)
    second.weight = first.weight
    return layers(torch.nn.Flatten(), first, torch.nn.ReLU(), second, torch.nn.ReLU(), torch.nn.Linear(81, 10))


def refused(attack: Attack, network: Network, batch: int, reason: str, local: LocalTraining = ONE_STEP) -> None:
    """Images of 9 x 9 are refused before anything is computed, also inside a wrapper, and when they are there."""
    seen = Observations(network, network.parameters, torch.ones(1, network.dimension), (batch, 1, 9, 9), local)
    for each in (attack, Masked(attack=attack)):
        with pytest.raises(Infeasible, match=f"attack '{attack.name}'.*{reason}"):
            each.check_clients(ClientSetup(Linear(), network, local, seen.batch_shape))
    with pytest.raises(Infeasible, match=f"attack '{attack.name}'.*{reason}"):
        attack.reconstruct(seen, Knowledge(), Streams([("refused", 0)]))


@pytest.mark.parametrize(
    ("network", "batch", "reason"),
    [
        (build_network(Linear(), (1, 9, 9), 10, 0), 2, "holds one; these hold 2"),
        (build_network(SimpleConvNet(width=2), (1, 9, 9), 10, 0), 1, "begins otherwise"),
        (build_network(ConvNet(width=2), (1, 9, 9), 10, 0), 1, "begins otherwise"),
        (layers(torch.nn.Flatten(), torch.nn.Linear(81, 10, bias=False)), 1, "that layer has none"),
        (layers(torch.nn.Linear(9, 2), torch.nn.Flatten(), torch.nn.Linear(18, 10)), 1, "begins otherwise"),
        (layers(torch.nn.Flatten(), torch.nn.Tanh(), torch.nn.Linear(81, 10)), 1, "begins otherwise"),
        (tied(), 1, "'3.weight' is the same tensor"),
        (tied(whole=True), 1, "'3.weight' is the same tensor"),
    ],
)
def test_infeasible(network: Network, batch: int, reason: str) -> None:
    refused(Analytic(), network, batch, f"{reason}.*; list ")


def test_tied_layers_behind_the_first_one_are_read() -> None:
    """Only the first layer's gradient has to be its own."""
    images, labels = victims(Digits(size=8), n=2)
    again = torch.nn.Linear(12, 12)
    network = layers(
        torch.nn.Flatten(), torch.nn.Linear(64, 12), torch.nn.Tanh(), again, again, torch.nn.Linear(12, 10)
    )
    torch.testing.assert_close(attack(observe(network, images, labels)).images, images, rtol=0, atol=1e-4)


def test_it_needs_nothing() -> None:
    assert ATTACKS.get("analytic") is Analytic and Analytic().needs == frozenset() and Analytic.observes
