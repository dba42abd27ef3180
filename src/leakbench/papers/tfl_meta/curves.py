"""Figure S4: recovery, loss of accuracy and bits, over the parameter of every mechanism."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.papers.tfl_meta import measured
from leakbench.papers.tfl_meta.common import figure
from leakbench.papers.tfl_meta.measured import (
    BUDGET,
    CONSTANTS,
    ENCRYPTED,
    EXPERIMENTS,
    FORMS,
    IN_USE,
    MECHANISMS,
    SHARES,
    SWEPT,
    TUNED,
    UTILITY,
    Swept,
    accuracy_loss,
    bits_over_plain,
    dropped,
    first_threshold,
    loss_of,
    optima,
    rates,
    tuned_runs,
)
from leakbench.report.artifacts import Tables
from leakbench.report.gate_verdicts import VOID
from leakbench.report.plots import Drawing
from leakbench.report.style import REFERENCE_COLOUR, colour, marker, plain_ticks, use_style
from leakbench.report.tidy import cells_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

QUANTITIES = {"recovery": "recovered", "loss": "loss of accuracy\n(percentage points)", "bits": "bits over plain"}
"""Rows of panels, and their axes."""
TUNED_MARK, OTHER_ATTACK = "D", "s"
AT = 1.0
"""The budget over C1 whose optimum is marked."""


@figure(
    "S4",
    title="Recovery, accuracy and bits over the parameter of every mechanism",
    caption="Top: the part of data and attempts in which DLG's reconstruction exceeds the threshold of PSNR; bands are "
    "Wilson's 95 % interval of one client, mean over clients and seeds. Squares: attackers who leave out what was "
    "dropped, and take back a scaling of the rest. Middle: accuracy lost against undefended training of the same "
    "seeds, bands are 95 % t-intervals over seeds; of two seeds, their range. Shared masks: of two clients. Bottom: "
    "bits of an upload over those of a plain one, with what one client tells the other. Black: without protection. "
    "Vertical lines: the parameter that the paper's metric asks for at a budget of epsilon = C1, mean over seeds; "
    "grey: from the least to the largest one over all budgets. Diamonds: measured there, all budgets and formulas; of "
    "masks the corrected optimum is just above the largest value of the client who has the smallest, and the printed "
    "one above that of all clients. Of rescaled compression the optimum is that of eq. 85 at zero. Horizontal, in the "
    "last two columns: shares in a ring, and encryption with a key that is in use, which have no parameter. Paillier's "
    "n* has a bit or two and is no key. Toy keys are easily factored; no training is run under them.",
    experiments=EXPERIMENTS,
    leaves_out="it has a column for each of the paper's mechanisms and its parameter; Figure S9 compares settings",
)
def fig_s4(tables: Tables) -> Drawing:
    """Three rows of panels per data set and model, a column per mechanism."""
    use_style()
    import matplotlib.pyplot as plt

    cells = cells_of(tables[SWEPT])
    rows = len(cells) * len(QUANTITIES)
    drawn, grid = plt.subplots(
        rows,
        len(MECHANISMS),
        figsize=(2.5 * len(MECHANISMS) + 0.6, 1.9 * rows + 0.9),
        squeeze=False,
        sharex="col",
        layout="constrained",
    )
    numbers = []
    for block, cell in enumerate(cells):
        here = measured.tables_of(tables, *cell)
        for place, entry in enumerate(MECHANISMS):
            axes = dict(zip(QUANTITIES, grid[3 * block : 3 * block + 3, place], strict=True))
            numbers.append(_column(axes, here, entry).assign(dataset=cell[0], model=cell[1], mechanism=entry.label))
            title = entry.name if len(cells) == 1 else f"{entry.name}\n({cell[0]}, {cell[1]})"
            axes["recovery"].set_title(title, fontsize="medium")
        for (quantity, label), axes in zip(QUANTITIES.items(), grid[3 * block : 3 * block + 3], strict=True):
            _align(quantity, label, list(axes))
    for ax, entry in zip(grid[-1], MECHANISMS, strict=True):
        ax.set_xlabel(entry.axis)
    frame = pd.concat(numbers, ignore_index=True)
    _legend(drawn, bool(frame["void"].any()))
    return Drawing(drawn, frame)


def _align(quantity: str, label: str, axes: list[Axes]) -> None:
    """One scale for a row of panels."""
    if quantity == "bits":
        for ax in axes:
            ax.set_yscale("log")
    low, high = (end(ax.get_ylim()[place] for ax in axes) for place, end in enumerate((min, max)))
    for ax in axes:
        if quantity == "recovery":
            ax.set_ylim(-0.05, 1.05)
        else:
            ax.set_ylim(low, high)
        if ax is not axes[0]:
            ax.tick_params(labelleft=False)
    axes[0].set_ylabel(label)


def _column(axes: Mapping[str, Axes], tables: Tables, entry: Swept) -> pd.DataFrame:
    """The panels of one mechanism; returns the numbers that they show."""
    constants, swept = tables[CONSTANTS], tables[SWEPT]
    bare = measured.undefended(constants, swept)
    shown = list(_level(axes["recovery"], rates(bare, ["defense"]), colour("none"), "-", "without protection"))
    axes["loss"].axhline(0, color=colour("none"), linewidth=1)
    axes["bits"].axhline(1, color=colour("none"), linewidth=1)
    tint = colour(entry.mechanism)
    for place, (words, rows) in enumerate(measured.strongest(tables, entry).items()):
        mark = OTHER_ATTACK if place else marker(entry.mechanism)
        points = rates(rows, [entry.column])
        shown += _line(axes["recovery"], points, entry, tint, mark, "recovery", words)
    bits = bits_over_plain(swept[swept["defense"] == entry.label], constants, [entry.column])
    shown += _line(axes["bits"], bits, entry, tint, marker(entry.mechanism), "bits", "")
    if entry.utility:
        lost = loss_of(tables[entry.utility], entry.label, [entry.column])
        shown += _line(axes["loss"], lost, entry, tint, marker(entry.mechanism), "loss", "")
    shown += _constant(axes, tables, entry)
    shown += _optima(axes, tables, entry)
    for ax in axes.values():
        ax.set_xscale("log", base=2 if entry.parameter == "key_bits" else 10)
    if entry.parameter == "key_bits":
        plain_ticks(axes["bits"].xaxis)
        axes["bits"].set_xticks(sorted(bits[entry.column]))
    if not entry.utility:
        axes["loss"].text(0.5, 0.5, "not trained", ha="center", transform=axes["loss"].transAxes)
    return pd.DataFrame(shown)


def _line(
    ax: Axes, points: pd.DataFrame, entry: Swept, tint: str, mark: str, quantity: str, attack: str
) -> Iterator[dict[str, Any]]:
    """Points over the parameter with a band, hollow and dashed where they are void."""
    points = points.sort_values(entry.column)
    void = bool(points["void"].any())
    ax.plot(
        points[entry.column],
        points["mean"],
        color=tint,
        marker=mark,
        markersize=4,
        markerfacecolor="none" if void else tint,
        linestyle="--" if void else "-",
    )
    ax.fill_between(points[entry.column], points["low"], points["high"], color=tint, alpha=0.15, linewidth=0)
    for row in points.to_dict("records"):
        yield _row(quantity, row, attack, "swept", row[entry.column])


def _row(quantity: str, row: Mapping[Any, Any], attack: str, series: str, place: float | None) -> dict[str, Any]:
    shown = {key: row[key] for key in ("mean", "low", "high", "seeds", "void")}
    return {"quantity": quantity, "series": series, "attack": attack, "parameter": place, **shown}


def _level(ax: Axes, points: pd.DataFrame, tint: str, style: str, series: str) -> Iterator[dict[str, Any]]:
    """Horizontal lines of settings without a parameter."""
    for row in points.to_dict("records"):
        ax.axhline(row["mean"], color=tint, linestyle=style, linewidth=1)
        yield _row("recovery", row, "DLG", series, None)


def _constant(axes: Mapping[str, Axes], tables: Tables, entry: Swept) -> list[dict[str, Any]]:
    """Horizontal lines of shares beside masks, and of a key in use beside toy keys."""
    constants = tables[CONSTANTS]
    if entry.label == "masks":
        rows, name, mechanism = tables[SWEPT], SHARES, "additive_sharing"
    elif entry.label == "encrypted":
        rows, name, mechanism = tables[ENCRYPTED], IN_USE, entry.mechanism
        rows = rows[rows[BUDGET] == rows[BUDGET].max()]
    else:
        return []
    rows = first_threshold(rows[rows["defense"] == name])
    if rows.empty:
        return []
    shown = []
    for quantity, points in (
        ("recovery", rates(rows, ["defense"])),
        ("loss", loss_of(tables[UTILITY], name)),
        ("bits", bits_over_plain(rows, constants, ["defense"])),
    ):
        for row in points.to_dict("records"):
            axes[quantity].axhline(row["mean"], color=colour(mechanism), linestyle=(0, (6, 2)), linewidth=1.2)
            shown.append(_row(quantity, row, "DLG" if quantity == "recovery" else "", name, None))
    return shown


def _optima(axes: Mapping[str, Axes], tables: Tables, entry: Swept) -> list[dict[str, Any]]:
    """Lines, a span and diamonds where optima are; of rescaled compression lines alone."""
    tuned = tables[TUNED]
    if entry.label == "rescaled":
        other = next(each for each in MECHANISMS if each.label == "compression")
        places = optima(tuned, other)
        laws = zip(places["tau"], places["dimension"], strict=True)
        places = places.assign(place=[dropped(tau, size, rescaled=True) for tau, size in laws])
    else:
        places = optima(tuned, entry)
    if places.empty:
        return []
    means = places.groupby(["defense", "form", "budget"], sort=False)["place"].mean().reset_index()
    corrected = means["place"][means["form"] == measured.CORRECTED]
    for ax in axes.values():
        ax.axvspan(corrected.min(), corrected.max(), color=REFERENCE_COLOUR, alpha=0.2, linewidth=0)
        for row in means[means["budget"] == AT].to_dict("records"):
            ax.axvline(row["place"], color="#333333", linestyle=FORMS[row["form"]], linewidth=0.9)
    shown: list[dict[str, Any]] = [
        {
            "quantity": "optimum",
            "series": row["form"],
            "budget": row["budget"],
            "parameter": row["place"],
            "void": False,
        }
        for row in means.to_dict("records")
    ]
    if entry.label == "rescaled":
        return shown
    known = first_threshold(tuned[tuned["defense"].isin(entry.tuned)])
    for quantity, points in (
        ("recovery", rates(known, ["defense", BUDGET])),
        ("loss", accuracy_loss(tuned_runs(tables, entry), ["defense", BUDGET])),
        ("bits", bits_over_plain(known, tables[CONSTANTS], ["defense", BUDGET])),
    ):
        at = points.merge(means, left_on=["defense", BUDGET], right_on=["defense", "budget"])
        axes[quantity].plot(
            at["place"],
            at["mean"],
            linestyle="none",
            marker=TUNED_MARK,
            markersize=4,
            markeredgecolor="white",
            markeredgewidth=0.4,
            color=colour(entry.mechanism),
            zorder=3,
        )
        for row in at.to_dict("records"):
            attack = "DLG" if quantity == "recovery" else ""
            shown.append(_row(quantity, row, attack, row["form"], row["place"]) | {"budget": row["budget"]})
    return shown


def _legend(drawn: Figure, void: bool) -> None:
    """The meanings of lines and marks, in grey, since colours are of mechanisms."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    dark = "#333333"
    handles: list[Any] = [
        Line2D([], [], color=colour("none"), linewidth=1, label="without protection"),
        Line2D([], [], color=REFERENCE_COLOUR, marker="o", markersize=4, label="DLG"),
        Line2D([], [], color=REFERENCE_COLOUR, marker=OTHER_ATTACK, markersize=4, label="attack on what is left"),
        Line2D([], [], color=REFERENCE_COLOUR, linestyle=(0, (6, 2)), label="shares in a ring; a key in use"),
        Line2D([], [], color=REFERENCE_COLOUR, linestyle="none", marker=TUNED_MARK, label="measured at an optimum"),
        Patch(color=REFERENCE_COLOUR, alpha=0.2, label="optima, all budgets"),
    ]
    handles += [
        Line2D([], [], color=dark, linewidth=0.9, linestyle=style, label=rf"optimum, $\epsilon = C_1$: {form}")
        for form, style in FORMS.items()
    ]
    if void:
        handles.append(
            Line2D([], [], color=REFERENCE_COLOUR, linestyle="--", marker="o", markerfacecolor="none", label=VOID)
        )
    drawn.legend(handles=handles, loc="outside upper center", ncols=4, fontsize="small", handlelength=3)
