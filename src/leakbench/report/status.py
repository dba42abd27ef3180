"""Progress of a scale by paper and figure, with failed and running jobs: ``leakbench status``. Needs no torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from leakbench.jobs.base import Job
from leakbench.planning.project import Project
from leakbench.report.artifacts import artifacts_at
from leakbench.report.recorded import Recorded, recorded
from leakbench.running.work import State, state_of

Standing = Literal["done", "running", "failed", "stopped", "stale", "unreadable", "missing"]
STANDINGS: tuple[Standing, ...] = get_args(Standing)


@dataclass(frozen=True)
class JobStatus:
    """Progress of a job.

    Attributes:
        recorded: its record, if any.
        state: of its newest attempt; None if there was none since the record was written.
    """

    job: Job
    recorded: Recorded
    state: State | None

    @property
    def standing(self) -> Standing:
        """``done`` if its record exists; else the state of the newest attempt, or of the record."""
        if self.recorded.state == "done":
            return "done"
        if self.state is not None and self.state.status == "running":
            return "running"
        if self.state is not None and self.state.digest == self.job.digest:  # others are of another configuration
            return self.state.status
        return self.recorded.state


def job_states(project: Project, scale: str) -> dict[str, JobStatus]:
    """Every job of a scale, by its record's path.

    Raises:
        ConfigError: there is no such scale.
    """
    plan = project.plan(scale, where="--scale")
    states = {}
    for path, job in plan.jobs.items():
        record = recorded(project.root, job)
        states[path] = JobStatus(job, record, None if record.state == "done" else state_of(project.root, path))
    return states


def _row(name: str, jobs: Iterable[JobStatus]) -> dict[str, Any]:
    every = list(jobs)
    standings = Counter(each.standing for each in every)
    outcomes = Counter(
        each.recorded.record.outcome.status for each in every if each.standing == "done" and each.recorded.record
    )
    return {
        "name": name,
        "jobs": len(every),
        **{standing: standings[standing] for standing in STANDINGS},
        "infeasible": outcomes["infeasible"],
        "diverged": outcomes["diverged"],
    }


def status(project: Project, scale: str | None = None) -> dict[str, Any]:
    """The output of ``leakbench status --json``: rows by paper and artifact, and lists of jobs by standing.

    ``infeasible`` and ``diverged`` count the ``done`` records that ended so, in whole or in part.
    """
    scale = scale or project.settings.scale
    jobs = job_states(project, scale)
    plan = project.plan(scale)

    def listed(standing: Standing) -> list[dict[str, Any]]:
        return [_details(path, each) for path, each in jobs.items() if each.standing == standing]

    def ended(outcome: str) -> list[dict[str, Any]]:
        done = ((path, each.recorded.record) for path, each in jobs.items() if each.standing == "done")
        return [
            {"record": path, "reason": record.outcome.reason}
            for path, record in done
            if record is not None and record.outcome.status == outcome
        ]

    return {
        "scale": scale,
        "total": _row("all", jobs.values()),
        "papers": [_row(paper, (each for each in jobs.values() if each.job.paper == paper)) for paper in plan.papers],
        "artifacts": [
            _row(f"{entry.paper} {entry.name}", (jobs[path] for path in entry.records(project, scale)))
            for entry in artifacts_at(plan)
            if entry.experiments
        ],
        **{standing: listed(standing) for standing in STANDINGS if standing not in ("done", "missing")},
        **{outcome: ended(outcome) for outcome in ("infeasible", "diverged")},
    }


def _details(path: str, each: JobStatus) -> dict[str, Any]:
    details: dict[str, Any] = {"record": path}
    if each.state is not None and each.standing in ("running", "failed", "stopped"):
        state = each.state
        details |= {"since": state.started, "host": state.host, "pid": state.pid, "slurm_job_id": state.slurm_job_id}
        if each.standing == "failed":
            details["reason"] = state.error
    else:
        details["reason"] = each.recorded.reason
    return details
