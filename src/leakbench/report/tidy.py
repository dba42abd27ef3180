"""Records of an experiment as one tidy table with a row per number, and a list of missing numbers with reasons."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from leakbench.errors import DataChanged, RecordError
from leakbench.jobs.base import Job
from leakbench.jobs.runner import data_fingerprint
from leakbench.lazy import pd
from leakbench.planning.project import Project
from leakbench.records import RESULTS, Cost, MetricInfo, Provenance, Record, atomic_write, quarantine, read_record
from leakbench.report.gate_verdicts import Judge, is_void, verdict_table
from leakbench.report.recorded import staleness
from leakbench.report.under_attacked import COLUMN, CellJudge, adaptive_table, is_under_attacked

SETTING = "setting."
"""Prefix of the columns that hold swept parameters."""

SECONDS = "device_s"
"""Metric of replicates with a budget: seconds of the processor or GPU, if all of a record take alike."""
SECONDS_INFO = MetricInfo(unit="s of the processor or GPU", direction="none")

COLUMNS = {
    **dict.fromkeys(("scale", "paper", "experiment", "dataset", "model", "defense", "mechanism"), "str"),
    **dict.fromkeys(("attack", "kind"), "str"),
    "void": "bool",
    COLUMN: "bool",
    "distinct": "bool",
    "seed": "int64",
    "status": "str",
    **dict.fromkeys(("metric", "unit", "direction", "axis"), "str"),
    "index": "int64",
    "value": "float64",
}
"""Columns of a tidy table with their types; those of swept parameters come beside them."""


def setting_columns(frame: pd.DataFrame) -> list[str]:
    """The columns of a tidy table that hold swept parameters."""
    return [name for name in map(str, frame.columns) if name.startswith(SETTING)]


def cells_of(frame: pd.DataFrame) -> list[tuple[str, str]]:
    """Data sets with models of a tidy table, in its order."""
    return list(frame[["dataset", "model"]].drop_duplicates().itertuples(index=False, name=None))


def of_cell(frame: pd.DataFrame, dataset: str, model: str) -> pd.DataFrame:
    """Rows of one data set and model."""
    return frame[(frame["dataset"] == dataset) & (frame["model"] == model)]


def table_path(scale: str, paper: str, experiment: str) -> str:
    """Path of an experiment's tidy table, relative to the project's root."""
    return f"{RESULTS}/{scale}/{paper}/{experiment}/records.parquet"


def missing_path(table: str) -> str:
    """Path of the list of missing numbers beside a tidy table."""
    return str(PurePosixPath(table).with_name("missing.csv"))


def gates_path(table: str) -> str:
    """Path of the verdicts on attacks beside a tidy table."""
    return str(PurePosixPath(table).with_name("gates.csv"))


def adaptive_path(table: str) -> str:
    """Path of the comparisons of adaptive attacks with plain ones beside a tidy table."""
    return str(PurePosixPath(table).with_name("adaptive.csv"))


def provenance_path(table: str) -> str:
    """Path of the provenance table beside a tidy table."""
    return str(PurePosixPath(table).with_name("provenance.csv"))


def merged_paths(scale: str, paper: str, experiment: str) -> list[str]:
    """Paths of an experiment's tidy table and of the files beside it."""
    table = table_path(scale, paper, experiment)
    return [table, *(of(table) for of in (missing_path, gates_path, adaptive_path, provenance_path))]


def existing(root: Path, path: str, command: str) -> Path:
    """A file that ``command`` makes.

    Raises:
        RecordError: it is not there.
    """
    if not (root / path).is_file():
        raise RecordError(f"{path}: missing; make it with `leakbench {command}`")
    return root / path


def read_frame(root: Path, path: str, command: str, **options: Any) -> pd.DataFrame:
    """A table that ``command`` makes, from Parquet or CSV as its name says.

    Args:
        root: the root of the project.
        path: relative to it.
        command: of ``leakbench``.
        options: of the function of pandas that reads it.

    Raises:
        RecordError: it is not there, or cannot be read.
    """
    file = existing(root, path, command)
    try:
        return pd.read_parquet(file, **options) if file.suffix == ".parquet" else pd.read_csv(file, **options)
    except (OSError, ValueError) as error:  # those of pandas and pyarrow among them
        raise RecordError(f"{path}: cannot be read; delete it, and make it again with `leakbench {command}`") from error


@dataclass(frozen=True)
class Merged:
    """An experiment's records as tables.

    Attributes:
        numbers: the tidy table: one row per number.
        missing: the numbers that records hold as null, and why.
        gates: the verdict on each cell's attack.
        adaptive: the best adaptive attack on each defended cell beside the best plain one.
        provenance: one row per record: outcome, cost and provenance.
    """

    numbers: pd.DataFrame
    missing: pd.DataFrame
    gates: pd.DataFrame
    adaptive: pd.DataFrame
    provenance: pd.DataFrame


def needed(project: Project, table: str) -> list[Job]:
    """The jobs whose records a tidy table is made of: the experiment's own, and those that decide on its marks.

    These are the jobs of its gates, and those of the plain attacks that its adaptive ones wrap.

    Raises:
        ConfigError: no such experiment.
    """
    jobs = project.experiment_jobs(table)
    jobs += [job for gate in project.experiment_gates(table) for job in (*gate.undefended, *gate.reference)]
    jobs += [job for cell in project.adapted_cells(table) for job in cell.plain]
    return list({job.path: job for job in jobs}.values())


def merged(project: Project, table: str, records: Mapping[str, Record]) -> Merged:
    """The tables of an experiment, from all or some of its records.

    Args:
        project: that plans the experiment.
        table: path of its tidy table.
        records: by their paths. Gates whose records are not among them count as missed.

    Raises:
        ConfigError: no such experiment.
        DataChanged: records were made from different files of a data set.
    """
    judges = [Judge.of(gate, records) for gate in project.experiment_gates(table)]
    adapted = [CellJudge.of(cell, records, judges) for cell in project.adapted_cells(table)]
    jobs = project.experiment_jobs(table)
    pairs = [(job, records[job.path]) for job in jobs if job.path in records]
    _check_data(needed(project, table), records)
    rows = [row for job, record in pairs for row in tidy_rows(job, record, judges, adapted)]
    absent = [SETTING + key for job in jobs if job.path not in records for key in _swept(job)]
    numbers = table_of(rows)
    for column in dict.fromkeys(absent):  # readers of the table expect every parameter of the experiment
        if column not in numbers:
            numbers[column] = float("nan")
    missing = pd.DataFrame(
        [row for job, record in pairs for row in _missing(job, record)],
        columns=["record", "seed", "setting", "metric", "reason"],
    )
    provenance = pd.DataFrame(
        [_provenance(job, record) for job, record in pairs],
        columns=["record", "status", *Cost.model_fields, *Provenance.model_fields],
    )
    return Merged(numbers, missing, verdict_table(judges, pairs), adaptive_table(adapted), provenance)


def table_of(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Rows as a tidy table, which has its columns where there is no row, too."""
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=list(COLUMNS)).astype(COLUMNS)


def _provenance(job: Job, record: Record) -> dict[str, Any]:
    made = record.provenance.model_dump() | {"versions": json.dumps(record.provenance.versions)}
    return {"record": job.path, "status": record.outcome.status, **record.cost.model_dump(), **made}


def _check_data(jobs: Iterable[Job], records: Mapping[str, Record]) -> None:
    """Reject numbers of different data under one name."""
    first: dict[str, Job] = {}
    for job in jobs:
        data = records[job.path].provenance.data if job.path in records else None
        if data is None:  # made before this was noted, or from what ships with the installation
            continue
        other = first.setdefault(job.dataset.label, job)
        known = records[other.path].provenance.data
        if data != known:
            now = data_fingerprint(job)
            old = [each for each in (known, data) if each != now]
            folder = PurePosixPath(RESULTS, job.scale, job.paper)
            raise DataChanged(
                f"{other.path} and {job.path} were made from different files of data set '{job.dataset.label}' "
                f"(fingerprints {known} and {data}; that of the files here: {now or 'none'}), and their "
                "numbers are not mixed. Decide for one, put its files in place, delete the records of the other, which "
                f"`grep -rl {old[0]} {folder}` lists, and run the same command again"
            )


def _swept(job: Job) -> list[str]:
    """Names of the parameters in a job's settings."""
    return [key for variant in (job.defense, job.attack, job.kinds) if variant for key in variant.sweep]


def merge(project: Project, table: str) -> None:
    """Read and check all records of an experiment, judge its attacks, and write its tidy table.

    An unreadable record is moved aside and named, so that running the workflow again regenerates it.

    Raises:
        ConfigError: no such experiment.
        RecordError: records are missing, unreadable, or were made by another configuration.
        DataChanged: records were made from different files of a data set.
    """
    made = merged(project, table, {job.path: _read(project.root, job) for job in needed(project, table)})
    _write_frame(project.root / table, made.numbers)
    atomic_write(project.root / missing_path(table), made.missing.to_csv(index=False).encode())
    atomic_write(project.root / gates_path(table), made.gates.to_csv(index=False).encode())
    atomic_write(project.root / adaptive_path(table), made.adaptive.to_csv(index=False).encode())
    atomic_write(project.root / provenance_path(table), made.provenance.to_csv(index=False).encode())


def _read(root: Path, job: Job) -> Record:
    path = existing(root, job.path, f"run {job.path}")
    try:
        record = read_record(path)
    except RecordError as error:
        aside = quarantine(path)
        raise RecordError(
            f"{error}. Moved aside to {aside.name}; run the same command again to regenerate it"
        ) from None
    if fault := staleness(job, record):
        raise RecordError(f"{job.path}: {fault}; delete it, and run the same command again")
    return record


def tidy_rows(
    job: Job, record: Record, judges: Sequence[Judge] = (), adapted: Sequence[CellJudge] = ()
) -> Iterator[dict[str, Any]]:
    """One row per number of a record. Null values become NaN; ``void`` says that the attack missed a gate.

    ``under_attacked`` says that attacks on this cell that know the defense do worse than those inside them, and
    ``distinct`` that each seed has victims of its own. Where the kind of job counts a budget, each replicate has its
    part of the record's seconds beside its metrics, :data:`SECONDS`.
    """
    part = [(SECONDS, record.cost.device_s / len(record.replicates))] if job.kind.counts_seconds else []
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
        "distinct": job.kind.distinct_victims,
    }
    for replicate in record.replicates:
        setting = {SETTING + key: value for key, value in replicate.setting.items()}
        void = is_void(judges, job, replicate.setting)
        weak = is_under_attacked(adapted, job, replicate.setting)
        shared = (
            cell | {"void": void, COLUMN: weak, "seed": replicate.seed, "status": replicate.outcome.status} | setting
        )
        for name, value in [*replicate.metrics.items(), *part]:
            info = SECONDS_INFO if name == SECONDS else record.metrics[name]
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
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    atomic_write(path, buffer.getvalue())
