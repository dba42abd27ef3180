"""What computing a scale takes, by paper, kind of job and figure: ``leakbench cost``; the model is in docs/costs.md."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from leakbench.errors import ConfigError, LeakbenchError
from leakbench.jobs.base import Job
from leakbench.models.sizes import multiply_adds, parameter_count
from leakbench.planning.project import Project
from leakbench.planning.recorded import job_of
from leakbench.records import RESULTS, Record, atomic_write, size_on_disk
from leakbench.report.artifacts import artifacts
from leakbench.report.cost_model import CostModel, Device, Estimate, Measured, Size, Speedup, added
from leakbench.report.recorded import Recorded, readable_records, recorded

if TYPE_CHECKING:
    from leakbench.models.base import Model

SPEEDUP = Speedup(100, 1000)
"""Of a data centre's GPU over one core, where no record of a GPU says better: 1e12 to 1e13 multiply-adds a second in
float32, by how well kernels fill it, over the 1e10 that records of a CPU show."""
COLUMNS = ("record", "paper", "experiment", "kind", "state", "device", "seconds", "low", "high", "bytes", "basis")


class Earlier(NamedTuple):
    """What a record took: the job, device seconds, and bytes."""

    job: Job
    device: Device
    seconds: float
    bytes: int

    @property
    def measured(self) -> Measured:
        """What a model of costs learns from it."""
        place = "/".join((self.job.scale, self.job.paper, self.job.experiment))
        return Measured(size_of(self.job), place, self.device, self.seconds)


@dataclass(frozen=True)
class JobCost:
    """What a job takes, or took.

    Attributes:
        recorded: what there is of it.
        device: that it asks for.
        estimate: None where nothing is known of its kind.
        bytes: of its record and tensors; None likewise.
    """

    job: Job
    recorded: Recorded
    device: Device
    estimate: Estimate | None
    bytes: float | None

    @property
    def done(self) -> bool:
        """Whether its record is there."""
        return self.recorded.state == "done"


@dataclass(frozen=True)
class Costs:
    """What a scale takes.

    Attributes:
        jobs: by their records' paths.
        measured: how many records it is estimated from, by device.
        unused: records that were not used, by reason.
    """

    scale: str
    device: Device
    speedup: Speedup
    jobs: dict[str, JobCost]
    measured: dict[str, int]
    unused: dict[str, int]


def device_of(record: Record) -> Device:
    """What a record was computed on."""
    return "cpu" if record.provenance.device.startswith("cpu") else "gpu"


@cache
def _size_of_model(model: Model, shape: tuple[int, ...], classes: int) -> tuple[float, int]:
    """Multiply-adds of a pass of one sample, and parameters; nothing is computed."""
    return multiply_adds(model, shape, classes), parameter_count(model, shape, classes)


def size_of(job: Job) -> Size:
    """What a job computes."""
    dataset, effort = job.dataset.single(), job.effort
    factor = 1.0
    if job.kind.unit != "multiply-adds":
        operations, parameters = _size_of_model(job.model.single(), dataset.shape, dataset.classes)
        factor = operations if job.kind.unit == "passes" else parameters
    return Size(job.kind.name, (job.attack or job.defense).component.name, factor * effort.passes, effort.steps)


def earlier_costs(root: Path) -> tuple[list[Earlier], dict[str, int]]:
    """What the records below ``root`` took, of any scale; and how many say nothing, by reason."""
    found, unused = [], dict[str, int]()
    for path, record in readable_records(root).items():
        if record.outcome.status == "infeasible":
            reason = "infeasible: not all was computed"
        elif record.cost.device_s <= 0:
            reason = "without a measured cost"
        else:
            try:
                size = size_on_disk(root / path, record)
                found.append(Earlier(job_of(record.job), device_of(record), record.cost.device_s, size))
                continue
            except LeakbenchError:
                reason = "of components that are no more as they were"
            except OSError:
                reason = "their tensors are missing"
        unused[reason] = unused.get(reason, 0) + 1
    return found, unused


def costs(project: Project, scale: str, device: Device | None = None, speedup: Speedup = SPEEDUP) -> Costs:
    """What a scale takes, estimated from all records below the project's results.

    Args:
        project: whose records are read.
        scale: whose jobs are estimated.
        device: what jobs run on that a cluster gives a GPU; by default what the scale says.
        speedup: of a GPU over a core, where there are no records of a GPU.

    Raises:
        ConfigError: there is no such scale.
    """
    plan = project.plan(scale, where="--scale")
    device = device or plan.device
    earlier, unused = earlier_costs(project.root)
    model = CostModel((each.measured for each in earlier), speedup)
    rates: dict[str, list[float]] = {}
    for each in earlier:
        rates.setdefault(each.job.kind.name, []).append(each.bytes / each.job.volume)
    found = {}
    for path, job in plan.jobs.items():
        there, own = recorded(project.root, job), device if job.kind.on_gpu else "cpu"
        size = float(there.bytes) if there.state == "done" else None
        if size is None and job.kind.name in rates:
            size = median(rates[job.kind.name]) * job.volume
        estimate = model.estimate(size_of(job), own) if job.kind.name in rates else None
        found[path] = JobCost(job, there, own, estimate, size)
    counts = {name: sum(e.device == name for e in earlier) for name in ("cpu", "gpu")}
    return Costs(scale, device, speedup, found, counts, unused)


def summary(found: Iterable[JobCost], at_a_time: int) -> dict[str, Any]:
    """What some jobs take together: ``gpu_hours``, ``cpu_hours`` (as value, low and high), of those that are left.

    Where nothing is known of some, hours and bytes are null if that is so of all, and else those of the others.
    """
    every = list(found)
    left = [each for each in every if not each.done]
    known = [(each, each.estimate) for each in left if each.estimate is not None]
    hours: dict[str, list[float] | None] = {}
    wall = 0.0
    for device in ("gpu", "cpu"):
        own = [(each.job.kind.name, estimate) for each, estimate in known if each.device == device]
        total = added(own)
        hours[f"{device}_hours"] = [seconds / 3600 for seconds in total] if own else None
        wall = max(wall, total[0] / 3600 / at_a_time, *(estimate.seconds / 3600 for _, estimate in own), 0.0)
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


def cost_report(project: Project, found: Costs, at_a_time: int) -> dict[str, Any]:
    """What ``leakbench cost --json`` prints: what it rests on, and a row for each paper, kind and artifact."""
    plan, jobs = project.plan(found.scale), found.jobs

    def rows(groups: Mapping[str, Collection[str]]) -> list[dict[str, Any]]:
        return [{"name": name, **summary((jobs[path] for path in paths), at_a_time)} for name, paths in groups.items()]

    papers = {paper: [path for path in jobs if jobs[path].job.paper == paper] for paper in plan.papers}
    kinds: dict[str, list[str]] = {}
    for path, each in jobs.items():
        kinds.setdefault(each.job.kind.name, []).append(path)
    shown = {
        f"{entry.paper} {entry.name}": entry.records(project, found.scale)
        for entry in artifacts()
        if entry.paper in plan.papers and entry.experiments
    }
    unknown = {each.job.kind.name for each in jobs.values() if each.estimate is None and not each.done}
    assumed = any(each.estimate.assumed for each in jobs.values() if each.estimate is not None and not each.done)
    return {
        "scale": found.scale,
        "device": found.device,
        "at_a_time": at_a_time,
        "records": found.measured,
        "unused_records": found.unused,
        "assumed_speedup": list(found.speedup) if assumed else None,
        "without_estimate": {kind: f"no record of a job of kind '{kind}', at any scale" for kind in sorted(unknown)},
        "total": summary(jobs.values(), at_a_time),
        "papers": rows(papers),
        "kinds": rows(kinds),
        "artifacts": rows(shown),
    }


def costs_path(scale: str) -> str:
    """Where the estimates of a scale's jobs are kept, relative to the project's root."""
    return f"{RESULTS}/{scale}/costs.csv"


def write_costs(root: Path, found: Costs) -> None:
    """One row per job: seconds of its device, empty where nothing is known of its kind."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for path, each in found.jobs.items():
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
    atomic_write(root / costs_path(found.scale), buffer.getvalue().encode())


def planned_seconds(root: Path, scale: str) -> dict[str, float]:
    """Expected seconds by record, as ``leakbench cost`` last wrote them; those it could not estimate are left out.

    Empty where it was not run.

    Raises:
        ConfigError: the file is not as it was written.
    """
    path = costs_path(scale)
    try:
        with (root / path).open(newline="") as file:
            return {row["record"]: float(row["seconds"]) for row in csv.DictReader(file) if row["seconds"]}
    except FileNotFoundError:
        return {}
    except (KeyError, TypeError, ValueError):
        raise ConfigError(f"{path}: was changed; delete it, or run `leakbench cost --scale {scale}` again") from None
