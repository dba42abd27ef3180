"""Records, tidy tables and whole projects without computing: what the quick jobs of the workflow tests find."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import pandas as pd
import yaml
from tests.workflow.quick_jobs import Adapt, findings

from leakbench.jobs.base import Job
from leakbench.jobs.runner import overall_outcome
from leakbench.planning.plan import Plan
from leakbench.planning.project import Project
from leakbench.records import Cost, Provenance, Record, write_record, write_tensors
from leakbench.report.artifacts import Artifact, artifacts
from leakbench.report.tidy import table_of, tidy_rows

ROOT = Path(__file__).resolve().parents[2]


def record_of(job: Job, adapted: Mapping[str, Adapt] | None = None) -> Record:
    """A whole record of a job, with numbers of some kinds of job adapted."""
    found = findings(job, adapted)
    return Record(
        schema="leakbench.record/1",
        job=job.resolved(),
        metrics=job.metrics,
        replicates=found.replicates,
        outcome=overall_outcome(found.replicates),
        cost=Cost(wall_s=2.0, device_s=1.5, peak_memory_bytes=2**30),
        provenance=Provenance(
            started="2024-01-01T00:00:00+00:00",
            commit="0123456789abcdef",
            dirty=False,
            versions={"python": "3.11", "torch": "2"},
            device="cpu (x86_64)",
            threads=1,
            slurm_job_id=None,
        ),
    )


def tidy_tables(
    plan: Plan,
    paper: str = "optimal_defense",
    adapted: Mapping[str, Adapt] | None = None,
    only: Collection[str] | None = None,
) -> dict[str, pd.DataFrame]:
    """The tidy table of every experiment of a paper, or of some."""
    return {
        experiment: table_of(
            [row for job in plan.experiment_jobs(paper, experiment) for row in tidy_rows(job, record_of(job, adapted))]
        )
        for experiment in plan.papers[paper].experiments
        if only is None or experiment in only
    }


def new_project(root: Path, scale: str = "smoke", adapted: Mapping[str, Adapt] | None = None) -> Project:
    """A checkout of one paper, with the record of every job of a scale, and the tensors of those that keep some.

    Args:
        root: an empty folder.
        scale: of the jobs.
        adapted: by kind of job, numbers that a test asks for.
    """
    if adapted is None:
        shutil.copytree(_plain(scale), root, dirs_exist_ok=True)
        return Project(root)
    return _made(root, scale, adapted)


@cache
def _plain(scale: str) -> Path:
    """The checkout that tests of this process copy."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _made(folder, scale, None).root


def _made(root: Path, scale: str, adapted: Mapping[str, Adapt] | None) -> Project:
    shutil.copytree(ROOT / "config", root / "config")
    settings = root / "config" / "config.yaml"
    settings.write_text(yaml.safe_dump(yaml.safe_load(settings.read_text()) | {"papers": ["optimal_defense"]}))
    project = Project(root)
    for path, job in project.plan(scale).jobs.items():
        record, tensors = record_of(job, adapted), findings(job).tensors
        if tensors:
            record.tensors = write_tensors((root / path).with_suffix(".safetensors"), tensors)
        write_record(root / path, record)
    return project


def configured(project: Project) -> list[Artifact]:
    """The artifacts of the papers that the configuration names."""
    return [entry for entry in artifacts() if entry.paper in project.settings.papers]
