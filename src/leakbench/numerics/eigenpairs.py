"""Eigenpairs of symmetric matrices: those above a floor, where few are wanted, and of many, some not finite."""

from __future__ import annotations

from leakbench.lazy import torch


def pairs_above(matrix: torch.Tensor, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Eigenvalues above a floor, ascending, ``[m]``, and their vectors as columns, ``[D, m]``, to rounding.

    LAPACK brings the matrix to tridiagonal form as for a whole decomposition, and computes the vectors that are asked
    for alone. On a GPU the decomposition is whole.

    >>> values, vectors = pairs_above(torch.diag(torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64)), floor=1.5)
    >>> values.tolist(), tuple(vectors.shape)
    ([2.0, 3.0], (3, 2))

    Args:
        matrix: symmetric and finite, float64 ``[D, D]``.
        floor: finite.
    """
    if matrix.is_cuda:
        values, vectors = torch.linalg.eigh(matrix)
        above = values > floor
        return values[above], vectors[:, above]
    from scipy.linalg import eigh

    pairs = eigh(matrix.numpy(), subset_by_value=(floor, float("inf")), driver="evr", check_finite=False)
    values, vectors = (torch.from_numpy(part) for part in pairs)
    return values, vectors


def finite_or_identity(matrices: torch.Tensor) -> torch.Tensor:
    """Matrices ``[n, k, k]``, the identity in place of those that are not finite, lest decomposing fail for all.

    >>> finite_or_identity(torch.tensor([[[2.0]], [[float("nan")]]])).flatten().tolist()
    [2.0, 1.0]
    """
    finite = matrices.isfinite().flatten(1).all(dim=1)[:, None, None]
    return torch.where(finite, matrices, torch.eye(matrices.shape[1]).to(matrices))


def multiply_adds(size: int) -> float:
    """Count those of the tridiagonal form, which is most of what few pairs of one matrix take.

    >>> multiply_adds(30)
    18000.0
    """
    return 2 / 3 * size**3
