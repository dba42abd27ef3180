"""Densities that mechanisms state of their messages, as logarithms summed over coordinates.

What is sent without noise has no density. It gets one of a small width that the message itself shows, so that a search
for the exact gradient has a slope. Maximising them is the attack of Balunovic et al. (2022), *Bayesian Framework for
Gradient Leakage*.

They are evaluated at every step of a search, over every coordinate: so derivatives are written out.
"""

from __future__ import annotations

import math

from leakbench.federated.message import Received
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.numerics.slopes import with_slope

EXACT = 1e-3
"""Width of a coordinate that is sent without noise, as a part of the root mean square of those that are not zero."""
LEAST = 0.3
"""Least variance of a noisy coordinate, as a part of the mean: one almost free of noise is not everything."""
LEAST_ESTIMATED = 0.02
"""The same where variances are those at an estimate of the images."""
FREEDOM = 30.0
"""Degrees of freedom of the distribution of noise whose variance the attacker has to estimate."""
IMPROBABLE = 3.0
"""Standard deviations of noise from where a slope continues beyond the bound of a clipped coordinate."""


def exact_variance(values: torch.Tensor) -> torch.Tensor:
    """The variance that stands for no noise, ``[n, 1]``, from the values received, ``[n, d]``."""
    sent = values.count_nonzero(dim=1).clamp(min=1)
    mean_square = values.square().sum(dim=1) / sent
    return (EXACT**2 * mean_square).clamp(min=torch.finfo(values.dtype).tiny ** 0.5)[:, None]


def widened(variance: torch.Tensor, received: Received, least: float = LEAST) -> torch.Tensor:
    """Variances of messages, ``[n, d]`` or ``[n, 1]``, of which none is zero.

    Of a row without any noise the variance is that of :func:`exact_variance`, else at least ``least`` times the mean.
    """
    exact = received.once("exact variance", lambda: exact_variance(received.values))
    mean = variance.mean(dim=1, keepdim=True)
    return variance.clamp(min=torch.where(mean > 0, least * mean, exact))


def normal(deviation: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Logarithm of a normal density but for ``2 pi``, of deviations from its mean ``[n, d]``; summed, ``[n]``.

    The variance is ``[n, 1]``, that of every coordinate.

    >>> normal(torch.tensor([[2.0, 2.0]]), torch.tensor([[4.0]]))  # twice -1/2 - log(2)
    tensor([-2.3863])
    """
    return log_kernel(deviation) / variance[:, 0] - 0.5 * deviation.shape[1] * variance[:, 0].log()


def log_kernel(deviation: torch.Tensor, precision: torch.Tensor | float = 1.0) -> torch.Tensor:
    """Logarithm of the kernel of a normal density, ``[n]``: minus half the sum of ``precision * deviation^2``.

    Args:
        deviation: from the mean, ``[n, d]``.
        precision: inverse variance, ``[n, d]``; a constant in derivatives.
    """
    fixed = deviation.detach()
    slope = fixed * -precision
    return with_slope(deviation, 0.5 * torch.linalg.vecdot(slope, fixed), slope)


def uncertain_normal(mean: torch.Tensor, deviation: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """:func:`normal` where variances are estimates: Student's t, of :data:`FREEDOM` degrees of freedom, ``[n]``.

    A coordinate whose variance is far too small then does not outweigh all the others. The candidate's own error adds
    to every variance: a search that is far off sees all coordinates alike, and the large ones, which say most, are no
    outliers.

    Args:
        mean: of the density, ``[n, d]``; the derivative is by it.
        deviation: of what was received from the mean, ``[n, d]``; zero where the density is flat.
        variance: estimates, ``[n, d]``; constants in the derivative.
    """
    fixed = deviation.detach()
    spread = (variance + excess_variance(fixed, variance)).mul_(FREEDOM)
    total = torch.addcmul(spread, fixed, fixed)  # log1p of their ratio is the difference of their logarithms
    slope = fixed.mul(FREEDOM + 1).div_(total)
    logarithm = 0.5 * (FREEDOM * spread.log_().sum(dim=1) - (FREEDOM + 1) * total.log_().sum(dim=1))
    return with_slope(mean, logarithm + 0.5 * deviation.shape[1] * math.log(FREEDOM), slope)


def student(deviation: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Logarithm of Student's t of :data:`FREEDOM` degrees of freedom but for a constant, ``[n]``.

    Args:
        deviation: from the mean, ``[n, d]``.
        variance: estimates, ``[n, d]``; constants in the derivative, and the same at every step of a search.
    """
    fixed = deviation.detach()
    total = torch.addcmul(FREEDOM * variance, fixed, fixed)
    logarithm = -(FREEDOM + 1) / 2 * (total / (FREEDOM * variance)).log().sum(dim=1)
    return with_slope(deviation, logarithm, -(FREEDOM + 1) * fixed / total)


def excess_variance(deviation: torch.Tensor, variance: torch.Tensor) -> torch.Tensor:
    """Mean of what squared deviations have beyond the variances, ``[n, 1]``; a constant in derivatives."""
    squares = torch.linalg.vector_norm(deviation.detach(), dim=1, keepdim=True).square()
    excess: torch.Tensor = squares / deviation.shape[1] - variance.mean(dim=1, keepdim=True)
    return excess.clamp(min=0)


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
        variance: that the density has, ``[n, 1]``.
        noise: standard deviation of the noise, which may be zero, ``[n, 1]``; a constant in derivatives.
    """
    fixed = gradient.detach()
    beyond = torch.nn.functional.softshrink(fixed, clip)
    signs = beyond.sign()
    deviation = values - fixed + beyond
    inside = ((clip - IMPROBABLE * noise.detach()) * signs - values).mul_(signs).clamp_(min=0).mul_(signs)
    line = torch.linalg.vecdot(beyond, inside)
    logarithm = -0.5 * torch.linalg.vecdot(deviation, deviation) - line
    slope = deviation.addcmul_(deviation, signs.square(), value=-1).sub_(inside)
    logarithm = with_slope(gradient, logarithm, slope)
    return logarithm / variance[:, 0] - 0.5 * values.shape[1] * variance[:, 0].log()


def kept_or_below(received: Received, sent: torch.Tensor, groups: Tensors | None) -> torch.Tensor:
    """Density of sparse messages, ``[n]``: kept coordinates are exact, pruned ones no larger than the smallest kept.

    Args:
        received: values, zero where pruned.
        sent: what candidates would send if nothing was pruned, ``[n, d]``.
        groups: of coordinates that are pruned by their magnitudes; None where these do not matter.
    """
    values = received.values

    def constants() -> tuple[torch.Tensor, torch.Tensor]:
        most = torch.where(values != 0, values.abs(), torch.inf)
        if groups is not None:
            most = groups.spread(groups.reduce(most, lambda part: part.amin(dim=1)))
        return torch.where(values != 0, 0.0, most), 1 / exact_variance(values)

    key = "kept or below", None if groups is None else tuple(groups.sizes)
    free, precision = received.once(key, constants)
    fixed = sent.detach()
    deviation = values - fixed + torch.clamp(fixed, -free, free)
    slope = deviation * precision
    return with_slope(sent, -0.5 * torch.linalg.vecdot(slope, deviation), slope)
