"""What small computations hold and dispatch, counted by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakbench.numerics.footprint import Footprint, bytes_per_row, footprint


def test_what_is_freed_in_between_does_not_count() -> None:
    def computation() -> torch.Tensor:
        a = torch.ones(100)  # 400 bytes
        b = a + 1  # 800
        del a  # 400
        c = b * 2  # 800
        del b  # 400
        d = c.exp()  # 800
        return torch.cat([c, d])  # 1600

    assert footprint(computation) == Footprint(bytes=1600, dispatches=5)


def test_the_peak_may_be_in_the_middle() -> None:
    def computation() -> torch.Tensor:
        parts = [torch.ones(1000, dtype=torch.float64) for _ in range(3)]  # 24,000 bytes
        return torch.stack([part.sum() for part in parts])  # three numbers of 8 bytes, and then again

    found = footprint(computation)
    assert 24_000 + 24 <= found.bytes <= 24_000 + 48


def test_views_and_writes_in_place_are_free() -> None:
    def computation() -> torch.Tensor:
        a = torch.zeros(50)  # 200 bytes
        a[:10].add_(1)
        a.mul_(2)
        torch.add(a, 1, out=a)
        return a.view(5, 10).T

    assert footprint(computation) == Footprint(bytes=200, dispatches=7)


def test_tensors_from_before_are_free() -> None:
    before = torch.zeros(1000)
    assert footprint(lambda: before[:10]).bytes == 0
    assert footprint(lambda: before.add_(1)).bytes == 0
    assert footprint(lambda: before.view(10, 100).T + 1).bytes == 4000
    assert footprint(lambda: None) == Footprint(0, 0)


def test_what_a_backward_pass_needs_is_held() -> None:
    """Of a chain of three, each result is needed once more; then what is passed back is held beside them."""
    leaf = torch.ones(1000, requires_grad=True)
    assert footprint(lambda: leaf.exp().exp().exp()).bytes == 3 * 4000
    with torch.no_grad():
        assert footprint(lambda: leaf.exp().exp().exp()).bytes == 2 * 4000
    backward = footprint(lambda: torch.autograd.grad(leaf.exp().exp().exp().sum(), leaf)).bytes
    assert 4 * 4000 < backward <= 5 * 4000 + 100


def test_looks_below_vmap_and_grad() -> None:
    """A batch of rows is one tensor; nothing of it is seen above."""
    rows = torch.ones(7, 100)
    found = footprint(lambda: torch.func.vmap(lambda row: row * 2)(rows))
    assert found == Footprint(bytes=2800, dispatches=1)
    twice = footprint(lambda: torch.func.vmap(torch.func.grad(lambda row: row.square().sum()))(rows))
    assert twice.bytes >= 2800


@given(rows=st.integers(1, 20), columns=st.integers(1, 50), constant=st.integers(0, 5000))
def test_bytes_per_row_is_linear(rows: int, columns: int, constant: int) -> None:
    def computation(n: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(constant), torch.zeros(n * rows, columns, dtype=torch.float64)

    assert bytes_per_row(computation) == 8 * rows * columns
    assert footprint(lambda: computation(5)).bytes == 4 * constant + 5 * 8 * rows * columns


def test_bytes_per_row_is_at_least_one() -> None:
    assert bytes_per_row(lambda _: torch.zeros(3)) == 1


def test_errors_pass_and_nothing_stays_on() -> None:
    with pytest.raises(RuntimeError, match="size"):
        footprint(lambda: torch.ones(2) + torch.ones(3))
    assert torch.utils._python_dispatch._get_current_dispatch_mode() is None
