"""Jobs that fail, that keep a copy of their record, and whose copies come back."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.running.test_work import ended_process

from leakbench.defenses.noise import GaussianNoise
from leakbench.jobs.base import Job, JobKind
from leakbench.jobs.runner import Placement, run_job
from leakbench.lazy import torch
from leakbench.records import read_record, read_tensors
from leakbench.running import work
from leakbench.running.work import KEPT, STATE, State, folder_of, keep, restore, state_of, tidy

Jobs = Callable[..., Job]
CPU = Placement(device="cpu")


def test_a_finished_job_leaves_its_record_alone(train_job: Jobs, tmp_path: Path) -> None:
    job = train_job(steps=1)
    run_job(job, tmp_path, CPU)
    assert (tmp_path / job.path).exists() and not (tmp_path / "work").exists()


def test_a_failed_job_leaves_its_reason(train_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = train_job(steps=1)

    def fail(_: JobKind, job: Job, device: torch.device) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(type(job.kind), "run", fail)
    with pytest.raises(OSError, match="the disk is gone"):
        run_job(job, tmp_path, CPU)
    state = state_of(tmp_path, job.path)
    assert state is not None and state.digest == job.digest
    assert state.status == "failed" and str(state.error).startswith("OSError: the disk is gone (")


def test_a_kept_record_comes_back_with_its_tensors(attack_job: Jobs, tmp_path: Path) -> None:
    job = attack_job(GaussianNoise, {"scale": 0.1})
    record = run_job(job, tmp_path, CPU, keep=True)
    path, folder = tmp_path / job.path, folder_of(tmp_path, job.path)
    assert [child.name for child in folder.iterdir()] == [KEPT]
    before = (path.read_bytes(), path.with_suffix(".safetensors").read_bytes())
    for file in (path, path.with_suffix(".safetensors")):
        file.unlink()
    assert restore(tmp_path, job.path, "another digest") is None and not path.exists()
    assert restore(tmp_path, job.path, job.digest) == record
    assert (path.read_bytes(), path.with_suffix(".safetensors").read_bytes()) == before
    assert record.tensors is not None and read_tensors(path, record.tensors)

    path.unlink()
    tensors = folder / KEPT / "all.safetensors"
    content = tensors.read_bytes()
    tensors.unlink()
    assert restore(tmp_path, job.path, job.digest) is None
    tensors.write_bytes(content[:-1] + b"x")
    assert restore(tmp_path, job.path, job.digest) is None and not path.exists()
    tensors.write_bytes(content)
    (folder / KEPT / "all.json").write_text("{")
    assert restore(tmp_path, job.path, job.digest) is None and not path.exists()


def test_copies_where_files_have_one_name(attack_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no hard links")

    monkeypatch.setattr(os, "link", refuse)
    job = attack_job()
    record = run_job(job, tmp_path, CPU, keep=True)
    (tmp_path / job.path).unlink()
    assert restore(tmp_path, job.path, job.digest) == record == read_record(tmp_path / job.path)


def test_tidying_takes_what_is_no_longer_needed(attack_job: Jobs, tmp_path: Path) -> None:
    tidy(tmp_path)  # nothing there yet
    job = attack_job()
    folder = folder_of(tmp_path, job.path)
    run_job(job, tmp_path, CPU, keep=True)
    (tmp_path / job.path).rename(tmp_path / "away")
    tidy(tmp_path)
    assert folder.exists(), "the record is missing"
    (tmp_path / job.path).write_text("{")
    tidy(tmp_path)
    assert folder.exists(), "the record is broken"
    (tmp_path / "away").rename(tmp_path / job.path)

    state = State(job.digest, socket.gethostname(), os.getpid(), None, "2026-01-01T00:00:00+00:00")
    (folder / STATE).write_bytes(state.as_json())
    tidy(tmp_path)
    assert folder.exists(), "it is being made again"
    (folder / STATE).write_bytes(replace(state, pid=ended_process(), digest="another").as_json())
    tidy(tmp_path)
    assert folder.exists(), "another job was asked for and did not end"
    (folder / STATE).write_bytes(replace(state, pid=ended_process()).as_json())
    tidy(tmp_path)
    assert not (tmp_path / "work").exists()


def test_a_record_that_cannot_be_copied_stays(
    train_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = train_job(steps=1)
    run_job(job, tmp_path, CPU)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(work, "_copy", full)
    keep(tmp_path, job.path)
    assert f"no copy of {job.path}" in (said := capsys.readouterr().err) and "No space left on device" in said
    assert (tmp_path / job.path).exists()
