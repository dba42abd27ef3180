"""Spans of gradients that come in chunks, against those of gradients that lie side by side."""

from __future__ import annotations

import pytest
import torch

from leakbench.errors import ConfigError
from leakbench.papers.secagg_dp.theory.pooled_span import PooledSpan, bytes_of_span, pooled_span
from leakbench.theory.span import LEAVES, leave_one_out, rank, residual


def chunks(columns: torch.Tensor) -> list[torch.Tensor]:
    return list(columns.split(7, dim=1))


def made(columns: torch.Tensor) -> PooledSpan:
    return pooled_span(iter(chunks(columns)))


def gradients(size: int, count: int, inside: int) -> torch.Tensor:
    """``count`` columns of ``size`` coordinates, of which the first has a direction of its own; of rank ``inside``."""
    draw = torch.Generator().manual_seed(size * count)
    basis = torch.randn(size, inside - 1, generator=draw, dtype=torch.float64)
    basis[0] = 0
    columns = basis @ torch.randn(inside - 1, count, generator=draw, dtype=torch.float64)
    columns[0, 0] = 0.3
    return columns * torch.logspace(-6, 2, count, dtype=torch.float64)  # norms change no span


@pytest.mark.parametrize(("size", "count", "inside"), [(40, 20, 6), (40, 20, 20), (12, 30, 6), (12, 90, 6)])
def test_it_is_that_of_all_columns(size: int, count: int, inside: int) -> None:
    columns = gradients(size, count, inside)
    found = made(columns)
    assert found.rank == int(rank(columns)) == inside
    assert found.count == count
    new = torch.randn(size, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(found.residual(new), residual(columns, new), atol=1e-12, rtol=1e-9)
    expected = leave_one_out(columns)
    torch.testing.assert_close(found.leave_one_out(chunks(columns)), expected, atol=1e-9, rtol=1e-6)
    assert int((expected > LEAVES).sum()) == (count if inside == count else 1)


def test_leaving_one_out_is_the_distance_from_the_others_one_by_one() -> None:
    columns = gradients(12, 60, 6)
    literal = torch.stack(
        [residual(torch.cat([columns[:, :j], columns[:, j + 1 :]], dim=1), columns[:, j : j + 1])[0] for j in range(60)]
    )
    torch.testing.assert_close(made(columns).leave_one_out(chunks(columns)), literal, atol=1e-9, rtol=1e-6)


def test_a_gradient_of_zero_is_in_every_span() -> None:
    columns = gradients(9, 40, 4)
    columns[:, 7] = 0
    found = made(columns)
    assert float(found.leave_one_out(chunks(columns))[7]) == 0
    assert float(found.residual(torch.zeros(9, 1))) == 0


def test_it_needs_gradients_of_finite_numbers() -> None:
    with pytest.raises(ConfigError, match="no gradients"):
        pooled_span([])
    with pytest.raises(ConfigError, match="finite"):
        pooled_span([torch.full((3, 2), torch.nan)])


def test_memory_is_bounded_by_the_coordinates() -> None:
    assert bytes_of_span(100, 10**9) == bytes_of_span(100, 200)
    assert bytes_of_span(100, 20) < bytes_of_span(100, 200)
