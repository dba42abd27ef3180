"""Means over seeds with intervals, p-values of many claims, and the distance of two trade-off curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leakbench.lazy import np, pd

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Counts = npt.NDArray[np.intp]

CONFIDENCE = 0.95


def over_seeds(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Mean of ``value`` with a 95 % t-interval over seeds, for every group of the columns ``by``.

    Of two seeds the interval is their range: a t-interval would be nine times as wide, and hide the figure.

    The images or victims of one seed share a model, so they are averaged first and the seeds are the replicates.
    NaN values (diverged trials) are left out of a seed's mean and counted.

    Returns:
        The columns ``by`` and ``mean``, ``low``, ``high`` (equal to the mean when there is one seed), ``seeds`` and
        ``lost`` (the number of values that were NaN).
    """
    from scipy.special import stdtrit  # Student's quantile; importing scipy.stats takes a second

    values = frame.groupby([*by, "seed"], dropna=False)["value"]
    of_seed = values.mean()
    lost = (values.size() - values.count()).to_numpy()
    # Groups are runs of the sorted index: to group by its columns once more would take three times as long.
    columns = of_seed.droplevel("seed").index
    first = ~columns.duplicated()
    runs = np.cumsum(first)
    means = of_seed.reset_index(drop=True).groupby(runs)
    mean, low, high, seeds = (each.to_numpy() for each in (means.mean(), means.min(), means.max(), means.count()))
    half = stdtrit(np.maximum(seeds - 1, 1), 0.5 + CONFIDENCE / 2) * means.std().to_numpy() / np.sqrt(seeds)
    return (
        columns[first]
        .to_frame(index=False)
        .assign(
            mean=mean,
            low=np.where(seeds > 2, mean - half, low),
            high=np.where(seeds > 2, mean + half, high),
            seeds=seeds,
            lost=np.bincount(runs - 1, lost, minlength=first.sum()).astype(int),
        )
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm 1979): rejecting those below 5 % errs once in 5 % of such families.

    Args:
        p_values: in [0, 1]; NaN, for no test, stays NaN.

    Returns:
        In the same order; each in [0, 1].
    """
    tested = [i for i in np.argsort(p_values, kind="stable") if not np.isnan(p_values[i])]
    adjusted, least = [float("nan")] * len(p_values), 0.0
    for rank, i in enumerate(tested):
        least = max(least, min(1.0, (len(tested) - rank) * p_values[i]))
        adjusted[i] = least
    return adjusted


def dominance(baseline: tuple[Array, Array], optimal: tuple[Array, Array]) -> Array:
    """Mean reduction of loss of the second defense at equal error, over the errors that both reach.

    Each defense's loss is a function of the error: points sorted by error, joined by lines. The result is the mean
    over the common range of errors of ``loss(baseline) - loss(optimal)``, exactly.

    Args:
        baseline: errors and losses, each ``[..., P]``; a point of which one is NaN is left out.
        optimal: the same with any number of points.

    Returns:
        ``[...]``; NaN where there is no common range.
    """
    curves = [_sorted_curve(*(np.atleast_2d(part) for part in curve)) for curve in (baseline, optimal)]
    low = np.maximum(*(x[:, 0] for x, _, _ in curves))
    high = np.minimum(*(np.take_along_axis(x, n[:, None] - 1, 1)[:, 0] for x, _, n in curves))
    result = np.full(len(low), np.nan)
    rows = np.flatnonzero((low < high) & (curves[0][2] > 1) & (curves[1][2] > 1))
    if len(rows):
        curves = [(x[rows], y[rows], n[rows]) for x, y, n in curves]
        low, high = low[rows, None], high[rows, None]
        # The difference is linear between the points of both, so that the trapezoidal rule is exact.
        knots = np.sort(np.clip(np.concatenate([x for x, _, _ in curves], axis=1), low, high), axis=1)
        difference = _interpolated(*curves[0], knots) - _interpolated(*curves[1], knots)
        area = (np.diff(knots, axis=1) * (difference[:, 1:] + difference[:, :-1]) / 2).sum(axis=1)
        result[rows] = area / (high - low)[:, 0]
    return result.reshape(np.shape(baseline[0])[:-1])


def _sorted_curve(x: Array, y: Array) -> tuple[Array, Array, Counts]:
    """Points ``[N, P]`` by ascending ``x``, unknown ones last with ``x`` infinite, and the number of known ones."""
    known = np.isfinite(x) & np.isfinite(y)
    x = np.where(known, x, np.inf)
    order = np.argsort(x, axis=1, kind="stable")
    return np.take_along_axis(x, order, 1), np.take_along_axis(np.where(known, y, 0.0), order, 1), known.sum(axis=1)


def _interpolated(x: Array, y: Array, known: Counts, at: Array) -> Array:
    """The line through the first ``known`` points, at ``[N, Q]`` places within their range."""
    left = (x[:, None, :] <= at[:, :, None]).sum(axis=2) - 1
    left = np.clip(left, 0, known[:, None] - 2)
    x0, x1, y0, y1 = (np.take_along_axis(part, left + step, 1) for part in (x, y) for step in (0, 1))
    part = np.divide(at - x0, x1 - x0, out=np.zeros_like(at), where=x1 > x0)
    interpolated: Array = y0 + part * (y1 - y0)
    return interpolated
