"""How far a scale is: every state that a job may be in, on a small tree."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.report.records import empty_project, write_bare_record

from leakbench.cli import main
from leakbench.planning.project import Project
from leakbench.report.status import STANDINGS, status
from leakbench.running.work import STATE, State, folder_of

SMALL = "results/smoke/optimal_defense/undefended/digits16/small/none"
DONE, INFEASIBLE, DIVERGED = (f"{SMALL}/{label}/all.json" for label in ("ig", "mean_image", "grey"))
STALE, UNREADABLE, FAILED, RUNNING, STOPPED, CHANGED = (
    f"results/smoke/optimal_defense/{cell}/all.json"
    for cell in (
        "pruning/digits16/small/gp/ig",
        "pruning/digits16/small/gp/train",
        "pruning/digits16/small/op/ig",
        "pruning/digits16/small/op/train",
        "noise/digits16/small/dpsgd/ig",
        "noise/digits16/small/optimal/ig",
    )
)
NO_PROCESS = 2**22 + 1
"""Above the largest process id that Linux gives."""


def leave_state(
    project: Project, path: str, *, error: str | None = None, pid: int = NO_PROCESS, digest: str = ""
) -> None:
    """What an attempt at a job left."""
    folder = folder_of(project.root, path)
    folder.mkdir(parents=True)
    own = digest or project.job(path).digest
    state = State(own, socket.gethostname(), pid, "4711", "2024-01-01T00:00:00+00:00", error)
    (folder / STATE).write_bytes(state.as_json())


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """One job in every state there is; all others have no record."""
    monkeypatch.chdir(tmp_path)
    found = empty_project(tmp_path, "optimal_defense", "channel")
    write_bare_record(found, DONE)
    write_bare_record(found, INFEASIBLE, status="infeasible")
    write_bare_record(found, DIVERGED, status="diverged")
    stale = write_bare_record(found, STALE)
    content = json.loads(stale.read_text())
    content["job"]["attack"]["version"] += 1
    stale.write_text(json.dumps(content))
    (found.root / UNREADABLE).parent.mkdir(parents=True)
    (found.root / UNREADABLE).write_text('{"schema": "leakbench.rec')
    leave_state(found, FAILED, error="OutOfMemoryError: 3 GiB")
    leave_state(found, RUNNING, pid=os.getpid())
    leave_state(found, STOPPED)
    leave_state(found, CHANGED, error="of another configuration", digest="0123456789abcdef")
    return found


def records(found: dict[str, Any], standing: str) -> list[str]:
    return [row["record"] for row in found[standing]]


def test_every_job_stands_somewhere(project: Project) -> None:
    found = status(project)
    total = found["total"]
    assert sum(total[standing] for standing in STANDINGS) == total["jobs"] == len(project.plan("smoke").jobs)
    assert {standing: total[standing] for standing in STANDINGS if standing != "missing"} == {
        "done": 3,
        "running": 1,
        "failed": 1,
        "stopped": 1,
        "stale": 1,
        "unreadable": 1,
    }
    assert (total["infeasible"], total["diverged"]) == (1, 1)
    ours, channel = found["papers"]
    assert ours["done"] == 3 and channel["done"] == 0 and channel["missing"] == channel["jobs"]


def test_jobs_are_named_with_what_is_known(project: Project) -> None:
    found = status(project)
    assert [records(found, standing) for standing in ("failed", "running", "stopped", "stale", "unreadable")] == [
        [FAILED],
        [RUNNING],
        [STOPPED],
        [STALE],
        [UNREADABLE],
    ]
    assert found["failed"][0]["reason"] == "OutOfMemoryError: 3 GiB"
    running = found["running"][0]
    assert (running["since"], running["host"], running["slurm_job_id"]) == (
        "2024-01-01T00:00:00+00:00",
        socket.gethostname(),
        "4711",
    )
    assert "another configuration or version" in found["stale"][0]["reason"]
    assert "not a valid record" in found["unreadable"][0]["reason"]
    assert found["infeasible"] == [{"record": INFEASIBLE, "reason": "it was infeasible"}]
    assert found["diverged"] == [{"record": DIVERGED, "reason": "it was diverged"}]


def test_a_record_outlives_the_state_of_its_job(project: Project) -> None:
    write_bare_record(project, FAILED)
    found = status(project)
    assert found["failed"] == [] and found["total"]["done"] == 4


def test_a_record_without_its_tensors_cannot_be_used(project: Project) -> None:
    path = project.root / DONE
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"tensors": {"file": "all.safetensors", "sha256": "0", "keys": ["a"]}}))
    found = status(project)
    assert DONE in records(found, "unreadable")
    (reason,) = (row["reason"] for row in found["unreadable"] if row["record"] == DONE)
    assert "all.safetensors" in reason and "missing" in reason


def test_k_of_n_of_a_figure(project: Project) -> None:
    (row,) = (row for row in status(project)["artifacts"] if row["name"] == "optimal_defense fig02")
    experiments = {"undefended", "pruning"}
    jobs = [job for job in project.plan("smoke").jobs_of("optimal_defense").values() if job.experiment in experiments]
    assert (row["done"], row["jobs"]) == (3, len(jobs))
    assert (row["failed"], row["running"], row["stopped"]) == (1, 1, 0)


@pytest.mark.usefixtures("project")
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    printed = capsys.readouterr().out
    assert f"failed: {FAILED}: failed on {socket.gethostname()}: OutOfMemoryError: 3 GiB" in printed
    assert f"running: {RUNNING}: runs since 2024-01-01" in printed and "SLURM job 4711" in printed
    assert f"stopped: {STOPPED}: killed or stopped" in printed
    assert f"infeasible: {INFEASIBLE}: it was infeasible" in printed
    assert "3 of " in printed
    assert main(["status", "--json", "--scale", "laptop"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["scale"] == "laptop" and found["total"]["done"] == 0


@pytest.mark.usefixtures("project")
def test_an_unknown_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--scale", "huge"]) == 1
    assert "--scale: unknown scale 'huge'" in capsys.readouterr().err
