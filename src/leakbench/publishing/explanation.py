"""Explanation of a number: from a row of a figure or table to the records that it is made of."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from leakbench.errors import ConfigError
from leakbench.report.artifacts import artifact_of
from leakbench.report.recorded import recorded
from leakbench.report.tidy import read_frame

if TYPE_CHECKING:
    from leakbench.jobs.base import Job, Variant
    from leakbench.planning.project import Project

AXES = ("dataset", "model", "defense", "attack")
"""Axes of a grid that rows name."""


@dataclass(frozen=True)
class Source:
    """A record behind a number.

    Attributes:
        path: of the record.
        state: as of :class:`leakbench.report.recorded.Recorded`.
        digest: of its job.
        commit: of the code that made it; None where unknown.
        data: fingerprint of the files of its data set; None for data that ship with the package.
        processor: that made it; None where unknown.
    """

    path: str
    state: str
    digest: str
    commit: str | None
    data: str | None
    processor: str | None


@dataclass(frozen=True)
class Explanation:
    """A row of a figure or table, and the records behind it."""

    row: Mapping[str, Any]
    sources: list[Source]


def explain(project: Project, target: str) -> Explanation:
    """The records behind a row.

    Args:
        project: whose figures and records they are.
        target: ``figures/<scale>/<paper>/<figure>:<row>``, rows counted from 1 as in its CSV file.

    Raises:
        ConfigError: no such figure or row.
        RecordError: the figure was not drawn.
    """
    parsed = re.fullmatch(r"(?P<path>.+?)(\.\w+)?:(?P<row>[0-9]+)", target)
    if parsed is None:
        raise ConfigError(f"{target}: expected figures/<scale>/<paper>/<figNN|tableNN>:<row>, such as fig01:1")
    path, number = f"{parsed['path']}.csv", int(parsed["row"])
    entry, scale = artifact_of(path), PurePosixPath(path).parts[1]
    plan = project.plan(scale, where=path)
    frame = read_frame(project.root, path, f"draw {path}")
    if not 1 <= number <= len(frame):
        raise ConfigError(f"{target}: there is no such row. Allowed: 1 to {len(frame)}, of {path}")
    row = {str(key): value for key, value in frame.iloc[number - 1].items() if not _unknown(value)}
    jobs = [job for name in entry.experiments for job in plan.experiment_jobs(entry.paper, name)]
    return Explanation(row, [_source(project, job) for job in matching(row, jobs)])


def matching(row: Mapping[str, Any], jobs: Iterable[Job]) -> list[Job]:
    """The jobs that a row's words name: a data set, model, defense or attack, by label or registered name.

    Training, which runs no attack, belongs to every attack on its defense. Words that name nothing tell nothing apart.
    """
    chosen = list(jobs)
    words = {part for value in row.values() if isinstance(value, str) for part in (value, value.split(", ")[0])}
    for axis in AXES:
        named = {job.path for job in chosen if words & _names(getattr(job, axis))}
        without = {job.path for job in chosen if getattr(job, axis) is None}
        chosen = [job for job in chosen if not named or job.path in named | without]
    return chosen


def _names(variant: Variant[Any] | None) -> set[str]:
    if variant is None:
        return set()
    name = variant.component.name
    return {variant.label, name, name.replace("_", " ")}


def _source(project: Project, job: Job) -> Source:
    here = recorded(project.root, job)
    made = here.record.provenance if here.record else None
    commit, data, processor = (made.commit, made.data, made.processor) if made else (None, None, None)
    return Source(job.path, here.state, job.digest, commit, data, processor)


def _unknown(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
