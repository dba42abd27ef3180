"""What ``leakbench list`` shows."""

from __future__ import annotations

from typing import Any

from leakbench.experiments import REGISTRIES, Project
from leakbench.report.artifacts import artifacts


def catalogue(project: Project, what: str, scale: str | None = None) -> list[dict[str, Any]]:
    """The rows of a listing: each has a ``name``; all values are of JSON types.

    Args:
        what: datasets, models, defenses, attacks, experiments or artifacts.
        scale: of experiments and artifacts; the configured one by default.
    """
    scale = scale or project.settings.scale
    if what in REGISTRIES:
        registry = REGISTRIES[what]
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


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Rows as a table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for column in rows[0] if rows else ():
        table.add_column(column)
    for row in rows:
        table.add_row(*(", ".join(value) if isinstance(value, dict) else str(value) for value in row.values()))
    Console().print(table)
