"""One step of every trial at a time: schedules, signs, projection, and trials that do not move."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from leakbench.attacks.optimisers import LBFGS, Adam, Descent, Optimiser, StaircaseAdam
from leakbench.randomness import generator

Gradient = Callable[[torch.Tensor], torch.Tensor]


@pytest.mark.parametrize("iterations", [8, 100, 1000, 2000])
def test_steps(iterations: int) -> None:
    """Factors of ten after 3/8, 5/8 and 7/8."""
    adam = Adam(rate=0.2, decay="steps")
    rates = [adam.step_size(iteration, iterations) for iteration in range(iterations)]
    expected = []
    for start, stop, factor in ((0, 3, 1.0), (3, 5, 0.1), (5, 7, 0.01), (7, 8, 0.001)):
        steps = -(-stop * iterations // 8) - -(-start * iterations // 8)
        expected += [0.2 * factor] * steps
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("iterations", [1, 7, 300])
def test_cosine_is_torchs_annealing(iterations: int) -> None:
    adam = Adam(rate=0.3, decay="cosine")
    optimiser = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=iterations, eta_min=0.03)
    for iteration in range(iterations + 1):
        assert adam.step_size(iteration, iterations) == pytest.approx(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()
    assert adam.step_size(iterations, iterations) == pytest.approx(0.03)


def test_no_decay() -> None:
    assert {Adam(rate=0.3).step_size(iteration, 10) for iteration in range(10)} == {0.3}


def follow(descent: Descent, gradient: Gradient, steps: int, moving: torch.Tensor | None = None) -> list[torch.Tensor]:
    path = []
    for _ in range(steps):
        path.append(descent.points.clone())
        moves = torch.ones(len(descent.points), dtype=torch.bool) if moving is None else moving
        descent.tell(descent.points.square().sum(dim=1), gradient(descent.points), moves)
    return [*path, descent.points.clone()]


STARTS = torch.randn(3, 4, generator=generator("optimisers")).double()


@pytest.mark.parametrize(
    ("signed", "decay", "bounded"), itertools.product([True, False], ["none", "steps", "cosine"], [True, False])
)
def test_adam_is_torchs(signed: bool, decay: Any, bounded: bool) -> None:
    bounds = (torch.full((4,), -0.3).double(), torch.tensor([0.1, 0.2, 0.3, torch.inf]).double()) if bounded else None
    adam = Adam(rate=0.05, signed=signed, decay=decay)
    steps = 16
    path = follow(adam.start(STARTS, steps, bounds), lambda at: 2 * at + at.cos(), steps)
    x = STARTS.clone().requires_grad_()
    theirs = torch.optim.Adam([x], lr=0.05)
    for iteration, point in enumerate(path):
        torch.testing.assert_close(point, x.detach(), rtol=1e-9, atol=1e-9)
        theirs.param_groups[0]["lr"] = adam.step_size(iteration, steps)
        gradient = (2 * x + x.cos()).detach()
        x.grad = gradient.sign() if signed else gradient
        theirs.step()
        if bounds is not None:
            x.data.copy_(x.data.maximum(bounds[0]).minimum(bounds[1]))


@pytest.mark.parametrize("signed", [True, False])
def test_staircase_is_torchs(signed: bool) -> None:
    """Adam and StepLR, which LAMP is released with."""
    staircase = StaircaseAdam(rate=0.05, signed=signed, factor=0.5, every=3)
    path = follow(staircase.start(STARTS, 11, None), lambda at: 2 * at + at.cos(), 11)
    x = STARTS.clone().requires_grad_()
    theirs = torch.optim.Adam([x], lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(theirs, step_size=3, gamma=0.5)
    for iteration, point in enumerate(path):
        torch.testing.assert_close(point, x.detach(), rtol=1e-9, atol=1e-9)
        assert staircase.step_size(iteration, 11) == pytest.approx(schedule.get_last_lr()[0])
        gradient = (2 * x + x.cos()).detach()
        x.grad = gradient.sign() if signed else gradient
        theirs.step()
        schedule.step()


@pytest.mark.parametrize(
    "optimiser", [Adam(rate=0.1), StaircaseAdam(rate=0.1, every=2), LBFGS(), LBFGS(line_search="strong_wolfe")]
)
def test_trials_that_do_not_move(optimiser: Optimiser) -> None:
    """They stay, from the first telling on, whatever it says; the others move as ever."""
    moving = torch.tensor([True, False, True])

    def broken(points: torch.Tensor) -> torch.Tensor:
        gradient = 2 * points + points.cos()
        gradient[1] = torch.nan
        return gradient

    descent = optimiser.start(STARTS, 6, None)
    path = follow(descent, broken, 6, moving)
    whole = follow(optimiser.start(STARTS, 6, None), lambda at: 2 * at + at.cos(), 6)
    for stays, moves in zip(path, whole, strict=True):
        assert torch.equal(stays[1], STARTS[1])
        torch.testing.assert_close(stays[[0, 2]], moves[[0, 2]], rtol=1e-12, atol=1e-12)
    assert torch.equal(descent.accepted[1], STARTS[1])
    assert not torch.equal(whole[-1][1], STARTS[1])


def test_starts_are_not_written_to() -> None:
    for optimiser in (Adam(rate=0.1), LBFGS()):
        kept = STARTS.clone()
        follow(optimiser.start(STARTS, 3, None), lambda at: 2 * at, 3)
        assert torch.equal(STARTS, kept)


def test_what_has_converged() -> None:
    """L-BFGS says so, and Adam never does."""
    starts = torch.tensor([[0.0], [5.0]])
    moving = torch.tensor([True, True])
    for optimiser, expected in ((LBFGS(), [True, False]), (Adam(rate=0.1), [False, False])):
        descent = optimiser.start(starts, 1, None)
        assert descent.tell(starts[:, 0].square(), 2 * starts, moving).tolist() == expected
    assert LBFGS().start(starts, 1, None).accepted.tolist() == [[0], [5]]


def test_lbfgs_takes_its_settings() -> None:
    """Plain steps of twice the rate; a tolerance under which the second trial is flat."""
    optimiser = LBFGS(rate=0.25, history=1, tolerance_gradient=1e-2)
    descent = optimiser.start(torch.tensor([[0.5], [0.004]]), 9, None)
    finished = descent.tell(torch.ones(2), 2 * descent.points, torch.ones(2, dtype=torch.bool))
    assert finished.tolist() == [False, True]
    assert float(descent.points[0]) == pytest.approx(0.5 - 0.25 * 1)
    with pytest.raises(AssertionError, match="not projected"):
        optimiser.start(STARTS, 9, (STARTS[0], STARTS[0]))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"kind": "adam", "rate": 0.3}, Adam(rate=0.3, signed=False, decay="none")),
        ({"kind": "lbfgs"}, LBFGS(rate=1, history=100, line_search="none")),
        ({"kind": "lbfgs", "line_search": "strong_wolfe"}, LBFGS(line_search="strong_wolfe")),
    ],
)
def test_from_plain_values(given: dict[str, Any], expected: Optimiser) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(Optimiser)
    assert adapter.validate_python(given) == expected
    assert adapter.validate_python(expected.model_dump(mode="json")) == expected
    for wrong in ({"rate": 0}, {"rate": -1}, {"momentum": 0.9}, {"kind": "sgd"}):
        with pytest.raises(ValidationError):
            adapter.validate_python(given | wrong)
