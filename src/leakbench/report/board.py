"""The lines of the leaderboard, as its Figure 1 shows them."""

from __future__ import annotations

from typing import Any

from leakbench.errors import UnknownName
from leakbench.lazy import pd
from leakbench.planning.project import Project
from leakbench.report.artifacts import FIGURES
from leakbench.report.tidy import existing

SHOWN = ("tier", "defense", "setting", "leakage_db", "worst_tenth_db", "identified", "loss", "strongest", "excluded")
"""Numbers of a line that people read first."""


def board_path(scale: str) -> str:
    """Path of the numbers of Figure 1, relative to the project's root."""
    return f"{FIGURES}/{scale}/leaderboard/fig01.csv"


def board(project: Project, scale: str, track: str | None = None) -> list[dict[str, Any]]:
    """Every line of the leaderboard, with None for what is not known.

    Args:
        project: whose figures hold them.
        scale: that was run.
        track: its letter; all by default.

    Raises:
        RecordError: the figure was not drawn.
        UnknownName: it has no such track.
    """
    path = board_path(scale)
    rows = pd.read_csv(existing(project.root, path, f"draw {path.replace('.csv', '.pdf')}"))
    known = rows["track"].unique().tolist()
    if track is not None and track not in known:
        raise UnknownName("track", track, known, "--track")
    chosen = rows if track is None else rows[rows["track"] == track]
    lines = chosen.astype(object).where(chosen.notna(), None).to_dict("records")
    return [{str(name): value for name, value in line.items()} for line in lines]
