"""Figure 5: the tier of every defense on every board, in one picture for a column of print."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from leakbench.lazy import np, pd
from leakbench.leaderboard.board import Board, Row, boards
from leakbench.leaderboard.figures import TIERED, cell_of, figure, percent, shipped
from leakbench.leaderboard.tracks import ALLOWED
from leakbench.report.artifacts import Tables
from leakbench.report.plots import Drawing
from leakbench.report.style import REFERENCE_COLOUR, panels
from leakbench.report.under_attacked import COLUMN, DAGGER

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL = (0.5, 0.19)
"""Width and height of a cell, in inches."""
COLUMN_WIDTH = 3.4
"""Width of a column of print, in inches."""
LABELS = 1.6
"""Width of the names of defenses, in inches."""
LINE, LETTERS = 0.11, 22
"""Height of a line that names a track, in inches, and its letters per inch."""
DARK = 0.5
"""Darkness of a cell from which its number is white."""


@figure(
    5,
    title="Tiers at a glance",
    leads=True,
    caption="A column per board, a line per defense: its tier, and its leakage (dB, in track T %) at a loss of at most "
    f"{percent(ALLOWED)} percentage points of accuracy. Shades run over the tiers of each board, from dark (the first, "
    "which leaks least) to light. Grey, in brackets: excluded, since it loses more in every setting. Empty: nothing "
    f"applies. Bold: compared. Defenses stand in the order of the first board; tracks are not averaged. {TIERED}",
)
def fig05(tables: Tables) -> Drawing:
    """One panel."""
    every = boards(tables)
    placed = [{row.entry.label: row for row in board.rows} for board in every]
    defenses = list(dict.fromkeys(label for of_board in placed for label in of_board))
    width = max(COLUMN_WIDTH, LABELS + CELL[0] * len(every))
    tracks = dict.fromkeys(f"{board.track.key}: {board.track.name}" for board in every)
    below = [line for track in tracks for line in textwrap.wrap(track, round(LETTERS * (width - LABELS)))]
    height = 0.8 + CELL[1] * (len(defenses) + 2) + LINE * len(below)
    drawn, (ax,) = panels(1, width=width, height=height)
    tints = np.array([[_tint(of_board, label) for of_board in placed] for label in defenses])
    ax.imshow(tints, cmap="YlGnBu", vmin=0, vmax=1, aspect="auto")
    for line, label in enumerate(defenses):
        for column, of_board in enumerate(placed):
            if label in of_board:
                _write(ax, column, line, of_board[label], tints[line, column])
    ax.set_yticks(range(len(defenses)), defenses, fontsize=7)
    for tick in ax.get_yticklabels():
        if tick.get_text() not in shipped():
            tick.set_fontweight("bold")
    ax.set_xticks(range(len(every)), [_head(board) for board in every], fontsize=6)
    ax.xaxis.tick_top()
    ax.set_xlabel("\n".join(below), fontsize=6, loc="left")
    ax.tick_params(length=0)
    ax.grid(visible=False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    rows: list[dict[str, Any]] = [
        cell_of(board)
        | {"defense": label, "tier": row.tier, "excluded": row.entry.excluded, COLUMN: _under_attacked(row)}
        for board, of_board in zip(every, placed, strict=True)
        for label, row in of_board.items()
    ]
    return Drawing(drawn, pd.DataFrame(rows))


def _head(board: Board) -> str:
    """The board above its column: ``A``, the model, and the cohort."""
    model = board.model.replace("-", "-\n", 1)
    return "\n".join(filter(None, (board.track.key, model, f"{board.cohort} clients" if board.cohort else "")))


def _tint(of_board: dict[str, Row], label: str) -> float:
    """Darkness of a cell, from 0.9 for the first tier to 0.05 for the last; NaN, which is white, without a rank."""
    row = of_board.get(label)
    if row is None or row.tier is None or row.entry.excluded:
        return np.nan
    last = max(other.tier or 1 for other in of_board.values())
    return 0.9 - 0.85 * (row.tier - 1) / max(1, last - 1)


def _write(ax: Axes, column: int, line: int, row: Row, tint: float) -> None:
    """Write the leakage into a cell, in brackets where the defense is excluded."""
    shown = row.entry.shown
    if shown is None or shown.leakage is None:
        return
    number = f"{shown.leakage.mean.value:.1f}"
    if row.entry.excluded:
        text, ink = f"({number})", REFERENCE_COLOUR
    else:
        text, ink = number, "white" if tint > DARK else "black"
        ax.text(column - 0.44, line, str(row.tier), ha="left", va="center", fontsize=5.5, color=ink)
    mark = DAGGER if _under_attacked(row) else ""
    ax.text(column + 0.1, line, text + mark, ha="center", va="center", fontsize=6.5, color=ink)


def _under_attacked(row: Row) -> bool:
    return row.entry.shown is not None and row.entry.shown.under_attacked
