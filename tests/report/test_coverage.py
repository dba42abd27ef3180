"""Coverage: cells and amounts of a scale against the paper's own grid."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakbench.planning.plan import Plan
from leakbench.planning.project import Project
from leakbench.report.claims import claims_of
from leakbench.report.coverage import PAPER_SCALE, WHOLE, coverage

ROOT = Path(__file__).resolve().parents[2]
PAPER = "optimal_defense"


@pytest.fixture(scope="module")
def project() -> Project:
    return Project(ROOT)


@pytest.fixture(scope="module")
def whole(project: Project) -> Plan:
    return project.plan(PAPER_SCALE)


def test_the_papers_own_grid_is_whole(whole: Plan) -> None:
    for paper in whole.papers:
        for claim in claims_of(paper):
            assert coverage(whole, whole, paper, claim.experiments) in (WHOLE, "")


def test_cells_and_amounts(project: Project, whole: Plan) -> None:
    """By hand from the grids: of the paper's cells smoke has none, of its seeds and iterations some."""
    words = coverage(project.plan("smoke"), whole, PAPER, ["pruning"])
    (job, *_) = project.plan("smoke").experiment_jobs(PAPER, "pruning")
    theirs = whole.experiment_jobs(PAPER, "pruning")
    cells = sum(each.defense.count for each in theirs)
    assert words.startswith("small on digits16: ") and f"0 of {cells} cells" in words
    assert "120 of 2,000 iterations of the attack" in words
    assert ("seeds" in words) == (len(job.seeds) < max(len(each.seeds) for each in theirs))


def test_what_a_scale_leaves_out_counts(project: Project, whole: Plan) -> None:
    """Of a job less, its cells are missing, and nothing else is."""

    class Less(Plan):
        def __init__(self) -> None:
            self._plans = whole._plans

        def experiment_jobs(self, paper: str, experiment: str) -> list:  # type: ignore[type-arg]
            return super().experiment_jobs(paper, experiment)[1:]

    (first, *others) = whole.experiment_jobs(PAPER, "pruning")
    missing, count = first.defense.count, sum(each.defense.count for each in [first, *others])
    words = coverage(Less(), whole, PAPER, ["pruning"])
    assert words.endswith(f": {count - missing} of {count} cells")


def test_nothing_is_computed(project: Project, whole: Plan) -> None:
    assert coverage(project.plan("smoke"), whole, PAPER, []) == ""
    assert coverage(project.plan("smoke"), whole, PAPER, ["unknown"]) == ""
