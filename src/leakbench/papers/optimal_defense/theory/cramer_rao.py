"""Bayesian Cramér-Rao bounds on the squared error of every reconstruction, and the case where the error is known.

The input ``x`` has ``m`` entries (a client's whole batch, flattened) and a prior whose information matrix is
``J_P = E[grad log p(x) grad log p(x)^T]``. Errors are sums over the ``m`` entries; over ``m`` they are means per pixel.
Source: Chen, Gürsoy and Lei (2024), Theorem 1.
"""

from __future__ import annotations

from typing import Literal

from leakbench.lazy import torch
from leakbench.theory.fisher import gaussian_information

BoundForm = Literal["corrected", "sharper", "smallest_eigenvalue", "parameter_count", "as_printed"]


def error_bound(
    trace: torch.Tensor, prior: torch.Tensor, form: BoundForm = "corrected", parameters: int | None = None
) -> torch.Tensor:
    """Lower bound on ``E ||R(y) - x||^2`` for every attacker ``R``, ``[...]`` (Theorem 1, eq. 1).

    Args:
        trace: mean over the inputs of the trace of the message's Fisher information, ``E tr J_F``, ``[...]``.
        prior: all ``m`` eigenvalues of ``J_P``, ``[..., m]``, in any order. Zeros are a flat prior.
        form: ``corrected``: ``m^2 / (trace + m lambda_max)``;
            ``sharper``: ``m^2 / (trace + tr J_P)``, never below ``corrected``, and as general.
            The others are readings of the print, and no bounds:
            ``smallest_eigenvalue``: ``m^2 / (trace + m lambda_min)``, as the proof orders eigenvalues;
            ``parameter_count``: ``d^2 / (trace + d lambda_max)``, with the printed ``d`` as the number of parameters;
            ``as_printed``: both at once, ``d^2 / (trace + d lambda_min)``.
        parameters: ``d``, for the forms that use it.

    Raises:
        ValueError: the form needs ``parameters``.
    """
    if form in ("parameter_count", "as_printed") and parameters is None:
        raise ValueError(f"form '{form}' needs the number of parameters")
    inputs = prior.shape[-1]
    size = inputs if parameters is None or form not in ("parameter_count", "as_printed") else parameters
    if form == "sharper":
        known = prior.sum(dim=-1)
    else:
        extreme = prior.amin(dim=-1) if form in ("smallest_eigenvalue", "as_printed") else prior.amax(dim=-1)
        known = size * extreme
    bound: torch.Tensor = size**2 / (trace + known)
    return bound


def mixed_error_bound(
    traces: torch.Tensor, probabilities: torch.Tensor, prior: torch.Tensor, form: BoundForm = "corrected"
) -> torch.Tensor:
    """The bound for a defense that draws one of ``n`` mechanisms, which the attacker may see, ``[...]`` (eq. 2).

    It is the bound at the mean trace. The mean of the mechanisms' own bounds, which is a bound too, is never smaller.

    Args:
        traces: ``E tr J_F`` of each mechanism, ``[..., n]``.
        probabilities: of each, ``[..., n]``, summing to 1.
        prior: as for :func:`error_bound`, ``[..., m]``.
        form: as for :func:`error_bound`.
    """
    # A mechanism that is never drawn counts 0 even where it would reveal everything.
    mean = torch.where(probabilities > 0, probabilities * traces, 0.0).sum(dim=-1)
    return error_bound(mean, prior, form)


def linear_gaussian_error(jacobian: torch.Tensor, variance: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """The least error that any attacker reaches where ``g`` is linear and ``x`` normal, ``[...]``: the bounds' referee.

    It is ``tr (J_P + J^T diag(1 / variance) J)^-1``, the error of the posterior mean.

    Args:
        jacobian: of ``g``, ``[..., d, m]``.
        variance: of the noise, ``[..., d]``, positive.
        prior: ``J_P``, the inverse of the covariance of ``x``, ``[..., m, m]``.
    """
    information = prior + gaussian_information(jacobian, variance)
    error: torch.Tensor = torch.linalg.inv(information).diagonal(dim1=-2, dim2=-1).sum(dim=-1)
    return error
