"""How much noise a capacity asks for: the one place where data-space channels solve for it.

With a noise of covariance ``sigma K`` a Gaussian sample of covariance ``Sigma`` leaks
``f(sigma) = 1/2 sum_i ln(1 + mu_i / sigma)`` nats, where ``mu_i`` are the eigenvalues of ``K^-1/2 Sigma K^-1/2``. It
falls from infinity to zero, so ``f(sigma) = kappa`` has one root. Source: Tan et al. (2024), Theorems 2 and 3.
"""

from __future__ import annotations

import math
from typing import Literal

from leakbench.errors import ConfigError
from leakbench.lazy import torch

Solution = Literal["exact", "bound"]
BISECTIONS = 100
"""Of an interval of at most 1400 in ``ln sigma``: far below float64's resolution."""


def capacity(signal_to_noise: torch.Tensor) -> torch.Tensor:
    """``1/2 sum_i ln(1 + snr_i)`` of ratios ``[..., d]``, in nats."""
    return 0.5 * signal_to_noise.log1p().sum(dim=-1)


def natural_variance(eigenvalues: torch.Tensor, kappa: float) -> torch.Tensor:
    """The variance ``sigma`` of isotropic noise at which ``f(sigma) = kappa``.

    Args:
        eigenvalues: of the covariance, not negative, float64 ``[..., d]``.
        kappa: nats, positive.

    Returns:
        ``[...]``; zero where all eigenvalues are zero.

    Raises:
        ConfigError: kappa is so large that the noise would be below the smallest normal number.
    """
    largest = eigenvalues.amax(dim=-1)
    scale = torch.where(largest > 0, largest, 1.0)
    relative = eigenvalues / scale.unsqueeze(-1)
    # f(sigma) <= sum / (2 sigma) gives the upper end, f(sigma) >= ln(1 + largest / sigma) / 2 the lower one.
    high = (relative.sum(dim=-1).clamp(min=1.0) / (2 * kappa)).log()
    low = torch.full_like(high, max(-2 * kappa - 1, -700.0))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        above = capacity(relative / middle.exp().unsqueeze(-1)) > kappa
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    sigma = torch.where(largest > 0, middle.exp() * scale, 0.0)
    if bool((middle < -699).any()):
        raise ConfigError(f"kappa {kappa:g} asks for no noise at all on data of so few dimensions; lower it")
    return sigma


def white_factor(kappa: float, dimensions: int) -> float:
    """The factor ``1 / (e^(2 kappa / r) - 1)`` between the noise's covariance and the data's (section 5.3).

    Raises:
        ConfigError: kappa is so large that the factor cannot be told from zero.
    """
    exponent = 2 * kappa / dimensions
    if exponent > 700:
        raise ConfigError(f"kappa {kappa:g} asks for no noise at all on data of {dimensions} dimension(s); lower it")
    return 1 / math.expm1(exponent)


def personalized_scale(
    covariance: torch.Tensor, beta: torch.Tensor, kappa: float, solution: Solution
) -> tuple[float, torch.Tensor]:
    """The ``sigma`` of a noise ``N(0, sigma diag(beta))``, and the eigenvalues ``mu``, ``[d]``.

    Args:
        covariance: ``[d, d]``, float64.
        beta: positive, ``[d]``.
        kappa: nats.
        solution: ``exact`` solves ``f(sigma) = kappa``; ``bound`` solves ``U(sigma) = kappa`` with the upper bound
            ``U >= f`` of Theorem 3 (its factor and sum put right), and adds more noise than that.
    """
    root = beta.sqrt()
    mu = torch.linalg.eigvalsh(covariance / root / root[:, None]).clamp(min=0).flip(0)
    mu = torch.where(mu > len(mu) * torch.finfo(mu.dtype).eps * mu[0], mu, 0.0)
    if solution == "exact" or not bool(mu.any()):
        return float(natural_variance(mu, kappa)), mu
    return _bound_scale(covariance, beta, kappa), mu


def _bound_scale(covariance: torch.Tensor, beta: torch.Tensor, kappa: float) -> float:
    """The root of ``U`` (Theorem 3): the smaller of a diagonal branch and a branch of leading blocks."""
    d = len(beta)
    variances = covariance.diagonal()
    ridge = 0.0  # Theorem 3 divides by leading blocks; a singular covariance gets a small multiple of the identity
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if int(failed):
        ridge = 1e-6 * float(variances.mean())
        factor = torch.linalg.cholesky(covariance + ridge * torch.eye(d, dtype=beta.dtype, device=beta.device))
    pivots = factor.diagonal()
    unit = factor / pivots
    inverse = torch.linalg.solve_triangular(
        unit, torch.eye(d, dtype=beta.dtype, device=beta.device), upper=False, unitriangular=True
    )
    u, k = pivots.square(), inverse.square() @ beta

    def bound(sigma: float) -> float:
        diagonal = ((variances + ridge) / (sigma * beta)).log1p().sum()
        blocks = (u + sigma * k).log().sum() - (sigma * beta).log().sum()
        return 0.5 * float(torch.minimum(diagonal, blocks))

    # Both branches fall, and the diagonal one alone is f of the variances over beta.
    high = math.log(float(natural_variance((variances + ridge) / beta, kappa)))
    low = high - 600.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if bound(math.exp(middle)) > kappa else (low, middle)
    return math.exp(high)
