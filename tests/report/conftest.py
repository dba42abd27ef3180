from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.synthetic import configured, new_project
from tests.workflow.quick_jobs import ADAPTED

from leakbench.jobs.base import Job
from leakbench.planning.plan import Plan
from leakbench.planning.project import Project
from leakbench.records import Replicate
from leakbench.report.artifacts import Artifact, artifacts_at
from leakbench.report.checks import Theorem
from leakbench.report.findings import Finding
from leakbench.report.judging import claims_path, judge
from leakbench.report.scorecard import write_scorecard
from leakbench.report.tidy import merge, table_path

HERE = Path(__file__).resolve().parent


@pytest.hookimpl(tryfirst=True)  # before that of tests/conftest.py
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep tests of the rendered project in one process of pytest-xdist: drawing everything takes half a minute."""
    for item in items:
        if isinstance(item, pytest.Function) and HERE in item.path.parents and "rendered" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("rendered"))


def costly(job: Job, replicate: Replicate) -> None:
    """Optimal noise loses more than any other defense, so that claims about it are contradicted."""
    ADAPTED["train"](job, replicate)
    if job.defense.label.startswith("optimal"):
        replicate.metrics["final_loss"] = 9.0 + replicate.seed / 100


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with every table, figure and the page of its scale, from synthetic records. Change nothing in it."""
    project = new_project(tmp_path_factory.mktemp("rendered"), adapted={"train": costly})
    for paper, spec in project.plan("smoke").papers.items():
        for experiment in spec.experiments:
            merge(project, table_path("smoke", paper, experiment))
    verdict = Finding("reproduced", effect=0.25, meaning="slack", note="3 random cases")
    with pytest.MonkeyPatch.context() as patch:  # the theorems themselves take seconds
        patch.setattr(Theorem, "__call__", lambda *_: verdict)
        judge(project, claims_path("smoke", "optimal_defense"))
    for entry in configured(project):
        entry.render(project, entry.paths("smoke")[0])
    write_scorecard(project, "results/smoke/scorecard.html")
    return project


@pytest.fixture(scope="session")
def leading(rendered: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The rendered project, whose page begins with a figure and a table, as that of the leaderboard does."""
    root = tmp_path_factory.mktemp("leading") / "copy"
    shutil.copytree(rendered.root, root)
    project = Project(root)

    def with_leading(plan: Plan) -> list[Artifact]:
        return [replace(entry, leads=entry.name in ("fig04", "table01")) for entry in artifacts_at(plan)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leakbench.report.scorecard.artifacts_at", with_leading)
        write_scorecard(project, "results/smoke/scorecard.html")
    return project
