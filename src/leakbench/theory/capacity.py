"""Capacity of a Gaussian channel in nats, and the noise that limits it: the Natural and the White Channel.

A sample ``D`` of covariance ``Sigma_D`` (eigenvalues ``lambda_i``, ``[..., d]``, in any order) is released as
``D + xi``, with ``xi`` normal and independent of it. If ``xi`` has variance ``sigma`` in every direction, the release
has at most ``f(sigma) = 1/2 sum_i ln(1 + lambda_i / sigma)`` nats about ``D`` (Theorem 2), exactly if ``D`` is normal.
``sigma`` is a variance throughout. Eigenvalues within rounding of zero count as zero: ``|lambda_i|`` up to
``d eps max |lambda|``. For weighted attributes see :mod:`leakbench.theory.personalized`.
Source: Tan et al. (2024), Theorem 2, eqs. 9, 15, 19 and 24.
"""

from __future__ import annotations

from typing import Literal

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.theory.arguments import positive

WhiteForm = Literal["corrected", "as_printed"]
NoiseMode = Literal["once", "fresh"]
BatchNoise = Literal["constant", "dp"]

_HALVINGS = 64
"""Bisections of the bracket around ln sigma: from the whole range of float64 to its resolution."""


def clipped_spectrum(eigenvalues: torch.Tensor) -> torch.Tensor:
    """Eigenvalues of a covariance with those within rounding of zero set to zero, ``[..., d]``.

    Raises:
        ConfigError: one is not finite, or negative beyond rounding.
    """
    if not bool(eigenvalues.isfinite().all()):
        raise ConfigError("the eigenvalues of a covariance must be finite numbers")
    largest = eigenvalues.abs().amax(dim=-1, keepdim=True)
    rounding = eigenvalues.shape[-1] * torch.finfo(eigenvalues.dtype).eps * largest
    if bool((eigenvalues < -rounding).any()):
        raise ConfigError(
            f"a covariance has no negative eigenvalues, found {eigenvalues.min().item():.3g} "
            f"where the largest is {eigenvalues.max().item():.3g}"
        )
    return torch.where(eigenvalues > rounding, eigenvalues, 0.0)


def spectrum(covariance: torch.Tensor) -> torch.Tensor:
    """Eigenvalues of a covariance, ascending, clipped as by :func:`clipped_spectrum`: ``[..., d, d] -> [..., d]``.

    Raises:
        ConfigError: the matrix is not finite, not symmetric, or has a negative eigenvalue.
    """
    if not bool(covariance.isfinite().all()):
        raise ConfigError("a covariance must hold finite numbers")
    if bool((covariance - covariance.mT).abs().amax() > 1e-8 * covariance.abs().amax()):
        raise ConfigError("a covariance must be symmetric")
    return clipped_spectrum(torch.linalg.eigvalsh(covariance))


def directional_information(eigenvalues: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
    """Information of every eigen-direction, ``1/2 ln(1 + lambda_i / sigma_i)`` nats, ``[..., d]``.

    A direction without data carries nothing, also where it has no noise either; data without noise carry infinity.

    Args:
        eigenvalues: of the data, ``[..., d]``.
        variances: of the noise along the same directions, ``[..., d]`` or ``[..., 1]``, not negative.

    Raises:
        ConfigError: a variance is negative or no number; as :func:`clipped_spectrum`.
    """
    if not bool((variances >= 0).all()):
        raise ConfigError("the variance of noise cannot be negative")
    known = clipped_spectrum(eigenvalues)
    return torch.where(known > 0, known / variances, 0.0).log1p() / 2


def pairwise_capacity(eigenvalues: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
    """Capacity where data and noise have the same eigenvectors, nats, ``[...]``: the sum of the directions."""
    return directional_information(eigenvalues, variances).sum(dim=-1)


def capacity(eigenvalues: torch.Tensor, variance: torch.Tensor | float) -> torch.Tensor:
    """``f(sigma) = 1/2 sum_i ln(1 + lambda_i / sigma)``, nats, ``[...]`` (Theorem 2, eq. 15).

    >>> round(float(capacity(torch.tensor([3.0, 1.0, 0.0]), 1.0)), 4)  # ln(4) / 2 + ln(2) / 2
    1.0397

    Args:
        eigenvalues: ``[..., d]``.
        variance: ``sigma``, a positive number, or ``[...]`` (``[K]`` with one spectrum ``[d]`` gives ``[K]``).

    Raises:
        ConfigError: ``sigma`` is not positive; as :func:`clipped_spectrum`.
    """
    sigma = positive(variance, "the variance of noise", eigenvalues)
    return pairwise_capacity(eigenvalues, sigma.unsqueeze(-1))


def gaussian_capacity(covariance: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """``1/2 ln det(Sigma_D + Sigma_xi) / det Sigma_xi`` for any two covariances ``[..., d, d]``, nats, ``[...]``.

    Raises:
        ConfigError: the covariance of the noise is not positive definite.
    """
    root, info = torch.linalg.cholesky_ex(noise)
    if bool((info != 0).any()):
        raise ConfigError("the covariance of noise must be positive definite")
    half = torch.linalg.solve_triangular(root, covariance, upper=False)
    whitened = torch.linalg.solve_triangular(root, half.mT, upper=False)  # root^-1 Sigma_D root^-T
    return capacity(torch.linalg.eigvalsh((whitened + whitened.mT) / 2), 1.0)


def _rank(known: torch.Tensor) -> torch.Tensor:
    """Number of positive values of a clipped spectrum, int64 ``[...]``.

    Raises:
        ConfigError: there are none.
    """
    rank = (known > 0).sum(dim=-1)
    if bool((rank == 0).any()):
        raise ConfigError("all eigenvalues are zero: constant data have capacity 0 under any noise")
    return rank


def _log_expm1(x: torch.Tensor) -> torch.Tensor:
    """``ln(e^x - 1)`` for positive ``x`` of any size."""
    return x + (-torch.expm1(-x)).log()


def _representable(variance: torch.Tensor) -> torch.Tensor:
    """A variance that did not under- or overflow.

    Raises:
        ConfigError: it did.
    """
    if not bool(((variance > 0) & variance.isfinite()).all()):
        raise ConfigError("no variance that this number format can hold limits these data to that capacity")
    return variance


def natural_variance(eigenvalues: torch.Tensor, kappa: torch.Tensor | float) -> torch.Tensor:
    """The Natural Channel: the variance ``sigma`` at which ``f(sigma) = kappa``, ``[...]``.

    With ``r`` eigenvalues above zero, of geometric mean ``G`` and mean ``A``, the root lies between
    ``G / (e^(2 kappa / r) - 1)`` and ``A / (e^(2 kappa / r) - 1)``, since ``ln(1 + e^t)`` is convex in ``t`` and
    ``ln(1 + t)`` concave. The bracket is halved in ``ln sigma`` down to its last bit. In float64 the residual
    ``|f(sigma) - kappa|`` stays below 1e-10 for thousands of dimensions and nats.

    Args:
        eigenvalues: ``[..., d]``.
        kappa: capacity in nats, a positive number or ``[...]`` (``[K]`` with one spectrum ``[d]`` gives ``[K]``).

    Raises:
        ConfigError: ``kappa`` is not positive; all eigenvalues of a spectrum are zero; ``sigma`` is beyond the range of
            the number format; as :func:`clipped_spectrum`.
    """
    target = positive(kappa, "the capacity", eigenvalues)
    known = clipped_spectrum(eigenvalues)
    rank = _rank(known)
    logs = known.log()  # -inf where zero
    offset = _log_expm1(2 * target / rank)
    low = torch.where(known > 0, logs, 0.0).sum(dim=-1) / rank - offset
    high = (known.sum(dim=-1) / rank).log() - offset
    zero = logs.new_zeros(())
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        carries = torch.logaddexp(zero, logs - middle.unsqueeze(-1)).sum(dim=-1) / 2
        more = carries > target
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return _representable(((low + high) / 2).exp())


def white_factor(rank: torch.Tensor | int, kappa: torch.Tensor | float) -> torch.Tensor:
    """The White Channel's noise over the data: ``Sigma_xi = factor Sigma_D``, ``1 / (e^(2 kappa / r) - 1)``, ``[...]``.

    Any square root of the data's covariance draws such noise: with centred data ``X_c`` of ``N`` rows and ``z`` of
    ``N`` standard normals, ``sqrt(factor / N) X_c^T z``; no eigenvectors are needed.

    Args:
        rank: ``r``, of the covariance; the paper has ``d`` here (eq. 19), which spends only ``kappa r / d``.
        kappa: capacity in nats, a number or ``[...]``.

    Raises:
        ConfigError: either is not positive; the factor is beyond the range of the number format.
    """
    directions = positive(rank, "the rank of the data's covariance")
    target = positive(kappa, "the capacity")
    return _representable((-_log_expm1(2 * target / directions)).exp())


def white_variances(
    eigenvalues: torch.Tensor, kappa: torch.Tensor | float, form: WhiteForm = "corrected"
) -> torch.Tensor:
    """The White Channel: noise along every eigenvector that leaves each the same capacity, ``[..., d]`` (eq. 19).

    Args:
        eigenvalues: ``[..., d]``.
        kappa: capacity in nats, a positive number or ``[...]``.
        form: ``corrected`` gives ``kappa / r`` to each of the ``r`` directions that hold data;
            ``as_printed`` gives ``kappa / d``, so less than ``kappa`` in all where the covariance is singular.

    Raises:
        ConfigError: as :func:`natural_variance`.
    """
    known = clipped_spectrum(eigenvalues)
    rank = _rank(known)
    directions = rank if form == "corrected" else torch.full_like(rank, known.shape[-1])
    return white_factor(directions, positive(kappa, "the capacity", eigenvalues)).unsqueeze(-1) * known


def batch_capacity(
    eigenvalues: torch.Tensor,
    variance: torch.Tensor | float,
    batch: torch.Tensor | float,
    noise: BatchNoise = "constant",
) -> torch.Tensor:
    """Capacity of the mean of a batch, nats, ``[...]``: its covariance is ``Sigma / B``.

    Args:
        eigenvalues: of one sample's contribution, ``[..., d]``.
        variance: ``sigma``, a number or ``[...]``.
        batch: ``B``, a positive number or ``[...]``.
        noise: ``constant``: noise of variance ``sigma`` on the mean (eq. 24), capacity falls with ``B``;
            ``dp``: noise of variance ``sigma`` on the sum, so ``sigma / B^2`` on the mean, as in DP-SGD: it grows.

    Raises:
        ConfigError: as :func:`capacity`; ``batch`` is not positive.
    """
    size = positive(batch, "the batch size", eigenvalues)
    sigma = positive(variance, "the variance of noise", eigenvalues)
    return capacity(eigenvalues, sigma * size if noise == "constant" else sigma / size)


def accumulated_capacity(
    eigenvalues: torch.Tensor, variance: torch.Tensor | float, visits: torch.Tensor | float, noise_mode: NoiseMode
) -> torch.Tensor:
    """Bound on the information about a sample in training that visits it ``v`` times, nats, ``[...]``.

    Args:
        eigenvalues: ``[..., d]``.
        variance: ``sigma``, a number or ``[...]``.
        visits: ``v``, a positive number or ``[...]``; see :func:`visits_per_sample`.
        noise_mode: ``once``: one draw of the noise for all visits, ``f(sigma)`` (data processing);
            ``fresh``: one per visit, whose mean has the variance ``sigma / v``: ``f(sigma / v) <= v f(sigma)``.

    Raises:
        ConfigError: as :func:`capacity`; ``visits`` is not positive.
    """
    count = positive(visits, "the number of visits", eigenvalues)
    sigma = positive(variance, "the variance of noise", eigenvalues)
    return capacity(eigenvalues, sigma / count if noise_mode == "fresh" else sigma * torch.ones_like(count))


def visits_per_sample(steps: float, batch: float, samples: float) -> float:
    """``v = n B / N``: mean uses of each of ``N`` samples in ``n`` steps with batches of ``B``."""
    return steps * batch / samples


def total_information(kappa: float, steps: float) -> float:
    """``TotalInfo = n kappa`` nats: the paper's bound on what ``n`` steps of capacity ``kappa`` reveal (eq. 9)."""
    return steps * kappa
