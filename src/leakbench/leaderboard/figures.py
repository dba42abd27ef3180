"""Figures 1 to 3: tiers at the allowed loss, the front of privacy, utility and cost, and every attack.

Figures 2 and 3 show the largest cohort alone.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from leakbench.lazy import np, pd
from leakbench.leaderboard import PAPER
from leakbench.leaderboard.board import Board, Computed, Leakage, Row, boards, unjudged
from leakbench.leaderboard.tracks import ALLOWED, READ
from leakbench.planning.layers import read_yaml
from leakbench.report.artifacts import Tables, artifact
from leakbench.report.pareto import nondominated
from leakbench.report.plots import Drawing
from leakbench.report.style import REFERENCE_COLOUR, colour, marker, panels
from leakbench.report.under_attacked import COLUMN, DAGGER, marked
from leakbench.report.wording import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

figure = partial(artifact, PAPER, "figure", experiments=READ, any_sweep=True, in_parts=True)

LARGEST = "Where cohorts of several sizes were trained: the largest alone."
MEASURED = (
    "Leakage is the mean over victims of the PSNR that the strongest attack of the track reaches, or the best guess "
    "that ignores the gradient, and in track T of the part of the tokens that it finds; less is more private. "
    "Loss is accuracy against undefended training of the same seed, in percentage points. Every number is of a "
    "setting that was computed. Attacks that miss their gate without a defense are left out."
)
TIERED = (
    "In the order of leakage a tier ends where a defense leaks more than some defense of the tier, in the settings "
    "shown and, interpolated to the next ones, at the allowed loss (Student's tests over seeds, 5 % after Holm's "
    "correction for all pairs): no two in one tier are told apart. Defenses that leak alike on the same victims are "
    "told apart at smaller gaps than are usually resolved."
)
STRONGEST = "#D55E00"
"""Colour of the frame around the strongest attack."""
ATTACKS = "#0072B2"
"""Colour of attacks."""
LONGEST = 10
"""Characters of an attack's name that fit above its column; longer ones slant."""
ROW = 0.19
"""Height of a line of the ranking, in inches."""
IN_A_ROW = 4
"""Narrow panels per row."""
BEYOND = 15.0
"""Loss in percentage points at which Figure 2 ends."""
DOMINATED = 0.4
"""Opacity of dominated points."""
NO_DEFENSE = "no defense"
"""Label of the undefended update."""


@cache
def shipped() -> frozenset[str]:
    """Labels of the defenses that the leaderboard's grid lists; others are compared ones."""
    grid = read_yaml(Path(__file__).with_name("grid.yaml"))
    return frozenset(grid["variants"]["defenses"])


def largest(every: Sequence[Board]) -> list[Board]:
    """The board of the largest cohort, of those that differ in nothing else."""
    of_cell = {(board.track.key, board.dataset, board.model): board for board in every}  # cohorts rise
    return list(of_cell.values())


def percent(part: float) -> str:
    """A fraction in percentage points."""
    return f"{100 * part:.3g}"


def leakage_of(board: Board) -> str:
    """``PSNR (dB), strongest attack``."""
    return f"{board.track.measure}, strongest attack"


def cell_of(board: Board) -> dict[str, Any]:
    """The columns that say which board a row of numbers is of."""
    return {"track": board.track.key, "dataset": board.dataset, "model": board.model, "cohort": board.cohort}


def inapplicable(board: Board) -> str:
    """Defenses that do not apply to the track, in words; empty where all do."""
    return f"do not apply: {', '.join(board.track.without)}" if board.track.without else ""


def in_words(board: Board) -> str:
    """The board's evidence in words: victims, the gap that it resolves, and the noise of losses."""
    seeds, each = board.victims
    resolved = (
        f"gaps from {board.gap:.1f} {board.track.measure.unit} on are usually resolved"
        if math.isfinite(board.gap)
        else "no gap is resolved"
    )
    noise = f"losses to ±{100 * board.noise:.1f} points" if math.isfinite(board.noise) else "losses of one seed"
    return f"{seeds * each} victims, {seeds} models; {resolved}; {noise}"


@figure(
    1,
    title=f"Tiers of defenses at a loss of at most {percent(ALLOWED)} points of accuracy",
    caption=f"Every defense at the strongest computed setting that costs at most {percent(ALLOWED)} percentage points "
    "of accuracy, least leakage first, with 95 % intervals over seeds; tick: the tenth of the victims that leaks most; "
    "faint: the next stronger setting, which costs more. Bands are tiers; hollow defenses at the bottom cost more in "
    f"every setting. Bold: compared. {MEASURED} {TIERED}",
)
def fig01(tables: Tables) -> Drawing:
    """A panel per track, data set, model and cohort; a line per defense."""
    every = boards(tables)
    lines = max(len(board.entries) for board in every)
    void = unjudged(tables)
    drawn, axes = panels(len(every) + len(void), width=4.4, height=1.2 + ROW * (lines + 2), columns=IN_A_ROW)
    rows: list[dict[str, Any]] = []
    for ax, board in zip(axes, every, strict=False):
        rows += _ranking(ax, board)
    for ax, cell in zip(axes[len(every) :], void, strict=True):
        ax.set_axis_off()
        entitle(ax, cell.title)
        ax.text(0.5, 0.5, cell.unjudged, transform=ax.transAxes, ha="center", fontsize=8)
    return Drawing(drawn, pd.DataFrame(rows))


def _ranking(ax: Axes, board: Board) -> list[dict[str, Any]]:
    ranked = [row for row in board.rows if not row.entry.excluded]
    _bands(ax, ranked, len(board.rows))
    for line, row in enumerate(board.rows):
        _line(ax, line, row)
    ax.set_yticks(range(len(board.rows)), [row.entry.name for row in board.rows])
    ax.tick_params(labelsize=7)
    for label, row in zip(ax.get_yticklabels(), board.rows, strict=True):
        if row.entry.label not in shipped():
            label.set_fontweight("bold")
    for (value, name, tint, style), height, side in zip(_ends(board), (-0.75, -1.45), ("right", "left"), strict=True):
        ax.axvline(value, linewidth=1, color=tint, linestyle=style)
        ax.text(value, height, f" {name} ", fontsize=6.5, ha=side, va="center")
    ax.set(ylim=(len(board.rows) - 0.4, -1.9))
    below = "; ".join(filter(None, (in_words(board), inapplicable(board))))
    ax.set_xlabel("\n".join([leakage_of(board), *textwrap.wrap(below, 60)]), fontsize=7.5)
    ax.grid(visible=False, axis="y")
    entitle(ax, board.title)
    return [numbers_of(board, row) for row in board.rows]


def _ends(board: Board) -> list[tuple[float, str, str, str]]:
    """Leakage without a defense, and of the best guess, with names, colours and line styles."""
    return [
        (board.undefended.mean.value, NO_DEFENSE, colour("none"), "-"),
        (board.guess.mean.value, "best guess", REFERENCE_COLOUR, "--"),
    ]


def _bands(ax: Axes, ranked: list[Row], lines: int) -> None:
    """Shade every other tier, and name all; a line below the last ranked defense."""
    tiers = [row.tier for row in ranked if row.tier is not None]
    for tier in dict.fromkeys(tiers):
        first, last = tiers.index(tier), len(tiers) - 1 - tiers[::-1].index(tier)
        if tier % 2:
            ax.axhspan(first - 0.5, last + 0.5, color="#e8eef5", zorder=0, linewidth=0)
        ax.text(1.01, (first + last) / 2, f"tier {tier}", transform=ax.get_yaxis_transform(), fontsize=7, va="center")
    if 0 < len(ranked) < lines:
        ax.axhline(len(ranked) - 0.5, color=REFERENCE_COLOUR, linewidth=0.6)


def _line(ax: Axes, line: int, row: Row) -> None:
    entry, shown = row.entry, row.entry.shown
    tint, compared = colour(entry.mechanism), entry.label not in shipped()
    if entry.excluded:
        reason = f"tier {row.tier}, {entry.excluded}" if row.tier else entry.excluded
        ax.text(1.01, line, reason, transform=ax.get_yaxis_transform(), fontsize=6, va="center", color=REFERENCE_COLOUR)
    if shown is None or shown.leakage is None:
        return
    if entry.beyond is not None and entry.beyond.leakage is not None:
        ax.plot(
            entry.beyond.leakage.mean.value, line, marker(entry.mechanism), color=tint, alpha=DOMINATED, markersize=4
        )
    mean = shown.leakage.mean
    ax.plot([mean.low, mean.high], [line, line], color=tint, linewidth=3.2 if compared else 1.4)
    ax.plot(shown.leakage.worst, line, "|", color=tint, markersize=6, markeredgewidth=1.2)
    face = "white" if entry.excluded else tint
    size = 8 if compared else 5
    ax.plot(mean.value, line, marker(entry.mechanism), color=tint, markerfacecolor=face, markersize=size)


def numbers_of(board: Board, row: Row) -> dict[str, Any]:
    """A line of the leaderboard in numbers: dB, losses as fractions, bits and time over undefended ones."""
    entry = row.entry
    numbers: dict[str, Any] = {
        "track": board.track.key,
        "version": board.track.version,
        "dataset": board.dataset,
        "model": board.model,
        "cohort": board.cohort,
        "defense": entry.label,
        "mechanism": entry.mechanism,
        "tier": row.tier,
        "excluded": entry.excluded,
        "unit": board.track.measure.unit,
        **_of_setting(entry.shown),
    }
    beyond = {f"beyond_{name}": value for name, value in _of_setting(entry.beyond).items() if name in BEYOND_SHOWN}
    level = entry.level
    at_allowed = {"leakage_at_allowed_loss": math.nan if level is None else float(level.allowed.mean())}
    return numbers | beyond | at_allowed | {COLUMN: entry.shown is not None and entry.shown.under_attacked}


BEYOND_SHOWN = ("setting", "loss", "leakage")
"""Numbers of the setting on the other side of the allowed loss that a line carries."""


def _of_setting(one: Computed | None) -> dict[str, Any]:
    leakage = one.leakage if one else None
    mean = leakage.mean if leakage else None
    return {
        "setting": one.words if one else "",
        "leakage": mean.value if mean else math.nan,
        "low": mean.low if mean else math.nan,
        "high": mean.high if mean else math.nan,
        "worst_tenth": leakage.worst if leakage else math.nan,
        "identified": leakage.identified if leakage else math.nan,
        "strongest": leakage.attack if leakage else "",
        "loss": one.loss.value if one else math.nan,
        "loss_low": one.loss.low if one else math.nan,
        "loss_high": one.loss.high if one else math.nan,
        "bits": one.bits if one else math.nan,
        "time": one.time if one else math.nan,
    }


def ratio(value: float) -> str:
    """``0.25x``; a dash where it is not known."""
    return NONE if math.isnan(value) else f"{value:.2g}x" if value < 10 else f"{value:.0f}x"


@figure(
    2,
    title="The front of privacy, utility and cost",
    caption=f"Every computed and attacked setting of every defense. {MEASURED} The area of a point grows with the bits "
    "that a client sends over those of an undefended step. Bright and numbered: settings that no other one beats in "
    "leakage, loss and bits at once; faint: the others. Below the list: defenses without such a setting on the axes. "
    "Leakage and loss are compared to a tenth, bits to a hundredth. "
    f"What loses more than {BEYOND:g} points is beyond the axes. {LARGEST}",
)
def fig02(tables: Tables) -> Drawing:
    """A panel per track, data set and model; a point per setting."""
    every = largest(boards(tables))
    drawn, axes = panels(len(every), width=8.0, height=5.2, columns=2)
    shown = [settings_of(board) for board in every]
    for ax, board, points in zip(axes, every, shown, strict=True):
        _front(ax, board, points)
    return Drawing(drawn, pd.concat(shown))


def settings_of(board: Board) -> pd.DataFrame:
    """A row per computed setting: what it leaks, loses and costs, and whether none beats it (``front``).

    Gains of accuracy count as no loss; leakage and loss are compared to a tenth of their units.
    """
    rows = [
        cell_of(board)
        | {"defense": entry.label, "mechanism": entry.mechanism, **_of_setting(one), COLUMN: one.under_attacked}
        for entry in board.entries
        for one in entry.settings
    ]
    points = pd.DataFrame(rows).assign(loss=lambda frame: 100 * frame["loss"])
    return points.assign(front=_unbeaten(points))


def _unbeaten(points: pd.DataFrame) -> pd.Series:
    known = np.isfinite(points["leakage"]) & np.isfinite(points["loss"]) & np.isfinite(points["bits"])
    weighed = points.loc[known, ["leakage", "loss", "bits"]].round({"leakage": 1, "loss": 1, "bits": 2})
    weighed["loss"] = weighed["loss"].clip(lower=0.0)
    best = pd.Series(False, index=points.index)
    if known.any():
        best[known] = nondominated(weighed.to_numpy())
    return best


def _front(ax: Axes, board: Board, points: pd.DataFrame) -> None:
    points = points[points["leakage"].notna()]
    shown = points[points["loss"] <= BEYOND]
    for value, name, tint, style in _ends(board):
        ax.axhline(value, linewidth=1, color=tint, linestyle=style)
        ax.text(1.0, value, name, transform=ax.get_yaxis_transform(), fontsize=7.5, ha="right", va="bottom")
    for _, rows in shown.groupby("defense", sort=False):
        mechanism = rows["mechanism"].iloc[0]
        tint = colour(mechanism)
        ax.plot(rows["loss"], rows["leakage"], color=tint, linewidth=0.7, alpha=DOMINATED)
        for best, part in rows.groupby("front"):
            ax.scatter(
                part["loss"],
                part["leakage"],
                s=[_area(bits) for bits in part["bits"]],
                color=tint,
                marker=marker(mechanism),
                alpha=1.0 if best else DOMINATED,
            )
    _name(ax, points)
    for bits in (0.05, 0.25, 1.0):
        ax.scatter([], [], s=_area(bits), color=REFERENCE_COLOUR, label=f"{bits:g}x the bits")
    ax.legend(loc="upper right", bbox_to_anchor=(1.0, 0.88), fontsize="small", labelspacing=1.0)
    ax.set(xlabel="accuracy lost (percentage points)", ylabel=leakage_of(board))
    entitle(ax, board.title)


def entitle(ax: Axes, title: str) -> None:
    """Write a board's title above its axes, in lines that fit."""
    ax.set_title("\n".join(textwrap.wrap(title, 58)), loc="left", fontsize=8)


def _area(bits: float) -> float:
    """Area of a point, in square points of print."""
    return 10 + 35 * math.sqrt(bits) if math.isfinite(bits) else 10


def _name(ax: Axes, points: pd.DataFrame) -> None:
    """A number beside every point of the front, by rising loss; a list of their names, and of the other defenses."""
    shown = points[points["loss"] <= BEYOND]
    best = shown[shown["front"]].sort_values(["loss", "leakage"], ascending=[True, False])
    names = []
    for number, row in enumerate(best.to_dict("records"), start=1):
        place, tint = (row["loss"], row["leakage"]), colour(row["mechanism"])
        ax.annotate(str(number), place, (6, 4), textcoords="offset points", fontsize=7.5, color=tint)
        name = ", ".join(filter(None, (row["defense"], row["setting"])))
        names.append((f"{number}  {name} {DAGGER if row[COLUMN] else ''}".rstrip(), tint))
    for other, rows in points[~points["defense"].isin(best["defense"])].groupby("defense", sort=False):
        beyond = f", loses over {BEYOND:g}" if rows["loss"].min() > BEYOND else ""
        names.append((f"–  {marked(str(other), rows)}{beyond}", colour(rows["mechanism"].iloc[0])))
    apart = min(0.05, 1.0 / max(len(names), 1))
    for line, (name, tint) in enumerate(names):
        ax.text(1.02, 0.98 - line * apart, name, transform=ax.transAxes, fontsize=7.5, color=tint, va="center")


@figure(
    3,
    title="Every defense under every attack",
    caption="PSNR (dB), in track T tokens found (%), mean over victims, of every attack without a defense, and on "
    "every defense at the setting of Figure 1, in its order; framed: the strongest attack. Brackets: the defense is "
    "excluded, since it loses more in every setting. Shades run from the best guess, below which a search may end, to "
    f"no defense. A dash: the attack does not apply. Left out: attacks that miss their gate. {LARGEST}",
)
def fig03(tables: Tables) -> Drawing:
    """A panel per track, data set and model; a cell per defense and attack."""
    every = largest(boards(tables))
    lines = max(len(board.entries) for board in every)
    drawn, axes = panels(len(every), width=7.0, height=1.2 + 0.24 * lines, columns=2)
    rows: list[dict[str, Any]] = []
    for ax, board in zip(axes, every, strict=True):
        rows += _matrix(ax, board)
    return Drawing(drawn, pd.DataFrame(rows))


class _Attacked(NamedTuple):
    """A line of Figure 3: what attacks reach on a defense, or without one.

    Attributes:
        name: as the figure writes it.
        numbers: of the line, whatever the attack.
        reached: by attack.
        strongest: label of the attack that counts.
    """

    name: str
    numbers: dict[str, Any]
    reached: Mapping[str, Leakage]
    strongest: str


def _attacked(board: Board) -> Iterator[_Attacked]:
    """The lines of a board, that without a defense first."""
    bare = {"defense": NO_DEFENSE, "mechanism": "none", "setting": "", COLUMN: False}
    yield _Attacked(NO_DEFENSE, bare, board.bare, board.undefended.attack)
    for entry, shown in ((row.entry, row.entry.shown) for row in board.rows):
        if shown is not None:
            name = f"({entry.name})" if entry.excluded else entry.name
            numbers = {"defense": entry.label, "mechanism": entry.mechanism, "setting": shown.words}
            best = shown.leakage.attack if shown.leakage else ""
            yield _Attacked(name, numbers | {COLUMN: shown.under_attacked}, shown.attacks, best)


def _matrix(ax: Axes, board: Board) -> list[dict[str, Any]]:
    lines = list(_attacked(board))
    attacks = list(dict.fromkeys(attack for line in lines[1:] for attack in line.reached))
    cells = np.array([[leaked(line.reached, attack, math.nan) for attack in attacks] for line in lines])
    cells = cells.reshape(len(lines), len(attacks))
    low, high = board.guess.mean.value, board.undefended.mean.value
    ax.imshow(cells, cmap="cividis", vmin=low, vmax=high, aspect="auto")
    rows: list[dict[str, Any]] = []
    for height, line in enumerate(lines):
        for column, attack in enumerate(attacks):
            value, strongest = cells[height, column], attack == line.strongest
            _write(ax, column, height, value, "white" if value <= (low + high) / 2 else "black", strongest)
            rows.append(cell_of(board) | line.numbers | {"attack": attack, "leakage": value, "strongest": strongest})
    ax.axhline(0.5, color="white", linewidth=2.5)
    long = any(len(attack) > LONGEST for attack in attacks)
    slanted: dict[str, Any] = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"} if long else {}
    ax.set_xticks(range(len(attacks)), attacks, **slanted)
    ax.set_yticks(range(len(lines)), [line.name for line in lines])
    ax.grid(visible=False)
    ax.xaxis.tick_top()
    unit = board.track.measure.unit
    ends = f"best guess {low:.1f} {unit}, undefended {high:.1f} {unit} and {percent(board.accuracy.value)} % accuracy"
    left_out = f"; too weak: {' and '.join(board.void)}" if board.void else ""
    ax.set_xlabel("\n".join(textwrap.wrap(f"{board.title}: {ends}{left_out}", 100)))
    return rows


def _write(ax: Axes, column: int, height: int, value: float, ink: str, framed: bool) -> None:
    """Write a number into its cell, a dash for NaN, and frame the strongest attack's."""
    from matplotlib.patches import Rectangle

    text = NONE if math.isnan(value) else f"{value:.1f}"
    ax.text(column, height, text, ha="center", va="center", fontsize=7.5, color=ink)
    if framed:
        ax.add_patch(Rectangle((column - 0.47, height - 0.45), 0.94, 0.9, fill=False, edgecolor=STRONGEST, lw=1.8))


def leaked(reached: Mapping[str, Leakage], attack: str, otherwise: float) -> float:
    """The leakage by an attack; another number where it does not apply."""
    return reached[attack].mean.value if attack in reached else otherwise
