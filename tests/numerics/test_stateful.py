"""Objects of tensors: what their state holds, and that an object that gets it back goes on as the other would."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from leakbench.numerics.adam import Adam
from leakbench.numerics.lbfgs import LBFGS
from leakbench.numerics.stateful import Stateful, named, part_of


class Pair(NamedTuple):
    one: torch.Tensor
    other: torch.Tensor


class Inner(Stateful):
    def __init__(self) -> None:
        self.count = 0


class Data(NamedTuple):
    images: torch.Tensor
    name: str


class Outer(Stateful):
    borrowed = frozenset({"of_another"})

    def __init__(self) -> None:
        self.values, self.pair, self.inner = torch.zeros(3), Pair(torch.zeros(1), torch.zeros(2)), Inner()
        self.begun, self.rate, self.name, self.nothing = False, 0.5, "outer", None
        self.curves = {"loss": torch.zeros(2)}
        self.data, self.labels, self.of_another = Data(torch.zeros(2), "data"), {"a": torch.zeros(1), "b": 1}, Inner()


def test_settings_are_no_state() -> None:
    assert sorted(Outer().state()) == ["begun", "curves.loss", "inner.count", "pair.one", "pair.other", "values"]


def test_a_state_comes_back_with_its_types() -> None:
    one, other = Outer(), Outer()
    one.values, one.pair, one.inner.count, one.begun = torch.ones(3), Pair(torch.ones(1), torch.ones(2)), 7, True
    one.curves, one.of_another.count = {"loss": torch.ones(2)}, 7
    other.restore(one.state())
    assert torch.equal(other.curves["loss"], torch.ones(2)) and other.curves["loss"] is not one.curves["loss"]
    assert other.of_another.count == 0
    assert torch.equal(other.values, one.values) and torch.equal(other.pair.other, one.pair.other)
    assert other.inner.count == 7 and other.begun is True and isinstance(other.pair, Pair)


def test_parts_of_a_state() -> None:
    state = {"a": torch.zeros(1), "b.c": torch.ones(1)}
    whole = named("x", state) | named("xy", {"a": torch.ones(1)})
    assert sorted(whole) == ["x.a", "x.b.c", "xy.a"]
    assert part_of(whole, "x") == state and sorted(part_of(whole, "xy")) == ["a"]


@pytest.mark.parametrize("moment", range(0, 40, 3))
@pytest.mark.parametrize("line_search", ["none", "strong_wolfe"])
def test_lbfgs_goes_on_from_any_evaluation(moment: int, line_search: str) -> None:
    """Rosenbrock's valleys: rings of pairs that wrap around, and searches that bracket and zoom."""
    starts = torch.tensor([[-1.2, 1.0], [2.0, -1.0], [0.0, 3.0]])

    def rosenbrock(points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = points.T
        value = (1 - x) ** 2 + 100 * (y - x**2) ** 2
        gradient = torch.stack([-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)], dim=1)
        return value, gradient

    def new() -> LBFGS:
        return LBFGS(starts, rate=1.0 if line_search == "strong_wolfe" else 1e-3, history=3, line_search=line_search)  # type: ignore[arg-type]

    whole, other = new(), new()
    for _ in range(moment):
        whole.tell(*rosenbrock(whole.points))
    other.restore({name: tensor.clone() for name, tensor in whole.state().items()})
    for _ in range(12):
        whole.tell(*rosenbrock(whole.points))
        other.tell(*rosenbrock(other.points))
        assert torch.equal(whole.points, other.points) and torch.equal(whole.accepted, other.accepted)
        assert torch.equal(whole.finished, other.finished) and torch.equal(whole.iterations, other.iterations)


def test_adam_goes_on() -> None:
    draws = torch.Generator().manual_seed(0)
    whole, other = Adam(torch.zeros(2, 3)), Adam(torch.zeros(2, 3))
    for _ in range(3):
        whole.direction(torch.randn(2, 3, generator=draws))
    other.restore({name: tensor.clone() for name, tensor in whole.state().items()})
    gradient = torch.randn(2, 3, generator=draws)
    assert torch.equal(whole.direction(gradient.clone()), other.direction(gradient.clone()))
