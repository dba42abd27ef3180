"""What a check of a theorem reports."""

from __future__ import annotations

import math

import pytest
import torch

from leakbench.report.checks import EXACT, Checked, Theorem, agreement, checked, required
from leakbench.report.evidence import Evidence
from leakbench.report.findings import Finding


def test_smallest_slack_decides() -> None:
    found = checked([torch.tensor([3.0, 0.5]), torch.tensor(2.0)], 7, "metres")
    assert found.holds and found.margin == 0.5 and (found.trials, found.what) == (7, "metres")
    assert checked([torch.tensor(0.0)], 1, "").holds
    violated = checked([torch.tensor([3.0, -0.5]), torch.tensor(2.0)], 7, "")
    assert not violated.holds and violated.margin == -0.5


def test_nan_does_not_hold() -> None:
    for slacks in ([1.0, math.nan], [math.nan, 1.0]):
        assert not checked([torch.tensor(slack) for slack in slacks], 1, "").holds
    assert not checked([required(torch.tensor(math.nan))], 1, "").holds


def test_required_slack_does_not_hide_the_margin() -> None:
    assert required(torch.tensor([0.0, 1e-30, -2.0])).tolist() == [math.inf, math.inf, -2.0]


def test_agreement_is_relative() -> None:
    actual, expected = torch.tensor([[1e6 + 1e-4, 2.0], [1e6, 1.0]], dtype=torch.float64)
    slack = agreement(actual, expected)
    assert float(slack[0]) == pytest.approx(EXACT - 1e-10, rel=1e-3) and slack[1] < 0


@pytest.mark.parametrize(("holds", "verdict"), [(True, "reproduced"), (False, "contradicted")])
def test_a_theorem_is_judged_by_its_check(holds: bool, verdict: str) -> None:
    theorem = Theorem(lambda: Checked(holds, 0.125, 77, "slack"))
    assert theorem(Evidence({})) == Finding(verdict, 0.125, meaning="slack", note="77 random cases")  # type: ignore[arg-type]
