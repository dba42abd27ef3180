"""Likelihoods of lattice points: against literal cells, sums over all points, integrals and finite differences."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import laplace, multivariate_t

from leakbench.defenses.sdq import SDQ, JoPEQ
from leakbench.federated.lattice import SLOPE, Lattice, LatticeMessage, PointRounding
from leakbench.federated.lattice_likelihood import FINEST, OUTSIDE, Cells
from leakbench.federated.message import Received
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network
from leakbench.randomness import Streams

Fixed = Callable[[torch.Tensor, torch.Tensor], ClientSteps]
Make = Callable[[torch.Tensor], ClientSteps]
Dimension = Literal[1, 2]
SHAPES: list[tuple[Dimension, PointRounding]] = [(1, "nearest"), (2, "nearest"), (2, "babai")]
DEFENSES = [
    SDQ(bits=1),
    SDQ(bits=3, rounding="babai"),
    SDQ(bits=2, dimension=1),
    SDQ(bits=2, clip=0.05),
    JoPEQ(mechanism="scalar", epsilon=4, bits=3),
    JoPEQ(mechanism="scalar", epsilon=4, bits=3, clip=0.05),
    JoPEQ(epsilon=2, sigma2=1, nu=12, bits=3),
    JoPEQ(epsilon=2, sigma2=1, nu=12, form="as_released", bits=4),
]


@pytest.fixture
def steps_of(fixed_steps: Fixed, tiny_network: Network) -> Make:
    def make(gradient: torch.Tensor) -> ClientSteps:
        steps = fixed_steps(gradient, gradient)
        steps.network = tiny_network
        return steps

    return make


def gradients(network: Network, n: int = 2) -> torch.Tensor:
    return 0.1 * torch.randn(n, network.dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def received(defense: SDQ, steps: ClientSteps) -> Received:
    message = defense.protect_update(steps, Streams([("cells", row) for row in range(len(steps.gradient))]))
    return message.received


def cells(error: list[float], beyond: list[float], rounding: PointRounding = "nearest") -> Cells:
    """One block whose value is so far from what was received, on a lattice of Delta 1."""
    length: Dimension = 1 if len(error) == 1 else 2
    values = torch.tensor([error], dtype=torch.float64)
    seen = Received(torch.zeros_like(values), torch.ones_like(values), torch.tensor([beyond], dtype=torch.float64))
    return Cells.of(values, seen, [length], Lattice(length), rounding, bound=math.inf)


def in_cell(error: torch.Tensor, beyond: list[float], rounding: PointRounding) -> bool:
    """Whether rounding the error, and clipping to the limit, gives the received point."""
    unit = Lattice(1 if len(beyond) == 1 else 2, 1, 1.5)
    point = unit.round(error[:, None].clone(), rounding)[:, 0].tolist()
    return all(each == 0 or (side and each * side > 0) for each, side in zip(point, beyond, strict=True))


@pytest.mark.parametrize(("dimension", "rounding"), SHAPES)
@given(data=st.data())
def test_no_slope_is_added_inside_possible_cells_alone(
    dimension: Dimension, rounding: PointRounding, data: st.DataObject
) -> None:
    error = data.draw(st.lists(st.floats(-3, 3), min_size=dimension, max_size=dimension))
    beyond = data.draw(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=dimension, max_size=dimension))
    here = cells(error, beyond, rounding)
    facets = Lattice(dimension).facets(rounding)
    off = float((facets @ here._from_nearest_cell()[0]).square().sum())
    outside = -(float(here.uniform()[0]) + off) / OUTSIDE
    point = torch.tensor(error, dtype=torch.float64)
    around = {in_cell(point + 1e-6 * torch.tensor(way), beyond, rounding) for way in ways(dimension)}
    if len(around) == 1:  # at borders either is right
        assert around == {outside < 1e-9}


def ways(dimension: int) -> list[tuple[float, ...]]:
    return list(itertools.product((-1.0, 1.0), repeat=dimension))


@pytest.mark.parametrize("error", [0.0, 0.3, -0.5, 0.7, -4.0])
@pytest.mark.parametrize("scale", [0.05, 1.0, 300.0])
def test_laplace_is_the_noise_over_the_cell(error: float, scale: float) -> None:
    """By integrating the density; at the limit to infinity."""
    for beyond, (low, high) in {0: (-0.5, 0.5), 1: (-0.5, 60.5), -1: (-60.5, 0.5)}.items():
        ends = [error - high, error - low]
        exact = quad(lambda t: laplace.pdf(t, scale=scale), *ends, points=[0.0] if ends[0] < 0 < ends[1] else None)[0]
        if beyond:
            exact += laplace.sf(60.5 + beyond * -error, scale=scale)
        found = float(cells([error], [beyond]).laplace(scale)[0])
        assert found == pytest.approx(math.log(exact), rel=1e-5, abs=1e-7) or exact < 1e-12


@given(st.floats(-5, 5), st.floats(0.02, 50), st.integers(1, 6))
def test_probabilities_of_all_points_add_up(value: float, scale: float, limit: int) -> None:
    total = 0.0
    for point in range(-limit, limit + 1):
        beyond = math.copysign(1, point) if abs(point) == limit else 0.0
        total += math.exp(float(cells([value - point], [beyond]).laplace(scale)[0]))
    assert total == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("error", [1e3, 1e6, -1e6])
def test_laplace_stays_finite_far_from_the_point(error: float) -> None:
    assert float(cells([error], [0.0]).laplace(0.1)[0]) == pytest.approx(-abs(error) / 0.1, rel=1e-2)


def test_laplace_of_fine_cells_is_right_in_single_precision() -> None:
    """A cell of 1e-5 scales: its probability is a density times its width."""
    values = torch.tensor([[0.2, 1.0, 3.0]]) * 1e5
    seen = Received(torch.zeros_like(values), torch.ones_like(values), torch.zeros_like(values))
    found = Cells.of(values, seen, [3], Lattice(1), "nearest").laplace(1e5)
    assert float(found) == pytest.approx(-4.2 - 3 * math.log(2e5), rel=1e-4)


def test_student_is_the_density_at_the_point_up_to_a_constant() -> None:
    errors, nu, variance = [[0.0, 0.0], [0.4, -1.0], [5.0, 2.0]], 4, 2.5
    law = multivariate_t([0, 0], (nu - 2) / nu * variance * torch.eye(2).numpy(), df=nu)
    found = [float(cells(each, [0.0, 0.0]).student(variance, nu)[0]) for each in errors]
    for value, each in zip(found, errors, strict=True):
        assert value - found[0] == pytest.approx(law.logpdf(each) - law.logpdf(errors[0]), abs=1e-9)
    along = [6.0, 6 * SLOPE]  # of the first axis
    assert float(cells(along, [1.0, 0.0]).student(variance, nu)[0]) == pytest.approx(0)
    assert float(cells(along, [-1.0, 0.0]).student(variance, nu)[0]) < -4


@pytest.mark.parametrize("defense", DEFENSES, ids=repr)
class TestOfMessages:
    def test_the_truth_is_inside_its_cells(self, steps_of: Make, tiny_network: Network, defense: SDQ) -> None:
        """Plain quantisation leaves the truth inside, whatever is overloaded or clipped; with noise all is possible."""
        steps = steps_of(gradients(tiny_network))
        seen = received(defense, steps)
        here = defense._cells(seen, steps)
        assert bool(defense.log_likelihood(seen, steps).isfinite().all())
        if defense.noise_covariance() is None:
            facets = here.lattice.facets(here.rounding)
            assert float((facets @ here._from_nearest_cell()).abs().max()) <= 0.5 + 1e-6
        assert seen.beyond is not None and (bool(seen.beyond.any()) or defense.bits > 2)

    def test_derivatives_are_right(self, steps_of: Make, tiny_network: Network, defense: SDQ) -> None:
        gradient = gradients(tiny_network, 1)
        seen = received(defense, steps_of(gradient))
        point = gradient + 0.05 * torch.randn(
            gradient.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )

        def value(values: torch.Tensor) -> torch.Tensor:
            return defense.log_likelihood(seen, steps_of(values)).sum()

        derivative = torch.func.grad(value)(point)
        shift = 1e-8
        for coordinate in range(0, tiny_network.dimension, 7):
            moved = torch.zeros_like(point)
            moved[0, coordinate] = shift
            sides = (float(value(point + moved)), float(value(point - moved)))
            slope = (sides[0] - sides[1]) / (2 * shift)
            assert float(derivative[0, coordinate]) == pytest.approx(slope, rel=1e-3, abs=1e-2)

    def test_rows_are_by_themselves(self, steps_of: Make, tiny_network: Network, defense: SDQ) -> None:
        gradient = gradients(tiny_network, 3)
        seen = received(defense, steps_of(gradient))
        whole = defense.log_likelihood(seen, steps_of(gradient + 0.02))
        for row in range(3):
            assert seen.step is not None
            assert seen.beyond is not None
            one = Received(*(part[row : row + 1] for part in (seen.values, seen.step, seen.beyond)))
            torch.testing.assert_close(
                defense.log_likelihood(one, steps_of(gradient[row : row + 1] + 0.02)), whole[row : row + 1]
            )


class TestWhatTravels:
    def test_scalar_code_of_a_few_coordinates(self, steps_of: Make, tiny_network: Network) -> None:
        """Steps are Delta times three deviations of the tensor, and the limit is where points are clipped."""
        steps, defense = steps_of(gradients(tiny_network)), SDQ(bits=2, dimension=1)
        message = defense.protect_update(steps, Streams([("cells", row) for row in range(2)]))
        assert isinstance(message, LatticeMessage)
        start, number = 0, 0
        for size in tiny_network.sizes:
            part = steps.gradient[:, start : start + size]
            step = 3 * part.std(dim=1, correction=0) * defense.lattice().step
            torch.testing.assert_close(message.step[:, start], step, check_dtype=False)
            points = message.quantised.points[:, 0, number : number + size]
            expected = torch.where(points.abs() == 2, points.sign(), 0)
            torch.testing.assert_close(message.beyond[:, start : start + size], expected, check_dtype=False)
            start, number = start + size, number + size

    @pytest.mark.parametrize("parameters", [{}, {"dimension": 1}], ids=repr)
    def test_single_values_are_exact(self, fixed_steps: Fixed, parameters: dict[str, Any]) -> None:
        network = Network(torch.nn.Linear(6, 1))
        gradient = torch.randn(1, 7, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

        def steps_of(values: torch.Tensor) -> ClientSteps:
            steps = fixed_steps(values, values)
            steps.network = network
            return steps

        defense = SDQ(bits=3, **parameters)
        seen = received(defense, steps_of(gradient))
        assert seen.step is not None and float(seen.step[0, 6]) == 0 and bool((seen.step[0, :6] > 0).all())
        moved = gradient.clone()
        moved[0, 6] += 0.1
        at, off = (float(defense.log_likelihood(seen, steps_of(each))) for each in (gradient, moved))
        assert at - off == pytest.approx((0.1 / (FINEST * abs(float(gradient[0, 6])))) ** 2, rel=1e-5)

    def test_beyond_the_bound_is_the_way_back(self, steps_of: Make, tiny_network: Network) -> None:
        """A value that is clipped is at the bound: possible there, and worse the farther off where it is not."""
        defense = SDQ(bits=4, dimension=1, clip=0.1)
        steps = steps_of(gradients(tiny_network, 1).clamp(-0.02, 0.02))
        seen = received(defense, steps)
        far = [float(defense.log_likelihood(seen, steps_of(torch.full((1, 160), value)))) for value in (0.1, 0.2, 0.5)]
        assert far[0] > far[1] > far[2]
        at_bound = steps_of(torch.full((1, 160), 0.3))
        seen = received(defense, at_bound)
        values = [float(defense.log_likelihood(seen, steps_of(torch.full((1, 160), value)))) for value in (0.1, 0.3)]
        assert values[0] == pytest.approx(values[1])
