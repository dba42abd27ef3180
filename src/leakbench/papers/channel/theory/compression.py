"""Capacity that compression takes from a channel with noise of variance ``sigma``.

It drops eigen-directions or coordinates.

Source: Tan et al. (2024), Appendix E, Fig. 7.
"""

from __future__ import annotations

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.theory.arguments import positive
from leakbench.theory.capacity import capacity, clipped_spectrum, natural_variance, spectrum


def direction_loss(eigenvalue: torch.Tensor, variance: torch.Tensor | float) -> torch.Tensor:
    """Capacity that dropping an eigen-direction removes, ``1/2 ln(1 + lambda / sigma)``, nats, ``[...]``.

    It grows with the eigenvalue: drop the largest.

    Args:
        eigenvalue: ``[...]``.
        variance: ``sigma``, a positive number or ``[...]``.

    Raises:
        ConfigError: ``sigma`` is not positive, or the eigenvalue negative.
    """
    return capacity(eigenvalue.unsqueeze(-1), variance)


def without_directions(eigenvalues: torch.Tensor, dropped: torch.Tensor) -> torch.Tensor:
    """The spectrum after compression in eigenspace: zero where ``dropped``, boolean ``[..., d]``, is true."""
    return torch.where(dropped, 0.0, clipped_spectrum(eigenvalues))


def kept_covariance(covariance: torch.Tensor, dropped: torch.Tensor) -> torch.Tensor:
    """The covariance of the coordinates that are kept, ``[..., d - k, d - k]``.

    Args:
        covariance: ``[..., d, d]``.
        dropped: boolean ``[d]``.

    Raises:
        ConfigError: nothing is kept.
    """
    kept = (~dropped).nonzero().flatten()
    if len(kept) == 0:
        raise ConfigError("compression must keep at least one coordinate")
    return covariance[..., kept[:, None], kept]


def coordinate_loss(covariance: torch.Tensor, variance: torch.Tensor | float, dropped: torch.Tensor) -> torch.Tensor:
    """``Delta C``, the capacity that dropping coordinates removes, nats, ``[...]``, never negative.

    With ``P`` of what is kept, ``Q`` of what is dropped and ``R`` between, it is
    ``1/2 ln det(Q + sigma I - R^T (P + sigma I)^-1 R) / sigma^k``.

    Args:
        covariance: ``[..., d, d]``.
        variance: ``sigma``, a positive number or ``[...]``.
        dropped: boolean ``[d]``.

    Raises:
        ConfigError: ``sigma`` is not positive; nothing is kept.
    """
    sigma = positive(variance, "the variance of noise", covariance)[..., None, None]
    first, last = (~dropped).nonzero().flatten(), dropped.nonzero().flatten()
    between = covariance[..., first[:, None], last]
    inside = covariance[..., last[:, None], last]

    def noise(size: int) -> torch.Tensor:
        return sigma * torch.eye(size, dtype=covariance.dtype, device=covariance.device)

    explained = torch.linalg.solve(kept_covariance(covariance, dropped) + noise(len(first)), between)
    schur = (inside - between.mT @ explained) / sigma
    return torch.logdet(schur + torch.eye(len(last), dtype=covariance.dtype, device=covariance.device)) / 2


def coordinate_capacity(
    covariance: torch.Tensor, variance: torch.Tensor | float, dropped: torch.Tensor
) -> torch.Tensor:
    """The capacity of the coordinates that are kept, nats, ``[...]``.

    Args:
        covariance: ``[..., d, d]``.
        variance: ``sigma``, a positive number or ``[...]``.
        dropped: boolean ``[d]``.

    Raises:
        ConfigError: nothing is kept; as :func:`leakbench.theory.capacity.spectrum`.
    """
    return capacity(spectrum(kept_covariance(covariance, dropped)), variance)


def equivalent_variance(eigenvalues: torch.Tensor, kept_capacity: torch.Tensor | float) -> torch.Tensor:
    """The variance ``sigma'`` under which all coordinates have the capacity of those that are kept, ``[...]`` (Fig. 7).

    It exceeds ``sigma`` where dropped coordinates carry information: compressing is adding noise.

    Args:
        eigenvalues: of all coordinates, ``[..., d]``.
        kept_capacity: of those that are kept, under ``sigma``, nats, positive.

    Raises:
        ConfigError: as :func:`leakbench.theory.capacity.natural_variance`.
    """
    return natural_variance(eigenvalues, kept_capacity)
