"""Records without numbers, for what only asks whether they are there, how they ended and what they took."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import yaml

from leakbench.planning.project import Project
from leakbench.records import Cost, Outcome, Provenance, Record, Replicate, write_record

ROOT = Path(__file__).resolve().parents[2]


def empty_project(root: Path, *papers: str) -> Project:
    """A checkout of some papers without any record."""
    shutil.copytree(ROOT / "config", root / "config")
    settings = root / "config" / "config.yaml"
    settings.write_text(yaml.safe_dump(yaml.safe_load(settings.read_text()) | {"papers": list(papers)}))
    return Project(root)


def write_bare_record(
    project: Project,
    path: str,
    seconds: float = 1.5,
    device: str = "cpu (x86_64)",
    status: Literal["ok", "diverged", "infeasible"] = "ok",
) -> Path:
    """The record of a job of the plan, with one replicate that measured nothing."""
    outcome = Outcome(status=status, reason=None if status == "ok" else f"it was {status}")
    record = Record(
        schema="leakbench.record/1",
        job=project.job(path).resolved(),
        metrics={},
        replicates=[Replicate(seed=0, outcome=outcome, metrics={})],
        outcome=outcome,
        cost=Cost(wall_s=2 * seconds, device_s=seconds, peak_memory_bytes=2**30),
        provenance=Provenance(
            started="2024-01-01T00:00:00+00:00",
            commit=None,
            dirty=None,
            versions={},
            device=device,
            threads=1,
            slurm_job_id=None,
        ),
    )
    write_record(project.root / path, record)
    return project.root / path
