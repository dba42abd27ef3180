"""Coverage of a verdict: how much of the paper's own grid a scale computes, as derived from both plans."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leakbench.jobs.base import Job, Variant
from leakbench.registry import Component

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
MOST_NAMES = 5
"""Parameters that are named; more are counted."""
_ORGANISATION = {"split_seeds"}
"""Parameters that change no number."""

DIFFER = {
    "dataset": "data set settings differ",
    "model": "model settings differ",
    "defense": "defense settings differ",
    "attack": "attack settings differ",
    "kind": "protocol differs",
}
"""Kinds of component, with what is said of those whose parameters are not the paper's under the same label."""

Cell = tuple[str, str, str, str, tuple[tuple[str, object], ...]]
Group = tuple[str, ...]


def coverage(plan: Plan, whole: Plan, paper: str, experiments: Iterable[str]) -> str:
    """Describe how much of the paper's grid some experiments compute.

    Args:
        plan: of a scale.
        whole: of :data:`PAPER_SCALE`.
        paper: its name.
        experiments: those that a claim reads; the ones that the scale leaves out count in full.

    Returns:
        Such as ``lenet5 on cifar10: 4 of 48 cells, 3 of 10 seeds, 1,500 of 10,000 steps; attack settings differ:
        regularisers``. A cell is a data set, a model, a defense in one setting and an attack. Of each amount the
        experiment counts that has the smallest part of its own. Empty where nothing is computed, or the paper has no
        such grid.
    """
    names = [name for name in experiments if paper in whole.papers and name in whole.papers[paper].experiments]
    theirs = [job for name in names for job in whole.experiment_jobs(paper, name)]
    known = plan.papers[paper].experiments
    ours = [job for name in names if name in known for job in plan.experiment_jobs(paper, name)]
    if not (ours and theirs):
        return ""
    cells, all_cells = ({cell for job in jobs for cell in _cells(job)} for jobs in (ours, theirs))
    parts = [] if cells >= all_cells else [f"{len(cells & all_cells):,} of {len(all_cells):,} cells"]
    parts += _fewer(_amounts(ours), _amounts(theirs))
    remarks = [", ".join(parts)] if parts else []
    remarks += _different(_settings(ours), _settings(theirs))
    if not remarks:
        return WHOLE
    where = dict.fromkeys(f"{job.model.label} on {job.dataset.label}" for job in ours)
    return f"{', '.join(where)}: {'; '.join(remarks)}"


def _cells(job: Job) -> Iterator[Cell]:
    attack = job.attack.label if job.attack else ""
    for setting, _ in job.defense.settings():
        yield job.dataset.label, job.model.label, job.defense.label, attack, tuple(sorted(setting.items()))


def _amounts(jobs: Iterable[Job]) -> dict[str, dict[Group, int]]:
    """The largest of each amount, by experiment and kind of job, or attack."""
    most: dict[str, dict[Group, int]] = {}
    for job in jobs:
        protocol = (job.experiment, job.kind.name)
        components: list[tuple[Group, Component]] = [(protocol, each.kind) for _, each in job.combinations()]
        if job.attack:
            components.append(((job.experiment, "", job.attack.label), job.attack.single()))
        for group, component in components:
            for name, value in _leaves(component.model_dump()):
                if name in AMOUNTS and isinstance(value, int):
                    groups = most.setdefault(name, {})
                    groups[group] = max(groups.get(group, 0), value)
    return most


def _fewer(ours: Mapping[str, Mapping[Group, int]], theirs: Mapping[str, Mapping[Group, int]]) -> Iterator[str]:
    """Amounts of which some experiment has less than the paper's: that which has the smallest part."""
    for field, noun in AMOUNTS.items():
        asked = theirs.get(field, {})
        pairs = [(most, asked[group]) for group, most in ours.get(field, {}).items() if group in asked]
        least, whole = min(pairs, key=lambda pair: pair[0] / max(pair[1], 1), default=(0, 0))
        if least < whole:
            yield f"{least:,} of {whole:,} {noun}"


def _settings(jobs: Iterable[Job]) -> dict[tuple[str, Group], dict[str, Any]]:
    """Parameters that are no amounts, by kind of component and label; those of a protocol by experiment and kind."""
    settings: dict[tuple[str, Group], dict[str, Any]] = {}
    for job in jobs:
        variants: dict[str, Variant[Any] | None]
        variants = {"dataset": job.dataset, "model": job.model, "defense": job.defense, "attack": job.attack}
        for axis, variant in variants.items():
            if variant is not None and (axis, (variant.label,)) not in settings:
                values = dict(_leaves(variant.first.model_dump())) | {"name": variant.component.name}
                settings[axis, (variant.label,)] = _no_amounts(values, variant.sweep)
        values = dict(_leaves(job.kind.model_dump()))
        values |= {name: tuple(each) for name, each in (job.kinds.sweep if job.kinds else {}).items()}
        settings.setdefault(("kind", (job.experiment, job.kind.name)), _no_amounts(values, ()))
    return settings


def _no_amounts(values: Mapping[str, Any], swept: Iterable[str]) -> dict[str, Any]:
    """Parameters that neither count as amounts nor, being swept by a defense, make cells."""
    return {name: value for name, value in values.items() if name not in {*AMOUNTS, *_ORGANISATION, *swept}}


def _different(
    ours: Mapping[tuple[str, Group], Mapping[str, Any]], theirs: Mapping[tuple[str, Group], Mapping[str, Any]]
) -> Iterator[str]:
    """The parameters that differ under one label, by kind of component."""
    for axis, words in DIFFER.items():
        names: dict[str, None] = {}
        for (of, label), values in ours.items():
            if of == axis and (others := theirs.get((of, label))) is not None:
                shared = values.keys() & others.keys() if axis == "defense" else values.keys() | others.keys()
                names |= dict.fromkeys(
                    name.partition(".")[0] for name in sorted(shared) if values.get(name) != others.get(name)
                )
        if names:
            more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
            yield f"{words}: {', '.join([*names][:MOST_NAMES] + more)}"


def _leaves(values: Mapping[str, Any], inside: str = "") -> Iterator[tuple[str, Any]]:
    """Parameters of a component; those of the attack that an adaptive one wraps count as its own."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, "" if name == "attack" else f"{name}.")
        else:
            yield f"{inside}{name}", value
