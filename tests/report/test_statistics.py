"""Means and intervals over seeds, against scipy's t-distribution; crossed resamples and dominance, against loops."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from leakbench.report.statistics import CrossedBootstrap, Estimate, dominance, over_seeds

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


def test_resampled_means_against_a_loop() -> None:
    """Each is the mean of a draw of seeds by a draw of batches, and a number that is missing is left out."""
    values = np.random.default_rng(2).normal(size=(3, 4, 5))
    values[1, 2, 3] = NAN
    resamples = CrossedBootstrap(4, 5, resamples=20)
    found = resamples.mean(values)
    assert found.shape == (21, 3)
    np.testing.assert_allclose(found[0], np.nanmean(values, axis=(1, 2)))
    seeds, batches = resamples._weights
    assert (seeds.sum(axis=1) == 4).all() and (batches.sum(axis=1) == 5).all()
    for draw in range(21):
        s, k = (np.repeat(np.arange(len(w)), w.astype(int)) for w in (seeds[draw], batches[draw]))
        np.testing.assert_allclose(found[draw], np.nanmean(values[:, s][:, :, k], axis=(1, 2)))


def test_numbers_without_batches_are_resampled_with_the_seeds() -> None:
    losses = np.random.default_rng(3).normal(size=(2, 4, 1))
    resamples = CrossedBootstrap(4, 5)
    np.testing.assert_allclose(resamples.mean(losses), resamples.mean(losses.repeat(5, axis=2)))


def test_equal_numbers_give_equal_intervals() -> None:
    values = np.random.default_rng(4).normal(size=(4, 5))
    one, other = (CrossedBootstrap(4, 5).mean(values) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, CrossedBootstrap(4, 5, seed=1).mean(values))


def test_differences_are_paired() -> None:
    """Two defenses that differ by a constant differ by it in every resample, however much models and batches vary."""
    values = np.random.default_rng(5).normal(scale=100, size=(4, 5))
    resamples = CrossedBootstrap(4, 5)
    found = resamples.estimate(resamples.mean(values + 1) - resamples.mean(values))
    assert (found.value, found.low, found.high) == pytest.approx((1.0, 1.0, 1.0))


def test_one_seed_resamples_the_batches() -> None:
    values = np.array([[1.0, 2.0, 3.0, 4.0]])
    resamples = CrossedBootstrap(1, 4)
    found = resamples.estimate(resamples.mean(values))
    assert found.value == 2.5 and 1.0 <= found.low < 2.0 and 3.0 < found.high <= 4.0


def test_one_number_has_no_interval() -> None:
    resamples = CrossedBootstrap(1, 1)
    found = resamples.estimate(resamples.mean(np.array([[3.0]])))
    assert found.value == 3.0 and math.isnan(found.low) and math.isnan(found.high)


def test_resamples_without_the_statistic_are_counted() -> None:
    resamples = CrossedBootstrap(3, 1)
    statistic = np.concatenate([[1.0], np.full(1500, 2.0), np.full(500, NAN)])
    assert resamples.estimate(statistic) == Estimate(1.0, 2.0, 2.0, lost=0.25)
    few = resamples.estimate(np.concatenate([[1.0], np.full(900, 2.0), np.full(1100, NAN)]))
    assert few.value == 1.0 and math.isnan(few.low)


@pytest.mark.parametrize(("by_seed", "by_batch", "by_cell"), [(1.0, 1.0, 1.0), (1.0, 0.0, 0.1), (0.0, 0.0, 1.0)])
def test_intervals_cover_the_mean(by_seed: float, by_batch: float, by_cell: float) -> None:
    """Effects of seed, batch and cell that add up, 300 times: the interval rarely misses the mean, 0.

    Cells taken as independent would miss it often, where models or batches differ.
    """
    draw = np.random.default_rng(6)
    seeds, batches, trials = 10, 8, 300
    values = (
        by_seed * draw.normal(size=(trials, seeds, 1))
        + by_batch * draw.normal(size=(trials, 1, batches))
        + by_cell * draw.normal(size=(trials, seeds, batches))
    )
    means = CrossedBootstrap(seeds, batches, resamples=500).mean(values)
    low, high = np.quantile(means[1:], [0.025, 0.975], axis=0)
    assert ((low <= 0) & (high >= 0)).mean() >= 0.86
    naive = 1.96 * values.std(axis=(1, 2)) / math.sqrt(seeds * batches)
    assert by_seed == 0 or (abs(means[0]) <= naive).mean() < 0.75
