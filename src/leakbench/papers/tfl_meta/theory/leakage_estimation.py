"""The constants of privacy leakage from counted recoveries: beliefs, priors, intervals and error bounds.

An attack is run ``T`` times against each of ``M`` models on a batch of ``S`` data. Counts are the recoveries of every
datum, and last of all the misses, which are credited to one further candidate ``d0``; so there are ``S + 1``. Beliefs
are counts over ``S T``. The paper does not say what the prior is, on which everything hinges: there are three here.
Source: Zhang, Kang et al. (2023), section 7, Algorithms 2 and 3, Appendices B to D. ``as_printed`` and ``corrected``
keep its slips apart: its loops make ``T + 1`` attempts, and Algorithm 3 divides by the number of classes, without
``d0``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.theory.arguments import positive
from leakbench.theory.leakage_surrogate import (
    Form,
    amplification,
    largest_log_ratio,
    law,
    leakage,
    not_negative,
)

_CHUNK = 10_000_000
"""Attempts that a bootstrap draws at once."""

SMOOTHING = 0.5
"""``alpha`` by default; without any, a datum that is never recovered makes ``xi`` infinite."""
VACUOUS = 0.287161071
"""Relative error from which on Theorem 7.1 allows more than any two beliefs differ by."""


def attempts_made(attempts: int, form: Form = "corrected") -> int:
    """Number of attacks for ``T`` attempts: ``T``, or ``T + 1`` by the printed loops.

    Raises:
        ConfigError: ``T`` is below 1.
    """
    if attempts < 1:
        raise ConfigError(f"beliefs need one attempt at least, found T = {attempts}")
    return attempts + (form == "as_printed")


def recovery_counts(recovered: torch.Tensor) -> torch.Tensor:
    """Recoveries of every datum, and the misses, over attempts, float64 ``[..., T, S] -> [..., S + 1]``.

    Args:
        recovered: which datum an attempt recovered; a diverged attempt recovered none.

    Raises:
        ConfigError: there is no attempt or no datum.
    """
    attempts_made(recovered.shape[-2])
    if not recovered.shape[-1]:
        raise ConfigError("beliefs need one datum at least, found S = 0")
    hits = recovered.double().sum(dim=-2)
    attempts, data = recovered.shape[-2:]
    return torch.cat([hits, attempts * data - hits.sum(dim=-1, keepdim=True)], dim=-1)


def data_belief(
    counts: torch.Tensor, attempts: int, prior: torch.Tensor | None = None, smoothing: float = 0.0
) -> torch.Tensor:
    """``f(d | w)`` of Algorithm 2, float64, ``[..., S + 1] -> [..., S + 1]``.

    Counts over ``S T``; with smoothing ``(counts + alpha (S + 1) prior) / (S T + alpha (S + 1))``. Sums to 1 where
    counts are of ``T`` attempts, and to ``(T + 1) / T`` where they are of the printed loop's.

    Args:
        counts: of recoveries and, last, misses.
        attempts: ``T``.
        prior: ``[..., S + 1]``, for smoothing.
        smoothing: ``alpha``, at least 0.

    Raises:
        ConfigError: ``T`` is below 1, a count or ``alpha`` is negative, there is no datum, or smoothing has no prior.
    """
    attempts_made(attempts)
    counts = not_negative(counts, "counts of recoveries")
    candidates = counts.shape[-1]
    if candidates < 2:
        raise ConfigError(f"counts are of S data and of misses, so two at least, found {candidates}")
    whole = (candidates - 1) * attempts
    weight = float(not_negative(smoothing, "the smoothing alpha")) * candidates
    if not weight:
        return counts / whole
    if prior is None:
        raise ConfigError("smoothing adds counts in proportion to the prior, which is missing")
    return (counts + weight * law(prior, "the prior")) / (whole + weight)


def class_belief(counts: torch.Tensor, images: int, attempts: int, form: Form = "corrected") -> torch.Tensor:
    """``f(c | w)`` of Algorithm 3, float64, ``[..., C] -> [..., C + 1]``, or ``[..., C]`` as printed.

    ``corrected``: over ``S T``, and the misses, credited to a further candidate; ``as_printed``: over ``C T``, which
    may exceed 1.

    Args:
        counts: of recovered images of every class.
        images: ``S``, of the batch.
        attempts: ``T``.
        form: see above.

    Raises:
        ConfigError: ``T`` or ``S`` is below 1, a count is negative, or there are more recoveries than images.
    """
    attempts_made(attempts)
    counts = not_negative(counts, "counts of recoveries")
    if form == "as_printed":
        return counts / (counts.shape[-1] * attempts)
    whole = images * attempts
    misses = whole - counts.sum(dim=-1, keepdim=True)
    if images < 1 or bool((misses < 0).any()):
        raise ConfigError(f"{attempts} attempts on {images} images cannot recover more than {whole} of them")
    return torch.cat([counts, misses], dim=-1) / whole


def uniform_prior(data: int) -> torch.Tensor:
    """``1 / (S + 1)`` for every candidate, float64 ``[S + 1]`` (P1).

    Under it a failed attack leaks more than a perfect one: 0.716 and 0.200 at ``S`` = 8.

    Raises:
        ConfigError: there is no datum.
    """
    _data(data)
    return torch.full((data + 1,), 1 / (data + 1), dtype=torch.float64)


def null_prior(successes: torch.Tensor, trials: int, confidence: float | None = None) -> torch.Tensor:
    """``q_d / S`` for every datum and the rest for ``d0``, float64, ``[..., S] -> [..., S + 1]`` (P2).

    ``q_d`` is the rate, Jeffreys-smoothed, at which the recovery test succeeds on gradients of independent batches.
    With a confidence it is the upper end of Clopper and Pearson's one-sided interval, ``1 - (1 - confidence)^(1 / n)``
    where the test never succeeded in ``n`` trials. The lower end is 0 there, so that ``C2`` has no upper limit.

    Args:
        successes: how often it did.
        trials: of how many attempts.
        confidence: in (0, 1), of the upper end; None: the estimate.

    Raises:
        ConfigError: there is no trial or no datum, successes do not lie in [0, trials], or the confidence does not in
            (0, 1).
    """
    attempts_made(trials)
    successes = not_negative(successes, "successes of the null attack")
    _data(successes.shape[-1])
    if bool((successes > trials).any()):
        raise ConfigError(f"the null attack cannot succeed {float(successes.max()):g} times in {trials} attempts")
    rates = (successes + 0.5) / (trials + 1) if confidence is None else _upper_rates(successes, trials, confidence)
    each = rates / successes.shape[-1]
    return torch.cat([each, (1 - each.sum(dim=-1, keepdim=True)).clamp(min=0)], dim=-1)


def _upper_rates(successes: torch.Tensor, trials: int, confidence: float) -> torch.Tensor:
    from scipy.stats import beta

    if not 0 < confidence < 1:
        raise ConfigError(f"the confidence of the upper end of a rate must lie in (0, 1), found {confidence:g}")
    ends = torch.as_tensor(beta.ppf(confidence, successes.numpy() + 1, trials - successes.numpy()))
    return torch.where(successes < trials, ends, 1.0)


def population_prior(data: int, population: int) -> torch.Tensor:
    """``1 / N`` for every datum and the rest for ``d0``, float64 ``[S + 1]`` (P3).

    Args:
        data: ``S``.
        population: ``N``, of those that the batch may be drawn from.

    Raises:
        ConfigError: there is no datum, or the population is not larger than the batch.
    """
    _data(data)
    if population <= data:
        raise ConfigError(f"the population must be larger than the batch, found {population} and {data}")
    each = torch.full((data,), 1 / population, dtype=torch.float64)
    return torch.cat([each, 1 - each.sum().unsqueeze(0)])


def _data(data: int) -> None:
    if data < 1:
        raise ConfigError(f"beliefs need one datum at least, found S = {data}")


@dataclass(frozen=True)
class Constants:
    """Estimated constants, of clients or of a system of them.

    Attributes:
        c1: nats^(1/2), ``[...]``.
        xi: nats, ``[...]``; infinite where, without smoothing, a datum was never recovered.
        c2: ``[...]``.
        belief: ``f^O``, ``[..., S + 1]`` (eq. 16).
    """

    c1: torch.Tensor
    xi: torch.Tensor
    c2: torch.Tensor
    belief: torch.Tensor

    def system(self) -> Constants:
        """The constants of all clients, the last dimension of ``c1``, together: mean ``C1`` and largest ``xi``."""
        xi = self.xi.amax(dim=-1)
        return Constants(self.c1.mean(dim=-1), xi, amplification(xi), self.belief)


def constants(counts: torch.Tensor, attempts: int, prior: torch.Tensor, smoothing: float = SMOOTHING) -> Constants:
    """``C1``, ``xi`` and ``C2`` of clients, from counts of ``M`` models, ``[..., M, S + 1] -> [...]``.

    ``xi`` is the largest over models, as defined; eq. 17 has one model, the true one.

    Args:
        counts: of ``T`` attempts at each model.
        attempts: ``T``.
        prior: ``[..., S + 1]``.
        smoothing: ``alpha``; both constants are of smoothed beliefs.

    Raises:
        ConfigError: as :func:`data_belief`; counts are not of ``T`` attempts, so that beliefs do not sum to 1.
    """
    before = law(prior, "the prior")
    beliefs = law(data_belief(counts, attempts, before.unsqueeze(-2), smoothing), "beliefs of T attempts")
    mean = beliefs.mean(dim=-2)
    xi = largest_log_ratio(beliefs, before)
    return Constants(leakage(mean, before), xi, amplification(xi), mean)


@dataclass(frozen=True)
class Interval:
    """Percentiles over resamples, ``[...]`` each."""

    low: torch.Tensor
    high: torch.Tensor


def certain_constants(models: int, attempts: int, data: int, smoothing: float = SMOOTHING) -> Constants:
    """The constants where all data are recovered in every attempt and the null attack never succeeds, scalars.

    With ``w = alpha (S + 1)`` and the null rate over ``S``, ``q = 1 / (2 S (M T + 1))``, ``e^xi`` is the larger one of
    ``(T + w q) / ((S T + w) q)``, of a datum, and ``(S T + w) / (w (1 - S q))``, of the misses that never occur. So
    ``C2`` grows as the square of the number of attempts, without limit.

    Args:
        models: ``M``.
        attempts: ``T``, at each model.
        data: ``S``.
        smoothing: ``alpha``.

    Raises:
        ConfigError: a number is below 1, or ``alpha`` is negative.
    """
    if models < 1:
        raise ConfigError(f"beliefs need one model at least, found M = {models}")
    _data(data)
    counts = torch.full((models, data + 1), float(attempts_made(attempts)), dtype=torch.float64)
    counts[:, -1] = 0
    return constants(counts, attempts, null_prior(torch.zeros(data), models * attempts), smoothing)


def bootstrap_constants(
    recovered: torch.Tensor,
    prior: torch.Tensor,
    generator: torch.Generator,
    smoothing: float = SMOOTHING,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> dict[Literal["c1", "xi", "c2"], Interval]:
    """Percentile intervals of the constants, over attempts drawn with replacement within each model.

    The data of a batch and the models stay, so it says how far more attempts would move the estimates, and nothing of
    other batches. The intervals hold sampling error alone: smoothing moves both ends.

    Args:
        recovered: which datum an attempt recovered, ``[..., M, T, S]``.
        prior: ``[S + 1]`` or ``[..., S + 1]``.
        generator: of the resamples, on the CPU.
        smoothing: ``alpha``.
        resamples: how many.
        confidence: in (0, 1).

    Raises:
        ConfigError: as :func:`constants`; there are no resamples, or the confidence is not in (0, 1).
    """
    if resamples < 1 or not 0 < confidence < 1:
        raise ConfigError(
            f"a bootstrap needs resamples and a confidence in (0, 1), found {resamples} and {confidence:g}"
        )
    *_, attempts, data = recovered.shape
    recovery_counts(recovered)  # rejects empty input
    hits = recovered.double()
    rows = hits.shape[:-1]
    parts = []
    for start in range(0, resamples, chunk := max(1, _CHUNK // math.prod(rows))):
        drawn = torch.randint(attempts, (min(chunk, resamples - start), *rows), generator=generator)
        weights = torch.zeros(drawn.shape, dtype=torch.float64)
        weights.scatter_add_(-1, drawn, torch.ones_like(weights))
        parts.append((weights.unsqueeze(-2) @ hits).squeeze(-2))
    sums = torch.cat(parts)  # [resamples, ..., M, S]
    counts = torch.cat([sums, attempts * data - sums.sum(dim=-1, keepdim=True)], dim=-1)
    estimates = constants(counts, attempts, prior, smoothing)
    tail = (1 - confidence) / 2

    def interval(values: torch.Tensor) -> Interval:
        # without interpolation: infinite values have no differences
        low, high = (values.quantile(level, dim=0, interpolation="nearest") for level in (tail, 1 - tail))
        return Interval(low, high)

    return {"c1": interval(estimates.c1), "xi": interval(estimates.xi), "c2": interval(estimates.c2)}


def _rates(probabilities: torch.Tensor, data: int) -> torch.Tensor:
    """Probabilities in the unit of Chernoff's exponent, zero where a candidate does not count."""
    kappa = law(probabilities, "probabilities of recovery")
    if data > 1:
        scale = torch.full_like(kappa, data)
        scale[..., -1] = 1
        return scale * kappa
    return kappa


def failure_probability(
    attempts: torch.Tensor | float, relative: torch.Tensor | float, probabilities: torch.Tensor, data: int = 1
) -> torch.Tensor:
    """Lemma C.1: an estimate is off by more than ``relative`` with this probability at most, ``[..., D] -> [...]``.

    ``2 sum_d exp(-relative^2 T kappa(d) / 3)``, over possible candidates: estimates of the others are exactly 0.

    Args:
        attempts: ``T``, positive, ``[...]``.
        relative: error of any estimate over what it estimates, in (0, 1], ``[...]``.
        probabilities: ``kappa``, of the candidates, ``d0`` last.
        data: ``S`` of Algorithm 2, whose data are recovered with probability ``S kappa``; 1 for the lemma itself.

    Raises:
        ConfigError: an argument is out of its range.
    """
    rates = _rates(probabilities, data)
    exponent = _relative(relative).square() * positive(attempts, "the number of attempts T") / 3
    terms = (-exponent.unsqueeze(-1) * rates).exp()
    return 2 * torch.where(rates > 0, terms, 0.0).sum(dim=-1)


def _relative(value: torch.Tensor | float) -> torch.Tensor:
    relative = positive(value, "the relative error").double()
    if not bool((relative <= 1).all()):
        raise ConfigError(f"Chernoff's bound is of relative errors in (0, 1], found {float(relative.max()):g}")
    return relative


def _exponent(failure: torch.Tensor | float, rates: torch.Tensor) -> torch.Tensor:
    """``x = relative^2 T`` at which ``2 sum_d exp(-x rate / 3)`` is the given probability, ``[..., D] -> [...]``."""
    beta = positive(failure, "the probability of failure").double()
    if not bool((beta < 1).all()):
        raise ConfigError(f"the probability of failure must lie in (0, 1), found {float(beta.max()):g}")
    possible = rates > 0
    count = possible.sum(dim=-1)
    low = 3 * (2 / beta).log() / rates.amax(dim=-1)
    high = 3 * (2 * count / beta).log() / torch.where(possible, rates, torch.inf).amin(dim=-1)
    low, high = torch.broadcast_tensors(low, high)
    for _ in range(100):
        middle = (low + high) / 2
        terms = torch.where(possible, (-middle.unsqueeze(-1) * rates / 3).exp(), 0.0)
        short = 2 * terms.sum(dim=-1) > beta
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return high


def attempts_needed(
    relative: torch.Tensor | float, failure: torch.Tensor | float, probabilities: torch.Tensor, data: int = 1
) -> torch.Tensor:
    """The least ``T`` at which :func:`failure_probability` is ``failure``, whole numbers in float64, ``[...]``.

    Args:
        relative: error, in (0, 1].
        failure: ``beta``, in (0, 1).
        probabilities: as there.
        data: as there.

    Raises:
        ConfigError: an argument is out of its range.
    """
    exponent = _exponent(failure, _rates(probabilities, data))
    return (exponent / _relative(relative).square()).ceil()


def sufficient_attempts(
    relative: torch.Tensor | float, failure: torch.Tensor | float, probabilities: torch.Tensor
) -> torch.Tensor:
    """``3 ln(2 D / beta) / (relative^2 min kappa)``, rounded up, ``[...]``: not less than :func:`attempts_needed`.

    Raises:
        ConfigError: an argument is out of its range.
    """
    kappa = _rates(probabilities, 1)
    least = torch.where(kappa > 0, kappa, torch.inf).amin(dim=-1)
    beta = positive(failure, "the probability of failure").double()
    count = (kappa > 0).sum(dim=-1)
    return (3 * (2 * count / beta).log() / (_relative(relative).square() * least)).ceil()


def relative_error(
    attempts: torch.Tensor | float, failure: torch.Tensor | float, probabilities: torch.Tensor, data: int = 1
) -> torch.Tensor:
    """The relative error that ``T`` attempts leave with probability ``1 - beta``, ``[...]``; infinite above 1.

    Args:
        attempts: ``T``, ``[...]``.
        failure: ``beta``, in (0, 1).
        probabilities: as in :func:`failure_probability`.
        data: as there.

    Raises:
        ConfigError: an argument is out of its range.
    """
    exponent = _exponent(failure, _rates(probabilities, data))
    error = (exponent / positive(attempts, "the number of attempts T")).sqrt()
    return torch.where(error <= 1, error, torch.inf)


def c1_error(relative: torch.Tensor | float) -> torch.Tensor:
    """Theorem 7.1: ``C1`` is off by ``B(relative)`` at most where every estimate is off by ``relative``, ``[...]``.

    ``sqrt((1 + e) ln((1 + e) / (1 - e)) / 2 + (e - ln(1 - e)) / 2)``, about ``sqrt(2 e)``. Infinite from 1 on; more
    than any leakage, and so void, from :data:`VACUOUS` on.

    Raises:
        ConfigError: the error is negative.
    """
    relative = not_negative(relative, "the relative error")
    e = torch.where(relative < 1, relative, 0.0)
    value = ((1 + e) * (e.log1p() - (-e).log1p()) / 2 + (e - (-e).log1p()) / 2).sqrt()
    return torch.where(relative < 1, value, torch.inf)


def metric_error(relative: torch.Tensor | float, form: Form = "corrected") -> torch.Tensor:
    """Theorem 7.2: the error of leakage's surrogate where ``C2`` is known, ``[...]``.

    ``as_printed``: ``3/2 B``; ``corrected``: ``2 B``, since the metric of eq. 6 has ``2 C1``.

    Raises:
        ConfigError: the error is negative.
    """
    return (1.5 if form == "as_printed" else 2.0) * c1_error(relative)
