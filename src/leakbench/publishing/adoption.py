"""Adoption of published records: they are put into ``results/`` as if they had been computed here."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakbench.errors import ConfigError
from leakbench.publishing.archives import read_archives
from leakbench.publishing.recomputation import numbers
from leakbench.records import Record, atomic_write, write_record
from leakbench.report.recorded import recorded, staleness

if TYPE_CHECKING:
    from pathlib import Path

    from leakbench.jobs.base import Job
    from leakbench.planning.project import Project

NAMED = 5
"""Records that a message names."""


@dataclass(frozen=True)
class Adoption:
    """The outcome for every published record, by path.

    Attributes:
        adopted: those that were written.
        kept: those that are here already, with the same numbers, but for seconds.
        left_out: those that do not fit the plan, with the reasons.
    """

    adopted: list[str]
    kept: list[str]
    left_out: Mapping[str, str]


def adopt(project: Project, scale: str, papers: Iterable[str]) -> Adoption:
    """Write the published records of a scale that fit the plan; all or none.

    One replaces a record here that is unreadable or of another configuration, whose job a run would repeat.
    If any is written, all files get one time, also those that are here already, so that Snakemake takes none for older
    than a record that it was computed from.

    Raises:
        ConfigError: an archive is missing or damaged, or a record here has other numbers than the published one.
    """
    archives = list(read_archives(project, scale, papers))
    plan = project.plan(scale)
    published = {path: (record, archive) for archive in archives for path, record in archive.records.items()}
    left_out = {path: reason for path, (record, _) in published.items() if (reason := _misfit(plan.jobs, path, record))}
    kept: dict[str, Record] = {}
    new: dict[str, Record] = {}
    differing = []
    for path, (record, _) in published.items():
        if path in left_out:
            continue
        here = recorded(project.root, plan.jobs[path])
        if here.state != "done" or here.record is None:
            new[path] = record
        elif numbers(here.record) == numbers(record):
            kept[path] = here.record
        else:
            differing.append(path)
    if differing:
        shown = ", ".join(differing[:NAMED]) + (" and others" if len(differing) > NAMED else "")
        raise ConfigError(
            f"{len(differing)} records here have other numbers than the published ones: {shown}. Nothing was written; "
            "move them away to adopt the published ones, or go on with yours"
        )
    for path, record in new.items():
        _write(project.root / path, record, published[path][1].tensors.get(path))
    if new:
        now = time.time()  # after the last was written, so that no file is younger
        for path, record in (new | kept).items():
            _date(project.root / path, record, now)
    return Adoption([*new], [*kept], left_out)


def _misfit(jobs: Mapping[str, Job], path: str, record: Record) -> str | None:
    """Why a record is of no use to a plan; None if it is of use."""
    return staleness(jobs[path], record) if path in jobs else "no job of the plan"


def _write(path: Path, record: Record, tensors: bytes | None) -> None:
    if tensors is not None and record.tensors is not None:
        atomic_write(path.with_name(record.tensors.file), tensors)
    write_record(path, record)


def _date(path: Path, record: Record, now: float) -> None:
    """Give a record and its tensors a time."""
    for file in (path, *([path.with_name(record.tensors.file)] if record.tensors else [])):
        if file.is_file():  # of a record that is here already, nobody may need the tensors
            os.utime(file, (now, now))
