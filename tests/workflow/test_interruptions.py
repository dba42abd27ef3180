"""Runs that are killed, run twice, or that find a broken record."""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from leakbench.running.work import folder_of, keep, state_of

if TYPE_CHECKING:
    from tests.workflow.conftest import Checkout, Finished


pytestmark = pytest.mark.slow

PAPER = "results/tiny/optimal_defense"
RECORD = f"{PAPER}/pruning_training/digits16/small/gp-90/train/all.json"
TABLES = [f"{PAPER}/{experiment}/records.parquet" for experiment in ("noise", "pruning_training")]


def test_sigkill_at_any_moment(project: Checkout, finished: Finished) -> None:
    """The same command ends with the same records, whatever was going on."""
    records = [path for path in project.results() if "/noise/" in path or "/pruning_training/" in path]
    for path in records:
        (project.root / path).unlink()
    targets = [*records, *TABLES]
    killed = subprocess.Popen(
        project.command(*targets),
        cwd=project.root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 120
        while not any((project.root / path).exists() for path in records) and time.monotonic() < end:
            time.sleep(0.02)
        moment = random.uniform(0, 3)
        time.sleep(moment)
    finally:
        os.killpg(killed.pid, signal.SIGKILL)  # Snakemake and its jobs: the group is the session started above
        killed.wait()

    run = project.snakemake(*targets)
    assert run.returncode == 0, f"killed {moment:.2f} s after the first record\n{run.output}"
    assert project.results() == finished.checkout.results()
    assert project.make(*targets).nothing_to_do


def test_a_killed_run_leaves_a_lock_and_a_living_one_keeps_it(project: Checkout) -> None:
    (project.root / RECORD).unlink()
    locks = project.root / ".snakemake" / "locks"
    locks.mkdir(exist_ok=True)
    (locks / "0.output.lock").write_text(f"{RECORD}\n")

    with (project.root / ".snakemake" / "leakbench.lock").open("w") as other:  # what another, living run holds
        fcntl.flock(other, fcntl.LOCK_SH)
        refused = project.snakemake(RECORD)
    assert refused.returncode != 0
    assert "Directory cannot be locked" in refused.output and not (project.root / RECORD).exists()

    assert project.make(RECORD).rules == {"train": 1}


def test_a_broken_record_is_named_and_set_aside(project: Checkout) -> None:
    broken = project.root / RECORD
    expected = project.results()
    half = broken.read_bytes()[:100]
    broken.write_bytes(half)

    run = project.make("--dry-run", RECORD)
    assert f"{RECORD}: not a valid record" in run.output
    assert broken.read_bytes() == half  # a dry run changes nothing

    run = project.make(RECORD, TABLES[1])
    assert f"{RECORD}: not a valid record: the file: Invalid JSON" in run.output
    assert run.rules == {"train": 1, "merge": 1}
    assert project.results() == expected
    (aside,) = broken.parent.glob("all.json.corrupt-*")
    assert aside.read_bytes() == half


def test_a_failing_job_shows_its_message(fresh: Checkout) -> None:
    """The log of a job goes to a file; what it says when it fails must not be lost there."""
    fresh.replace("quick_jobs.py", "def _run(", "def _run(*_):\n    raise OSError('the disk is gone')\n\n\ndef _(")
    run = fresh.snakemake(RECORD)
    assert run.returncode != 0
    assert "the disk is gone" in run.output
    assert not (fresh.root / RECORD).exists()
    state = state_of(fresh.root, RECORD)
    assert state is not None and state.error is not None and state.status == "failed"
    assert re.fullmatch(r"OSError: the disk is gone \(.*quick_jobs\.py, line \d+\)", state.error)


def test_what_jobs_left_goes_with_their_records(fresh: Checkout) -> None:
    """Copies of records that are in place; those of others stay, until they have run again."""
    missing = RECORD.replace("gp-90", "gp-80")
    fresh.make(RECORD, missing)
    for record in (RECORD, missing):
        keep(fresh.root, record)
    (fresh.root / missing).unlink()
    fresh.make("--dry-run", RECORD, missing)
    assert folder_of(fresh.root, RECORD).exists()
    fresh.replace("quick_jobs.py", "def _run(", "def _run(*_):\n    raise OSError('the disk is gone')\n\n\ndef _(")
    assert fresh.snakemake(missing).returncode != 0
    assert not folder_of(fresh.root, RECORD).exists() and folder_of(fresh.root, missing).exists()
    fresh.replace("quick_jobs.py", "    raise OSError('the disk is gone')\n", "    return findings(_[1])\n")
    fresh.make(missing)
    assert not (fresh.root / "work").exists()
