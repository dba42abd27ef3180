"""The kinds of plot that papers share: a metric against a parameter, training curves, trade-offs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakbench.lazy import pd
from leakbench.report.statistics import over_seeds
from leakbench.report.style import REFERENCE_COLOUR, REFERENCES, colour, marker, panels
from leakbench.report.tidy import SETTING
from leakbench.report.verdicts import VOID

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Drawing:
    """A figure and the numbers that it shows."""

    figure: Figure
    numbers: pd.DataFrame

    @property
    def shows_void(self) -> bool:
        """Whether a series in it says nothing, since its attack is too weak."""
        return "void" in self.numbers and bool(self.numbers["void"].any())


def values_of(frame: pd.DataFrame, metric: str, **equal: str) -> pd.DataFrame:
    """Rows of one metric, and of given values of other columns."""
    chosen = frame["metric"] == metric
    for column, value in equal.items():
        chosen &= frame[column] == value
    return frame[chosen]


def _judged(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """:func:`over_seeds` of numbers of attacks, and whether they are void."""
    return over_seeds(frame, by).assign(void=frame.groupby(list(by), dropna=False)["void"].any().to_numpy())


def _named(name: str, void: bool) -> str:
    """The name of a series in the legend; on two lines if it is void, lest the legend take the place of the axes."""
    return f"{name}\n({VOID})" if void else name


def _series(frame: pd.DataFrame, names: Mapping[str, str], parameter: str | None = None) -> dict[str, str]:
    """The named defenses of an experiment, and those that a user added to it, under their labels.

    Args:
        parameter: only added defenses that sweep it.
    """
    others = frame if parameter is None else frame[frame[SETTING + parameter].notna()]
    named = {label: name for label, name in names.items() if label in set(frame["defense"])}
    added = [label for label in others["defense"].unique() if label not in {"none", *names}]
    return named | {label: label for label in added}


def _undefended_and_references(frame: pd.DataFrame, metric: str, attack: str) -> dict[str, tuple[pd.Series, str, str]]:
    """Lines that every comparison carries: label -> (statistics, colour, line style)."""
    lines = {"no defense": (attack, colour("none"), "-")}
    lines |= {label: (name, REFERENCE_COLOUR, style) for name, (label, style) in REFERENCES.items()}
    found = {}
    for label, (name, tint, style) in lines.items():
        rows = values_of(frame, metric, mechanism="none", attack=name)
        if len(rows):
            line = _judged(rows, ["mechanism"]).iloc[0]
            found[label] = (line, tint, "--" if line["void"] else style)
    return found


def against_parameter(
    frame: pd.DataFrame,
    parameter: str,
    metrics: Mapping[str, str],
    names: Mapping[str, str],
    *,
    attack: str,
    xlabel: str,
    log: bool = False,
) -> Drawing:
    """One panel per metric: its mean against a swept parameter of the defense, with intervals over seeds.

    Args:
        frame: tidy table of an attack experiment.
        parameter: the swept parameter.
        metrics: metric -> axis label.
        names: defense label -> name in the legend.
        attack: label of the attack that is plotted.
        log: logarithmic horizontal axis.
    """
    figure, axes = panels(len(metrics))
    shown = []
    for ax, (metric, ylabel) in zip(axes, metrics.items(), strict=True):
        for label, (line, tint, style) in _undefended_and_references(frame, metric, attack).items():
            ax.axhline(line["mean"], color=tint, linestyle=style, linewidth=1, label=_named(label, line["void"]))
            shown.append({"metric": metric, "series": label, parameter: None, **line.drop("mechanism")})
        for defense, name in _series(frame, names, parameter).items():
            rows = values_of(frame, metric, defense=defense, attack=attack)
            points = _judged(rows, ["mechanism", SETTING + parameter]).sort_values(SETTING + parameter)
            mechanism = points["mechanism"].iloc[0]
            x = points[SETTING + parameter]
            void = bool(points["void"].any())
            ax.plot(
                x,
                points["mean"],
                color=colour(mechanism),
                marker=marker(mechanism),
                markerfacecolor="none" if void else colour(mechanism),
                linestyle="--" if void else "-",
                label=_named(name, void),
            )
            ax.fill_between(x, points["low"], points["high"], color=colour(mechanism), alpha=0.18, linewidth=0)
            shown += [
                {"metric": metric, "series": name, parameter: row[SETTING + parameter]}
                | {key: row[key] for key in ("mean", "low", "high", "seeds", "lost", "void")}
                for row in points.to_dict("records")
            ]
        ax.set(xlabel=xlabel, ylabel=ylabel)
        if log:
            ax.set_xscale("log")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(figure, pd.DataFrame(shown))


def training_curves(
    frame: pd.DataFrame, names: Mapping[str, str], *, window: int, styles: Mapping[str, str] | None = None
) -> Drawing:
    """Training loss against the step, smoothed by a trailing mean over ``window`` steps, with intervals over seeds.

    Args:
        frame: tidy table of a training experiment.
        names: defense label -> name in the legend.
        styles: defense label -> line style, where several labels share a mechanism and so a colour.
    """
    figure, (ax,) = panels(1, width=6.2, height=3.4)
    shown = []
    for defense, name in _series(frame, names).items():
        rows = values_of(frame, "loss_curve", defense=defense).sort_values(["seed", "index"])
        smooth = rows.assign(
            value=rows.groupby("seed")["value"].transform(
                lambda loss: loss.rolling(window, min_periods=1).mean().where(loss.notna())  # ends where a run diverged
            )
        )
        points = over_seeds(smooth, ["mechanism", "index"])
        tint = colour(points["mechanism"].iloc[0])
        style = (styles or {}).get(defense, "-")
        steps = points["index"] + 1
        ax.plot(steps, points["mean"], color=tint, linestyle=style, label=name)
        ax.fill_between(steps, points["low"], points["high"], color=tint, alpha=0.15, linewidth=0)
        shown.append(points.assign(series=name, step=steps).drop(columns=["mechanism", "index"]))
    ax.set(xlabel="server step", ylabel=f"training loss (nats), mean of {window} steps")
    ax.legend()
    return Drawing(figure, pd.concat(shown))


def trade_off(
    frame: pd.DataFrame,
    parameter: str,
    names: Mapping[str, str],
    *,
    attack: str,
    privacy: str,
    utility: str,
    xlabel: str,
    ylabel: str,
    parameter_label: str,
) -> Drawing:
    """Attack error against training loss: one point per setting, its area growing with the parameter.

    Args:
        frame: tidy table of an experiment with attack and training jobs.
        parameter: the swept parameter; both kinds of job have it.
        names: defense label -> name in the legend.
        privacy: metric of the attack jobs, horizontal.
        utility: metric of the training jobs, vertical.
        parameter_label: name of the parameter in the legend of sizes.
    """
    figure, (ax,) = panels(1, width=6.4, height=3.9)
    column = SETTING + parameter
    shown = []
    for label, (line, tint, style) in _undefended_and_references(frame, privacy, attack).items():
        if label != "no defense":
            ax.axvline(line["mean"], color=tint, linestyle=style, linewidth=1, label=label)
            shown.append(
                {"series": label, parameter: None, "x": line["mean"], "x_low": line["low"], "x_high": line["high"]}
                | {"void": line["void"]}
            )
    ranks = {value: rank for rank, value in enumerate(sorted(frame[column].dropna().unique()))}
    for defense, name in {"none": "no defense", **_series(frame, names)}.items():
        keys = ["mechanism", column]
        horizontal = _judged(values_of(frame, privacy, defense=defense, attack=attack), keys)
        vertical = over_seeds(values_of(frame, utility, defense=defense), keys)
        both = horizontal.merge(vertical, on=keys, suffixes=("_x", "_y"))
        mechanism, void = both["mechanism"].iloc[0], bool(both["void"].any())
        tint = colour(mechanism)
        sizes = [12 + 16 * ranks[value] if value in ranks else 70 for value in both[column]]
        ax.errorbar(
            both["mean_x"],
            both["mean_y"],
            xerr=_whiskers(both, "x"),
            yerr=_whiskers(both, "y"),
            color=tint,
            linewidth=0.6,
            alpha=0.55,
            linestyle=("--" if void else "-") if len(both) > 1 else "none",
        )
        ax.scatter(
            both["mean_x"],
            both["mean_y"],
            s=sizes,
            facecolor="none" if void else tint,
            edgecolor=tint,
            marker=marker(mechanism),
            label=_named(name, void),
            zorder=3,
        )
        shown += [
            {"series": name, parameter: row[column]}
            | {"x": row["mean_x"], "x_low": row["low_x"], "x_high": row["high_x"], "x_lost": row["lost_x"]}
            | {"y": row["mean_y"], "y_low": row["low_y"], "y_high": row["high_y"], "y_lost": row["lost_y"]}
            | {"seeds": row["seeds_x"], "void": row["void"]}
            for row in both.to_dict("records")
        ]
    ax.set(xlabel=xlabel, ylabel=ylabel)
    series = ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _size_legend(ax, ranks, parameter_label)
    ax.add_artist(series).set_clip_on(False)  # it stands beside the axes, and counts for the figure's size
    return Drawing(figure, pd.DataFrame(shown))


def _whiskers(points: pd.DataFrame, axis: str) -> list[pd.Series]:
    mean = points[f"mean_{axis}"]
    return [mean - points[f"low_{axis}"], points[f"high_{axis}"] - mean]


def _size_legend(ax: Axes, ranks: Mapping[float, int], title: str) -> None:
    values: Sequence[float] = list(ranks)
    few = dict.fromkeys([values[0], values[len(values) // 2], values[-1]])
    handles = [
        ax.scatter([], [], s=12 + 16 * ranks[value], color=REFERENCE_COLOUR, label=f"{value:g}") for value in few
    ]
    ax.legend(handles=handles, title=title, loc="lower left", bbox_to_anchor=(1.0, 0.0))
