"""The span of more gradients than memory holds: dimension and distances (see :mod:`leakbench.theory.span`).

The spans are those of Zhang et al. (2024). Gradients come in chunks of columns, ``[K, p]``. Of more than ``K`` of them
no more than a triangular factor ``[K, K]`` and as many rows again are kept; a matrix is never multiplied with itself,
which would halve the digits of its singular values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.theory.span import CUT, _nonzero, _unit

COPIES = 6
"""Matrices of the size that is kept while it is decomposed, about."""
_FREE, _FREE_CHUNKED = 1e-13, 1e-8
"""A column counts as out of the others' span where its squared coordinates in a basis of the row space, which are at
most 1, miss 1 by less; times the root of the number of columns, and where they follow from the column alone."""


@dataclass(frozen=True)
class PooledSpan:
    """The span of gradients, each scaled to norm one.

    Attributes:
        basis: orthonormal columns, float64 ``[K, r]``.
        values: singular values that go with them, ``[r]``; None where ``distances`` are known.
        count: of gradients.
        distances: of every gradient from the span of all the others, in parts of its norm, ``[count]``; None where
            there were more gradients than coordinates.
    """

    basis: torch.Tensor
    values: torch.Tensor | None
    count: int
    distances: torch.Tensor | None

    @property
    def rank(self) -> int:
        """Dimension of the span."""
        return self.basis.shape[1]

    def residual(self, vectors: torch.Tensor) -> torch.Tensor:
        """Distances of vectors ``[K, p]`` from the span, in parts of their norm, ``[p]``; 0 for a zero vector."""
        directions = _unit(vectors)
        for _ in range(2):  # the second time removes what rounding left
            directions = directions - self.basis @ (self.basis.mT @ directions)
        rest: torch.Tensor = directions.norm(dim=-2)
        return rest

    def leave_one_out(self, chunks: Iterable[torch.Tensor]) -> torch.Tensor:
        """Distance of every gradient from the span of all the others, in parts of its norm, ``[count]``.

        Of more than ``K`` gradients, distances below 1e-4 of what the others have in the same direction may be taken
        for leaving.

        Args:
            chunks: the gradients again, in the same order; they are not read where they were no more than ``K``.
        """
        if self.distances is not None:
            return self.distances
        assert self.values is not None
        weights = ((self.basis.mT @ _unit(chunk)).mT / self.values for chunk in chunks)
        return torch.cat([_distances(each, self.values, _FREE_CHUNKED) for each in weights])


def _distances(weights: torch.Tensor, values: torch.Tensor, free: float) -> torch.Tensor:
    """Distances of gradients from the span of the others, ``[p]``, by their coordinates ``[p, r]`` in the row space.

    One over the root of the pseudo-inverse Gram matrix's diagonal where no null vector of the gradients has an entry,
    else 0.
    """
    leverage = weights.square().sum(dim=1)
    inverse = (weights / values).square().sum(dim=1)
    leaves = (1 - leverage < free) & (inverse > 0)
    return torch.where(leaves, inverse.clamp(min=1).rsqrt(), 0.0)


def pooled_span(chunks: Iterable[torch.Tensor]) -> PooledSpan:
    """The span of all columns of some chunks ``[K, p]``.

    Raises:
        ConfigError: there are no gradients, or one is not finite.
    """
    rows: list[torch.Tensor] = []
    held = count = 0
    for chunk in chunks:
        rows.append(_unit(chunk).mT)
        count, held, dimension = count + chunk.shape[-1], held + chunk.shape[-1], chunk.shape[-2]
        if held > 2 * dimension:
            rows = [torch.linalg.qr(torch.cat(rows), mode="r").R]
            held = dimension
    if not rows:
        raise ConfigError("the span of no gradients has no basis")
    matrix = torch.cat(rows)
    rows.clear()
    if count > matrix.shape[1]:
        factor = torch.linalg.qr(matrix, mode="r").R
        _, values, right = torch.linalg.svd(factor, full_matrices=False)
        kept = _nonzero(values)
        return PooledSpan(right[kept].mT, values[kept], count, None)
    basis, factor = torch.linalg.qr(matrix.mT)
    independent = _independent(factor)
    if independent is not None:
        return PooledSpan(basis, None, count, independent)
    left, values, right = torch.linalg.svd(factor)
    kept = _nonzero(values)
    distances = _distances(right[kept].mT, values[kept], _FREE * count**0.5)
    return PooledSpan(basis @ left[:, kept], None, count, distances)


def _independent(factor: torch.Tensor) -> torch.Tensor | None:
    """Distances ``[m]`` of unit columns with this triangular factor ``[m, m]``; None unless all are surely independent.

    The largest singular value is at most the root of m, the smallest at least one over the inverse's Frobenius norm.
    This takes a thirtieth of the time of singular values.
    """
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    inverse = torch.linalg.solve_triangular(factor, identity, upper=True)
    least = 1 / inverse.norm()
    sure = bool(inverse.isfinite().all()) and float(least) > 10 * CUT * len(factor) ** 0.5
    return inverse.norm(dim=1).clamp(min=1).reciprocal() if sure else None


def bytes_of_span(dimension: int, count: int) -> int:
    """Memory that :func:`pooled_span` takes, about, beside one chunk; ``K`` and the number of gradients."""
    return 8 * COPIES * dimension * min(count, 2 * dimension)
