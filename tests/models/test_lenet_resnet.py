"""LeNet and residual networks against literal forward passes, alone and side by side."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from leakbench.models.base import BatchNorm, Model, Network, Statistics, build_network
from leakbench.models.lenet import LeNet
from leakbench.models.resnet import ResNet10, ResNet18

SHAPE = (3, 9, 8)


def batches(rows: int = 3, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(rows, size, *SHAPE, generator=draw), torch.randint(5, (rows, size), generator=draw)


def network_of(model: Model) -> Network:
    """With parameters and running statistics that are all different, so that none can be forgotten."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = model.build(SHAPE, 5)
        for layer in module.modules():
            if isinstance(layer, torch.nn.BatchNorm2d):
                assert layer.running_mean is not None and layer.running_var is not None
                torch.nn.init.uniform_(layer.weight, 0.5, 1.5)
                torch.nn.init.uniform_(layer.bias, -0.5, 0.5)
                layer.running_mean.uniform_(-0.5, 0.5)
                layer.running_var.uniform_(0.5, 1.5)
    return Network(module)


class TestLeNet:
    @pytest.mark.parametrize("initialisation", ["uniform", "default"])
    def test_forward_by_hand(self, initialisation: str) -> None:
        network = network_of(LeNet.model_validate({"width": 3, "initialisation": initialisation}))
        named, images = network.unflatten(network.parameters), batches()[0][0]
        values = images
        for index, stride in ((0, 2), (2, 2), (4, 1)):
            weight, bias = named[f"{index}.weight"], named[f"{index}.bias"]
            assert weight.shape[-2:] == (5, 5)
            values = torch.sigmoid(F.conv2d(values, weight, bias, stride=stride, padding=2))
        assert values.shape == (4, 3, 3, 2)
        expected = values.flatten(1) @ named["7.weight"].T + named["7.bias"]
        torch.testing.assert_close(network.logits(network.parameters, images), expected)

    def test_initialisation(self) -> None:
        """Uniform on +-0.5, biases too; torch's own depends on the number of inputs and is narrower here."""
        uniform = build_network(LeNet(), (1, 28, 28), 10, seed=0)
        for part in uniform.unflatten(uniform.parameters).values():
            assert float(part.abs().max()) <= 0.5
        parameters = uniform.parameters
        assert float(parameters.max()) > 0.499 and float(parameters.min()) < -0.499
        assert abs(float(parameters.mean())) < 5 / (12 * len(parameters)) ** 0.5
        assert float(parameters.var()) == pytest.approx(1 / 12, rel=0.05)
        default = build_network(LeNet(initialisation="default"), (1, 28, 28), 10, seed=0)
        for name, part in default.unflatten(default.parameters).items():
            inputs = {"0": 25, "2": 300, "4": 300, "7": 588}[name[0]]
            assert 0.5 * inputs**-0.5 < float(part.abs().max()) <= inputs**-0.5

    def test_it_is_smooth(self) -> None:
        """Second derivatives exist everywhere: central differences of gradients converge to them."""
        network = Network(LeNet(width=2).build(SHAPE, 5).double())
        images, labels = batches(1)
        images = images[0].double()
        direction = torch.randn(images.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

        def gradient(inputs: torch.Tensor) -> torch.Tensor:
            return network.gradient(network.parameters, inputs, labels[0])

        derivative = torch.func.jvp(gradient, (images,), (direction,))[1]
        difference = (gradient(images + 1e-6 * direction) - gradient(images - 1e-6 * direction)) / 2e-6
        torch.testing.assert_close(derivative, difference, rtol=1e-6, atol=1e-8)


def resnet(
    blocks: list[tuple[int, bool]], named: dict[str, torch.Tensor], running: Statistics | None, images: torch.Tensor
) -> torch.Tensor:
    """Logits of basic blocks (stride, whether projected) as the paper draws them.

    Without running statistics, BatchNorm takes those of the batch.
    """

    def normal(values: torch.Tensor, layer: str) -> torch.Tensor:
        if running is None:
            mean = values.mean((0, 2, 3))
            variance = (values - mean[:, None, None]).square().mean((0, 2, 3))
        else:
            mean, variance = running[f"{layer}.running_mean"], running[f"{layer}.running_var"]
        scaled = (values - mean[:, None, None]) / (variance[:, None, None] + 1e-5).sqrt()
        return scaled * named[f"{layer}.weight"][:, None, None] + named[f"{layer}.bias"][:, None, None]

    values = torch.relu(normal(F.conv2d(images, named["0.weight"], padding=1), "1"))
    for block, (stride, projected) in enumerate(blocks, start=3):
        inner = normal(
            F.conv2d(values, named[f"{block}.residual.0.weight"], stride=stride, padding=1), f"{block}.residual.1"
        )
        inner = normal(
            F.conv2d(torch.relu(inner), named[f"{block}.residual.3.weight"], padding=1), f"{block}.residual.4"
        )
        if projected:
            straight = F.conv2d(values, named[f"{block}.shortcut.0.weight"], stride=stride)
            values = torch.relu(inner + normal(straight, f"{block}.shortcut.1"))
        else:
            assert f"{block}.shortcut.0.weight" not in named
            values = torch.relu(inner + values)
    head = 3 + len(blocks) + 2
    return values.mean((2, 3)) @ named[f"{head}.weight"].T + named[f"{head}.bias"]


PLAIN, HALVING = (1, False), (2, True)


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(
    ("model", "blocks"),
    [
        (ResNet18(width=3), [PLAIN, PLAIN, HALVING, PLAIN, HALVING, PLAIN, HALVING, PLAIN]),
        (ResNet10(width=3), [PLAIN, HALVING, HALVING, HALVING]),
    ],
)
def test_residual_networks_by_hand(model: Model, blocks: list[tuple[int, bool]], mode: BatchNorm) -> None:
    network = network_of(model).in_mode(mode)
    images = batches()[0][0]
    running = network.running_statistics if mode == "eval" else None
    expected = resnet(blocks, network.unflatten(network.parameters), running, images)
    torch.testing.assert_close(network.logits(network.parameters, images), expected, rtol=1e-4, atol=1e-5)
    normalising = 1 + 2 * len(blocks) + 3  # the stem, two in each block, three on shortcuts
    assert len(network.running_statistics) == 2 * normalising
    widths = {shape[0] for name, shape in zip(network.names, network.shapes, strict=True) if "residual" in name}
    assert widths == {3, 6, 12, 24}


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("model", [LeNet(width=2), ResNet18(width=2)], ids=lambda model: model.name)
class TestSideBySide:
    def test_clients_of_one_model(self, model: Model, mode: BatchNorm) -> None:
        network = network_of(model).in_mode(mode)
        images, labels = batches()
        logits = torch.func.vmap(network.logits, in_dims=(None, 0))(network.parameters, images)
        gradients = torch.func.vmap(network.gradient, in_dims=(None, 0, 0))(network.parameters, images, labels)
        for row in range(3):
            alone = network.logits(network.parameters, images[row])
            torch.testing.assert_close(logits[row], alone, rtol=1e-3, atol=1e-4)
            gradient = network.gradient(network.parameters, images[row], labels[row])
            torch.testing.assert_close(gradients[row], gradient, rtol=1e-2, atol=1e-3)

    def test_clients_of_several_models(self, model: Model, mode: BatchNorm) -> None:
        network = network_of(model).in_mode(mode)
        images, labels = batches()
        parameters = network.parameters * torch.tensor([1.0, 0.9, 1.1])[:, None]
        gradients = torch.func.vmap(network.gradient)(parameters, images, labels)
        for row in range(3):
            gradient = network.gradient(parameters[row], images[row], labels[row])
            torch.testing.assert_close(gradients[row], gradient, rtol=1e-2, atol=1e-3)

    def test_gradient_is_that_of_autograd(self, model: Model, mode: BatchNorm) -> None:
        network = network_of(model).in_mode(mode)
        images, labels = (each[0] for each in batches())
        module = network.trainable_module().train(mode == "train")
        loss = F.cross_entropy(module(images), labels)
        expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
        found = network.gradient(network.parameters, images, labels)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        assert float(found.abs().max()) > 1e-2
