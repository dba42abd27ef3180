"""The batched Jacobian of features against one backward pass after the other."""

from __future__ import annotations

from collections import OrderedDict
from unittest import mock

import pytest
import torch
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from leakbench.errors import ConfigError
from leakbench.federated import features
from leakbench.federated.features import FeatureJacobian
from leakbench.federated.step import ClientSteps
from leakbench.models.base import BatchNorm, Model, Network, build_network
from leakbench.models.convnets import DPCNN, ConvNet, SimpleCNN, SimpleConvNet
from leakbench.models.lenet import LeNet, LeNet5
from leakbench.models.linear import MLP
from leakbench.models.resnet import ResNet10
from leakbench.models.windows import FeatureWindows, _meeting
from leakbench.randomness import Streams, generator


def loop(network: Network, parameters: torch.Tensor, images: torch.Tensor, layer: str) -> torch.Tensor:
    """``||d r_bf / dX||`` of one client's batch, ``[B, F]``: a backward pass for every feature of every image."""
    inputs = images.clone().requires_grad_()
    read = network.features(parameters, inputs, layer)
    norms = torch.zeros_like(read)
    for image in range(read.shape[0]):
        for feature in range(read.shape[1]):
            (gradient,) = torch.autograd.grad(read[image, feature], inputs, retain_graph=True)
            norms[image, feature] = gradient.norm()
    return norms.detach()


def clients(network: Network, n: int = 2, batch: int = 3, shape: tuple[int, ...] = (1, 8, 8)) -> torch.Tensor:
    images: torch.Tensor = torch.randn(n, batch, *shape, generator=generator("features"))
    return images


@pytest.mark.parametrize("layer", ["fc_layers.1", "fc_layers.3"])
@pytest.mark.parametrize("own", [False, True])
def test_every_layer_and_models_of_their_own(tiny_network: Network, layer: str, own: bool) -> None:
    images = clients(tiny_network)
    parameters = tiny_network.parameters
    if own:
        parameters = parameters * torch.tensor([[1.0], [1.5]])
    found = FeatureJacobian(tiny_network, parameters, images).sensitivity(layer)
    for client in range(2):
        of_client = parameters[client] if own else parameters
        expected = loop(tiny_network, of_client, images[client], layer)
        assert float(expected.max()) > 0
        torch.testing.assert_close(found.norms[client], expected)
        read = tiny_network.features(of_client, images[client], layer)
        torch.testing.assert_close(found.features[client], read)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_batch_norm(mode: BatchNorm) -> None:
    """In mode ``train`` a feature of one image depends on all of them."""
    network = build_network(ConvNet(width=1), (1, 18, 18), 4, 0).in_mode(mode)
    images = clients(network, 2, 2, (1, 18, 18))
    (layer,) = network.linear_layers
    found = FeatureJacobian(network, network.parameters, images).sensitivity(layer).norms
    for client in range(2):
        expected = loop(network, network.parameters, images[client], layer)
        torch.testing.assert_close(found[client], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "layer", "shape"),
    [
        (LeNet(width=3), -1, (2, 8, 8)),  # windows are larger than maps
        (LeNet(width=2), -1, (1, 41, 30)),
        (SimpleCNN(width=2), 0, (3, 16, 19)),
        (SimpleCNN(width=2), 1, (1, 16, 16)),
        (SimpleConvNet(width=2), 0, (1, 24, 9)),
        (LeNet5(width=3), -1, (1, 20, 23)),
        (ConvNet(width=1), -1, (1, 29, 18)),
        (MLP(width=4), -1, (1, 5, 6)),
    ],
    ids=str,
)
@pytest.mark.parametrize("together", [1, 5, 1000])
def test_windows_are_the_loop(model: Model, layer: int, shape: tuple[int, int, int], together: int) -> None:
    network = build_network(model, shape, 4, 0)
    name = list(network.linear_layers)[layer]
    (images,) = clients(network, 1, 2, shape)
    windows = FeatureWindows.of(network, name)
    assert windows is not None
    found, norms = windows.sensitivity(network.parameters, images, together)
    expected = loop(network, network.parameters, images, name)
    assert float(expected.max()) > 0
    torch.testing.assert_close(norms, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found, network.features(network.parameters, images, name))


def test_small_maps_are_met_half_way() -> None:
    """In LeNet on 28 x 28 behind its second convolution; images of 3 x 32 x 32 would make too large a product."""
    chosen = {}
    for shape in ((1, 28, 28), (3, 32, 32)):
        network = build_network(LeNet(), shape, 10, 0)
        name = list(network.linear_layers)[-1]
        windows = FeatureWindows.of(network, name)
        assert windows is not None
        with mock.patch("leakbench.models.windows._meeting", wraps=_meeting) as meeting:
            (images,) = clients(network, 1, 1, shape)
            _, norms = windows.sensitivity(network.parameters, images, 100)
        chosen[shape] = _meeting(*meeting.call_args.args)
        torch.testing.assert_close(norms, loop(network, network.parameters, images, name), rtol=1e-4, atol=1e-6)
    assert chosen == {(1, 28, 28): 3, (3, 32, 32): 0}


@given(
    kernel=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    pool=st.tuples(st.integers(1, 2), st.integers(1, 3)),
    sides=st.tuples(st.integers(8, 14), st.integers(8, 14)),
    sparse=st.sampled_from([0, 4, 1000]),
    met=st.sampled_from([0, 2]),
)
def test_any_convolutions_and_pooling(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    pool: tuple[int, int],
    sides: tuple[int, int],
    sparse: int,
    met: int,
) -> None:
    """Also where rows and columns differ, whether convolutions are matrices or not, and where both sides meet."""
    nn = torch.nn
    torch.manual_seed(0)
    features = [
        nn.Conv2d(2, 3, kernel, stride=stride, padding=padding), nn.Tanh(), nn.MaxPool2d(pool),
        nn.Conv2d(3, 2, kernel[::-1], padding=2), nn.LeakyReLU(), nn.MaxPool2d(pool[::-1]), nn.Flatten(),
    ]  # fmt: skip
    images = torch.randn(2, 2, *sides)
    try:
        units = nn.Sequential(*features)(images).shape[1]
    except RuntimeError:
        reject()  # nothing is left of the images
    assume(units > 0)
    network = Network(nn.Sequential(*features, nn.Linear(units, 2)))
    windows = FeatureWindows.of(network, "7")
    assert windows is not None
    with (
        mock.patch("leakbench.models.windows.SPARSE", sparse),
        mock.patch("leakbench.models.windows._meeting", return_value=met),
    ):
        _, norms = windows.sensitivity(network.parameters, images, 7)
    torch.testing.assert_close(norms, loop(network, network.parameters, images, "7"), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("model", [DPCNN(width=2), ResNet10(width=2)], ids=str)
def test_networks_without_windows(model: Model) -> None:
    """Pooling windows overlap, or layers do not follow each other."""
    network = build_network(model, (1, 16, 16), 4, 0)
    images = clients(network, 2, 2, (1, 16, 16))
    layer = list(network.linear_layers)[-1]
    assert FeatureWindows.of(network, layer) is None
    found = FeatureJacobian(network, network.parameters, images).sensitivity(layer).norms
    expected = torch.stack([loop(network, network.parameters, some, layer) for some in images])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_clients_of_a_server_are_one_batch(tiny_network: Network) -> None:
    """Their numbers are those of each alone."""
    images, of_server = clients(tiny_network, 5), torch.tensor([1.0, 1.0, 1.5, 1.0, 1.0])
    parameters = tiny_network.parameters * of_server[:, None]
    together = FeatureJacobian(tiny_network, parameters, images).sensitivity("fc_layers.1")
    for client in range(5):
        alone = FeatureJacobian(tiny_network, parameters[client], images[client, None]).sensitivity("fc_layers.1")
        torch.testing.assert_close(together.norms[client], alone.norms[0])


def test_parts_make_no_difference(tiny_network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    jacobian = FeatureJacobian(tiny_network, tiny_network.parameters, clients(tiny_network))
    whole = jacobian.sensitivity("fc_layers.1").norms
    monkeypatch.setattr(features, "CPU_BUDGET", 4 * 200 * 6 * 64 * 3)
    assert jacobian._side_by_side((6, 1, 8, 8)) == 3  # of 16 features
    torch.testing.assert_close(jacobian.sensitivity("fc_layers.1").norms, whole)


def test_steps_share_it(tiny_network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = clients(tiny_network, 3), torch.zeros(3, 3, dtype=torch.int64)
    streams = Streams([("features", client) for client in range(3)])
    steps = ClientSteps(tiny_network, tiny_network.parameters, images, labels, streams)
    part = steps.rows(1, 3).feature_sensitivity("fc_layers.1")
    whole = steps.feature_sensitivity("fc_layers.1")
    monkeypatch.setattr(FeatureJacobian, "sensitivity", None)
    assert steps.feature_sensitivity("fc_layers.1") is whole
    assert torch.equal(part.norms, whole.norms[1:]) and torch.equal(part.features, whole.features[1:])


class TestNetwork:
    def test_linear_layers(self) -> None:
        network = build_network(SimpleConvNet(width=2), (1, 8, 8), 10, 0)
        assert list(network.linear_layers) == ["fc_layers.1", "fc_layers.3"]
        assert network.linear_layers["fc_layers.3"] == network.head
        first = network.linear_layers["fc_layers.1"]
        assert (first.outputs, first.inputs) == (2, 16)
        weight = network.unflatten(network.parameters)["fc_layers.1.weight"]
        assert torch.equal(first.weights(network.parameters), weight)

    def test_features_are_what_the_layer_reads(self, tiny_network: Network) -> None:
        images = clients(tiny_network)[0]
        read = tiny_network.features(tiny_network.parameters, images, "fc_layers.3")
        torch.testing.assert_close(read, tiny_network.logits_and_features(tiny_network.parameters, images)[1])
        before = tiny_network.features(tiny_network.parameters, images, "fc_layers.1")
        named = tiny_network.unflatten(tiny_network.parameters)
        weight, bias = named["fc_layers.1.weight"], named["fc_layers.1.bias"]
        torch.testing.assert_close(torch.nn.functional.leaky_relu(before @ weight.T + bias, 0.01), read)

    def test_errors(self, tiny_network: Network) -> None:
        images = clients(tiny_network)[0]
        with pytest.raises(ConfigError, match=r"'fc'; there are .*fc_layers\.1"):
            tiny_network.features(tiny_network.parameters, images, "fc")
        module = torch.nn.Sequential(OrderedDict(rows=torch.nn.Linear(8, 2), flat=torch.nn.Flatten()))
        rows = Network(module)
        with pytest.raises(ConfigError, match="one vector per image"):
            rows.features(rows.parameters, images, "rows")

    def test_state_counts_batch_norms_statistics(self, tiny_network: Network) -> None:
        assert tiny_network.state_size == tiny_network.dimension
        network = build_network(ConvNet(width=32), (3, 32, 32), 10, 0)
        assert (network.dimension, network.state_size) == (733_642, 735_250)
