"""Statistics against scipy where it has the same, against loops where not; intervals against their coverage."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from leakbench.report.statistics import dominance, holm, over_seeds

NAN = math.nan


def a_frame(values: dict[int, list[float]], **columns: Any) -> pd.DataFrame:
    """Values per seed, one row each."""
    return pd.DataFrame(
        [{"seed": seed, "value": value} | columns for seed, several in values.items() for value in several]
    )


def summary(values: dict[int, list[float]]) -> dict[str, float]:
    (row,) = over_seeds(a_frame(values, defense="gp"), ["defense"]).to_dict("records")
    assert row.pop("defense") == "gp"
    return {str(key): float(value) for key, value in row.items()}


def test_three_seeds_by_hand() -> None:
    """Mean 2, standard deviation 1; the 97.5 % quantile of t with two degrees of freedom is 4.302653."""
    half = 4.302652729911275 / math.sqrt(3)
    assert summary({0: [1.0], 1: [2.0], 2: [3.0]}) == pytest.approx(
        {"mean": 2.0, "low": 2.0 - half, "high": 2.0 + half, "seeds": 3, "lost": 0}
    )


@given(
    means=st.lists(st.floats(-100, 100), min_size=3, max_size=8).filter(lambda means: max(means) - min(means) > 1e-3)
)
def test_intervals_are_those_of_scipy(means: list[float]) -> None:
    found = summary({seed: [mean] for seed, mean in enumerate(means)})
    low, high = stats.t.interval(0.95, len(means) - 1, loc=np.mean(means), scale=stats.sem(means))
    assert found == pytest.approx({"mean": np.mean(means), "low": low, "high": high, "seeds": len(means), "lost": 0})


def test_images_of_a_seed_are_averaged_first() -> None:
    """Images that share a model are one replicate, however many they are."""
    assert summary({0: [0.0, 1.0, 2.0, 5.0], 1: [4.0]}) == summary({0: [2.0], 1: [4.0]})


def test_the_interval_of_two_seeds_is_their_range() -> None:
    assert summary({0: [1.0], 1: [4.0, 2.0]}) == {"mean": 2.0, "low": 1.0, "high": 3.0, "seeds": 2, "lost": 0}


def test_one_seed_has_no_interval() -> None:
    assert summary({7: [1.0, 3.0]}) == {"mean": 2.0, "low": 2.0, "high": 2.0, "seeds": 1, "lost": 0}


def test_lost_values_are_left_out_and_counted() -> None:
    found = summary({0: [1.0, NAN], 1: [3.0, 3.0], 2: [NAN, NAN]})
    assert found == {"mean": 2.0, "low": 1.0, "high": 3.0, "seeds": 2, "lost": 3}


def test_nothing_is_left() -> None:
    found = summary({0: [NAN], 1: [NAN, NAN]})
    assert (found["seeds"], found["lost"]) == (0, 3)
    assert math.isnan(found["mean"]) and math.isnan(found["low"]) and math.isnan(found["high"])


def test_groups_stay_apart_even_without_a_key() -> None:
    """The undefended gradient has no pruning ratio: NaN is a group like any other."""
    frame = pd.concat(
        [a_frame({0: [float(i)], 1: [float(i + 2)]}, mechanism="m", ratio=ratio) for i, ratio in enumerate([NAN, 0.5])]
    )
    found = over_seeds(frame, ["mechanism", "ratio"]).sort_values("mean")
    assert found["mean"].tolist() == [1.0, 2.0]
    assert found["ratio"].isna().tolist() == [True, False]
    assert found["seeds"].tolist() == [2, 2]


def test_the_order_of_rows_does_not_matter() -> None:
    frame = a_frame({0: [1.0, NAN, 4.0], 1: [2.0], 2: [0.1, 0.2]}, a="x")
    shuffled = frame.sample(frac=1, random_state=0)
    pd.testing.assert_frame_equal(over_seeds(frame, ["a"]), over_seeds(shuffled, ["a"]))


def line(*points: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Errors and losses of a trade-off."""
    errors, losses = zip(*points, strict=True)
    return np.array(errors, dtype=float), np.array(losses, dtype=float)


def test_dominance_of_two_lines_by_hand() -> None:
    """On errors 1 to 3 the baseline's loss is 2, the other's runs from 0 to 2: the mean difference is 1."""
    assert dominance(line((0, 2), (4, 2)), line((1, 0), (3, 2))) == pytest.approx(1.0)


def test_dominance_sorts_points_by_error() -> None:
    assert dominance(line((4, 2), (0, 2)), line((3, 2), (1, 0))) == pytest.approx(1.0)


def test_dominance_with_a_kink_by_hand() -> None:
    """The baseline rises from 0 to 2 and falls back, the other is 0: a triangle of area 2 over a range of 2."""
    assert dominance(line((0, 0), (1, 2), (2, 0)), line((0, 0), (2, 0))) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "optimal",
    [line((2, 0), (3, 1)), line((1, 0), (3, 1)), line((0.5, 0.0)), line((0.0, 1.0), (NAN, 2.0))],
    ids=["apart", "touching", "one point", "one known point"],
)
def test_no_common_range(optimal: tuple[np.ndarray, np.ndarray]) -> None:
    assert np.isnan(dominance(line((0, 1), (1, 2)), optimal))


def test_unknown_points_are_left_out() -> None:
    known = dominance(line((0, 2), (4, 2)), line((1, 0), (3, 2)))
    assert dominance(line((0, 2), (2, NAN), (4, 2)), line((NAN, 9), (1, 0), (3, 2))) == known


CURVES = st.lists(
    st.tuples(st.floats(0, 10), st.floats(-5, 5)), min_size=2, max_size=6, unique_by=lambda point: point[0]
)


@given(baseline=CURVES, optimal=CURVES)
def test_dominance_is_the_mean_over_the_common_range(
    baseline: list[tuple[float, float]], optimal: list[tuple[float, float]]
) -> None:
    """Against numpy's interpolation, averaged over the middles of many equal parts; swapping flips the sign."""
    a, b = line(*baseline), line(*optimal)
    low, high = max(a[0].min(), b[0].min()), min(a[0].max(), b[0].max())
    assume(high - low > 0.1 and all(np.diff(np.sort(one[0])).min() > 1e-2 for one in (a, b)))
    grid = low + (high - low) * (np.arange(20000) + 0.5) / 20000
    curves = [np.interp(grid, np.sort(errors), losses[errors.argsort()]) for errors, losses in (a, b)]
    found = dominance(a, b)
    assert found == pytest.approx((curves[0] - curves[1]).mean(), abs=5e-3)
    assert dominance(b, a) == pytest.approx(-found)


def test_dominance_of_many_at_once() -> None:
    draw = np.random.default_rng(1)
    a, b = draw.uniform(size=(2, 2, 50, 4))
    together = dominance((a[0], a[1]), (b[0], b[1]))
    apart = [float(dominance((a[0, i], a[1, i]), (b[0, i], b[1, i]))) for i in range(50)]
    assert together.shape == (50,) and np.isnan(together).any()
    np.testing.assert_allclose(together, apart)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, NAN, 0.7])[::2] == [1.0, 1.0] and math.isnan(holm([0.6, NAN, 0.7])[1])
    assert holm([]) == []


@given(p_values=st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_holm_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    """A hypothesis is rejected if every set of hypotheses that has it is, each by Bonferroni."""
    numbers = range(len(p_values))
    sets = [chosen for n in numbers for chosen in itertools.combinations(numbers, n + 1)]
    closed = [max(min(1.0, len(c) * min(p_values[j] for j in c)) for c in sets if i in c) for i in numbers]
    assert holm(p_values) == pytest.approx(closed)


def test_holm_errs_in_one_family_of_twenty() -> None:
    """Ten true hypotheses and two false ones, 4,000 families: a true one is rejected in 5 % of them at most."""
    draw = np.random.default_rng(15)
    families = np.concatenate([draw.uniform(size=(4000, 10)), np.full((4000, 2), 1e-6)], axis=1)
    wrong = np.mean([min(holm(list(family))[:10]) < 0.05 for family in families])
    plain = np.mean((families[:, :10] < 0.05).any(axis=1))
    assert 0.03 < wrong < 0.06 < 0.3 < plain
