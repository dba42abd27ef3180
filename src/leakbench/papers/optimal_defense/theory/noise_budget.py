"""The diagonal Gaussian noise that reveals least at a given loss of utility: Theorems 2 and 3, in their global form.

``sensitivity`` is ``a_i = E ||grad_x g_i||^2`` and ``energy`` is ``b_i = E g_i^2``, both ``[..., d]``. The budget
``C``, a number or ``[...]``, is the variance of ``<g, y>`` that the noise causes: ``sum_i b_i variance_i = C = -U2``.
For the local form (one input: ``b_i = g_i^2``) with its floor and ceiling see :mod:`leakbench.theory.optimal_noise`.
Source: Chen, Gürsoy and Lei (2024).
"""

from __future__ import annotations

from typing import Literal

from leakbench.lazy import torch


def _at_budget(ratio: torch.Tensor, energy: torch.Tensor, budget: torch.Tensor | float) -> torch.Tensor:
    """Variances proportional to ``ratio`` that spend the budget."""
    spent = (energy * ratio).sum(dim=-1)
    return torch.where(ratio > 0, (budget / spent).unsqueeze(-1) * ratio, 0.0)  # without any ratio, nothing is spent


def isotropic_variance(energy: torch.Tensor, budget: torch.Tensor | float) -> torch.Tensor:
    """The same variance everywhere, ``C / sum b``, ``[..., d]``."""
    return _at_budget(torch.ones_like(energy), energy, budget)


def optimal_variance(sensitivity: torch.Tensor, energy: torch.Tensor, budget: torch.Tensor | float) -> torch.Tensor:
    """``lambda sqrt(a_i / b_i)`` with ``lambda = C / sum_j sqrt(a_j b_j)``, ``[..., d]`` (Theorem 2, eqs. 5 to 7).

    Coordinates that tell nothing (``a_i = 0``) get no noise. All others need ``b_i > 0``, as in the theorem.
    """
    ratio = torch.where(sensitivity > 0, (sensitivity / energy).sqrt(), 0.0)
    return _at_budget(ratio, energy, budget)


def minimal_trace(sensitivity: torch.Tensor, energy: torch.Tensor, budget: torch.Tensor | float) -> torch.Tensor:
    """The least ``E tr J_F`` of all diagonal noise, ``(sum_j sqrt(a_j b_j))^2 / C``, ``[...]``."""
    return (sensitivity * energy).sqrt().sum(dim=-1).square() / budget


def gain_over_isotropic(sensitivity: torch.Tensor, energy: torch.Tensor) -> torch.Tensor:
    """Trace under isotropic noise over the minimal one, ``sum a sum b / (sum sqrt(a b))^2 >= 1``, ``[...]``.

    The same at every budget. It is the gain of the bound; the error of an attacker may gain less, or lose.
    """
    return sensitivity.sum(dim=-1) * energy.sum(dim=-1) / minimal_trace(sensitivity, energy, 1.0)


def optimal_clipped_variance(
    sensitivity: torch.Tensor,
    energy: torch.Tensor,
    clipped_energy: torch.Tensor,
    budget: torch.Tensor | float,
    form: Literal["corrected", "as_printed"] = "corrected",
) -> torch.Tensor:
    """The same after elementwise clipping, ``[..., d]`` (Theorem 3, eq. 12).

    Args:
        sensitivity: of the clipped gradient, ``E ||grad_x g_P,i||^2``; 0 where an input is clipped for sure.
        energy: of the unclipped gradient, ``E g_i^2``, which is what noise costs in utility (eq. 11).
        clipped_energy: ``E g_P,i^2``; used by ``as_printed`` alone.
        budget: ``C``; both forms spend exactly that.
        form: ``corrected`` divides by ``energy`` and is optimal; ``as_printed`` divides by ``clipped_energy``, and can
            do worse than isotropic noise.
    """
    if form == "corrected":
        return optimal_variance(sensitivity, energy, budget)
    ratio = torch.where(sensitivity > 0, (sensitivity / clipped_energy).sqrt(), 0.0)
    return _at_budget(ratio, energy, budget)
