"""A scale that leaves experiments out draws and judges all that needs none of them, and says so of the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from tests.report.synthetic import ROOT, record_of, tidy_tables
from tests.workflow.quick_jobs import findings

from leakbench.errors import ConfigError
from leakbench.planning.plan import Plan
from leakbench.planning.project import Project
from leakbench.records import write_record, write_tensors
from leakbench.report.artifacts import Artifact, artifact_of, artifacts_at
from leakbench.report.claims import claims_of
from leakbench.report.judging import claims_inputs, judged
from leakbench.report.record_tensors import RecordTensors

PROJECT = Project(ROOT)
OVERNIGHT = PROJECT.plan("overnight")
PAPERS = [paper for paper in OVERNIGHT.papers if OVERNIGHT.jobs_of(paper)]


def stored(root: Path, plan: Plan, entry: Artifact) -> RecordTensors:
    """The tensors that an artifact reads, as records of pictures have them."""
    jobs = {name: plan.experiment_jobs(entry.paper, name) for name in entry.tensors}
    for job in (job for of_experiment in jobs.values() for job in of_experiment):
        record = record_of(job)
        record.tensors = write_tensors(
            (root / job.path).with_suffix(".safetensors"), findings(replace(job, experiment="pictures")).tensors
        )
        write_record(root / job.path, record)
    return RecordTensors(root, jobs)


@pytest.mark.parametrize("paper", PAPERS)
def test_everything_that_the_scale_has_can_be_made(paper: str, tmp_path: Path) -> None:
    tables = tidy_tables(OVERNIGHT, paper)
    entries = [entry for entry in artifacts_at(OVERNIGHT) if entry.paper == paper]
    assert entries
    for entry in entries:
        entry.made({name: tables[name] for name in entry.experiments}, stored(tmp_path, OVERNIGHT, entry), {})
        plt.close("all")
    for claim in claims_of(paper):
        if not any(OVERNIGHT.leaves_out(paper, name) for name in claim.experiments):
            claim.judge(tables)


@pytest.mark.parametrize("paper", PAPERS)
def test_claims_on_what_is_left_out_are_not_run_and_ask_for_no_table(paper: str) -> None:
    inputs = claims_inputs(PROJECT, "overnight", paper)
    for claim, finding in judged(Project(ROOT), "overnight", paper):
        absent = [name for name in claim.experiments if OVERNIGHT.leaves_out(paper, name)]
        if absent:
            assert (finding.verdict, finding.note) == ("not run", f"the scale leaves out {', '.join(absent)}")
        assert not [path for name in absent for path in inputs if path.endswith(f"/{name}/records.parquet")]


def test_a_figure_without_its_experiments_is_refused_with_their_names() -> None:
    entry = artifact_of("figures/overnight/tfl_meta/figS4.pdf")
    with pytest.raises(ConfigError, match=r"figS4\.pdf: the scale 'overnight' leaves out what it reads \(.*tuned"):
        entry.check_made(OVERNIGHT)
    entry.check_made(PROJECT.plan("full"))


def test_one_that_shows_what_there_is_needs_something() -> None:
    in_parts = artifact_of("figures/overnight/secagg_dp/fig05.pdf")
    assert not in_parts.lacks(OVERNIGHT) and any(
        OVERNIGHT.leaves_out("secagg_dp", name) for name in in_parts.experiments
    )
    board = artifact_of("figures/overnight/leaderboard/fig01.pdf")
    assert board.in_parts and board.lacks(OVERNIGHT) == list(board.experiments)
