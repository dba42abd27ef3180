"""The batched loop: trials do not mix, what freezes stays frozen, memory runs out gracefully, nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attacks.literal import Problem
from torch.utils._python_dispatch import TorchDispatchMode

from leakbench.attacks import engine
from leakbench.attacks.engine import CHECK_EVERY, Minimum, TrialData, chunk_size, minimise
from leakbench.attacks.optimisers import LBFGS, Adam, Optimiser
from leakbench.models.lenet import LeNet
from leakbench.randomness import generator

SIGNED = Adam(rate=0.2, signed=True, decay="steps")
STEADY = Adam(rate=0.1)
TENTHS = Adam(rate=0.1, signed=True)  # steps of 0.1 as long as the sign stays
NEWTON = LBFGS(rate=0.5, tolerance_change=0)
SEARCH = LBFGS(line_search="strong_wolfe")
OPTIMISERS = {"adam": SIGNED, "lbfgs": NEWTON, "line search": SEARCH}
N = 5
UNKNOWN = TrialData()


class Clients:
    """Five observed gradients of a small network."""

    def __init__(self) -> None:
        self.problem = Problem(LeNet(width=2), (1, 8, 8), batch=1, trials=N)
        self.starts = self.problem.streams.child("start").normal(64).double()
        self.targets = self.problem.observations.gradients
        self.looked_up: list[list[int]] = []

    def cost(self, variables: torch.Tensor, data: TrialData) -> torch.Tensor:
        images = variables.view(1, 1, 8, 8)
        network = self.problem.network
        gradient = network.gradient(self.problem.observations.parameters, images, data["labels"])
        return (gradient - data["target"]).square().sum() + 0.01 * images.diff().abs().mean()

    def match(self, targets: torch.Tensor | None = None, optimiser: Optimiser = SIGNED, **options: Any) -> Minimum:
        seen = self.targets if targets is None else targets
        labels = self.problem.knowledge.labels
        assert labels is not None
        self.looked_up = []

        def data(trials: torch.Tensor) -> TrialData:
            self.looked_up.append(trials.tolist())
            return {"target": seen[trials], "labels": labels[trials]}

        iterations = options.pop("iterations", 8)
        return minimise(self.cost, self.starts, data, optimiser, iterations, **{"chunk": N, **options})


@pytest.fixture(scope="module")
def clients() -> Clients:
    return Clients()


class Watch:
    """Counts evaluations and their sizes; may run out of memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        self.vectorised: list[bool] = []
        self.fail: Callable[[int], None] = lambda _: None
        original = engine.evaluation

        def evaluation(cost: Any, *, vectorised: bool) -> Any:
            evaluate = original(cost, vectorised=vectorised)
            self.vectorised.append(vectorised)

            def watched(points: torch.Tensor, data: TrialData) -> Any:
                self.sizes.append(len(points))
                self.fail(len(points))
                return evaluate(points, data)

            return watched

        monkeypatch.setattr(engine, "evaluation", evaluation)

    def clear(self) -> None:
        self.sizes.clear()
        self.vectorised.clear()


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def assert_same(found: Minimum, expected: Minimum, rows: list[int] | None = None) -> None:
    for name in ("points", "objective"):
        ours, theirs = getattr(found, name), getattr(expected, name)
        if rows is not None:
            ours, theirs = ours[rows], theirs[rows]
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-9)
    assert found.diverged_at.tolist() == expected.diverged_at.tolist() or rows is not None


def nothing(trials: torch.Tensor) -> TrialData:
    return UNKNOWN


def bowl(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
    return variables.square().sum()


class TestChunks:
    @pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
    @pytest.mark.parametrize("chunk", [1, 2, 3, 4])
    def test_chunks_do_not_matter(self, clients: Clients, chunk: int, optimiser: Optimiser) -> None:
        whole = clients.match(optimiser=optimiser)
        assert clients.looked_up == [[0, 1, 2, 3, 4]]
        assert (whole.points - clients.starts).abs().amax(dim=1).min() > 1e-3
        assert_same(clients.match(optimiser=optimiser, chunk=chunk), whole)

    def test_a_lone_trial_runs_beside_its_copy(self, clients: Clients, watch: Watch) -> None:
        """Kernels round a batch of one differently; where chunks are larger, no trial runs in such a batch."""
        clients.match(chunk=4, iterations=1)
        assert watch.sizes == [4, 4, 2, 2] and watch.vectorised == [True, True]
        assert clients.looked_up == [[0, 1, 2, 3], [4, 4]]

    def test_a_chunk_of_one_runs_without_vmap(
        self, clients: Clients, watch: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole = clients.match()
        watch.clear()

        def refuse(*_: object, **__: object) -> None:
            raise AssertionError("vmap")

        monkeypatch.setattr(torch.func, "vmap", refuse)
        assert_same(clients.match(chunk=1), whole)
        assert set(watch.sizes) == {1} and not any(watch.vectorised) and len(watch.vectorised) == N

    @settings(max_examples=20)
    @given(order=st.permutations(range(6)), kept=st.integers(1, 6), chunk=st.integers(1, 7), newton=st.booleans())
    def test_a_trial_does_not_know_its_mates(self, order: list[int], kept: int, chunk: int, newton: bool) -> None:
        starts = torch.randn(6, 3, generator=generator("mates")).double()
        scales = torch.linspace(0.5, 3, 6).double()
        rows = torch.tensor(order[:kept])

        def cost(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
            return (variables**4).sum() * data["target"] + variables.prod()

        def run(chosen: torch.Tensor, size: int) -> Minimum:
            optimiser = NEWTON if newton else SIGNED
            return minimise(
                cost, starts[chosen], lambda trials: {"target": scales[chosen][trials]}, optimiser, 8, chunk=size
            )

        whole, part = run(torch.arange(6), 6), run(rows, chunk)
        torch.testing.assert_close(part.points, whole.points[rows], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(part.objective, whole.objective[rows], rtol=1e-9, atol=1e-9)
        assert torch.equal(part.diverged_at, whole.diverged_at[rows])


class TestDivergence:
    @pytest.mark.parametrize("optimiser", OPTIMISERS.values(), ids=OPTIMISERS)
    @pytest.mark.parametrize(("chunk", "keep"), [(1, "last"), (2, "best"), (3, "last"), (N, "best")])
    def test_a_broken_trial_is_frozen_and_touches_no_other(
        self, clients: Clients, chunk: int, optimiser: Optimiser, keep: Literal["last", "best"]
    ) -> None:
        targets = clients.targets.clone()
        targets[1, 5] = torch.nan
        whole = clients.match(optimiser=optimiser, keep=keep)
        broken = clients.match(targets, optimiser=optimiser, keep=keep, chunk=chunk)
        assert broken.diverged_at.tolist() == [-1, 0, -1, -1, -1]
        assert torch.equal(broken.points[1], clients.starts[1]) and not broken.objective[1].isfinite()
        assert_same(broken, whole, [0, 2, 3, 4])

    @pytest.mark.parametrize(("iterations", "step"), [(9, 4), (5, 4), (4, 4), (3, -1)])
    def test_the_step_is_the_first_at_which_something_is_not_finite(self, iterations: int, step: int) -> None:
        """Each step takes 0.1; the logarithm ends below zero. The last look is at the end, after all steps."""
        starts = torch.tensor([[0.35], [9.0]])
        found = minimise(lambda x, _: x.mean().log(), starts, nothing, TENTHS, iterations, chunk=2)
        assert found.diverged_at.tolist() == [step, -1]
        assert float(found.points[0]) == pytest.approx(0.35 - 0.1 * min(iterations, 4))
        assert float(found.points[1]) == pytest.approx(9 - 0.1 * iterations)
        assert bool(found.objective[0].isfinite()) == (step == -1)

    def test_the_best_iterate_is_from_before_the_divergence(self) -> None:
        starts = torch.tensor([[0.35], [9.0]])
        found = minimise(lambda x, _: x.mean().log(), starts, nothing, TENTHS, 9, chunk=2, keep="best")
        assert found.diverged_at.tolist() == [4, -1]
        assert float(found.points[0]) == pytest.approx(0.05)
        assert float(found.objective[0]) == pytest.approx(float(found.points[0].log()))

    @pytest.mark.parametrize("optimiser", [STEADY, NEWTON], ids=["adam", "lbfgs"])
    def test_an_infinite_gradient_of_a_finite_objective_counts(self, optimiser: Optimiser) -> None:
        starts = torch.tensor([[0.0], [2.0]])
        found = minimise(lambda x, _: x.abs().sqrt().sum(), starts, nothing, optimiser, 2, chunk=2)
        assert found.diverged_at.tolist() == [0, -1]
        assert found.points[0].tolist() == [0] and found.points[1] < 2

    def test_lbfgs_returns_the_last_point_that_was_fine(self) -> None:
        """It steps from 1 over the edge of the logarithm, at 0."""
        found = minimise(lambda x, _: x.mean().log(), torch.ones(2, 1), nothing, LBFGS(rate=2), 9, chunk=2)
        assert found.diverged_at.tolist() == [1, 1]
        assert found.points.tolist() == [[1], [1]] and found.objective.tolist() == [0, 0]


class TestMemory:
    @staticmethod
    def cpu(limit: int, after: int = 3) -> Callable[[int], None]:
        """Refuses more than ``limit`` rows, from the third evaluation on."""
        seen = 0

        def fail(size: int) -> None:
            nonlocal seen
            seen += 1
            if size > limit and seen >= after:
                raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 9 bytes")

        return fail

    @staticmethod
    def gpu(limit: int) -> Callable[[int], None]:
        def fail(size: int) -> None:
            if size > limit:
                raise torch.OutOfMemoryError("CUDA out of memory")

        return fail

    @pytest.mark.parametrize("kind", ["cpu", "gpu"])
    @pytest.mark.parametrize(("limit", "largest"), [(4, 3), (2, 2), (1, 1)])
    @pytest.mark.parametrize("optimiser", [SIGNED, NEWTON], ids=["adam", "lbfgs"])
    def test_smaller_chunks_give_the_same(
        self, clients: Clients, watch: Watch, kind: str, limit: int, largest: int, optimiser: Optimiser
    ) -> None:
        whole = clients.match(optimiser=optimiser)
        watch.clear()
        watch.fail = getattr(self, kind)(limit)
        assert_same(clients.match(optimiser=optimiser), whole)
        assert watch.sizes[0] == N and max(size for size in watch.sizes if size <= limit) == largest
        assert watch.vectorised[-1] == (largest > 1)

    def test_chunks_halve_and_finished_ones_are_kept(
        self, clients: Clients, watch: Watch, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first chunk of three fits; the second, of two, does not fit any more."""
        whole = clients.match()
        watch.sizes.clear()

        def fail(size: int) -> None:
            if size == 2:
                raise torch.OutOfMemoryError("CUDA out of memory")

        watch.fail = fail
        assert_same(clients.match(chunk=3), whole)
        assert watch.sizes == [3] * 9 + [2] + [1] * 18
        assert clients.looked_up == [[0, 1, 2], [3, 4], [3], [4]]

    def test_a_lone_trial_gives_up_its_copy(self, clients: Clients, watch: Watch) -> None:
        whole = clients.match()
        watch.sizes.clear()

        def fail(size: int) -> None:
            if size == 2:
                raise torch.OutOfMemoryError("CUDA out of memory")

        watch.fail = fail
        assert_same(clients.match(chunk=4), whole)
        assert watch.sizes == [4] * 9 + [2] + [1] * 9

    def test_the_optimiser_s_state_may_be_what_does_not_fit(
        self, clients: Clients, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, start = clients.match(optimiser=NEWTON), LBFGS.start

        def limited(self: LBFGS, points: torch.Tensor, *rest: Any) -> Any:
            if len(points) > 2:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return start(self, points, *rest)

        monkeypatch.setattr(LBFGS, "start", limited)
        assert_same(clients.match(optimiser=NEWTON), whole)

    def test_one_trial_that_does_not_fit_is_an_error(self, clients: Clients, watch: Watch) -> None:
        watch.fail = self.gpu(0)
        with pytest.raises(torch.OutOfMemoryError):
            clients.match()
        assert watch.sizes == [5, 3, 2, 1]

    @pytest.mark.parametrize("error", [RuntimeError("shapes do not fit"), ValueError("no")])
    def test_other_errors_pass(self, clients: Clients, watch: Watch, error: Exception) -> None:
        def fail(size: int) -> None:
            raise error

        watch.fail = fail
        with pytest.raises(type(error), match=str(error)):
            clients.match()
        assert watch.sizes == [N]


def by_prefixes(
    cost: Any, starts: torch.Tensor, optimiser: Optimiser, iterations: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """All iterates ``[iterations + 1, n, D]`` and their objectives: the ends of shorter and shorter attacks.

    Not for schedules, which depend on the length.
    """
    runs = [minimise(cost, starts, nothing, optimiser, length, chunk=2) for length in range(1, iterations + 1)]
    first = torch.stack([cost(start, UNKNOWN) for start in starts])
    return torch.stack([starts, *(run.points for run in runs)]), torch.stack([first, *(run.objective for run in runs)])


def ripples(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
    return (variables.square() / 4 + (3 * variables).cos()).sum()


STARTS = torch.tensor([[2.2, -1.0], [0.3, 4.0], [-3.0, 0.1], [1.05, -1.0]]).double()


class TestKeep:
    @pytest.mark.parametrize("chunk", [1, 3, 4])
    def test_best(self, chunk: int) -> None:
        """With steps so large that the last iterate is the best one of few trials."""
        coarse = Adam(rate=1.0)
        points, values = by_prefixes(ripples, STARTS, coarse, 9)
        best = values.argmin(dim=0)
        assert len(set(best.tolist())) > 2 and (best < 9).any()
        found = minimise(ripples, STARTS, nothing, coarse, 9, keep="best", chunk=chunk)
        torch.testing.assert_close(found.points, points[best, torch.arange(4)], rtol=0, atol=1e-12)
        torch.testing.assert_close(found.objective, values.amin(dim=0), rtol=0, atol=1e-12)
        last = minimise(ripples, STARTS, nothing, coarse, 9, keep="last", chunk=chunk)
        torch.testing.assert_close(last.points, points[-1], rtol=0, atol=1e-12)

    def test_best_may_be_the_last_or_the_first(self) -> None:
        for sign, row in ((1, -1), (-1, 0)):

            class Uphill(Adam):
                direction: int = sign

                def step_size(self, iteration: int, iterations: int) -> float:
                    return self.direction * self.rate

            starts = torch.full((2, 1), 3.0)
            points, _ = by_prefixes(bowl, starts, Uphill(rate=0.1), 4)
            found = minimise(bowl, starts, nothing, Uphill(rate=0.1), 4, keep="best", chunk=2)
            assert torch.equal(found.points, points[row])
            torch.testing.assert_close(found.objective, found.points[:, 0].square())


class TestInterlude:
    """What moves trials between steps."""

    @staticmethod
    def jump(iteration: int, points: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
        """After every third step, by what the trial's number says."""
        moved = points + (1.0 + trials[:, None]).to(points)
        return moved if iteration % 3 == 1 else points

    @pytest.mark.parametrize("chunk", [1, 2, 3, 4])
    def test_against_torchs_adam(self, chunk: int) -> None:
        """The next step is from where a trial was moved to, and Adam keeps its moments."""
        found = minimise(ripples, STARTS, nothing, Adam(rate=0.1), 8, interlude=self.jump, chunk=chunk)
        for trial in range(len(STARTS)):
            x = STARTS[trial].clone().requires_grad_()
            theirs = torch.optim.Adam([x], lr=0.1)
            for iteration in range(8):
                theirs.zero_grad()
                ripples(x, UNKNOWN).backward()
                theirs.step()
                if iteration in (1, 4, 7):
                    x.data += 1 + trial
            torch.testing.assert_close(found.points[trial], x.detach(), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(found.objective[trial], ripples(x.detach(), UNKNOWN), rtol=1e-9, atol=1e-9)

    def test_what_stopped_or_diverged_stays(self) -> None:
        """The first trial is good enough at once, the second is broken from the start."""

        def broken(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
            return torch.where(variables[0] > 100, torch.nan, bowl(variables, data))

        starts = torch.tensor([[1e-3], [200.0], [5.0]])
        found = minimise(broken, starts, nothing, STEADY, 4, stop_below=1e-4, interlude=self.jump, chunk=3)
        assert found.points[0] == starts[0] and found.points[1] == starts[1]
        assert found.diverged_at.tolist() == [-1, 0, -1]
        assert found.points[2] > 5

    def test_the_best_iterate_is_kept(self) -> None:
        """What an interlude makes worse is not the result."""

        def away(iteration: int, points: torch.Tensor, trials: torch.Tensor) -> torch.Tensor:
            return points + 50 if iteration == 3 else points

        starts = torch.tensor([[0.35], [0.25]])
        found = minimise(bowl, starts, nothing, TENTHS, 6, keep="best", interlude=away, chunk=2)
        assert (found.points.abs() <= 0.1).all()
        last = minimise(bowl, starts, nothing, TENTHS, 6, keep="last", interlude=away, chunk=2)
        assert (last.points > 40).all()


class TestStopping:
    @pytest.mark.parametrize("keep", ["last", "best"])
    def test_a_trial_stops_at_the_iterate_that_is_good_enough(self, keep: Literal["last", "best"]) -> None:
        steps, threshold = 12, -1.2
        points, values = by_prefixes(ripples, STARTS, Adam(rate=0.3), steps)
        below = values[:steps] < threshold
        first = torch.where(below.any(dim=0), below.int().argmax(dim=0), steps)
        assert len(set(first.tolist())) > 2 and steps in first.tolist() and (values[-1] > values[first, range(4)]).any()
        found = minimise(ripples, STARTS, nothing, Adam(rate=0.3), steps, stop_below=threshold, keep=keep, chunk=4)
        end = first if keep == "last" else torch.where(first < steps, first, values.argmin(dim=0))
        torch.testing.assert_close(found.points, points[end, torch.arange(4)], rtol=0, atol=1e-12)
        torch.testing.assert_close(found.objective, values[end, torch.arange(4)], rtol=0, atol=1e-12)
        assert found.diverged_at.eq(-1).all()

    def test_a_probe_of_a_line_search_may_be_good_enough(self) -> None:
        """The search steps over the minimum first; a probe on its way back is what stops the trial."""

        def cost(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
            return variables.square().sum().sqrt() * 3

        asked: list[float] = []

        class Told(LBFGS):
            def start(self, points: torch.Tensor, iterations: int, bounds: Any) -> Any:
                descent = super().start(points, iterations, bounds)
                tell = descent.tell

                def watched(value: torch.Tensor, *rest: Any) -> torch.Tensor:
                    asked.append(float(value[0]))
                    return tell(value, *rest)

                descent.tell = watched  # type: ignore[method-assign, assignment]
                return descent

        starts = torch.tensor([[0.4], [0.0]]).double() + 0.01
        found = minimise(cost, starts, nothing, Told(line_search="strong_wolfe"), 20, stop_below=0.5, chunk=2)
        stop = next(value for value in asked if value < 0.5)
        assert float(found.objective[0]) == pytest.approx(stop)
        assert torch.equal(found.points[1], starts[1])  # good enough from the start

    @pytest.mark.parametrize(("threshold", "evaluations"), [(torch.inf, CHECK_EVERY + 1), (None, 201)])
    def test_the_loop_ends_where_no_trial_moves(self, watch: Watch, threshold: float | None, evaluations: int) -> None:
        found = minimise(bowl, STARTS, nothing, STEADY, 200, stop_below=threshold, chunk=4)
        assert len(watch.sizes) == evaluations
        assert torch.equal(found.points, STARTS) == (threshold is not None)

    def test_one_moving_trial_keeps_the_loop_going(self, watch: Watch) -> None:
        starts = torch.tensor([[0.0], [100.0]])
        found = minimise(bowl, starts, nothing, STEADY, 200, stop_below=1.0, chunk=2)
        assert len(watch.sizes) == 201
        assert found.points[0].tolist() == [0] and 75 < float(found.points[1]) < 85

    def test_broken_trials_do_not_move(self, watch: Watch) -> None:
        found = minimise(lambda x, _: x.sum().log(), -torch.ones(3, 2), nothing, STEADY, 200, chunk=3)
        assert len(watch.sizes) == CHECK_EVERY + 1
        assert found.diverged_at.tolist() == [0, 0, 0]

    @pytest.mark.parametrize("optimiser", [LBFGS(), SEARCH], ids=["plain", "line search"])
    def test_lbfgs_trials_converge_one_by_one(self, watch: Watch, optimiser: Optimiser) -> None:
        def cost(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
            return ((variables - 1).square() * torch.tensor([1.0, 30.0]).double()).sum()

        starts = torch.tensor([[1.0, 1.0], [2.0, 0.5], [-40.0, 9.0]]).double()
        found = minimise(cost, starts, nothing, optimiser, 1000, chunk=3)
        torch.testing.assert_close(found.points, torch.ones(3, 2).double(), rtol=0, atol=1e-4)
        assert torch.equal(found.points[0], starts[0])  # begins at the minimum
        assert found.diverged_at.eq(-1).all() and len(watch.sizes) == CHECK_EVERY + 1


WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "item"}
"""Operators that a GPU has to finish before Python goes on."""


class Waits(TorchDispatchMode):
    """Counts what waits for the device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function.overloadpacket.__name__ in WAITING
        return function(*args, **(kwargs or {}))


class TestHost:
    @pytest.mark.parametrize("optimiser", [STEADY, SIGNED, NEWTON, SEARCH], ids=["plain", "signed", "lbfgs", "search"])
    @pytest.mark.parametrize("options", [{}, {"keep": "best", "stop_below": -100.0}], ids=["plain", "best"])
    def test_one_look_per_so_many_iterations(
        self, optimiser: Optimiser, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(engine, "CHECK_EVERY", 10)
        bounds = None if isinstance(optimiser, LBFGS) else (-torch.ones(2).double(), torch.ones(2).double())
        far = 1e6 * STARTS if isinstance(optimiser, LBFGS) else STARTS  # still on their way after 35 evaluations

        def cost(variables: torch.Tensor, data: TrialData) -> torch.Tensor:
            return (variables - 3).abs().pow(1.2).sum()

        with Waits() as waits:
            minimise(cost, far, nothing, optimiser, 35, bounds=bounds, chunk=4, **options)
        assert waits.count == 3

    @pytest.mark.parametrize("optimiser", [SIGNED, NEWTON, SEARCH], ids=["adam", "lbfgs", "search"])
    def test_tensors_without_data_will_do(self, optimiser: Optimiser, monkeypatch: pytest.MonkeyPatch) -> None:
        """They refuse to tell a number or a truth to Python; the first look at whether trials move fails."""

        monkeypatch.setattr(engine, "CHECK_EVERY", 6)

        def run(iterations: int) -> Minimum:
            starts = torch.empty(3, 2, device="meta")
            return minimise(ripples, starts, nothing, optimiser, iterations, keep="best", stop_below=0.1, chunk=2)

        found = run(5)
        assert found.points.shape == (3, 2) and found.objective.shape == found.diverged_at.shape == (3,)
        with pytest.raises(RuntimeError, match="meta"):
            run(6)


class TestChunkSize:
    @pytest.mark.parametrize(
        ("per_trial", "size"), [(1, 1000), (10, 100), (300, 3), (499, 2), (500, 2), (501, 1), (1001, 1), (10**6, 1)]
    )
    def test_on_a_cpu(self, monkeypatch: pytest.MonkeyPatch, per_trial: int, size: int) -> None:
        monkeypatch.setattr(engine, "CPU_BUDGET", 1000)
        monkeypatch.setattr(engine, "WIDE", 10**9)
        monkeypatch.setattr(engine, "bytes_per_row", lambda _: per_trial)
        assert chunk_size(bowl, STARTS[:1], UNKNOWN) == size

    def test_wide_trials_run_alone_on_a_cpu(self, clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
        """Measured on a real cost: as many as fit in the budget, or one by one, as the width of one trial says."""
        data: TrialData = {"target": clients.targets[:1], "labels": torch.zeros(1, 1, dtype=torch.long)}
        size = chunk_size(clients.cost, clients.starts[:1], data)
        per_trial = engine.CPU_BUDGET / size
        assert size > 1 and 8 * len(clients.targets[0]) < per_trial < engine.WIDE
        monkeypatch.setattr(engine, "WIDE", int(1.01 * per_trial))
        assert chunk_size(clients.cost, clients.starts[:1], data) == size
        monkeypatch.setattr(engine, "WIDE", int(0.99 * per_trial))
        assert chunk_size(clients.cost, clients.starts[:1], data) == 1

    def test_on_a_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Any device but a CPU; what torch keeps of earlier attacks' memory is free. No trial is too wide."""
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (500, 4000))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: 800)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 300)
        monkeypatch.setattr(engine, "WIDE", 10)
        for per_trial, size in ((20, 30), (600, 1), (601, 1)):
            monkeypatch.setattr(engine, "bytes_per_row", lambda _, bytes=per_trial: bytes)
            assert chunk_size(bowl, torch.empty(1, 2, device="meta"), UNKNOWN) == size

    def test_where_two_do_not_fit_there_is_room_for_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def measure(computation: object) -> int:
            raise torch.OutOfMemoryError("CUDA out of memory")

        monkeypatch.setattr(engine, "bytes_per_row", measure)
        assert chunk_size(bowl, STARTS[:1], UNKNOWN) == 1

    def test_errors_of_the_cost_pass(self) -> None:
        with pytest.raises(RuntimeError, match="size"):
            chunk_size(lambda x, _: (x - torch.ones(7)).sum(), STARTS[:1], UNKNOWN)

    def test_minimise_asks_once_with_one_trial(self, watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[tuple[int, ...]] = []

        def size(cost: object, points: torch.Tensor, data: TrialData) -> int:
            asked.append((len(points), *data["target"].tolist()))
            return 2

        monkeypatch.setattr(engine, "chunk_size", size)
        minimise(bowl, STARTS, lambda trials: {"target": trials + 10}, STEADY, 1)
        assert asked == [(1, 10)] and watch.sizes == [2, 2, 2, 2]
