"""Jackknife errors and Student's tests against scipy where it has the same, against loops where not."""

from __future__ import annotations

import itertools
import math

import numpy as np
import numpy.typing
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from leakbench.report.inference import (
    FEWEST_SEEDS,
    LEVEL,
    MOST_SEEDS,
    Estimate,
    Jackknife,
    rank_correlation,
    seeds_for_a_trend,
    trend_p_values,
)

NAN = math.nan
Array = np.typing.NDArray[np.float64]

SAMPLES = st.lists(st.integers(-50, 50).map(float), min_size=3, max_size=9).filter(lambda seeds: len(set(seeds)) > 1)


def of_seeds(seeds: list[float]) -> Estimate:
    jackknife = Jackknife(len(seeds), 1)
    return jackknife.estimate(jackknife.mean(np.array(seeds)[:, None]))


@given(seeds=SAMPLES, threshold=st.integers(-20, 20))
def test_a_mean_of_seeds_is_tested_by_student(seeds: list[float], threshold: int) -> None:
    estimate = of_seeds(seeds)
    assume(abs(np.mean(seeds) - threshold) < 1e6 * stats.sem(seeds))
    test = stats.ttest_1samp(seeds, threshold, alternative="greater")
    assert estimate.value == pytest.approx(np.mean(seeds))
    assert estimate.error == pytest.approx(stats.sem(seeds))
    assert estimate.spread == pytest.approx(np.std(seeds, ddof=1))
    assert estimate.p_above(threshold) == pytest.approx(test.pvalue, abs=1e-9)
    assert estimate.p_below(threshold) == pytest.approx(1 - test.pvalue, abs=1e-9)
    interval = stats.t.interval(0.95, len(seeds) - 1, loc=np.mean(seeds), scale=stats.sem(seeds))
    assert (estimate.low, estimate.high) == pytest.approx(interval)


@given(seeds=SAMPLES, threshold=st.floats(-20, 20))
def test_an_interval_and_its_test_agree(seeds: list[float], threshold: float) -> None:
    estimate = of_seeds(seeds)
    assume(min(abs(estimate.low - threshold), abs(estimate.high - threshold)) > 1e-6)
    assert (estimate.p_above(threshold) <= LEVEL / 2) == (threshold < estimate.low)
    assert (estimate.p_below(threshold) <= LEVEL / 2) == (threshold > estimate.high)


def test_means_against_a_loop() -> None:
    """All, all but one seed, all but one batch; a number that is missing is left out."""
    values = np.random.default_rng(2).normal(size=(3, 4, 5))
    values[1, 2, 3] = NAN
    means = Jackknife(4, 5).mean(values)
    expected = [values, *(np.delete(values, s, axis=1) for s in range(4)), *(np.delete(values, k, 2) for k in range(5))]
    np.testing.assert_allclose(means, [np.nanmean(each, axis=(1, 2)) for each in expected])
    assert np.isnan(Jackknife(2, 1).mean(np.array([[NAN], [1.0]]))).tolist() == [False, False, True]


def test_numbers_without_batches_stay_when_a_batch_is_left_out() -> None:
    losses = np.random.default_rng(3).normal(size=(2, 4, 1))
    np.testing.assert_allclose(Jackknife(4, 5).mean(losses), Jackknife(4, 5).mean(losses.repeat(5, axis=2)))


def test_both_variances_add_up() -> None:
    """Seeds and batches that differ additively: each contributes the squared standard error of its own mean."""
    seeds, batches = np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 3.0, 8.0])
    jackknife = Jackknife(3, 4)
    estimate = jackknife.estimate(jackknife.mean(seeds[:, None] + batches))
    assert estimate.error == pytest.approx(math.hypot(stats.sem(seeds), stats.sem(batches)))
    assert estimate.freedom == 2


def test_differences_are_paired() -> None:
    """Two defenses that differ by nearly a constant are told apart, however much models and batches vary."""
    draw = np.random.default_rng(5)
    values = draw.normal(scale=100, size=(4, 5))
    jackknife = Jackknife(4, 5)
    shifted = values + 1 + 0.1 * draw.normal(size=values.shape)
    assert jackknife.estimate(jackknife.mean(shifted) - jackknife.mean(values)).p_above(0.0) < 0.01
    assert jackknife.estimate(jackknife.mean(shifted)).p_above(0.0) > 0.01


@pytest.mark.parametrize("seeds", [1, 2])
def test_two_seeds_decide_nothing(seeds: int) -> None:
    estimate = of_seeds([10.0, 10.001][:seeds])
    assert math.isnan(estimate.p_above(0.0)) and math.isnan(estimate.p_below(0.0))
    assert FEWEST_SEEDS == 3 and of_seeds([10.0, 10.001, 10.002]).p_above(0.0) < 0.001


@pytest.mark.parametrize("seeds", [3, 6, 10])
def test_seeds_that_agree_say_what_their_signs_do(seeds: int) -> None:
    """Whatever the size of the effect: three agreeing seeds are no proof."""
    estimate = of_seeds([0.1 + 0.2] * seeds)
    assert estimate.p_above(0.0) == estimate.p_below(1.0) == 2.0**-seeds
    assert estimate.p_above(1.0) == estimate.p_above(0.3 + 1e-9) == 1.0
    assert math.isnan(estimate.low) and math.isnan(estimate.high)
    assert (estimate.p_above(0.0) <= LEVEL / 2) == (seeds >= 6)


def test_certain_numbers() -> None:
    count = Estimate.certain(3.0)
    assert (count.low, count.high) == (3.0, 3.0) and math.isnan(count.p_above(2.0))
    assert count.is_certain and not of_seeds([3.0, 3.0, 3.0]).is_certain


def test_ratios_are_tested_by_their_logarithm() -> None:
    """Twice as much and half as much are equally far from no change."""
    twice, half = (np.array([x, x, 1.1 * x, x / 1.1]) - 1 for x in (2.0, 0.5))
    more, less = (Jackknife(3, 1).estimate(each, ratio=True) for each in (twice, half))
    assert more.p_above(0.0) == pytest.approx(less.p_below(0.0))
    assert (1 + more.low) * (1 + less.high) == pytest.approx(1.0)
    assert -1 < less.low < less.value < less.high
    with pytest.raises(ValueError, match="no negative"):
        _ = -more
    negative = Jackknife(3, 1).estimate(np.array([-2.0, -2.1, -1.9, -2.0]), ratio=True)
    assert not negative.ratio and negative.p_below(0.0) < 0.01


def test_a_statistic_that_one_seed_carries_has_no_error() -> None:
    estimate = Jackknife(3, 1).estimate(np.array([1.0, 1.1, NAN, 0.9]))
    assert estimate.value == 1.0 and math.isnan(estimate.low) and math.isnan(estimate.p_above(0.0))


def test_the_negative() -> None:
    estimate = of_seeds([1.0, 2.0, 4.0])
    assert (-estimate).p_below(-1.0) == pytest.approx(estimate.p_above(1.0))
    assert (-estimate).low == pytest.approx(-estimate.high)


@pytest.mark.parametrize(("effect", "seeds"), [(5.0, 3), (1.0, 10), (0.5, 34)])
def test_seeds_needed(effect: float, seeds: int) -> None:
    """Power of the one-sided test at 2.5 % by the noncentral t law, for an effect in standard deviations."""
    estimate = Estimate(effect, error=1.0, freedom=2, seeds=3, spread=1.0)
    needed = estimate.seeds_needed(0.0)
    assert needed is not None and abs(needed - seeds) <= 1
    power = stats.nct.sf(stats.t.isf(0.025, needed - 1), needed - 1, effect * math.sqrt(needed))
    assert power > 0.77


def test_seeds_needed_where_nothing_is_known() -> None:
    """More than are recommended is said; an unknown spread says nothing."""
    assert Estimate(0.0, 1.0, 2, 3, 1.0).seeds_needed(0.0) == MOST_SEEDS + 1
    assert Estimate(1e-6, 1.0, 2, 3, 1.0).seeds_needed(0.0) == MOST_SEEDS + 1
    assert of_seeds([1.0]).seeds_needed(0.0) is None
    assert of_seeds([1.0] * 3).seeds_needed(0.0) == 6


def test_trends_by_enumeration() -> None:
    """Three seeds and three points: all 216 orders, of which one rises in every seed."""
    blocks = np.array([[1.0, 2, 3], [0, 1, 5], [2, 2.5, 9]])
    assert trend_p_values(blocks) == pytest.approx((1 / 216, 1.0), abs=0.003)
    mixed = np.array([[1.0, 3, 2], [0, 1, 5], [9, 2.5, 2]])
    ranks = np.argsort(np.argsort(mixed, axis=1), axis=1)
    orders = list(itertools.permutations([-1, 0, 1]))
    actual = (ranks * [-1, 0, 1]).sum()
    scores = np.array([sum(np.dot([0, 1, 2], order) for order in each) for each in itertools.product(orders, repeat=3)])
    expected = (np.mean(scores >= actual), np.mean(scores <= actual))
    assert trend_p_values(mixed) == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("strength", [0.4, 0.8])
def test_seeds_for_a_trend_have_the_power(strength: float) -> None:
    """As many seeds as are said show the trend in four of five cases, judged by many whose mean ranks are the law's."""
    random = np.random.default_rng(0)

    def seeds(count: int) -> Array:
        return strength * np.arange(4) + random.normal(size=(count, 4))

    needed = seeds_for_a_trend(seeds(20_000), LEVEL / 2)
    assert needed is not None
    found = [trend_p_values(seeds(needed))[0] <= LEVEL / 2 for _ in range(100)]
    assert 0.66 < np.mean(found) < 0.95  # three standard errors, and power in steps of one seed


def test_seeds_for_a_trend_of_either_sign_and_of_none() -> None:
    rising = np.array([[1.0, 2, 3], [2.0, 1, 3], [NAN, 1, 2]])
    assert seeds_for_a_trend(rising, 0.025) == seeds_for_a_trend(-rising, 0.025) == 7
    assert seeds_for_a_trend(np.array([[1.0, 2, 3], [3.0, 2, 1]]), 0.025) == MOST_SEEDS + 1
    assert seeds_for_a_trend(rising[1:], 0.025) is None


def test_trends_of_equal_and_of_missing_numbers() -> None:
    assert trend_p_values(np.ones((4, 3))) == (1.0, 1.0)
    assert trend_p_values(np.array([[1.0, 2, 3], [NAN, 1, 2]])) == pytest.approx((1 / 6, 1.0), abs=0.02)
    assert np.isnan(trend_p_values(np.array([[NAN, 1.0]]))).all()


@given(st.lists(st.integers(-3, 3), min_size=2, max_size=9))
def test_rank_correlation_is_spearmans(values: list[int]) -> None:
    correlation = float(rank_correlation(np.array(values, dtype=float)))
    if len(set(values)) == 1:
        assert np.isnan(correlation)
    else:
        assert correlation == pytest.approx(stats.spearmanr(range(len(values)), values).statistic)


def test_rank_correlation_of_rows() -> None:
    rows = np.array([[1.0, 2, 3], [3, 2, 1], [1, np.nan, 3]])
    np.testing.assert_allclose(rank_correlation(rows), [1, -1, np.nan])


def test_a_lattice_has_the_error_of_its_step() -> None:
    """Of a share of 40 steps, no seed alone moves the sample's: that is no proof."""
    same = Jackknife(8, 1).estimate(np.full(9, 35 / 40), resolution=1 / 40)
    assert same.error == 1 / 80 and same.p_below(0.9) > LEVEL / 2 > same.p_below(0.95)
    assert Jackknife(8, 1).estimate(np.full(9, 35 / 40)).p_below(0.9) < LEVEL / 2
