"""The area under the ROC curve against scikit-learn, and its interval against DeLong's sums and repeated draws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from leakbench.metrics.membership import auc, true_positive_rate


def literal(scores: list[float], member: list[bool]) -> tuple[float, float]:
    """Area and its variance, pair by pair (DeLong et al. 1988, Equations 2 to 5)."""
    inside = [score for score, is_member in zip(scores, member, strict=True) if is_member]
    outside = [score for score, is_member in zip(scores, member, strict=True) if not is_member]
    won = [[1.0 if x > y else 0.5 if x == y else 0.0 for y in outside] for x in inside]
    above = [sum(row) / len(outside) for row in won]
    below = [sum(column) / len(inside) for column in zip(*won, strict=True)]
    area = sum(above) / len(above)
    spreads = [sum((value - area) ** 2 for value in part) / (len(part) - 1) / len(part) for part in (above, below)]
    return area, sum(spreads)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=4, max_size=25))
def test_ties_and_all(samples: list[tuple[int, bool]]) -> None:
    scores, member = [float(score) for score, _ in samples], [flag for _, flag in samples]
    if not 2 <= sum(member) <= len(member) - 2:
        with pytest.raises(ValueError, match="has no interval"):
            auc(torch.tensor(scores), torch.tensor(member))
        return
    found = auc(torch.tensor(scores), torch.tensor(member))
    area, variance = literal(scores, member)
    half = 1.959963984540054 * math.sqrt(variance)
    assert float(found.value) == pytest.approx(area) == pytest.approx(roc_auc_score(member, scores))
    assert float(found.low) == pytest.approx(max(0, area - half), abs=1e-9)
    assert float(found.high) == pytest.approx(min(1, area + half), abs=1e-9)


def test_rows_and_their_failures() -> None:
    scores = torch.randn(3, 4, 30, generator=torch.Generator().manual_seed(0))
    scores[2, 1, 5] = torch.nan
    member = torch.arange(30) % 3 == 0
    found = auc(scores, member)
    assert found.value.shape == found.low.shape == (3, 4) and found.value.dtype == torch.float64
    assert found.value.isnan().nonzero().tolist() == found.high.isnan().nonzero().tolist() == [[2, 1]]
    assert [float(each[1, 2]) for each in found] == [float(each) for each in auc(scores[1, 2], member)]


def test_the_interval_covers() -> None:
    """Normal scores a distance apart have a known area: nine in ten intervals of 90 % hold it."""
    draw = torch.Generator().manual_seed(1)
    member = torch.arange(120) < 50
    scores = torch.randn(2000, 120, generator=draw) + member * 0.8
    area = 0.5 * (1 + math.erf(0.8 / 2))
    found = auc(scores, member, confidence=0.9)
    assert float(found.value.mean()) == pytest.approx(area, abs=0.003)
    covered = ((found.low <= area) & (area <= found.high)).double().mean()
    assert float(covered) == pytest.approx(0.9, abs=0.02)


def test_infinite_scores_are_ranked() -> None:
    found = auc(torch.tensor([torch.inf, 0.0, -torch.inf, 1.0]), torch.tensor([True, True, False, False]))
    assert float(found.value) == 0.75


def test_true_positives_by_counting() -> None:
    scores = torch.tensor([[9.0, 7.0, 5.0, 3.0, 8.0, 6.0, 4.0, 2.0], [1.0] * 8])
    member = torch.tensor([True] * 4 + [False] * 4)
    expected = {0.0: 0.25, 0.2: 0.25, 0.25: 0.5, 0.5: 0.75, 0.75: 1.0}
    for rate, found in expected.items():
        assert true_positive_rate(scores, member, rate).tolist() == [found, 0.0]


def test_no_true_positives_of_what_is_unknown() -> None:
    scores = torch.tensor([[1.0, torch.nan, 0.0], [1.0, 2.0, 0.0]])
    found = true_positive_rate(scores, torch.tensor([True, True, False]), 0.05)
    assert found[0].isnan() and found[1] == 1
    for rate, member in ((1.0, [True, True, False]), (0.1, [True] * 3), (0.1, [False] * 3)):
        with pytest.raises(ValueError, match="members, others and a rate"):
            true_positive_rate(scores, torch.tensor(member), rate)
