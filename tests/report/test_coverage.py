"""Coverage: cells and amounts of a scale against the paper's own grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from leakbench.jobs.base import Job, JobKind, Variant
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


def test_parameters_that_differ_under_one_label(project: Project, whole: Plan) -> None:
    """By hand: smoke's attack of CIFAR-10 has another total variation; its iterations are an amount, and no setting."""
    own, ours = (plan.experiment_jobs(PAPER, "cifar_noise") for plan in (whole, project.plan("smoke")))
    attacks = [{job.attack.label: job.attack for job in jobs if job.attack}["ig-cifar"] for jobs in (own, ours)]
    assert attacks[0].first.model_dump()["regularisers"] != attacks[1].first.model_dump()["regularisers"]
    words = coverage(project.plan("smoke"), whole, PAPER, ["cifar_noise"])
    assert "; attack settings differ: regularisers" in words and "defense settings" not in words
    assert "settings differ" not in coverage(project.plan("smoke"), whole, PAPER, ["pruning"])


def test_settings_of_every_kind_of_component(whole: Plan) -> None:
    """A changed parameter is named, of the most parameters five; swept ones make cells, and amounts are listed."""

    class Other(Plan):
        def __init__(self, **changed: Variant[Any] | JobKind) -> None:
            self._plans, self._changed = whole._plans, changed

        def experiment_jobs(self, paper: str, experiment: str) -> list[Job]:
            return [replace(job, **self._changed) for job in super().experiment_jobs(paper, experiment)]  # type: ignore[arg-type]

    (job, *_) = whole.experiment_jobs("channel", "parameter_space")
    kind = job.kind.model_copy(update={"rate": 7.0, "split_seeds": True, "steps": 1})
    assert coverage(Other(kind=kind), whole, "channel", ["parameter_space"]).endswith(" steps; protocol differs: rate")
    for axis in ("model", "defense"):
        variant = getattr(job, axis)
        changed = replace(variant, component=type("Another", (variant.component,), {"name": "another"}))
        found = coverage(Other(**{axis: changed}), whole, "channel", ["parameter_space"])
        assert f"{axis} settings differ: name" in found


def test_of_each_amount_the_experiment_with_least_counts(project: Project, whole: Plan) -> None:
    """Channel E6 reads released models of three seeds and reconstructions of six; neither hides the other."""
    smoke = project.plan("smoke")
    experiments = ["natural", "inversion"]
    seeds = [{job.kind.seeds for job in smoke.experiment_jobs("channel", name)} for name in experiments]
    assert seeds == [{3}, {6}]
    assert "3 of 10 seeds" in coverage(smoke, whole, "channel", experiments)
    assert "6 of 10 seeds" in coverage(smoke, whole, "channel", ["inversion"])


def test_nothing_is_computed(project: Project, whole: Plan) -> None:
    assert coverage(project.plan("smoke"), whole, PAPER, []) == ""
    assert coverage(project.plan("smoke"), whole, PAPER, ["unknown"]) == ""
