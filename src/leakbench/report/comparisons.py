"""Parts of claims: ratios, differences, levels and trends, each with its meaning in words."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from leakbench.lazy import np
from leakbench.report.evidence import NotRun, Series, jackknife_of, same_points, same_seeds
from leakbench.report.findings import Part, most
from leakbench.report.inference import FEWEST_SEEDS, Estimate, rank_correlation, seeds_for_a_trend, trend_p_values
from leakbench.report.units import known_means
from leakbench.report.wording import numbers

if TYPE_CHECKING:
    from leakbench.report.inference import Array


def relative(a: Series, b: Series, name: str, at_least: float = -math.inf, at_most: float = math.inf) -> Part:
    """The mean of ``a`` over that of ``b``, minus 1, each of one point; both from the same seeds and batches."""
    a, b = same_seeds(a, b)
    jackknife = jackknife_of(a, b)
    ours, theirs = _known_in_both(a.values[0], b.values[0])
    estimate = jackknife.estimate(jackknife.mean(ours) / jackknife.mean(theirs) - 1, ratio=True)
    return Part(name, estimate, f"{' over '.join(_names(a, b))}, minus 1", at_least, at_most)


def difference(a: Series, b: Series, name: str, unit: str, at_least: float = 0.0) -> Part:
    """The mean difference of ``a`` and ``b``, each of one point, paired by seed and batch."""
    a, b = same_seeds(a, b)
    jackknife = jackknife_of(a, b)
    estimate = jackknife.estimate(jackknife.mean(a.values[0] - b.values[0]))
    return Part(name, estimate, f"{' minus '.join(_names(a, b))} ({unit})", at_least)


def _names(a: Series, b: Series) -> tuple[str, str]:
    """Names of two series of one point each, which the points tell apart where nothing else does."""
    if a.name != b.name:
        return a.name, b.name
    return f"{a.name} at {a.points[0]:g}", f"{b.name} at {b.points[0]:g}"


def level(series: Series, name: str, unit: str, at_least: float = -math.inf, at_most: float = math.inf) -> Part:
    """The mean of a series of one point.

    >>> psnr = Series("psnr of none", (0.0,), (0, 1, 2), np.array([[[21.0], [22.0], [23.0]]]))
    >>> level(psnr, "cifar10", "dB", at_least=18.0).verdict
    'reproduced'
    """
    (series,) = same_seeds(series)
    jackknife = jackknife_of(series)
    estimate = jackknife.estimate(jackknife.mean(series.values[0]))
    return Part(name, estimate, f"{series.name} ({unit})", at_least, at_most)


def either(parts: Sequence[Part], name: str) -> Part:
    """Whether one comparison or more of several holds, as where the best of several settings is meant.

    The best one is not picked before it is tested, since a pick among settings that hardly differ flatters: it holds if
    one of them does at Bonferroni's level, and fails if all of them do. The effect is that of the one which holds best.

    Args:
        parts: of which one has to hold.
        name: as in :class:`Part`.
    """
    best = min(parts, key=lambda part: (not part.inside, part.p_holds if part.p_holds >= 0 else math.inf))
    holding = [part.p_holds for part in parts if part.p_holds >= 0]
    failing = [part.p_fails for part in parts]
    tested = (
        min(1.0, len(parts) * min(holding)) if holding else math.nan,
        math.nan if any(map(math.isnan, failing)) else max(failing),
    )

    def needed(level: float) -> int | None:
        return best.seeds_needed(level / len(parts) if best.inside else level)

    return replace(best, name=name, tested=tested, needed=needed)


def all_within(series: Mapping[str, Series], most: float, where: str, unit: str = "") -> Iterator[Part]:
    """Whether several series of one point differ by no more than some amount from each other: a part for every two.

    Not their largest minus their smallest, which is too large on average where several are alike.

    Args:
        series: by their names.
        most: largest difference, or, without a unit, largest ratio minus 1.
        where: begins the parts' names.
        unit: of the difference.
    """
    for (one, a), (other, b) in itertools.combinations(series.items(), 2):
        name = f"{where}{one} and {other}"
        if unit:
            yield replace(difference(a, b, name, unit, at_least=-most), at_most=most)
        else:
            yield relative(a, b, name, at_least=1 / (1 + most) - 1, at_most=most)


def _known_in_both(a: Array, b: Array) -> tuple[Array, Array]:
    known = np.isfinite(a) & np.isfinite(b)
    return np.where(known, a, np.nan), np.where(known, b, np.nan)


def certain(value: float, name: str, meaning: str, at_least: float = -math.inf, at_most: float = math.inf) -> Part:
    """A number that no seed changes, such as a count: its interval is itself."""
    return Part(name, Estimate.certain(value), meaning, at_least, at_most)


def at_each(a: Series, b: Series) -> list[tuple[float, Series, Series]]:
    """Both at every point that they share."""
    a, b = same_points(a, b)
    return [(point, a.at([point]), b.at([point])) for point in a.points]


def trend(series: Series, name: str, against: str, *, rises: bool) -> Part:
    """Whether a metric rises (or falls) over the points of its sweep, by ranks and without a clear reversal.

    It does if Page's test of ranks within seeds, and within batches where seeds share them, says so, and no step goes
    against the trend by more than one standard error, which is all that "non-decreasing" allows. It does not if the
    test says the opposite, or a step goes against the trend significantly, at Bonferroni's level. The note lists every
    step against the trend. Of two points their difference is tested. Exact numbers rise if none of their steps goes
    against the trend.

    Args:
        series: the metric over the values of one swept parameter.
        name: where, such as ``cifar10 with lenet5``.
        against: what is swept.
        rises: whether it should rise.

    Raises:
        NotRun: there is one point alone.
    """
    if len(series.points) < 2:
        raise NotRun(f"a trend needs two values of {against}; the grid of {series.name} has {numbers(series.points)}")
    (series,) = same_seeds(series)
    jackknife = jackknife_of(series)
    values = series.values if rises else -series.values
    means = jackknife.mean(values)
    steps = [jackknife.estimate(step) for step in np.diff(means, axis=1).T]
    reversals = [i for i, step in enumerate(steps) if step.value < 0]
    listed = [f"{series.points[i]:g} and {series.points[i + 1]:g} ({_in_errors(steps[i])})" for i in reversals]
    note = f"{'falls' if rises else 'rises'} between {', '.join(listed)}" if listed else ""
    if len(steps) == 1:
        meaning = f"change of {series.name} with {against}" + ("" if rises else ", sign turned")
        return Part(name, steps[0], meaning, at_least=0.0, note=note)
    if jackknife.exact:
        meaning = f"least step of {series.name} along its trend with {against}"
        return Part(name, _smallest(steps), meaning, at_least=0.0, note=note)
    blocks = [known_means(values)[..., 0].T]
    if jackknife.batches > 1:
        blocks.append(known_means(values.swapaxes(1, 2))[..., 0].T)
    rise, fall = (max(sides) for sides in zip(*map(trend_p_values, blocks), strict=True))
    clear = any(steps[i].value < -steps[i].error for i in reversals)
    against_it = min([fall, *(step.p_below(0.0) for step in steps)]) * (1 + len(steps))
    complete = int(np.isfinite(blocks[0]).all(axis=1).sum())

    correlation = float(rank_correlation(means[0]))

    def needed(alpha: float) -> int | None:
        return _seeds_needed(blocks[0], steps, correlation >= 0, alpha)

    return Part(
        name,
        Estimate(correlation, seeds=jackknife.seeds),
        f"rank correlation of {series.name} with {against}" + ("" if rises else ", sign turned"),
        at_least=0.0,
        note=note,
        tested=(math.nan, math.nan) if complete < FEWEST_SEEDS else (1.0 if clear else rise, min(1.0, against_it)),
        needed=needed,
    )


def _seeds_needed(blocks: Array, steps: list[Estimate], rises: bool, alpha: float) -> int | None:
    """Seeds that decide a trend of the size seen: see :func:`trend`.

    It is reproduced when Page's test shows it, unless the smallest step goes against it: then that has to be told from
    none, too. It is contradicted as soon as Page's test or one of the steps shows the opposite.

    Args:
        blocks: ``[seeds, points]``, turned so that the trend should rise.
        steps: between neighbouring points.
        rises: whether it does, on the whole.
        alpha: one-sided level.
    """
    strict = alpha / (1 + len(steps))
    against = [step.seeds_needed(0.0, strict) for step in steps if step.value < 0]
    if rises:
        smallest = [_smallest(steps).seeds_needed(0.0, strict)] if against else []
        return most([seeds_for_a_trend(blocks, alpha), *smallest])
    return min((each for each in [seeds_for_a_trend(blocks, strict), *against] if each is not None), default=None)


def _smallest(steps: list[Estimate]) -> Estimate:
    return min(steps, key=lambda step: step.value)


def _in_errors(step: Estimate) -> str:
    """Size of a step in its standard errors, of an exact one its size."""
    if step.is_certain:
        return f"by {abs(step.value):.3g}"
    return f"{abs(step.value) / step.error:.1f} standard errors" if step.error > 0 else "in every seed alike"
