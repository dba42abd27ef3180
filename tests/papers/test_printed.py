"""Verdicts of the papers' own printed numbers on the claims about them."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pandas as pd
import pytest
from tests.report.synthetic import ROOT

from leakbench.planning.project import Project
from leakbench.report.claims import Claim, claims_of
from leakbench.report.reference import printed_tables
from leakbench.report.tidy import COLUMNS, SETTING

REPRODUCED, CONTRADICTED = "reproduced", "contradicted"

BY_PAPER: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # Nothing is printed of E3 and E4 (four numbers of Fig. 8 alone), E16 (LDP below an epsilon of 2), E21 (Fig. 11),
    # E24, E25 and E28 (Fig. 5, 8 and 12 to 17), of attackers who know CDPA, and of E20 but for LAMP (Table VI).
    "cdpa": {
        REPRODUCED: (
            *("E1", "E2", "E5", "E6a", "E6b", "E6c", "E7a", "E7b", "E8a", "E8b", "E9", "E10", "E11a", "E11b"),
            *("E12a", "E12b", "E13b", "E14b", "E15b", "E17a", "E18a", "E18b", "E18c", "E19a", "E19b", "E19c"),
            *("E20c", "E22a", "E22b", "E23a", "E23b", "E26", "E27", "E29"),
        ),
        CONTRADICTED: ("E13a", "E14a", "E15a", "E17b", "X2"),
    },
    # Figures without numbers but for Table 2; E12 and E13 compare with printed numbers already.
    "channel": {REPRODUCED: ("E11",)},
    # Figures without numbers; Table 1 counts parameters.
    "optimal_defense": {},
    # One figure without numbers; Table 1 has formulas.
    "secagg_dp": {},
    # No experiment.
    "tfl_meta": {},
}
PRINTING = [paper for paper in BY_PAPER if printed_tables(paper)]


@pytest.mark.parametrize("paper", BY_PAPER)
def test_the_papers_own_numbers_decide_these_claims(paper: str) -> None:
    verdicts = {entry.key: entry.by_paper for entry in claims_of(paper) if entry.by_paper}
    assert verdicts == {key: verdict for verdict, keys in BY_PAPER[paper].items() for key in keys}


def test_every_paper_is_asked() -> None:
    assert set(BY_PAPER) == {paper for paper in Project(ROOT).plan("full").papers if claims_of(paper)}


CLAIMS = [pytest.param(entry, id=f"{paper}-{entry.key}") for paper in BY_PAPER for entry in claims_of(paper)]


@pytest.mark.parametrize("entry", CLAIMS)
def test_a_claim_against_the_papers_own_table_says_so(entry: Claim) -> None:
    """A perfect replication contradicts it, so that readers have to know; then its source says what the table has."""
    finding = entry.judge_printed()
    assert finding is None or finding.verdict in (REPRODUCED, CONTRADICTED)
    if finding and finding.verdict == CONTRADICTED:
        assert re.search(r"\bTable [\dIVX]+ has\b", entry.source), entry.source


@pytest.mark.parametrize("entry", CLAIMS)
def test_printed_numbers_are_certain(entry: Claim) -> None:
    finding = entry.judge_printed()
    if finding:
        assert finding.p is None and not finding.lean and finding.low == finding.effect == finding.high
        assert "seeds decide" not in finding.note
    assert entry.experiments or finding is None, "theorems are not printed"


@pytest.mark.parametrize("paper", PRINTING)
def test_printed_numbers_have_the_places_of_records(paper: str) -> None:
    """Their tables have the columns of tidy tables, and labels of the grid with the paper's own parameters."""
    plan = Project(ROOT).plan("full")
    for experiment, table in printed_tables(paper).items():
        settings = [column for column in table if column not in COLUMNS]
        assert list(COLUMNS) == list(table)[: len(COLUMNS)] and all(str(name).startswith(SETTING) for name in settings)
        cells = {
            (job.dataset.label, job.model.label, job.defense.label, job.attack.label if job.attack else None)
            for job in plan.experiment_jobs(paper, experiment)
        }
        places = table[["dataset", "model", "defense", "attack"]].astype(object)
        placed = {tuple(None if pd.isna(label) else label for label in row) for row in places.to_numpy().tolist()}
        assert placed <= cells, experiment
        assert table["value"].notna().all() and not table.duplicated().any()


@pytest.mark.parametrize("paper", PRINTING)
def test_every_table_of_printed_numbers_decides_a_claim(paper: str) -> None:
    decided = [entry for entry in claims_of(paper) if entry.by_paper]
    assert set(printed_tables(paper)) == {name for entry in decided for name in entry.experiments}
