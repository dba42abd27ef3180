"""The cosine transform is scipy's, and FISTA finds the minimum and the sparse vector."""

from __future__ import annotations

import pytest
import scipy.fft
import torch

from leakbench.randomness import generator
from leakbench.theory.sparse_recovery import dct, fista, idct


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 64, 101])
def test_transform(size: int) -> None:
    vectors = torch.randn(3, 2, size, generator=generator("dct", size), dtype=torch.float64)
    expected = torch.from_numpy(scipy.fft.dct(vectors.numpy(), norm="ortho"))
    torch.testing.assert_close(dct(vectors), expected)
    torch.testing.assert_close(idct(expected), vectors)


def objective(matrix: torch.Tensor, measured: torch.Tensor, weight: float, found: torch.Tensor) -> float:
    return float((matrix @ found - measured).square().sum() / 2 + weight * found.abs().sum())


def test_minimum_of_the_lasso() -> None:
    """Optimality of every problem: A'(y - A s) is w sign(s) where s is not zero, and at most w elsewhere."""
    draw = generator("lasso")
    matrix = torch.randn(2, 8, 12, generator=draw, dtype=torch.float64)
    measured = torch.randn(2, 3, 8, generator=draw, dtype=torch.float64)
    weight = torch.tensor([[0.5, 1.0, 2.0], [0.1, 5.0, 100.0]], dtype=torch.float64)
    found = fista(matrix, measured, weight, 4000)
    slope = (measured - found @ matrix.mT) @ matrix
    limit = weight[..., None].expand_as(slope)
    active = found != 0
    torch.testing.assert_close(slope[active], (limit * found.sign())[active], atol=1e-6, rtol=0)
    assert bool((slope.abs() <= limit + 1e-6).all()) and not bool(found[1, 2].any())


def test_a_sparse_vector_is_recovered_from_half_as_many_measurements() -> None:
    draw = generator("sparse")
    sparse = torch.zeros(1, 4, 64)
    sparse[:, :, torch.randperm(64, generator=draw)[:5]] = 1 + torch.rand(1, 4, 5, generator=draw)
    matrix = torch.randn(1, 32, 64, generator=draw) / 32**0.5
    found = fista(matrix, sparse @ matrix.mT, torch.full((1, 4), 1e-3), 3000)
    torch.testing.assert_close(found, sparse, atol=0.02, rtol=0)
    least = torch.linalg.pinv(matrix[0]) @ (matrix[0] @ sparse[0].T)  # of the smallest norm, and far away
    assert float((least.T - sparse[0]).abs().max()) > 0.3
