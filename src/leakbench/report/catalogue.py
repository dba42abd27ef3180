"""What ``leakbench list`` and ``leakbench claims`` show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from leakbench.attacks.released.base import MEMBERSHIP_ATTACKS, MODEL_INVERSIONS
from leakbench.errors import UnknownName
from leakbench.experiments import REGISTRIES, Plan, Project
from leakbench.registry import Registry
from leakbench.report.artifacts import artifacts
from leakbench.report.claims import MARKS, SMOKE_WARNING, in_numbers, judged, verdict_rows

COMPONENTS: dict[str, Registry[Any]] = REGISTRIES | {
    "membership_attacks": MEMBERSHIP_ATTACKS,
    "model_inversions": MODEL_INVERSIONS,
}


def catalogue(project: Project, what: str, scale: str | None = None) -> list[dict[str, Any]]:
    """The rows of a listing: each has a ``name``; all values are of JSON types.

    Args:
        what: a key of :data:`COMPONENTS`, or experiments, artifacts or compared: where ``compare`` puts defenses.
        scale: of experiments, artifacts and comparisons; the configured one by default.
    """
    scale = scale or project.settings.scale
    if what in COMPONENTS:
        registry = COMPONENTS[what]
        return [
            {
                "name": name,
                "version": registry.get(name).version,
                "parameters": {
                    key: field.annotation.__name__ if isinstance(field.annotation, type) else str(field.annotation)
                    for key, field in registry.get(name).model_fields.items()
                },
                "summary": registry.get(name).summary(),
            }
            for name in registry
        ]
    plan = project.plan(scale, where="--scale")
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
    if what == "compared":
        return [
            {
                "name": found.label,
                "paper": found.paper,
                "experiment": found.experiment,
                "kind": found.kind,
                "artifact": "",
                "left out": found.left_out or "",
            }
            for found in plan.comparisons()
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
        for entry in artifacts()
        if entry.paper in plan.papers
    ]


def _artifacts_with_compared(plan: Plan) -> Iterator[dict[str, Any]]:
    """Figures and tables that read experiments which a compared defense joins."""
    joined = {(found.label, found.paper, found.experiment) for found in plan.comparisons() if found.left_out is None}
    for label in dict.fromkeys(found.label for found in plan.comparisons()):
        for entry in artifacts():
            found = [name for name in entry.experiments if (label, entry.paper, name) in joined]
            if found:
                where = {"name": label, "paper": entry.paper, "experiment": ", ".join(found), "kind": ""}
                yield where | {"artifact": entry.name, "left out": entry.leaves_out}


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows as a table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    if not rows:
        Console().print(f"{title}: none")
        return
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(", ".join(value) if isinstance(value, dict) else str(value) for value in row.values()))
    Console().print(table)


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


STYLES = {"reproduced": "bold blue", "contradicted": "bold yellow", "inconclusive": "magenta", "not run": "dim"}


def print_claims(rows: list[dict[str, Any]]) -> None:
    """Verdicts on the terminal: each a sign, a word and a colour."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for paper, scale in dict.fromkeys((row["paper"], row["scale"]) for row in rows):
        table = Table(title=f"claims of {paper}, scale {scale}", show_lines=True)
        for column in ("claim", "verdict", "effect", "statement"):
            table.add_column(column, no_wrap=column in ("claim", "verdict"))
        for row in rows:
            if row["paper"] == paper:
                verdict = Text(f"{MARKS[row['verdict']]} {row['verdict']}", style=STYLES[row["verdict"]])
                statement = Text.assemble(row["statement"], (f" ({row['source']})", "dim"))
                for said in (f"paper: {row['printed']}" if row["printed"] else "", row["meaning"], row["note"]):
                    if said:
                        statement.append(f"\n{said}", style="dim")
                table.add_row(row["claim"], verdict, in_numbers(row["effect"], row["low"], row["high"]), statement)
        console.print(table)
    if any(row["scale"] == "smoke" for row in rows):
        console.print(SMOKE_WARNING)
