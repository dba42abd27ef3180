"""Attackers' budgets, and the leakage that they reach: Figure 4 and Table 4, of the largest cohort alone."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leakbench.lazy import np, pd
from leakbench.leaderboard.board import Board, Budget, boards
from leakbench.leaderboard.figures import (
    ATTACKS,
    IN_A_ROW,
    LARGEST,
    STRONGEST,
    cell_of,
    entitle,
    figure,
    largest,
    leaked,
)
from leakbench.leaderboard.tables import table
from leakbench.report.artifacts import Tables
from leakbench.report.plots import Drawing
from leakbench.report.style import REFERENCE_COLOUR, panels, plain_ticks
from leakbench.report.wording import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COUNTED = (
    "Gradients are counted as planned, those of choosing a strength and of learning from auxiliary samples included, "
    "further tries of line searches not; where defenses differ, the most. Attacks that miss their gate are left out."
)
MARKERS = "osD^v<>PXp*hdH8"
"""Markers of attacks, the cheapest first."""


@dataclass(frozen=True)
class Spent:
    """An attack on the ranked defenses of a board, each at its setting of Figure 1.

    Attributes:
        attack: its label.
        budget: per victim: the most gradients and auxiliary samples, since wrappers differ between defenses, and the
            median of the seconds.
        leakage: of each defense that it applies to, in the track's unit.
        best: what attackers reach on the mean over defenses who know for each which of the attacks with so many
            gradients at most to run.
    """

    attack: str
    budget: Budget
    leakage: Sequence[float]
    best: float

    @property
    def middle(self) -> tuple[float, float, float]:
        """The lower quartile, the mean and the upper quartile over defenses."""
        low, high = np.quantile(self.leakage, [0.25, 0.75])
        return float(low), float(np.mean(self.leakage)), float(high)


def spent(board: Board) -> list[Spent]:
    """The attacks whose budget is known, the cheapest in gradients first."""
    shown = [row.entry.shown for row in board.rows if row.entry.shown and not row.entry.excluded]
    reached: dict[str, list[float]] = {}
    budgets: dict[str, list[Budget]] = {}
    for one in shown:
        for name, leakage in one.attacks.items():
            if math.isfinite(leakage.budget.evaluations):
                reached.setdefault(name, []).append(leakage.mean.value)
                budgets.setdefault(name, []).append(leakage.budget)
    costs = {
        name: Budget(
            max(one.evaluations for one in some),
            max(one.auxiliary for one in some),
            float(np.median([one.seconds for one in some])),
        )
        for name, some in budgets.items()
    }
    guess = board.guess.mean.value
    best, made = dict.fromkeys(range(len(shown)), guess), []
    for name in sorted(reached, key=lambda name: costs[name].evaluations):
        best = {place: max(best[place], leaked(one.attacks, name, guess)) for place, one in enumerate(shown)}
        made.append(Spent(name, costs[name], reached[name], float(np.mean(list(best.values())))))
    return made


@figure(
    4,
    title="Leakage over the attackers' budget",
    caption="PSNR (dB), in track T tokens found (%), mean over victims, of every attack, at the settings of Figure 1: "
    "the mean over the ranked defenses, and the middle half of them. Line: the best that an attacker with so many "
    f"evaluations reaches, who for each defense knows which attack to run. {COUNTED} {LARGEST}",
    leaves_out="each of its points is a mean over all defenses",
)
def fig04(tables: Tables) -> Drawing:
    """A panel per track, data set and model; a point per attack."""
    every = largest(boards(tables))
    drawn, axes = panels(len(every), width=4.4, height=3.4, columns=IN_A_ROW)
    rows: list[dict[str, Any]] = []
    for ax, board in zip(axes, every, strict=True):
        rows += _budgets(ax, board)
    return Drawing(drawn, pd.DataFrame(rows))


def _budgets(ax: Axes, board: Board) -> list[dict[str, Any]]:
    attacks = spent(board)
    for one, shape in zip(attacks, itertools.cycle(MARKERS), strict=False):
        at, (low, mean, high) = one.budget.evaluations, one.middle
        ax.plot([at, at], [low, high], color=ATTACKS, linewidth=1.2)
        ax.plot(at, mean, shape, color=ATTACKS, markeredgecolor="white", markersize=6.5, label=one.attack)
    if attacks:
        ax.legend(
            loc="best", fontsize=6, handletextpad=0, labelspacing=0.3, columnspacing=0.5, ncols=1 + len(attacks) // 7
        )
        line = [one.budget.evaluations for one in attacks], [one.best for one in attacks]
        ax.step(*line, where="post", color=STRONGEST, linewidth=1.4)
    ax.axhline(board.guess.mean.value, color=REFERENCE_COLOUR, linestyle="--", linewidth=1)
    across = ax.get_yaxis_transform()
    ax.text(0.99, board.guess.mean.value, "best guess", transform=across, fontsize=6.5, va="top", ha="right")
    ax.set(xscale="log", xlabel="gradient evaluations per victim", ylabel=str(board.track.measure))
    plain_ticks(ax.xaxis)
    entitle(ax, board.title)
    return [cell_of(board) | _numbers(one) for one in attacks]


def _numbers(one: Spent) -> dict[str, Any]:
    low, mean, high = one.middle
    return {
        "attack": one.attack,
        **one.budget._asdict(),
        "leakage": mean,
        "low": low,
        "high": high,
        "best_so_far": one.best,
        "defenses": len(one.leakage),
    }


@table(
    4,
    title="What attackers spend",
    caption="Per victim: gradients, and seconds of the processor or GPU that computed the records (the median over "
    "defenses, all victims of a record side by side, training of the attacked model included where the record did "
    "it). Auxiliary: samples of no client that the attack may read, the same for all victims. Leakage (dB, in track T "
    f"%): the mean over the ranked defenses at the settings of Figure 1. {COUNTED} {LARGEST}",
    leaves_out="each of its rows is of all defenses",
)
def table04(tables: Tables) -> pd.DataFrame:
    """A row per attack of each board."""
    rows = [
        {
            "track": board.track.key,
            "data": board.dataset,
            "model": board.model,
            "attack": one.attack,
            "gradients": f"{one.budget.evaluations:,.0f}",
            "auxiliary": NONE if math.isnan(one.budget.auxiliary) else f"{one.budget.auxiliary:,.0f}",
            "seconds": NONE if math.isnan(one.budget.seconds) else f"{one.budget.seconds:.2g}",
            "leakage": f"{one.middle[1]:.1f}",
        }
        for board in largest(boards(tables))
        for one in spent(board)
    ]
    return pd.DataFrame(
        rows, columns=["track", "data", "model", "attack", "gradients", "auxiliary", "seconds", "leakage"]
    )
