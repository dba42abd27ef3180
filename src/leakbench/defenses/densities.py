"""Densities that mechanisms state of their messages, as logarithms summed over coordinates.

What is sent without noise has no density. It gets one of a small width that the message itself shows, so that a search
for the exact gradient has a slope. Maximising them is the attack of Balunovic et al. (2022), *Bayesian Framework for
Gradient Leakage*.
"""

from __future__ import annotations

import math

from leakbench.lazy import torch

EXACT = 1e-3
"""Width of a coordinate that is sent without noise, as a part of the root mean square of those that are not zero."""
LEAST = 0.3
"""Least variance of a noisy coordinate, as a part of the mean: one almost free of noise is not everything."""
FREEDOM = 30.0
"""Degrees of freedom of the distribution of noise whose variance the attacker has to estimate."""
IMPROBABLE = 3.0
"""Standard deviations of noise from where a slope continues beyond the bound of a clipped coordinate."""


def exact_variance(values: torch.Tensor) -> torch.Tensor:
    """The variance that stands for no noise, ``[n, 1]``, from the values received, ``[n, d]``."""
    sent = values.count_nonzero(dim=1).clamp(min=1)
    mean_square = values.square().sum(dim=1) / sent
    return (EXACT**2 * mean_square).clamp(min=torch.finfo(values.dtype).tiny ** 0.5)[:, None]


def widened(variance: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Variances of which none is zero, ``[n, d]``, where messages were ``values``, ``[n, d]``.

    Of a row without any noise the variance is that of :func:`exact_variance`, else at least :data:`LEAST` times the
    mean.
    """
    mean = variance.mean(dim=1, keepdim=True)
    return torch.where(mean > 0, variance.clamp(min=LEAST * mean), exact_variance(values))


def normal(deviation: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Logarithm of a normal density but for ``2 pi``, of deviations from its mean ``[n, d]``; summed, ``[n]``.

    >>> normal(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]))  # -1/2 - 1/2 - log(2)
    tensor([-1.6931])
    """
    logarithm: torch.Tensor = -0.5 * (deviation.square() / variance + variance.log())
    return logarithm.sum(dim=1)


def uncertain_normal(deviation: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """:func:`normal` where variances are estimates: Student's t, of :data:`FREEDOM` degrees of freedom, ``[n]``.

    A coordinate whose variance is far too small then does not outweigh all the others. The candidate's own error adds
    to every variance: a search that is far off sees all coordinates alike, and the large ones, which say most, are no
    outliers.
    """
    variance = variance + excess_variance(deviation, variance)
    ratio = deviation.square() / (FREEDOM * variance)
    logarithm: torch.Tensor = -0.5 * ((FREEDOM + 1) * ratio.log1p() + variance.log())
    return logarithm.sum(dim=1)


def excess_variance(deviation: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Mean of what squared deviations have beyond the variances, ``[n, 1]``; a constant in derivatives."""
    return (deviation.square() - variance).mean(dim=1, keepdim=True).clamp(min=0).detach()


def clipped_normal(
    values: torch.Tensor, gradient: torch.Tensor, clip: float, variance: torch.Tensor, noise: torch.Tensor
) -> torch.Tensor:
    """:func:`normal` around the gradient clipped to ``[-clip, clip]``, ``[n]``.

    Beyond the bound the density is flat. Where what was received is more than :data:`IMPROBABLE` standard deviations
    inside, it falls on as a straight line, so that a search finds back.

    Args:
        values: received, ``[n, d]``.
        gradient: of the candidates, ``[n, d]``.
        clip: the bound on every coordinate.
        variance: that the density has, ``[n, d]``.
        noise: standard deviation of the noise, which may be zero, ``[n, d]``.
    """
    beyond = (gradient.abs() - clip).clamp(min=0)
    inside = (clip - gradient.sign() * values - IMPROBABLE * noise).clamp(min=0)
    return normal(values - gradient.clamp(-clip, clip), variance) - (beyond * inside / variance).sum(dim=1)


def kept_or_below(
    values: torch.Tensor, sent: torch.Tensor, variance: torch.Tensor, bound: torch.Tensor | float = math.inf
) -> torch.Tensor:
    """Density of sparse messages, ``[n]``: kept coordinates are exact, pruned ones at most a bound.

    Args:
        values: received, ``[n, d]``; zero where pruned.
        sent: what candidates would send if nothing was pruned, ``[n, d]``.
        variance: of the width that stands for no noise, ``[n, 1]``.
        bound: greatest magnitude of a pruned coordinate, ``[n, d]``; infinite where there is none.
    """
    excess = (sent.abs() - bound).clamp(min=0)
    return -0.5 * (torch.where(values != 0, values - sent, excess).square() / variance).sum(dim=1)
