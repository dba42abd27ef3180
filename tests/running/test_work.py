"""What a job leaves until its record is safe, and what becomes of it."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leakbench import cli
from leakbench.errors import ConfigError
from leakbench.running import work
from leakbench.running.work import SILENT_S, STATE, State, folder_of, record_of, remove, state_of

RECORD = "results/smoke/paper/experiment/digits/small/none/train/seed3.json"


def ended_process() -> int:
    """A process id that no process has."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_the_folder_mirrors_the_record(tmp_path: Path) -> None:
    assert folder_of(tmp_path, RECORD) == tmp_path / "work/smoke/paper/experiment/digits/small/none/train/seed3"


def test_a_job_runs_until_it_ends_and_says_why_it_failed(tmp_path: Path) -> None:
    assert state_of(tmp_path, RECORD) is None
    with work.attempt(tmp_path, RECORD, "digest") as folder:
        state = state_of(tmp_path, RECORD)
        assert state is not None and folder == folder_of(tmp_path, RECORD)
        assert (state.digest, state.pid, state.host) == ("digest", os.getpid(), socket.gethostname())
        assert state.status == "running" and state.started.endswith("+00:00") and state.error is None
    with pytest.raises(ConfigError), work.attempt(tmp_path, RECORD, "digest"):
        raise ConfigError("steps: 0 is too few\nmore of it")
    state = state_of(tmp_path, RECORD)
    assert state is not None and (state.status, state.error) == ("failed", "steps: 0 is too few")
    with pytest.raises(ZeroDivisionError), work.attempt(tmp_path, RECORD, "digest"):
        print(1 / 0)
    state = state_of(tmp_path, RECORD)
    assert state is not None and state.error is not None
    assert re.fullmatch(r"ZeroDivisionError: division by zero \(.*test_work\.py, line \d+\)", state.error)
    with pytest.raises(KeyboardInterrupt), work.attempt(tmp_path, RECORD, "digest"):
        raise KeyboardInterrupt
    state = state_of(tmp_path, RECORD)
    assert state is not None and state.error is None


def test_who_was_killed_has_stopped(tmp_path: Path) -> None:
    here = State("d", socket.gethostname(), ended_process(), None, "2026-01-01T00:00:00+00:00", touched=time.time())
    assert here.status == "stopped"
    assert replace(here, pid=os.getpid()).status == "running"
    elsewhere = replace(here, host="another", slurm_job_id="4711")
    assert elsewhere.status == "running"
    assert replace(elsewhere, touched=time.time() - SILENT_S - 1).status == "stopped"
    assert replace(elsewhere, error="no").status == "failed"


def test_a_running_job_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "TOUCH_S", 0.01)
    with work.attempt(tmp_path, RECORD, "digest") as folder:
        os.utime(folder / STATE, (1, 1))
        end = time.monotonic() + 10
        while (folder / STATE).stat().st_mtime < 2 and time.monotonic() < end:
            time.sleep(0.01)
        found = state_of(tmp_path, RECORD)
        assert found is not None and found.touched > 2


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"digest": 1}', '{"other": 1}', "\x00"])
def test_a_file_that_is_no_state_says_nothing(tmp_path: Path, content: str) -> None:
    file = folder_of(tmp_path, RECORD) / STATE
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert state_of(tmp_path, RECORD) is None


def test_a_work_folder_names_its_record(tmp_path: Path) -> None:
    assert record_of(tmp_path, folder_of(tmp_path, RECORD)) == RECORD


def test_removing_leaves_the_neighbours(tmp_path: Path) -> None:
    other = RECORD.replace("seed3", "seed4")
    for record in (RECORD, other):
        with pytest.raises(KeyboardInterrupt), work.attempt(tmp_path, record, "digest"):
            raise KeyboardInterrupt
    remove(tmp_path, RECORD)
    assert state_of(tmp_path, RECORD) is None and state_of(tmp_path, other) is not None
    remove(tmp_path, RECORD)
    remove(tmp_path, other)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "spoil", [lambda place: place.symlink_to("nowhere"), lambda place: place.touch()], ids=["dangling link", "file"]
)
def test_without_a_place_for_copies_the_record_stays(
    tmp_path: Path, spoil: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    record = "results/smoke/optimal_defense/architecture/digits/simpleconvnet/none/inventory/all.json"
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "config").symlink_to(root / "config")
    spoil(tmp_path / "work")
    assert cli.main(["--root", str(tmp_path), "run", "--keep", str(tmp_path / record)]) == 0
    assert f"no copy of {record}" in capsys.readouterr().err and (tmp_path / record).is_file()
    assert work.restore(tmp_path, record, "digest") is None and not work.is_kept(tmp_path, record, "digest")


def test_restoring_imports_no_torch(tmp_path: Path) -> None:
    """A group that failed after many cells gets them back in no time."""
    record = "results/smoke/optimal_defense/architecture/digits/simpleconvnet/none/inventory/all.json"
    root = Path(__file__).resolve().parents[2]
    (tmp_path / "config").symlink_to(root / "config")
    code = (
        "import sys; from leakbench.cli import main; "
        f"status = main(['run', '--keep', '{record}']); print('torch' in sys.modules); sys.exit(status)"
    )

    def run() -> list[str]:
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=900)
        return done.stdout.splitlines()

    first = run()
    assert first[0].startswith(f"{record}: ok, ") and first[1] == "True"
    content = (tmp_path / record).read_bytes()
    (tmp_path / record).unlink()
    assert run() == [f"{record}: ok, kept by an earlier run", "False"]
    assert (tmp_path / record).read_bytes() == content
    assert run()[1] == "True", "a record that is in place is made again"
    assert json.loads(content)["replicates"] == json.loads((tmp_path / record).read_bytes())["replicates"]
