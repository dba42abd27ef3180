"""L-BFGS on a stack of problems, against torch's: the same points are evaluated, one after the other."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Literal, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.numerics.lbfgs import CURVATURE, DECREASE, LBFGS
from leakbench.randomness import generator

Search = Literal["none", "strong_wolfe"]
Objective = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]  # [n, D] -> values [n], gradients [n, D]
SEARCHES: tuple[Search, ...] = ("none", "strong_wolfe")


class Problem(NamedTuple):
    """A stack of trials; row i of ``of`` depends on row i of its argument alone."""

    start: torch.Tensor
    of: Objective


def differentiated(function: Callable[[torch.Tensor], torch.Tensor]) -> Objective:
    def of(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        points = points.detach().requires_grad_()
        values = function(points)
        return values.detach(), torch.autograd.grad(values.sum(), points)[0]

    return of


def quadratics(dtype: torch.dtype, conditions: tuple[float, ...] = (1.5, 30, 300), size: int = 12) -> Problem:
    draw = generator("lbfgs quadratics")
    turn, _ = torch.linalg.qr(torch.randn(len(conditions), size, size, generator=draw).double())
    powers = torch.linspace(0, 1, size).double()
    scales = torch.stack([condition**powers / condition**0.5 for condition in conditions])
    hessian = (turn * scales[:, None] @ turn.mT).to(dtype)
    minimum, start = torch.randn(2, len(conditions), size, generator=draw).to(dtype)

    def of(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = torch.einsum("nij,nj->ni", hessian, points - minimum)
        return (gradient * (points - minimum)).sum(1) / 2, gradient

    return Problem(start, of)


def rosenbrock(dtype: torch.dtype) -> Problem:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(1)

    return Problem(
        torch.tensor([[-1.2, 1.0, 0.9], [0.3, 0.2, -0.4], [2.0, -1.0, 1.0]], dtype=dtype), differentiated(function)
    )


def gradient_matching(dtype: torch.dtype) -> Problem:
    """A sigmoid network's gradient is matched by its input; each trial has another truth."""
    draw = generator("lbfgs network")
    one, two = (torch.randn(shape, generator=draw).to(dtype) / 2 for shape in ((12, 8), (8, 3)))
    truth, start = torch.rand(2, 3, 12, generator=draw).to(dtype)
    hot = torch.eye(3, dtype=dtype)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.sigmoid(x @ one)
        error = torch.softmax(hidden @ two, 1) - hot
        inner = error @ two.T * hidden * (1 - hidden)
        outers = [torch.einsum("ni,nj->nij", a, b).flatten(1) for a, b in ((x, inner), (hidden, error))]
        return torch.cat([*outers, inner, error], 1)

    wanted = gradient(truth)
    return Problem(start, differentiated(lambda x: (gradient(x) - wanted).square().sum(1)))


def rough(dtype: torch.dtype) -> Problem:
    """What a line search may meet: ripples, ties, concavity, a slope without end, slopes that lie, kinks."""
    start = torch.linspace(-2, 3, 6 * 4, dtype=dtype).reshape(6, 4)

    def height(x: torch.Tensor) -> torch.Tensor:
        wave = x.square() / 10 + (8 * x).cos()
        kink = x[5].abs() * torch.arange(1, 5) + x[5] ** 2 / 4
        terms = [wave[0], x[1] ** 2 / 3, x[2].cos(), -(x[3].abs() ** 1.5), -(x[4] ** 2), kink]
        return torch.stack([term.sum() for term in terms])

    def of(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, gradients = differentiated(height)(points)
        values[1] = (2 * values[1]).round() / 2
        values[4] = -values[4]
        return values, gradients

    return Problem(start, of)


def scripted(values: torch.Tensor, gradients: torch.Tensor) -> Problem:
    """An objective that says line after line, ``[lines, n]`` and ``[lines, n, D]``, wherever it is asked."""
    lines = iter(zip(values, gradients, strict=True))
    return Problem(torch.zeros_like(gradients[0]), lambda _: next(lines))


PROBLEMS = {"quadratics": quadratics, "rosenbrock": rosenbrock, "network": gradient_matching}


class Path(NamedTuple):
    evaluated: list[torch.Tensor]
    accepted: torch.Tensor
    iterations: int
    finished: bool


class _EnoughError(Exception):
    pass


def by_torch(problem: Problem, row: int, rounds: int, steps: int = 1, **options: object) -> Path:
    """Trial ``row`` alone, by ``torch.optim.LBFGS``, for at most ``rounds`` evaluations."""
    x = problem.start[row].clone().requires_grad_()
    options = {"max_iter": 10**6, "max_eval": 10**7} | options
    optimiser = torch.optim.LBFGS([x], **options)  # type: ignore[arg-type]
    evaluated: list[torch.Tensor] = []

    def closure() -> float:
        if len(evaluated) == rounds:
            raise _EnoughError
        evaluated.append(x.detach().clone())
        points = problem.start.clone()
        points[row] = x.detach()
        values, gradients = problem.of(points)
        x.grad = gradients[row]
        return float(values[row])

    finished = True
    try:
        for _ in range(steps):
            optimiser.step(closure)
    except _EnoughError:
        finished = False
    return Path(evaluated, x.detach(), optimiser.state[x]["n_iter"], finished)


def run(problem: Problem, rounds: int, **options: object) -> tuple[LBFGS, list[torch.Tensor]]:
    ours, evaluated = LBFGS(problem.start, **options), []  # type: ignore[arg-type]
    for _ in range(rounds):
        evaluated.append(ours.points)
        ours.tell(*problem.of(ours.points))
    return ours, evaluated


@pytest.fixture(autouse=True)
def _short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.optim.LBFGS`` gives a line search all evaluations that are left, not the default of its search, 25."""
    module = importlib.import_module("torch.optim.lbfgs")
    search = module._strong_wolfe

    @functools.wraps(search)
    def limited(*args: object, **options: object) -> object:
        return search(*args, **(options | {"max_ls": 25}))

    monkeypatch.setattr(module, "_strong_wolfe", limited)


def assert_same(problem: Problem, rounds: int, tolerance: float, rate: float, history: int, search: Search) -> None:
    ours, evaluated = run(problem, rounds, rate=rate, history=history, line_search=search)
    close = functools.partial(torch.testing.assert_close, rtol=tolerance, atol=tolerance)
    for row in range(len(problem.start)):
        function = None if search == "none" else search
        theirs = by_torch(problem, row, rounds, lr=rate, history_size=history, line_search_fn=function)
        for point, ask in zip(theirs.evaluated, evaluated, strict=False):
            close(ask[row], point, msg=f"trial {row}")
        assert bool(ours.finished[row]) == theirs.finished
        if theirs.finished:
            close(ours.accepted[row], theirs.accepted)
            assert int(ours.iterations[row]) == theirs.iterations
            assert all(torch.equal(ask[row], ours.accepted[row]) for ask in evaluated[len(theirs.evaluated) :])


@pytest.mark.parametrize("history", [3, 10, 100])
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize(("dtype", "rounds", "tolerance"), [(torch.float64, 60, 1e-6), (torch.float32, 15, 1e-4)])
def test_equals_torch(
    dtype: torch.dtype, rounds: int, tolerance: float, name: str, search: Search, history: int
) -> None:
    rate = 0.02 if (name, search) == ("rosenbrock", "none") else 0.8
    assert_same(PROBLEMS[name](dtype), rounds, tolerance, rate, history, search)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize(("dtype", "rounds", "tolerance"), [(torch.float64, 25, 1e-6), (torch.float32, 15, 1e-4)])
def test_equals_torch_where_the_objective_is_rough(
    dtype: torch.dtype, rounds: int, tolerance: float, search: Search
) -> None:
    # After 25 rounds the slope without end has led beyond 1e14, where the line search sees rounding errors alone.
    rounds = rounds if search == "strong_wolfe" else 5  # without a search these trials soon magnify rounding errors
    assert_same(rough(dtype), rounds, tolerance, 0.8, 10, search)


@pytest.mark.parametrize("tolerance", [0, 1e-3])
def test_line_search_equals_torch_whatever_it_is_told(tolerance: float) -> None:
    """Scripts with ties, trends and noise: every branch of the search, and no rounding error that could grow."""
    lines, trials = 90, 60
    draw = generator("lbfgs scripts")
    noise = torch.randn(lines, trials, generator=draw).double()
    trend = torch.linspace(-0.7, 0.7, trials).double() * torch.arange(lines)[:, None]
    values = (2 * (trend + noise)).round() / 2
    bias = 2 * torch.randn(trials, 1, generator=draw).double()
    gradients = torch.randn(lines, trials, 1, generator=draw).double() + bias
    # Two that step outwards to the end of the search, one of them to find that it has to go back to where it began.
    steps = [0.0, 1.0]
    while len(steps) < lines:
        steps.append((1.01 * steps[-1] - 0.01 * steps[-2] + 10 * steps[-1]) / 2)
    values[:, :2], gradients[:, :2] = -torch.tensor(steps).double()[:, None] * 2 / 3, 1
    values[26, 0] = 5
    options = {"line_search": "strong_wolfe", "tolerance_change": tolerance, "tolerance_gradient": tolerance}
    ours, evaluated = run(scripted(values, gradients), lines, history=2, **options)
    for row in range(trials):
        theirs = by_torch(
            scripted(values, gradients),
            row,
            lines,
            line_search_fn="strong_wolfe",
            tolerance_change=tolerance,
            tolerance_grad=tolerance,
            history_size=2,
        )
        for point, ask in zip(theirs.evaluated, evaluated, strict=False):
            torch.testing.assert_close(ask[row], point, rtol=1e-6, atol=1e-6, equal_nan=True, msg=f"trial {row}")
        assert bool(ours.finished[row]) == theirs.finished
        if theirs.finished:
            torch.testing.assert_close(ours.accepted[row], theirs.accepted, rtol=1e-6, atol=1e-6)
            assert int(ours.iterations[row]) == theirs.iterations
    assert evaluated[26][0] == evaluated[26][1] == pytest.approx(-steps[26]) and evaluated[27][0] == 0
    assert ours.finished[0] and evaluated[28][1] == pytest.approx(-steps[26] - 1)


def test_equals_steps_of_twenty_iterations() -> None:
    """The use in DLG: torch evaluates the end of a step again at the start of the next one, and only then."""
    problem = gradient_matching(torch.float64)
    options = {"tolerance_change": 0, "line_search": "none"}
    ours, evaluated = run(problem, 60, rate=0.5, tolerance_gradient=0, **options)
    for row in range(3):
        theirs = by_torch(
            problem, row, 10**9, 3, lr=0.5, max_iter=20, max_eval=25, tolerance_grad=0, tolerance_change=0
        )
        torch.testing.assert_close(torch.stack(evaluated)[:, row], torch.stack(theirs.evaluated), rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(ours.points[row], theirs.accepted, rtol=1e-6, atol=1e-6)
    assert not ours.finished.any() and ours.iterations.tolist() == [59] * 3


@pytest.mark.parametrize("search", SEARCHES)
def test_a_trial_does_not_depend_on_the_others(search: Search) -> None:
    problem = quadratics(torch.float64)
    _, together = run(problem, 40, line_search=search)
    for row in range(3):
        alone = LBFGS(problem.start[row : row + 1], line_search=search)
        for ask in together:
            torch.testing.assert_close(alone.points[0], ask[row], rtol=1e-8, atol=1e-8)
            points = problem.start.clone()
            points[row] = alone.points[0]
            value, gradient = problem.of(points)
            alone.tell(value[row : row + 1], gradient[row : row + 1])


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("history", [4, 100])
def test_nan_stays_in_its_trial(search: Search, history: int) -> None:
    problem = gradient_matching(torch.float32)
    calls = 0

    def broken(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        nonlocal calls
        calls += 1
        value, gradient = problem.of(points)
        if calls > 6:
            value[1], gradient[1, 3] = torch.nan, torch.nan
        return value, gradient

    one, whole = run(problem, 40, rate=0.5, history=history, line_search=search)
    other, spoilt = run(Problem(problem.start, broken), 40, rate=0.5, history=history, line_search=search)
    for ask, same in zip(whole, spoilt, strict=True):
        assert torch.equal(ask[[0, 2]], same[[0, 2]])
    assert torch.equal(one.accepted_value[[0, 2]], other.accepted_value[[0, 2]])
    assert one.points.isfinite().all() and other.points[1].isnan().all() and not other.finished[1]


@pytest.mark.parametrize("search", SEARCHES)
def test_trials_finish_one_by_one_and_stay(search: Search) -> None:
    problem = quadratics(torch.float64)
    ours, ends, stays = LBFGS(problem.start, line_search=search), [0, 0, 0], problem.start.clone()
    for told in range(200):
        before = ours.finished
        value, gradient = problem.of(ours.points)
        spoilt = torch.where(before[:, None], torch.nan, gradient)
        ours.tell(torch.where(before, torch.nan, value), spoilt)
        for row in (ours.finished & ~before).nonzero()[:, 0].tolist():
            ends[row], stays[row] = told, ours.accepted[row]
    assert ours.finished.all() and 0 < ends[0] < ends[1] < ends[2]
    assert torch.equal(ours.accepted, stays) and torch.equal(ours.points, stays)
    value, gradient = problem.of(stays)
    assert torch.equal(ours.accepted_value, value) and (gradient.abs() < 1e-3).all()
    assert (ours.iterations <= torch.tensor(ends) + 1).all() and (ours.iterations > 5).all()


def test_a_start_at_the_minimum_is_finished() -> None:
    ours = LBFGS(torch.zeros(2, 3))
    ours.tell(torch.zeros(2), torch.tensor([[0.0, 1e-8, 0.0], [0.0, 1e-3, 0.0]]))
    assert ours.finished.tolist() == [True, False] and ours.iterations.tolist() == [0, 0]
    assert ours.points[0].tolist() == [0, 0, 0] and float(ours.points[1, 1]) == pytest.approx(-1e-3)


def test_zero_tolerances_stop_nothing_that_moves() -> None:
    """One value everywhere, a slope of 1e-12 and steps of 1e-12: only the tolerances could stop that."""
    ours = LBFGS(torch.zeros(2, 1, dtype=torch.float64), tolerance_gradient=0, tolerance_change=0)
    for told in range(1, 30):
        ours.tell(torch.zeros(2), torch.tensor([[1e-12], [0.0]]))
        assert ours.finished.tolist() == [False, True]
        assert float(ours.points[0, 0]) == pytest.approx(-1e-12 * told)
    assert ours.iterations.tolist() == [28, 0]


def test_pairs_without_curvature_are_skipped_per_trial() -> None:
    """In one dimension: the pair of trial 0 gives Newton's step, those of the others (y.s of 0, -1, 1e-11) nothing."""
    ours = LBFGS(torch.zeros(4, 1, dtype=torch.float64), rate=0.5, tolerance_change=0)
    first = torch.tensor([[1.0], [1.0], [1.0], [1e-5]], dtype=torch.float64)
    ours.tell(torch.zeros(4), first)
    torch.testing.assert_close(ours.points, -0.5 * first)
    second = torch.tensor([[0.5], [1.0], [3.0], [0.8e-5]], dtype=torch.float64)
    ours.tell(-torch.ones(4), second)  # y.s: 0.25, 0, -1, 1e-11
    newton = 0.5 * torch.tensor([[0.5], [1.0], [3.0], [0.8e-5]], dtype=torch.float64)
    torch.testing.assert_close(ours.points, -0.5 * first - newton)
    third = torch.tensor([[0.25], [0.5], [1.0], [0.5]], dtype=torch.float64)
    ours.tell(-2 * torch.ones(4), third)
    # Trial 1 keeps its first pair now: y = -0.5 over s = -0.5. Trial 2: y = -2 over s = -1.5. Trial 3: y.s < 0.
    newton = 0.5 * torch.tensor([[0.25], [0.5], [0.75], [0.5]], dtype=torch.float64)
    torch.testing.assert_close(ours.points, ours.accepted - newton)


@settings(max_examples=30)
@given(
    seed=st.integers(0, 10**6),
    size=st.integers(1, 8),
    decades=st.lists(st.floats(0, 3), min_size=1, max_size=4),
    history=st.integers(1, 12),
)
def test_reaches_the_minimum_of_quadratics(seed: int, size: int, decades: list[float], history: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(len(decades), size, size, generator=draw).double())
    scales = 10 ** (torch.tensor(decades).double()[:, None] * torch.linspace(-1, 0, size).double())
    hessian = turn * scales[:, None] @ turn.mT
    minimum, start = torch.randn(2, len(decades), size, generator=draw).double()

    def of(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gradient = torch.einsum("nij,nj->ni", hessian, points - minimum)
        return (gradient * (points - minimum)).sum(1) / 2, gradient

    ours = LBFGS(start, history=history, line_search="strong_wolfe", tolerance_change=1e-12)
    told = 0
    while not ours.finished.all():
        before, iterations, (value, gradient) = ours.accepted, ours.iterations, of(ours.accepted)
        ours.tell(*of(ours.points))
        told += 1
        moved = (ours.iterations > iterations) & (ours.accepted != before).any(1)
        new_value, new_gradient = of(ours.accepted)
        step = ours.accepted - before
        slope, new_slope = (gradient * step).sum(1), (new_gradient * step).sum(1)
        rounding = 1e-12
        assert (new_value <= value + DECREASE * slope + rounding)[moved].all()
        assert (new_slope.abs() <= -CURVATURE * slope + rounding)[moved].all()
        assert told < 2000
    value, gradient = of(ours.accepted)
    assert (gradient.abs() < 1e-5).all() and torch.equal(value, ours.accepted_value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_it_is_told_is_neither_kept_nor_changed(dtype: torch.dtype) -> None:
    problem = quadratics(dtype)
    ours, other = (LBFGS(problem.start, line_search="strong_wolfe") for _ in range(2))
    for _ in range(15):
        value, gradient = problem.of(ours.points)
        kept = value.clone(), gradient.clone()
        ours.tell(value, gradient)
        assert torch.equal(value, kept[0]) and torch.equal(gradient, kept[1])
        value.zero_(), gradient.zero_()
        other.tell(*kept)
        assert torch.equal(ours.points, other.points) and ours.points.dtype == dtype
        assert ours.accepted_value.dtype == dtype
    assert torch.equal(problem.start, quadratics(dtype).start)


@pytest.mark.parametrize("search", SEARCHES)
def test_nothing_waits_for_the_device(search: Search) -> None:
    """Tensors without data refuse to tell a number or a truth to Python."""
    ours = LBFGS(torch.empty(3, 5, device="meta"), history=2, line_search=search)
    for _ in range(5):
        ours.tell(torch.empty(3, device="meta"), torch.empty(3, 5, device="meta"))
    assert ours.points.shape == (3, 5) and ours.points.device.type == "meta"
    with pytest.raises(RuntimeError, match="meta"):
        ours.finished.all().item()


@pytest.mark.parametrize("search", SEARCHES)
def test_what_is_accepted_was_evaluated(search: Search) -> None:
    problem = gradient_matching(torch.float32)
    ours, asked = LBFGS(problem.start, line_search=search, rate=0.3), []
    for _ in range(25):
        asked.append(ours.points)
        ours.tell(*problem.of(ours.points))
        for row in range(3):
            value = next(problem.of(ask)[0][row] for ask in asked if torch.equal(ask[row], ours.accepted[row]))
            assert value == ours.accepted_value[row]


@pytest.mark.parametrize(
    ("points", "options", "message"),
    [
        (torch.zeros(3), {}, "points"),
        (torch.zeros(2, 3, dtype=torch.long), {}, "points"),
        (torch.zeros(2, 3), {"history": 0}, "history"),
        (torch.zeros(2, 3), {"line_search": "armijo"}, "line_search"),
    ],
)
def test_refuses(points: torch.Tensor, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LBFGS(points, **options)  # type: ignore[arg-type]
