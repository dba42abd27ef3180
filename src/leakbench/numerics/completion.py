"""Completion of matrices of low rank, some of whose entries are missing or far off, by alternating least squares."""

from __future__ import annotations

from collections.abc import Sequence

from leakbench.lazy import torch

ROUNDS = 20
"""Most rounds of both factors."""
ENOUGH = 1e-7
"""Relative change at which the completed matrix is done."""
FAR = 6.0
"""Deviations, as their median says, from which on an entry is far off."""
EXACT = 1e-3
"""Part of the usual entry below which no error is far off."""
PER_NUMBER = 2
"""Entries for each free number of the factors; with fewer the rank is lowered."""


def completed(
    matrix: torch.Tensor, seen: torch.Tensor, rank: int, blocks: Sequence[int], robust: bool = False
) -> torch.Tensor:
    """The matrix with its missing entries, and with those far off if asked, as a matrix of low rank has them.

    >>> rows = torch.arange(1.0, 7.0)[:, None] * torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    >>> seen = torch.ones(6, 4, dtype=torch.bool)
    >>> seen[2, 1] = seen[0, 3] = False
    >>> torch.allclose(completed(rows.where(seen, 0.0), seen, 1, [6]), rows, atol=1e-4)
    True

    Args:
        matrix: ``[n, p]``; entries that are not seen may be anything.
        seen: boolean ``[n, p]``.
        rank: at most, below n and p.
        blocks: numbers of rows whose errors are of one size, ``n`` in all.
        robust: whether entries that are far off count as missing, round by round.
    """
    rank = _supported(seen, rank)
    held = torch.where(seen, matrix, 0.0)
    size = _per_block(held, seen, blocks, typical=robust)
    # At first all that is large counts as far off: a few such entries would be the largest directions.
    trusted = seen & (held.abs() <= FAR * size) if robust else seen
    right = torch.linalg.svd((held / size).where(trusted, 0.0), full_matrices=False)[2][:rank].T
    scale, filled = size, held
    for number in range(ROUNDS):
        ridge = max(0.1 ** (number + 1), 1e-9)
        left = torch.linalg.qr(_solved(held / scale, trusted, right, ridge))[0]
        right = _solved((held / scale).T, trusted.T, left, ridge)
        fitted = scale * (left @ right.T)
        right = torch.linalg.qr(right)[0]
        residual = held - fitted
        scale = torch.maximum(_per_block(residual, seen, blocks, typical=robust), EXACT * size)
        if robust:
            trusted = seen & (residual.abs() <= FAR * scale)
        before, filled = filled, torch.where(trusted, held, fitted)
        if float((filled - before).norm()) <= ENOUGH * float(filled.norm()):
            break
    return filled


def _supported(seen: torch.Tensor, rank: int) -> int:
    """The largest rank up to ``rank`` for whose factors there are entries enough, at least 1."""
    n, p = seen.shape
    entries = int(seen.sum())
    return next((each for each in range(rank, 1, -1) if PER_NUMBER * each * (n + p - each) <= entries), 1)


def _solved(matrix: torch.Tensor, trusted: torch.Tensor, factor: torch.Tensor, ridge: float) -> torch.Tensor:
    """The other factor ``[n, r]`` by least squares over trusted entries, row by row."""
    weights = trusted.to(matrix)
    products = (factor[:, :, None] * factor[:, None, :]).flatten(1)
    normal = (weights @ products).unflatten(1, (factor.shape[1], factor.shape[1]))
    normal = normal + ridge * torch.eye(factor.shape[1]).to(matrix)
    solved: torch.Tensor = torch.linalg.solve(normal, (weights * matrix) @ factor)
    return solved


def _per_block(matrix: torch.Tensor, seen: torch.Tensor, blocks: Sequence[int], typical: bool) -> torch.Tensor:
    """Size of the seen entries of each block, ``[n, 1]``: by their median, or their root mean square; 1 for zeros."""
    sizes = []
    for part, there in zip(matrix.split(list(blocks)), seen.split(list(blocks)), strict=True):
        entries = part[there]
        size = entries.new_zeros(())
        if entries.numel():
            size = 1.4826 * entries.abs().median() if typical else entries.square().mean().sqrt()
        sizes.append(torch.where(size > 0, size, torch.ones_like(size)).expand(len(part)))
    return torch.cat(sizes)[:, None]
