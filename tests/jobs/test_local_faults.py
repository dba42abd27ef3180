"""A full disk, too little memory, and two processes at once: finished work stays, and running again completes."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from leakbench import records
from leakbench.errors import OutOfMemory, WriteError
from leakbench.jobs.base import Job, JobKind
from leakbench.jobs.runner import Placement, run_job
from leakbench.records import read_record, read_tensors
from leakbench.running.checkpoint import EVERY
from leakbench.running.work import state_of

Jobs = Callable[..., Job]
CPU = Placement(device="cpu")


def left(root: Path) -> set[str]:
    """Files that are there, but for what says which job it was."""
    return {path.name for path in root.rglob("*") if path.is_file()} - {"state.json", "identity.json"}


@contextmanager
def no_room_for(suffix: str) -> Iterator[None]:
    """The disk is full when such a file is synced, as many file systems notice only then."""
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if f".{suffix}." in str(Path(f"/proc/self/fd/{descriptor}").readlink()):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", full)
        yield


@pytest.mark.parametrize("suffix", ["all.json", "all.safetensors"])
def test_a_full_disk(suffix: str, attack_job: Jobs, tmp_path: Path) -> None:
    finished, job = replace(attack_job(), experiment="finished"), attack_job()
    before = run_job(finished, tmp_path, CPU)
    kept = left(tmp_path)
    with no_room_for(suffix), pytest.raises(WriteError) as error:
        run_job(job, tmp_path, CPU)
    path = (tmp_path / job.path).with_name(suffix)
    assert str(error.value) == (f"{path}: no space left on device; make room and run it again: what is finished stays")
    assert not (tmp_path / job.path).exists() and not list(tmp_path.rglob("*.tmp"))
    assert read_record(tmp_path / finished.path) == before and left(tmp_path) >= kept
    state = state_of(tmp_path, job.path)
    assert state is not None and state.error == str(error.value)

    record = run_job(job, tmp_path, CPU)
    assert record.tensors is not None and read_tensors(tmp_path / job.path, record.tensors)
    assert not (tmp_path / "work").exists()


def test_a_file_that_is_too_large_for_a_limit(attack_job: Jobs, tmp_path: Path) -> None:
    """A real write that fails in the middle: the kernel refuses files of more than 2000 bytes."""
    job, (soft, hard) = attack_job(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(WriteError, match=r"all\.safetensors: file too large; make room and run it again"):
            run_job(job, tmp_path, CPU)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert left(tmp_path) == set()
    assert run_job(job, tmp_path, CPU) == read_record(tmp_path / job.path)


def test_a_checkpoint_that_cannot_be_written(
    train_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(EVERY, "0")
    write = records.atomic_write

    def only_records(path: Path, content: bytes) -> None:
        if "checkpoint" in path.parts:
            raise WriteError(f"{path}: no space left on device")
        write(path, content)

    monkeypatch.setattr("leakbench.running.snapshots.atomic_write", only_records)
    record = run_job(train_job(), tmp_path, CPU)
    assert record.outcome.status == "ok" and read_record(tmp_path / train_job().path) == record
    assert capsys.readouterr().err.count("no checkpoint: ") == 1


def test_a_folder_that_may_not_be_written(train_job: Jobs, tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file where the folder should be")
    with pytest.raises(WriteError, match=r"results.*: not a directory"):
        run_job(train_job(steps=1), tmp_path, CPU)


@pytest.mark.parametrize("how", ["torch", "python"])
def test_too_little_memory(how: str, train_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = train_job()

    def take_much(_: JobKind, job: Job, device: torch.device) -> Any:
        return torch.zeros(2**46) if how == "torch" else bytearray(2**60)

    monkeypatch.setattr(type(job.kind), "run", take_much)
    with pytest.raises(OutOfMemory, match=rf"{job.path}: out of memory on cpu; give it more \(mem_mb, docs/slurm.md\)"):
        run_job(job, tmp_path, CPU)
    state = state_of(tmp_path, job.path)
    assert state is not None and state.error is not None and "out of memory" in state.error


def test_two_processes_at_once(attack_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both end well, whoever writes last; they even share checkpoints, which are the same for both."""
    monkeypatch.setenv(EVERY, "0")
    job = attack_job()
    both = []
    for _ in range(2):
        process = os.fork()
        if process == 0:
            status = 1
            try:
                run_job(job, tmp_path, CPU)
                status = 0
            finally:
                os._exit(status)
        both.append(process)
    assert [os.waitpid(process, 0)[1] for process in both] == [0, 0]
    record = read_record(tmp_path / job.path)
    assert record.tensors is not None and read_tensors(tmp_path / job.path, record.tensors)
    assert left(tmp_path) == {"all.json", "all.safetensors"}
