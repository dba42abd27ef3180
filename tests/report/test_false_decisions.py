"""Effects whose truth is their threshold are decided in 5 % of the cases, whatever their kind: a small simulation."""

from __future__ import annotations

import math

import pytest
from benchmarks.false_decisions import EFFECTS, decided_now, rate_under, rates, rates_of_the_least

TRIALS = 250
ERROR = math.sqrt(0.05 * 0.95 / TRIALS)


@pytest.mark.parametrize("design", [(3, 1), (5, 4), (8, 1)])
@pytest.mark.parametrize("name", EFFECTS)
def test_rates_of_false_decisions(name: str, design: tuple[int, int]) -> None:
    """The worst of several divisions of the variance, by chance three standard errors above the level at most."""
    (now,) = rates(EFFECTS[name], design, TRIALS, [decided_now])
    assert now <= 0.05 + 3 * ERROR


@pytest.mark.parametrize("law", ["normal", "difference of two skewed", "heavy tails"])
def test_symmetric_laws_of_seeds(law: str) -> None:
    """Differences of what is alike are symmetric, however skewed each is."""
    assert rate_under(law, 3, 1000) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_the_least_of_settings_that_are_alike() -> None:
    """Its jackknife calls one in five true claims false; one by one they are decided at the level."""
    jackknife, one_by_one = rates_of_the_least(settings=9, seeds=8, trials=500)
    assert jackknife > 0.15 and one_by_one <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 500)


@pytest.mark.parametrize("name", EFFECTS)
def test_two_seeds_decided_half_of_all_truths(name: str) -> None:
    """By the percentile interval that the suite once used; now they decide nothing."""
    before, now = rates(EFFECTS[name], (2, 1), TRIALS)
    assert before > 0.3 and now == 0.0
