"""Recomputation: jobs run again in an empty folder, and their numbers beside those of their records.

On the same kind of processor, with the same version of torch, numbers are equal. Others round sums otherwise, and an
attack takes thousands of steps from there, each of which magnifies the difference, so that single victims end
elsewhere: there the means over the victims, seeds and curve of each metric are compared, and may differ by
:data:`ERRORS` standard errors of the published ones.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from leakbench.errors import ConfigError
from leakbench.jobs.base import Job
from leakbench.jobs.runner import Placement, run_job
from leakbench.lazy import np
from leakbench.publishing.archives import read_archives
from leakbench.records import Record, atomic_write, write_record
from leakbench.report.recorded import staleness

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from leakbench.planning.project import Project

ERRORS = 3.0
"""Standard errors by which means may differ on another kind of processor or with another version of torch."""
ROUNDING = 0.01
"""Part of a mean by which it may differ there in any case."""
UNREPEATABLE = "not reproducible"
"""Words in the unit of a metric in seconds, which nobody gets twice."""

Array: TypeAlias = "NDArray[np.float64]"


class Place(NamedTuple):
    """The place of a number in a record."""

    seed: int
    setting: str
    status: str
    metric: str
    place: int


@dataclass(frozen=True)
class Recomputed:
    """A record that was computed again.

    Attributes:
        path: of the record.
        difference: the largest one of two numbers, 0 where all are identical.
        beyond: metrics whose means differ by more than the tolerance for other surroundings.
        alike: whether the record was made on this kind of processor and with this version of torch; None if it does
            not name its processor.
    """

    path: str
    difference: float
    beyond: tuple[str, ...]
    alike: bool | None

    @property
    def holds(self) -> bool:
        """Whether the record is what its job computes."""
        return self.difference == 0 or (self.alike is not True and not self.beyond)

    @property
    def outcome(self) -> str:
        """The comparison in words."""
        if self.difference == 0:
            return "identical"
        words = f"differs by {self.difference:.3g}"
        if self.beyond:
            return f"{words}; too much in {', '.join(self.beyond)}"
        if self.alike:
            return f"{words} on the same kind of processor"
        other = "on another kind of processor or with another version of torch"
        return f"{words}, within the tolerance: made {other if self.alike is False else 'on an unnamed processor'}"


def verify(project: Project, scale: str, papers: Iterable[str], seconds: float, seed: int) -> Iterator[Recomputed]:
    """Compute a random sample of published records again.

    Args:
        project: whose plan says how.
        scale: of the records.
        papers: whose records are drawn from.
        seconds: that the records drawn took together, at most, when they were made; one is always drawn.
        seed: of the draw.

    Raises:
        ConfigError: nothing that fits the plan is published, or an archive is damaged.
    """
    plan = project.plan(scale)
    archives = list(read_archives(project, scale, papers))
    records = {path: record for each in archives for path, record in each.records.items()}
    tensors = {path: content for each in archives for path, content in each.tensors.items()}
    fitting = {
        path: plan.jobs[path]
        for path, record in records.items()
        if path in plan.jobs and staleness(plan.jobs[path], record) is None and repeatable(record)
    }
    ready = {path: job for path, job in fitting.items() if all(used.path in records for used in job.uses.values())}
    if not ready:
        raise ConfigError(f"published/{scale}: no record that fits the plan; publish the scale again")
    for path in drawn({path: records[path].cost.wall_s for path in ready}, seconds, seed):
        with tempfile.TemporaryDirectory() as scratch:
            yield again(ready[path], records, Path(scratch), tensors)


def drawn(costs: Mapping[str, float], seconds: float, seed: int) -> list[str]:
    """Paths in random order, as many as fit into a time, and at least one.

    >>> drawn({"a": 5.0, "b": 5.0, "c": 100.0}, seconds=11, seed=0)
    ['a', 'b']
    """
    order = sorted(costs)
    random.Random(seed).shuffle(order)
    chosen: list[str] = []
    left = seconds
    for path in order:
        if costs[path] <= left:
            chosen.append(path)
            left -= costs[path]
    return sorted(chosen) or [min(order, key=costs.__getitem__)]


def again(
    job: Job, records: Mapping[str, Record], root: Path, tensors: Mapping[str, bytes] = MappingProxyType({})
) -> Recomputed:
    """Run a job in a folder that holds the records that it reads, and compare.

    Args:
        job: the job.
        records: its own, and those that it reads, by path.
        root: an empty folder.
        tensors: files of tensors beside records that it reads, by the records' paths.
    """
    for used in job.uses.values():
        record = records[used.path]
        if record.tensors is not None and used.path in tensors:
            atomic_write((root / used.path).with_name(record.tensors.file), tensors[used.path])
        write_record(root / used.path, record)
    return compared(job.path, run_job(job, root, Placement(device="cpu")), records[job.path])


def compared(path: str, here: Record, published: Record) -> Recomputed:
    """A record that was computed here beside the published one."""
    alike = _surroundings(published) == _surroundings(here) if published.provenance.processor else None
    ours, theirs = numbers(here), numbers(published)
    if ours.keys() != theirs.keys():
        return Recomputed(path, math.inf, ("the outcomes",), alike)
    differences = [_difference(value, theirs[place]) for place, value in ours.items()]
    return Recomputed(path, max(differences, default=0.0), _beyond(ours, theirs), alike)


def _surroundings(record: Record) -> tuple[str | None, ...]:
    """The parts of the provenance that roundings depend on."""
    made = record.provenance
    return made.processor, made.device, made.versions.get("torch")


def numbers(record: Record) -> dict[Place, float | None]:
    """The numbers of a record that anyone gets again, by seed, setting, outcome, metric and place."""
    return {
        Place(replicate.seed, str(sorted(replicate.setting.items())), replicate.outcome.status, name, index): number
        for replicate in record.replicates
        for name, value in replicate.metrics.items()
        if UNREPEATABLE not in record.metrics[name].unit
        for index, number in enumerate(value if isinstance(value, list) else [value])
    }


def repeatable(record: Record) -> bool:
    """Whether a record holds a number that anyone gets again."""
    return any(value is not None for value in numbers(record).values())


def _difference(first: float | None, second: float | None) -> float:
    if first == second:
        return 0.0
    return math.inf if first is None or second is None else abs(first - second)


def _beyond(ours: Mapping[Place, float | None], theirs: Mapping[Place, float | None]) -> tuple[str, ...]:
    """Metrics whose means, in any setting, differ by more than :data:`ERRORS` standard errors."""
    groups: dict[tuple[str, str], list[Place]] = {}
    for place in theirs:
        groups.setdefault((place.metric, place.setting), []).append(place)
    return tuple(dict.fromkeys(name for (name, _), places in groups.items() if not _close(places, ours, theirs)))


def _close(places: Sequence[Place], ours: Mapping[Place, float | None], theirs: Mapping[Place, float | None]) -> bool:
    here, there = _known(places, ours), _known(places, theirs)
    if not len(here) or not len(there):
        return len(here) == len(there)
    error = float(there.std(ddof=1)) / math.sqrt(len(there)) if len(there) > 1 else 0.0
    allowed = ERRORS * error + ROUNDING * abs(float(there.mean()))
    return abs(float(here.mean()) - float(there.mean())) <= allowed


def _known(places: Collection[Place], values: Mapping[Place, float | None]) -> Array:
    """The numbers at some places that are not null."""
    return np.array([value for place in places if (value := values[place]) is not None], dtype=float)
