"""The span of per-record gradients: no sum of weighted gradients hides a record whose gradient leaves the others' span.

Theorem 1 of Zhang et al. (2024): where updates are weighted sums of per-record gradients and a record's gradient, or
the one that replaces it, leaves the span, epsilon is infinite for every delta below the chance that it is drawn.
The paper has three spans, which are not equivalent: of all gradients, the replaced one too (Theorem 1); of all other
users' (section 3.3); of all users' (introduction). Since a record may be replaced by one of gradient zero, what data
can be tested for is a gradient's distance from those of all other records (``pooled``).

Columns are scaled to norm one first, which changes no span. Singular values below ``CUT`` of the largest count as zero.
Nothing is larger than the gradients themselves: a tall matrix is replaced by its triangular factor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from leakbench.errors import ConfigError
from leakbench.lazy import torch

Reading = Literal["pooled", "per_user", "other_users"]
"""Records that span: ``pooled``: all others; ``per_user``: the same user's others; ``other_users``: the other
users'."""

CUT = 1e-10
"""Relative to the largest singular value."""
LEAVES = 1e-6
"""A gradient leaves a span where its residual exceeds this part of its norm."""


def _unit(vectors: torch.Tensor) -> torch.Tensor:
    """Columns of norm one in float64; those that are zero stay.

    Raises:
        ConfigError: one is not finite.
    """
    columns = vectors.double()
    if not bool(columns.isfinite().all()):
        raise ConfigError("the span test needs gradients of finite numbers")
    tiny = torch.finfo(columns.dtype).tiny
    columns = columns / columns.abs().amax(dim=-2, keepdim=True).clamp(min=tiny)
    scaled: torch.Tensor = columns / columns.norm(dim=-2, keepdim=True).clamp(min=tiny)
    return scaled


def _coordinates(columns: torch.Tensor) -> torch.Tensor:
    """Vectors of the same inner products with as few coordinates as there are columns."""
    return torch.linalg.qr(columns, mode="r").R if columns.shape[-2] > columns.shape[-1] else columns


def _nonzero(values: torch.Tensor) -> torch.Tensor:
    """Mask of the singular values, descending ``[..., r]``, that are not zero."""
    return (values > CUT * values[..., :1]) & (values > 0)


def rank(gradients: torch.Tensor) -> torch.Tensor:
    """Dimension of the span of the columns, int64, ``[..., K, m] -> [...]``.

    >>> int(rank(torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]])))
    2

    Raises:
        ConfigError: a gradient is not finite.
    """
    return _nonzero(torch.linalg.svdvals(_coordinates(_unit(gradients)))).sum(dim=-1)


def residual(others: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """``||g - Q Q^T g|| / ||g||`` with ``Q`` an orthonormal basis of the span of ``others``, float64 ``[..., p]``.

    For replaced gradients: Theorem 1 asks that each is in the span of all gradients, so ``others`` may be all.

    Args:
        others: ``[..., K, m]``.
        vectors: ``g``, ``[..., K, p]``; one that is zero is in every span.

    Raises:
        ConfigError: a number is not finite.
    """
    directions = _unit(vectors)
    left, values, _ = torch.linalg.svd(_unit(others), full_matrices=False)
    basis = torch.where(_nonzero(values).unsqueeze(-2), left, 0.0)
    for _ in range(2):  # the second time removes what rounding left
        directions = directions - basis @ (basis.mT @ directions)
    rest: torch.Tensor = directions.norm(dim=-2)
    return rest


def leave_one_out(gradients: torch.Tensor) -> torch.Tensor:
    """:func:`residual` of every column from all the others, by one decomposition, float64 ``[..., K, m] -> [..., m]``.

    Column ``j`` is in the span of the others where a null vector of the matrix has an entry ``j``; elsewhere its
    squared distance is one over entry ``jj`` of the pseudo-inverse of the Gram matrix.

    Raises:
        ConfigError: a gradient is not finite.
    """
    columns = _unit(gradients)
    _, values, right = torch.linalg.svd(_coordinates(columns), full_matrices=False)
    positive = _nonzero(values).unsqueeze(-1)
    leverage = torch.where(positive, right, 0.0).square().sum(dim=-2)
    inverse = torch.where(positive, right / torch.where(positive, values.unsqueeze(-1), 1.0), 0.0).square().sum(dim=-2)
    free = 1 - leverage < 1e-13 * columns.shape[-1] ** 0.5
    return torch.where(free & (inverse > 0), inverse.clamp(min=1).rsqrt(), 0.0)


def span_residuals(gradients: torch.Tensor, reading: Reading = "pooled") -> torch.Tensor:
    """Distance of every record's gradient from a span, relative to its norm, float64 ``[n, D]``.

    Args:
        gradients: of ``n`` users with ``D`` records, as columns, ``[n, K, D]``.
        reading: see :data:`Reading`.

    Raises:
        ConfigError: a gradient is not finite; there are fewer than two users, where the span is of other users'.
    """
    users, _, records = gradients.shape
    if reading == "per_user":
        return leave_one_out(gradients)
    if reading == "pooled":
        return leave_one_out(pooled(gradients)).view(users, records)
    if users < 2:
        raise ConfigError(f"the span of other users' gradients needs 2 users at least, found {users}")
    parts = _coordinates(_unit(pooled(gradients))).unflatten(-1, (users, records)).movedim(1, 0)
    return torch.stack(
        [residual(pooled(torch.cat([parts[:user], parts[user + 1 :]])), parts[user]) for user in range(users)]
    )


def pooled(gradients: torch.Tensor) -> torch.Tensor:
    """All users' gradients side by side, ``[n, K, D] -> [K, n D]``."""
    return gradients.movedim(0, 1).flatten(1)


@dataclass(frozen=True)
class SpanSummary:
    """Theorem 1 on a round's gradients.

    Attributes:
        ranks: of each user's gradients, int64 ``[n]``.
        pooled_rank: of all gradients.
        leaving: the part of each user's records whose gradient leaves the span of that user's other records, ``[n]``.
        pooled_leaving: the part of all records whose gradient leaves the span of all other records.
        alone: the part of all records whose gradient leaves the span of the other users'.
    """

    ranks: torch.Tensor
    pooled_rank: int
    leaving: torch.Tensor
    pooled_leaving: float
    alone: float


def span_summary(gradients: torch.Tensor) -> SpanSummary:
    """Ranks and leaving records of ``n`` users' gradients ``[n, K, D]``.

    Raises:
        ConfigError: a gradient is not finite; there are fewer than two users.
    """

    def share(reading: Reading) -> torch.Tensor:
        return (span_residuals(gradients, reading) > LEAVES).double().mean(dim=-1)

    return SpanSummary(
        rank(gradients),
        int(rank(pooled(gradients))),
        share("per_user"),
        float(share("pooled").mean()),
        float(share("other_users").mean()),
    )
