"""Figures 1 to 3: the ranking at an equal loss, the front of privacy, utility and cost, and every attack."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from leakbench.lazy import np, pd
from leakbench.leaderboard import PAPER
from leakbench.leaderboard.board import HEADLINE, LOSSES, READ, Board, Place, boards
from leakbench.report.artifacts import Tables, artifact
from leakbench.report.pareto import nondominated
from leakbench.report.plots import Drawing
from leakbench.report.statistics import interquartile_mean
from leakbench.report.style import REFERENCE_COLOUR, colour, marker, panels
from leakbench.report.under_attacked import COLUMN, DAGGER, marked
from leakbench.report.wording import NONE, setting_in_words

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from leakbench.report.statistics import Array

figure = partial(artifact, PAPER, "figure", experiments=READ, any_sweep=True)

LEAKAGE = "PSNR of the best reconstruction (dB)"
MEASURED = (
    "Leakage is the interquartile mean over victims of the PSNR that the strongest attack reaches, or the best guess "
    "that ignores the gradient; less is more private. Loss is accuracy against undefended training of the same seed, "
    "in percentage points. Attacks that miss their gate without a defense are left out."
)
INTERVALS = "Intervals: 95 %, over seeds and victims (pigeonhole bootstrap); of few seeds they are too narrow."
STRONGEST = "#D55E00"
"""Colour of the frame around the strongest attack."""
ROW = 0.235
"""Height of a line of the ranking, in inches."""
BEYOND = 15.0
"""Loss in percentage points at which Figure 2 ends."""
DOMINATED = 0.25
"""Opacity of dominated points."""


def percent(part: float) -> str:
    """A fraction in percentage points."""
    return f"{100 * part:.3g}"


@figure(
    1,
    title="What defenses leak at an equal loss of accuracy",
    caption=f"Every defense at the strength at which it costs {percent(HEADLINE)} percentage points of accuracy, least "
    f"leakage first; small marks: at {percent(LOSSES[0])} (left-pointing) and {percent(LOSSES[-1])} points "
    "(right-pointing). Between the computed strengths of a defense with one parameter, neighbours are joined by lines. "
    f"{MEASURED} Filled: not to be told apart from the first (p of at least 0.05 after Holm's correction); hollow: "
    "leaks more. Bits and time are those of a client's step at the nearest weaker setting that was computed, over the "
    f"undefended ones. {INTERVALS}",
)
def fig01(tables: Tables) -> Drawing:
    """A panel per data set and model, a line per defense."""
    all_boards = list(boards(tables))
    lines = max(len(board.defenses) for board in all_boards)
    drawn, axes = panels(len(all_boards), width=8.4, height=1.3 + ROW * (lines + 1), stacked=True)
    rows: list[dict[str, Any]] = []
    for ax, board in zip(axes, all_boards, strict=True):
        rows += [{"dataset": board.dataset, "model": board.model, **row} for row in _ranking(ax, board)]
    return Drawing(drawn, pd.DataFrame(rows))


def _ranking(ax: Axes, board: Board) -> list[dict[str, Any]]:
    rows = []
    _span(ax, board)
    for line, place in enumerate(board.places):
        one, leakage = place.defense, place.leakage[HEADLINE]
        tint = colour(one.mechanism)
        together = line == 0 or place.p_value >= 0.05
        for allowed, small in ((LOSSES[0], "<"), (LOSSES[-1], ">")):
            ax.plot(place.leakage[allowed].value, line, small, color=tint, markersize=3.5, alpha=0.7)
        if math.isnan(leakage.value):
            reason = f"loses {percent(one.least_loss)} points or more"
            if math.isinf(one.least_loss):
                reason = "training is missing" if np.isnan(one.loss[0]).all() else "training diverges"
            if one.unattacked:
                reason = "no attack applies"
            right, grey = board.undefended.value, REFERENCE_COLOUR
            ax.text(right, line, f"{reason}  ", va="center", ha="right", fontsize=7.5, color=grey)
        else:
            ax.plot([leakage.low, leakage.high], [line, line], color=tint, linewidth=1.6)
            face = tint if together else "white"
            ax.plot(leakage.value, line, marker(one.mechanism), color=tint, markerfacecolor=face, markersize=6)
        _costs(ax, line, place)
        rows.append(
            {"place": line + 1, "defense": one.label, "mechanism": one.mechanism, "leakage_db": leakage.value}
            | {"low": leakage.low, "high": leakage.high, "above_first_db": place.above_best.value}
            | {"above_first_low": place.above_best.low, "above_first_high": place.above_best.high}
            | {"p_holm": place.p_value, "like_the_first": together}
            | {f"leakage_db_at_{percent(allowed)}": place.leakage[allowed].value for allowed in LOSSES}
            | {"setting": "" if place.setting is None else setting_in_words(one.settings[place.setting])}
            | {COLUMN: place.under_attacked}
        )
    ax.set_yticks(range(len(rows)), [place.name for place in board.places])
    ax.set(xlabel=LEAKAGE, ylim=(len(rows) - 0.4, -1.1))
    ax.set_title(f"{board.dataset}, {board.model}: at {percent(HEADLINE)} points of accuracy lost", loc="left")
    return rows


def _ends(board: Board) -> list[tuple[float, str, dict[str, Any]]]:
    """Leakage without a defense, and of the best guess; with names and line styles."""
    return [
        (board.undefended.value, "no defense", {"color": colour("none"), "linestyle": "-", "linewidth": 1}),
        (board.guess.value, "best guess", {"color": REFERENCE_COLOUR, "linestyle": "--", "linewidth": 1}),
    ]


def _span(ax: Axes, board: Board) -> None:
    """The lines of :func:`_ends`, vertical, with their names."""
    for (value, name, look), side in zip(_ends(board), ("right", "left"), strict=True):
        ax.axvline(value, **look)
        ax.text(value, -0.75, f" {name}", fontsize=7.5, ha=side, va="center")


def _costs(ax: Axes, line: int, place: Place) -> None:
    """Three columns at the right of the axes, with their heads above the first line."""
    one, setting = place.defense, place.setting
    cells = [NONE] * 3
    if setting is not None:
        cells = [
            setting_in_words(one.settings[setting]) or NONE,
            ratio(one.bits[setting]),
            ratio(1 + one.overhead[setting]),
        ]
    for x, head, cell, align in zip(
        (1.02, 1.33, 1.43), ("setting", "bits", "time"), cells, ("left", "right", "right"), strict=True
    ):
        across = ax.get_yaxis_transform()
        ax.text(x, line, cell, transform=across, va="center", ha=align, fontsize=7.5)
        if not line:
            ax.text(x, -0.75, head, transform=across, va="center", ha=align, fontsize=7.5, fontweight="bold")


def ratio(value: float) -> str:
    """``0.25x``; a dash where it is not known."""
    return NONE if math.isnan(value) else f"{value:.2g}x" if value < 10 else f"{value:.0f}x"


@figure(
    2,
    title="The front of privacy, utility and cost",
    caption=f"Every computed setting of every defense. {MEASURED} The area of a point grows with the bits that a "
    "client sends over those of an undefended step. Bright and numbered: settings that no other one beats in "
    "leakage, loss and bits at once; faint: the others. Below the list: defenses that have no setting among the best. "
    f"What loses more than {BEYOND:g} points is beyond the axes.",
)
def fig02(tables: Tables) -> Drawing:
    """A panel per data set and model, a point per setting."""
    all_boards = list(boards(tables))
    drawn, axes = panels(len(all_boards), width=8.0, height=5.2, stacked=True)
    shown = [settings_of(board) for board in all_boards]
    for ax, board, points in zip(axes, all_boards, shown, strict=True):
        _front(ax, board, points)
    return Drawing(drawn, pd.concat(shown))


def settings_of(board: Board) -> pd.DataFrame:
    """A row per computed setting: what it leaks, loses and costs, and whether none beats it (``front``).

    Gains of accuracy count as no loss; leakage and loss are compared to a tenth of a dB and of a point.
    """
    rows = [
        {"dataset": board.dataset, "model": board.model}
        | {"defense": one.label, "mechanism": one.mechanism, "setting": setting_in_words(setting)}
        | {"leakage_db": one.leakage[0, place], "loss": 100 * one.loss[0, place], "bits": one.bits[place]}
        | {"time": 1 + one.overhead[place], "strongest": one.strongest[place], COLUMN: one.under_attacked[place]}
        for one in board.defenses
        for place, setting in enumerate(one.settings)
    ]
    points = pd.DataFrame(rows)
    return points.assign(front=_unbeaten(points))


def _unbeaten(points: pd.DataFrame) -> pd.Series:
    known = np.isfinite(points["leakage_db"]) & np.isfinite(points["loss"]) & np.isfinite(points["bits"])
    weighed = points.loc[known, ["leakage_db", "loss", "bits"]].round({"leakage_db": 1, "loss": 1, "bits": 2})
    weighed["loss"] = weighed["loss"].clip(lower=0.0)
    best = pd.Series(False, index=points.index)
    if known.any():
        best[known] = nondominated(weighed.to_numpy())
    return best


def _front(ax: Axes, board: Board, points: pd.DataFrame) -> None:
    shown = points[points["loss"] <= BEYOND]
    _levels(ax, board)
    for _, rows in shown.groupby("defense", sort=False):
        mechanism = rows["mechanism"].iloc[0]
        tint = colour(mechanism)
        ax.plot(rows["loss"], rows["leakage_db"], color=tint, linewidth=0.7, alpha=DOMINATED)
        for best, part in rows.groupby("front"):
            ax.scatter(
                part["loss"],
                part["leakage_db"],
                s=[_area(bits) for bits in part["bits"]],
                color=tint,
                marker=marker(mechanism),
                alpha=1.0 if best else DOMINATED,
            )
    _name(ax, shown)
    for bits in (0.05, 0.25, 1.0):
        ax.scatter([], [], s=_area(bits), color=REFERENCE_COLOUR, label=f"{bits:g}x the bits")
    ax.legend(loc="upper right", bbox_to_anchor=(1.0, 0.88), fontsize="small", labelspacing=1.0)
    ax.set(xlabel="accuracy lost (percentage points)", ylabel=LEAKAGE)
    ax.set_title(f"{board.dataset}, {board.model}", loc="left")


def _area(bits: float) -> float:
    """Area of a point, in square points of print."""
    return 10 + 35 * math.sqrt(bits)


def _name(ax: Axes, shown: pd.DataFrame) -> None:
    """A number beside every point of the front, by rising loss; a list of their names, and of the other defenses."""
    best = shown[shown["front"]].sort_values(["loss", "leakage_db"], ascending=[True, False])
    names = []
    for number, row in enumerate(best.to_dict("records"), start=1):
        place, tint = (row["loss"], row["leakage_db"]), colour(row["mechanism"])
        ax.annotate(str(number), place, (6, 4), textcoords="offset points", fontsize=7.5, color=tint)
        names.append((f"{number}  {_in_words(row)}", tint))
    for name, rows in shown[~shown["defense"].isin(best["defense"])].groupby("defense", sort=False):
        names.append((f"–  {marked(str(name), rows)}", colour(rows["mechanism"].iloc[0])))
    apart = min(0.05, 1.0 / max(len(names), 1))
    for line, (name, tint) in enumerate(names):
        ax.text(1.02, 0.98 - line * apart, name, transform=ax.transAxes, fontsize=7.5, color=tint, va="center")


def _in_words(row: Mapping[Any, Any]) -> str:
    """A defense in a setting; with a mark where it is under-attacked."""
    name = ", ".join(filter(None, (row["defense"], row["setting"])))
    return f"{name} {DAGGER}" if row[COLUMN] else name


def _levels(ax: Axes, board: Board) -> None:
    """The lines of :func:`_ends`, horizontal, with their names."""
    for value, name, look in _ends(board):
        ax.axhline(value, **look)
        ax.text(1.0, value, name, transform=ax.get_yaxis_transform(), fontsize=7.5, ha="right", va="bottom")


@figure(
    3,
    title="Every defense under every attack",
    caption="PSNR (dB, interquartile mean over victims) of every attack at the strongest computed setting of a "
    f"defense that loses at most {percent(HEADLINE)} percentage points of accuracy, in the order of Figure 1; framed: "
    "the strongest attack. A dash: the attack does not apply to the defense, or failed on more than a quarter of the "
    "victims. Left out: defenses whose every setting loses more, and attacks that miss their gate.",
)
def fig03(tables: Tables) -> Drawing:
    """A panel per data set and model, a cell per defense and attack."""
    all_boards = list(boards(tables))
    lines = max(len(board.defenses) for board in all_boards)
    drawn, axes = panels(len(all_boards), width=7.0, height=1.2 + 0.24 * lines, stacked=True)
    rows: list[dict[str, Any]] = []
    for ax, board in zip(axes, all_boards, strict=True):
        rows += [{"dataset": board.dataset, "model": board.model, **row} for row in _matrix(ax, board)]
    return Drawing(drawn, pd.DataFrame(rows))


def _matrix(ax: Axes, board: Board) -> list[dict[str, Any]]:
    from matplotlib.patches import Rectangle

    held = [place for place in board.places if place.setting is not None]
    attacks = list(dict.fromkeys(name for place in held for name in place.defense.quality))
    if not held:
        ax.text(0.5, 0.5, f"every defense loses more than {percent(HEADLINE)} points", ha="center", va="center")
        ax.set_axis_off()
        return []
    cells = np.array([[_reached(place, name) for name in attacks] for place in held]).reshape(len(held), len(attacks))
    low, high = board.guess.value, board.undefended.value
    ax.imshow(np.where(np.isfinite(cells), cells, np.nan), cmap="cividis", vmin=low, vmax=high, aspect="auto")
    rows = []
    for line, place in enumerate(held):
        assert place.setting is not None
        strongest = place.defense.strongest[place.setting]
        for column, name in enumerate(attacks):
            value = cells[line, column]
            bright = value > (low + high) / 2
            text = f"{value:.1f}" if math.isfinite(value) else NONE
            tint = "black" if bright or not math.isfinite(value) else "white"
            ax.text(column, line, text, ha="center", va="center", fontsize=7.5, color=tint)
            if name == strongest:
                ax.add_patch(
                    Rectangle((column - 0.47, line - 0.45), 0.94, 0.9, fill=False, edgecolor=STRONGEST, lw=1.8)
                )
            rows.append(
                {"defense": place.defense.label, "mechanism": place.defense.mechanism, "attack": name, "psnr_db": value}
                | {
                    "setting": setting_in_words(place.defense.settings[place.setting]),
                    "strongest": name == strongest,
                    COLUMN: place.under_attacked,
                }
            )
    ax.set_xticks(range(len(attacks)), attacks)
    ax.set_yticks(range(len(held)), [place.name for place in held])
    ax.grid(visible=False)
    ax.xaxis.tick_top()
    ends = f"best guess {low:.1f} dB, undefended {high:.1f} dB and {percent(board.accuracy.value)} % accuracy"
    left_out = f"; too weak: {', '.join(board.void)}" if board.void else ""
    ax.set_xlabel(f"{board.dataset}, {board.model}: {ends}{left_out}")
    return rows


def _reached(place: Place, attack: str) -> float:
    assert place.setting is not None
    values: Array = place.defense.quality[attack][place.setting]
    value = float(interquartile_mean(values.ravel()))
    return value if math.isfinite(value) else math.nan
