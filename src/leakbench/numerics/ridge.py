"""Linear ridge regression with more features than samples, its strength chosen by leave-one-out errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leakbench.lazy import torch


class Predicted(NamedTuple):
    """Predictions, and how good they should be.

    Attributes:
        values: ``[q, p]``, float64.
        strength: the chosen strength of the penalty.
        error: mean squared leave-one-out error at that strength.
    """

    values: torch.Tensor
    strength: float
    error: float


def ridge(
    features: torch.Tensor,
    targets: torch.Tensor,
    queries: torch.Tensor,
    weights: torch.Tensor,
    judged: torch.Tensor,
    strengths: Sequence[float],
    asked: torch.Tensor | None = None,
) -> Predicted:
    """Predict targets from features, linearly.

    Minimises ``sum_i w_i ||y_i - b - A x_i||^2 + strength m ||A||^2`` over ``A`` and ``b``, where ``m`` is the mean
    eigenvalue of the weighted, centred Gram matrix ``G = diag(w)^1/2 K diag(w)^1/2``. One eigendecomposition of it
    serves all strengths. The leave-one-out errors are exact: with ``C = (G + strength m)^-1`` without the direction of
    constant targets, the residual of sample ``i`` is ``alpha_i / C_ii`` (Allen 1974, in the duals ``alpha``).

    Where features are noisy and samples are means of several draws, a query has more noise than a sample. Then
    ``asked`` is what is left out is asked with: one draw. Its residual is ``r_i + r_i <d_i, C_i> - <d_i, alpha>`` for
    the products ``d_i`` of all samples with the difference of the draw from the mean.

    Args:
        features: ``[n, d]``, at least two samples.
        targets: ``[n, p]``.
        queries: features whose targets are predicted, ``[q, d]``.
        weights: of the samples, positive, ``[n]``.
        judged: the samples whose leave-one-out errors choose the strength, boolean ``[n]``.
        strengths: positive; of equally good ones the first.
        asked: features of the judged samples when they are left out and predicted, ``[j, d]``; by default their own.
    """
    weights = weights.double()
    share = weights / weights.sum()
    root = weights.sqrt()[:, None]
    centre = share.to(features) @ features
    centred = features - centre
    gram = _centred((centred @ centred.T).double(), share)
    values, vectors = torch.linalg.eigh(root * gram * root.T)
    values = values.clamp(min=0)
    level = share @ targets.double()
    turned = vectors.T @ (root * (targets.double() - level))
    unit = float(values.mean().clamp(min=torch.finfo(torch.float32).tiny))
    some, root_judged = vectors[judged], root[judged]
    moved = None if asked is None else ((asked - features[judged]) @ centred.T).double() @ (root * vectors)

    def error(strength: float) -> float:
        shrunk = values + strength * unit
        spread = some / shrunk
        # C_ii times strength m / w_i, so that small strengths lose no digits.
        inverse = (spread * some).sum(dim=1) * (strength * unit) - share[judged]
        residuals = spread @ turned * (strength * unit) / root_judged / inverse[:, None]
        if moved is not None:
            along = root_judged * (moved * spread).sum(dim=1, keepdim=True)
            residuals = residuals * (1 + along) - (moved / shrunk) @ turned
        return float(residuals.square().mean())

    errors = [error(strength) for strength in strengths]
    best = min(range(len(errors)), key=errors.__getitem__)
    duals = root * (vectors / (values + strengths[best] * unit) @ turned)
    return Predicted(level + ((queries - centre) @ centred.T).double() @ duals, strengths[best], errors[best])


def _centred(gram: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Inner products ``[n, n]`` of samples less their weighted mean, exactly.

    What rounding in float32 leaves of the mean is as large as the smallest penalties: errors of samples that were left
    out would be nothing but it.
    """
    means = gram @ share
    return gram - means - means[:, None] + share @ means
