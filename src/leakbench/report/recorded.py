"""Existing records of planned jobs: whether they are of this plan, and how they ended. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from leakbench.errors import RecordError
from leakbench.jobs.base import Job
from leakbench.records import RESULTS, Record, digest, read_record, size_on_disk

State = Literal["done", "stale", "unreadable", "missing"]


@dataclass(frozen=True)
class Recorded:
    """The record of a job, if it has one.

    Attributes:
        state: ``stale`` if it was made by another configuration or version than the plan has.
        record: None if none can be read.
        reason: why it is stale or unreadable.
        bytes: of the record and its tensors.
    """

    state: State
    record: Record | None = None
    reason: str | None = None
    bytes: int = 0


def recorded(root: Path, job: Job) -> Recorded:
    """The record of a job below ``root``, if any, and its state."""
    path = root / job.path
    try:
        record = read_record(path)
    except FileNotFoundError:
        return Recorded("missing")
    except (RecordError, OSError) as error:
        return Recorded("unreadable", reason=str(error).removeprefix(f"{path}: "))
    try:
        size = size_on_disk(path, record)
    except OSError as error:
        return Recorded("unreadable", reason=f"{error.filename}: its tensors are missing")
    fault = staleness(job, record)
    return Recorded("stale" if fault else "done", record, fault, size)


def staleness(job: Job, record: Record) -> str | None:
    """The reason why a record is not that of the job as it is planned now; None if it is."""
    return None if digest(record.job) == job.digest else "made by another configuration or version of a component"


def readable_records(root: Path) -> dict[str, Record]:
    """Every record below the results of any scale that can be read, by its path relative to ``root``."""
    records = {}
    for path in sorted((root / RESULTS).glob("*/*/*/*/*/*/*/*.json")):
        try:
            records[str(path.relative_to(root))] = read_record(path)
        except (RecordError, OSError):
            continue  # `leakbench status` names it, and a run moves it aside
    return records
