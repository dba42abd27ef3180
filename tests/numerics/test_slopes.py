"""Functions whose derivative is written out."""

from __future__ import annotations

import pytest

from leakbench.lazy import torch
from leakbench.numerics.slopes import with_slope


def cubes(point: torch.Tensor) -> torch.Tensor:
    fixed = point.detach()
    return with_slope(point, fixed.pow(3).sum(dim=(1, 2)), 3 * fixed.square())


@pytest.fixture
def point() -> torch.Tensor:
    return torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_has_the_value_and_the_slope(point: torch.Tensor) -> None:
    torch.testing.assert_close(cubes(point), point.pow(3).sum(dim=(1, 2)))
    weights = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    slope = torch.func.grad(lambda given: (weights * cubes(2 * given)).sum())(point)
    torch.testing.assert_close(slope, weights[:, None, None] * 24 * point.square())


def test_works_outside_of_transformations(point: torch.Tensor) -> None:
    given = point.requires_grad_()
    (slope,) = torch.autograd.grad(cubes(given).sum(), given)
    torch.testing.assert_close(slope, 3 * point.detach().square())


def test_works_under_vmap(point: torch.Tensor) -> None:
    slopes = torch.func.vmap(torch.func.grad(lambda given: cubes(given[None]).sum()))(point)
    torch.testing.assert_close(slopes, 3 * point.square())
