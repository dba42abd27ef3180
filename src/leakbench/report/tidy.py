"""Records of an experiment as one tidy table: one row per number, and a list of what is missing and why."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from leakbench.errors import RecordError
from leakbench.experiments import Project
from leakbench.jobs.base import RESULTS, Job
from leakbench.lazy import pd
from leakbench.records import Record, atomic_write, quarantine, read_record
from leakbench.report.verdicts import Judge, is_void, verdict_table

SETTING = "setting."
"""Prefix of the columns that hold swept parameters."""


def setting_columns(frame: pd.DataFrame) -> list[str]:
    """The columns of a tidy table that hold swept parameters."""
    return [name for name in map(str, frame.columns) if name.startswith(SETTING)]


def table_path(scale: str, paper: str, experiment: str) -> str:
    """Where an experiment's tidy table lies, relative to the project's root."""
    return f"{RESULTS}/{scale}/{paper}/{experiment}/records.parquet"


def missing_path(table: str) -> str:
    """Where the list of missing numbers lies that belongs to a tidy table."""
    return str(PurePosixPath(table).with_name("missing.csv"))


def gates_path(table: str) -> str:
    """Where the verdicts on an experiment's attacks lie, beside its tidy table."""
    return str(PurePosixPath(table).with_name("gates.csv"))


def existing(root: Path, path: str, command: str) -> Path:
    """A file that ``command`` makes.

    Raises:
        RecordError: it is not there.
    """
    if not (root / path).is_file():
        raise RecordError(f"{path}: missing; make it with `leakbench {command}`")
    return root / path


def merge(project: Project, table: str) -> None:
    """Read and check all records of an experiment, judge its attacks, and write its tidy table.

    A record that cannot be read is moved aside and named, so that running the workflow again regenerates it.

    Raises:
        ConfigError: no such experiment.
        RecordError: records are missing, unreadable, or were made by another configuration.
    """
    records = [(job, _read(project.root, job)) for job in project.experiment_jobs(table)]
    judges = [
        Judge(gate, [replicate for job in gate.undefended for replicate in _read(project.root, job).replicates])
        for gate in project.experiment_gates(table)
    ]
    rows = [row for job, record in records for row in tidy_rows(job, record, judges)]
    frame = pd.DataFrame(rows)
    _write_frame(project.root / table, frame)
    missing = pd.DataFrame(
        [row for job, record in records for row in _missing(job, record)],
        columns=["record", "seed", "setting", "metric", "reason"],
    )
    atomic_write(project.root / missing_path(table), missing.to_csv(index=False).encode())
    atomic_write(project.root / gates_path(table), verdict_table(judges, records).to_csv(index=False).encode())


def _read(root: Path, job: Job) -> Record:
    path = existing(root, job.path, f"run {job.path}")
    try:
        record = read_record(path)
    except RecordError as error:
        aside = quarantine(path)
        raise RecordError(
            f"{error}. Moved aside to {aside.name}; run the same command again to regenerate it"
        ) from None
    if record.job != job.resolved():
        raise RecordError(
            f"{job.path}: made by another configuration or version of a component; "
            "run snakemake again without --rerun-triggers, or delete the file"
        )
    return record


def tidy_rows(job: Job, record: Record, judges: Sequence[Judge] = ()) -> Iterator[dict[str, Any]]:
    """One row per number of a record. Null values become NaN; ``void`` says that the attack missed a gate."""
    cell = {
        "scale": job.scale,
        "paper": job.paper,
        "experiment": job.experiment,
        "dataset": job.dataset.label,
        "model": job.model.label,
        "defense": job.defense.label,
        "mechanism": job.defense.component.name,
        "attack": job.attack.label if job.attack else None,
        "kind": job.kind.name,
    }
    for replicate in record.replicates:
        setting = {SETTING + key: value for key, value in replicate.setting.items()}
        void = is_void(judges, job, replicate.setting)
        shared = cell | {"void": void, "seed": replicate.seed, "status": replicate.outcome.status} | setting
        for name, value in replicate.metrics.items():
            info = record.metrics[name]
            named = shared | {"metric": name, "unit": info.unit, "direction": info.direction, "axis": info.axis}
            for index, number in enumerate(value if isinstance(value, list) else [value]):
                yield named | {"index": index, "value": float("nan") if number is None else float(number)}


def _missing(job: Job, record: Record) -> Iterator[dict[str, Any]]:
    for replicate in record.replicates:
        for metric, reason in replicate.reasons.items():
            yield {
                "record": job.path,
                "seed": replicate.seed,
                "setting": json.dumps(replicate.setting),
                "metric": metric,
                "reason": reason,
            }


def _write_frame(path: Path, frame: pd.DataFrame) -> None:
    import io

    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    atomic_write(path, buffer.getvalue())
