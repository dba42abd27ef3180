"""Matrices of low rank come back from a part of their entries."""

from __future__ import annotations

import pytest
import torch

from leakbench.numerics.completion import completed

ROWS, WIDTH, RANK = 60, 24, 3


def low_rank() -> torch.Tensor:
    draws = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, RANK, generator=draws, dtype=torch.float64) for size in (ROWS, WIDTH))
    # Blocks of different sizes, as the gradients of queries and of values are.
    return torch.cat([1e-3 * left[:20], left[20:]]) @ right.T


def drawn(part: float) -> torch.Tensor:
    return torch.rand(ROWS, WIDTH, generator=torch.Generator().manual_seed(1)) < part


def away(found: torch.Tensor) -> list[float]:
    """Relative error of each block."""
    blocks = zip(found.split([20, 40]), low_rank().split([20, 40]), strict=True)
    return [float((mine - truth).norm() / truth.norm()) for mine, truth in blocks]


@pytest.mark.parametrize("part", [0.2, 0.5])
def test_missing_entries(part: float) -> None:
    matrix, lost = low_rank(), drawn(part)
    assert max(away(completed(matrix.masked_fill(lost, torch.nan), ~lost, RANK, [20, 40]))) < 1e-5


def test_entries_that_are_far_off() -> None:
    matrix, wrong = low_rank(), drawn(0.1)
    received = matrix + wrong * 20
    every = torch.ones_like(wrong)
    assert max(away(completed(received, every, RANK, [20, 40], robust=True))) < 1e-5
    assert max(away(completed(received, every, RANK, [20, 40]))) > 0.1


def test_against_a_literal_reference() -> None:
    """The same factors by a loop over rows and columns, each by its own least squares."""
    matrix, lost = low_rank(), drawn(0.4)
    left = torch.zeros(ROWS, RANK, dtype=torch.float64)
    right = torch.linalg.svd(matrix.masked_fill(lost, 0.0), full_matrices=False)[2][:RANK].T.clone()
    for _ in range(60):
        for row in range(ROWS):
            left[row] = torch.linalg.lstsq(right[~lost[row]], matrix[row, ~lost[row]]).solution
        for column in range(WIDTH):
            there = ~lost[:, column]
            right[column] = torch.linalg.lstsq(left[there], matrix[there, column]).solution
    found = completed(matrix, ~lost, RANK, [20, 40])
    torch.testing.assert_close(found, (left @ right.T).where(lost, matrix), rtol=1e-4, atol=1e-4)


def test_the_rank_follows_the_entries() -> None:
    """A row and a column more than are seen would fit anything."""
    lost = drawn(0.9)
    found = completed(low_rank(), ~lost, RANK, [20, 40])
    assert found.isfinite().all() and torch.equal(found[~lost], low_rank()[~lost])
