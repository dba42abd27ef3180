"""Records computed again: equal on this processor, within a stated tolerance on another, else named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.report.synthetic import ROOT, record_of

from leakbench.errors import ConfigError
from leakbench.jobs.runner import Placement, run_job
from leakbench.planning.project import Project
from leakbench.publishing.archives import write_archives
from leakbench.publishing.recomputation import Recomputed, compared, drawn, numbers, repeatable, verify
from leakbench.records import Record, read_record, write_record
from leakbench.running.processor import processor

PAPER = "optimal_defense"
QUICK = """
experiments:
  undefended_release: {jobs: {release: {steps: 3, inversion: {iterations: 2}}}}
  shadows: {jobs: {shadows: {steps: {sweep: [3]}}}}
"""
CHEAP = "/undefended/digits16/small/none/{}/all.json"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A checkout that computed and published two guesses of one data set."""
    root = tmp_path_factory.mktemp("verified")
    shutil.copytree(ROOT / "config", root / "config")
    project = Project(root, {"papers": [PAPER]})
    for path, job in project.plan("smoke").jobs.items():
        if path.endswith((CHEAP.format("grey"), CHEAP.format("mean_image"))):
            run_job(job, root, Placement(device="cpu"))
    write_archives(project, "smoke", [PAPER])
    return project


def computed(project: Project) -> tuple[str, Record]:
    path = next(path for path in project.plan("smoke").jobs if path.endswith(CHEAP.format("grey")))
    return path, read_record(project.root / path)


def test_published_records_are_computed_again_and_equal(project: Project) -> None:
    every = list(verify(project, "smoke", [PAPER], seconds=600, seed=0))
    assert [each.path.split("/")[-2] for each in every] == ["grey", "mean_image"]
    assert all(each.holds and each.outcome == "identical" and each.alike for each in every)


def test_jobs_go_on_from_published_tensors(tmp_path: Path) -> None:
    """The record alone does not hold what the next job computes with."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    (tmp_path / "config" / "papers").mkdir()
    (tmp_path / "config" / "papers" / "channel.yaml").write_text(QUICK)
    project = Project(tmp_path, {"papers": ["channel"]})
    jobs = project.plan("smoke").jobs
    released = next(job for job in jobs.values() if job.kind.name == "release" and job.uses)
    for job in (*released.uses.values(), released):
        run_job(job, tmp_path, Placement(device="cpu"))
    write_archives(project, "smoke", ["channel"])
    shutil.rmtree(tmp_path / "results")
    every = list(verify(project, "smoke", ["channel"], seconds=600, seed=0))
    assert {each.path for each in every} == {released.path, *(used.path for used in released.uses.values())}
    assert all(each.outcome == "identical" for each in every)


def test_a_doctored_record_does_not_hold(project: Project, tmp_path: Path) -> None:
    """Also a little better ones: on this processor numbers are equal or wrong."""
    for name in ("config", "results"):
        shutil.copytree(project.root / name, tmp_path / name)
    copy = Project(tmp_path, {"papers": [PAPER]})
    path, record = computed(copy)
    psnr = record.replicates[0].metrics["psnr"]
    assert isinstance(psnr, list) and psnr[0] is not None
    psnr[0] += 0.01
    write_record(tmp_path / path, record)
    write_archives(copy, "smoke", [PAPER])
    wrong = [each for each in verify(copy, "smoke", [PAPER], seconds=600, seed=0) if not each.holds]
    assert [each.path for each in wrong] == [path]
    assert "differs by 0.01 on the same kind of processor" in wrong[0].outcome


def moved(record: Record, by: float, name: str = "psnr") -> Record:
    """The record of another processor, on which a metric is so much larger."""
    copy = record.model_copy(deep=True)
    copy.provenance.processor = "abacus"
    for replicate in copy.replicates:
        values = replicate.metrics[name]
        assert isinstance(values, list)
        replicate.metrics[name] = [None if value is None else value + by for value in values]
    return copy


@pytest.mark.parametrize(("by", "holds"), [(0.0, True), (0.001, True), (20.0, False)])
def test_another_processor_may_end_elsewhere_but_not_far(project: Project, by: float, holds: bool) -> None:
    path, record = computed(project)
    outcome = compared(path, record, moved(record, by))
    assert outcome.alike is False and outcome.holds is holds
    assert outcome.beyond == (() if holds else ("psnr",))


def test_another_version_of_torch_may_end_elsewhere(project: Project) -> None:
    path, record = computed(project)
    other = moved(record, 0.001)
    other.provenance.processor = record.provenance.processor
    assert not compared(path, record, other).holds
    other.provenance.versions["torch"] = "0.1"
    outcome = compared(path, record, other)
    assert outcome.holds and "another version of torch" in outcome.outcome


def test_records_that_name_no_processor_may_differ_as_if_it_were_another(project: Project) -> None:
    path, record = computed(project)
    other = moved(record, 0.001)
    other.provenance.processor = None
    outcome = compared(path, record, other)
    assert outcome.alike is None and outcome.holds and "unnamed" in outcome.outcome


def test_other_outcomes_do_not_hold_anywhere(project: Project) -> None:
    path, record = computed(project)
    other = moved(record, 0.0)
    del other.replicates[-1]
    outcome = compared(path, record, other)
    assert outcome.beyond == ("the outcomes",) and not outcome.holds


def test_seconds_are_not_compared(project: Project) -> None:
    jobs = Project(ROOT, {"papers": ["leaderboard"]}).plan("smoke").jobs.values()
    record = record_of(next(job for job in jobs if job.kind.name == "overhead"))
    names = {place.metric for place in numbers(record)}
    assert names < set(record.metrics) and not any("reproducible" in record.metrics[name].unit for name in names)
    assert repeatable(record) is bool(names)


def test_a_sample_fits_into_the_time() -> None:
    costs = {f"record{number}": float(number + 1) for number in range(50)}
    for seed in range(5):
        chosen = drawn(costs, seconds=60, seed=seed)
        assert 0 < sum(costs[path] for path in chosen) <= 60 and chosen == drawn(costs, seconds=60, seed=seed)
    assert len({tuple(drawn(costs, 60, seed)) for seed in range(5)}) > 1
    assert drawn(costs, seconds=0.1, seed=0) == ["record0"]  # the cheapest, where none fits


def test_nothing_published(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    with pytest.raises(ConfigError, match="no records of this scale are published"):
        list(verify(Project(tmp_path, {"papers": [PAPER]}), "smoke", [PAPER], 1.0, 0))


def test_outcomes_in_words() -> None:
    assert Recomputed("a", 0.0, (), True).outcome == "identical"
    assert "too much in psnr" in Recomputed("a", 9.0, ("psnr",), False).outcome
    assert processor()
