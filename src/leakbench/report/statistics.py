"""Statistics with intervals: over seeds, over seeds and attacked batches, of two defenses, and of many claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from leakbench.lazy import np, pd
from leakbench.report.inference import weighted_means

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Counts = npt.NDArray[np.intp]

CONFIDENCE = 0.95
RESAMPLES = 2000
BOOTSTRAP_SEED = 0
ROUNDING = 1e-12
"""Relative spread of resamples, over their distance from a threshold, that is rounding alone."""
PAIRED = ("seed", "index")
"""Columns that pair numbers of two defenses: the seed, and so the model, and the victim."""


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

    keys = list(by)
    values = frame.groupby([*keys, "seed"], dropna=False)["value"]
    per_seed = pd.DataFrame({"mean": values.mean(), "lost": values.size() - values.count()})
    groups = per_seed.reset_index().groupby(keys, dropna=False)
    means = groups["mean"]
    result = pd.DataFrame(
        {
            "mean": means.mean(),
            "low": means.min(),
            "high": means.max(),
            "std": means.std(),
            "seeds": means.count(),
            "lost": groups["lost"].sum(),
        }
    )
    quantile = stdtrit(np.maximum(result["seeds"] - 1, 1), 0.5 + CONFIDENCE / 2)
    half = quantile * result["std"] / np.sqrt(result["seeds"])
    several = result["seeds"] > 2
    result["low"] = result["low"].mask(several, result["mean"] - half)
    result["high"] = result["high"].mask(several, result["mean"] + half)
    return result.drop(columns="std").reset_index()


@dataclass(frozen=True)
class Estimate:
    """A statistic of the sample with its 95 % interval.

    Attributes:
        value: NaN if the statistic is undefined for the sample.
        low: like ``high`` NaN where nothing could be resampled or most resamples lack the statistic.
        lost: part of the resamples that lack the statistic, in [0, 1].
        freedom: degrees of freedom of the resamples' spread; 0 where nothing could be resampled.
        resampled: the statistic of the resamples that have it, where there is an interval; else nothing.
    """

    value: float
    low: float
    high: float
    lost: float = 0.0
    freedom: float = 0.0
    resampled: Array | None = field(default=None, repr=False, compare=False)

    def p_value(self, threshold: float) -> float:
        """Two-sided p-value of the hypothesis that the statistic is ``threshold``, in [0, 1]; NaN without resamples.

        The larger of two: twice the part of the resamples on the rarer side, each side and the total counted one more
        (Davison and Hinkley 1997, *Bootstrap Methods and their Application*, section 4.4), and the tail of Student's
        law with the resamples' standard deviation, which knows how few replicates there are. Beyond all resamples,
        where counting says no more than ``2 / (R + 1)`` or less, it is Student's tail alone, and where they do not
        differ, counting alone.
        """
        from scipy.special import stdtr  # Student's distribution; importing scipy.stats takes a second

        if self.resampled is None:
            return np.nan
        rarer = int(min((self.resampled <= threshold).sum(), (self.resampled >= threshold).sum()))
        counted = min(1.0, 2 * (1 + rarer) / (len(self.resampled) + 1))
        distance = abs(self.value - threshold)
        # Of a mean of n replicates, the variance of resamples is too small by the factor (n - 1) / n.
        spread = self.resampled.std() * np.sqrt(1 + 1 / self.freedom)
        if spread <= ROUNDING * distance:
            return counted
        tail = 2 * float(stdtr(self.freedom, -distance / spread))
        return max(counted, tail) if rarer else tail


class CrossedBootstrap:
    """Seeds and attacked batches resampled with replacement, independently of each other (the pigeonhole bootstrap).

    Every seed's model sees the same batches, so that numbers of one seed are dependent, and numbers of one batch too;
    resampling cells would ignore both. Owen (2007), *The pigeonhole bootstrap*, Annals of Applied Statistics 1(2):
    the variance between seeds comes out too small by the factor ``1 - 1 / S``, that between batches by ``1 - 1 / K``,
    and what is peculiar to a cell counts about three times. So intervals of a few seeds are too narrow where models
    differ much. With one seed the batches alone are resampled, and the other way round.

    All statistics of one instance share its resamples, so that differences between defenses are paired.

    Args:
        seeds: number of seeds, S.
        batches: number of batches, K; 1 for numbers that have none, such as losses of a training run.
        resamples: R.
        seed: of the numpy generator (PCG64) that draws the resamples; equal tables give equal intervals.
    """

    def __init__(self, seeds: int, batches: int, resamples: int = RESAMPLES, seed: int = BOOTSTRAP_SEED) -> None:
        generator = np.random.default_rng(seed)
        self.seeds, self.batches = seeds, batches
        self._weights = tuple(
            np.concatenate([np.ones((1, n)), generator.multinomial(n, np.full(n, 1 / n), size=resamples)])
            for n in (seeds, batches)
        )
        """Numbers of draws of each seed and batch, ``[1 + R, S]`` and ``[1 + R, K]``; row 0 is the sample itself."""

    def mean(self, values: Array) -> Array:
        """Means over seeds and batches: of the sample, then of every resample.

        Args:
            values: ``[..., S, K]``, or ``[..., S, 1]`` for numbers that no batch changes; NaN is left out.

        Returns:
            ``[1 + R, ...]``; NaN where nothing is left.
        """
        return weighted_means(values, *self._weights)

    def drawn(self, values: Array) -> Array:
        """Values of the sample and of every resample, for statistics other than means.

        Args:
            values: ``[..., S, K]``, or ``[..., S, 1]`` for numbers that no batch changes.

        Returns:
            ``[1 + R, ..., S * K]``.
        """
        rows, columns = (
            np.repeat(np.tile(np.arange(n), len(counts)), counts.astype(int).ravel()).reshape(len(counts), n)
            for counts, n in zip(self._weights, (self.seeds, self.batches), strict=True)
        )
        if values.shape[-1] == 1:
            columns = np.zeros((len(rows), 1), dtype=int)
        taken = np.moveaxis(values[..., rows[:, :, None], columns[:, None, :]], -3, 0)
        return taken.reshape(*taken.shape[:-2], -1)

    def estimate(self, statistic: Array) -> Estimate:
        """The sample's statistic and the percentile interval of the resampled ones, from ``[1 + R]`` values."""
        return _percentiles(statistic, self._freedom(statistic))

    def _freedom(self, statistic: Array) -> float:
        """Degrees of freedom: Satterthwaite's, of what seeds and what batches contribute to the variance.

        The contributions are squared covariances of the statistic with how often each was drawn (Efron 2014,
        *Estimation and Accuracy after Model Selection*). They are a little too many where few seeds vary little by
        chance.
        """
        known = np.concatenate([[False], ~np.isnan(statistic[1:])])
        deviations = statistic[known] - statistic[known].mean() if known.any() else np.zeros(0)
        variance = squares = free = 0.0
        for drawn in self._weights:
            n = drawn.shape[1]
            if n > 1:
                part = n / (n - 1) * float(((deviations @ drawn[known] / max(len(deviations), 1)) ** 2).sum())
                variance, squares, free = variance + part, squares + part**2 / (n - 1), free + n - 1
        return variance**2 / squares if squares else free


def interquartile_mean(values: Array) -> Array:
    """The mean of the middle half along the last axis: a quarter of the values, rounded down, is cut off at each end.

    NaN where a value is NaN.
    """
    cut = values.shape[-1] // 4
    middle = np.sort(values, axis=-1)[..., cut : values.shape[-1] - cut]
    mean: Array = np.where(np.isnan(values).any(axis=-1), np.nan, middle.mean(axis=-1))
    return mean


def paired_differences(
    first: pd.DataFrame, second: pd.DataFrame, by: Sequence[str] = ("seed", "index")
) -> pd.DataFrame:
    """``value`` of the first minus that of the second, for each seed and victim that both have.

    Defenses of one experiment see the same models and victims, so that a difference has none of their variance.

    Args:
        first: rows of a tidy table: one metric of one defense in one setting.
        second: the same of another defense.
        by: what a row of the one shares with a row of the other.

    Returns:
        The columns ``by`` and ``difference``, which is NaN where one of the two is.

    Raises:
        pandas.errors.MergeError: two rows of one table agree in ``by``.
    """
    keys = list(by)
    both = first[[*keys, "value"]].merge(second[[*keys, "value"]], on=keys, validate="one_to_one")
    return both[keys].assign(difference=both["value_x"] - both["value_y"])


def probability_of_improvement(
    first: Array, second: Array, generator: np.random.Generator, resamples: int = RESAMPLES
) -> Estimate:
    """Probability that a replicate of the first is larger than one of the second; ties count half.

    That is the Mann-Whitney statistic over the number of pairs; both samples are resampled, apart.

    Args:
        first: ``[n]``.
        second: ``[m]``.
        generator: draws the resamples.
        resamples: R.
    """
    draws = [part[generator.integers(len(part), size=(resamples, len(part)))] for part in (first, second)]
    a, b = (np.concatenate([part[None], drawn]) for part, drawn in zip((first, second), draws, strict=True))
    larger = (a[:, :, None] > b[:, None]).mean(axis=(1, 2)) + (a[:, :, None] == b[:, None]).mean(axis=(1, 2)) / 2
    return _percentiles(larger, freedom=len(first) + len(second) - 2)


def _percentiles(statistic: Array, freedom: float) -> Estimate:
    """The sample's statistic and the percentile interval of the resampled ones.

    Args:
        statistic: of the sample first, then of its resamples, ``[1 + R]``.
        freedom: degrees of freedom; 0 where nothing could be resampled.
    """
    value, resampled = float(statistic[0]), statistic[1:]
    known = resampled[~np.isnan(resampled)]
    lost = 1 - len(known) / len(resampled)
    if not freedom or np.isnan(value) or lost > 0.5:
        return Estimate(value, np.nan, np.nan, lost, freedom)
    low, high = np.quantile(known, [0.5 - CONFIDENCE / 2, 0.5 + CONFIDENCE / 2])
    return Estimate(value, float(low), float(high), lost, freedom, known)


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


def at_loss(losses: Array, leakages: Array, allowed: float, *, between: bool) -> Array:
    """The least leakage that a defense reaches while it loses no more than is allowed.

    With ``between``, leakage is interpolated linearly between neighbouring settings, so that a grid without a point at
    the allowed loss is no disadvantage. Settings of infinite loss are not interpolated.

    Args:
        losses: ``[..., P]``, of settings from one end of their range to the other.
        leakages: ``[..., P]``; a setting whose leakage is NaN is left out.
        allowed: the largest loss, in the losses' unit.
        between: the settings are values of one parameter.

    Returns:
        ``[...]``; NaN where every setting loses more.
    """
    within = np.where(losses <= allowed, leakages, np.inf)
    if between and losses.shape[-1] > 1:
        (before, after), (first, second) = ((part[..., :-1], part[..., 1:]) for part in (losses, leakages))
        crossing = ((before <= allowed) != (after <= allowed)) & np.isfinite(before) & np.isfinite(after)
        start, end = np.where(crossing, before, 0.0), np.where(crossing, after, 1.0)
        part = (allowed - start) / (end - start)
        within = np.concatenate([within, np.where(crossing, first + part * (second - first), np.inf)], axis=-1)
    least: Array = np.where(np.isnan(within), np.inf, within).min(axis=-1)
    return np.where(np.isfinite(least), least, np.nan)


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
