"""Architectures, and the functional view of them."""

from __future__ import annotations

import copy
import csv
import math
from importlib.resources import files
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from leakbench.errors import ConfigError
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.models.alexnet_vgg import VGG16, AlexNet
from leakbench.models.base import Model, Network, build_network
from leakbench.models.convnets import ConvNet, SimpleCNN, SimpleConvNet
from leakbench.models.layered import LayeredNetwork
from leakbench.models.lenet import LeNet, LeNet5
from leakbench.models.linear import MLP, Linear
from leakbench.models.resnet import ResNet10, ResNet18, ResNet18ROG
from leakbench.models.second_order import SecondOrder
from leakbench.models.stacked import StackedNetworks
from leakbench.models.windows import FeatureWindows
from leakbench.randomness import Streams

SMALL = [
    (Linear(), (1, 8, 8)),
    (MLP(width=7), (1, 8, 8)),
    (MLP(width=7, activation="sigmoid"), (2, 4, 8)),
    (SimpleConvNet(width=3), (2, 8, 12)),
    (ConvNet(width=2), (3, 9, 9)),
    (ConvNet(width=2, activation="relu"), (3, 18, 9)),
    (LeNet(width=2), (2, 7, 10)),
    (LeNet(width=2, initialisation="default"), (1, 8, 8)),
    (LeNet(width=2, initialisation="default", activation="relu", batch_norm=True), (1, 8, 8)),
    (ResNet18(width=2), (3, 9, 8)),
    (ResNet10(width=2), (1, 9, 8)),
    (LeNet5(width=3), (1, 16, 20)),
    (AlexNet(width=2), (1, 8, 17)),
    (VGG16(width=1), (1, 9, 8)),
    (SimpleCNN(width=3), (1, 16, 20)),
    (ResNet18ROG(width=2), (1, 16, 18)),
]
MNIST, CIFAR = (1, 28, 28), (3, 32, 32)


@pytest.mark.parametrize(
    ("model", "shape", "count"),
    [
        (SimpleConvNet(), MNIST, 119_530),
        (ConvNet(), CIFAR, 2_904_970),
        (ConvNet(width=32), CIFAR, 733_642),
        (LeNet(), MNIST, 13_426),
        (LeNet(initialisation="default"), CIFAR, 15_826),
        (LeNet(activation="relu", batch_norm=True), MNIST, 13_498),
        (ResNet18(), CIFAR, 11_173_962),
        (SimpleCNN(), CIFAR, 9_422),
        (Linear(), MNIST, 7_850),
        (MLP(), MNIST, 50_890),
    ],
)
def test_parameter_counts(model: Model, shape: tuple[int, int, int], count: int) -> None:
    network = build_network(model, shape, 10, seed=0)
    assert network.dimension == count == sum(network.sizes)
    assert network.parameters.shape == (count,)
    assert network.logits(network.parameters, torch.zeros(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(
    ("model", "channels", "count"),
    [
        (LeNet5(), 3, 62_006),
        (LeNet5(), 1, 61_706),
        (ResNet10(), 3, 4_903_242),
        (AlexNet(), 3, 35_855_178),
        (VGG16(), 3, 134_301_514),
        (VGG16(), 1, 134_301_514 - 2 * 9 * 64),
    ],
)
def test_parameter_counts_without_parameters(model: Model, channels: int, count: int) -> None:
    with torch.device("meta"):
        module = model.build((channels, 32, 32), 10)
        assert sum(parameter.numel() for parameter in module.parameters()) == count
        assert module(torch.zeros(2, channels, 32, 32)).shape == (2, 10)


def test_parameters_of_rog_are_those_of_its_linear_layer() -> None:
    with torch.device("meta"):
        module = ResNet18ROG().build((3, 128, 128), 1000)
        counts = [parameter.numel() for parameter in module.parameters()]
        assert sum(counts) == 43_934_912
        assert module.get_submodule("stages")(torch.zeros(1, 64, 64, 64)).shape == (1, 512, 8, 8)
    assert len(counts) == 21 and counts[20] == 32_768_000  # the tensor that its code defends, by number


@pytest.mark.parametrize("model", [AlexNet(width=8, initialisation="he"), VGG16(width=4, initialisation="he")])
def test_he_initialisation(model: AlexNet | VGG16) -> None:
    network = build_network(model, (3, 32, 32), 10, seed=0)
    for name, values in network.unflatten(network.parameters).items():
        if values.dim() == 1:
            assert bool((values == 0).all()), name
        else:
            assert float(values.var() * values[0].numel() / 2) == pytest.approx(1, rel=0.25), name
    torch_s = build_network(type(model)(width=model.width), (3, 32, 32), 10, seed=0).parameters
    assert not torch.equal(torch_s, network.parameters)
    assert "initialisation" not in type(model)(width=4).parameters()  # identities of earlier records


@pytest.mark.parametrize(("initialisation", "trains"), [("he", True), ("default", False)])
def test_vgg16_trains_at_he_initialisation_alone(initialisation: Any, trains: bool) -> None:
    """Two classes that brightness tells apart: a loss that stays at ln 2 is that of guessing."""
    model = VGG16(width=2, initialisation=initialisation)
    labels = torch.arange(32) % 2
    images = labels.view(-1, 1, 1, 1) * 2.0 - 1 + 0.3 * torch.randn(32, 1, 16, 16, generator=torch.Generator())
    network = build_network(model, (1, 16, 16), 2, seed=0)
    training = Training(steps=60, batch_size=32, rate=0.01)
    curve = train_runs(Start(network, network.parameters), TrainingSet(images, labels), Streams([("vgg",)]), training)
    assert (float(curve.curves[0, -1]) < 0.35) == trains
    if not trains:
        assert float((curve.curves[0, -10:] - math.log(2)).abs().max()) < 0.02


@pytest.mark.parametrize("model", [LeNet5, ResNet10, AlexNet, VGG16])
def test_every_layer_scales_with_the_width(model: type[Model]) -> None:
    """Doubling the width multiplies weights by four, but for those that meet the image or the logits."""
    with torch.device("meta"):
        single, double = (list(model(width=w).build((3, 32, 32), 10).named_parameters()) for w in (6, 12))
    assert [name for name, _ in single] == [name for name, _ in double]
    for index, ((_, one), (name, two)) in enumerate(zip(single, double, strict=True)):
        inside = one.dim() > 1 and index > 0 and index < len(single) - 2
        expected = 1 if index == len(single) - 1 else 4 if inside else 2
        assert two.numel() == expected * one.numel(), name


def test_lenet_5_has_the_layers_of_its_paper() -> None:
    with torch.device("meta"):
        layers = LeNet5().build(CIFAR, 10).children()
    assert [tuple(layer.weight.shape) for layer in layers if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear)] == [
        (6, 3, 5, 5),
        (16, 6, 5, 5),
        (120, 400),
        (84, 120),
        (10, 84),
    ]


def test_dropout_is_where_the_originals_have_it_and_off_in_networks() -> None:
    module = AlexNet(width=2).build((1, 8, 8), 5)
    assert [layer.p for layer in module.modules() if isinstance(layer, torch.nn.Dropout)] == [0.5, 0.5]
    network, images = Network(module), torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for mode in (network, network.in_mode("train")):
        assert torch.equal(mode.logits(mode.parameters, images), mode.logits(mode.parameters, images))
    training = network.trainable_module()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert not torch.equal(training(images), training(images))


def test_parameters_of_a_hundred_classes() -> None:
    assert build_network(LeNet(), CIFAR, 100, seed=0).dimension == 85_036


def test_table_1() -> None:
    network = build_network(SimpleConvNet(), MNIST, 10, seed=0)
    table = files("leakbench.papers.optimal_defense").joinpath("reference/table01.csv").read_text()
    printed = {line["tensor"]: int(line["paper"]) for line in csv.DictReader(table.splitlines())}
    assert dict(zip(network.names, network.sizes, strict=True)) == printed
    assert list(printed.values()) == [288, 32, 18_432, 64, 100_352, 32, 320, 10]


@pytest.mark.parametrize(("model", "shape"), SMALL)
class TestFunctional:
    def test_logits_are_those_of_the_module(self, model: Model, shape: tuple[int, int, int]) -> None:
        module, parameters, images, _ = self.example(model, shape)
        network = build_network(model, shape, 5, seed=7)
        torch.testing.assert_close(network.parameters, parameters, rtol=0, atol=0)
        torch.testing.assert_close(network.logits(parameters, images), module(images))

    def test_gradient_is_that_of_autograd(self, model: Model, shape: tuple[int, int, int]) -> None:
        module, parameters, images, labels = self.example(model, shape)
        network = build_network(model, shape, 5, seed=7)
        loss = torch.nn.functional.cross_entropy(module(images), labels)
        expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
        torch.testing.assert_close(network.gradient(parameters, images, labels), expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(network.loss(parameters, images, labels), loss.detach())

    def example(
        self, model: Model, shape: tuple[int, int, int]
    ) -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor, torch.Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            module = model.build(shape, 5).eval()
            images = torch.randn(3, *shape)
        parameters = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
        return module, parameters, images, torch.tensor([4, 0, 2])

    def test_initialisation_depends_on_the_seed_alone(self, model: Model, shape: tuple[int, int, int]) -> None:
        first = build_network(model, shape, 5, seed=1).parameters
        torch.rand(17)  # moves the global generator
        before = torch.random.get_rng_state()
        again, other = (build_network(model, shape, 5, seed=seed).parameters for seed in (1, 2))
        assert torch.equal(torch.random.get_rng_state(), before)
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def test_batchnorm_uses_its_running_statistics() -> None:
    network = build_network(ConvNet(width=2), (3, 9, 9), 5, seed=0)
    images = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    together = network.logits(network.parameters, images)
    alone = torch.cat([network.logits(network.parameters, image[None]) for image in images])
    torch.testing.assert_close(together, alone)


def test_unflatten_names_every_parameter() -> None:
    network = build_network(SimpleConvNet(width=2), (1, 8, 8), 10, seed=0)
    named = network.unflatten(network.parameters)
    assert list(named) == network.names and [tuple(part.shape) for part in named.values()] == network.shapes
    assert torch.equal(torch.cat([part.flatten() for part in named.values()]), network.parameters)


class TestFrozen:
    """The first convolution of a network requires no gradient."""

    @pytest.fixture
    def network(self) -> Network:
        module = SimpleConvNet(width=2).build((1, 8, 8), 10)
        next(layer for layer in module.modules() if isinstance(layer, torch.nn.Conv2d)).requires_grad_(False)
        return Network(module)

    def test_it_is_no_part_of_the_vector(self, network: Network) -> None:
        whole = Network(copy.deepcopy(network.module).requires_grad_(True))
        first = whole.sizes[0] + whole.sizes[1]
        assert list(network.frozen) == whole.names[:2] and network.names == whole.names[2:]
        assert torch.equal(network.parameters, whole.parameters[first:]) and not network.parameters.requires_grad
        assert network.state_size == network.dimension == whole.dimension - first
        images, labels = torch.rand(2, 1, 8, 8), torch.tensor([3, 7])
        parameters = whole.parameters + 0.1
        parameters[:first] = whole.parameters[:first]
        gradient = network.gradient(parameters[first:], images, labels)
        torch.testing.assert_close(gradient, whole.gradient(parameters, images, labels)[first:])
        assert list(network.tensors(parameters[first:])) == whole.names

    def test_copies_stay_so(self, network: Network) -> None:
        module = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), copy.deepcopy(network.module))
        assert Network(module).names == ["0.weight", "0.bias", *(f"1.{name}" for name in network.names)]
        assert Network(network.trainable_module()).names == network.names
        assert network.in_mode("train").frozen.keys() == network.frozen.keys()

    def test_faster_ways_that_take_a_network_apart_are_not_taken(self, network: Network) -> None:
        assert LayeredNetwork.of(network) is None
        assert StackedNetworks.of(network) is None
        assert SecondOrder.of(network) is None

    def test_features_pass_through_it(self, network: Network) -> None:
        images, layer = torch.rand(2, 1, 8, 8), next(iter(network.linear_layers))
        windows = FeatureWindows.of(network, layer)
        assert windows is not None
        features, _ = windows.sensitivity(network.parameters, images, 8)
        torch.testing.assert_close(features, network.features(network.parameters, images, layer))

    def test_a_module_without_gradients_trains_as_a_whole(self) -> None:
        network = Network(torch.nn.Linear(3, 2).requires_grad_(False))
        assert network.dimension == 8 and not network.frozen
        assert all(parameter.requires_grad for parameter in network.trainable_module().parameters())


class TestLinearLayers:
    @pytest.mark.parametrize(("model", "shape"), SMALL)
    def test_the_head_computes_the_logits(self, model: Model, shape: tuple[int, int, int]) -> None:
        network = build_network(model, shape, 5, seed=0)
        head, named = network.head, network.unflatten(network.parameters)
        biased = network.names[-1].endswith(".bias")
        assert biased != isinstance(model, ResNet18ROG)
        weight = named[network.names[-2 if biased else -1]]
        assert (head.outputs, head.inputs) == weight.shape == (5, head.inputs)
        assert torch.equal(head.weights(network.parameters.expand(2, -1))[1], weight)
        assert (head.bias is not None) == biased
        if head.bias is not None:
            assert torch.equal(network.parameters[head.bias], named[network.names[-1]])

    @pytest.mark.parametrize(("model", "shape"), SMALL)
    def test_the_first_layer(self, model: Model, shape: tuple[int, int, int]) -> None:
        network = build_network(model, shape, 5, seed=0)
        layer = network.first_linear
        if not isinstance(model, Linear | MLP):
            assert layer is None
        else:
            assert layer is not None and layer.bias is not None
            assert torch.equal(layer.weights(network.parameters), network.unflatten(network.parameters)["1.weight"])
            assert torch.equal(network.parameters[layer.bias], network.unflatten(network.parameters)["1.bias"])

    @pytest.mark.parametrize(("model", "shape"), SMALL)
    def test_all_linear_layers(self, model: Model, shape: tuple[int, int, int]) -> None:
        network = build_network(model, shape, 5, seed=0)
        named = network.unflatten(network.parameters)
        modules = dict(network.trainable_module().named_modules())
        assert list(network.linear_layers) == [
            name for name, module in modules.items() if isinstance(module, torch.nn.Linear)
        ]
        for name, layer in network.linear_layers.items():
            assert torch.equal(layer.weights(network.parameters), named[f"{name}.weight"])
        assert list(network.linear_layers.values())[-1] == network.head

    def test_without_bias_and_without_a_container(self) -> None:
        network = Network(torch.nn.Linear(3, 2, bias=False))
        assert network.head == network.first_linear
        assert network.head.bias is None and network.head.weight == slice(0, 6)

    @pytest.mark.parametrize(
        ("last", "name"),
        [
            (torch.nn.Conv2d(2, 2, 1), "'1', a Conv2d"),
            (torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.LayerNorm(2)), "'1.1', a LayerNorm"),
        ],
    )
    def test_another_last_layer(self, last: torch.nn.Module, name: str) -> None:
        network = Network(torch.nn.Sequential(torch.nn.Linear(2, 2), last))
        with pytest.raises(ConfigError, match=f"last parameters belong to {name}; .* ends with a torch.nn.Linear"):
            _ = network.head

    def test_no_parameters_and_shared_ones(self) -> None:
        with pytest.raises(ConfigError, match=r"ends with a torch\.nn\.Linear"):
            _ = Network(torch.nn.Sequential(torch.nn.Flatten())).head
        first, last = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        last.weight = first.weight
        with pytest.raises(ConfigError, match=r"ends with a torch\.nn\.Linear"):
            _ = Network(torch.nn.Sequential(first, last)).head

    def test_a_module_that_runs_its_parts_in_its_own_order_has_no_known_first_layer(self) -> None:
        class Own(torch.nn.Sequential):
            def forward(self, images: torch.Tensor) -> torch.Tensor:
                return self[0](images.flatten(1).square())  # type: ignore[no-any-return]

        assert Network(Own(torch.nn.Linear(4, 2))).first_linear is None


@pytest.mark.parametrize(
    ("model", "shape", "least"),
    [
        (SimpleConvNet(width=2), (1, 3, 8), (1, 4, 4)),
        (SimpleConvNet(width=2), (1, 8, 3), (1, 4, 4)),
        (ConvNet(width=2), (3, 8, 32), (3, 9, 9)),
        (LeNet5(width=2), (3, 16, 15), (3, 16, 16)),
        (AlexNet(width=2), (1, 7, 8), (1, 8, 8)),
    ],
)
def test_too_small_images(model: Model, shape: tuple[int, int, int], least: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError, match=f"'{model.name}'.*{shape[1]}x{shape[2]}"):
        model.build(shape, 10)
    assert model.build(least, 10)(torch.zeros(2, *least)).shape == (2, 10)


@pytest.mark.parametrize("model", {type(model): model for model, _ in SMALL}.values(), ids=lambda model: model.name)
def test_text_is_no_image(model: Model) -> None:
    with pytest.raises(ConfigError, match=rf"'{model.name}' reads images .*shape \(12,\)"):
        model.build((12,), 2)


def test_width_is_positive_and_fixed_for_the_linear_model() -> None:
    with pytest.raises(ValidationError):
        SimpleConvNet(width=0)
    with pytest.raises(ValidationError):
        Linear(width=2)


def test_rows_within_a_budget() -> None:
    network = build_network(Linear(), (1, 8, 8), 10, seed=0)
    rows = network.rows_within(2**24, (4, 1, 8, 8))
    assert rows > 1 and network.rows_within(2**25, (4, 1, 8, 8)) // 2 == rows
    assert network.rows_within(1, (4, 1, 8, 8)) == 1


def test_what_the_last_layer_reads() -> None:
    """Its outer product with the residual is the last layer's gradient, here by autograd one sample at a time."""
    for model in (ConvNet(width=2), LeNet(width=2), MLP(width=7)):
        network = build_network(model, (1, 9, 9), 5, seed=0)
        images = torch.randn(3, 1, 9, 9, generator=torch.Generator().manual_seed(0))
        labels = torch.tensor([4, 0, 2])
        logits, features = network.logits_and_features(network.parameters, images)
        assert torch.equal(logits, network.logits(network.parameters, images))
        residual = logits.softmax(dim=1) - torch.nn.functional.one_hot(labels, 5)
        module = network.trainable_module().eval()
        *_, weight, bias = module.parameters()
        for row in range(3):
            loss = torch.nn.functional.cross_entropy(module(images[row : row + 1]), labels[row : row + 1])
            by_weight, by_bias = torch.autograd.grad(loss, (weight, bias))
            torch.testing.assert_close(torch.outer(residual[row], features[row]), by_weight)
            torch.testing.assert_close(residual[row], by_bias)
        assert not any(layer._forward_pre_hooks for layer in network._module.modules())
