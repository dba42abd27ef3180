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

from leakbench.report.statistics import (
    CrossedBootstrap,
    Estimate,
    at_loss,
    dominance,
    holm,
    interquartile_mean,
    over_seeds,
    paired_differences,
    probability_of_improvement,
)

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
    assert resamples.estimate(statistic) == Estimate(1.0, 2.0, 2.0, lost=0.25, freedom=2)
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


def test_interquartile_mean_by_hand() -> None:
    """Of 8 values the middle 4; of 5 all but the least and the largest."""
    assert interquartile_mean(np.array([100.0, 1, 2, 3, 4, 5, 6, -100])) == 3.5
    assert interquartile_mean(np.array([9.0, 1, 2, 3, -9])) == 2.0
    assert np.isnan(interquartile_mean(np.array([1.0, NAN, 3.0])))


@given(values=st.lists(st.floats(-100, 100), min_size=1, max_size=30))
def test_interquartile_mean_is_that_of_scipy(values: list[float]) -> None:
    assert interquartile_mean(np.array(values)) == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)


def test_differences_by_seed_and_victim() -> None:
    rows = [(seed, index) for seed in range(3) for index in range(2)]
    first = pd.DataFrame({"seed": s, "index": i, "value": 10.0 * s + i} for s, i in rows)
    second = first.assign(value=first["value"] - first["index"]).sample(frac=1, random_state=0).iloc[1:]
    found = paired_differences(first, second)
    assert len(found) == 5 and (found["difference"] == found["index"]).all()
    with pytest.raises(pd.errors.MergeError):
        paired_differences(first, pd.concat([second, second]))


@given(
    first=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    second=st.lists(st.integers(0, 5), min_size=1, max_size=8),
)
def test_probability_of_improvement_is_mann_whitneys(first: list[int], second: list[int]) -> None:
    a, b = np.array(first, dtype=float), np.array(second, dtype=float)
    found = probability_of_improvement(a, b, np.random.default_rng(0), resamples=20)
    assert found.value == pytest.approx(stats.mannwhitneyu(a, b).statistic / (len(a) * len(b)))


def test_probability_of_improvement_covers() -> None:
    """Normal samples one standard deviation apart: the probability is Phi(1 / sqrt 2)."""
    draw, generator = np.random.default_rng(13), np.random.default_rng(14)
    truth, hits = stats.norm.cdf(1 / math.sqrt(2)), 0
    for _ in range(300):
        found = probability_of_improvement(draw.normal(1, size=20), draw.normal(size=20), generator, resamples=400)
        hits += found.low <= truth <= found.high
    assert 0.90 <= hits / 300 <= 0.98


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


def test_p_values_are_the_other_side_of_intervals() -> None:
    resamples = CrossedBootstrap(40, 1)
    found = resamples.estimate(resamples.mean(np.arange(40.0)[:, None]))
    assert found.p_value(found.value) > 0.5
    for end, outwards in ((found.low, -1), (found.high, 1)):
        assert found.p_value(end + outwards * 0.4) < 0.05 < found.p_value(end - outwards * 0.4)
    assert math.isnan(Estimate(1.0, 1.0, 1.0).p_value(0.0))


def test_p_values_beyond_all_resamples_are_those_of_a_t_test() -> None:
    """Counting says no more than 2 / 2001 there; six replicates never say as much as a normal law would."""
    values = np.array([4.1, 3.9, 4.0, 4.2, 3.8, 4.05])
    resamples = CrossedBootstrap(1, 6)
    found = resamples.estimate(resamples.mean(values[None, :]))
    assert found.freedom == pytest.approx(5)
    for threshold in (0.0, 3.0, 5.0):
        assert found.p_value(threshold) == pytest.approx(stats.ttest_1samp(values, threshold).pvalue, rel=0.5)
    assert found.p_value(0.0) > 1e-9 > 2 * stats.norm.sf(found.value / values.std())
    constant = resamples.estimate(np.ones(2001))
    assert constant.p_value(0.0) == 2 / 2001 and constant.p_value(1.0) == 1.0


@pytest.mark.parametrize(
    ("seeds", "batches", "by_seed", "by_batch", "rooms"),
    [
        (30, 1, 1.0, 0.0, (0.008, 0.017, 0.031)),  # three standard errors
        (3, 1, 1.0, 0.0, (0.008, 0.017, 0.031)),
        (1, 6, 0.0, 1.0, (0.008, 0.017, 0.031)),
        (5, 20, 1.0, 1.0, (0.02, 0.03, 0.04)),  # Satterthwaite's degrees of freedom are estimates
    ],
)
def test_p_values_of_true_hypotheses_are_even(
    seeds: int, batches: int, by_seed: float, by_batch: float, rooms: tuple[float, ...]
) -> None:
    """Of 1,500 samples, a mean of zero is rejected at 1, 5 and 20 % about that often, however few there are."""
    draw = np.random.default_rng(16)
    resamples = CrossedBootstrap(seeds, batches, resamples=500)
    values = by_seed * draw.normal(size=(1500, seeds, 1)) + by_batch * draw.normal(size=(1500, 1, batches))
    means = resamples.mean(values + 0.5 * draw.normal(size=(1500, seeds, batches)))
    p_values = np.array([resamples.estimate(means[:, i]).p_value(0.0) for i in range(1500)])
    for level, room in zip((0.01, 0.05, 0.2), rooms, strict=True):
        assert (p_values < level).mean() == pytest.approx(level, abs=room)


def test_degrees_of_freedom_are_those_of_what_varies() -> None:
    """Of numbers that differ by seed alone they are S - 1, by batch K - 1, and by both equally something between."""
    resamples = CrossedBootstrap(5, 21)
    seeds, batches = np.linspace(-1, 1, 5)[:, None], np.linspace(-1, 1, 21)[None, :]
    by_seed, by_batch = (part / part.std(ddof=1) * np.sqrt(part.size) for part in (seeds, batches))
    cases = [np.broadcast_to(part, (5, 21)) for part in (by_seed, by_batch, by_seed + by_batch)]
    found = [resamples.estimate(resamples.mean(values)).freedom for values in cases]
    assert found == pytest.approx([4, 20, 4 / (1 / 4 + 1 / 20)], rel=0.1)


@given(st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_drawn_values_have_the_resampled_means(seeds: int, batches: int, by_seed: bool) -> None:
    """Each resample holds what its weights count, of several arrays at once."""
    resamples = CrossedBootstrap(seeds, batches, resamples=20)
    values = np.random.default_rng(seeds + batches).normal(size=(3, seeds, 1 if by_seed else batches))
    drawn = resamples.drawn(values)
    assert drawn.shape == (21, 3, values[0].size)
    np.testing.assert_allclose(drawn.mean(axis=-1), resamples.mean(values))
    np.testing.assert_array_equal(np.sort(drawn[0]), np.sort(values.reshape(3, -1)))


LOSSES = st.one_of(st.floats(0, 1), st.just(math.inf))
LEAKAGES = st.one_of(st.floats(-50, 50), st.just(NAN))


@given(st.lists(st.tuples(LOSSES, LEAKAGES), min_size=1, max_size=6), st.floats(0, 1), st.booleans())
def test_leakage_at_a_loss_against_a_fine_grid(
    points: list[tuple[float, float]], allowed: float, between: bool
) -> None:
    """The least of the settings within, and of a thousand points on every line between two neighbours."""
    within = [leakage for loss, leakage in points if loss <= allowed and not math.isnan(leakage)]
    for (a, x), (b, y) in itertools.pairwise(points) if between else ():
        if math.isfinite(a + b + x + y):
            steps = np.linspace(0, 1, 1001)
            on_line = (x + steps * (y - x))[a + steps * (b - a) <= allowed]
            within += on_line.tolist()
    losses, leakages = (np.array(part, dtype=float) for part in zip(*points, strict=True))
    found = float(at_loss(losses, leakages, allowed, between=between))
    if within:
        assert found <= min(within) + 1e-9
        assert found >= min(within) - 0.11  # a thousandth of the steepest line
    else:
        assert math.isnan(found)


def test_leakage_at_a_loss_of_many_resamples_at_once() -> None:
    """Each row by itself: at 2 of 1 to 3 half of the way, at 0 nothing."""
    found = at_loss(np.array([[1.0, 3.0], [0.0, 4.0]]), np.array([[30.0, 20.0], [30.0, 10.0]]), 2.0, between=True)
    assert found == pytest.approx([25.0, 20.0])
    assert math.isnan(at_loss(np.array([1.0, 3.0]), np.array([30.0, 20.0]), 0.0, between=True))
