"""Tests behind verdicts: any statistic of seeds and attacked batches, with its jackknife error, under Student's law.

The rate of false decisions under the null, by kind of effect, seeds and batches, is in ``docs/verdicts.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from leakbench.lazy import np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

LEVEL = 0.05
"""Largest rate of false decisions under the null, of both sides together."""
FEWEST_SEEDS = 3
"""With fewer, nothing empirical is decided."""
POWER = 0.8
"""Probability of deciding a true effect of the estimated size, with the number of seeds that is recommended."""
MOST_SEEDS = 1000
"""Largest number of seeds that is recommended."""
ROUNDING = 1e-12
"""Relative size of differences that are none."""
PERMUTATIONS = 9999
PERMUTATION_SEED = 0


@dataclass(frozen=True)
class Estimate:
    """A statistic of the sample with its standard error.

    Attributes:
        value: NaN if the sample does not have the statistic.
        error: standard error, of ``log(1 + value)`` for ratios; 0 where seeds do not differ, or the number is certain;
            NaN where there is one seed, or the statistic does not survive without one of them.
        freedom: degrees of freedom of the error.
        seeds: number of seeds; 0 for a number that no seed changes.
        spread: standard deviation of one seed with victims of its own, in the error's unit.
        ratio: whether the value is a ratio minus 1, which is tested by its logarithm.

    >>> estimate = Jackknife(seeds=4, batches=1).estimate(np.array([2.0, 1.9, 2.1, 1.8, 2.2]))
    >>> f"{estimate.value:.1f} [{estimate.low:.2f}, {estimate.high:.2f}], p = {estimate.p_above(1.0):.3f}"
    '2.0 [1.13, 2.87], p = 0.018'
    """

    value: float
    error: float = math.nan
    freedom: float = 0.0
    seeds: int = 0
    spread: float = math.nan
    ratio: bool = False

    @classmethod
    def certain(cls, value: float) -> Estimate:
        """A number that no seed changes, such as a count."""
        return cls(value, error=0.0, freedom=math.inf)

    @property
    def is_certain(self) -> bool:
        """Whether no seed changes it, so that there is nothing to test."""
        return self.seeds == 0 and self.error == 0

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval; NaN where there is none."""
        return self._end(-1)

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval; NaN where there is none."""
        return self._end(1)

    def _end(self, side: int) -> float:
        from scipy.special import stdtrit  # Student's quantile; importing scipy.stats takes a second

        if self.is_certain:
            return self.value
        if not self.error > 0:
            return math.nan
        end = self._linked(self.value) + side * float(stdtrit(self.freedom, 1 - LEVEL / 2)) * self.error
        return math.expm1(end) if self.ratio else end

    def _linked(self, value: float) -> float:
        if not self.ratio:
            return value
        return math.log1p(value) if value > -1 else -math.inf

    def p_above(self, threshold: float) -> float:
        """One-sided p-value of the statistic lying above a threshold, in [0, 1]; NaN where nothing can be tested.

        Seeds that agree to the last digit are tested by exchanging signs: ``n`` of them say no more than ``2^-n``.
        """
        return self._p_value(1, threshold)

    def p_below(self, threshold: float) -> float:
        """One-sided p-value of the statistic lying below a threshold; see :meth:`p_above`."""
        return self._p_value(-1, threshold)

    def _p_value(self, side: int, threshold: float) -> float:
        from scipy.special import stdtr  # Student's distribution

        distance = side * (self._linked(self.value) - self._linked(threshold))
        if self.seeds < FEWEST_SEEDS or math.isnan(self.error) or math.isnan(distance):
            return math.nan
        if not self.error:
            return 2.0**-self.seeds if distance > 0 else 1.0
        return float(stdtr(self.freedom, -distance / self.error))

    def seeds_needed(self, threshold: float, level: float = LEVEL / 2) -> int | None:
        """Seeds, each with victims of its own, that decide an effect of this size with probability :data:`POWER`.

        Args:
            threshold: from which the statistic has to be told apart.
            level: of the one-sided test.

        Returns:
            One more than :data:`MOST_SEEDS` where even they do not; None where nothing is known of the spread.
        """
        from scipy.special import stdtrit

        distance = abs(self._linked(self.value) - self._linked(threshold))
        if math.isnan(self.spread) or math.isnan(distance):
            return None
        if not distance:
            return MOST_SEEDS + 1
        seeds = np.arange(max(FEWEST_SEEDS, math.ceil(-math.log2(level)) if not self.spread else 0), MOST_SEEDS + 1)
        quantiles = stdtrit(seeds - 1, 1 - level) + stdtrit(seeds - 1, POWER)
        enough = quantiles * self.spread / np.sqrt(seeds) <= distance
        return int(seeds[np.argmax(enough)]) if enough.any() else MOST_SEEDS + 1

    def __neg__(self) -> Estimate:
        """The statistic with its sign turned.

        Raises:
            ValueError: it is tested as a ratio.
        """
        if self.ratio:
            raise ValueError("a ratio minus 1 has no negative that is one")
        return replace(self, value=-self.value)


class Jackknife:
    """Statistics of seeds and attacked batches, recomputed without each seed, and without each batch.

    Every seed's model may see the same batches, so that numbers of one seed are dependent, and numbers of one batch
    too. The variance is the sum of both delete-one variances (Efron and Stein 1981, *The jackknife estimate of
    variance*): it counts what is peculiar to a cell twice, so that it errs on the safe side. The degrees of freedom
    are those of the rarer factor. For the mean of seeds alone that is Student's t-test.

    All statistics of one instance leave out the same seeds and batches, so that differences of defenses are paired.

    Args:
        seeds: number of seeds, S.
        batches: number of batches that all seeds share, K; 1 where each seed has batches of its own (then their mean is
            the seed's number), or none.
        exact: whether the numbers have no sampling error, so that no statistic of them has one.
    """

    def __init__(self, seeds: int, batches: int, *, exact: bool = False) -> None:
        self.seeds, self.batches, self.exact = seeds, batches, exact

    @cached_property
    def _weights(self) -> tuple[Array, Array]:
        """Seeds ``[1 + S + K, S]`` and batches ``[1 + S + K, K]`` left in: all, without one seed, without one batch."""
        s, k = self.seeds, self.batches if self.batches > 1 else 0
        seeds = np.concatenate([np.ones((1, s)), 1 - np.eye(s), np.ones((k, s))])
        batches = np.concatenate([np.ones((1 + s, self.batches)), 1 - np.eye(self.batches)[:k]])
        return seeds, batches

    def mean(self, values: Array) -> Array:
        """Means over seeds and batches: of the sample, then without each seed, then without each batch.

        Args:
            values: ``[..., S, K]``, or ``[..., S, 1]`` for numbers that no batch changes; NaN is left out.

        Returns:
            ``[1 + S + K, ...]``, ``[1 + S, ...]`` where K is 1; NaN where nothing is left.
        """
        return weighted_means(values, *self._weights)

    def estimate(self, statistic: Array, *, ratio: bool = False, resolution: float = 0.0) -> Estimate:
        """The sample's statistic and its standard error.

        Args:
            statistic: computed from :meth:`mean`, ``[1 + S + K]``.
            ratio: it is a ratio of positive numbers, minus 1, and tested by its logarithm.
            resolution: step between the values that it can take, such as one over the number of steps for a share of
                steps; half of it counts as an error beside the jackknife's, which does not see it.
        """
        if self.exact:
            value = float(statistic[0])
            return Estimate(value) if math.isnan(value) else Estimate.certain(value)
        ratio = ratio and bool((statistic > -1).all())
        tested = np.log1p(statistic) if ratio else statistic
        by_seed, by_batch = tested[1 : 1 + self.seeds], tested[1 + self.seeds :]
        between_seeds = _variance(by_seed)
        others = (_variance(by_batch) if self.batches > 1 else 0.0) + (resolution / 2) ** 2
        if between_seeds + others <= (ROUNDING * float(np.abs(tested).max())) ** 2:  # NaN is not
            between_seeds = others = 0.0
        return Estimate(
            value=float(statistic[0]),
            error=math.sqrt(between_seeds + others),
            freedom=min(self.seeds, self.batches if self.batches > 1 else self.seeds) - 1,
            seeds=self.seeds,
            spread=math.sqrt(between_seeds * self.seeds + others),
            ratio=ratio,
        )


def weighted_means(values: Array, by_seed: Array, by_batch: Array) -> Array:
    """Means of the known values under several weightings of seeds and batches.

    Args:
        values: ``[..., S, K]``, or ``[..., S, 1]`` for numbers that no batch changes; NaN is left out.
        by_seed: ``[R, S]``.
        by_batch: ``[R, K]``.

    Returns:
        ``[R, ...]``; NaN where no weight is left.
    """
    if values.shape[-1] == 1:
        by_batch = np.ones((len(by_seed), 1))
    known = np.isfinite(values)
    sums, counts = (
        np.einsum("rs,rk,...sk->r...", by_seed, by_batch, part, optimize=True)
        for part in (np.where(known, values, 0.0), known.astype(float))
    )
    means: Array = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return means


def _variance(without: Array) -> float:
    """Jackknife variance from the ``[n]`` statistics without one each; NaN where there is one, or one is unknown."""
    n = len(without)
    if n < 2:
        return math.nan
    with np.errstate(invalid="ignore"):  # infinities have no variance
        return float((n - 1) / n * ((without - without.mean()) ** 2).sum())


def trend_p_values(blocks: Array) -> tuple[float, float]:
    """One-sided p-values of a rise, and of a fall, over ordered points: Page's test by permutation.

    Page (1963), *Ordered hypotheses for multiple treatments*, Journal of the American Statistical Association 58(301):
    under the null the points of each block may be exchanged.

    Args:
        blocks: ``[n, P]``, a row of numbers per seed or per batch; rows with a NaN are left out.

    Returns:
        Each in (0, 1]; NaN where no row is left.
    """
    blocks = blocks[np.isfinite(blocks).all(axis=1)]
    if not len(blocks):
        return math.nan, math.nan
    ranks = _ranks(blocks)
    order = np.arange(blocks.shape[1]) - (blocks.shape[1] - 1) / 2
    generator = np.random.default_rng(PERMUTATION_SEED)
    permuted = generator.permuted(np.broadcast_to(ranks, (PERMUTATIONS, *ranks.shape)), axis=-1)
    actual, exchanged = (ranks @ order).sum(), (permuted @ order).sum(axis=-1)
    slack = ROUNDING * blocks.size * blocks.shape[1]
    rise, fall = (exchanged >= actual - slack).sum(), (exchanged <= actual + slack).sum()
    return (1 + int(rise)) / (1 + PERMUTATIONS), (1 + int(fall)) / (1 + PERMUTATIONS)


def seeds_for_a_trend(blocks: Array, level: float) -> int | None:
    """Seeds with which Page's test shows a trend of this size, of either sign, with probability :data:`POWER`.

    Its statistic, a sum over seeds of the products of ranks and order, is taken as normal, with the variance that it
    has where there is no trend, and with the mean of the seeds seen.

    Args:
        blocks: ``[n, P]``, a row of numbers per seed; rows with a NaN are left out.
        level: of the one-sided test.

    Returns:
        One more than :data:`MOST_SEEDS` where even they do not; None where fewer than two rows are left.

    >>> seeds_for_a_trend(np.array([[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]]), 0.025)  # products of 2 and 1; the variance is 2
    7
    """
    from scipy.special import ndtri  # the normal quantile

    blocks = blocks[np.isfinite(blocks).all(axis=1)]
    if len(blocks) < 2:
        return None
    points = blocks.shape[1]
    order = np.arange(points) - (points - 1) / 2
    seen = abs(float((_ranks(blocks) @ order).mean()))
    variance = float((order**2).sum() ** 2 / (points - 1))
    if not seen:
        return MOST_SEEDS + 1
    needed = (float(ndtri(1 - level)) + float(ndtri(POWER))) ** 2 * variance / seen**2
    return min(max(FEWEST_SEEDS, math.ceil(needed)), MOST_SEEDS + 1)


def _ranks(values: Array) -> Array:
    """Ranks along the last axis, from 1; equal numbers share theirs."""
    less = (values[..., None, :] < values[..., :, None]).sum(axis=-1)
    equal = (values[..., None, :] == values[..., :, None]).sum(axis=-1)
    ranks: Array = less + (equal + 1) / 2
    return ranks


def rank_correlation(values: Array) -> Array:
    """Spearman's correlation of ``[..., P]`` values with their order, ``[...]``; NaN where all equal or one is NaN."""
    known = np.isfinite(values).all(axis=-1)
    ranks = _ranks(values)
    ranks = ranks - ranks.mean(axis=-1, keepdims=True)
    order = np.arange(values.shape[-1]) - (values.shape[-1] - 1) / 2
    norm = np.sqrt((ranks**2).sum(axis=-1) * (order**2).sum())
    defined = known & (norm > 0)
    correlation: Array = np.divide(ranks @ order, norm, out=np.full(norm.shape, np.nan), where=defined)
    return correlation
