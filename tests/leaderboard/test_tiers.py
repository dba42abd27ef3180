"""Tiers: chance separates nothing, true gaps are found, and copies stay together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from leakbench.leaderboard.tiers import mean_of, smallest_gap, tiers
from leakbench.report.statistics import holm

SEEDS = 8


def leakages(means: list[float], spread: float, seed: int) -> list[np.ndarray]:
    """Means over the victims of each seed, which vary on their own and alike for all defenses."""
    draw = np.random.default_rng(seed)
    shared = 3 * draw.standard_normal(SEEDS)
    return [mean + shared + spread * draw.standard_normal(SEEDS) for mean in means]


def literal(values: list[np.ndarray]) -> list[int]:
    """Tiers by scipy's paired test."""
    order = sorted(range(len(values)), key=lambda place: values[place].mean())
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    p = dict(zip(pairs, holm([float(stats.ttest_rel(values[a], values[b]).pvalue) for a, b in pairs]), strict=True))
    found, first, tier = {order[0]: 1}, order[0], 1
    for place in order[1:]:
        if p[first, place] < 0.05:
            first, tier = place, tier + 1
        found[place] = tier
    return [found[place] for place in range(len(values))]


@settings(max_examples=40)
@given(st.lists(st.floats(10, 40), min_size=1, max_size=7), st.floats(0.1, 5), st.integers(0, 1000))
def test_against_a_literal_form(means: list[float], spread: float, seed: int) -> None:
    values = leakages(means, spread, seed)
    assert tiers(values) == literal(values)


def test_equal_defenses_are_one_tier_in_19_of_20_families() -> None:
    split = sum(max(tiers(leakages([20.0] * 6, 1.0, seed))) > 1 for seed in range(400))
    assert split / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_a_copy_is_in_the_tier_of_its_original() -> None:
    values = leakages([12.0, 20.0, 30.0, 31.0], 0.5, 0)
    found = tiers([*values, *(value.copy() for value in values)])
    assert found[:4] == found[4:] and found[:3] == [1, 2, 3]


def test_two_seeds_separate_nothing() -> None:
    assert tiers([np.array([10.0, 10.1]), np.array([40.0, 40.1])]) == [1, 1]
    assert math.isnan(smallest_gap([np.array([10.0, 10.1]), np.array([40.0, 40.1])]))
    assert tiers([]) == [] and math.isnan(smallest_gap([np.zeros(5)]))


def test_the_smallest_gap_is_found_four_times_out_of_five() -> None:
    """Between two defenses, where no correction has to be passed."""
    spread = 1.0
    gap = float(np.median([smallest_gap(leakages([20.0, 20.0], spread, seed)) for seed in range(200)]))
    found = [tiers(leakages([20.0, 20.0 + gap], spread, 1000 + seed)) == [1, 2] for seed in range(400)]
    assert 0.7 < np.mean(found) < 0.9


def test_the_smallest_gap_passes_the_strictest_level_of_many_pairs() -> None:
    """One pair of twenty defenses' 190, at this gap and the median error: by scipy's paired test."""
    many = leakages([20.0] * 20, 1.0, 0)
    pairs = [(a, b) for i, a in enumerate(many) for b in many[i + 1 :]]
    error = float(np.median([stats.sem(b - a) for a, b in pairs]))
    draw, gap = np.random.default_rng(1), smallest_gap(many)
    differences = gap + error * math.sqrt(SEEDS) * draw.standard_normal((4000, SEEDS))
    found = stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05 / len(pairs)
    assert np.mean(found) == pytest.approx(0.8, abs=0.025)


def test_the_interval_is_students() -> None:
    values = np.array([20.0, 21.0, 19.5, 22.0, 20.5])
    one = mean_of(values)
    low, high = stats.t.interval(0.95, 4, values.mean(), stats.sem(values))
    assert (one.low, one.high) == pytest.approx((low, high))
