"""Plots of one measure against another, one point per setting of a defense: trade-offs of privacy and utility."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.report.plots import (
    Drawing,
    having,
    judged,
    named,
    series_of,
    undefended_and_references,
    values_of,
    whiskers,
)
from leakbench.report.statistics import over_seeds
from leakbench.report.style import REFERENCE_COLOUR, colour, marker, other_marker, panels
from leakbench.report.tidy import SETTING, setting_columns
from leakbench.report.under_attacked import COLUMN, under_attacked

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNDEFENDED_SIZE = 70
STRONGEST = "strongest"
"""The label of :func:`strongest`."""


@dataclass(frozen=True)
class TradeOff:
    """Content of a panel: defenses with attack and training jobs over one parameter.

    Attributes:
        frame: tidy table of an experiment with attack and training jobs.
        parameter: the swept parameter; both kinds of job have it.
        names: defense label -> name in the legend.
        parameter_label: name of the parameter in the legend of sizes.
        attacks: label of an attack -> suffix of a defense's name in the legend. The first is that on the undefended
            gradient; the second has other markers and dotted lines.
    """

    frame: pd.DataFrame
    parameter: str
    names: Mapping[str, str]
    parameter_label: str
    attacks: Mapping[str, str]

    @property
    def ranks(self) -> dict[float, int]:
        """The values of the parameter with their ranks."""
        values = sorted(having(self.frame, self.parameter)[SETTING + self.parameter].dropna().unique())
        return {value: rank for rank, value in enumerate(values)}


def pairs(horizontal: pd.DataFrame, vertical: pd.DataFrame, parameter: str) -> pd.DataFrame:
    """Two measures of one defense, a row per setting: the columns of ``over_seeds``, with ``_x`` and ``_y``.

    Args:
        horizontal: tidy rows of a metric; ``void`` where these are.
        vertical: tidy rows of another one.
        parameter: the swept parameter that both have; NaN where they sweep nothing.
    """
    keys = ["mechanism", SETTING + parameter]
    for column in setting_columns(horizontal):
        if column not in keys and horizontal[column].notna().any() and vertical[column].notna().any():
            keys.append(column)  # a compared defense has parameters of its own
    return judged(horizontal, keys).merge(over_seeds(vertical, keys), on=keys, suffixes=("_x", "_y"))


def draw_pairs(
    ax: Axes, points: pd.DataFrame, parameter: str, name: str, sizes: Sequence[float], *, other: bool = False
) -> list[dict[str, Any]]:
    """Points of :func:`pairs` with intervals in both directions, joined by a line; returns the numbers that they show.

    Args:
        ax: where to draw.
        points: one row per setting, with ``mean_x``, ``mean_y`` and their intervals.
        parameter: the swept one.
        name: of the series, in the legend.
        sizes: of the points, in square points of print.
        other: a second series of the same mechanism, with another marker and a dotted line.
    """
    mechanism, void = points["mechanism"].iloc[0], bool(points["void"].any())
    tint = colour(mechanism)
    ax.errorbar(
        points["mean_x"],
        points["mean_y"],
        xerr=whiskers(points, "_x"),
        yerr=whiskers(points, "_y"),
        color=tint,
        linewidth=0.6,
        alpha=0.55,
        linestyle=("--" if void else ":" if other else "-") if len(points) > 1 else "none",
    )
    ax.scatter(
        points["mean_x"],
        points["mean_y"],
        s=sizes,
        facecolor="none" if void else tint,
        edgecolor=tint,
        marker=other_marker(mechanism) if other else marker(mechanism),
        label=named(name, void, weak=under_attacked(points)),
        zorder=3,
    )
    others = [column for column in setting_columns(points) if column != SETTING + parameter]
    return [
        {"series": name, parameter: row[SETTING + parameter]}
        | {column.removeprefix(SETTING): row[column] for column in others}
        | {"x": row["mean_x"], "x_low": row["low_x"], "x_high": row["high_x"], "x_lost": row["lost_x"]}
        | {"y": row["mean_y"], "y_low": row["low_y"], "y_high": row["high_y"], "y_lost": row["lost_y"]}
        | {"seeds": row["seeds_x"], "void": row["void"], COLUMN: row[COLUMN]}
        for row in points.to_dict("records")
    ]


def strongest(frame: pd.DataFrame, attacks: Collection[str], metric: str) -> pd.DataFrame:
    """The table with the strongest of some attacks alone, in every setting of every defense, labelled ``strongest``.

    Args:
        frame: tidy table of attacks.
        attacks: labels of those to choose from.
        metric: an error of the reconstruction; the attack with the smallest mean is the strongest.
    """
    among = frame[frame["attack"].isin(attacks)]
    keys = ["defense", *setting_columns(frame)]
    means = over_seeds(values_of(among, metric), [*keys, "attack"]).sort_values("mean")
    best = among.merge(means.drop_duplicates(keys)[[*keys, "attack"]], on=[*keys, "attack"])
    return pd.concat([frame[~frame["attack"].isin(attacks)], best.assign(attack=STRONGEST)], ignore_index=True)


def draw_trade_off(ax: Axes, shown: TradeOff, privacy: str, utility: str) -> list[dict[str, Any]]:
    """Attack error against training loss: one point per setting, its area growing with the parameter.

    Args:
        ax: where to draw.
        shown: what is compared, and under which names.
        privacy: metric of the attack jobs, horizontal.
        utility: metric of the training jobs, vertical.

    Returns:
        The numbers that it shows.
    """
    parameter, first = shown.parameter, next(iter(shown.attacks))
    frame = having(shown.frame, parameter)
    numbers: list[dict[str, Any]] = []
    for label, (line, tint, style) in undefended_and_references(frame, privacy, first).items():
        if label != "no defense":
            ax.axvline(line["mean"], color=tint, linestyle=style, linewidth=1, label=label)
            numbers.append(
                {"series": label, parameter: None, "x": line["mean"], "x_low": line["low"], "x_high": line["high"]}
                | {"void": line["void"]}
            )
    ranks = shown.ranks
    for defense, name in {"none": "no defense", **series_of(frame, shown.names)}.items():
        for attack, words in shown.attacks.items():
            horizontal = values_of(frame, privacy, defense=defense, attack=attack)
            points = pairs(horizontal, values_of(frame, utility, defense=defense), parameter)
            if points.empty:
                continue
            sizes = [
                _size(ranks[value]) if value in ranks else UNDEFENDED_SIZE for value in points[SETTING + parameter]
            ]
            behind = "" if defense == "none" else words
            numbers += draw_pairs(ax, points, parameter, name + behind, sizes, other=attack != first)
    keep_in_view(ax, numbers)
    return numbers


def keep_in_view(ax: Axes, numbers: Sequence[Mapping[str, Any]]) -> None:
    """Limit the axes to all points and lines, with a margin of at most half their range for intervals.

    With two or three seeds, intervals can be so wide that the points would coincide. ``numbers`` are rows with ``x``,
    ``y``, or one of them.
    """
    for axis, limits, limit in (("x", ax.get_xlim, ax.set_xlim), ("y", ax.get_ylim, ax.set_ylim)):
        means = [row[axis] for row in numbers if row.get(axis) == row.get(axis) and row.get(axis) is not None]
        reach = (max(means) - min(means)) / 2 if means else 0.0
        if reach > 0:
            low, high = limits()
            limit(max(low, min(means) - reach), min(high, max(means) + reach))


def trade_off(shown: TradeOff, *, privacy: str, utility: str, xlabel: str, ylabel: str) -> Drawing:
    """One panel of :func:`draw_trade_off`."""
    figure, (ax,) = panels(1, width=6.4, height=3.9)
    numbers = draw_trade_off(ax, shown, privacy, utility)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    explain(ax, shown)
    return Drawing(figure, pd.DataFrame(numbers))


def trade_offs(shown: Mapping[str, TradeOff], *, privacy: str, utility: str, xlabel: str, ylabel: str) -> Drawing:
    """Panels of :func:`draw_trade_off`, one above the other, by their titles."""
    figure, axes = panels(len(shown), width=6.4, height=3.6, columns=1)
    numbers: list[dict[str, Any]] = []
    for ax, (title, panel) in zip(axes, shown.items(), strict=True):
        numbers += [{"panel": title, **row} for row in draw_trade_off(ax, panel, privacy, utility)]
        ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
        explain(ax, panel, fontsize="small")
    return Drawing(figure, pd.DataFrame(numbers))


def _size(rank: int) -> int:
    return 12 + 16 * rank


MANY = 6
"""Sizes that a legend shows one by one."""
LINES = 12
"""Lines of a legend beside one panel that leave room for a caption."""


def explain(ax: Axes, shown: TradeOff, fontsize: str = "medium") -> None:
    """Add the legend beside the axes: series, and sizes; of many the smallest, a middle and the largest one."""
    handles, labels = ax.get_legend_handles_labels()
    ranks = shown.ranks
    values: Sequence[float] = list(ranks)
    few = values if len(values) <= MANY else [values[0], values[len(values) // 2], values[-1]]
    if few:
        handles.append(ax.scatter([], [], s=0))
        labels.append(f"{shown.parameter_label}:")
    for value in few:
        handles.append(ax.scatter([], [], s=_size(ranks[value]), color=REFERENCE_COLOUR))
        labels.append(f"{value:g}")
    if sum(label.count("\n") + 1 for label in labels) > LINES:
        fontsize = "small"
    ax.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=fontsize)
