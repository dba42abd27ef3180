"""Preempted SLURM jobs, which go back into the queue.

Where a partition preempts by cancelling (``PreemptMode=CANCEL``), a job ends as PREEMPTED, or as FAILED if it ends by
itself in the partition's grace time. Snakemake's plug-in takes the first for a job that SLURM queues again by itself,
and waits for ever; of the second it submits another one with more memory, three times at most. A job that is queued
again keeps its number, and goes on from its checkpoint.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

SUBMITTED_AGAIN = "CANCELLED"
"""A state of which the plug-in knows that the job has ended, so that Snakemake submits another one."""


class Requeueing:
    """The states of a run's jobs as the plug-in should see them."""

    def __init__(self) -> None:
        self._ended: dict[str, str] = {}

    async def states(self, asked: Mapping[str, str]) -> dict[str, str]:
        """Put preempted jobs back into the queue.

        Args:
            asked: the state of every job that squeue or sacct shows, by its number.

        Returns:
            What the plug-in should take them for.
        """
        return {job: await self._state(job, words.split(" ")[0]) for job, words in asked.items()}  # CANCELLED by 1000

    async def _state(self, job: str, state: str) -> str:
        if state not in ("PREEMPTED", "FAILED"):
            return state
        if job in self._ended:  # it stays in sight for a while
            return self._ended[job]
        if state == "FAILED" and not await _in_grace_time(job):
            self._ended[job] = state
            return state
        await _ask("scontrol", "requeue", job)
        now, trouble = await _ask("squeue", "--noheader", "--states=all", "--format=%T", f"--jobs={job}")
        if now == state or "Invalid job id" in trouble:  # not allowed to, or forgotten
            self._ended[job] = state if state == "FAILED" else SUBMITTED_AGAIN
            return self._ended[job]
        if now:
            print(f"leakbench: SLURM job {job} was preempted ({state}); it waits in the queue again", file=sys.stderr)
        return now or "PENDING"  # the controller does not answer: the next look tells


def requeue_preempted() -> None:
    """Have Snakemake's SLURM plug-in ask for states through :class:`Requeueing`."""
    import snakemake_executor_plugin_slurm as plugin

    ask, requeueing = plugin.query_job_status, Requeueing()

    async def query(*arguments: Any) -> tuple[dict[str, str] | None, float | None]:
        asked, seconds = await ask(*arguments)
        return (None if asked is None else await requeueing.states(asked)), seconds

    plugin.query_job_status = query


async def _in_grace_time(job: str) -> bool:
    """Whether a job that has failed was told to end for another one, since it started for the last time."""
    shown, _ = await _ask("scontrol", "show", "job", "--oneliner", job)
    fields = dict(word.split("=", 1) for word in shown.split() if "=" in word)
    preempted, started = fields.get("PreemptTime", "None"), fields.get("StartTime", "Unknown")
    return preempted[:1].isdigit() and preempted >= started  # both as 2026-01-31T12:00:00


async def _ask(*command: str) -> tuple[str, str]:
    """Output and errors of a SLURM command; empty output where it does not answer."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        return "", str(error)
    try:
        answer, trouble = await asyncio.wait_for(process.communicate(), timeout=60)
    except TimeoutError:
        process.kill()
        return "", "no answer"
    return answer.decode().strip(), trouble.decode().strip()
