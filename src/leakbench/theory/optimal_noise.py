"""Optimal diagonal noise and pruning, in their local form: one gradient and its sensitivities to the input.

Source: Chen, Gürsoy and Lei (2024), *Optimal Defenses Against Gradient Reconstruction Attacks*. The gradient is ``g``,
and ``a_i = ||grad_x g_i||^2``. All functions take and return tensors of any floating type, ``[..., d]``, and treat
every row by itself. Variances, not standard deviations, carry the ratio.
"""

from __future__ import annotations

from typing import Literal

from leakbench.lazy import torch

Form = Literal["corrected", "as_printed", "as_released"]
ScaleMode = Literal["rms", "fro", "u2"]
SCALE_MODES = (
    "rms: root mean square of the standard deviations; fro: Frobenius norm of the covariance; u2: variance of <g, y>, "
    "of the gradient and the noise"
)
"""Description of the parameter."""

RATIO_FLOOR = 1e-6
"""Least magnitude of a gradient entry that the ratio divides by (the paper's c, Algorithm 1)."""
RATIO_CEILING = 1e6
"""Upper limit of the ratio: the paper (Appendix B) asks for one and gives no value; this is the released code's."""


def variance_ratio(
    sensitivity: torch.Tensor, gradient: torch.Tensor, form: Form = "corrected", released_floor: float = 1e-8
) -> torch.Tensor:
    """The ratio ``r_i`` to which the optimal variance of coordinate ``i`` is proportional, ``[..., d]``.

    >>> variance_ratio(torch.tensor([4.0, 1.0, 0.0]), gradient=torch.tensor([0.5, -2.0, 1.0]))
    tensor([4.0000, 0.5000, 0.0000])

    Args:
        sensitivity: ``a_i``, non-negative, ``[..., d]``.
        gradient: ``g_i``, ``[..., d]``.
        form: ``corrected`` is ``sqrt(a_i) / max(|g_i|, 1e-6)`` (eq. 8, with the floor of Algorithm 1);
            ``as_printed`` is ``a_i / max(|g_i|, 1e-6)`` (eq. 19, which squares the norm by mistake);
            ``as_released`` is the first with the floor of the released code.
        released_floor: the floor of ``as_released``: 1e-8 for noise and pruning, 1e-6 for clipped noise.
    """
    floor = released_floor if form == "as_released" else RATIO_FLOOR
    numerator = sensitivity if form == "as_printed" else sensitivity.sqrt()
    return (numerator / gradient.abs().clamp_(min=floor)).clamp_(max=RATIO_CEILING)


def unsigned_ratio(sensitivity: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The ratio where released code forgets the absolute value of ``g_i``, ``[..., d]``: in Fig. 14 and in rounding.

    ``max(g_i, 1e-6)`` stands for ``max(|g_i|, 1e-6)``, so that every negative entry counts as one of 1e-6; and no ratio
    is below 1e-6.

    >>> unsigned_ratio(torch.tensor([4.0, 4.0, 0.0]), gradient=torch.tensor([0.5, -0.5, 1.0]))
    tensor([4.0000e+00, 1.0000e+06, 1.0000e-06])

    Args:
        sensitivity: ``a_i``, non-negative, ``[..., d]``.
        gradient: ``g_i``, ``[..., d]``.
    """
    return variance_ratio(sensitivity, gradient.clamp(min=0)).clamp(min=RATIO_FLOOR)


def scale_variance(ratio: torch.Tensor, gradient: torch.Tensor, scale: float, mode: ScaleMode) -> torch.Tensor:
    """Variances ``[..., d]`` proportional to ``ratio`` whose size is ``scale`` in the sense of ``mode``.

    Args:
        ratio: ``r_i >= 0``, ``[..., d]``; all ones give isotropic noise.
        gradient: ``g_i``, ``[..., d]``; used by ``u2`` alone.
        scale: the noise scale, ``s >= 0``.
        mode: ``rms``: the root-mean-square standard deviation is ``s`` (the released code);
            ``fro``: the Frobenius norm of the covariance is ``s`` (the caption of Fig. 5);
            ``u2``: the variance of ``<g, y>`` is ``s``, the budget of the theorems.

    A row whose ratios are all zero, or under ``u2`` its gradient, gets no noise.
    """
    if mode == "rms":
        total, size = ratio.mean(dim=-1, keepdim=True), scale**2
    elif mode == "fro":
        total, size = ratio.norm(dim=-1, keepdim=True), scale
    else:
        total, size = (gradient.square() * ratio).sum(dim=-1, keepdim=True), scale
    return size * ratio / torch.where(total > 0, total.clamp(min=torch.finfo(ratio.dtype).tiny), torch.inf)


def pruned(ratio: torch.Tensor, fraction: float, form: Form = "corrected") -> torch.Tensor:
    """Mask of the coordinates to prune, boolean, from the ratios ``r_i`` of :func:`variance_ratio` (Theorem 4, eq. 17).

    Args:
        ratio: ``r_i >= 0``, ``[..., d]``.
        fraction: the part to prune, in [0, 1].
        form: ``corrected`` prunes exactly ``floor(fraction * d)`` coordinates, the largest ratios, the earlier first
            among equals; ``as_printed`` prunes the smallest, as the theorem's wording says (its proof, and the
            authors' code, prune the largest); ``as_released`` prunes all that reach the threshold, ties included,
            and everything at fraction 0, where its threshold index becomes -1.
    """
    count = int(fraction * ratio.shape[-1])
    if form == "as_released":
        threshold = ratio.sort(dim=-1, descending=True).values[..., count - 1, None]
        return ratio >= threshold
    order = ratio.argsort(dim=-1, descending=form == "corrected", stable=True)
    return torch.zeros_like(ratio, dtype=torch.bool).scatter_(-1, order[..., :count], True)
