"""Distances between gradients, by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from leakbench.attacks.objectives import EXACT, L1, L1L2, L2, LEAST_COSINE, Cosine, CosinePerTensor, Objective, Profile
from leakbench.randomness import generator

ALL: list[Objective] = [
    L2(),
    Cosine(),
    CosinePerTensor(),
    L1L2(l1_weight=0.5),
    L1(),
    CosinePerTensor(floor=1e-6),
    Profile(),
]
IDS = [*(objective.kind for objective in ALL[:-2]), "floor", "profile"]
SIZES = [2, 1]
G, T = torch.tensor([3.0, 0.0, 4.0]), torch.tensor([0.0, 2.0, 2.0])
W = torch.tensor([4.0, 1.0, 0.25])


@pytest.mark.parametrize(
    ("objective", "plain", "weighted"),
    [
        (L2(), 9 + 4 + 4, 36 + 4 + 1),
        (Cosine(), 1 - 8 / (5 * 8**0.5), 1 - 2 / ((36 + 4) ** 0.5 * (4 + 1) ** 0.5)),
        (CosinePerTensor(), (1 + 0) / 2, (1 + 0) / 2),  # (3, 0) and (0, 2); 4 and 2
        (L1L2(l1_weight=0.5), 17 + 0.5 * 7, 41 + 0.5 * (6 + 2 + 1)),
        (L1(), 3 + 2 + 2, 6 + 2 + 1),
        (CosinePerTensor(floor=1e-6), (1 + 0) / 2, (1 + 0) / 2),
        (Profile(), 1.5 * math.log(1e-6 + 0.68), 1.5 * math.log(1e-6 + 0.98)),
        (L1L2(), 17 + 0.01 * 7, 41 + 0.01 * 9),
    ],
    ids=[*IDS, "tag"],
)
def test_by_hand(objective: Objective, plain: float, weighted: float) -> None:
    assert float(objective(G, T, None, SIZES)) == pytest.approx(plain)
    assert float(objective(G, T, W, SIZES)) == pytest.approx(weighted, rel=1e-5)
    assert float(objective(G, T, torch.ones(3), SIZES)) == pytest.approx(plain)


def test_the_profile_is_the_likelihood_at_the_best_scale_and_variance() -> None:
    """Against a search over both, up to the constant that no gradient changes."""
    draw = generator("profile")
    target, candidates = torch.randn(40, generator=draw).double(), torch.randn(2, 40, generator=draw).double()
    weights = torch.ones(40).double()
    weights[::4] = 0
    for chosen in (None, weights):
        where = torch.ones(40, dtype=torch.bool) if chosen is None else chosen > 0
        found, best = [], []
        for noise in (0.3, 1.5):
            gradient = 5 * (target + noise * candidates[0])
            scale = float((gradient[where] @ target[where]) / gradient[where].square().sum())
            grid = torch.linspace(0.01, 5, 20_000).double()
            square = (target[where] - scale * gradient[where]).square().sum() / target[where].square().sum()
            surprise = where.sum() / 2 * grid.log() + square / (2 * grid) * where.sum()
            best.append(float(surprise.min()))
            found.append(float(Profile()(gradient, target, chosen)))
        assert found[1] - found[0] == pytest.approx(best[1] - best[0], abs=1e-3)


def test_the_profile_goes_on_where_a_candidate_points_away() -> None:
    """One that points away has a finite slope towards the target, and the value has no jump."""
    target = torch.tensor([1.0, 0.0]).double()
    angles = torch.linspace(0.02, math.pi - 0.02, 400).double()
    values = torch.stack([Profile()(torch.stack([angle.cos(), angle.sin()]), target) for angle in angles])
    assert bool((values.diff() > 0).all()) and float(values.diff().max()) < 1
    edge = math.acos(LEAST_COSINE)
    near = [
        float(Profile()(torch.tensor([math.cos(edge + d), math.sin(edge + d)]).double(), target)) for d in (-1e-6, 1e-6)
    ]
    assert near[0] == pytest.approx(near[1], abs=1e-5)
    exact = float(Profile()(3 * target, target))
    assert exact == pytest.approx(math.log(EXACT**2))


def test_cosine_per_tensor_by_hand() -> None:
    """45 degrees, one that points away, and one that is zero: 1 - 0.707, 2, 1."""
    gradient, target = torch.tensor([1.0, 0.0, -3.0, 0.0, 0.0]), torch.tensor([5.0, 5.0, 1.0, 2.0, 7.0])
    distance = CosinePerTensor()(gradient, target, None, [2, 1, 2])
    assert float(distance) == pytest.approx((1 - 0.5**0.5 + 2 + 1) / 3)
    weights = torch.tensor([9.0, 0.0, 0.0, 1.0, 1.0])  # the second tensor has no say: cosine 0
    assert float(CosinePerTensor()(gradient, target, weights, [2, 1, 2])) == pytest.approx((0 + 1 + 1) / 3)


def test_floor_by_hand() -> None:
    """Lengths below 0.1 of the target's 10 count as 1: of the candidate's first tensor and of the target's second."""
    gradient, target = torch.tensor([0.3, 0.4, 2.0]), torch.tensor([6.0, 8.0, 0.5])
    whole = (100 + 0.25) ** 0.5
    expected = ((1 - 5 / (0.1 * whole * 10)) + (1 - 1 / (2 * 0.1 * whole))) / 2
    assert float(CosinePerTensor(floor=0.1)(gradient, target, None, [2, 1])) == pytest.approx(expected)
    assert float(CosinePerTensor(floor=0.04)(gradient, target, None, [2, 1])) == pytest.approx(0)


def test_floor_silences_rounding_noise() -> None:
    """A tensor whose exact gradient is zero has no slope to speak of; without a floor its slope is the largest."""
    gradient, target = torch.tensor([1e-9, -2e-9, 3.0, 1.0]), torch.tensor([3e-9, 1e-9, 1.0, 2.0])
    slopes = [
        torch.func.grad(lambda at, f=floor: CosinePerTensor(floor=f)(at, target, None, [2, 2]))(gradient)
        for floor in (0.0, 1e-6)
    ]
    torch.testing.assert_close(slopes[0][2:], slopes[1][2:])
    assert slopes[0][:2].abs().max() > 1e6 and slopes[1][:2].abs().max() < 1e4
    assert CosinePerTensor(floor=1e-6)(gradient, torch.zeros(4), None, [2, 2]) == 1


@pytest.mark.parametrize("objective", ALL, ids=IDS)
class TestAll:
    def test_least_where_gradients_agree(self, objective: Objective) -> None:
        least = 1.5 * math.log(EXACT**2) if objective.kind == "profile" else 0
        assert float(objective(T, T, W, SIZES)) == pytest.approx(least, abs=1e-6)
        scaled = float(objective(7 * T, T, W, SIZES))
        if objective.kind == "profile":
            assert scaled == pytest.approx(least, abs=1e-6)
        elif objective.kind in ("cosine", "cosine_per_tensor"):
            assert scaled == pytest.approx(0, abs=1e-6)
            assert float(objective(-T, T, W, SIZES)) == pytest.approx(2)
        else:
            assert scaled > 1

    def test_several_candidates_at_once(self, objective: Objective) -> None:
        draw = generator("objectives")
        many, weights = torch.randn(5, 3, generator=draw), torch.rand(3, generator=draw)
        together = objective(many, T, weights, SIZES)
        assert together.shape == (5,)
        torch.testing.assert_close(together, torch.stack([objective(one, T, weights, SIZES) for one in many]))

    @settings(max_examples=30)
    @given(huge=st.floats(-(2.0**127), 2.0**127, width=32), weight=st.floats(0, 100, width=32))
    def test_a_coordinate_of_weight_zero_has_no_say(self, objective: Objective, huge: float, weight: float) -> None:
        """Neither in the value nor in the slope, although its square overflows."""
        weights = torch.tensor([weight, 2.0, 0.0])

        def value(gradient: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return objective(gradient, target, weights, [3])

        both = torch.func.grad_and_value(value)
        slope, at = both(G + 1, torch.tensor([0.5, 2.0, huge]))
        expected_slope, expected = both(G + 1, torch.tensor([0.5, 2.0, 1.0]))
        assert torch.equal(at, expected) and torch.equal(slope, expected_slope)
        assert at.isfinite() and slope.isfinite().all() and slope[2] == 0

    def test_slopes_are_finite_where_gradients_agree(self, objective: Objective) -> None:
        for weights in (None, W, torch.tensor([1.0, 0.0, 0.0])):
            slope = torch.func.grad(lambda gradient, w=weights: objective(gradient, T + 1, w, SIZES))(T + 1)
            rounding = (
                1e-7 / EXACT**2 if objective.kind == "profile" else 1e-5
            )  # its curvature is that of an exact message
            assert slope.isfinite().all() and slope.abs().max() < rounding

    def test_slope_against_differences(self, objective: Objective) -> None:
        draw = generator("objectives slope")
        gradient, target, direction = torch.randn(3, 8, generator=draw).double()
        weights = torch.rand(8, generator=draw).double()

        def value(at: torch.Tensor) -> torch.Tensor:
            return objective(at, target, weights, [3, 5])

        step = 1e-6
        difference = (value(gradient + step * direction) - value(gradient - step * direction)) / (2 * step)
        torch.testing.assert_close(torch.func.grad(value)(gradient) @ direction, difference, rtol=1e-6, atol=1e-8)

    def test_from_plain_values(self, objective: Objective) -> None:
        adapter: TypeAdapter[Any] = TypeAdapter(Objective)
        assert adapter.validate_python(objective.model_dump(mode="json")) == objective
        with pytest.raises(ValidationError, match="extra"):
            adapter.validate_python(objective.model_dump() | {"power": 3})


def test_a_tensor_without_gradient_on_either_side_has_finite_slopes() -> None:
    """As a layer of dead units has; a tensor of zeros in the message too."""
    gradient, target = torch.tensor([0.0, 0.0, 3.0, 1.0]), torch.tensor([1.0, 2.0, 0.0, 0.0])
    slope, value = torch.func.grad_and_value(lambda at: CosinePerTensor()(at, target, None, [2, 2]))(gradient)
    assert float(value) == pytest.approx(1) and slope.isfinite().all()


def test_observed_tensors_of_zeros() -> None:
    """As rounding to few decimals or a bit flip leaves of a bias: no NaN, which a cosine's own formula would give.

    In attacks' own setting: candidates under vmap, differentiated by an input that the gradient depends on.
    """
    mixing = torch.randn(5, 3, generator=generator("zeros"))
    target = torch.tensor([0.0, 0.0, 1.0, -2.0, 0.5])

    def cost(inputs: torch.Tensor) -> torch.Tensor:
        gradient = torch.tanh(mixing @ inputs)
        return CosinePerTensor()(gradient, target, None, [2, 3])

    inputs = torch.stack([torch.zeros(3), torch.ones(3), torch.tensor([1.0, -2.0, 3.0])])
    slope, value = torch.func.vmap(torch.func.grad_and_value(cost))(inputs)
    assert value.isfinite().all() and slope[1:].isfinite().all() and (slope[1:].abs().sum(dim=1) > 0).all()
    seen = torch.tanh(mixing @ inputs[1])[2:]
    expected = (1 + 1 - torch.nn.functional.cosine_similarity(seen, target[2:], dim=0)) / 2
    assert float(value[1]) == pytest.approx(float(expected))
    nothing = CosinePerTensor()(target, torch.zeros(5), None, [2, 3])
    assert float(nothing) == 1


@pytest.mark.parametrize("objective", ALL, ids=IDS)
def test_digits_do_not_depend_on_the_batch(objective: Objective) -> None:
    """In float32, over 30,000 coordinates: as exact as float64 to a few units of the last place, in any batch."""
    draw = generator("cosine")
    first = torch.randn(5, 30_000, generator=draw)
    second = first + 0.3 * torch.randn(5, 30_000, generator=draw)
    sizes = [10_000, 20_000]
    exact = torch.stack([objective(*pair, None, sizes) for pair in zip(first.double(), second.double(), strict=True)])
    for size in (1, 2, 5):
        parts = [
            torch.func.vmap(lambda one, two: objective(one, two, None, sizes))(*pair)
            for pair in zip(first.split(size), second.split(size), strict=True)
        ]
        torch.testing.assert_close(torch.cat(parts).double(), exact, rtol=1e-6, atol=4e-7)


@pytest.mark.parametrize("draws", [(), (3,)], ids=["one", "several"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("objective", ALL, ids=IDS)
def test_derivatives(objective: Objective, weighted: bool, draws: tuple[int, ...]) -> None:
    """Written out or not, against finite differences."""
    draw = torch.Generator().manual_seed(0)
    gradient = torch.randn(*draws, 5, generator=draw, dtype=torch.float64).requires_grad_()
    target = torch.randn(5, generator=draw, dtype=torch.float64)
    weights = torch.rand(5, generator=draw, dtype=torch.float64) if weighted else None
    assert torch.autograd.gradcheck(lambda given: objective(given, target, weights, [2, 3]), (gradient,))


def test_cosine_of_products_is_the_cosine() -> None:
    found = Cosine.of_products((G * T).sum(), G.square().sum(), T)
    assert float(found) == pytest.approx(float(Cosine()(G, T)))
