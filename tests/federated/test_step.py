"""Gradients, per-sample gradients and sensitivities of many clients, against plain loops and exact derivatives."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from leakbench.federated import step
from leakbench.federated.sensitivity import Probes
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, Statistics
from leakbench.models.convnets import SimpleConvNet
from leakbench.randomness import Streams, generator

KEYS = [("clients", index) for index in range(5)]


def clients(network: Network, *, shared: bool, n: int = 5, batch: int = 3) -> ClientSteps:
    draw = generator("federated tests")
    parameters = network.parameters if shared else 0.3 * torch.randn(n, network.dimension, generator=draw)
    images = torch.randn(n, batch, 1, 8, 8, generator=draw)
    labels = torch.randint(0, 10, (n, batch), generator=draw)
    return ClientSteps(network, parameters, images, labels, Streams(KEYS[:n]))


def plain_gradients(steps: ClientSteps) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Loss and gradient of each batch: a module per client, and autograd."""
    for index in range(len(steps)):
        module = SimpleConvNet(width=2).build((1, 8, 8), 10)
        parameters = steps.parameters if steps.parameters.dim() == 1 else steps.parameters[index]
        torch.nn.utils.vector_to_parameters(parameters, module.parameters())
        loss = torch.nn.functional.cross_entropy(module(steps.images[index]), steps.labels[index])
        gradient = torch.autograd.grad(loss, list(module.parameters()))
        yield loss.detach(), torch.cat([part.flatten() for part in gradient])


def jacobian(network: Network, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """``grad_x g``, ``[d, m]``, one basis direction of the input at a time."""
    basis = torch.eye(images.numel()).view(-1, *images.shape)

    def along(direction: torch.Tensor) -> torch.Tensor:
        def gradient(inputs: torch.Tensor) -> torch.Tensor:
            return network.gradient(network.parameters, inputs, labels)

        derivative: torch.Tensor = torch.func.jvp(gradient, (images,), (direction,))[1]
        return derivative

    result: torch.Tensor = torch.func.vmap(along, chunk_size=16)(basis)
    return result.T


class TestGradient:
    @pytest.mark.parametrize("shared", [True, False])
    def test_equals_a_plain_loop(self, tiny_network: Network, shared: bool) -> None:
        steps = clients(tiny_network, shared=shared)
        losses, gradients = zip(*plain_gradients(steps), strict=True)
        assert steps.gradient.shape == (5, tiny_network.dimension)
        torch.testing.assert_close(steps.gradient, torch.stack(gradients), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(steps.loss, torch.stack(losses))

    @pytest.mark.parametrize("shared", [True, False])
    def test_per_sample_equals_a_plain_loop(self, tiny_network: Network, shared: bool) -> None:
        steps = clients(tiny_network, shared=shared)
        parameters = steps.parameters.expand(5, -1).repeat_interleave(3, dim=0)
        images, labels = steps.images.view(15, 1, 1, 8, 8), steps.labels.view(15, 1)
        single = ClientSteps(tiny_network, parameters, images, labels, Streams(KEYS * 3))
        expected = torch.stack([gradient for _, gradient in plain_gradients(single)]).view(5, 3, -1)
        torch.testing.assert_close(steps.per_sample_gradient, expected, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(steps.per_sample_gradient.mean(dim=1), steps.gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("shared", [True, False])
def test_nothing_depends_on_how_the_work_is_cut(
    tiny_network: Network, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    per_row = step.MEMORY_BUDGET // tiny_network.rows_within(step.MEMORY_BUDGET, (3, 1, 8, 8))
    results = []
    for rows in (1, 2, 1000):
        monkeypatch.setattr(step, "MEMORY_BUDGET", rows * per_row + per_row // 2)
        steps = clients(tiny_network, shared=shared)
        assert steps._chunk == rows or rows > len(steps)
        results.append((steps.gradient, steps.loss, steps.per_sample_gradient, steps.sensitivity(4)))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-7)


class TestSensitivity:
    def test_many_probes_give_the_squared_norms(self, tiny_network: Network) -> None:
        steps = clients(tiny_network, shared=True, n=1, batch=1)
        exact = jacobian(tiny_network, steps.images[0], steps.labels[0]).square().sum(dim=1)
        assert (exact > 0).float().mean() > 0.5
        torch.testing.assert_close(steps.sensitivity(4000)[0], exact, rtol=0.1, atol=1e-12)

    def test_the_whole_batch_is_one_input(self, tiny_network: Network) -> None:
        steps = clients(tiny_network, shared=True, n=1, batch=2)
        exact = jacobian(tiny_network, steps.images[0], steps.labels[0]).square().sum(dim=1)
        torch.testing.assert_close(steps.sensitivity(4000)[0], exact, rtol=0.1, atol=1e-12)

    def test_exact_norms_agree_with_double_reverse_mode(self, tiny_network: Network) -> None:
        steps = clients(tiny_network, shared=True, n=1, batch=1)
        exact = jacobian(tiny_network, steps.images[0], steps.labels[0]).square().sum(dim=1)
        parameters = tiny_network.parameters.requires_grad_()
        images = steps.images[0].clone().requires_grad_()
        loss = tiny_network.loss(parameters, images, steps.labels[0])
        (gradient,) = torch.autograd.grad(loss, parameters, create_graph=True)
        for entry in exact.argsort(descending=True)[[0, 20, 60]]:
            (row,) = torch.autograd.grad(gradient[entry], images, retain_graph=True)
            assert float(row.square().sum()) == pytest.approx(float(exact[entry]), rel=1e-5)

    @pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
    def test_unbiased(self, tiny_network: Network, kind: Probes) -> None:
        steps = clients(tiny_network, shared=True, n=1, batch=1)
        rows = jacobian(tiny_network, steps.images[0], steps.labels[0])
        exact = rows.square().sum(dim=1)
        copies = 600
        many = ClientSteps(
            tiny_network,
            tiny_network.parameters,
            steps.images.expand(copies, -1, -1, -1, -1),
            steps.labels.expand(copies, -1),
            Streams([("estimate", index) for index in range(copies)]),
        )
        estimates = many.sensitivity(2, kind)
        spread = exact.square() - (rows.pow(4).sum(dim=1) if kind == "rademacher" else 0)  # variance, k = 2 probes
        sure = spread > 1e-4 * exact.square()
        error = (estimates.mean(dim=0) - exact)[sure] / (spread[sure] / copies).sqrt()
        assert error.abs().max() < 4.5  # standard errors, over at most 160 entries
        torch.testing.assert_close(estimates.var(dim=0)[sure], spread[sure], rtol=0.5, atol=0)

    @pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
    @pytest.mark.parametrize("shared", [True, False])
    def test_equals_a_double_reverse_loop_over_the_same_directions(
        self, tiny_network: Network, kind: Probes, shared: bool
    ) -> None:
        """The other way to a directional derivative: ``d/du <u, g>`` along ``x`` is linear in ``u``."""
        steps = clients(tiny_network, shared=shared, n=3)
        directions = steps.streams.child("sensitivity").normal(4, 3, 1, 8, 8)
        if kind == "rademacher":
            directions = torch.where(directions < 0, -1.0, 1.0)
        expected = torch.zeros(3, tiny_network.dimension)
        for client in range(3):
            parameters = steps.parameters if shared else steps.parameters[client]
            for direction in directions[client]:
                weights = parameters.clone().requires_grad_()
                images = steps.images[client].clone().requires_grad_()
                loss = tiny_network.loss(weights, images, steps.labels[client])
                (gradient,) = torch.autograd.grad(loss, weights, create_graph=True)
                dual = torch.zeros_like(gradient, requires_grad=True)
                (transposed,) = torch.autograd.grad(gradient, images, dual, create_graph=True)
                (derivative,) = torch.autograd.grad(transposed, dual, direction)
                expected[client] += derivative.square() / 4
        torch.testing.assert_close(steps.sensitivity(4, kind), expected, rtol=1e-4, atol=1e-5 * float(expected.mean()))

    def test_least_squares_by_hand(self) -> None:
        class LeastSquares(Network):
            def loss(
                self,
                parameters: torch.Tensor,
                images: torch.Tensor,
                labels: torch.Tensor,
                statistics: Statistics | None = None,
            ) -> torch.Tensor:
                return 0.5 * (parameters @ images.flatten() - 0.5).square()

        class FourDirections(Streams):
            def child(self, *name: str | int) -> Streams:
                return self

            def normal(self, *shape: int, device: torch.device | None = None) -> torch.Tensor:
                return torch.tensor([[1.0, 0], [0, 1], [1, 1], [0.5, -2]]).view(1, *shape)

        network = LeastSquares(torch.nn.Linear(2, 1, bias=False))
        image = torch.tensor([3.0, -1.0]).view(1, 1, 1, 1, 2)
        steps = ClientSteps(
            network, torch.tensor([1.0, 2.0]), image, torch.zeros(1, 1).long(), FourDirections([("any",)])
        )
        assert steps.gradient.tolist() == [[1.5, -0.5]] and steps.loss.tolist() == [0.125]
        assert steps.sensitivity(4).tolist() == [[60.890625, 3.9375]]

    def test_computed_once(self, tiny_network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = clients(tiny_network, shared=True)
        first = {(k, kind): steps.sensitivity(k, kind) for k in (1, 2) for kind in ("gaussian", "rademacher")}
        assert len({float(value.sum()) for value in first.values()}) == 4
        monkeypatch.setattr(ClientSteps, "_input_jacobian", None)
        assert all(steps.sensitivity(k, kind) is value for (k, kind), value in first.items())  # type: ignore[arg-type]

    def test_a_client_draws_its_own_directions(self, tiny_network: Network) -> None:
        steps = clients(tiny_network, shared=True)
        backwards = ClientSteps(
            tiny_network,
            steps.parameters,
            steps.images.flip(0),
            steps.labels.flip(0),
            Streams(steps.streams.keys[::-1]),
        )
        torch.testing.assert_close(backwards.sensitivity(3).flip(0), steps.sensitivity(3), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("shared", [True, False])
class TestRows:
    def test_share_the_work(self, tiny_network: Network, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = clients(tiny_network, shared=shared)
        part = steps.rows(1, 4).rows(0, 2)
        assert len(part) == 2 and part.streams.keys == KEYS[1:3]
        assert torch.equal(part.images, steps.images[1:3]) and torch.equal(part.labels, steps.labels[1:3])
        wanted = part.sensitivity(2)  # computed for all rows at the first use
        monkeypatch.setattr(ClientSteps, "_input_jacobian", None)
        assert torch.equal(steps.sensitivity(2)[1:3], wanted)
        assert torch.equal(part.gradient, steps.gradient[1:3])
        assert torch.equal(part.loss, steps.loss[1:3])
        assert torch.equal(part.per_sample_gradient, steps.per_sample_gradient[1:3])
        assert part.gradient.data_ptr() == steps.gradient[1:3].data_ptr()

    def test_equal_the_same_clients_alone(self, tiny_network: Network, shared: bool) -> None:
        part = clients(tiny_network, shared=shared).rows(2, 4)
        alone = ClientSteps(tiny_network, part.parameters, part.images, part.labels, part.streams)
        torch.testing.assert_close(part.gradient, alone.gradient, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(part.sensitivity(2), alone.sensitivity(2), rtol=1e-5, atol=1e-7)


def test_relative_spread_of_the_paper_s_ten_probes(tiny_network: Network) -> None:
    """``sqrt(2 / k)``: 0.447 at k = 10."""
    steps = clients(tiny_network, shared=True, n=1, batch=1)
    many = ClientSteps(
        tiny_network,
        tiny_network.parameters,
        steps.images.expand(300, -1, -1, -1, -1),
        steps.labels.expand(300, -1),
        Streams([("ten", index) for index in range(300)]),
    )
    estimates = many.sensitivity()
    entry = int(estimates.mean(dim=0).argmax())
    relative = estimates[:, entry].std() / estimates[:, entry].mean()
    assert float(relative) == pytest.approx(math.sqrt(2 / 10), rel=0.12)
