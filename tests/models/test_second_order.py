"""Written-out passes against ``torch.func``: gradients, and derivatives of functions of them by images and labels."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from leakbench.models.base import Model, Network
from leakbench.models.convnets import ConvNet, SimpleCNN, SimpleConvNet
from leakbench.models.lenet import LeNet, LeNet5
from leakbench.models.linear import MLP, Linear
from leakbench.models.resnet import ResNet18
from leakbench.models.second_order import SecondOrder

N, B, CLASSES = 3, 2, 5
KNOWN: list[tuple[Model, tuple[int, int, int]]] = [
    (LeNet(width=3), (3, 12, 10)),
    (LeNet(width=3), (1, 9, 9)),
    (LeNet5(width=3), (1, 20, 20)),
    (SimpleConvNet(width=3), (1, 9, 8)),
    (SimpleCNN(width=3), (3, 18, 18)),
    (ConvNet(width=2), (3, 9, 9)),
    (ConvNet(width=2, activation="relu"), (1, 10, 10)),
    (MLP(width=6), (1, 4, 4)),
    (Linear(), (1, 4, 4)),
]

Gradient = Callable[..., torch.Tensor]


def network_of(module: torch.nn.Module) -> Network:
    return Network(module.double())


def built(model: Model, shape: tuple[int, int, int]) -> Network:
    torch.manual_seed(0)
    module = model.build(shape, CLASSES)
    for layer in module.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            assert layer.running_mean is not None and layer.running_var is not None
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2)
    return network_of(module)


def compared(network: Network, shape: tuple[int, int, int], *, own: bool, soft: bool, batch: int = B) -> None:
    """Both ways to functions of gradients, and to their derivatives, of clients side by side.

    A weighted sum of cubes of the gradient's entries; and one of the products with a target and with itself.
    """
    second_order = SecondOrder.of(network)
    assert second_order is not None
    draw = torch.Generator().manual_seed(1)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=draw, dtype=torch.float64)

    images, scores = normal(N, batch, *shape), normal(N, batch, CLASSES)
    labels = torch.randint(CLASSES, (N, batch), generator=draw)
    weights = normal(N, network.dimension)
    parameters = network.parameters.expand(N, -1)
    if own:
        parameters = parameters + 0.1 * normal(N, network.dimension)

    def cubes(gradient_of: Gradient, weights: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = gradient_of(*inputs)
        return (weights * gradient**3).sum(), gradient

    def products(
        products_of: Callable[..., tuple[torch.Tensor, torch.Tensor]], target: torch.Tensor, *inputs: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        inner, square = products_of(*inputs, target)
        return inner * square.sqrt() - 3 * inner, torch.stack([inner, square])

    def literally(
        parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = network.gradient(parameters, images, labels)
        return (gradient * target).sum(), gradient.square().sum()

    def found(function: Callable[..., tuple[torch.Tensor, torch.Tensor]], way: object) -> tuple[torch.Tensor, ...]:
        def cost(
            images: torch.Tensor,
            scores: torch.Tensor,
            labels: torch.Tensor,
            weights: torch.Tensor,
            parameters: torch.Tensor,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return function(way, weights, parameters, images, scores.softmax(dim=-1) if soft else labels)

        both = torch.func.grad(cost, argnums=(0, 1), has_aux=True)
        dims = (0, 0, 0, 0, 0 if own else None)
        by, values = torch.func.vmap(both, in_dims=dims)(
            images, scores, labels, weights, parameters if own else network.parameters
        )
        return (*by, values)

    ways = (cubes, second_order.gradient, network.gradient), (products, second_order.products, literally)
    for function, own_way, literal in ways:
        for ours, theirs in zip(found(function, own_way), found(function, literal), strict=True):
            torch.testing.assert_close(ours, theirs)
            assert bool(theirs.any()) or not soft


@pytest.mark.parametrize("soft", [False, True], ids=["classes", "probabilities"])
@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize(("model", "shape"), KNOWN, ids=[f"{model!r}-{shape}" for model, shape in KNOWN])
def test_are_those_of_torch(model: Model, shape: tuple[int, int, int], own: bool, soft: bool) -> None:
    """Parameters that clients share or have of their own, labels as classes or as probabilities of scores."""
    compared(built(model, shape), shape, own=own, soft=soft)


nn = torch.nn
LAYERS: dict[str, nn.Module] = {
    "tanh": nn.Sequential(nn.Conv2d(2, 3, 3, stride=2), nn.Tanh(), nn.Conv2d(3, 4, 2, bias=False), nn.Flatten()),
    "overlapping windows": nn.Sequential(nn.Conv2d(2, 3, 3), nn.MaxPool2d(3, stride=1, padding=1), nn.Flatten()),
    "a rising activation": nn.Sequential(nn.Conv2d(2, 3, 3), nn.LeakyReLU(1.5), nn.MaxPool2d(2), nn.Flatten()),
    "a falling activation": nn.Sequential(nn.Conv2d(2, 3, 3), nn.LeakyReLU(-0.5), nn.MaxPool2d(2), nn.Flatten()),
    "what does nothing": nn.Sequential(nn.Sequential(nn.Identity(), nn.Conv2d(2, 3, 3)), nn.Dropout(), nn.Flatten()),
    "images normalised": nn.Sequential(nn.BatchNorm2d(2), nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten()),
    "no bias": nn.Sequential(nn.Conv2d(2, 3, 3, bias=False), nn.Sigmoid(), nn.Flatten()),
    "sides": nn.Sequential(nn.Conv2d(2, 3, (3, 2), padding=(0, 1)), nn.ReLU(), nn.MaxPool2d((1, 2)), nn.Flatten()),
}


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, own: bool) -> None:
    torch.manual_seed(0)
    shape = (2, 7, 8)
    features = LAYERS[name].eval()(torch.zeros(1, *shape).to(next(LAYERS[name].parameters()))).shape[1]
    module = nn.Sequential(LAYERS[name], nn.Linear(features, CLASSES, bias=name != "no bias"))
    compared(network_of(module), shape, own=own, soft=True, batch=1)


def test_of_equal_values_the_first_is_the_largest() -> None:
    """As torch does, so that images with flat regions have the same derivatives."""
    network = built(SimpleConvNet(width=3), (1, 8, 8))
    second_order = SecondOrder.of(network)
    assert second_order is not None
    flat = torch.full((1, 1, 8, 8), 0.3, dtype=torch.float64)
    label = torch.tensor([2])

    def derivative(gradient_of: Gradient) -> torch.Tensor:
        def cost(images: torch.Tensor) -> torch.Tensor:
            return gradient_of(network.parameters, images, label).pow(3).sum()

        found: torch.Tensor = torch.func.grad(cost)(flat)
        return found

    ours, theirs = derivative(second_order.gradient), derivative(network.gradient)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize(
    "network",
    [
        lambda: built(ResNet18(width=4), (3, 8, 8)),
        lambda: built(ConvNet(width=2), (3, 9, 9)).in_mode("train"),
        lambda: network_of(nn.Sequential(nn.Conv2d(1, 2, 3, groups=1, padding="same"), nn.Flatten(), nn.Linear(32, 5))),
        lambda: network_of(nn.Sequential(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(8, 5))),
        lambda: network_of(nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.GELU())),
        lambda: network_of(nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(16, 5))),
    ],
    ids=["residual", "batch statistics", "padding", "groups", "gelu", "activation first"],
)
def test_other_networks_are_left_to_torch(network: Callable[[], Network]) -> None:
    assert SecondOrder.of(network()) is None


def test_a_third_derivative_is_refused() -> None:
    network = built(LeNet(width=2), (1, 8, 8))
    second_order = SecondOrder.of(network)
    assert second_order is not None
    images, label = torch.zeros(1, 1, 8, 8, dtype=torch.float64), torch.tensor([0])

    def cost(images: torch.Tensor) -> torch.Tensor:
        return second_order.gradient(network.parameters, images, label).square().sum()

    with pytest.raises(NotImplementedError, match="differentiated once"):
        torch.func.grad(lambda images: torch.func.grad(cost)(images).square().sum())(images)
