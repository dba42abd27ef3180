"""`leakbench run`, killed or told to end in the middle of a job, and run again; alone and from a warm process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.workflow.conftest import HALVED

from leakbench.workflow.caller import RUN, folder_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
RECORD = "results/tiny/optimal_defense/pruning_training/digits16/small/gp-90/train/all.json"

# Three steps; where a file says so, the process waits after the second one until it is killed, or told to end.
WAITS = '''"""Jobs that wait."""

import os
import time
from pathlib import Path

from leakbench.running import checkpoint

_after_step = checkpoint._Job.after_step
_wait = Path("wait")


def _waiting(self, loop, state):
    if loop.done == 2 and _wait.exists():
        if _wait.read_text() == "after the save":
            _after_step(self, loop, state)
        Path("pid").write_text(str(os.getpid()))
        while self._signal is None:
            time.sleep(0.01)
    _after_step(self, loop, state)


checkpoint._Job.after_step = _waiting
'''


@pytest.fixture
def root(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    shutil.copy(ROOT / "tests" / "workflow" / "tiny.yaml", tmp_path / "config" / "scales")
    (tmp_path / "halved.py").write_text(HALVED)
    (tmp_path / "waits.py").write_text(WAITS)
    return tmp_path


@pytest.fixture
def snakemake() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for it."""
    process = subprocess.Popen(["sleep", "3600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        end = time.monotonic() + 60
        while Path(folder_of(process.pid)).exists() and time.monotonic() < end:
            time.sleep(0.1)


def start(root: Path, run: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "leakbench", "--set", "plugins=[halved.py, waits.py]", "run", RECORD]
    environment = {**os.environ, RUN: run, "LEAKBENCH_CHECKPOINT_S": "0"}
    return subprocess.Popen(command, cwd=root, env=environment, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, said = process.communicate(timeout=900)
    return process.returncode, said


def replicates(root: Path) -> Any:
    return json.loads((root / RECORD).read_text())["replicates"]


def waiting(root: Path, process: subprocess.Popen[str]) -> int:
    """The process id of the job, once it waits."""
    end = time.monotonic() + 900
    while not (root / "pid").exists() or not (root / "pid").read_text():
        assert process.poll() is None and time.monotonic() < end, process.communicate()
        time.sleep(0.1)
    return int((root / "pid").read_text())


def test_killed(root: Path) -> None:
    (root / "wait").write_text("after the save")
    process = start(root)
    os.kill(waiting(root, process), signal.SIGKILL)
    assert ended(process)[0] == -signal.SIGKILL
    assert not (root / RECORD).exists() and (root / "work").is_dir()
    (root / "wait").unlink()

    status, said = ended(start(root))
    assert status == 0 and "going on after 2 of 3 steps of 'training'" in said
    resumed = replicates(root)
    assert not (root / "work").exists()

    (root / RECORD).unlink()
    status, said = ended(start(root))
    assert status == 0 and "going on" not in said
    assert replicates(root) == resumed


def test_told_to_end_in_a_warm_process(root: Path, snakemake: subprocess.Popen[bytes]) -> None:
    """The caller is told, which is what SLURM and Snakemake know of; the job saves and ends, and so does the caller."""
    (root / "wait").write_text("before the save")
    process = start(root, str(snakemake.pid))
    assert waiting(root, process) != process.pid
    process.send_signal(signal.SIGTERM)
    status, said = ended(process)
    assert status == 128 + signal.SIGTERM
    assert "told to end (SIGTERM), saved after 2 of 3 steps of 'training'; run it again to go on" in said
    (root / "wait").unlink()

    status, said = ended(start(root, str(snakemake.pid)))
    assert status == 0 and "going on after 2 of 3 steps of 'training'" in said
    resumed = replicates(root)
    (root / RECORD).unlink()
    assert ended(start(root, str(snakemake.pid)))[0] == 0
    assert replicates(root) == resumed
