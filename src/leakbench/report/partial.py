"""Figures and tables from the records that exist so far: marked as partial, and apart from complete ones.

They are written to ``figures/<scale>/<paper>/partial``, which neither the scorecard nor the claims read. Records are
merged in memory, and no file of a complete run is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from leakbench.errors import LeakbenchError, RecordError
from leakbench.jobs.base import Job
from leakbench.planning.project import Project
from leakbench.records import Record, atomic_write
from leakbench.report.artifacts import Artifact, artifact_of, formats, notes_on_marks
from leakbench.report.compared import places_of
from leakbench.report.record_tensors import RecordTensors
from leakbench.report.recorded import recorded
from leakbench.report.tidy import merged, needed, table_path

FOLDER = "partial"

MOST_FAULTS = 20
"""Number of faulty records that are named."""


@dataclass(frozen=True)
class Share:
    """The records that exist of those that an artifact needs.

    Attributes:
        jobs: all that it needs: those of its experiments, and those that decide on marks.
        records: those that exist, by their paths.
        faults: path -> fault, of stale and unreadable records, which count as missing.
    """

    jobs: tuple[Job, ...]
    records: Mapping[str, Record]
    faults: Mapping[str, str]

    @classmethod
    def of(cls, project: Project, jobs: Iterable[Job]) -> Share:
        """The share of these jobs' records that exist. Stale and unreadable ones are left alone."""
        every = tuple(jobs)
        records: dict[str, Record] = {}
        faults: dict[str, str] = {}
        for job in every:
            there = recorded(project.root, job)
            if there.reason:
                faults[job.path] = there.reason
            elif there.record:
                records[job.path] = there.record
        return cls(every, records, faults)

    @property
    def complete(self) -> bool:
        """Whether nothing is missing."""
        return len(self.records) == len(self.jobs)

    def __str__(self) -> str:
        """``5 of 8 records``."""
        return f"{len(self.records)} of {len(self.jobs)} records"

    def by_experiment(self) -> str:
        """``noise 3 of 4, pruning 2 of 4``."""
        counts: dict[str, list[bool]] = {}
        for job in self.jobs:
            counts.setdefault(job.experiment, []).append(job.path in self.records)
        return ", ".join(f"{experiment} {sum(there)} of {len(there)}" for experiment, there in counts.items())


def partial_path(entry: Artifact, scale: str, extension: str) -> str:
    """Path of an artifact from a part of its records, relative to the project's root."""
    path = PurePosixPath(entry.path(scale, extension))
    return str(path.parent / FOLDER / path.name)


def draw_partly(project: Project, path: str) -> list[str]:
    """Draw a figure, or write a table, from the records that exist; returns messages for the user.

    It is marked even if none is missing, as ``n of n records``: only the workflow makes unmarked ones.

    Args:
        project: whose records are read.
        path: of the whole artifact, as :func:`artifact_of` takes it.

    Raises:
        ConfigError: no such artifact.
        RecordError: there are no records, or the artifact cannot be drawn from these; or records of an experiment were
            made from different data.
    """
    entry, scale = artifact_of(path), PurePosixPath(path).parts[1]
    plan = project.plan(scale, where=path)
    entry.check_made(plan)
    paths = {experiment: table_path(scale, entry.paper, experiment) for experiment in entry.experiments}
    jobs = {job.path: job for table in paths.values() for job in needed(project, table)}
    share = Share.of(project, jobs.values())
    whole = f"`snakemake --cores all {path}`"
    if jobs and not share.records:
        raise RecordError(f"{path}: {share} are there; make them with {whole}" + _faulty(share))
    tables = {experiment: merged(project, table, share.records) for experiment, table in paths.items()}
    stored = RecordTensors(
        project.root, {name: plan.experiment_jobs(entry.paper, name) for name in entry.tensors}, share.records
    )
    caption = [f"Records that are there: {share.by_experiment()}."] if jobs else []
    try:
        numbers = {experiment: each.numbers for experiment, each in tables.items()}
        made = entry.made(numbers, stored, places_of(project.compared))
        gates, adaptive = ([getattr(each, of) for each in tables.values()] for of in ("gates", "adaptive"))
        caption += [entry.full_caption(project, scale), *notes_on_marks(made, numbers, gates, adaptive)]
        contents = formats(made, caption, str(share), entry.label)
    except Exception as error:  # functions that expect a whole grid fail in many ways on a part of it
        if share.complete:
            raise
        why = str(error) if isinstance(error, LeakbenchError) else f"{type(error).__name__}: {error}"
        raise RecordError(
            f"{path}: cannot be drawn from {share} ({share.by_experiment()}): {why}. Make the others with {whole}"
            + _faulty(share)
        ) from error
    for extension, content in contents.items():
        atomic_write(project.root / partial_path(entry, scale, extension), content)
    return list(_messages(entry, scale, share, list(contents), whole))


def _messages(entry: Artifact, scale: str, share: Share, extensions: list[str], whole: str) -> Iterator[str]:
    first, *others = extensions
    files = ", ".join([partial_path(entry, scale, first), *(f".{extension}" for extension in others)])
    yield f"{files}: {share}" + (f" ({share.by_experiment()})" if share.jobs else "")
    if share.complete:
        yield f"Nothing is missing: {whole} makes the whole one."
    else:
        yield f"The whole one is made by {whole}." + _faulty(share)


def _faulty(share: Share) -> str:
    """Faulty records, which count as missing, one per line."""
    lines = [f"\nCounts as missing: {path}: {fault}" for path, fault in list(share.faults.items())[:MOST_FAULTS]]
    more = len(share.faults) - len(lines)
    return "".join(lines) + (f"\nand {more:,} more" if more else "")
