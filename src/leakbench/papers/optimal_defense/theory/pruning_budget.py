"""The random pruning that reveals least at a given utility: Theorem 4 as the fractional knapsack that it is.

For pruning a given part of the coordinates, as the experiments do, see :func:`leakbench.theory.optimal_noise.pruned`.
Source: Chen, Gürsoy and Lei (2024), Theorem 4, eqs. 14 to 17 and Remark 2.
"""

from __future__ import annotations

from typing import Literal

from leakbench.lazy import torch


def keep_probabilities(
    sensitivity: torch.Tensor,
    energy: torch.Tensor,
    budget: torch.Tensor | float,
    form: Literal["corrected", "as_printed"] = "corrected",
) -> torch.Tensor:
    """Probabilities ``q_i`` of keeping each coordinate: least ``sum q_i a_i`` with ``sum q_i b_i >= C``, ``[..., d]``.

    All are 0 or 1, but for one coordinate at the border.

    Args:
        sensitivity: ``a_i``, ``[..., d]``: what the coordinate reveals, under noise that is the same for all. Under
            optimal noise it is ``sqrt(a_i b_i)``, and the result is the same.
        energy: ``b_i = E g_i^2``, ``[..., d]``: what it contributes to ``U1``.
        budget: ``C``, the ``U1`` to keep; a number or ``[...]``.
        form: ``corrected`` keeps the smallest ``a_i / b_i``, which is optimal, the earlier first among equals, and
            everything that reveals nothing; ``as_printed`` keeps the largest, since the theorem is worded so that the
            smallest are pruned.

    Raises:
        ValueError: the budget is more than the whole gradient has.
    """
    goal = torch.as_tensor(budget, dtype=energy.dtype, device=energy.device).unsqueeze(-1)
    slack = 1 + energy.shape[-1] * torch.finfo(energy.dtype).eps  # of sums in another order
    if bool((goal > slack * energy.sum(dim=-1, keepdim=True)).any()):
        raise ValueError("the budget is more than the utility of the whole gradient")
    price = torch.where(sensitivity > 0, sensitivity / energy, 0.0)
    order = price.argsort(dim=-1, descending=form == "as_printed", stable=True)
    gained = energy.gather(-1, order)
    missing = goal - (gained.cumsum(dim=-1) - gained)
    # Without energy a coordinate that reveals something is last in line, and first in the printed one.
    useless = (missing > 0).to(energy.dtype) if form == "as_printed" else torch.zeros_like(missing)
    share = torch.where(gained > 0, (missing / gained).clamp(0, 1), useless)
    keep = torch.empty_like(share).scatter_(-1, order, share)
    return keep if form == "as_printed" else torch.where(sensitivity > 0, keep, 1.0)
