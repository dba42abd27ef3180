"""Submissions to the leaderboard: a folder that a pull request can hold, and that anyone can compute a part of again.

It holds the source of a defense or an attack, every record behind its lines, the lines, and digests of all of it. The
lines have no tier: that depends on the others.
"""

from __future__ import annotations

import datetime
import gzip
import hashlib
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leakbench.errors import ConfigError, RecordError
from leakbench.jobs.base import Job, Variant
from leakbench.leaderboard import PAPER
from leakbench.leaderboard.board import boards
from leakbench.leaderboard.figures import numbers_of
from leakbench.leaderboard.lines import known
from leakbench.leaderboard.tracks import READ
from leakbench.planning.project import Project
from leakbench.publishing.recomputation import Recomputed, again, numbers, repeatable
from leakbench.records import Record, atomic_write, digest, read_record
from leakbench.report.labels import declared
from leakbench.report.tidy import merged, table_path

FILE, RECORDS, SOURCE, LINES = "submission.yaml", "records", "source", "lines.json"
KEYS: Mapping[str, str] = {"defense": "compare", "attack": "ensemble"}
"""Kinds of components that are submitted, with the keys of the configuration that add them."""


class Submission(BaseModel):
    """The file ``submission.yaml``."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["defense", "attack"]
    name: str = Field(description="file:Class below the folder 'source', or a registered name")
    label: str
    parameters: dict[str, Any] = {}
    scale: str
    leakbench: str = Field(description="version of the package")
    date: datetime.date
    files: dict[str, str] = Field({}, description="SHA-256 of every other file of the folder")

    def overrides(self, folder: Path) -> dict[str, Any]:
        """The keys of the configuration under which its jobs exist.

        Args:
            folder: of the submission.
        """
        name = str(folder.resolve() / SOURCE / self.name) if ".py" in self.name else self.name
        return overrides(self.kind, {"name": name, "label": self.label, **self.parameters}, self.scale)


def overrides(kind: str, spec: Mapping[str, Any], scale: str) -> dict[str, Any]:
    """Keys of the configuration that add a component to the leaderboard alone."""
    return {"papers": [PAPER], "scale": scale, KEYS[kind]: [dict(spec)]}


def jobs_of(project: Project, kind: str, label: str) -> dict[str, Job]:
    """The jobs behind the lines of a component, with those of no defense and all that they read, by path.

    Args:
        project: under :func:`overrides`.
        kind: ``defense`` or ``attack``.
        label: of the component.

    Raises:
        ConfigError: it joins no track; the message has the reasons.
    """
    plan = project.plan(project.settings.scale)
    every = plan.jobs_of(PAPER)
    if not any(label in _labels(job, kind) for job in every.values()):
        reasons = sorted({each.left_out for each in plan.comparisons() if each.label == label and each.left_out})
        raise ConfigError(f"{kind} '{label}' joins no track of the leaderboard: {'; '.join(reasons)}")
    chosen = [job for job in every.values() if job.defense.component.name == "none" or label in _labels(job, kind)]
    jobs: dict[str, Job] = {}
    while chosen:
        job = chosen.pop()
        jobs[job.path] = job
        chosen += [used for used in job.uses.values() if used.path not in jobs]
    return dict(sorted(jobs.items()))


def _labels(job: Job, kind: str) -> set[str]:
    return {job.defense.label} if kind == "defense" else {job.attack.label} if job.attack else set()


def submit(
    project: Project, kind: Literal["defense", "attack"], label: str, folder: Path, cores: int
) -> list[dict[str, Any]]:
    """Compute what a component's lines need, and write its submission; returns the lines.

    Args:
        project: under :func:`overrides`.
        kind: of the component.
        label: of the component.
        folder: of the submission; its files are replaced.
        cores: for the workflow.

    Raises:
        RecordError: a job failed; what is computed stays, and the same command goes on.
    """
    jobs = jobs_of(project, kind, label)
    _compute(project, list(jobs), cores)
    records = {path: read_record(project.root / path) for path in jobs}
    variant: Variant[Any] = project.compared[0] if kind == "defense" else project.ensemble[0]
    source = variant.component.source
    contents = {f"{RECORDS}/{path}.gz": _compressed(record) for path, record in records.items()}
    name = variant.component.name
    if source is not None:
        module = Path(str(sys.modules[variant.component.__module__].__file__))
        contents |= {f"{SOURCE}/{file}": (module.parent / file).read_bytes() for file in source.files}
        name = f"{module.name}:{variant.component.__name__}"
    lines = lines_of(project, records, kind, label)
    contents[LINES] = (json.dumps(lines, indent=1) + "\n").encode()
    made = Submission(
        kind=kind,
        name=name,
        label=label,
        parameters={**variant.parameters, **{key: {"sweep": list(values)} for key, values in variant.sweep.items()}},
        scale=project.settings.scale,
        leakbench=version("leakbench"),
        date=datetime.datetime.now(datetime.UTC).date(),
        files={path: hashlib.sha256(content).hexdigest() for path, content in sorted(contents.items())},
    )
    if (folder / FILE).is_file():
        _remove_others(folder, contents)
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        atomic_write(folder / path, content)
    atomic_write(folder / FILE, yaml.safe_dump(made.model_dump(mode="json"), sort_keys=False).encode())
    return lines


def _remove_others(folder: Path, contents: Collection[str]) -> None:
    """Remove the records and sources of an earlier submission that are none of the new one's."""
    for path in [path for part in (RECORDS, SOURCE) for path in (folder / part).rglob("*") if path.is_file()]:
        if str(path.relative_to(folder)) not in contents:
            path.unlink()


def _compute(project: Project, targets: Sequence[str], cores: int) -> None:
    config = [f"{key}={json.dumps(value)}" for key, value in project.overrides.items()]
    command = [sys.executable, "-m", "snakemake", "--cores", str(cores), "--quiet", "rules", "--config", *config]
    if subprocess.run([*command, "--", *targets], cwd=project.root, check=False).returncode:
        raise RecordError("the workflow stopped; look at what it says above, and run the same command again to go on")


def _compressed(record: Record) -> bytes:
    """A record without its tensors, gzipped the same every time."""
    content = record.model_copy(update={"tensors": None}).model_dump_json(by_alias=True, indent=1)
    return gzip.compress(content.encode(), mtime=0)


def lines_of(project: Project, records: Mapping[str, Record], kind: str, label: str) -> list[dict[str, Any]]:
    """The lines of the leaderboard that records of one component make, without tiers, and with None for unknowns.

    Of an attack: what it reaches on every defense, where the others are not looked at.
    """
    scale = project.settings.scale
    tables = {
        each.experiment: merged(project, table_path(scale, PAPER, each.experiment), records).numbers
        for each in declared(READ)
    }
    lines = [
        {key: value for key, value in numbers_of(board, row).items() if key != "tier"}
        for board in boards(tables)
        for row in board.rows
        if kind == "attack" or row.entry.label == label
    ]
    return [known(line) for line in lines]


def read(folder: Path) -> Submission:
    """A submission whose files are those that its digests are of.

    Raises:
        ConfigError: it is none, or a file is missing, was changed, or is one too many.
    """
    try:
        submission = Submission.model_validate(yaml.safe_load((folder / FILE).read_text()))
    except (OSError, yaml.YAMLError, ValidationError) as error:
        raise ConfigError(f"{folder / FILE}: not a submission: {error}") from error
    there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {FILE}
    for path in sorted(there ^ submission.files.keys()):
        if "__pycache__" not in path:
            raise ConfigError(
                f"{folder / path}: {'not listed in' if path in there else 'missing, and listed in'} {FILE}"
            )
    for path, expected in submission.files.items():
        if hashlib.sha256((folder / path).read_bytes()).hexdigest() != expected:
            raise ConfigError(f"{folder / path}: changed since {FILE} was written")
    return submission


def verify(project: Project, folder: Path, part: float, seed: int = 0) -> list[Recomputed]:
    """Check the lines of a submission against its records, and compute a part of these again.

    Which ones follows from the numbers of all records and the seed, and from no other file or text, so that who wants
    others has to change numbers. A seed that the submitter could not know leaves no choice at all. Records of no
    defense are among them, since they decide which attacks count.

    Args:
        project: under :meth:`Submission.overrides`.
        folder: of the submission.
        part: of the records, at least one; without those of seconds.
        seed: of the draw.

    Raises:
        ConfigError: a file was changed; the records are of another version; the lines are not those of the records.
    """
    submission = read(folder)
    jobs = jobs_of(project, submission.kind, submission.label)
    records = {path: _read(folder / RECORDS / f"{path}.gz", job) for path, job in jobs.items()}
    claimed = json.loads((folder / LINES).read_text())
    lines = json.loads(json.dumps(lines_of(project, records, submission.kind, submission.label)))
    for ours, theirs in zip(lines, claimed, strict=False):
        if differing := [key for key in ours if ours[key] != theirs.get(key)]:
            raise ConfigError(
                f"{folder / LINES}: {theirs.get('defense')}: {differing[0]} is {theirs.get(differing[0])}, and "
                f"{ours[differing[0]]} by the records"
            )
    if len(lines) != len(claimed):
        raise ConfigError(f"{folder / LINES}: {len(claimed)} lines, and {len(lines)} by the records")
    drawn = [path for path in jobs if repeatable(records[path])]
    drawn.sort(key=_draw(records, seed))
    with tempfile.TemporaryDirectory() as scratch:
        return [again(jobs[path], records, Path(scratch)) for path in drawn[: max(1, math.ceil(part * len(drawn)))]]


def _draw(records: Mapping[str, Record], seed: int) -> Callable[[str], str]:
    """The key that sorts paths in a random order, which follows from the numbers of all records and the seed."""
    values = {path: sorted([*at, value] for at, value in numbers(record).items()) for path, record in records.items()}
    content = digest(values)
    return lambda path: digest([content, seed, path])


def _read(path: Path, job: Job) -> Record:
    """A record of a submission.

    Raises:
        ConfigError: it is missing, unreadable, or of another version of the component or of leakbench.
    """
    try:
        record = Record.model_validate_json(gzip.decompress(path.read_bytes()))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    if digest(record.job) != job.digest:
        raise ConfigError(f"{path}: of another version of the component or of the track; submit it again")
    return record
