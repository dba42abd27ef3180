"""Staged inputs of a plan: data sets, vocabularies, weights; whether they are there, and how to get them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from leakbench.data.base import DATASETS, ImageDataset
from leakbench.data.staging import stage, staged_dataset, staged_vocabulary
from leakbench.data.text import VOCABULARY, BertVocabulary, TextDataset
from leakbench.errors import LeakbenchError, MissingData
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Job
from leakbench.metrics.image import LPIPS_SIDE, PERCEPTUAL
from leakbench.metrics.staging import WEIGHTS, stage_weights, staged_weights
from leakbench.models.staging import stage_model, staged_model
from leakbench.planning.plan import Plan
from leakbench.staged.manifest import Staged

State = Literal["staged", "ships with the installation", "missing", "broken"]


@dataclass(frozen=True)
class Need:
    """An input of jobs of a plan.

    Attributes:
        name: its name for ``leakbench stage``.
        papers: those whose jobs read it.
        staged: how it is staged; None for what ships with the installation.
    """

    name: str
    papers: tuple[str, ...]
    staged: Staged | None


@dataclass(frozen=True)
class Availability:
    """The state of a need on this machine.

    Attributes:
        size: bytes on disk if it is there, else bytes to fetch; None if nobody knows.
        faults: of files that are there, and what they cannot be compared with.
    """

    need: Need
    state: State
    size: int | None
    faults: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether jobs can read it."""
        return self.state in ("staged", "ships with the installation")


def needs(plan: Plan) -> list[Need]:
    """Inputs of the jobs of a plan: data sets first, by name."""
    papers: dict[str, dict[str, None]] = {}
    for job in plan.jobs.values():
        for name in _read(job):
            papers.setdefault(name, {})[job.paper] = None
    names = sorted(papers, key=lambda name: (name not in DATASETS, name))
    return [Need(name, tuple(papers[name]), _staged(name)) for name in names]


def _read(job: Job) -> Iterator[str]:
    """Names of a job's inputs, as ``leakbench stage`` takes them."""
    dataset = job.dataset.first
    yield dataset.name
    if isinstance(dataset, TextDataset) and isinstance(dataset.vocabulary, BertVocabulary):
        yield VOCABULARY
    if isinstance(job.kind, AttackJob) and isinstance(dataset, ImageDataset) and dataset.size >= LPIPS_SIDE:
        yield from PERCEPTUAL
    for _, model in job.model.settings():
        if weights := getattr(model, "weights", None):
            yield weights


def _staged(name: str) -> Staged | None:
    if name in WEIGHTS:
        return staged_weights(name)
    if name == VOCABULARY:
        return staged_vocabulary()
    return staged_model(name) if "/" in name else staged_dataset(name)


def fetch(name: str) -> None:
    """Stage something by its name, and print what was done.

    Raises:
        UnknownName: nothing has this name.
        MissingData: it cannot be fetched from here, or what is there is broken.
        OSError: its folder cannot be written.
    """
    if name in WEIGHTS:
        print(stage_weights(name))
    elif "/" in name:  # the next two print it themselves
        stage_model(name)
    else:
        stage(name)
    if staged := _staged(name):
        for difference in staged.differing():
            print(difference)


def fetch_all(wanted: Iterable[Need]) -> None:
    """Stage all needs, and go on after a failure, which is printed."""
    for need in wanted:
        if need.staged is not None:
            try:
                fetch(need.name)
            except (LeakbenchError, OSError) as error:
                print(f"{need.name}: {error}", file=sys.stderr)


def look(need: Need, *, check: bool) -> Availability:
    """Look whether a need is there; touches no network.

    Args:
        need: an input of a plan.
        check: read all files, and compare them with published digests, and with those noted when they were staged;
            without, the noted ones are compared with the published ones.
    """
    staged = need.staged
    if staged is None:
        return Availability(need, "ships with the installation", None)
    try:
        files = staged.files()
        size = sum(path.stat().st_size for path in files)
        faults = staged.faults() if check else staged.differing()
        unnoted = staged.unnoted() if check else []
        unpublished = staged.unpublished() if check else []
    except (MissingData, OSError) as error:
        anything = staged.folder.is_dir() and not staged.digest
        return Availability(need, "missing", staged.download, (str(error),) if anything else ())
    if faults:
        return Availability(need, "broken", size, tuple(faults))
    remarks = []
    if unnoted:
        files_of = f"{staged.folder}: no digest was noted of {', '.join(unnoted)}"
        remarks.append(f"{files_of}; `leakbench stage {need.name}` notes what is there")
    if noted := [name for name in unpublished if name not in unnoted]:
        files_of = f"{staged.folder}: no digest was published of {', '.join(noted)}"
        remarks.append(f"{files_of}; compared with what was noted when they were first staged here")
    return Availability(need, "staged", size, tuple(remarks))


def to_do(availability: Availability) -> str:
    """Instructions to get a need that is not there: a command, and steps before it."""
    need = availability.need
    if availability.ready or need.staged is None:
        return ""
    command = f"`{shlex.join(['leakbench', 'stage', need.name])}`"
    if availability.state == "broken":
        return f"delete the files named below, then {command}"
    if page := need.staged.accept:
        return f"accept the terms at {page}, then `hf auth login` and {command}"
    return command
