"""Rates of false decisions under the null: ``python -m benchmarks.false_decisions [--trials 2000]`` prints a table.

Effects of seed, batch and cell are drawn so that the effect of interest is exactly at its threshold; a decision in
either direction is then false. Of four ways to divide the variance (seeds alone, batches alone, cells alone, all
alike) the table shows the worst. The old rule decided when the percentile interval of a pigeonhole bootstrap left out
the threshold. A second table draws the effects of seeds from laws that are not normal, a third shows what testing an
extremum of several settings by its jackknife would do.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from leakbench.report.comparisons import all_within, difference, either, trend
from leakbench.report.evidence import Evidence, Series
from leakbench.report.findings import Part, decide
from leakbench.report.inference import Jackknife, weighted_means
from leakbench.report.statistics import dominance

Array = NDArray[np.float64]
Means = Callable[[Array], Array]

DESIGNS = [(2, 1), (2, 4), (3, 1), (3, 4), (5, 1), (5, 4), (8, 1), (8, 4)]
"""Seeds, and batches that all of them share; 1 where each seed has its own."""
DIVISIONS = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 1.0, 1.0)]
"""Variances of seed, batch and cell."""
POINTS = 4
STEPS = 40
SHARE = 0.9
"""Part of a curve's steps that lies below the other curve."""
GAP = 5.0
"""Between settings that are far apart, in standard deviations of one number."""
TESTS = 16
"""Trials of which a proportion is counted, per cell."""
RESAMPLES = 2000
"""Resamples of the old rule's bootstrap."""

LAWS: Mapping[str, Callable[[np.random.Generator, int], NDArray[np.float64]]] = {
    "normal": lambda random, n: random.standard_normal(n),
    "uniform": lambda random, n: random.uniform(-1, 1, n),
    "difference of two skewed": lambda random, n: random.standard_exponential(n) - random.standard_exponential(n),
    "heavy tails": lambda random, n: random.standard_t(3, n),
    "skewed": lambda random, n: random.standard_exponential(n) - 1,
}
"""Laws of a seed's effect, of mean zero; skewed ones are exponential."""
SEEDS = (3, 5, 8, 16)
ALIKE = (1, 2, 4, 9)
"""Numbers of settings without a difference."""

Design = tuple[int, int]


def drawn(random: np.random.Generator, design: Design, division: tuple[float, float, float], *more: int) -> Array:
    """Standard normal effects of seed, batch and cell that add up to unit variance, ``[..., S, K]``."""
    s, k = design
    scales = np.sqrt(np.array(division) / sum(division))
    parts = [random.standard_normal((*more, *shape)) for shape in ((s, 1), (1, k), (s, k))]
    total: Array = sum(scale * part for scale, part in zip(scales, parts, strict=True))
    return total


@dataclass(frozen=True)
class Effect:
    """A kind of effect whose truth is its threshold.

    Attributes:
        draw: numbers of a design and a division of the variance.
        statistic: from the means over seeds and batches of those numbers, resample by resample.
        threshold: the truth.
        parts: of the claim, where the suite compares its settings one by one; else the statistic is tested.
        ratio: whether it is a ratio minus 1.
        resolution: step between the values that the statistic can take.
    """

    draw: Callable[[np.random.Generator, Design, tuple[float, float, float]], Array]
    statistic: Callable[[Means, Array], Array]
    threshold: float = 0.0
    ratio: bool = False
    resolution: float = 0.0
    parts: Callable[[Array], Sequence[Part]] | None = None


def _series(values: Array) -> Series:
    """A metric of one setting per point, ``[points, S, K]``."""
    points, seeds = tuple(map(float, range(len(values)))), tuple(range(values.shape[1]))
    return Series("it", points, seeds, values)


def _trend(values: Array) -> list[Part]:
    return [trend(_series(values), "", "a point", rises=True)]


def _two_and_two(random: np.random.Generator, design: Design, division: tuple[float, float, float]) -> Array:
    """Two settings that are alike and :data:`GAP` below two others, ``[4, S, K]``."""
    levels = np.repeat([0.0, GAP], POINTS // 2)[:, None, None]
    return levels + drawn(random, design, division, POINTS)


def _range(mean: Means, values: Array) -> Array:
    means = mean(values)
    widest: Array = means.max(axis=1) - means.min(axis=1)
    return widest


def _within(values: Array) -> list[Part]:
    settings = {f"{point:g}": one for point, one in _series(values).by_point()}
    return list(all_within(settings, GAP, "", "of it"))


def _rivals(random: np.random.Generator, design: Design, division: tuple[float, float, float]) -> Array:
    """Settings of one defense that are alike, and as many of another, of which one is as good, ``[8, S, K]``."""
    levels = np.array([0.0] * (POINTS + 1) + [-GAP] * (POINTS - 1))[:, None, None]
    return levels + drawn(random, design, division, 2 * POINTS)


def _best(mean: Means, values: Array) -> Array:
    means = mean(values)
    lead: Array = means[:, :POINTS].max(axis=1) - means[:, POINTS:].max(axis=1)
    return lead


def _as_good(values: Array) -> list[Part]:
    settings = [one for _, one in _series(values).by_point()]
    return [either([difference(one, rival, "", "") for one in settings[:POINTS]], "") for rival in settings[POINTS:]]


def _area(mean: Means, values: Array) -> Array:
    """Difference of the areas below the settings of two defenses, from ``[2 defenses, 2, points, S, K]``."""
    means = np.maximum(mean(values), 0.0)
    areas = []
    for width, height in zip(means[:, :, 0].swapaxes(0, 1), means[:, :, 1].swapaxes(0, 1), strict=True):
        order = np.argsort(-width, axis=1)
        width, height = np.take_along_axis(width, order, 1), np.take_along_axis(height, order, 1)
        steps = -np.diff(width, axis=1, append=0.0)
        areas.append((steps * np.maximum.accumulate(height, axis=1)).sum(axis=1))
    difference_of_areas: Array = areas[0] - areas[1]
    return difference_of_areas


def _planes(random: np.random.Generator, design: Design, division: tuple[float, float, float]) -> Array:
    """Settings of two defenses that are alike, the one number falling where the other rises."""
    line = np.linspace(0.2, 0.8, POINTS)
    return np.stack([line, line[::-1]])[:, :, None, None] + 0.1 * drawn(random, design, division, 2, 2, POINTS)


def _proportions(random: np.random.Generator, design: Design, division: tuple[float, float, float]) -> Array:
    from scipy.special import ndtr

    chance = ndtr(0.5 * drawn(random, design, division))  # one half on average
    proportions: Array = random.binomial(TESTS, chance) / TESTS
    return proportions


def _curves(random: np.random.Generator, design: Design, division: tuple[float, float, float]) -> Array:
    """Differences of two curves, ``[steps, S, K]``, that cross between the steps where the share is :data:`SHARE`."""
    slope = ((SHARE * STEPS - 0.5 - np.arange(STEPS)) / STEPS)[:, None, None]
    return slope + 0.1 * drawn(random, design, division) + 0.1 * drawn(random, design, division, STEPS)


def _share(mean: Means, curves: Array) -> Array:
    share: Array = (mean(curves) > 0).mean(axis=1)
    return share


def _trade_offs(random: np.random.Generator, design: Design, division: tuple[float, float, float]) -> Array:
    """Errors and losses of two defenses that are alike, ``[2 defenses, 2, points, S, K]``."""
    line = np.linspace(0.0, 1.0, POINTS)
    truth = np.stack([line, line**2])[:, :, None, None]
    return truth + 0.1 * drawn(random, design, division, 2, 2, POINTS)


def _dominance(mean: Means, values: Array) -> Array:
    means = mean(values)
    return dominance((means[:, 0, 0], means[:, 0, 1]), (means[:, 1, 0], means[:, 1, 1]))


EFFECTS: Mapping[str, Effect] = {
    "paired difference": Effect(drawn, lambda mean, values: mean(values)),
    "ratio": Effect(
        lambda *design: np.exp(0.3 * drawn(*design, 2)), lambda mean, values: _ratio(mean(values)), ratio=True
    ),
    "proportion": Effect(_proportions, lambda mean, values: mean(values), threshold=0.5),
    "dominance": Effect(_trade_offs, _dominance),
    "share of a curve": Effect(_curves, _share, threshold=SHARE, resolution=1 / STEPS),
    "trend": Effect(
        lambda *design: drawn(*design, POINTS), lambda mean, values: _old_trend(mean(values)), parts=_trend
    ),
    "extremum": Effect(_two_and_two, _range, threshold=GAP, parts=_within),
    "best setting": Effect(_rivals, _best, parts=_as_good),
    "area": Effect(_planes, _area),
}


def _ratio(means: Array) -> Array:
    ratio: Array = means[:, 0] / means[:, 1] - 1
    return ratio


def _old_trend(means: Array) -> Array:
    from leakbench.report.inference import rank_correlation

    return rank_correlation(means)


def decided_before(effect: Effect, values: Array) -> bool:
    """Whether the old rule decided: the percentile interval leaves out the threshold.

    Seeds and batches are drawn with replacement, independently of each other (Owen 2007, *The pigeonhole bootstrap*).
    """
    random = np.random.default_rng(0)
    draws = [random.multinomial(n, np.full(n, 1 / n), size=RESAMPLES).astype(float) for n in values.shape[-2:]]
    statistic = effect.statistic(lambda sample: weighted_means(sample, *draws), values)
    known = statistic[~np.isnan(statistic)]
    if len(known) < RESAMPLES / 2:
        return False
    low, high = np.quantile(known, [0.025, 0.975])
    return bool(low > effect.threshold or high < effect.threshold)


def decided_now(effect: Effect, values: Array) -> bool:
    """Whether the rule of the suite decides."""
    s, k = values.shape[-2:]
    if effect.parts is not None:
        return decide(Evidence({}), effect.parts(values)).verdict != "inconclusive"
    engine = Jackknife(s, k)
    statistic = effect.statistic(engine.mean, values)
    estimate = engine.estimate(statistic, ratio=effect.ratio, resolution=effect.resolution)
    return Part("", estimate, "", at_least=effect.threshold).verdict != "inconclusive"


Rule = Callable[[Effect, Array], bool]
"""Whether it decides on an effect."""


def rates(
    effect: Effect, design: Design, trials: int, rules: Sequence[Rule] = (decided_before, decided_now), seed: int = 0
) -> tuple[float, ...]:
    """Worst rates of false decisions over :data:`DIVISIONS`, by the old rule and by the new, or by those given.

    Without batches that seeds share, divisions with a variance of batches are left out: each seed has its own.
    """
    worst = np.zeros(len(rules))
    for division in DIVISIONS:
        if design[1] == 1 and division[1]:
            continue
        random = np.random.default_rng(seed)
        drawings = [effect.draw(random, design, division) for _ in range(trials)]
        decided = [[rule(effect, values) for rule in rules] for values in drawings]
        worst = np.maximum(worst, np.mean(decided, axis=0))
    return tuple(map(float, worst))


def table(trials: int, effects: Sequence[str]) -> Iterator[dict[str, str]]:
    """A row per design, with the rates of kinds of effect, old and new."""
    for seeds, batches in DESIGNS:
        row = {"seeds": str(seeds), "shared batches": str(batches) if batches > 1 else "none"}
        for name in effects:
            before, now = rates(EFFECTS[name], (seeds, batches), trials)
            row[name] = f"{before:.1%} → {now:.1%}"
        yield row


def table_of_laws(trials: int) -> Iterator[dict[str, str]]:
    """A row per number of seeds, with the rate under every law of their effects."""
    for seeds in SEEDS:
        yield {"seeds": str(seeds), **{law: f"{rate_under(law, seeds, trials):.1%}" for law in LAWS}}


def rate_under(law: str, seeds: int, trials: int) -> float:
    """Rate of false decisions of a paired difference whose effects, one of each seed, follow one of :data:`LAWS`."""
    random, effect = np.random.default_rng(0), EFFECTS["paired difference"]
    return float(np.mean([decided_now(effect, LAWS[law](random, seeds)[:, None]) for _ in range(trials)]))


def table_of_extrema(trials: int) -> Iterator[dict[str, str]]:
    """A row per number of settings that are alike: rates for the least of them, by its jackknife and one by one."""
    for settings in ALIKE:
        row = {"settings alike": str(settings)}
        for seeds in SEEDS:
            jackknife, apart = rates_of_the_least(settings, seeds, trials)
            row[f"{seeds} seeds"] = f"{jackknife:.1%} → {apart:.1%}"
        yield row


def rates_of_the_least(settings: int, seeds: int, trials: int) -> tuple[float, float]:
    """Rates of false decisions on "all settings lie above the threshold", where the truth of all of them is on it."""
    random, engine = np.random.default_rng(0), Jackknife(seeds, 1)
    decided = np.zeros(2)
    for _ in range(trials):
        means = engine.mean(random.standard_normal((settings, seeds, 1)))
        least = [Part("", engine.estimate(means.min(axis=1)), "", at_least=0.0)]
        each = [Part("", engine.estimate(mean), "", at_least=0.0) for mean in means.T]
        decided += [decide(Evidence({}), parts).verdict != "inconclusive" for parts in (least, each)]
    return float(decided[0]) / trials, float(decided[1]) / trials


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2000, help="draws per kind of effect, design and division")
    parser.add_argument("--effects", nargs="*", choices=EFFECTS, default=[*EFFECTS], help="kinds of effect; all")
    arguments = parser.parse_args()
    trials = arguments.trials
    if "paired difference" in arguments.effects:
        print(pd.DataFrame(table_of_laws(trials)).to_markdown(index=False), end="\n\n")
    if "extremum" in arguments.effects:
        print(pd.DataFrame(table_of_extrema(trials)).to_markdown(index=False), end="\n\n")
    print(pd.DataFrame(table(trials, arguments.effects)).to_markdown(index=False))
    error = math.sqrt(0.05 * 0.95 / trials)
    print(f"\n{trials} draws per rate and division; a rate of 5 % has a standard error of {error:.1%}.")


if __name__ == "__main__":
    main()
