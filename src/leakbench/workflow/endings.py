"""Messages on jobs that left no record: their error, or the state that SLURM gives a killed job."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from leakbench.running.work import STATE, WORK, State, record_of, state_of

REASONS = {
    "CANCELLED": "somebody cancelled it",
    "DEADLINE": "it reached its deadline",
    "FAILED": "a process of it was killed from outside, or ran out of memory",
    "NODE_FAIL": "its node died",
    "BOOT_FAIL": "its node did not start",
    "OUT_OF_MEMORY": "it took more memory than it had asked for",
    "PREEMPTED": "another job took its place",
    "TIMEOUT": "it reached its time limit",
}
"""Meanings of final states of SLURM."""


def endings(root: Path, since: str) -> Iterator[str]:
    """A line for every job that a run started, that left no record and does not run, after one with their number.

    Args:
        root: the root of the project.
        since: start of the run, ISO time, UTC. Jobs that failed before are not its own (``leakbench status`` has them).
    """
    ended = {}
    for mark in sorted((root / WORK).rglob(STATE)):
        record = record_of(root, mark.parent)
        state = state_of(root, record)
        if state is not None and state.started >= since and state.status != "running" and not (root / record).exists():
            ended[record] = state
    if ended:
        yield f"leakbench: {len(ended)} of the jobs that were started left no record. What the others made is kept;"
        yield "to go on, run the same command again."
    for record, state in ended.items():
        log = Path("logs", *Path(record).parts[1:]).with_suffix(".log")
        yield f"  {record}: {_why(state)} ({log})"


def _why(state: State) -> str:
    if state.error is not None:
        return f"failed: {state.error}"
    if state.slurm_job_id is None:
        return f"was killed, on {state.host}"
    word = _slurm_state(state.slurm_job_id)
    reason = f": {REASONS[word]} ({word})" if word in REASONS else ""
    return f"was killed, in SLURM job {state.slurm_job_id} on {state.host}{reason}"


def _slurm_state(job: str) -> str | None:
    """State of a job by the controller, or else by the accounting; None if neither answers."""
    for command in (
        ["squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}"],
        ["sacct", "--noheader", "--allocations", "--parsable2", "--format=State", f"--jobs={job}"],
    ):
        if shutil.which(command[0]) is None:
            continue
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.split()
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer:
            return answer[0]
    return None
