"""Local training, against a literal loop of torch's own optimiser."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.federated.step import ClientSteps
from leakbench.models.base import BatchNorm, Network, build_network
from leakbench.models.convnets import ConvNet
from leakbench.randomness import Streams, generator

TWO_EPOCHS = LocalTraining(steps=4, rate=0.1, batch_size=2)  # of four images


def network(mode: BatchNorm = "eval") -> Network:
    return build_network(ConvNet(width=2), (1, 9, 9), 5, seed=1).in_mode(mode)


def precise(mode: BatchNorm) -> Network:
    """In double precision: steps through eight BatchNorm layers and the kinks of LeakyReLU amplify rounding."""
    return Network(network().trainable_module().double(), batch_norm=mode)


def clients(network: Network, local: LocalTraining, n: int = 3) -> ClientSteps:
    draw = generator("local training")
    images, labels = torch.randn(n, 4, 1, 9, 9, generator=draw), torch.randint(0, 5, (n, 4), generator=draw)
    images = images.to(network.parameters.dtype)
    streams = Streams([("local", client) for client in range(n)])
    return ClientSteps(network, network.parameters, images, labels, streams, local)


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_equals_a_loop_of_sgd(mode: BatchNorm) -> None:
    """Two epochs of minibatches in order, starting from the same parameters, one client after the other."""
    steps = clients(precise(mode), TWO_EPOCHS)
    for client in range(3):
        module = steps.network.trainable_module().train(mode == "train")
        optimiser = torch.optim.SGD(module.parameters(), lr=0.1)
        for _epoch in range(2):
            for first in (0, 2):
                images, labels = (rows[client, first : first + 2] for rows in (steps.images, steps.labels))
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(images), labels).backward()
                optimiser.step()
        moved = steps.parameters - 0.1 * steps.gradient[client]
        torch.testing.assert_close(moved, flat(module), rtol=0, atol=1e-5)
        assert (moved - steps.parameters).abs().max() > 1e-2


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_one_step_is_the_gradient_bit_for_bit(mode: BatchNorm) -> None:
    shared = network(mode)
    plain = clients(shared, ONE_STEP)
    for local in (LocalTraining(rate=0.3), LocalTraining(batch_size=4)):
        assert local.is_gradient(4)
        steps = clients(shared, local)
        assert torch.equal(steps.gradient, plain.gradient) and torch.equal(steps.loss, plain.loss)
        for images, labels in zip(steps.images, steps.labels, strict=True):
            assert torch.equal(
                local.update(shared, shared.parameters, images, labels),
                shared.gradient(shared.parameters, images, labels),
            )
    assert not clients(shared, LocalTraining(batch_size=2)).gradient.equal(plain.gradient)


def test_the_update_is_differentiated() -> None:
    """Sensitivities are those of what is sent: against reverse mode, for the same directions."""
    steps = clients(network("train"), TWO_EPOCHS, n=2)
    directions = steps.streams.child("sensitivity").normal(2, 4, 1, 9, 9)
    expected = torch.zeros(2, steps.network.dimension)
    for client in range(2):

        def update(images: torch.Tensor, client: int = client) -> torch.Tensor:
            return TWO_EPOCHS.update(steps.network, steps.parameters, images, steps.labels[client])

        transposed = torch.func.vjp(update, steps.images[client])[1]
        for direction in directions[client]:
            dual = torch.zeros(steps.network.dimension)
            derivative = torch.func.grad(lambda u, d=direction, t=transposed: (t(u)[0] * d).sum())(dual)
            expected[client] += derivative.square() / 2
    torch.testing.assert_close(steps.sensitivity(2), expected, rtol=1e-3, atol=1e-5 * float(expected.mean()))
    assert not torch.allclose(expected, clients(network("train"), ONE_STEP, n=2).sensitivity(2), rtol=0.1)


def test_the_loss_is_that_before_the_first_step() -> None:
    shared = network()
    torch.testing.assert_close(clients(shared, TWO_EPOCHS).loss, clients(shared, ONE_STEP).loss)


def test_rows_train_alike() -> None:
    steps = clients(network("train"), TWO_EPOCHS)
    part = steps.rows(1, 3)
    assert part.local == TWO_EPOCHS
    assert torch.equal(part.gradient, steps.gradient[1:])
    for name, values in part.batch_statistics.items():
        assert torch.equal(values, steps.batch_statistics[name][1:])
    alone = ClientSteps(part.network, part.parameters, part.images, part.labels, part.streams, part.local)
    torch.testing.assert_close(part.gradient, alone.gradient, rtol=1e-4, atol=1e-6)


def test_batch_statistics_are_those_of_each_client() -> None:
    steps = clients(network("train"), ONE_STEP)
    for client in range(3):
        own = steps.network.batch_statistics(steps.parameters, steps.images[client])
        assert len(own) == 2 * 8  # layers
        for name, values in own.items():
            torch.testing.assert_close(steps.batch_statistics[name][client], values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("local", [TWO_EPOCHS, LocalTraining(steps=2), LocalTraining(batch_size=2)])
def test_per_sample_gradients_of_an_update_do_not_exist(local: LocalTraining) -> None:
    steps = clients(network(), local)
    with pytest.raises(Infeasible, match=r"per-sample gradients exist for one local step on all 4 images"):
        _ = steps.per_sample_gradient
    with pytest.raises(Infeasible):
        _ = steps.rows(0, 1).per_sample_gradient


@given(size=st.integers(1, 9), images=st.integers(1, 9))
def test_batches_divide_the_images(size: int, images: int) -> None:
    tiny = Network(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 3)))
    local = LocalTraining(steps=2, batch_size=size)
    arguments = (tiny, tiny.parameters, torch.ones(images, 1, 1, 2), torch.zeros(images).long())
    if images % size:
        with pytest.raises(ConfigError, match=rf"local.batch_size \({size}\) must divide .*\({images}\)"):
            local.update(*arguments)
    else:
        assert local.update(*arguments).isfinite().all()
