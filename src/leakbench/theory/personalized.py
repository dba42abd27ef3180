"""The Personalized Channel: noise of covariance ``sigma diag(beta)``, more on attributes of larger weight ``beta_i``.

Its capacity is ``f(sigma) = 1/2 [ln det(Sigma_D + sigma diag beta) - sum_i ln(sigma beta_i)]``. The paper bounds it
(Theorem 3); since ``f`` is the capacity of the eigenvalues ``mu`` of ``B^-1/2 Sigma_D B^-1/2``, ``B = diag beta``,
under noise of variance ``sigma``, the bound is not needed. Both are here, by name.
Source: Tan et al. (2024), Theorem 3, eq. 20, Fig. 17.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.theory.arguments import positive
from leakbench.theory.capacity import capacity, natural_variance, spectrum

PersonalizedForm = Literal["exact", "bound"]

RIDGE = 1e-6
"""Ridge on the diagonal of a singular covariance for the bound, relative to its mean. Ours."""


class Blocks(NamedTuple):
    """Quantities of Theorem 3 that depend on the data alone; all ``[..., d]``.

    Attributes:
        diagonal: ``c_ii``, the variance of every attribute.
        u: the part of it that the attributes before leave unexplained.
        k: the weight of the same regression's residual: ``beta_i + w_i^T diag(beta_0 .. beta_(i-1)) w_i``.
    """

    diagonal: torch.Tensor
    u: torch.Tensor
    k: torch.Tensor


def eye_weights(channels: int = 3) -> torch.Tensor:
    """The weights of all of the paper's experiments (Fig. 17), float64 ``[channels * 32 * 32]``.

    50 on rows 12 to 19 and columns 8 to 23 of every channel, counted from 0 and inclusive, and 1 elsewhere. The order
    is channel, row, column.
    """
    weights = torch.ones(channels, 32, 32, dtype=torch.float64)
    weights[:, 12:20, 8:24] = 50.0
    return weights.flatten()


def weighted_spectrum(covariance: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """``mu``, the eigenvalues of ``B^-1/2 Sigma_D B^-1/2``, ``[..., d]``; a capacity of them is one of ``f``.

    Args:
        covariance: ``Sigma_D``, ``[..., d, d]``.
        weights: ``beta``, ``[..., d]``, positive.

    Raises:
        ConfigError: a weight is not positive; as :func:`leakbench.theory.capacity.spectrum`.
    """
    root = positive(weights, "the weight of an attribute", covariance).sqrt()
    return spectrum(covariance / (root.unsqueeze(-1) * root.unsqueeze(-2)))


def personalized_capacity(
    covariance: torch.Tensor, weights: torch.Tensor, variance: torch.Tensor | float
) -> torch.Tensor:
    """``f(sigma)``, exactly, nats, ``[...]``.

    Args:
        covariance: ``Sigma_D``, ``[..., d, d]``.
        weights: ``beta``, ``[..., d]``.
        variance: ``sigma``, a positive number or ``[...]``.

    Raises:
        ConfigError: as :func:`weighted_spectrum`; ``sigma`` is not positive.
    """
    return capacity(weighted_spectrum(covariance, weights), variance)


def blocks(covariance: torch.Tensor, weights: torch.Tensor) -> Blocks:
    """``c``, ``u`` and ``k`` of Theorem 3, from one Cholesky factor.

    ``Sigma_D = L diag(u) L^T`` with ones on the diagonal of ``L``, and ``k_i = sum_j (L^-1)_ij^2 beta_j``. They depend
    on the order of the attributes. To a singular covariance a ridge of ``1e-6 tr(Sigma_D) / d`` is added for ``u`` and
    ``k``, which keeps the bound a bound.

    Args:
        covariance: ``Sigma_D``, ``[..., d, d]``.
        weights: ``beta``, ``[..., d]``, positive.

    Raises:
        ConfigError: a weight is not positive; the covariance has a negative eigenvalue or is zero.
    """
    beta = positive(weights, "the weight of an attribute", covariance)
    diagonal = covariance.diagonal(dim1=-2, dim2=-1)
    root, info = torch.linalg.cholesky_ex(covariance)
    pivots = root.diagonal(dim1=-2, dim2=-1)
    rounding = covariance.shape[-1] * torch.finfo(covariance.dtype).eps * diagonal.amax(dim=-1)
    singular = (info != 0) | ~(pivots.amin(dim=-1).square() > rounding)
    if bool(singular.any()):
        ridge = torch.where(singular, RIDGE * diagonal.mean(dim=-1), 0.0)
        eye = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
        root, info = torch.linalg.cholesky_ex(covariance + ridge[..., None, None] * eye)
        if bool((info != 0).any()):
            raise ConfigError("a covariance must have no negative eigenvalues, and not all may be zero")
        pivots = root.diagonal(dim1=-2, dim2=-1)
    unit = root / pivots.unsqueeze(-2)
    identity = torch.eye(unit.shape[-1], dtype=unit.dtype, device=unit.device)
    inverse = torch.linalg.solve_triangular(unit, identity, upper=False, unitriangular=True)
    return Blocks(diagonal, pivots.square(), (inverse.square() @ beta.unsqueeze(-1)).squeeze(-1))


def capacity_bound(parts: Blocks, weights: torch.Tensor, variance: torch.Tensor | float) -> torch.Tensor:
    """``U(sigma) >= f(sigma)``, nats, ``[...]`` (Theorem 3): half the difference of logarithms, not their ratio.

    ``1/2 {min[sum ln(c_ii + sigma beta_i), sum ln(u_i + sigma k_i)] - sum ln(sigma beta_i)}``.

    Args:
        parts: from :func:`blocks`.
        weights: ``beta``, ``[..., d]``.
        variance: ``sigma``, a positive number or ``[...]``.

    Raises:
        ConfigError: ``sigma`` is not positive.
    """
    sigma = positive(variance, "the variance of noise", weights).unsqueeze(-1)
    noise = sigma * weights
    diagonal = (parts.diagonal / noise).log1p().sum(dim=-1)
    regressions = ((parts.u + sigma * parts.k) / noise).log().sum(dim=-1)
    return torch.minimum(diagonal, regressions) / 2


def bound_variance(parts: Blocks, weights: torch.Tensor, kappa: torch.Tensor | float) -> torch.Tensor:
    """``sigma`` at which ``U(sigma) = kappa``, ``[...]``: the paper's procedure; never below the exact one.

    Both branches of ``U`` fall, so its root is the smaller one of theirs, and these are roots of Natural Channels:
    of eigenvalues ``c_ii / beta_i`` at ``kappa``, and of ``u_i / k_i`` at ``kappa - 1/2 sum ln(k_i / beta_i)``. The
    second branch never falls below that sum, and has no root where ``kappa`` is smaller.

    Args:
        parts: from :func:`blocks`.
        weights: ``beta``, ``[..., d]``.
        kappa: capacity in nats, a positive number or ``[...]``.

    Raises:
        ConfigError: as :func:`leakbench.theory.capacity.natural_variance`.
    """
    target = positive(kappa, "the capacity", weights)
    diagonal = natural_variance(parts.diagonal / weights, target)
    above = target - (parts.k / weights).log().sum(dim=-1) / 2
    regressions = natural_variance(parts.u / parts.k, torch.where(above > 0, above, 1.0))
    return torch.where(above > 0, torch.minimum(diagonal, regressions), diagonal)


def personalized_variance(
    covariance: torch.Tensor, weights: torch.Tensor, kappa: torch.Tensor | float, form: PersonalizedForm = "exact"
) -> torch.Tensor:
    """``sigma`` for a capacity, ``[...]``; the noise is ``N(0, sigma diag(beta))``.

    >>> round(float(personalized_variance(torch.eye(2), torch.tensor([1.0, 50.0]), kappa=1.0)), 3)
    0.177

    Args:
        covariance: ``Sigma_D``, ``[..., d, d]``.
        weights: ``beta``, ``[..., d]``, positive.
        kappa: capacity in nats, a positive number or ``[...]``.
        form: ``exact`` solves ``f(sigma) = kappa``; ``bound`` solves ``U(sigma) = kappa`` (the paper), and leaves less
            than ``kappa``: see :func:`personalized_capacity` for how much.

    Raises:
        ConfigError: as :func:`weighted_spectrum`, :func:`blocks` and
            :func:`leakbench.theory.capacity.natural_variance`.
    """
    if form == "exact":
        return natural_variance(weighted_spectrum(covariance, weights), kappa)
    return bound_variance(blocks(covariance, weights), positive(weights, "the weight", covariance), kappa)


def ratio_as_printed(covariance: torch.Tensor, weights: torch.Tensor, variance: torch.Tensor | float) -> torch.Tensor:
    """``ln det(Sigma_D + sigma diag beta) / (2 sum_i ln(sigma beta_i))``, ``[...]`` (eq. 20): no capacity.

    It is a quotient where a difference is meant: it tends to 1/2 under infinite noise, and has a pole.

    Args:
        covariance: ``Sigma_D``, ``[..., d, d]``.
        weights: ``beta``, ``[..., d]``, positive.
        variance: ``sigma``, a positive number or ``[...]``.
    """
    beta = positive(weights, "the weight of an attribute", covariance)
    noise = positive(variance, "the variance of noise", covariance).unsqueeze(-1) * beta
    ratio: torch.Tensor = torch.logdet(covariance + torch.diag_embed(noise)) / (2 * noise.log().sum(dim=-1))
    return ratio
