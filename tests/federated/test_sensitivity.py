"""Input sensitivities, exact and estimated, against double reverse mode; what they cost."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from leakbench.federated import sensitivity
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.federated.sensitivity import InputJacobian
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import ConvNet
from leakbench.numerics.footprint import footprint
from leakbench.randomness import Streams, generator

TWO_STEPS = LocalTraining(steps=2, rate=0.5)


def normalised() -> Network:
    """99 parameters on 2x3x3, with BatchNorm that has seen data."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        layers = [torch.nn.Linear(18, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh(), torch.nn.Linear(4, 3)]
        module = torch.nn.Sequential(torch.nn.Flatten(), *layers)
        module(torch.randn(50, 2, 3, 3) + 0.5)
    return Network(module)


def clients(network: Network, local: LocalTraining = ONE_STEP, *, shared: bool = True, n: int = 2) -> ClientSteps:
    draw = generator("sensitivity tests")
    shape, classes = ((2, 3, 3), 3) if network.running_statistics else ((1, 8, 8), 10)
    images = torch.randn(n, 3, *shape, generator=draw)
    labels = torch.randint(0, classes, (n, 3), generator=draw)
    own = network.parameters + 0.1 * torch.randn(n, network.dimension, generator=draw)
    streams = Streams([("clients", index) for index in range(n)])
    return ClientSteps(network, network.parameters if shared else own, images, labels, streams, local)


def double_reverse(steps: ClientSteps) -> torch.Tensor:
    """Every entry of every update differentiated once more, one after the other."""
    rows = []
    for client in range(len(steps)):
        parameters = steps.parameters if steps.parameters.dim() == 1 else steps.parameters[client]
        images = steps.images[client].clone().requires_grad_()
        moved = parameters.clone().requires_grad_()
        for _ in range(steps.local.steps):
            loss = steps.network.loss(moved, images, steps.labels[client])
            (gradient,) = torch.autograd.grad(loss, moved, create_graph=True)
            moved = moved - steps.local.rate * gradient
        update = (parameters - moved) / steps.local.rate
        for entry in update:
            (row,) = torch.autograd.grad(entry, images, retain_graph=True)
            rows.append(row.square().sum())
    return torch.stack(rows).view(len(steps), -1)


class TestExact:
    @pytest.mark.parametrize("shared", [True, False])
    def test_equals_double_reverse_mode(self, tiny_network: Network, shared: bool) -> None:
        steps = clients(tiny_network, shared=shared)
        expected = double_reverse(steps)
        torch.testing.assert_close(steps.exact_sensitivity, expected, rtol=1e-5, atol=1e-6 * float(expected.mean()))

    @pytest.mark.parametrize("shared", [True, False])
    @pytest.mark.parametrize("local", [ONE_STEP, TWO_STEPS], ids=["one step", "two steps"])
    @pytest.mark.parametrize("mode", ["eval", "train"])
    def test_where_samples_interact(self, mode: str, local: LocalTraining, shared: bool) -> None:
        steps = clients(normalised().in_mode(mode), local, shared=shared)  # type: ignore[arg-type]
        assert steps._input_jacobian.samples_interact == (mode == "train" or local is TWO_STEPS)
        expected = double_reverse(steps)
        torch.testing.assert_close(steps.exact_sensitivity, expected, rtol=1e-4, atol=1e-6 * float(expected.mean()))

    def test_one_direction_per_pixel_of_an_image_where_it_suffices(self, monkeypatch: pytest.MonkeyPatch) -> None:
        taken: list[torch.Size] = []
        whole = InputJacobian._basis

        def counting(self: InputJacobian, shape: tuple[int, ...]) -> list[torch.Tensor]:
            parts = list(whole(self, shape))
            taken.extend(part.shape for part in parts)
            torch.testing.assert_close(torch.cat(parts).flatten(1), torch.eye(len(torch.cat(parts))))
            return parts

        monkeypatch.setattr(InputJacobian, "_basis", counting)
        network = normalised()
        clients(network).exact_sensitivity  # noqa: B018
        clients(network.in_mode("train")).exact_sensitivity  # noqa: B018
        assert taken == [(18, 1, 2, 3, 3), (54, 3, 2, 3, 3)]

    def test_two_thousand_probes_come_near(self, tiny_network: Network) -> None:
        steps = clients(tiny_network)
        torch.testing.assert_close(steps.sensitivity(2000), steps.exact_sensitivity, rtol=0.1, atol=1e-12)

    def test_rows_share_it(self, tiny_network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
        steps = clients(tiny_network, n=3)
        part = steps.rows(1, 3).exact_sensitivity
        monkeypatch.setattr(InputJacobian, "squared_norms", None)
        assert torch.equal(steps.exact_sensitivity[1:], part)


def test_which_networks_couple_samples(tiny_network: Network) -> None:
    assert not tiny_network.couples_samples and not tiny_network.in_mode("train").couples_samples
    assert not normalised().couples_samples and normalised().in_mode("train").couples_samples
    assert Network(torch.nn.BatchNorm2d(1, track_running_stats=False)).couples_samples


class TestDraws:
    def test_the_default_is_the_first(self, tiny_network: Network) -> None:
        steps = clients(tiny_network)
        directions = steps.streams.child("sensitivity").normal(4, *steps.images.shape[1:])
        first = steps._input_jacobian.mean_square(directions)
        assert torch.equal(steps.sensitivity(4), first) and steps.sensitivity(4, draw=0) is steps.sensitivity(4)
        assert torch.equal(steps.rows(0, 1).sensitivity(4, draw=2), steps.sensitivity(4, draw=2)[:1])

    def test_are_independent(self) -> None:
        streams = Streams([("client", 0), ("client", 1)])
        draws = torch.cat([sensitivity.random_directions(streams, 50, (40,), draw=draw) for draw in range(3)])
        products = (torch.corrcoef(draws.flatten(1)) - torch.eye(6)).abs()
        assert products.max() < 0.1  # 4.5 standard deviations

    def test_judge_a_selection_without_its_bias(self, tiny_network: Network) -> None:
        """Of the coordinates with the smaller estimates: their own estimate is too small, a fresh one is not."""
        one, copies = clients(tiny_network, n=1), 400
        many = ClientSteps(
            tiny_network,
            tiny_network.parameters,
            one.images.expand(copies, -1, -1, -1, -1),
            one.labels.expand(copies, -1),
            Streams([("selection", index) for index in range(copies)]),
        )
        exact = one.exact_sensitivity.expand(copies, -1)
        estimate, fresh = many.sensitivity(4), many.sensitivity(4, draw=1)
        kept = estimate / exact.clamp(min=1e-12) < 1

        def left(values: torch.Tensor) -> float:
            return float((values * kept).sum())

        assert left(estimate) < 0.8 * left(exact)
        assert left(fresh) == pytest.approx(left(exact), rel=0.05)


class TestCost:
    @pytest.mark.parametrize("shared", [True, False])
    @pytest.mark.parametrize("budgets", [(1, 1), (2**16, 2**17), (2**30, 1)])
    def test_nothing_depends_on_how_the_work_is_cut(
        self, budgets: tuple[int, int], shared: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def computed() -> list[torch.Tensor]:
            steps = clients(normalised(), shared=shared)
            return [steps.sensitivity(5), steps.exact_sensitivity]

        expected = computed()
        monkeypatch.setattr(sensitivity, "MEMORY_BUDGET", budgets[0])
        monkeypatch.setattr(sensitivity, "CPU_BUDGET", budgets[1])
        for found, wanted in zip(computed(), expected, strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6 * float(wanted.mean()))

    def test_directions_share_the_gradient(self, tiny_network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
        """``(5 + 4 k) / 3`` gradients, inside the vectorisation over clients too."""
        monkeypatch.setattr(sensitivity, "CPU_BUDGET", 1)  # the counter is wrong about grouped convolutions
        steps = clients(tiny_network, n=2)

        def operations(probes: int) -> int:
            with FlopCounterMode(display=False) as counter:
                steps.sensitivity(probes)
            return int(counter.get_total_flops())

        with FlopCounterMode(display=False) as counter:
            for images, labels in zip(steps.images, steps.labels, strict=True):
                tiny_network.gradient(tiny_network.parameters, images, labels)
        gradient = counter.get_total_flops()
        assert operations(12) / gradient == pytest.approx((5 + 4 * 12) / 3, rel=0.1)
        assert operations(4) / gradient == pytest.approx((5 + 4 * 4) / 3, rel=0.1)

    @pytest.mark.slow
    def test_fits_into_two_gigabytes(self) -> None:
        network = build_network(ConvNet(), (3, 32, 32), 10, seed=0)
        images, labels = torch.zeros(1, 2, 3, 32, 32), torch.zeros(1, 2).long()
        steps = ClientSteps(network, network.parameters, images, labels, Streams([("wide",)]))
        assert footprint(steps.sensitivity).bytes < 2**30
