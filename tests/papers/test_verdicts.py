"""Every claim that reads tables is reproduced by some, contradicted by others, and not run without its defenses."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.papers.cdpa import test_claims as of_images
from tests.papers.cdpa import test_text_claims as of_text
from tests.papers.channel import test_claims as of_channels
from tests.papers.theorems import checks_of
from tests.papers.verdicts import Case, judge

from leakbench.report.claims import claims_of

CASES: Mapping[str, Mapping[str, Case]] = {
    "cdpa": {**of_images.CASES, **of_text.CASES},
    "channel": of_channels.CASES,
}
each_case = pytest.mark.parametrize(("paper", "key"), [(paper, key) for paper, cases in CASES.items() for key in cases])


@each_case
def test_agreeing_tables_reproduce_a_claim(paper: str, key: str) -> None:
    finding = judge(paper, key, CASES[paper][key][0]())
    assert finding.verdict == "reproduced", finding


@each_case
def test_disagreeing_tables_contradict_it(paper: str, key: str) -> None:
    finding = judge(paper, key, CASES[paper][key][1]())
    assert finding.verdict == "contradicted", finding


@each_case
def test_tables_of_other_defenses_do_not_judge_it(paper: str, key: str) -> None:
    tables = {name: frame.assign(defense="other") for name, frame in CASES[paper][key][0]().items()}
    assert judge(paper, key, tables).verdict == "not run"


@pytest.mark.parametrize("paper", CASES)
def test_every_claim_has_a_case_or_a_check(paper: str) -> None:
    claims = claims_of(paper)
    assert set(CASES[paper]) == {entry.key for entry in claims if entry.experiments}
    assert set(checks_of(paper)) == {entry.key for entry in claims if not entry.experiments}
