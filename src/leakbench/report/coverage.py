"""Coverage of a verdict: how much of the paper's own grid a scale computes, as derived from both plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leakbench.jobs.base import Job

if TYPE_CHECKING:
    from leakbench.planning.plan import Plan

PAPER_SCALE = "full"
"""The scale whose grid is the papers' own."""

AMOUNTS: Mapping[str, str] = {
    "seeds": "seeds",
    "clients": "clients",
    "images": "images",
    "images_per_client": "images per client",
    "records": "records per client",
    "batch_size": "samples per batch",
    "steps": "steps",
    "epochs": "epochs",
    "rounds": "rounds",
    "local.steps": "local steps",
    "candidates": "candidates",
    "attempts": "attempts",
    "iterations": "iterations of the attack",
    "repetitions": "repetitions",
}
"""Fields of protocols and attacks of which more is closer to the paper, with their nouns."""

WHOLE = "the paper's grid"

Cell = tuple[str, str, str, str, tuple[tuple[str, object], ...]]


def coverage(plan: Plan, whole: Plan, paper: str, experiments: Iterable[str]) -> str:
    """Describe how much of the paper's grid some experiments compute.

    Args:
        plan: of a scale.
        whole: of :data:`PAPER_SCALE`.
        paper: its name.
        experiments: those that a claim reads; the ones that the scale leaves out count in full.

    Returns:
        Such as ``lenet5 on cifar10: 4 of 48 cells, 3 of 10 seeds, 1,500 of 10,000 steps``. A cell is a data set, a
        model, a defense in one setting and an attack. Empty where nothing is computed, or the paper has no such grid.
    """
    names = [name for name in experiments if paper in whole.papers and name in whole.papers[paper].experiments]
    theirs = [job for name in names for job in whole.experiment_jobs(paper, name)]
    known = plan.papers[paper].experiments
    ours = [job for name in names if name in known for job in plan.experiment_jobs(paper, name)]
    if not (ours and theirs):
        return ""
    cells, all_cells = ({cell for job in jobs for cell in _cells(job)} for jobs in (ours, theirs))
    parts = [] if cells >= all_cells else [f"{len(cells & all_cells):,} of {len(all_cells):,} cells"]
    amounts, all_amounts = _amounts(ours), _amounts(theirs)
    for field, noun in AMOUNTS.items():
        most, asked = amounts.get(field), all_amounts.get(field)
        if most is not None and asked is not None and most < asked:
            parts.append(f"{most:,} of {asked:,} {noun}")
    if not parts:
        return WHOLE
    where = dict.fromkeys(f"{job.model.label} on {job.dataset.label}" for job in ours)
    return f"{', '.join(where)}: {', '.join(parts)}"


def _cells(job: Job) -> Iterator[Cell]:
    attack = job.attack.label if job.attack else ""
    for setting, _ in job.defense.settings():
        yield job.dataset.label, job.model.label, job.defense.label, attack, tuple(sorted(setting.items()))


def _amounts(jobs: Iterable[Job]) -> dict[str, int]:
    """The largest of each amount."""
    most: dict[str, int] = {}
    for job in jobs:
        components = [job.kind, *([job.attack.single()] if job.attack else [])]
        for name, value in (pair for each in components for pair in _fields(each.model_dump(), "")):
            most[name] = max(most.get(name, 0), value)
    return most


def _fields(values: Mapping[str, Any], inside: str) -> Iterator[tuple[str, int]]:
    """Amounts of a component; those of the attack that an adaptive one wraps count as its own."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _fields(value, "" if name == "attack" else f"{name}.")
        elif f"{inside}{name}" in AMOUNTS and isinstance(value, int):
            yield f"{inside}{name}", value
