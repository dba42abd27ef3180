"""Archives of published records: one compressed file per experiment, with a digest of each in ``SHA256SUMS``.

``published/<scale>/<paper>/<experiment>.jsonl.xz`` holds a head and then a record per line. Tensors are left out, but
for records from which other jobs go on, and of experiments of which figures show pictures those of the first seed, the
one that is shown: they are in ``<experiment>.tensors.zip``.
"""

from __future__ import annotations

import hashlib
import io
import lzma
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from leakbench.errors import ConfigError
from leakbench.jobs.base import Job
from leakbench.planning.project import Project
from leakbench.records import ArchivedRecord, ArchiveHead, Record, atomic_write, packed_tensors, read_tensors
from leakbench.report.artifacts import artifacts
from leakbench.report.published import PUBLISHED
from leakbench.report.recorded import recorded

SUMS = "SHA256SUMS"
"""Name of the file of digests in a scale's folder, as ``sha256sum`` writes and checks it."""
LICENCE = "CC-BY-4.0"
"""Licence of published records, by its SPDX identifier."""
RECORDS, TENSORS = ".jsonl.xz", ".tensors.zip"
"""Endings of archives."""
NOT_SHOWN = re.compile(r"seed(?!0/)\d+/")
"""Beginning of the names of the tensors that no figure shows."""


@dataclass(frozen=True)
class Archive:
    """The published records of an experiment.

    Attributes:
        path: of its file of records.
        records: by their paths relative to the root.
        tensors: contents of the files beside them, by the paths of the records.
    """

    path: Path
    records: Mapping[str, Record]
    tensors: Mapping[str, bytes] = field(default_factory=dict)


def archive_folder(project: Project, scale: str) -> Path:
    """The folder of a scale's archives."""
    return project.root / PUBLISHED / scale


def write_archives(project: Project, scale: str, papers: Iterable[str]) -> list[Path]:
    """Write the records that exist and are of the plan, and return the paths of the files.

    What was published of these papers before goes, but for experiments that the scale leaves out; the same records make
    the same bytes.
    """
    plan, folder = project.plan(scale), archive_folder(project, scale)
    written = []
    for paper in papers:
        pictured = {name for entry in artifacts() if entry.paper == paper for name in entry.tensors}
        used = {used.path for job in plan.jobs_of(paper).values() for used in job.uses.values()}
        for experiment in plan.papers[paper].experiments:
            path, jobs = folder / paper / f"{experiment}{RECORDS}", plan.experiment_jobs(paper, experiment)
            if not jobs:  # switched off at this scale for now
                written += [path, beside(path)]
            done = _done(project.root, jobs)
            if not done:
                continue
            head = ArchiveHead(
                scale=scale, paper=paper, experiment=experiment, leakbench=version("leakbench"), licence=LICENCE
            )
            tensors: dict[str, bytes] = {}
            for of, record in done.items():
                done[of], content = _thinned(project.root / of, record, of in used, experiment in pictured)
                tensors |= {of: content} if content else {}
            atomic_write(path, _packed(head, done))
            written.append(path)
            if tensors:
                atomic_write(beside(path), _zipped(tensors))
                written.append(beside(path))
        for old in {*(folder / paper).glob(f"*{RECORDS}"), *(folder / paper).glob(f"*{TENSORS}")} - {*written}:
            old.unlink()
    _write_sums(folder)
    return [path for path in written if path.exists()]


def beside(archive: Path) -> Path:
    """The file of tensors beside one of records."""
    return archive.with_name(archive.name.removesuffix(RECORDS) + TENSORS)


def read_archives(project: Project, scale: str, papers: Iterable[str]) -> Iterator[Archive]:
    """The archives of some papers, each checked against its digest.

    Raises:
        ConfigError: nothing is published of this scale; a file is missing, damaged, of another schema, or not listed.
    """
    folder = archive_folder(project, scale)
    sums = read_sums(folder)
    chosen = set(papers)
    for path in sorted(path for path in folder.rglob("*") if path.name.endswith((RECORDS, TENSORS))):
        if str(path.relative_to(folder)) not in sums:
            raise ConfigError(f"{path}: not listed in {folder / SUMS}; remove it, or publish the scale again")
    for name in sorted(sums):
        if name.endswith(RECORDS) and name.split("/")[0] in chosen:
            path = folder / name
            records = _unpacked(path, _content(folder, name, sums))
            zipped = str(beside(path).relative_to(folder))
            tensors = _unzipped(beside(path), _content(folder, zipped, sums)) if zipped in sums else {}
            yield Archive(path, records, tensors)


def _done(root: Path, jobs: Iterable[Job]) -> dict[str, Record]:
    """The records of jobs that are of the plan, by path."""
    states = {job.path: recorded(root, job) for job in jobs}
    return {path: each.record for path, each in sorted(states.items()) if each.state == "done" and each.record}


def _thinned(path: Path, record: Record, used: bool, pictured: bool) -> tuple[Record, bytes]:
    """A record with the tensors that are published, and the content of their file; empty where there are none."""
    if record.tensors is None:
        return record, b""
    tensors = read_tensors(path, record.tensors) if used or pictured else {}
    if not used:
        tensors = {key: each for key, each in tensors.items() if not NOT_SHOWN.match(key)}
    if not tensors:
        return record.model_copy(update={"tensors": None}), b""
    content, described = packed_tensors(record.tensors.file, tensors)
    return record.model_copy(update={"tensors": described}), content


def _packed(head: ArchiveHead, records: Mapping[str, Record]) -> bytes:
    """The file of records."""
    lines = [head.model_dump_json(by_alias=True)]
    for path, record in records.items():
        lines.append(ArchivedRecord(path=path, record=record).model_dump_json(by_alias=True))
    return lzma.compress("\n".join([*lines, ""]).encode(), preset=9)


def _unpacked(path: Path, content: bytes) -> dict[str, Record]:
    """The records of a file by path.

    Raises:
        ConfigError: it is no archive of this schema, or of another place.
    """
    try:
        head, *lines = lzma.decompress(content).decode().splitlines()
        opened = ArchiveHead.model_validate_json(head)
        records = {line.path: line.record for line in map(ArchivedRecord.model_validate_json, lines)}
    except (lzma.LZMAError, UnicodeDecodeError, ValueError, ValidationError) as error:
        reason = str(error).splitlines()[0] if str(error) else "it is empty"
        raise ConfigError(f"{path}: no archive of published records that this version reads ({reason})") from None
    if (opened.scale, opened.paper, opened.experiment) != (*path.parts[-3:-1], path.name.removesuffix(RECORDS)):
        raise ConfigError(f"{path}: holds experiment {opened.experiment} of {opened.paper} at {opened.scale}")
    return records


def _zipped(tensors: Mapping[str, bytes]) -> bytes:
    """Files of tensors by the paths of their records, the same bytes every time."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as file:
        for path, content in tensors.items():
            file.writestr(zipfile.ZipInfo(path), content, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _unzipped(path: Path, content: bytes) -> dict[str, bytes]:
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as file:
            return {name: file.read(name) for name in file.namelist()}
    except zipfile.BadZipFile as error:
        raise ConfigError(f"{path}: no archive of tensors ({error})") from None


def _write_sums(folder: Path) -> None:
    files = sorted(path for path in folder.rglob("*") if path.name.endswith((RECORDS, TENSORS)))
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}" for path in files
    ]
    atomic_write(folder / SUMS, "\n".join([*lines, ""]).encode())


def read_sums(folder: Path) -> dict[str, str]:
    """Digests by the files' paths relative to the folder.

    Raises:
        ConfigError: there is no such file, or it is not one of digests.
    """
    try:
        lines = [line.split("  ", 1) for line in (folder / SUMS).read_text().splitlines()]
        return {path: digest for digest, path in lines}
    except OSError:
        scales = ", ".join(sorted(path.parent.name for path in folder.parent.glob(f"*/{SUMS}")))
        raise ConfigError(
            f"{folder / SUMS}: missing; no records of this scale are published. Allowed: {scales or '(none)'}"
        ) from None
    except ValueError:
        raise ConfigError(f"{folder / SUMS}: expected a digest and a path in each line") from None


def _content(folder: Path, name: str, sums: Mapping[str, str]) -> bytes:
    """The bytes of a listed file.

    Raises:
        ConfigError: it is missing, or was changed since it was published.
    """
    try:
        content = (folder / name).read_bytes()
    except OSError:
        raise ConfigError(f"{folder / name}: missing, and listed in {folder / SUMS}") from None
    if hashlib.sha256(content).hexdigest() != sums[name]:
        raise ConfigError(f"{folder / name}: damaged, or changed since it was published: its digest is another one")
    return content
