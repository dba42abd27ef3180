"""The metric record: the result of one job, written once, atomically, and validated whenever it is read.

Tensors that are too large for JSON lie beside the record as ``.safetensors`` and are named in it with their digest.
JSON has no NaN: a value that does not exist is null, and ``reasons`` says why.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leakbench.errors import RecordError, WriteError
from leakbench.lazy import torch

RESULTS = "results"
"""The folder of all records, in the root of the project."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a disk, a quota or a limit that leave no room."""

Value = float | None | list[float | None]
"""A metric: a number, or one number per image, victim or step, as its axis says."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Outcome(_Model):
    """The end of a job, or of one replicate of it. Failures are data: they are recorded and never dropped."""

    status: Literal["ok", "diverged", "infeasible"] = "ok"
    reason: str | None = Field(None, description="why, unless ok")
    step: int | None = Field(
        None, description="first step at which something became non-finite, or that could not be taken"
    )


class MetricInfo(_Model):
    """The meaning of a metric's numbers.

    >>> MetricInfo(unit="dB", direction="higher", axis="image").direction
    'higher'
    """

    unit: str
    direction: Literal["higher", "lower", "none"] = Field(
        description="which values mean more leakage or better utility"
    )
    axis: (
        Literal[
            "image",
            "sentence",
            "victim",
            "client",
            "step",
            "round",
            "tensor",
            "class",
            "direction",
            "visits",
            "repetition",
            "level",
        ]
        | None
    ) = Field(None, description="what a list of values runs over")


class Replicate(_Model):
    """The metrics of one seed and one setting of the swept parameters.

    >>> replicate = Replicate(seed=0, setting={"scale": 0.1}, metrics={"psnr": [18.2, None], "bits": None})
    >>> replicate.reasons |= {"psnr": "1 of 2 trials became non-finite", "bits": "nothing was sent"}
    >>> replicate.outcome.status
    'ok'
    """

    seed: int
    setting: dict[str, float | int | str | bool] = Field(default_factory=dict, description="swept parameters")
    outcome: Outcome = Outcome()
    metrics: dict[str, Value]
    reasons: dict[str, str] = Field(default_factory=dict, description="why a metric is null")
    privacy: dict[str, Any] | None = Field(None, description="what the defense guarantees in this setting")


class Tensors(_Model):
    """A file of tensors beside the record."""

    file: str
    sha256: str
    keys: list[str]


class Cost(_Model):
    """Time and memory of a job."""

    wall_s: float
    device_s: float = Field(description="seconds of GPU time on a GPU, of CPU time elsewhere")
    peak_memory_bytes: int = Field(description="largest resident set; on a GPU, largest allocation there")


class Provenance(_Model):
    """Where, when and with what the record was made. Nothing here enters the job's identity."""

    started: str
    commit: str | None
    dirty: bool | None
    versions: dict[str, str]
    device: str
    processor: str | None = Field(None, description="the CPU, by name, family and model; null in older records")
    threads: int
    tf32: bool = False
    compiled: bool = False
    slurm_job_id: str | None
    plugins: dict[str, dict[str, str]] = Field(
        default_factory=dict, description="digests of the files of every plug-in that the job used, by name and path"
    )
    data: str | None = Field(None, description="fingerprint of the staged files of the data set; null: there are none")


class Record(_Model):
    """One job's result."""

    schema_: Literal["leakbench.record/1"] = Field("leakbench.record/1", alias="schema")
    job: dict[str, Any] = Field(description="the job, with all parameters resolved")
    metrics: dict[str, MetricInfo]
    replicates: list[Replicate]
    outcome: Outcome
    tensors: Tensors | None = None
    cost: Cost
    provenance: Provenance


class ArchiveHead(_Model):
    """The first line of an archive of published records."""

    schema_: Literal["leakbench.published/1"] = Field("leakbench.published/1", alias="schema")
    scale: str
    paper: str
    experiment: str
    leakbench: str = Field(description="version of the package that published it")
    licence: str = Field(description="of the records, as an SPDX identifier")


class ArchivedRecord(_Model):
    """Any other line of an archive: a record under its path."""

    path: str = Field(description="relative to the root of a checkout")
    record: Record


def canonical(value: Any) -> str:
    """JSON with sorted keys and no white space, so that equal values give equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest(value: Any) -> str:
    """First 16 hexadecimal digits of the SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()[:16]


def atomic_write(path: Path, content: bytes) -> None:
    """Write a file that is either whole or absent, whenever the process is killed.

    Raises:
        WriteError: the disk is full, or the file cannot be written for another reason; the file before stays.
    """
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        todo = "; make room and run it again: what is finished stays" if error.errno in FULL else ""
        raise WriteError(f"{path}: {what}{todo}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold a kernel lock on a folder, which is made if it is missing; where there are no locks, go on without.

    Raises:
        WriteError: the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise WriteError(f"{folder}: {(error.strerror or str(error)).lower()}") from None
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_record(path: Path, record: Record) -> None:
    """Validate and write a record atomically."""
    checked = Record.model_validate(record.model_dump(by_alias=True))
    atomic_write(path, (checked.model_dump_json(by_alias=True, indent=1) + "\n").encode())


def read_record(path: Path) -> Record:
    """Read and validate a record.

    Raises:
        RecordError: the file is not a whole record of this schema; the message names it and the first fault.
    """
    try:
        return Record.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise RecordError(f"{path}: not a valid record: {where}: {first['msg']}") from None


def size_on_disk(path: Path, record: Record) -> int:
    """Bytes of a record and of the tensors beside it.

    Raises:
        FileNotFoundError: one of the two is missing.
    """
    files = [path, path.with_name(record.tensors.file)] if record.tensors else [path]
    return sum(file.stat().st_size for file in files)


def quarantine(path: Path, why: str = "corrupt") -> Path:
    """Move a record that is of no use aside, so that its job runs again; returns its new path."""
    aside = path.with_name(f"{path.name}.{why}-{time.strftime('%Y%m%d-%H%M%S')}")
    return path.replace(aside)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> Tensors:
    """Write tensors as safetensors, atomically, and describe the file for the record."""
    content, described = packed_tensors(path.name, tensors)
    atomic_write(path, content)
    return described


def packed_tensors(name: str, tensors: Mapping[str, torch.Tensor]) -> tuple[bytes, Tensors]:
    """The content of a file of tensors with this name, and its description."""
    from safetensors.torch import save

    content = save({key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()})
    return content, Tensors(file=name, sha256=hashlib.sha256(content).hexdigest(), keys=sorted(tensors))


def read_tensors(record_path: Path, tensors: Tensors) -> dict[str, torch.Tensor]:
    """Read the tensors beside a record.

    Raises:
        RecordError: the file is missing or altered.
    """
    from safetensors.torch import load

    path = record_path.with_name(tensors.file)
    if not path.is_file():
        raise RecordError(f"{path}: missing; make it again with `leakbench run {record_path}`")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != tensors.sha256:
        raise RecordError(
            f"{path}: altered since {record_path} was written; make both again with `leakbench run {record_path}`"
        )
    loaded: dict[str, torch.Tensor] = load(content)
    return loaded
