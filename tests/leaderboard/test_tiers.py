"""Tiers: chance separates nothing, true gaps are found, and copies stay together."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from leakbench.leaderboard.tiers import Level, interpolated, mean_of, smallest_gap, tiers
from leakbench.report.statistics import holm

SEEDS = 8


def leakages(means: list[float], spread: float, seed: int) -> list[np.ndarray]:
    """Means over the victims of each seed, which vary on their own and alike for all defenses."""
    draw = np.random.default_rng(seed)
    shared = 3 * draw.standard_normal(SEEDS)
    return [mean + shared + spread * draw.standard_normal(SEEDS) for mean in means]


def of_each(values: list[np.ndarray]) -> list[int]:
    """Tiers of single settings."""
    return tiers([Level.of(each) for each in values])


def gap_of(values: list[np.ndarray]) -> float:
    """The smallest gap of single settings."""
    return smallest_gap([Level.of(each) for each in values])


def literal(values: list[np.ndarray]) -> list[int]:
    """Tiers by scipy's paired test."""
    order = sorted(range(len(values)), key=lambda place: values[place].mean())
    pairs = [(a, b) for i, a in enumerate(order) for b in order[i + 1 :]]
    p = dict(zip(pairs, holm([float(stats.ttest_rel(values[a], values[b]).pvalue) for a, b in pairs]), strict=True))
    found, tier = {order[0]: 1}, 1
    for place in order[1:]:
        if any(p[other, place] < 0.05 for other in order if found.get(other) == tier):
            tier += 1
        found[place] = tier
    return [found[place] for place in range(len(values))]


@settings(max_examples=40)
@given(st.lists(st.floats(10, 40), min_size=1, max_size=7), st.floats(0.1, 5), st.integers(0, 1000))
def test_against_a_literal_form(means: list[float], spread: float, seed: int) -> None:
    values = leakages(means, spread, seed)
    assert of_each(values) == literal(values)


def test_equal_defenses_are_one_tier_in_19_of_20_families() -> None:
    split = sum(max(of_each(leakages([20.0] * 6, 1.0, seed))) > 1 for seed in range(400))
    assert split / 400 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_a_copy_is_in_the_tier_of_its_original() -> None:
    values = leakages([12.0, 20.0, 30.0, 31.0], 0.5, 0)
    found = of_each([*values, *(value.copy() for value in values)])
    assert found[:4] == found[4:] and found[:3] == [1, 2, 3]


def test_two_seeds_separate_nothing() -> None:
    assert of_each([np.array([10.0, 10.1]), np.array([40.0, 40.1])]) == [1, 1]
    assert math.isnan(gap_of([np.array([10.0, 10.1]), np.array([40.0, 40.1])]))
    assert of_each([]) == [] and math.isnan(gap_of([np.zeros(5)]))


def test_the_smallest_gap_is_found_four_times_out_of_five() -> None:
    """Between two defenses, where no correction has to be passed."""
    spread = 1.0
    gap = float(np.median([gap_of(leakages([20.0, 20.0], spread, seed)) for seed in range(200)]))
    found = [of_each(leakages([20.0, 20.0 + gap], spread, 1000 + seed)) == [1, 2] for seed in range(400)]
    assert 0.7 < np.mean(found) < 0.9


def test_the_smallest_gap_passes_the_strictest_level_of_many_pairs() -> None:
    """One pair of twenty defenses' 190, at this gap and the median error: by scipy's paired test."""
    many = leakages([20.0] * 20, 1.0, 0)
    pairs = [(a, b) for i, a in enumerate(many) for b in many[i + 1 :]]
    error = float(np.median([stats.sem(b - a) for a, b in pairs]))
    draw, gap = np.random.default_rng(1), gap_of(many)
    differences = gap + error * math.sqrt(SEEDS) * draw.standard_normal((4000, SEEDS))
    found = stats.ttest_1samp(differences, 0, axis=1).pvalue < 0.05 / len(pairs)
    assert np.mean(found) == pytest.approx(0.8, abs=0.025)


def swept(part: float, seed: int, *, slope: float = -2.0, noise: float = 0.002) -> Level:
    """A defense that leaks 20 dB at a loss of 0.02, between settings a loss of 0.01 apart; ``part``: of this step."""
    draw = np.random.default_rng(seed)
    victims, losses = draw.standard_normal(SEEDS), 0.02 + noise * draw.standard_normal(5)
    weak, strong = (20 + slope * offset + victims for offset in (-part, 1 - part))
    return interpolated(weak, losses - 0.01 * part, strong, losses + 0.01 * (1 - part), 0.02)


def test_steps_of_sweeps_separate_nothing() -> None:
    """Two sweeps through one point: as shown the second leaks 1.8 dB more, on the same victims without any noise."""
    first, second = swept(0.0, 7, noise=1e-6), swept(0.9, 7, noise=1e-6)
    assert of_each([first.shown, second.shown]) == [1, 2] and tiers([first, second]) == [1, 1]
    assert first.allowed == pytest.approx(second.allowed, abs=1e-2)


def test_a_gap_in_both_ways_is_found() -> None:
    low, high = swept(0.5, 7), swept(0.5, 7)
    high = high._replace(shown=high.shown + 5, allowed=high.allowed + 5)
    assert tiers([low, high]) == [1, 2]
    assert tiers([low, high._replace(allowed=low.allowed - 5)]) == [1, 1]  # the other way round


def test_losses_that_are_not_known_separate_nothing() -> None:
    exact, noisy = (swept(0.5, 7, slope=-5.0, noise=noise) for noise in (1e-6, 0.03))
    assert noisy.by_losses is not None and stats.sem(noisy.by_losses) > 3
    for level, expected in ((exact, [1, 2]), (noisy, [1, 1])):
        certain = Level.of(level.shown + 5)
        assert tiers([level, certain]) == expected
    other = Level.of(20 + np.random.default_rng(8).standard_normal(SEEDS))
    assert smallest_gap([noisy, other]) > smallest_gap([exact, other])


def test_errors_of_losses_are_those_of_trainings_drawn_again() -> None:
    """The spread of leakage at the allowed loss over new seeds of training, victims the same."""
    drawn = [swept(0.5, seed, noise=0.002) for seed in range(400)]
    means = [float(level.allowed.mean() - level.shown.mean()) for level in drawn]
    expected = math.sqrt(np.mean([stats.sem(level.by_losses) ** 2 for level in drawn]))
    assert np.std(means) == pytest.approx(expected, rel=0.1)


def test_training_that_diverges_has_no_other_side() -> None:
    losses, shown = np.full(5, 0.01), np.arange(8.0)
    level = interpolated(shown, losses, shown - 1, np.array([0.1, 0.1, math.inf, 0.1, 0.1]), 0.02)
    assert (level.allowed == shown).all() and level.by_losses is None


def test_the_interval_is_students() -> None:
    values = np.array([20.0, 21.0, 19.5, 22.0, 20.5])
    one = mean_of(values)
    low, high = stats.t.interval(0.95, 4, values.mean(), stats.sem(values))
    assert (one.low, one.high) == pytest.approx((low, high))
