"""Plots that papers share: a metric against a parameter of the defense, and curves over the steps of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.report.gate_verdicts import VOID
from leakbench.report.statistics import over_seeds
from leakbench.report.style import REFERENCE_COLOUR, REFERENCES, colour, marker, panels, whole_ticks
from leakbench.report.tidy import SETTING
from leakbench.report.under_attacked import COLUMN, DAGGER, under_attacked

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


STATISTICS = ("mean", "low", "high", "seeds", "lost", "void")
"""Columns of :func:`judged` beside those that it groups by, and the mark of under-attacked cells."""

LineStyle = str | tuple[int, tuple[int, ...]]
"""A name, or an offset and lengths of dashes and gaps."""


@dataclass(frozen=True)
class Drawing:
    """A figure and the numbers that it shows.

    >>> from leakbench.lazy import pd
    >>> from leakbench.report.style import panels
    >>> figure, (ax,) = panels(1)
    >>> _ = ax.plot([0.1, 0.2], [21.5, 17.0])
    >>> drawing = Drawing(figure, pd.DataFrame({"fraction": [0.1, 0.2], "mean": [21.5, 17.0], "void": False}))
    >>> drawing.shows_void
    False
    """

    figure: Figure
    numbers: pd.DataFrame

    @property
    def shows_void(self) -> bool:
        """Whether it has a void series, whose attack is too weak."""
        return "void" in self.numbers and bool(self.numbers["void"].any())


def values_of(frame: pd.DataFrame, metric: str, **equal: str | None) -> pd.DataFrame:
    """Rows of one metric, and of given values of other columns; None: whatever the value."""
    chosen = frame["metric"] == metric
    for column, value in equal.items():
        if value is not None:
            chosen &= frame[column] == value
    return frame[chosen]


def judged(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """:func:`over_seeds` of numbers of attacks, and whether they are void, or of under-attacked cells."""
    frame = frame if COLUMN in frame else frame.assign(**{COLUMN: False})
    marks = {column: frame.groupby(list(by), dropna=False)[column].any() for column in ("void", COLUMN)}
    return over_seeds(frame, by).assign(**{column: mark.to_numpy() for column, mark in marks.items()})


def whiskers(points: pd.DataFrame | pd.Series, end: str = "") -> list[Any]:
    """Lengths of the intervals below and above the means; ``end``: of the columns' names, such as ``_x``."""
    mean = points[f"mean{end}"]
    return [mean - points[f"low{end}"], points[f"high{end}"] - mean]


def named(name: str, void: bool, words: str = VOID, *, weak: bool = False) -> str:
    """The name of a series in the legend; on two lines if it is void, lest the legend take the place of the axes.

    >>> named("qsgd", False, weak=True)
    'qsgd †'
    """
    name = f"{name} {DAGGER}" if weak else name
    return f"{name}\n({words})" if void else name


def having(frame: pd.DataFrame, parameter: str) -> pd.DataFrame:
    """The table with a column for a swept parameter, which is empty if no job sweeps it."""
    column = SETTING + parameter
    return frame if column in frame else frame.assign(**{column: float("nan")})


def series_of(frame: pd.DataFrame, names: Mapping[str, str], parameter: str | None = None) -> dict[str, str]:
    """The named defenses of an experiment, and those that a user added to it, under their labels.

    Args:
        frame: tidy table of the experiment.
        names: defense label -> name.
        parameter: only added defenses that sweep it.
    """
    others = frame if parameter is None else frame[frame[SETTING + parameter].notna()]
    known = {label: name for label, name in names.items() if label in set(frame["defense"])}
    added = [label for label in others["defense"].unique() if label not in {"none", *names}]
    return known | {label: label for label in added}


def undefended_and_references(
    frame: pd.DataFrame, metric: str, attack: str | None
) -> dict[str, tuple[pd.Series, str, str]]:
    """Lines that every comparison carries: label -> (statistics, colour, line style).

    Args:
        frame: tidy table, with the undefended cells and the reference attackers.
        metric: whose values are drawn.
        attack: label of the attack on the undefended gradient; None where no attack is compared, but a training.
    """
    styles = {"no defense": (attack, colour("none"), "-")}
    if attack is not None:
        styles |= {label: (name, REFERENCE_COLOUR, style) for name, (label, style) in REFERENCES.items()}
    lines = {}
    for label, (name, tint, style) in styles.items():
        rows = values_of(frame, metric, mechanism="none", attack=name)
        if len(rows):
            line = judged(rows, ["mechanism"]).iloc[0]
            lines[label] = (line, tint, "--" if line["void"] else style)
    return lines


def draw_undefended_and_references(
    ax: Axes, frame: pd.DataFrame, metric: str, attack: str | None
) -> list[dict[str, object]]:
    """Horizontal lines of :func:`undefended_and_references`; returns the numbers that they show."""
    lines = undefended_and_references(frame, metric, attack)
    for label, (line, tint, style) in lines.items():
        ax.axhline(line["mean"], color=tint, linestyle=style, linewidth=1, label=named(label, line["void"]))
    return [{"metric": metric, "series": label, **line.drop("mechanism")} for label, (line, _, _) in lines.items()]


def draw_swept(
    ax: Axes, rows: pd.DataFrame, parameter: str, name: str, *, style: LineStyle = "-", mark: str | None = None
) -> list[dict[str, object]]:
    """A line of means against a swept parameter with a band of intervals; returns the numbers that they show.

    Args:
        ax: where to draw.
        rows: of one metric and one defense; hollow and dashed where they are void.
        parameter: the swept one, without ``setting.``.
        name: of the series, in the legend.
        style: line style, where several series share a mechanism and so a colour.
        mark: marker, empty for none; by default the mechanism's.
    """
    column = SETTING + parameter
    rows = rows[rows[column].notna()]
    if rows.empty:
        return []
    points = judged(rows, ["mechanism", column]).sort_values(column)
    mechanism, void = points["mechanism"].iloc[0], bool(points["void"].any())
    tint, x = colour(mechanism), points[column]
    ax.plot(
        x,
        points["mean"],
        color=tint,
        marker=marker(mechanism) if mark is None else mark,
        markerfacecolor="none" if void else tint,
        linestyle="--" if void else style,
        label=named(name, void, weak=under_attacked(points)),
    )
    ax.fill_between(x, points["low"], points["high"], color=tint, alpha=0.18, linewidth=0)
    metric = rows["metric"].iloc[0]
    return [
        {"metric": metric, "series": name, parameter: row[column]} | {key: row[key] for key in (*STATISTICS, COLUMN)}
        for row in points.to_dict("records")
    ]


def draw_level(ax: Axes, rows: pd.DataFrame, name: str) -> list[dict[str, object]]:
    """A horizontal line at the mean of a defense that does not have the parameter of the axis; returns the number.

    Args:
        ax: where to draw.
        rows: of one metric and one defense; there may be none.
        name: of the defense, in the legend.
    """
    if rows.empty:
        return []
    (row,) = judged(rows, ["metric", "mechanism"]).to_dict("records")
    mechanism, void = str(row.pop("mechanism")), bool(row["void"])
    label = named(name, void, weak=bool(row[COLUMN]))
    ax.axhline(row["mean"], color=colour(mechanism), linestyle="--" if void else "-", label=label)
    return [{"series": name, **{str(key): value for key, value in row.items()}}]


def against_parameter(
    frame: pd.DataFrame,
    parameter: str,
    metrics: Mapping[str, str],
    names: Mapping[str, str],
    *,
    attack: str | None,
    xlabel: str,
    log: bool = False,
) -> Drawing:
    """One panel per metric: its mean against a swept parameter of the defense, with intervals over seeds.

    Added defenses that do not sweep it are horizontal lines.

    >>> from leakbench.lazy import pd
    >>> frame = pd.DataFrame({"setting.scale": [0.1, 0.2, 0.1, 0.2], "seed": [0, 0, 1, 1], "value": [21, 17, 23, 19]})
    >>> frame = frame.assign(defense="noise", mechanism="gaussian_noise", attack="ig", metric="psnr", void=False)
    >>> names = {"noise": "Gaussian noise"}
    >>> drawing = against_parameter(frame, "scale", {"psnr": "PSNR (dB)"}, names, attack="ig", xlabel="deviation")
    >>> drawing.numbers[["series", "scale", "mean"]].to_dict("list")
    {'series': ['Gaussian noise', 'Gaussian noise'], 'scale': [0.1, 0.2], 'mean': [22.0, 18.0]}

    Args:
        frame: tidy table of an experiment.
        parameter: the swept parameter.
        metrics: metric -> axis label.
        names: defense label -> name in the legend.
        attack: label of the attack that is plotted; None for metrics of training.
        xlabel: of all panels.
        log: logarithmic horizontal axis.
    """
    frame = having(frame, parameter)
    figure, axes = panels(len(metrics), width=4.2 if len(metrics) > 1 else 6.4)
    shown: list[dict[str, object]] = []
    for ax, (metric, ylabel) in zip(axes, metrics.items(), strict=True):
        shown += draw_undefended_and_references(ax, frame, metric, attack)
        for defense, name in series_of(frame, names).items():
            rows = values_of(frame, metric, defense=defense, attack=attack)
            points = draw_swept(ax, rows, parameter, name)
            shown += points if points or defense in names else draw_level(ax, rows, name)
        ax.set(xlabel=xlabel, ylabel=ylabel)
        if log:
            ax.set_xscale("log")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(figure, pd.DataFrame(shown))


def draw_curve(
    ax: Axes, rows: pd.DataFrame, name: str, *, window: int, style: str = "-", tint: str | None = None
) -> pd.DataFrame:
    """A metric against the step, smoothed by a trailing mean; returns the numbers that it shows.

    Args:
        ax: where to draw.
        rows: of one metric and one defense, one value per step and seed; with intervals over seeds.
        name: of the series, in the legend.
        window: steps of the trailing mean.
        style: of the line.
        tint: colour; by default the mechanism's.
    """
    ordered = rows.sort_values(["seed", "index"])
    smooth = ordered.assign(
        value=ordered.groupby("seed")["value"].transform(
            lambda values: (
                values.rolling(window, min_periods=1).mean().where(values.notna())
            )  # ends where a run diverged
        )
    )
    points = over_seeds(smooth, ["mechanism", "index"])
    tint = tint or colour(points["mechanism"].iloc[0])
    steps = points["index"] + 1
    ax.plot(steps, points["mean"], color=tint, linestyle=style, label=name)
    ax.fill_between(steps, points["low"], points["high"], color=tint, alpha=0.15, linewidth=0)
    return points.assign(series=name, step=steps).drop(columns=["mechanism", "index"])


def training_curves(
    frame: pd.DataFrame, names: Mapping[str, str], *, window: int, styles: Mapping[str, str] | None = None
) -> Drawing:
    """Training loss against the step, smoothed by a trailing mean over ``window`` steps, with intervals over seeds.

    Args:
        frame: tidy table of a training experiment.
        names: defense label -> name in the legend.
        window: steps of the trailing mean.
        styles: defense label -> line style, where several labels share a mechanism and so a colour.
    """
    figure, (ax,) = panels(1, width=6.2, height=3.4)
    shown = []
    for defense, name in series_of(frame, names).items():
        rows = values_of(frame, "loss_curve", defense=defense)
        shown.append(draw_curve(ax, rows, name, window=window, style=(styles or {}).get(defense, "-")))
    ax.set(xlabel="server step", ylabel=f"training loss (nats), mean of {window} steps")
    whole_ticks(ax.xaxis)
    ax.legend()
    return Drawing(figure, pd.concat(shown))
