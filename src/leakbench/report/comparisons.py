"""Parts of claims: ratios, differences, levels and trends, each with its meaning in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from leakbench.lazy import np
from leakbench.report.evidence import NotRun, Series, bootstrap, same_points, same_seeds
from leakbench.report.findings import Part
from leakbench.report.statistics import Estimate
from leakbench.report.wording import numbers

if TYPE_CHECKING:
    from leakbench.report.statistics import Array


def relative(a: Series, b: Series, name: str, at_least: float = -math.inf, at_most: float = math.inf) -> Part:
    """The mean of ``a`` over that of ``b``, minus 1, each of one point; both from the same seeds and batches."""
    a, b = same_seeds(a, b)
    resamples = bootstrap(a, b)
    ours, theirs = _known_in_both(a.values[0], b.values[0])
    ratio = resamples.mean(ours) / resamples.mean(theirs) - 1
    return Part(name, resamples.estimate(ratio), f"{a.name} over {b.name}, minus 1", at_least, at_most)


def difference(a: Series, b: Series, name: str, unit: str, at_least: float = 0.0) -> Part:
    """The mean difference of ``a`` and ``b``, each of one point, paired by seed and batch."""
    a, b = same_seeds(a, b)
    resamples = bootstrap(a, b)
    estimate = resamples.estimate(resamples.mean(a.values[0] - b.values[0]))
    return Part(name, estimate, f"{a.name} minus {b.name} ({unit})", at_least)


def level(series: Series, name: str, unit: str, at_least: float = -math.inf, at_most: float = math.inf) -> Part:
    """The mean of a series of one point.

    >>> psnr = Series("psnr of none", (0.0,), (0, 1, 2), np.array([[[21.0], [22.0], [23.0]]]))
    >>> part = level(psnr, "cifar10", "dB", at_least=20.0)
    >>> part.estimate.value, part.verdict
    (22.0, 'reproduced')
    """
    resamples = bootstrap(series)
    estimate = resamples.estimate(resamples.mean(series.values[0]))
    return Part(name, estimate, f"{series.name} ({unit})", at_least, at_most)


def _known_in_both(a: Array, b: Array) -> tuple[Array, Array]:
    known = np.isfinite(a) & np.isfinite(b)
    return np.where(known, a, np.nan), np.where(known, b, np.nan)


def certain(value: float, name: str, meaning: str, at_least: float = -math.inf, at_most: float = math.inf) -> Part:
    """A number that no seed changes, such as a count: its interval is itself."""
    return Part(name, Estimate(value, value, value), meaning, at_least, at_most)


def at_each(a: Series, b: Series) -> list[tuple[float, Series, Series]]:
    """Both at every point that they share."""
    a, b = same_points(a, b)
    return [(point, a.at([point]), b.at([point])) for point in a.points]


def trend(series: Series, name: str, against: str, *, rises: bool) -> Part:
    """Whether a metric rises (or falls) over the points of its sweep, by Spearman's rank correlation.

    The note lists the steps against the trend that are larger than one standard error of the difference, which is what
    "non-decreasing" would allow.

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
    resamples = bootstrap(series)
    means = resamples.mean(series.values) * (1 if rises else -1)
    steps = np.diff(means, axis=1)
    wrong = np.flatnonzero(steps[0] < -np.nanstd(steps[1:], axis=0))
    between = [f"{series.points[i]:g} and {series.points[i + 1]:g}" for i in wrong]
    note = f"{'falls' if rises else 'rises'} between {', '.join(between)}" if between else ""
    meaning = f"rank correlation of {series.name} with {against}" + ("" if rises else ", sign turned")
    return Part(name, resamples.estimate(rank_correlation(means)), meaning, at_least=0.0, note=note)


def rank_correlation(values: Array) -> Array:
    """Spearman's correlation of ``[..., P]`` values with their order, ``[...]``; NaN where all equal or one is NaN."""
    known = np.isfinite(values).all(axis=-1)
    less = (values[..., None, :] < values[..., :, None]).sum(axis=-1)
    equal = (values[..., None, :] == values[..., :, None]).sum(axis=-1)
    ranks = less + (equal + 1) / 2
    ranks = ranks - ranks.mean(axis=-1, keepdims=True)
    order = np.arange(values.shape[-1]) - (values.shape[-1] - 1) / 2
    norm = np.sqrt((ranks**2).sum(axis=-1) * (order**2).sum())
    defined = known & (norm > 0)
    correlation: Array = np.divide(ranks @ order, norm, out=np.full(norm.shape, np.nan), where=defined)
    return correlation
