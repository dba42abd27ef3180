"""Gradients of many networks by matrix products, of batches and samples, against modules one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from leakbench.models.base import Model, Network, build_network
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.models.lenet import LeNet, LeNet5
from leakbench.models.linear import MLP
from leakbench.models.stacked import StackedNetworks

nn = torch.nn
N, BATCH = 3, 4


def assert_gradients(network: Network, shape: tuple[int, int, int]) -> None:
    stacked = StackedNetworks.of(network)
    assert stacked is not None
    draw = torch.Generator().manual_seed(0)
    parameters = network.parameters * (1 + 0.5 * torch.randn(N, network.dimension, generator=draw))
    images = torch.randn(N, BATCH, *shape, generator=draw)
    labels = torch.randint(5, (N, BATCH), generator=draw)
    with torch.no_grad():
        gradients, losses = stacked.gradient_and_loss(parameters, images, labels)
        records = stacked.record_gradients(parameters, images, labels)
        rows = records.weighted(torch.eye(BATCH).expand(N, BATCH, BATCH))
    torch.testing.assert_close(records.losses.mean(dim=1), losses)
    torch.testing.assert_close(records.norms(), rows.norm(dim=2), rtol=1e-4, atol=1e-6)
    module = network.trainable_module()
    for row in range(N):
        nn.utils.vector_to_parameters(parameters[row].clone(), module.parameters())
        loss = nn.functional.cross_entropy(module(images[row]), labels[row])
        expected = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(module.parameters()))])
        torch.testing.assert_close(losses[row], loss.detach())
        torch.testing.assert_close(gradients[row], expected, rtol=1e-4, atol=1e-6)
        for sample in range(BATCH):
            expected = network.gradient(parameters[row], images[row, sample, None], labels[row, sample, None])
            torch.testing.assert_close(rows[row, sample], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (SimpleConvNet(width=3), (1, 9, 9)),
        (SimpleConvNet(width=8), (3, 16, 16)),
        (LeNet5(width=6), (3, 32, 32)),
        (LeNet5(width=6), (1, 30, 34)),
        (MLP(width=5), (1, 8, 8)),
    ],
)
def test_models(model: Model, shape: tuple[int, int, int]) -> None:
    assert_gradients(build_network(model, shape, 5, seed=0), shape)


@pytest.mark.parametrize("side", [(8, 8), (9, 12), (11, 7)])
@pytest.mark.parametrize(("kernel", "padding"), [(1, 0), (2, 0), (3, 0), (3, 1), (3, 2), (5, 2)])
@pytest.mark.parametrize("pool", [True, False])
def test_convolutions(side: tuple[int, int], kernel: int, padding: int, pool: bool) -> None:
    """Two of them, few channels and many; tiles that fit and tiles that stick out."""

    def block(before: int, after: int) -> list[nn.Module]:
        pooling = [nn.MaxPool2d(2)] if pool else []
        return [nn.Conv2d(before, after, kernel, padding=padding), nn.LeakyReLU(0.1), *pooling]

    torch.manual_seed(0)
    features = nn.Sequential(*block(2, 5), nn.Sequential(*block(5, 3)))
    try:
        units = features(torch.zeros(1, 2, *side)).numel()
    except RuntimeError:
        pytest.skip("the images vanish")
    module = nn.Sequential(features, nn.Flatten(), nn.Linear(units, 4), nn.ReLU(), nn.Linear(4, 5))
    assert_gradients(Network(module), (2, *side))


def test_ties_go_to_the_first_as_torch_has_it() -> None:
    """Constant images: every pooling window holds four equal values."""
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 2))
    network = Network(module)
    stacked = StackedNetworks.of(network)
    assert stacked is not None
    image = torch.ones(1, 1, 1, 6, 6)
    image[..., 0, :] = 2.0  # the winner of a tie decides what the weights see
    with torch.no_grad():
        gradient, _ = stacked.gradient_and_loss(network.parameters[None], image, torch.tensor([[1]]))
    copy = network.trainable_module()
    nn.functional.cross_entropy(copy(image[0]), torch.tensor([1])).backward()
    expected = torch.cat([part.grad.flatten() for part in copy.parameters() if part.grad is not None])
    torch.testing.assert_close(gradient[0], expected, rtol=1e-4, atol=1e-6)


def test_a_row_depends_on_itself_alone() -> None:
    network = build_network(LeNet5(width=3), (1, 32, 32), 5, seed=0)
    stacked = StackedNetworks.of(network)
    assert stacked is not None
    draw = torch.Generator().manual_seed(0)
    images, labels = torch.randn(N, BATCH, 1, 32, 32, generator=draw), torch.randint(5, (N, BATCH), generator=draw)
    parameters = network.parameters.repeat(N, 1)
    clean, _ = stacked.gradient_and_loss(parameters, images, labels)
    parameters[1] = torch.nan
    poisoned, losses = stacked.gradient_and_loss(parameters, images, labels)
    assert losses[1].isnan()
    for row in (0, 2):
        assert torch.equal(poisoned[row], clean[row])


@pytest.mark.parametrize(
    "layers",
    [
        [nn.Conv2d(1, 2, 3, stride=2)],
        [nn.Conv2d(1, 2, 3, dilation=2)],
        [nn.Conv2d(1, 2, 3, bias=False)],
        [nn.Conv2d(1, 2, (3, 5))],
        [nn.Conv2d(1, 2, 3, padding="same")],
        [nn.Conv2d(1, 2, 3, padding=1, padding_mode="reflect")],
        [nn.Conv2d(1, 2, 3), nn.Sigmoid()],
        [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)],
        [nn.Conv2d(1, 2, 3), nn.MaxPool2d(3)],
        [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, stride=1)],
        [nn.Conv2d(1, 2, 3), nn.AvgPool2d(2)],
        [nn.MaxPool2d(2)],
    ],
    ids=lambda layers: "-".join(map(str, layers))[:60],
)
def test_other_layers_are_refused(layers: list[Any]) -> None:
    module = nn.Sequential(*layers, nn.Flatten())
    units = module.eval()(torch.zeros(1, 1, 8, 8)).numel()
    assert StackedNetworks.of(Network(nn.Sequential(*module, nn.Linear(units, 5)))) is None


@pytest.mark.parametrize("model", [ConvNet(width=2), LeNet(width=2)])
def test_other_models_are_refused(model: Model) -> None:
    assert StackedNetworks.of(build_network(model, (1, 16, 16), 5, seed=0)) is None


def test_shared_parameters_are_refused() -> None:
    linear = nn.Linear(4, 4)
    assert StackedNetworks.of(Network(nn.Sequential(nn.Flatten(), linear, nn.ReLU(), linear))) is None
