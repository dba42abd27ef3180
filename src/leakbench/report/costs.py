"""The cost of a scale by paper, kind of job and figure: ``leakbench cost``. The model is in docs/costs.md."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from leakbench.effort import Effort
from leakbench.errors import ConfigError, LeakbenchError
from leakbench.jobs.base import Job
from leakbench.models.sizes import multiply_adds, parameter_count
from leakbench.planning.project import Project
from leakbench.planning.recorded import job_of
from leakbench.records import RESULTS, Record, atomic_write, size_on_disk
from leakbench.report.artifacts import artifacts_at
from leakbench.report.cost_model import CostModel, Device, Forecast, Measured, Size, Speedup, added
from leakbench.report.recorded import Recorded, readable_records, recorded

if TYPE_CHECKING:
    from leakbench.models.base import Model

SPEEDUP = Speedup(100, 1000)
"""Assumed speed-up of a data centre's GPU over one core, without records of a GPU: 1e12 to 1e13 multiply-adds a second
in float32, depending on how well kernels fill it, over the 1e10 that records of a CPU show."""
COLUMNS = ("record", "paper", "experiment", "kind", "state", "device", "seconds", "low", "high", "bytes", "basis")


class Earlier(NamedTuple):
    """The cost of an existing record: the job, when it began, device seconds, and bytes."""

    job: Job
    started: str
    device: Device
    seconds: float
    bytes: int


@dataclass(frozen=True)
class JobCost:
    """Estimated cost of a job.

    Attributes:
        recorded: its record, if any.
        device: that it asks for.
        estimate: had it to do alone what it shares; None where nothing is known of its kind.
        shared: parts of that which other jobs share, by the work.
        bytes: of its record and tensors; None likewise.
    """

    job: Job
    recorded: Recorded
    device: Device
    estimate: Forecast | None
    shared: Mapping[str, float]
    bytes: float | None

    @property
    def done(self) -> bool:
        """Whether its record is there."""
        return self.recorded.state == "done"


@dataclass(frozen=True)
class Costs:
    """Costs of a scale.

    Attributes:
        jobs: by their records' paths.
        measured: numbers of records that the estimates rest on, by device.
        unused: numbers of records that were not used, by reason.
    """

    scale: str
    device: Device
    speedup: Speedup
    jobs: dict[str, JobCost]
    measured: dict[str, int]
    unused: dict[str, int]


def device_of(record: Record) -> Device:
    """The device that a record was computed on."""
    return "cpu" if record.provenance.device.startswith("cpu") else "gpu"


@cache
def _size_of_model(model: Model, shape: tuple[int, ...], classes: int) -> tuple[float, int]:
    """Multiply-adds of a pass of one sample, and parameters; nothing is computed."""
    return multiply_adds(model, shape, classes), parameter_count(model, shape, classes)


def size_of(job: Job) -> Size:
    """The amount of computation of a job that shares nothing."""
    return _size(job, job.effort)


def _size(job: Job, effort: Effort) -> Size:
    dataset = job.dataset.single()
    factor = 1.0
    if job.kind.unit != "multiply-adds":
        operations, parameters = _size_of_model(job.model.single(), dataset.shape, dataset.classes)
        factor = operations if job.kind.unit == "passes" else parameters
    return Size(job.kind.name, (job.attack or job.defense).component.name, factor * effort.passes, effort.steps)


def done_in_turn(jobs: Iterable[Job]) -> Iterator[Size]:
    """The amounts of computation of jobs, one after the other: what several share, the first of them does."""
    done = set[str]()
    for job in jobs:
        shared = job.shared_effort
        yield _size(job, reduce(Effort.less, (shared[work] for work in shared if work in done), job.effort))
        done |= shared.keys()


def earlier_costs(root: Path) -> tuple[list[Earlier], dict[str, int]]:
    """Costs of the records below ``root``, of any scale, the first that was begun first.

    Also the numbers of unusable ones, by reason.
    """
    earlier, unused = [], dict[str, int]()
    for path, record in readable_records(root).items():
        if record.outcome.status == "infeasible":
            reason = "infeasible: not all was computed"
        elif record.cost.device_s <= 0:
            reason = "without a measured cost"
        else:
            try:
                size = size_on_disk(root / path, record)
                job, device = job_of(record.job), device_of(record)
                earlier.append(Earlier(job, record.provenance.started, device, record.cost.device_s, size))
                continue
            except LeakbenchError:
                reason = "of components that have changed since"
            except OSError:
                reason = "their tensors are missing"
        unused[reason] = unused.get(reason, 0) + 1
    return sorted(earlier, key=lambda each: each.started), unused


def measured(earlier: Sequence[Earlier]) -> Iterator[Measured]:
    """The costs of records, the first that was begun first, as input of a :class:`CostModel`."""
    for each, size in zip(earlier, done_in_turn(one.job for one in earlier), strict=True):
        place = "/".join((each.job.scale, each.job.paper, each.job.experiment))
        yield Measured(size, place, each.device, each.seconds)


def costs(project: Project, scale: str, device: Device | None = None, speedup: Speedup = SPEEDUP) -> Costs:
    """The costs of a scale, estimated from all records below the project's results.

    Args:
        project: whose records are read.
        scale: whose jobs are estimated.
        device: that jobs run on if they can use a GPU; by default that of the scale.
        speedup: of a GPU over a core, where there are no records of a GPU.

    Raises:
        ConfigError: there is no such scale.
    """
    plan = project.plan(scale, where="--scale")
    device = device or plan.device
    earlier, unused = earlier_costs(project.root)
    model = CostModel(measured(earlier), speedup)
    rates: dict[str, list[float]] = {}
    for each in earlier:
        rates.setdefault(each.job.kind.name, []).append(each.bytes / each.job.volume)
    jobs = {}
    for path, job in plan.jobs.items():
        record, job_device = recorded(project.root, job), device if job.kind.on_gpu else "cpu"
        size = float(record.bytes) if record.state == "done" else None
        if size is None and job.kind.name in rates:
            size = median(rates[job.kind.name]) * job.volume
        whole, speed = size_of(job), speedup.middle if job_device == "gpu" else 1.0
        estimate = model.estimate(whole, job_device) if job.kind.name in rates else None
        shared = {work: _size(job, part).on(speed) / whole.on(speed) for work, part in job.shared_effort.items()}
        jobs[path] = JobCost(job, record, job_device, estimate, shared, size)
    counts = {name: sum(e.device == name for e in earlier) for name in ("cpu", "gpu")}
    return Costs(scale, device, speedup, jobs, counts, unused)


def summary(jobs: Iterable[JobCost], at_a_time: int) -> dict[str, Any]:
    """Counts of jobs, their bytes, and the cost of those left: ``gpu_hours``, ``cpu_hours`` (value, low and high).

    Jobs without an estimate are left out; hours and bytes are null if no job has one.
    """
    every = list(jobs)
    left = [each for each in every if not each.done]
    known = list(_forecasts(left))
    hours: dict[str, list[float] | None] = {}
    wall = 0.0
    for device in ("gpu", "cpu"):
        estimates = [(each.job.kind.name, estimate) for each, estimate in known if each.device == device]
        total = added(estimates)
        hours[f"{device}_hours"] = [seconds / 3600 for seconds in total] if estimates else None
        wall = max(wall, total[0] / 3600 / at_a_time, *(estimate.seconds / 3600 for _, estimate in estimates), 0.0)
    sizes = [each.bytes for each in every if each.bytes is not None]
    return {
        "jobs": len(every),
        "done": len(every) - len(left),
        "left": len(left),
        "unknown": len(left) - len(known),
        **hours,
        "wall_hours": wall if known or not left else None,
        "bytes": sum(sizes) if sizes else None,
    }


def _forecasts(jobs: Iterable[JobCost]) -> Iterator[tuple[JobCost, Forecast]]:
    """The jobs with an estimate; what several share is in that of the first alone."""
    done = set[str]()
    for each in jobs:
        if each.estimate is not None:
            part = sum(part for work, part in each.shared.items() if work in done)
            yield each, each.estimate.times(1 - part)
            done |= each.shared.keys()


def within(groups: Mapping[str, Collection[str]], jobs: Mapping[str, JobCost], seconds: float) -> dict[str, float]:
    """The figures and tables that fit into a time, with the seconds that each adds, cheapest first.

    What two of them share is counted once; one with a job of which nothing is known is left out.

    Args:
        groups: records of each, by its name.
        jobs: by their records' paths.
        seconds: of all devices together.
    """
    needed = {name: [path for path in paths if not jobs[path].done] for name, paths in groups.items()}
    needed = {name: paths for name, paths in needed.items() if all(jobs[path].estimate for path in paths)}
    chosen: dict[str, float] = {}
    there: set[str] = set()
    left = seconds
    while needed:
        added_by = {name: _seconds(jobs[path] for path in paths if path not in there) for name, paths in needed.items()}
        name = min(added_by, key=added_by.__getitem__)
        if added_by[name] > left:
            break
        chosen[name] = added_by[name]
        left -= added_by[name]
        there.update(needed.pop(name))
    return chosen


def _seconds(jobs: Iterable[JobCost]) -> float:
    return sum(estimate.seconds for _, estimate in _forecasts(jobs))


def cost_report(
    project: Project, scale_costs: Costs, at_a_time: int, wall_seconds: float | None = None
) -> dict[str, Any]:
    """The output of ``leakbench cost --json``: the basis of the estimates, and rows by paper, kind and artifact.

    Args:
        project: whose plan it is.
        scale_costs: the estimates.
        at_a_time: devices that compute at a time.
        wall_seconds: time into which figures and tables are to fit; by default nothing is proposed.
    """
    plan, jobs = project.plan(scale_costs.scale), scale_costs.jobs

    def rows(groups: Mapping[str, Collection[str]]) -> list[dict[str, Any]]:
        return [{"name": name, **summary((jobs[path] for path in paths), at_a_time)} for name, paths in groups.items()]

    papers = {paper: [path for path in jobs if jobs[path].job.paper == paper] for paper in plan.papers}
    kinds: dict[str, list[str]] = {}
    for path, each in jobs.items():
        kinds.setdefault(each.job.kind.name, []).append(path)
    shown = {
        f"{entry.paper} {entry.name}": entry.records(project, scale_costs.scale)
        for entry in artifacts_at(plan)
        if entry.experiments
    }
    unknown = {each.job.kind.name for each in jobs.values() if each.estimate is None and not each.done}
    assumed = any(each.estimate.assumed for each in jobs.values() if each.estimate is not None and not each.done)
    return {
        "scale": scale_costs.scale,
        "device": scale_costs.device,
        "at_a_time": at_a_time,
        "records": scale_costs.measured,
        "unused_records": scale_costs.unused,
        "assumed_speedup": list(scale_costs.speedup) if assumed else None,
        "without_estimate": {kind: f"no record of a job of kind '{kind}', at any scale" for kind in sorted(unknown)},
        "total": summary(jobs.values(), at_a_time),
        "papers": rows(papers),
        "kinds": rows(kinds),
        "artifacts": rows(shown),
        "within": None
        if wall_seconds is None
        else {
            "wall_hours": wall_seconds / 3600,
            "artifacts": [
                {"name": name, "hours": seconds / 3600}
                for name, seconds in within(shown, jobs, wall_seconds * at_a_time).items()
            ],
        },
    }


def costs_path(scale: str) -> str:
    """Path of the estimates of a scale's jobs, relative to the project's root."""
    return f"{RESULTS}/{scale}/costs.csv"


def write_costs(root: Path, scale_costs: Costs) -> None:
    """Write one row per job, with the seconds of its device, which are empty without an estimate."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for path, each in scale_costs.jobs.items():
        seconds = each.estimate and {name: f"{getattr(each.estimate, name):.6g}" for name in ("seconds", "low", "high")}
        writer.writerow(
            {
                "record": path,
                "paper": each.job.paper,
                "experiment": each.job.experiment,
                "kind": each.job.kind.name,
                "state": each.recorded.state,
                "device": each.device,
                "bytes": "" if each.bytes is None else math.ceil(each.bytes),
                "basis": each.estimate.basis if each.estimate else "",
                **(seconds or {}),
            }
        )
    atomic_write(root / costs_path(scale_costs.scale), buffer.getvalue().encode())


def planned_seconds(root: Path, scale: str) -> dict[str, float]:
    """Expected seconds by record, as ``leakbench cost`` last wrote them; those it could not estimate are left out.

    Empty if it has not been run.

    Raises:
        ConfigError: the file was changed.
    """
    path = costs_path(scale)
    try:
        with (root / path).open(newline="") as file:
            return {row["record"]: float(row["seconds"]) for row in csv.DictReader(file) if row["seconds"]}
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path}: was changed; delete it, or run `leakbench cost --scale {scale}` again") from None
