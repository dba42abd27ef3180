"""The lines of the leaderboard, as its Figure 1 shows them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from leakbench.errors import RecordError, UnknownName
from leakbench.planning.project import Project
from leakbench.report.artifacts import FIGURES
from leakbench.report.terminal import print_rows
from leakbench.report.tidy import read_frame

SHOWN = (
    "published",
    "tier",
    "defense",
    "setting",
    "leakage",
    "unit",
    "worst_tenth",
    "identified",
    "loss",
    "strongest",
    "excluded",
)
"""Numbers of a line that people read first."""
HEADS = {"loss": "points lost"}
"""Heads of columns that are printed in another unit than they are kept in."""


def lines_path(scale: str) -> str:
    """Path of the numbers of Figure 1, relative to the project's root."""
    return f"{FIGURES}/{scale}/leaderboard/fig01.csv"


def lines(project: Project, scale: str, track: str | None = None) -> list[dict[str, Any]]:
    """Every line of the leaderboard, with None for what is not known.

    Args:
        project: whose figures hold them.
        scale: that was run.
        track: its letter; all by default.

    Raises:
        RecordError: the figure was not drawn.
        UnknownName: it has no such track.
    """
    path = lines_path(scale)
    if not (project.root / path).is_file():
        raise RecordError(
            f"{path}: missing; draw it with `snakemake --cores all --config scale={scale} -- "
            f"{path.replace('.csv', '.pdf')}`, or see published lines with `leakbench board --history`"
        )
    rows = read_frame(project.root, path, f"draw {path.replace('.csv', '.pdf')}")
    tracks = rows["track"].unique().tolist()
    if track is not None and track not in tracks:
        raise UnknownName("track", track, tracks, "--track")
    chosen = rows if track is None else rows[rows["track"] == track]
    return [known(line) for line in chosen.to_dict("records")]


def known(line: Mapping[Any, Any]) -> dict[str, Any]:
    """A line as JSON takes it: None for NaN and infinities, such as the loss of training that diverged."""
    return {
        str(name): None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in line.items()
    }


def print_lines(every: Sequence[Mapping[str, Any]]) -> None:
    """Print a table per track, data set, model and cohort."""
    tables: dict[str, list[dict[str, Any]]] = {}
    for line in every:
        cell = [f"track {line['track']} (version {line['version']})", line["dataset"], line["model"]]
        cell += [f"{line['cohort']:.0f} clients a round"] if line["cohort"] else []
        shown = {name: line[name] for name in SHOWN if name in line}
        if shown.get("loss") is not None:
            shown["loss"] *= 100
        tables.setdefault(", ".join(cell), []).append({HEADS.get(name, name): _short(shown[name]) for name in shown})
    for title, rows in tables.items():
        print_rows(title, rows)


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else "" if value is None else str(value)
