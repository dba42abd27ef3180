"""States of SLURM jobs as Snakemake's plug-in gets to see them; a real SLURM preempts in tests/slurm."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from leakbench.workflow.preemption import Requeueing, requeue_preempted

SINCE = "StartTime=2026-01-01T10:00:00 Comment=rule_train"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``slurm(requeue=..., squeue=..., show=...)``: lines of shell that stand for SLURM; a file of what was asked."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    asked = tmp_path / "asked"
    asked.touch()

    def install(requeue: str = "true", squeue: str = "echo PENDING", show: str = "true") -> Path:
        scontrol = f'case $1 in requeue) {requeue};; *) echo "{show}";; esac'
        for name, script in (("scontrol", scontrol), ("squeue", squeue)):
            (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {asked}\n{script}\n')
            (tmp_path / name).chmod(0o755)
        return asked

    return install


def seen(requeueing: Requeueing, state: str) -> str:
    return asyncio.run(requeueing.states({"7": state}))["7"]


def test_other_states_stay_as_they_are(slurm: Callable[..., Path]) -> None:
    asked = slurm()
    states = {"1": "RUNNING", "2": "COMPLETED", "3": "CANCELLED by 1000", "4": "TIMEOUT"}
    assert asyncio.run(Requeueing().states(states)) == states | {"3": "CANCELLED"}
    assert asked.read_text() == ""


def test_a_preempted_job_goes_back_into_the_queue(
    slurm: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    asked = slurm()
    assert seen(Requeueing(), "PREEMPTED") == "PENDING"
    assert asked.read_text().startswith("scontrol requeue 7\nsqueue ")
    assert capsys.readouterr().err == (
        "leakbench: SLURM job 7 was preempted (PREEMPTED); it waits in the queue again\n"
    )


def test_one_that_must_not_is_submitted_again(slurm: Callable[..., Path]) -> None:
    """The job ends then, for good: a second look does not bring it back beside the new one."""
    slurm(requeue="exit 1", squeue="echo PREEMPTED")
    requeueing = Requeueing()
    assert seen(requeueing, "PREEMPTED") == "CANCELLED"
    slurm()
    assert seen(requeueing, "PREEMPTED") == "CANCELLED"


def test_one_that_slurm_has_forgotten_is_submitted_again(slurm: Callable[..., Path]) -> None:
    slurm(requeue="exit 1", squeue="echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    assert seen(Requeueing(), "PREEMPTED") == "CANCELLED"


def test_a_controller_that_restarts_is_asked_again(slurm: Callable[..., Path]) -> None:
    requeueing = Requeueing()
    slurm(requeue="exit 1", squeue="echo Unable to contact slurm controller >&2; exit 1")
    assert seen(requeueing, "PREEMPTED") == "PENDING"
    slurm()
    assert seen(requeueing, "PREEMPTED") == "PENDING"


@pytest.mark.parametrize(
    ("told", "state"),
    [("2026-01-01T10:30:00", "PENDING"), ("None", "FAILED"), ("2026-01-01T09:00:00", "FAILED")],
    ids=["in its grace time", "never told to end", "told to end before it started again"],
)
def test_a_job_that_fails(slurm: Callable[..., Path], told: str, state: str) -> None:
    asked = slurm(show=f"{SINCE} PreemptTime={told}")
    assert seen(Requeueing(), "FAILED") == state
    assert ("requeue" in asked.read_text()) == (state == "PENDING")


def test_a_job_that_failed_is_looked_at_once(slurm: Callable[..., Path]) -> None:
    asked, requeueing = slurm(show=f"{SINCE} PreemptTime=None"), Requeueing()
    assert [seen(requeueing, "FAILED") for _ in range(3)] == ["FAILED"] * 3
    assert asked.read_text().count("scontrol") == 1


def test_the_plug_in_asks_through_it(slurm: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import snakemake_executor_plugin_slurm as plugin

    async def answer(command: str, logger: object) -> tuple[dict[str, str] | None, float | None]:
        return ({"7": "PREEMPTED"}, 0.1) if command == "squeue" else (None, None)

    slurm()
    monkeypatch.setattr(plugin, "query_job_status", answer)
    requeue_preempted()
    assert asyncio.run(plugin.query_job_status("squeue", None)) == ({"7": "PENDING"}, 0.1)
    assert asyncio.run(plugin.query_job_status("nothing answers", None)) == (None, None)
