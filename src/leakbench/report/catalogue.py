"""Rows of ``leakbench list`` and ``leakbench claims``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, MODEL_INVERSIONS
from leakbench.errors import UnknownName
from leakbench.planning.plan import Plan
from leakbench.planning.project import Project
from leakbench.planning.variants import REGISTRIES
from leakbench.registry import Registry
from leakbench.report.artifacts import artifacts, artifacts_at
from leakbench.report.claims import check_readers, claims_of
from leakbench.report.findings import MARKS, tally
from leakbench.report.judging import claims_path, judged, verdict_rows
from leakbench.report.tidy import read_frame

COMPONENTS: dict[str, Registry[Any]] = REGISTRIES | {
    "membership_attacks": MEMBERSHIP_ATTACKS,
    "model_inversions": MODEL_INVERSIONS,
}


def catalogue(project: Project, what: str, scale: str | None = None) -> list[dict[str, Any]]:
    """The rows of a listing: each has a ``name``; all values are of JSON types.

    Args:
        project: whose configuration is listed.
        what: a key of :data:`COMPONENTS`, or papers, experiments, artifacts, or compared: where ``compare`` puts
            defenses.
        scale: of all but components; the configured one by default.

    Raises:
        ConfigError: no such scale, or a claim, figure or table reads a label that is in no grid.
    """
    scale = scale or project.settings.scale
    if what in COMPONENTS:
        return list(_components(COMPONENTS[what]))
    plan = project.plan(scale, where="--scale")
    check_readers(plan)
    if what == "experiments":
        return [
            {
                "name": name,
                "paper": paper,
                "scale": scale,
                "jobs": len(plan.experiment_jobs(paper, name)),
                "title": spec.title,
            }
            for paper, content in plan.papers.items()
            for name, spec in content.experiments.items()
        ]
    if what == "papers":
        return [_paper(project, scale, name) for name in plan.papers]
    if what == "compared":
        return [
            {
                "name": each.label,
                "paper": each.paper,
                "experiment": each.experiment,
                "kind": each.kind,
                "artifact": "",
                "left out": each.left_out or "",
            }
            for each in plan.comparisons()
        ] + list(_artifacts_with_compared(plan))
    return [
        {
            "name": entry.name,
            "paper": entry.paper,
            "kind": entry.kind,
            "number": entry.number,
            "path": entry.paths(scale)[0],
            "title": entry.title,
        }
        for entry in artifacts_at(plan)
    ]


def _components(registry: Registry[Any]) -> Iterator[dict[str, Any]]:
    for name in registry:
        component = registry.get(name)
        yield {
            "name": name,
            "version": component.version,
            "parameters": {
                key: field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
                for key, field in component.model_fields.items()
            },
            "summary": component.summary(),
        }


def _paper(project: Project, scale: str, name: str) -> dict[str, Any]:
    """Counts of a paper's artifacts and claims, and of the verdicts that a run of the scale has written."""
    kinds = Counter(entry.kind for entry in artifacts() if entry.paper == name)
    row = {"name": name, "figures": kinds["figure"], "tables": kinds["table"], "claims": len(claims_of(name))}
    written = claims_path(scale, name)
    if not (project.root / written).is_file():
        return row | dict.fromkeys(MARKS, "")
    frame = read_frame(project.root, written, f"judge {written}", usecols=["verdict", "survives"])
    return row | {each: tally(frame["verdict"].tolist(), frame["survives"].tolist(), each) for each in MARKS}


def _artifacts_with_compared(plan: Plan) -> Iterator[dict[str, Any]]:
    """Figures and tables that read experiments which a compared defense joins."""
    comparisons = plan.comparisons()
    joined = {(each.label, each.paper, each.experiment) for each in comparisons if each.left_out is None}
    for label in dict.fromkeys(each.label for each in comparisons):
        for entry in artifacts_at(plan):
            names = [name for name in entry.experiments if (label, entry.paper, name) in joined]
            if names:
                where = {"name": label, "paper": entry.paper, "experiment": ", ".join(names), "kind": ""}
                yield where | {"artifact": entry.name, "left out": entry.leaves_out}


def verdicts(project: Project, scale: str | None = None, paper: str | None = None) -> list[dict[str, Any]]:
    """A verdict for each claim of every configured paper, or of one, from the tidy tables that exist.

    Raises:
        UnknownName: no such paper is configured.
    """
    scale = scale or project.settings.scale
    plan = project.plan(scale, where="--scale")
    if paper is not None and paper not in plan.papers:
        raise UnknownName("paper", paper, plan.papers, "--paper")
    return [
        {"paper": name, "scale": scale, **row}
        for name in ([paper] if paper else plan.papers)
        for row in verdict_rows(judged(project, scale, name))
    ]
