"""Tiers: defenses in an order that evidence carries, whatever the steps of sweeps, and the gap that it could carry."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from leakbench.lazy import np
from leakbench.report.inference import LEVEL, POWER, Estimate, Jackknife
from leakbench.report.statistics import holm

if TYPE_CHECKING:
    from leakbench.report.inference import Array


def mean_of(by_seed: Array) -> Estimate:
    """The mean over seeds, each of which has victims of its own, ``[S]``."""
    jackknife = Jackknife(len(by_seed), 1)
    return jackknife.estimate(jackknife.mean(by_seed[:, None]))


class Level(NamedTuple):
    """Leakage of a defense, in the setting that is shown and at the allowed loss itself.

    Two defenses are compared in both ways: settings are steps of a sweep, and lose unequally.

    Attributes:
        shown: means over the victims of each seed, ``[S]``.
        allowed: the same, interpolated between the settings on either side of the allowed loss; those shown where
            there is no other side.
        by_losses: what the losses of each seed of training add to the mean of ``allowed``, ``[T]``, the same seeds for
            all; their mean is zero. None where it does not depend on losses.
    """

    shown: Array
    allowed: Array
    by_losses: Array | None = None

    @classmethod
    def of(cls, shown: Array) -> Level:
        """The level of a single setting."""
        return cls(shown, shown)

    @property
    def mean(self) -> float:
        """Over all victims, of the setting that is shown."""
        return float(self.shown.mean())


def interpolated(shown: Array, losses: Array, beyond: Array, losses_beyond: Array, allowed: float) -> Level:
    """The level of a defense whose settings, the one shown and the next, are on either side of the allowed loss.

    >>> interpolated(np.full(3, 20.0), np.array([0.0, 0.01]), np.full(3, 18.0), np.full(2, 0.03), 0.02).allowed
    array([18.8, 18.8, 18.8])

    Args:
        shown: means over the victims of each seed, ``[S]``.
        losses: of accuracy, of each seed of training, ``[T]``; their mean is at most ``allowed``.
        beyond: as ``shown``, of the next setting.
        losses_beyond: as ``losses``, ``[T]``; their mean is larger than ``allowed``.
        allowed: the loss.
    """
    span = float(losses_beyond.mean() - losses.mean())
    if not math.isfinite(span):  # training diverges there
        return Level.of(shown)
    part = (allowed - float(losses.mean())) / span
    between = (1 - part) * losses + part * losses_beyond
    slope = float(beyond.mean() - shown.mean()) / span
    return Level(shown, (1 - part) * shown + part * beyond, slope * (allowed - between))


def tiers(levels: Sequence[Level]) -> list[int]:
    """The tier of each defense, from 1 for the least leakage.

    In the order of their means, a tier ends where a defense leaks more than some defense of the tier, beyond chance, in
    the settings shown as well as at the allowed loss: by Student's tests of paired differences, two-sided at 5 %, after
    Holm's correction for all pairs. So no two defenses in one tier are told apart, and the first of a tier is told
    apart from one of the tier above; of other pairs in neighbouring tiers nothing is said.

    >>> noise = np.array([0.0, 0.3, -0.2, 0.1, -0.1, 0.2])
    >>> tiers([Level.of(each) for each in (20 + noise, 20.1 - noise, 30 + noise[::-1], 20 + noise)])
    [1, 1, 2, 1]

    Args:
        levels: of each defense, the same seeds for all.
    """
    order = sorted(range(len(levels)), key=lambda place: levels[place].mean)
    pairs = list(itertools.combinations(order, 2))
    p_values = dict(zip(pairs, holm([_p_value(levels[a], levels[b]) for a, b in pairs]), strict=True))
    tier_of, members, tier = [0] * len(levels), list[int](), 1
    for place in order:
        if any(p_values[member, place] < LEVEL for member in members):
            members, tier = [], tier + 1
        members.append(place)
        tier_of[place] = tier
    return tier_of


def tier_by_mean(mean: float, levels: Sequence[Level], tier_of: Sequence[int]) -> int:
    """The tier of a defense that makes none: the last whose first defense leaks no more. It is no test.

    >>> levels = [Level.of(np.full(3, mean)) for mean in (20.0, 21.0, 30.0)]
    >>> [tier_by_mean(mean, levels, [1, 1, 2]) for mean in (10.0, 25.0, 35.0)]
    [1, 1, 2]

    Args:
        mean: of what it leaks.
        levels: as of :func:`tiers`.
        tier_of: their tiers.
    """
    return max((tier for level, tier in zip(levels, tier_of, strict=True) if level.mean <= mean), default=1)


def _differences(first: Level, second: Level) -> tuple[Estimate, Estimate]:
    """By how much the second leaks more, as shown and at the allowed loss, whose error is also that of losses.

    Seeds of attacks and of training are not the same: their variances add up (Welch and Satterthwaite).
    """
    shown, allowed = mean_of(second.shown - first.shown), mean_of(second.allowed - first.allowed)
    none = np.zeros(1)
    losses = np.subtract(*(none if one.by_losses is None else one.by_losses for one in (second, first)))
    if not losses.any():
        return shown, allowed
    parts = [(one.error**2, one.freedom) for one in (allowed, mean_of(losses))]
    total = sum(variance for variance, _ in parts)
    freedom = total**2 / sum(variance**2 / freedom for variance, freedom in parts)
    return shown, replace(allowed, error=math.sqrt(total), freedom=freedom)


def _p_value(first: Level, second: Level) -> float:
    """Two-sided p-value of no difference in one of both ways; 1, which separates nothing, below three seeds."""
    both = _differences(first, second)
    sides = np.array([[one.p_above(0.0), one.p_below(0.0)] for one in both]).max(axis=0)  # NaN where one is
    return 1.0 if np.isnan(sides).any() else min(1.0, 2 * float(sides.min()))


def smallest_gap(levels: Sequence[Level]) -> float:
    """The difference of leakages that is told apart with a probability of 80 %, of two defenses as they usually vary.

    It has to pass the strictest level of Holm's correction. NaN with fewer than two defenses or three seeds.

    Args:
        levels: as of :func:`tiers`.
    """
    from scipy.optimize import brentq
    from scipy.special import nctdtr, stdtrit  # noncentral t, and Student's quantile

    pairs = list(itertools.combinations(levels, 2))
    if not pairs or len(levels[0].shown) < 3:
        return math.nan
    wider = [max(_differences(*pair), key=lambda one: one.error) for pair in pairs]
    freedom, error = (float(np.median(each)) for each in zip(*((one.freedom, one.error) for one in wider), strict=True))
    critical = float(stdtrit(freedom, 1 - LEVEL / 2 / len(pairs)))
    errors = brentq(lambda size: 1 - nctdtr(freedom, size, critical) - POWER, 0, 10 * critical)
    return float(errors) * error
