"""The history of the leaderboard's lines: when each was first published, and what stood there before.

``published/<scale>/leaderboard/lines.csv`` grows: a line that differs from the last published one of the same defense
on the same board is added with its date, and nothing is taken away. Versions of a track are boards of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.leaderboard.lines import known, lines, lines_path
from leakbench.records import atomic_write
from leakbench.report.published import PUBLISHED, SCALES
from leakbench.report.tidy import existing

if TYPE_CHECKING:
    import datetime

    from leakbench.planning.project import Project

PLACE = ("track", "version", "dataset", "model", "cohort", "defense")
"""Columns that name a line."""
SINCE = "published"
"""The column with the day on which a line was first published."""
DIGITS = 6
"""Significant digits that are kept, and compared."""
UNKEPT = "smoke"
"""The scale whose lines mean nothing, and are not kept."""


def history_path(scale: str) -> str:
    """Path of the published lines, relative to the project's root."""
    return f"{PUBLISHED}/{scale}/leaderboard/lines.csv"


def published_scale(project: Project) -> str | None:
    """The largest scale of which lines are published; None where none are."""
    return next((scale for scale in SCALES if (project.root / history_path(scale)).is_file()), None)


def keep_lines(project: Project, scale: str, day: datetime.date) -> list[str]:
    """Add the lines of a scale that changed to those published, and return the file's path if there are any.

    Nothing is kept of ``smoke``, nor where the leaderboard was not drawn.
    """
    if scale == UNKEPT or not (project.root / lines_path(scale)).is_file():
        return []
    path = project.root / history_path(scale)
    before = history(project, scale) if path.is_file() else []
    last = {_place(line): line for line in before}
    fresh = [
        {SINCE: day.isoformat(), **line} for line in lines(project, scale) if _differs(line, last.get(_place(line)))
    ]
    if not fresh:
        return []
    path.parent.mkdir(parents=True, exist_ok=True)
    text = pd.DataFrame([*before, *fresh]).to_csv(index=False, float_format=f"%.{DIGITS}g")
    atomic_write(path, text.encode())
    return [history_path(scale)]


def history(project: Project, scale: str, track: str | None = None) -> list[dict[str, Any]]:
    """Published lines in the order in which they were published, with None for what is not known.

    Args:
        project: whose ``published/`` holds them.
        scale: that was published.
        track: its letter; all by default.

    Raises:
        RecordError: no lines of the scale are published.
    """
    rows = pd.read_csv(existing(project.root, history_path(scale), f"publish --scale {scale}"))
    every = (known(line) for line in rows.to_dict("records"))
    return [line for line in every if track in (None, line["track"])]


def _place(line: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_text(line[name]) for name in PLACE)


def _differs(line: Mapping[str, Any], last: Mapping[str, Any] | None) -> bool:
    """Whether a line is not the last published one, in what both say."""
    return last is None or any(_text(line[name]) != _text(last[name]) for name in line.keys() & last.keys())


def _text(value: Any) -> str:
    """A value to :data:`DIGITS` digits; a column without gaps is read as whole numbers, and one with gaps is not."""
    return f"{value:.{DIGITS}g}" if isinstance(value, (int, float)) else str(value)
