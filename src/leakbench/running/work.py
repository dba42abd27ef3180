"""The work folder of a job, until its record is in place: beside the results, and ignored by git.

The folder mirrors the record's path. It holds the job's state, its checkpoints, and where Snakemake might delete a
finished record with those of a failed group, a copy of that record and its tensors. Nothing here enters a record.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from leakbench.errors import RecordError, WriteError
from leakbench.records import RESULTS, Record, atomic_write, digest, read_record
from leakbench.user_code import in_one_line

WORK = "work"
"""The folder of all work folders, in the root of the project."""

SHARED = ".shared"
"""The folder in it of what several jobs of a run compute alike (:mod:`leakbench.running.checkpoint`)."""

SHARE = "LEAKBENCH_SHARE"
"""The environment variable that makes jobs share it; Snakemake sets it, and removes the folder with a run."""

STATE = "state.json"
KEPT = "kept"
"""Folder of the copies of a finished record and of its tensors, in a work folder."""

KEEP = "LEAKBENCH_KEEP"
"""The environment variable that makes jobs leave such copies; Snakemake sets it for jobs on a cluster."""

TOUCH_S = 15.0
"""Seconds between two signs of life of a running job."""

SILENT_S = 60.0
"""Seconds of silence after which a job on another host counts as killed."""

Status = Literal["running", "failed", "stopped"]


@dataclass(frozen=True)
class State:
    """The newest attempt at a job whose record is not in place yet.

    Attributes:
        digest: of the job.
        host: name of its machine.
        pid: its process there.
        slurm_job_id: if SLURM started it.
        started: ISO time, UTC.
        error: why it failed, in one line; None while it runs, and if it was killed.
        touched: the last sign of life, in seconds since 1970; the time of the file, and not in it.
    """

    digest: str
    host: str
    pid: int
    slurm_job_id: str | None
    started: str
    error: str | None = None
    touched: float = field(default=0.0, compare=False)

    @property
    def status(self) -> Status:
        """``stopped`` is a job that was killed, or that saved its state and ended on a signal."""
        if self.error is not None:
            return "failed"
        if self.host == socket.gethostname():
            return "running" if _lives(self.pid) else "stopped"
        return "running" if time.time() - self.touched < SILENT_S else "stopped"

    def as_json(self) -> bytes:
        """The content of the file."""
        return (json.dumps({key: value for key, value in asdict(self).items() if key != "touched"}) + "\n").encode()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def folder_of(root: Path, record: str) -> Path:
    """The work folder of a record: ``work/<scale>/<paper>/.../<part>``.

    Args:
        root: the root of the project.
        record: the record's path relative to it, ``results/<scale>/<paper>/.../<part>.json``.
    """
    return (root / WORK).joinpath(*Path(record).parts[1:]).with_suffix("")


def record_of(root: Path, folder: Path) -> str:
    """The record that a work folder belongs to, as a path relative to the root of the project."""
    place = Path(RESULTS, *folder.relative_to(root / WORK).parts)
    return str(place.with_name(f"{place.name}.json"))


def state_of(root: Path, record: str) -> State | None:
    """The state of the newest attempt at a job; None if there was none, or its record is written."""
    return _read(folder_of(root, record) / STATE)


def _read(path: Path) -> State | None:
    try:
        content, touched = json.loads(path.read_bytes()), path.stat().st_mtime
        return State(**content, touched=touched)
    except (OSError, ValueError, TypeError):  # not a file of ours
        return None


@contextlib.contextmanager
def attempt(root: Path, record: str, job: str) -> Iterator[Path]:
    """Mark a job as running for the duration of the block, and as failed on an error; yields its work folder.

    Args:
        root: the root of the project.
        record: the record's path relative to it.
        job: the job's digest.
    """
    folder, ended = folder_of(root, record), threading.Event()
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    state = State(job, socket.gethostname(), os.getpid(), os.environ.get("SLURM_JOB_ID"), now)
    _write(folder, state)

    def touch() -> None:
        while not ended.wait(TOUCH_S):
            with contextlib.suppress(OSError):  # another process that made the same record took the folder away
                os.utime(folder / STATE)

    threading.Thread(target=touch, daemon=True).start()
    try:
        yield folder
    except Exception as error:
        _write(folder, replace(state, error=in_one_line(error)))
        raise
    finally:
        ended.set()


def _write(folder: Path, state: State) -> None:
    """Write the state of a job; failing to is not fatal."""
    try:
        atomic_write(folder / STATE, state.as_json())
    except WriteError as error:
        print(f"leakbench: {error}; going on without", file=sys.stderr)


def keep(root: Path, record: str) -> None:
    """Leave a copy of a finished record and its tensors in the work folder, and nothing else.

    A copy is another name of the same file where the file system has such.
    """
    path, folder = root / record, folder_of(root, record)
    kept = folder / KEPT
    try:
        kept.mkdir(parents=True, exist_ok=True)
        tensors = read_record(path).tensors
        if tensors:
            _copy(path.with_name(tensors.file), kept / tensors.file)
        _copy(path, kept / path.name)  # the record last: with it the copy is whole
    except OSError as error:  # the record itself is in place
        print(f"leakbench: no copy of {record} in {kept}: {error.strerror or error}", file=sys.stderr)
    with contextlib.suppress(OSError):  # there is no such folder, as said
        for child in folder.iterdir():
            if child.is_dir() and child != kept:
                shutil.rmtree(child, ignore_errors=True)
            elif child != kept:
                child.unlink(missing_ok=True)


def restore(root: Path, record: str, job: str) -> Record | None:
    """Put the copy of a record and its tensors back in place; None if there is no whole one of this job.

    Args:
        root: the root of the project.
        record: the record's path relative to it.
        job: the digest of the job.
    """
    path = root / record
    kept = folder_of(root, record) / KEPT / path.name
    try:
        copy = read_record(kept)
        if digest(copy.job) != job:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        if copy.tensors:
            tensors = kept.with_name(copy.tensors.file)
            if hashlib.sha256(tensors.read_bytes()).hexdigest() != copy.tensors.sha256:
                return None
            _copy(tensors, path.with_name(tensors.name))
        _copy(kept, path)
        os.utime(path)  # newer than the records that the job read, as if it had run
    except (OSError, RecordError):  # the job can still run
        return None
    return copy


def is_kept(root: Path, record: str, job: str) -> bool:
    """Whether there is a copy of the record for :func:`restore`.

    Args:
        root: the root of the project.
        record: the record's path relative to it.
        job: the digest of the job.
    """
    kept = folder_of(root, record) / KEPT / Path(record).name
    try:
        return kept.exists() and digest(read_record(kept).job) == job
    except (OSError, RecordError):
        return False


def _copy(source: Path, target: Path) -> None:
    """Copy a file, as a hard link where possible: files of records are replaced and never changed."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        try:
            os.link(source, temporary)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.copyfile(source, temporary)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def remove(root: Path, record: str) -> None:
    """Remove the work folder of a record, and the folders above it that are empty then."""
    folder = folder_of(root, record)
    shutil.rmtree(folder, ignore_errors=True)  # gone already, or another process of the same job writes in it
    for parent in folder.parents:
        if parent == root:
            return
        try:
            parent.rmdir()
        except OSError:  # not empty, or gone
            return


def tidy(root: Path) -> None:
    """Remove what jobs shared, and work folders of jobs that have ended and whose records are in place and valid."""
    shutil.rmtree(root / WORK / SHARED, ignore_errors=True)
    with contextlib.suppress(OSError):  # not empty, or there is none
        (root / WORK).rmdir()
    marks = [mark for name in (STATE, KEPT) for mark in (root / WORK).rglob(name)]
    for folder in sorted({mark.parent for mark in marks}):
        state = _read(folder / STATE)
        record = record_of(root, folder)
        if state and state.status == "running":
            continue
        with contextlib.suppress(OSError, RecordError):
            made = digest(read_record(root / record).job)
            if state is None or state.digest == made:
                remove(root, record)
