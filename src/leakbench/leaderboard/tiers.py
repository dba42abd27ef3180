"""Tiers: defenses in an order that evidence carries, and the gap that it could carry."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakbench.lazy import np
from leakbench.report.inference import LEVEL, POWER, Estimate, Jackknife
from leakbench.report.statistics import holm

if TYPE_CHECKING:
    from leakbench.report.inference import Array


def mean_of(by_seed: Array) -> Estimate:
    """The mean over seeds, each of which has victims of its own, ``[S]``."""
    jackknife = Jackknife(len(by_seed), 1)
    return jackknife.estimate(jackknife.mean(by_seed[:, None]))


def tiers(leakages: Sequence[Array]) -> list[int]:
    """The tier of each defense, from 1 for the least leakage.

    In the order of their means, a tier ends where a defense leaks more than the first of the tier, beyond chance: by
    Student's test of paired differences, two-sided at 5 %, after Holm's correction for all pairs. So the first of a
    tier is told apart from the first of the tier above; of other pairs in one tier, or in neighbouring ones, nothing is
    said.

    >>> noise = np.array([0.0, 0.3, -0.2, 0.1, -0.1, 0.2])
    >>> tiers([20 + noise, 20.1 - noise, 30 + noise[::-1], 20 + noise])
    [1, 1, 2, 1]

    Args:
        leakages: of each defense, means over the victims of each seed, ``[S]``, the same seeds for all.
    """
    order = sorted(range(len(leakages)), key=lambda place: float(leakages[place].mean()))
    pairs = list(itertools.combinations(order, 2))
    p_values = dict(zip(pairs, holm([_p_value(leakages[a], leakages[b]) for a, b in pairs]), strict=True))
    placed, first, tier = [0] * len(leakages), order[0] if order else 0, 1
    for place in order:
        if place != first and p_values[first, place] < LEVEL:
            first, tier = place, tier + 1
        placed[place] = tier
    return placed


def firsts_of(leakages: Sequence[Array], tier_of: Sequence[int]) -> list[Array]:
    """The leakages of the first defense of each tier, ``[S]``, in order.

    Args:
        leakages: as of :func:`tiers`.
        tier_of: their tiers.
    """
    firsts: dict[int, Array] = {}
    for place in sorted(range(len(leakages)), key=lambda place: float(leakages[place].mean())):
        firsts.setdefault(tier_of[place], leakages[place])
    return list(firsts.values())


def placed(leakage: Array, firsts: Sequence[Array]) -> int:
    """The tier of a defense that makes none: it leaks more than the first of every tier above, beyond chance.

    >>> noise = np.array([0.0, 0.3, -0.2, 0.1, -0.1, 0.2])
    >>> [placed(level - noise, [20 + noise, 30 + noise[::-1]]) for level in (10, 20, 25, 35)]
    [1, 1, 2, 3]

    Args:
        leakage: means over the victims of each seed, ``[S]``.
        firsts: of :func:`firsts_of`; Holm's correction is for these comparisons.
    """
    p_values = holm([_p_value(first, leakage) for first in firsts])
    for tier, (first, p_value) in enumerate(zip(firsts, p_values, strict=True), 1):
        if p_value >= LEVEL or leakage.mean() < first.mean():
            return tier
    return len(firsts) + 1


def _p_value(first: Array, second: Array) -> float:
    """Two-sided p-value of no difference; 1, which separates nothing, for fewer than three seeds."""
    difference = mean_of(second - first)
    return min(1.0, 2 * min(difference.p_above(0.0), difference.p_below(0.0)))


def smallest_gap(leakages: Sequence[Array]) -> float:
    """The difference of leakages that is told apart with a probability of 80 %, of two defenses as they usually vary.

    It has to pass the strictest level of Holm's correction. NaN with fewer than two defenses or three seeds.

    Args:
        leakages: as of :func:`tiers`.
    """
    from scipy.optimize import brentq
    from scipy.special import nctdtr, stdtrit  # noncentral t, and Student's quantile

    pairs = list(itertools.combinations(leakages, 2))
    if not pairs or len(leakages[0]) < 3:
        return math.nan
    differences = [mean_of(second - first) for first, second in pairs]
    freedom, error = differences[0].freedom, float(np.median([one.error for one in differences]))
    critical = float(stdtrit(freedom, 1 - LEVEL / 2 / len(pairs)))
    errors = brentq(lambda size: 1 - nctdtr(freedom, size, critical) - POWER, 0, 10 * critical)
    return float(errors) * error
