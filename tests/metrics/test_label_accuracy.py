"""Overlap of multisets against counters, and what it means."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakbench.metrics.labels import label_accuracy

Rows = list[tuple[int, int]]  # found and true label of each image
ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=9)


def accuracy(found: list[int], truth: list[int]) -> float:
    return float(label_accuracy(torch.tensor([found]), torch.tensor([truth]), 5))


def test_small_rows() -> None:
    found = torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0], [4, 4, 1, 1], [0, 1, 2, 3]])
    truth = torch.tensor([[3, 2, 1, 0], [0, 1, 1, 1], [1, 4, 4, 4], [4, 4, 4, 4]])
    result = label_accuracy(found, truth, 5)
    assert result.tolist() == [1, 0.25, 0.75, 0] and result.dtype == torch.float32


@given(ROWS)
def test_overlap_of_counters(rows: Rows) -> None:
    found, truth = ([row[side] for row in rows] for side in (0, 1))
    shared = Counter(found) & Counter(truth)
    assert accuracy(found, truth) == pytest.approx(shared.total() / len(rows))
    assert accuracy(found, truth) == accuracy(truth, found)


@given(ROWS, st.randoms(use_true_random=False))
def test_order_does_not_matter(rows: Rows, random: Random) -> None:
    found, truth = ([row[side] for row in rows] for side in (0, 1))
    before = accuracy(found, truth)
    random.shuffle(found)
    assert accuracy(found, truth) == before


@given(ROWS)
def test_one_for_equal_multisets_alone(rows: Rows) -> None:
    found, truth = ([row[side] for row in rows] for side in (0, 1))
    assert (accuracy(found, truth) == 1) == (sorted(found) == sorted(truth))
