"""The batched engine against one eager double-backward loop per trial; what freezes, and what does not mix."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import pytest
import torch

from leakbench.attacks import inverting_gradients
from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.engine import Matched, StepSchedule, cosine_distance, match_gradients, total_variation
from leakbench.attacks.inverting_gradients import InvertingGradients
from leakbench.data.embedded import Digits
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Model, Network, build_network
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.randomness import Streams, generator

BOX = torch.tensor([-0.9, 1.2]).view(2, 1, 1, 1)


def eager(
    module: torch.nn.Module,
    start: torch.Tensor,
    target: torch.Tensor,
    labels: torch.Tensor,
    *,
    iterations: int,
    rate: float,
    weight: float,
    signed: bool,
    box: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Inverting Gradients, one trial, as one would write it by hand."""
    parameters = [parameter.requires_grad_() for parameter in module.parameters()]

    def objective(images: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(module(images), labels)
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        flat = torch.cat([part.flatten() for part in gradient])
        variation = (images[..., 1:] - images[..., :-1]).abs().mean()
        variation = variation + (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
        return 1 - torch.nn.functional.cosine_similarity(flat, target, dim=0) + weight * variation

    images = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([images], lr=rate)
    milestones = [part * iterations // 8 for part in (3, 5, 7)]
    decay = torch.optim.lr_scheduler.MultiStepLR(optimiser, milestones, gamma=0.1)
    for _ in range(iterations):
        (gradient,) = torch.autograd.grad(objective(images), images)
        images.grad = gradient.sign() if signed else gradient
        optimiser.step()
        decay.step()
        if box is not None:
            with torch.no_grad():
                images.copy_(images.clamp(box[0], box[1]))
    return images.detach(), objective(images).detach()


class Problem:
    """Four trials on a small model, in float64, where the order of a sum does not decide the sign of a pixel."""

    def __init__(self, model: Model, shape: tuple[int, int, int], batch: int = 2) -> None:
        draw = generator("engine", model.name)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.module = model.build(shape, 10).double().eval()
        self.network = Network(self.module)
        self.parameters = self.network.parameters
        self.starts = torch.randn(4, batch, *shape, generator=draw).double()
        self.labels = torch.randint(0, 10, (4, batch), generator=draw)
        victims = torch.randn(4, batch, *shape, generator=draw).double()
        gradient = torch.func.vmap(self.network.gradient, in_dims=(None, 0, 0))
        self.targets = gradient(self.parameters, victims, self.labels)

    def match(
        self,
        targets: torch.Tensor | None = None,
        *,
        weight: float = 1e-2,
        iterations: int = 16,
        signed: bool = True,
        box: torch.Tensor | None = BOX,
        chunk: int = 4,
    ) -> Matched:
        def cost(images: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            gradient = self.network.gradient(self.parameters, images, labels)
            return cosine_distance(gradient, target) + weight * total_variation(images)

        return match_gradients(
            cost,
            self.starts,
            self.targets if targets is None else targets,
            self.labels,
            StepSchedule(0.2, iterations),
            signed=signed,
            box=box,
            chunk=chunk,
        )


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(SimpleConvNet(width=2), (1, 8, 8))


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("box", [BOX, None], ids=["box", "free"])
@pytest.mark.parametrize(
    ("model", "shape"),
    [(SimpleConvNet(width=2), (1, 8, 8)), (ConvNet(width=1), (3, 9, 9))],
    ids=["simpleconvnet", "convnet"],
)
def test_equals_an_eager_loop_per_trial(
    model: Model, shape: tuple[int, int, int], box: torch.Tensor | None, signed: bool
) -> None:
    problem = Problem(model, shape)
    matched = problem.match(signed=signed, box=box)
    assert matched.diverged_at.eq(-1).all()
    for index in range(4):
        images, objective = eager(
            problem.module,
            problem.starts[index],
            problem.targets[index],
            problem.labels[index],
            iterations=16,
            rate=0.2,
            weight=1e-2,
            signed=signed,
            box=box,
        )
        torch.testing.assert_close(matched.images[index], images, rtol=0, atol=1e-5)
        torch.testing.assert_close(matched.objective[index], objective, rtol=0, atol=1e-5)
    inside = (matched.images >= BOX[0]) & (matched.images <= BOX[1])
    assert bool(inside.all()) == (box is not None)


@pytest.mark.parametrize("chunk", [1, 3])
def test_chunks_do_not_matter(problem: Problem, chunk: int) -> None:
    whole, cut = problem.match(), problem.match(chunk=chunk)
    torch.testing.assert_close(cut.images, whole.images, rtol=0, atol=1e-9)
    torch.testing.assert_close(cut.objective, whole.objective, rtol=0, atol=1e-9)
    assert torch.equal(cut.diverged_at, whole.diverged_at)


def test_a_lone_trial_runs_beside_its_own_copy(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels round a batch of one differently; where chunks are larger, no trial runs in such a batch."""
    sizes: list[int] = []
    vmap = torch.func.vmap

    def watched(function: Callable[..., object]) -> Callable[..., object]:
        batched = vmap(function)

        def run(images: torch.Tensor, *rest: torch.Tensor) -> object:
            sizes.append(len(images))
            return batched(images, *rest)

        return run

    monkeypatch.setattr(torch.func, "vmap", watched)
    assert len(problem.match(iterations=1, chunk=3).images) == 4
    assert sizes == [3, 3, 2, 2]
    sizes.clear()
    assert len(problem.match(iterations=1, chunk=1).images) == 4
    assert set(sizes) == {1}  # there is no memory for two


class TestDivergence:
    @pytest.mark.parametrize("chunk", [1, 3, 4])
    def test_a_broken_trial_is_frozen_and_touches_no_other(self, problem: Problem, chunk: int) -> None:
        targets = problem.targets.clone()
        targets[1, 5] = torch.nan
        whole, broken = problem.match(), problem.match(targets, chunk=chunk)
        assert broken.diverged_at.tolist() == [-1, 0, -1, -1]
        assert torch.equal(broken.images[1], problem.starts[1])
        others = [0, 2, 3]
        torch.testing.assert_close(broken.images[others], whole.images[others], rtol=0, atol=1e-9)
        torch.testing.assert_close(broken.objective[others], whole.objective[others], rtol=0, atol=1e-9)

    @pytest.mark.parametrize(("iterations", "step"), [(9, 4), (5, 4), (4, 4), (3, -1)])
    def test_the_step_is_the_first_at_which_something_is_not_finite(self, iterations: int, step: int) -> None:
        """Each step takes 0.1; the logarithm ends below zero. The last look is at the end, after all steps."""

        def cost(images: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return images.mean().log()

        class Constant(StepSchedule):
            def __getitem__(self, iteration: int) -> float:
                return self.rate

        matched = match_gradients(
            cost,
            torch.tensor([0.35, 9.0]).view(2, 1, 1, 1, 1),
            torch.zeros(2, 1),
            torch.zeros(2, 1),
            Constant(0.1, iterations),
            signed=True,
            box=None,
            chunk=2,
        )
        assert matched.diverged_at.tolist() == [step, -1]
        assert float(matched.images[0]) == pytest.approx(0.35 - 0.1 * min(iterations, 4))
        assert float(matched.images[1]) == pytest.approx(9 - 0.1 * iterations, rel=1e-5)
        assert bool(matched.objective[0].isfinite()) == (step == -1)

    def test_an_infinite_gradient_of_a_finite_objective_counts(self) -> None:
        def cost(images: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return images.abs().sqrt().sum()

        starts = torch.tensor([0.0, 2.0]).view(2, 1, 1, 1, 1)
        nothing = torch.zeros(2, 1)
        matched = match_gradients(cost, starts, nothing, nothing, StepSchedule(0.1, 2), signed=False, box=None, chunk=2)
        assert matched.diverged_at.tolist() == [0, -1]


@pytest.mark.parametrize("iterations", [8, 100, 1000, 2000])
def test_schedule(iterations: int) -> None:
    """Factors of ten after 3/8, 5/8 and 7/8."""
    rates = [StepSchedule(0.2, iterations)[iteration] for iteration in range(iterations)]
    expected = []
    for start, stop, factor in ((0, 3, 1.0), (3, 5, 0.1), (5, 7, 0.01), (7, 8, 0.001)):
        steps = -(-stop * iterations // 8) - -(-start * iterations // 8)
        expected += [0.2 * factor] * steps
    assert rates == pytest.approx(expected)


def test_cosine_distance() -> None:
    first, second = torch.tensor([3.0, 0.0, 4.0]), torch.tensor([0.0, 2.0, 2.0])
    assert float(cosine_distance(first, second)) == pytest.approx(1 - 8 / (5 * 8**0.5))
    assert float(cosine_distance(first, 7 * first)) == pytest.approx(0, abs=1e-6)
    assert float(cosine_distance(first, -first)) == pytest.approx(2)


def test_cosine_distance_keeps_its_digits_in_a_batch() -> None:
    draw = generator("cosine")
    first = torch.randn(5, 30_000, generator=draw)
    second = first + 0.3 * torch.randn(5, 30_000, generator=draw)
    exact = 1 - torch.nn.functional.cosine_similarity(first.double(), second.double())
    for size in (1, 2, 5):
        parts = [
            torch.func.vmap(cosine_distance)(*pair) for pair in zip(first.split(size), second.split(size), strict=True)
        ]
        torch.testing.assert_close(torch.cat(parts).double(), exact, rtol=0, atol=4e-7)


def test_total_variation_by_hand() -> None:
    image = torch.tensor([[1.0, 3.0, 2.0], [0.0, 3.0, 5.0]]).view(1, 1, 2, 3)
    assert float(total_variation(image)) == pytest.approx((2 + 1 + 3 + 2) / 4 + (1 + 0 + 3) / 3)
    assert float(total_variation(torch.ones(2, 3, 4, 4))) == 0


@pytest.fixture(scope="module")
def undefended() -> Callable[[int, int], tuple[Observations, Knowledge, Streams, torch.Tensor]]:
    """``undefended(clients, batch)``: the gradients of digits on a SimpleConvNet of width 16, and the digits."""

    def observe(clients: int, batch: int) -> tuple[Observations, Knowledge, Streams, torch.Tensor]:
        digits = Digits(size=16)
        network = build_network(SimpleConvNet(width=16), digits.shape, digits.classes, seed=0)
        samples = digits.load("test", range(1, 1 + clients * batch))
        pixels, labels = (tensor.unflatten(0, (clients, batch)) for tensor in samples)
        streams = Streams([("engine", client) for client in range(clients)])
        steps = ClientSteps(network, network.parameters, digits.normalise(pixels), labels, streams)
        observations = Observations(network, network.parameters, steps.gradient, (batch, *digits.shape))
        bounds = digits.normalise(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1))
        mean = digits.normalise(digits.load("train", range(512)).images).mean(dim=0)
        return observations, Knowledge(labels, bounds, mean), streams, pixels

    return observe


Undefended = Callable[[int, int], tuple[Observations, Knowledge, Streams, torch.Tensor]]


def psnr(images: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
    error = (Digits(size=16).denormalise(images).clamp(0, 1) - pixels).square().flatten(2).mean(dim=2)
    return -10 * error.log10()


class TestInvertingGradients:
    @pytest.mark.parametrize("batch", [1, 4])
    def test_a_victim_s_result_does_not_depend_on_its_batch_mates(
        self, undefended: Undefended, batch: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        observations, knowledge, streams, _ = undefended(4, batch)
        attack = InvertingGradients(iterations=60, rate=0.2, total_variation=1e-6)
        together = attack.reconstruct(observations, knowledge, streams)
        assert knowledge.labels is not None
        for client in range(4):
            row = slice(client, client + 1)
            alone = attack.reconstruct(
                Observations(
                    observations.network,
                    observations.parameters,
                    observations.gradients[row],
                    observations.batch_shape,
                ),
                Knowledge(knowledge.labels[row], knowledge.pixel_range),
                Streams(streams.keys[row]),
            )
            torch.testing.assert_close(alone.images, together.images[row], rtol=0, atol=1e-5)
        for chunk in (1, 3):
            monkeypatch.setattr(observations.network, "rows_within", Mock(return_value=chunk))
            cut = attack.reconstruct(observations, knowledge, streams)
            torch.testing.assert_close(cut.images, together.images, rtol=0, atol=1e-5)

    def test_recovers_single_digits(self, undefended: Undefended) -> None:
        """200 iterations without a defense: far beyond what the mean of other digits says."""
        observations, knowledge, streams, pixels = undefended(4, 1)
        attack = InvertingGradients(iterations=200, rate=0.2, total_variation=1e-6)
        found = attack.reconstruct(observations, knowledge, streams)
        assert knowledge.mean_image is not None and knowledge.pixel_range is not None
        recovered, mean = psnr(found.images, pixels), psnr(knowledge.mean_image.expand(4, 1, -1, -1, -1), pixels)
        assert recovered.median() > 20
        assert recovered.median() > mean.median() + 6
        assert found.diverged_at.eq(-1).all()
        assert found.images.min() >= knowledge.pixel_range[0].min()
        assert found.images.max() <= knowledge.pixel_range[1].max()

    def test_the_restart_with_the_lowest_objective_of_its_own_wins(
        self, undefended: Undefended, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        observations, knowledge, streams, _ = undefended(3, 1)
        nan, inf = torch.nan, torch.inf
        objective = torch.tensor([0.3, 0.1, 0.2, nan, 0.9, 0.05, nan, nan, inf])
        diverged_at = torch.tensor([-1, -1, -1, 4, -1, 2, 0, 1, 2])
        seen: dict[str, torch.Tensor] = {}

        def stand_in(
            cost: object,
            starts: torch.Tensor,
            targets: torch.Tensor,
            labels: torch.Tensor,
            *rest: object,
            **more: object,
        ) -> Matched:
            seen.update(starts=starts, targets=targets, labels=labels)
            return Matched(starts, objective, diverged_at)

        monkeypatch.setattr(inverting_gradients, "match_gradients", stand_in)
        attack = InvertingGradients(iterations=1, total_variation=0, restarts=3)
        found = attack.reconstruct(observations, knowledge, streams)
        starts = streams.child("start").normal(3, 1, 1, 16, 16)
        assert torch.equal(seen["starts"], starts.flatten(0, 1))
        assert torch.equal(seen["targets"], observations.gradients[[0, 0, 0, 1, 1, 1, 2, 2, 2]])
        assert knowledge.labels is not None
        assert torch.equal(seen["labels"], knowledge.labels[[0, 0, 0, 1, 1, 1, 2, 2, 2]])
        assert torch.equal(found.images, starts[[0, 1, 2], [1, 1, 0]])
        assert found.diverged_at.tolist() == [-1, -1, 0]
        assert found.objective is not None
        assert found.objective[:2].tolist() == pytest.approx([0.1, 0.9])

    def test_more_restarts_never_end_higher(self, undefended: Undefended) -> None:
        observations, knowledge, streams, _ = undefended(2, 1)

        def objective(restarts: int) -> torch.Tensor:
            attack = InvertingGradients(iterations=10, rate=0.2, total_variation=1e-6, restarts=restarts)
            found = attack.reconstruct(observations, knowledge, streams).objective
            assert found is not None
            return found

        assert (objective(4) <= objective(1) + 1e-6).all()
        assert (objective(4) < objective(1)).any()
