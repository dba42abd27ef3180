"""Gradients of records by layers are those of records one by one."""

from __future__ import annotations

import pytest
import torch

import leakbench.models.record_gradients as records_module
from leakbench.defenses.base import Defense
from leakbench.defenses.distributed_noise import DistributedNoise
from leakbench.defenses.gaussian_sampling import GaussianSampling
from leakbench.defenses.water_filling import WaterFilling
from leakbench.errors import ConfigError
from leakbench.federated.layered_steps import LayeredSteps
from leakbench.federated.step import ClientSteps
from leakbench.models.alexnet_vgg import VGG16, AlexNet
from leakbench.models.base import Model, Network, build_network
from leakbench.models.convnets import DPCNN, SimpleCNN, SimpleConvNet
from leakbench.models.layered import LayeredNetwork
from leakbench.models.linear import MLP, Linear
from leakbench.models.resnet import ResNet18
from leakbench.randomness import Streams

SERVERS, CLIENTS, RECORDS = 2, 3, 4
SMALL = [Linear(), MLP(width=5), DPCNN(width=2), SimpleConvNet(width=2), SimpleCNN(width=2)]
MODELS = [*SMALL, AlexNet(width=1, initialisation="he"), VGG16(width=1, initialisation="he")]


def both(model: Model) -> tuple[ClientSteps, LayeredSteps]:
    """The same clients, one by one and by layers; each of two servers has a model of its own."""
    network = build_network(model, (1, 16, 16), 10, seed=3)
    layered = LayeredNetwork.of(network)
    assert layered is not None
    make = torch.Generator().manual_seed(0)
    n = SERVERS * CLIENTS
    images = 2 * torch.rand(n, RECORDS, 1, 16, 16, generator=make) - 1
    labels = torch.randint(10, (n, RECORDS), generator=make)
    servers = network.parameters + 0.1 * torch.randn(SERVERS, network.dimension, generator=make)
    streams = Streams([("layered", client) for client in range(n)])
    whole = ClientSteps(network, servers.repeat_interleave(CLIENTS, dim=0), images, labels, streams)
    return whole, LayeredSteps(network, layered, servers, images, labels, streams)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_everything_of_the_records(model: Model) -> None:
    whole, layered = both(model)
    expected = whole.per_sample_gradient
    make = torch.Generator().manual_seed(1)
    weights, vectors = torch.randn(6, 2, RECORDS, generator=make), torch.randn(6, 2, expected.shape[2], generator=make)
    factors = torch.rand(6, RECORDS, generator=make)
    covered: list[int] = []
    for part, found in layered.record_gradients():
        own = expected[part]
        covered += range(part.start, part.stop)
        for ours, theirs in (
            (found.norms(), own.norm(dim=2)),
            (found.weighted(weights[part]), weights[part] @ own),
            (found.scaled(factors[part]).weighted(weights[part]), (weights[part] * factors[part, None]) @ own),
            (found.mean(), own.mean(dim=1)),
            (found.along(vectors[part]), vectors[part] @ own.mT),
            (found.gram(), (own.double() @ own.double().mT)),
        ):
            # Sums of float32: their errors are of the size of the largest.
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * max(1.0, float(theirs.abs().max())))
    assert covered == list(range(6))
    torch.testing.assert_close(layered.loss, whole.loss)
    torch.testing.assert_close(layered.gradient, whole.gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "defense",
    [
        DistributedNoise(clip=0.8, variance=0.01),
        GaussianSampling(clip=0.8, batch=2, variance=0.01),
        WaterFilling(clip=0.8, batch=2, variance=0.01),
        WaterFilling(clip=0.8, batch=2, variance=0.1),
        WaterFilling(clip=0.8, batch=2, variance=1.0),
        WaterFilling(clip=0.8, batch=2, variance=0.01, blocks=2),
    ],
    ids=repr,
)
def test_mechanisms_send_the_same(defense: Defense) -> None:
    whole, layered = both(DPCNN(width=2))
    sent = [defense.protect_update(steps, steps.streams.child("noise")).view() for steps in (whole, layered)]
    torch.testing.assert_close(sent[1], sent[0], rtol=1e-4, atol=1e-5)


def test_some_eigenvalues_lie_on_either_side() -> None:
    """Of what the levels above are tried with: all, some and no eigenvalues exceed them."""
    whole, _ = both(DPCNN(width=2))
    gradients = WaterFilling(clip=0.8, batch=2, variance=1).factors(whole.per_sample_gradient.norm(dim=2))[
        ..., None
    ] * (whole.per_sample_gradient)
    values = torch.linalg.eigvalsh(gradients @ gradients.mT)[:, -1] / (2 * RECORDS)
    assert bool((values > 0.01).all()) and bool((values < 1).all())


def test_a_record_that_is_not_finite_leaves_other_clients_alone() -> None:
    whole, layered = both(Linear())
    whole.images[1, 0] = torch.nan
    sent = WaterFilling(clip=0.8, batch=2, variance=0.01).protect_update(layered, whole.streams).view()
    assert sent.isfinite().all(dim=1).tolist() == [True, False, True, True, True, True]


def test_parts_that_fit_in_memory_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    _, once = both(MLP(width=5))
    expected = once.gradient
    monkeypatch.setattr("leakbench.federated.layered_steps.MEMORY_BUDGET", 1)
    _, parts = both(MLP(width=5))
    assert [part.stop - part.start for part, _ in parts.record_gradients()] == [1] * 6
    torch.testing.assert_close(parts.gradient, expected)
    torch.testing.assert_close(parts.loss, once.loss)


def test_other_networks_are_not_taken_apart() -> None:
    assert LayeredNetwork.of(build_network(ResNet18(width=4), (3, 32, 32), 10, seed=0)) is None


def test_a_linear_layer_on_images_is_not_taken_apart() -> None:
    assert LayeredNetwork.of(Network(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Flatten()))) is None


def test_the_cnn_of_dp_sgd() -> None:
    """Layer by layer: 8 x 8 x 16 + 16, 4 x 4 x 16 x 32 + 32, 512 x 32 + 32, 32 x 10 + 10."""
    network = build_network(DPCNN(), (1, 28, 28), 10, seed=0)
    assert network.sizes == [1024, 16, 8192, 32, 16384, 32, 320, 10]
    assert network.dimension == 26_010
    assert build_network(DPCNN(width=4), (1, 16, 16), 10, seed=0).dimension == 4 * 65 + 8 * 65 + 8 * 9 + 90
    with pytest.raises(ConfigError, match="vanish in its pooling layers"):
        DPCNN().build((1, 8, 8), 10)


def test_a_linear_model_from_zero() -> None:
    network = build_network(Linear(start="zero"), (1, 28, 28), 10, seed=0)
    assert network.dimension == 7850 and not bool(network.parameters.any())


def test_data_that_come_back_are_multiplied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also under other parameters and in other views; not data that were changed, nor other data."""
    network = build_network(Linear(), (1, 8, 8), 10, seed=3)
    layered = LayeredNetwork.of(network)
    assert layered is not None
    images = torch.rand(3, 5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(15).view(3, 5) % 10
    seen = []
    plain = records_module._products

    def watched(inputs: torch.Tensor) -> torch.Tensor:
        if inputs.shape[-1] == 64:
            seen.append(inputs.shape)
        return plain(inputs)

    monkeypatch.setattr(records_module, "_products", watched)
    for number, parameters in enumerate((network.parameters, 2 * network.parameters)):
        for part in (slice(0, 2), slice(2, 3)):
            found = layered.record_gradients(parameters, images[part], labels[part])
            units = torch.eye(5).expand(len(labels[part]), 5, 5)
            rows = torch.cat([each.weighted(units) for each in found.parts], dim=2)
            torch.testing.assert_close(found.gram(), rows.double() @ rows.double().mT, rtol=1e-4, atol=1e-6)
        assert len(seen) == 2, f"round {number}"
    images[0] += 1
    found = layered.record_gradients(network.parameters, images[:2], labels[:2])
    errors, inputs = found.parts[0].errors.double(), images[:2].flatten(2).double()  # type: ignore[attr-defined]
    torch.testing.assert_close(found.gram(), (errors @ errors.mT) * (inputs @ inputs.mT + 1), rtol=1e-6, atol=1e-9)
    other = layered.record_gradients(network.parameters, images[:2].clone(), labels[:2])
    torch.testing.assert_close(other.gram(), found.gram())
    assert len(seen) >= 4


def test_what_is_kept_has_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records_module, "GRAM_BUDGET", 8 * 25)
    kept = records_module.Products()
    small, large = torch.rand(1, 5, 2), torch.rand(1, 6, 2)
    assert kept.of(small) is kept.of(small)
    assert kept.of(large) is not kept.of(large)
