"""Exact Rényi divergence of two normal distributions, with which bounds are compared.

Source: Gil et al. (2013), as eq. 22 of Zhang et al. (2024). Nats, float64.
"""

from __future__ import annotations

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.theory.arguments import positive


def renyi_divergence(
    mean: torch.Tensor,
    covariance: torch.Tensor,
    other_mean: torch.Tensor,
    other_covariance: torch.Tensor,
    order: torch.Tensor | float,
) -> torch.Tensor:
    """``D_a(P || Q)`` of ``P = N(mean, covariance)`` and ``Q`` of the others, ``[...]``; it may be infinite.

    With ``S = (1 - a) S_P + a S_Q`` it is ``a/2 d^T S^-1 d - ln(|S| / (|S_P|^(1 - a) |S_Q|^a)) / (2 (a - 1))``.
    Infinite where ``S`` is not positive definite, and where the two do not have the same support. Covariances may be
    singular: eigenvalues of their sum within rounding of zero count as zero, and so does a part of ``d`` outside of the
    support below 1e-8 of ``d``. They are whitened by their sum; then both have the same eigenvectors, and ``S`` has the
    eigenvalues ``(1 + (2 a - 1) e) / 2`` with ``e`` those of the difference.

    Args:
        mean: ``[..., K]``.
        covariance: ``[..., K, K]``, positive semi-definite.
        other_mean: ``[..., K]``.
        other_covariance: ``[..., K, K]``.
        order: ``a > 1``, a number or ``[...]``.

    Raises:
        ConfigError: an order is not above 1; a mean or a covariance is not finite.
    """
    for moment in (mean, covariance, other_mean, other_covariance):
        if not bool(moment.isfinite().all()):
            raise ConfigError("the divergence needs means and covariances of finite numbers")
    above = positive(torch.as_tensor(order, dtype=mean.dtype) - 1, "the order of the divergence minus 1")
    size, rounding = mean.shape[-1], mean.shape[-1] * torch.finfo(mean.dtype).eps

    values, vectors = torch.linalg.eigh(covariance + other_covariance)
    held = values > rounding * values[..., -1:].clamp(min=0)
    whiten = vectors * torch.where(held, values, 1.0).rsqrt().unsqueeze(-2)
    shift = vectors.mT @ (mean - other_mean).unsqueeze(-1)
    shift = shift.squeeze(-1)
    length = shift.abs().amax(dim=-1, keepdim=True)
    outside = (~held & (shift.abs() > 1e-8 * length)).any(dim=-1)

    inside = held.unsqueeze(-1) & held.unsqueeze(-2)
    difference = torch.where(inside, whiten.mT @ (other_covariance - covariance) @ whiten, 0.0)
    turned, axes = torch.linalg.eigh((difference + difference.mT) / 2)
    moved = axes.mT @ torch.where(held, shift * torch.where(held, values, 1.0).rsqrt(), 0.0).unsqueeze(-1)

    lead = above.unsqueeze(-1)
    mixed = 1 + (2 * lead + 1) * turned  # twice the eigenvalue of S
    slack = 8 * size * rounding
    apart = ((mixed <= slack * (2 * lead + 1)) | (turned.abs() >= 1 - slack)).any(dim=-1)
    safe = torch.where(apart.unsqueeze(-1), 0.0, turned)
    mixed = 1 + (2 * lead + 1) * safe
    relative = 2 * safe / (1 + safe)  # of the difference, in units of Q's covariance
    spread = -(lead * relative).log1p() - lead * (-relative).log1p()
    distance = (above + 1) * (moved.squeeze(-1).square() / mixed).sum(dim=-1)
    divergence = distance + spread.sum(dim=-1) / (2 * above)
    return torch.where(apart | outside, torch.inf, divergence)
