"""The variational bottleneck, against plain torch written out, and where faster ways to gradients have to decline."""

from __future__ import annotations

from copy import copy
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, linear, softplus

from leakbench.attacks.batch_norm import Anchored
from leakbench.errors import Infeasible
from leakbench.federated.gradients import Batch, BatchGradients
from leakbench.models.base import Model, Network, build_network
from leakbench.models.bottleneck import ExtendedNetwork, divergence, extended, with_rows
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.layered import LayeredNetwork
from leakbench.models.lenet import LeNet
from leakbench.models.linear import MLP
from leakbench.models.second_order import SecondOrder
from leakbench.models.stacked import StackedNetworks
from leakbench.models.windows import FeatureWindows
from leakbench.randomness import Streams, generator

SHAPE, CLASSES = (1, 8, 8), 10


def made(width: int = 5, beta: float = 0.1, model: Model | None = None, seed: int = 1) -> ExtendedNetwork:
    return extended(build_network(model or LeNet(width=2), SHAPE, CLASSES, seed=0), SHAPE, width, beta, seed)


def batch(size: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(size)
    images, noise = torch.randn(size, *SHAPE, generator=draw), torch.randn(size, width, generator=draw)
    return images, torch.randint(CLASSES, (size,), generator=draw), noise


def literal(
    network: ExtendedNetwork, images: torch.Tensor, labels: torch.Tensor, noise: torch.Tensor, beta: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Logits, loss and gradient, one image and one component at a time."""
    module = network.trainable_module().eval()
    layers = list(module.children())
    encoder, _, decoder, head = layers[-1].children()
    assert isinstance(encoder, torch.nn.Linear)
    rows, loss = [], torch.zeros(())
    for image, label, draw in zip(images, labels, noise, strict=True):
        features = image[None]
        for layer in layers[:-1]:
            features = layer(features)
        encoded = linear(features, encoder.weight, encoder.bias)[0]
        code = []
        for component in range(len(draw)):
            mean, deviation = encoded[component], softplus(encoded[len(draw) + component])
            code.append(mean + deviation * draw[component])
            normal, unit = torch.distributions.Normal(mean, deviation), torch.distributions.Normal(0.0, 1.0)
            loss = loss + beta * torch.distributions.kl_divergence(normal, unit) / len(images)
        logits = head(decoder(torch.stack(code)[None]))
        loss = loss + cross_entropy(logits, label[None]) / len(images)
        rows.append(logits[0])
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    return torch.stack(rows), loss, torch.cat([gradient.flatten() for gradient in gradients])


@settings(max_examples=5, deadline=None)
@given(size=st.integers(1, 3), width=st.integers(1, 5), beta=st.sampled_from([0.0, 1e-3, 1.0]))
def test_forward_loss_and_gradient_by_a_literal_loop(size: int, width: int, beta: float) -> None:
    network, (images, labels, noise) = made(width, beta), batch(size, width)
    rows = with_rows(images, noise)
    logits, loss, gradient = literal(network, images, labels, noise, beta)
    torch.testing.assert_close(network.logits(network.parameters, rows), logits)
    torch.testing.assert_close(network.loss(network.parameters, rows, labels), loss)
    torch.testing.assert_close(network.gradient(network.parameters, rows, labels), gradient)


def test_images_without_noise_have_the_code_s_mean() -> None:
    network, (images, labels, noise) = made(), batch(3, 5)
    without = network.loss(network.parameters, images, labels)
    torch.testing.assert_close(without, literal(network, images, labels, 0 * noise, 0.1)[1])
    assert not torch.allclose(without, network.loss(network.parameters, with_rows(images, noise), labels))


@given(channels=st.integers(1, 3), side=st.integers(1, 6), width=st.integers(1, 40))
def test_rows_below_hold_all_numbers_and_zeros(channels: int, side: int, width: int) -> None:
    images, noise = torch.zeros(2, channels, side, side), torch.arange(1.0, 2 * width + 1).view(2, width)
    rows = with_rows(images, noise)
    assert rows.shape[:2] == images.shape[:2] and rows.shape[3] == side
    torch.testing.assert_close(rows[..., :side, :], images)
    below = rows[..., side:, :].movedim(1, 2).flatten(1)
    assert below.shape[1] - width < channels * side
    torch.testing.assert_close(below[:, :width], noise)
    assert not below[:, width:].any()


def test_many_models_side_by_side_draw_each_its_own_noise() -> None:
    network, (images, labels, noise) = made(), batch(4, 5)
    rows = with_rows(images, noise).unflatten(0, (2, 2))
    together = torch.func.vmap(network.gradient, in_dims=(None, 0, 0))(network.parameters, rows, labels.view(2, 2))
    for client in range(2):
        alone = network.gradient(network.parameters, rows[client], labels.view(2, 2)[client])
        torch.testing.assert_close(together[client], alone)


@pytest.mark.parametrize("model", [LeNet(width=2), MLP(width=4), SimpleConvNet(width=2)])
def test_the_given_network_is_in_the_new_one(model: Model) -> None:
    network = build_network(model, SHAPE, CLASSES, seed=0)
    before = network.parameters.clone()
    new = extended(network, SHAPE, 5, 0.1, seed=1)
    assert torch.equal(network.parameters, before)
    tensors, at = network.unflatten(network.parameters), new.unflatten(new.parameters)
    *body, weight, bias = network.names
    assert all(torch.equal(at[name], tensors[name]) for name in body) and new.names[: len(body)] == body
    assert torch.equal(at[new.names[-2]], tensors[weight]) and torch.equal(at[new.names[-1]], tensors[bias])
    encoder, decoder = new.coders
    assert (encoder.inputs, encoder.outputs, decoder.inputs, decoder.outputs) == (
        *(network.head.inputs, 10, 5, network.head.inputs),
    )
    assert new.head.inputs == network.head.inputs


def test_what_is_new_depends_on_the_seed_alone() -> None:
    state = torch.get_rng_state()
    one, same, other = made(seed=1), made(seed=1), made(seed=2)
    assert torch.equal(one.parameters, same.parameters) and not torch.equal(one.parameters, other.parameters)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_bare_linear_layer_can_be_extended() -> None:
    new = extended(Network(torch.nn.Linear(3, 2)), (1, 1, 3), 4, 0.1, seed=0)
    assert new.logits(new.parameters, torch.ones(5, 1, 1, 3)).shape == (5, 1, 1, 2)


def test_a_step_of_a_module_has_the_network_s_loss() -> None:
    network, (images, labels, _) = made(), batch(3, 5)
    noise = torch.randn(3, 5, generator=generator("step", 7, "code"))
    loss = network.module_loss(network.trainable_module(), images, labels, ("step", 7))
    torch.testing.assert_close(loss, network.loss(network.parameters, with_rows(images, noise), labels))


def test_batch_norm_and_other_modules_keep_the_bottleneck() -> None:
    network = made(model=LeNet(width=2, activation="relu", batch_norm=True)).in_mode("train")
    images, labels, noise = batch(4, 5)
    rows = with_rows(images, noise)
    again = network.holding(network.trainable_module())
    assert again.batch_norm == "train" and not again.plain_loss
    torch.testing.assert_close(
        again.loss(again.parameters, rows, labels), network.loss(network.parameters, rows, labels)
    )
    statistics = network.batch_statistics(network.parameters, rows)
    torch.testing.assert_close(
        network.in_mode("eval").loss(network.parameters, rows, labels, statistics),
        network.loss(network.parameters, rows, labels),
    )


def test_faster_ways_decline() -> None:
    network, (images, labels, noise) = made(), batch(2, 5)
    layer = list(network.linear_layers)[-1]
    fast = (StackedNetworks.of(network), LayeredNetwork.of(network), SecondOrder.of(network))
    assert fast == (None, None, None) and FeatureWindows.of(network, layer) is None
    step = Batch(with_rows(images, noise)[None], labels[None], Streams([("run", 0)]), 0)
    with pytest.raises(Infeasible, match="another term"):
        BatchGradients().compute(network, network.parameters[None], {}, step, slice(0, 1))
    with pytest.raises(Infeasible, match="beside the cross-entropy"):
        Anchored(network)


def test_a_code_that_is_standard_normal_diverges_by_nothing() -> None:
    raw = torch.full((2, 3), 1.0).expm1().log()  # whose softplus is one
    torch.testing.assert_close(divergence(torch.zeros(2, 3), raw), torch.zeros(2))


class Penalised(Network):
    """A network of ordinary layers whose loss has a penalty on the logits."""

    plain_loss: ClassVar[bool] = False


def test_faster_ways_decline_another_loss_over_ordinary_layers() -> None:
    plain = build_network(SimpleConvNet(width=2), SHAPE, CLASSES, seed=0)
    other = copy(plain)
    other.__class__ = Penalised
    ways = (StackedNetworks.of, LayeredNetwork.of, SecondOrder.of)
    assert all(of(plain) is not None for of in ways) and [of(other) for of in ways] == [None] * 3
