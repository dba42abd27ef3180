"""Statistics per tensor against slices of the flat vector."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from leakbench.federated.tensors import Tensors, _smallest, _smallest_on_cpu
from leakbench.randomness import generator

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def values(sizes: list[int], seed: int = 0) -> torch.Tensor:
    """With ties: integers from -3 to 3."""
    return torch.randint(-3, 4, (3, sum(sizes)), generator=generator("tensors", seed)).float()


@given(SIZES, st.integers(0, 1000))
def test_statistics(sizes: list[int], seed: int) -> None:
    flat, tensors = values(sizes, seed), Tensors(sizes)
    first = 0
    for number, size in enumerate(sizes):
        part = flat[:, first : first + size].double()
        torch.testing.assert_close(tensors.mean(flat)[:, number].double(), part.mean(dim=1), atol=1e-6, rtol=0)
        spread = (part - part.mean(dim=1, keepdim=True)).square().mean(dim=1).sqrt()
        torch.testing.assert_close(tensors.std(flat)[:, number].double(), spread, atol=1e-6, rtol=0)
        largest = tensors.spread(tensors.reduce(flat, lambda each: each.amax(dim=1)))
        assert torch.equal(largest[:, first : first + size], part.amax(dim=1, keepdim=True).float().expand(-1, size))
        first += size
    assert len(tensors) == len(sizes)


@given(SIZES, st.floats(0, 1), st.integers(0, 1000))
def test_smallest_is_a_stable_sort_of_every_tensor(sizes: list[int], fraction: float, seed: int) -> None:
    flat = values(sizes, seed)
    found = Tensors(sizes).smallest(flat, fraction)
    for row, chosen in zip(flat.tolist(), found.tolist(), strict=True):
        first = 0
        for size in sizes:
            part = row[first : first + size]
            expected = sorted(range(size), key=part.__getitem__)[: int(fraction * size)]
            assert [place for place in range(size) if chosen[first + place]] == sorted(expected)
            first += size


@given(st.integers(1, 40), st.integers(0, 1000))
def test_processors_choose_alike(size: int, seed: int) -> None:
    """The first row decides how thresholds are found, so rows with ties come before and after rows without."""
    tied = values([size], seed)
    apart = tied + torch.rand(tied.shape, generator=generator("fractions", seed))
    for flat in (tied, apart, torch.cat([tied, apart]), torch.cat([apart, tied])):
        for count in range(1, size + 1):
            assert torch.equal(_smallest(flat, count), _smallest_on_cpu(flat, count))


def test_smallest_of_what_is_not_finite() -> None:
    """As many are chosen as ever: NaN and infinity are the largest, of which the first come first."""
    flat = torch.tensor([[math.nan, 2.0, math.inf, -math.inf, 1.0, math.nan]])
    for count in range(7):
        (chosen,) = Tensors([6]).smallest(flat, count / 6 + 1e-9).tolist()
        assert [place for place in range(6) if chosen[place]] == sorted([3, 4, 1, 0, 2, 5][:count])
