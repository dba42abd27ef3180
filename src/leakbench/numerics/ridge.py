"""Linear ridge regression with more features than samples, its strength chosen by leave-one-out errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from leakbench.lazy import torch

COLUMNS = 4096
"""Features whose products are taken at a time, to save memory."""


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
    gram, of_queries, of_asked = _products(
        features, share, (features, queries, features[:0] if asked is None else asked)
    )
    values, vectors = torch.linalg.eigh(root * gram * root.T)
    values = values.clamp(min=0)
    level = share @ targets.double()
    turned = vectors.T @ (root * (targets.double() - level))
    unit = float(values.mean().clamp(min=torch.finfo(torch.float32).tiny))
    some, root_judged = vectors[judged], root[judged]
    moved = None if asked is None else (of_asked - gram[judged]) @ (root * vectors)

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
    return Predicted(level + of_queries @ duals, strengths[best], errors[best])


def _products(features: torch.Tensor, share: torch.Tensor, others: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Products of others with all samples, ``[k, n]``, after the samples' weighted mean is taken off both.

    In float64: rounding of float32 is as large as the smallest penalties, and would pass for what they leave.
    """
    products = [features.new_zeros(len(other), len(features), dtype=torch.float64) for other in others]
    for columns in torch.arange(features.shape[1]).split(COLUMNS):
        part = slice(int(columns[0]), int(columns[-1]) + 1)
        samples = features[:, part].double()
        centre = share @ samples
        for product, other in zip(products, others, strict=True):
            product.addmm_(other[:, part].double() - centre, (samples - centre).T)
    return products
