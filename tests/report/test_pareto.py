"""Fronts against brute force: sorting by definition, volumes by counting cells, and a search against a fine grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from leakbench.errors import ConfigError, Infeasible
from leakbench.report.pareto import Mechanism, hypervolume, nondominated, pareto_front

Array = NDArray[np.float64]
SMALL = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3), min_size=1, max_size=9)


def dominates(a: Array, b: Array) -> bool:
    return bool((a <= b).all() and (a < b).any())


class TestPoints:
    @settings(max_examples=50)
    @given(SMALL)
    def test_nondominated_by_definition(self, values: list[list[int]]) -> None:
        points = np.array(values, dtype=float)
        expected = [not any(dominates(other, point) for other in points) for point in points]
        assert nondominated(points).tolist() == expected

    @settings(max_examples=50)
    @given(SMALL)
    def test_volume_by_counting_unit_cells(self, values: list[list[int]]) -> None:
        cells = np.stack(np.meshgrid(*[np.arange(5)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
        below = sum(any(all(cell >= point) for point in np.array(values)) for cell in cells)
        assert hypervolume(values, [5, 5, 5]) == pytest.approx(below)

    def test_what_is_beyond_the_reference_adds_nothing(self) -> None:
        assert hypervolume([[0, 0]], [2, 3]) == 6
        assert hypervolume([[0, 0], [-5, 3], [2, 0], [9, 9]], [2, 3]) == 6
        assert hypervolume([[2, 0]], [2, 3]) == 0

    @pytest.mark.parametrize("points", [[1.0, 2.0], [[1.0, math.nan]], [[math.inf, 1.0]], [], [[]]])
    def test_other_points(self, points: list[float]) -> None:
        with pytest.raises(ConfigError, match=r"points (of shape|with objectives)"):
            nondominated(points)
        with pytest.raises(ConfigError, match=r"points (of shape|with objectives)"):
            hypervolume(points, [1, 1])

    def test_other_reference(self) -> None:
        with pytest.raises(ConfigError, match="reference point of shape"):
            hypervolume([[1.0, 2.0]], [3.0])


C1, C2 = 0.6, 1.25


def bounds(utility: float, cost: float) -> list[Mechanism]:
    """Leakage, utility loss and efficiency reduction, bounded by total variation t, of three mechanisms."""

    def encryption(n: Array) -> Array:
        t = -np.expm1(10 * np.log(1 / n**2))
        return np.stack([2 * C1 - C2 * t, 0 * t, cost * t], axis=1)

    def compression(dropped: Array) -> Array:
        t = -np.expm1(10 * np.log1p(-dropped))
        return np.stack([2 * C1 - C2 * t, utility * t, -cost * dropped], axis=1)  # it really saves

    def noise(variance: Array) -> Array:
        t = np.minimum(1, variance * 30)
        return np.stack([2 * C1 - C2 * t / 100, 1.5 * utility * t, 0 * t], axis=1)

    return [
        Mechanism("encryption", 1.0, 2.0, encryption),
        Mechanism("compression", 0.0, 0.999, compression),
        Mechanism("noise", 1e-6, 1.0, noise, logarithmic=True),
    ]


class TestSearch:
    REFERENCE = (2.0, 2.0, 2.0)

    def test_against_a_grid(self) -> None:
        mechanisms = bounds(1.0, 1.0)
        grid = np.concatenate([one.objectives(one.parameter(np.linspace(0, 1, 400))) for one in mechanisms])
        best = grid[nondominated(grid)]
        front = pareto_front(mechanisms, self.REFERENCE, population=100, generations=40)
        assert nondominated(front.objectives).all()
        assert front.hypervolume == pytest.approx(hypervolume(best, self.REFERENCE), rel=0.01)
        assert front.hypervolume == hypervolume(front.objectives, self.REFERENCE)
        for point in front.objectives:  # on the front: nothing of the grid is much better in all
            assert not bool((grid < point - 0.01).all(axis=1).any())
        assert (np.diff(front.objectives[:, 0]) >= 0).all()

    def test_settings_are_what_they_say(self) -> None:
        mechanisms = bounds(1.0, 1.0)
        by_name = {one.name: one for one in mechanisms}
        front = pareto_front(mechanisms, self.REFERENCE, population=40, generations=10)
        assert len(front.names) == len(front.parameters) == len(front.objectives)
        for name, parameter, values in zip(front.names, front.parameters, front.objectives, strict=True):
            assert by_name[name].low <= parameter <= by_name[name].high
            assert np.asarray(by_name[name].objectives(np.array([parameter])))[0] == pytest.approx(values)

    def test_the_seed_decides(self) -> None:
        one, again, other = (
            pareto_front(bounds(1.0, 1.0), self.REFERENCE, population=20, generations=5, seed=seed)
            for seed in (0, 0, 1)
        )
        assert one.names == again.names and np.array_equal(one.objectives, again.objectives)
        assert not np.array_equal(one.parameters, other.parameters)

    def test_what_cannot_be_had_is_left_out(self) -> None:
        def half(x: Array) -> Array:
            return np.stack([np.where(x > 0.5, x, np.nan), 1 - x], axis=1)

        front = pareto_front([Mechanism("half", 0, 1, half)], (2, 2), population=20, generations=10)
        assert front.parameters.min() > 0.5 and np.isfinite(front.objectives).all()
        with pytest.raises(Infeasible, match="no setting of none has finite objectives"):
            pareto_front([Mechanism("none", 0, 0.4, half)], (2, 2), population=8, generations=2)

    def test_bad_arguments(self) -> None:
        mechanism = bounds(1.0, 1.0)[0]
        with pytest.raises(ConfigError, match=r"\(none\): at least one"):
            pareto_front([], (1, 1))
        with pytest.raises(ConfigError, match="encryption, encryption"):
            pareto_front([mechanism, mechanism], self.REFERENCE)
        with pytest.raises(ConfigError, match="the reference point has 2"):
            pareto_front([mechanism], (1, 1), population=4, generations=1)
        with pytest.raises(ConfigError, match="between 2 and 1"):
            Mechanism("x", 2, 1, mechanism.objectives)
        with pytest.raises(ConfigError, match="above 0"):
            Mechanism("x", 0, 1, mechanism.objectives, logarithmic=True)

    @settings(max_examples=20)
    @given(st.floats(1e-6, 1e3), st.floats(1, 1e6), st.floats(0, 1))
    def test_places_in_a_range(self, low: float, ratio: float, place: float) -> None:
        mechanism = Mechanism("x", low, low * ratio, lambda x: x[:, None], logarithmic=True)
        found = float(mechanism.parameter(np.array([place]))[0])
        assert math.log(found) == pytest.approx(math.log(low) + place * math.log(ratio), abs=1e-9)
