"""Supplements of ours: equal utility, attackers who know the defense, what theory alone predicts, plain SGD."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.papers.optimal_defense.common import (
    ADAPTIVE,
    ATTACK,
    ATTACKERS,
    BLIND,
    ERRORS,
    INTERVALS,
    LOSS,
    MSE_AGAINST_LOSS,
    NOISE_AT_U2,
    NOISE_IN_SHORT,
    PRUNING,
    REFERENCES,
    TRADED,
    UNDEFENDED,
    figure,
    noise,
    pruning,
    together,
)
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, draw_swept, draw_undefended_and_references, having, series_of, values_of
from leakbench.report.style import marker, other_marker, panels, plain_ticks
from leakbench.report.tidy import SETTING
from leakbench.report.trade_offs import (
    STRONGEST,
    TradeOff,
    draw_pairs,
    draw_trade_off,
    explain,
    pairs,
    strongest,
    trade_offs,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KNOWING = (
    "Both attackers invert gradients with the true labels; the one who knows the defense maximises the likelihood of "
    "the message: kept coordinates are exact, pruned or clipped ones beyond a bound, and noise has its law, with a "
    "variance that the attacker estimates where it depends on the data; beside it counts total variation of 0.01."
)

FIRST_STEP = (
    reads("pruning", defenses=PRUNING, attacks=ATTACK),
    reads("noise", defenses=NOISE_IN_SHORT, attacks=ATTACK),
)
SINGLE = {"gp-80": ("gp", 0.8), "gp-90": ("gp", 0.9), "op-70": ("op", 0.7), "op-80": ("op", 0.8)}
"""Labels of defenses with one fraction -> label of the series, fraction."""


@figure(
    "S1",
    title="Noise at equal utility",
    caption="Clipped noise and optimal noise with the same variance of <g, y>, which is the budget of the paper's "
    "theorems. Above: error of the paper's attacker, of one who knows the defense, of reference attackers who see no "
    "gradient, and the lower bound of Theorem 1, were images normal with the covariance of training images. Of the "
    "message it knows the trace of the Fisher information alone, which may lie in whichever directions help most; what "
    "the covariance of optimal noise tells is not counted; on a small network it leaves next to no bound (I11 of the "
    "paper's page). Real images are not normal, so that they may be known better. Below: trade-off for "
    f"whichever attacker errs less. A better defense lies lower and further right. {KNOWING} {INTERVALS}",
    experiments=(UNDEFENDED, reads("equal_utility", defenses=NOISE_AT_U2, attacks=ATTACKERS)),
    any_sweep=True,
)
def fig_s1(tables: Tables) -> Drawing:
    """MSE and bound against the budget; trade-off for the stronger attacker."""
    frame = together(tables)
    drawn, (upper, lower) = panels(2, width=6.6, height=3.7, columns=1)
    numbers = _errors_and_bounds(upper, frame)
    best = strongest(frame, ATTACKERS, "mse_input")
    shown = TradeOff(best, "scale", NOISE_AT_U2, r"variance of $\langle g, y\rangle$", {STRONGEST: ""})
    numbers += [{"panel": "trade-off", **row} for row in draw_trade_off(lower, shown, "mse_input", "final_loss")]
    lower.set(title="trade-off, stronger attacker", xlabel=ERRORS["mse_input"], ylabel=LOSS)
    explain(lower, shown)
    return Drawing(drawn, pd.DataFrame(numbers))


def _errors_and_bounds(ax: Axes, frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Errors of both attackers against the budget, and the lower bounds."""
    numbers = draw_undefended_and_references(ax, frame, "mse_input", ATTACK)
    defenses = series_of(frame, NOISE_AT_U2, "scale")
    for defense, name in defenses.items():
        for attack, words in ATTACKERS.items():
            rows = values_of(frame, "mse_input", defense=defense, attack=attack)
            if len(rows):
                knowing, mechanism = attack != ATTACK, rows["mechanism"].iloc[0]
                mark = other_marker(mechanism) if knowing else marker(mechanism)
                numbers += draw_swept(ax, rows, "scale", name + words, style=":" if knowing else "-", mark=mark)
    for defense, name in defenses.items():
        numbers += draw_swept(
            ax, values_of(frame, "bound", defense=defense), "scale", f"bound: {name}", style="-.", mark=""
        )
    ax.set(xscale="log", yscale="log", title="error and bound")
    ax.set(xlabel=r"variance of $\langle g, y\rangle$ (utility budget $-U_2$)", ylabel=ERRORS["mse_input"])
    plain_ticks(ax.yaxis)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return [{"panel": "error and bound", **row} for row in numbers]


@figure(
    "S2",
    title="Trade-offs when the attacker knows the defense",
    caption=f"Figures 4 and 7 with both attackers. {TRADED.format(optimiser='Adam')} {KNOWING} {INTERVALS} {BLIND}",
    experiments=(UNDEFENDED, *FIRST_STEP, reads("adaptive", defenses=(*PRUNING, *NOISE_IN_SHORT), attacks=ADAPTIVE)),
    any_sweep=True,
    in_parts=True,
)
def fig_s2(tables: Tables) -> Drawing:
    """Trade-offs of pruning and of noise, for the paper's attacker and for one who knows the defense."""
    shown = {}
    for experiment in ("pruning", "noise"):
        here = together(tables, "undefended", experiment)
        adaptive = tables["adaptive"]
        shown[experiment] = pd.concat([here, adaptive[adaptive["defense"].isin(here["defense"])]], ignore_index=True)
    return trade_offs(
        {
            "pruning": pruning(shown["pruning"], PRUNING, ATTACKERS),
            "noise": noise(shown["noise"], NOISE_IN_SHORT, ATTACKERS),
        },
        **MSE_AGAINST_LOSS,
    )


@figure(
    "S3",
    title="What theory predicts of pruning without any attack",
    caption="Part of the Fisher information about the inputs that passes under equal noise, against the part of the "
    "squared gradient norm that is kept (utility U1), at initialisation; points are labelled with the pruned "
    "part. A better defense lies lower and further right. The models of the right panels normalise with running "
    f"statistics (eval) or with those of the client's batch (train). {INTERVALS}",
    experiments=(reads("information", defenses=PRUNING), reads("cifar_predictors", defenses=SINGLE)),
    in_parts=True,
)
def fig_s3(tables: Tables) -> Drawing:
    """Information that passes against utility kept, for both data sets, and on CIFAR-10 for both modes of BatchNorm."""
    cifar = having(tables["cifar_predictors"], "batch_norm")
    mode = SETTING + "batch_norm"
    # Its defenses are single fractions under labels of their own; here they are points of one series.
    fraction = cifar["defense"].map({label: part for label, (_, part) in SINGLE.items()})
    series = cifar["defense"].map({label: series for label, (series, _) in SINGLE.items()})
    cifar = cifar.assign(defense=series.fillna(cifar["defense"]))
    cifar[SETTING + "fraction"] = fraction
    mnist, data = having(tables["information"], "fraction"), " and ".join(cifar["dataset"].unique())
    mnist = mnist[mnist[SETTING + "fraction"].notna()]  # the table is about noise too
    shown = {" and ".join(mnist["dataset"].unique()): mnist}
    modes = {f"{data}, BatchNorm: {name}": cifar[cifar[mode] == name] for name in cifar[mode].dropna().unique()}
    shown |= modes or {data: cifar}
    shown = {title: frame for title, frame in shown.items() if len(frame)}  # a scale may leave one of both out
    drawn, axes = panels(len(shown), width=3.1, height=3.2)
    numbers: list[dict[str, Any]] = []
    for ax, (title, frame) in zip(axes, shown.items(), strict=True):
        numbers += [{"panel": title, **row} for row in _information_against_utility(ax, frame)]
        ax.set_title(title, fontsize="medium")
    axes[0].set_ylabel("Fisher information that passes")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(drawn, pd.DataFrame(numbers))


def _information_against_utility(ax: Axes, frame: pd.DataFrame) -> list[dict[str, Any]]:
    numbers = []
    for place, (defense, name) in enumerate(series_of(frame, PRUNING).items()):
        horizontal, vertical = (values_of(frame, metric, defense=defense) for metric in ("u1_kept", "information_kept"))
        points = pairs(horizontal, vertical, "fraction")
        if points.empty:
            continue
        shown = draw_pairs(ax, points, "fraction", name, [22] * len(points))
        for row in shown:
            if row["fraction"] == row["fraction"]:  # above the first series and below the others
                ax.annotate(
                    f"{row['fraction']:.0%}",
                    (row["x"], row["y"]),
                    xytext=(-5, 4) if place == 0 else (5, -4),
                    textcoords="offset points",
                    ha="right" if place == 0 else "left",
                    va="bottom" if place == 0 else "top",
                    fontsize="x-small",
                )
        numbers += shown
    ax.margins(0.15)
    ax.set(xlabel="utility kept, $U_1$")
    return numbers


@figure(
    "S4",
    title="Trade-offs under plain gradient descent",
    caption=f"Figures 4 and 7 with the optimiser of which U1 and U2 speak. {TRADED.format(optimiser='SGD')} "
    f"{INTERVALS} {REFERENCES}",
    experiments=(UNDEFENDED, *FIRST_STEP, reads("sgd", defenses=("none", *PRUNING, *NOISE_IN_SHORT))),
    any_sweep=True,
)
def fig_s4(tables: Tables) -> Drawing:
    """Trade-offs of pruning and of noise, with the losses of plain SGD and the errors of Figures 4 and 7."""
    shown = {}
    for experiment in ("pruning", "noise"):
        here = together(tables, "undefended", experiment)
        attacked = here[here["kind"] == "attack"]
        trained = tables["sgd"][tables["sgd"]["defense"].isin(attacked["defense"])]
        shown[experiment] = pd.concat([attacked, trained], ignore_index=True)
    paper = {ATTACK: ""}
    return trade_offs(
        {"pruning": pruning(shown["pruning"], PRUNING, paper), "noise": noise(shown["noise"], NOISE_IN_SHORT, paper)},
        **MSE_AGAINST_LOSS,
    )


UNIFORM, ROUNDED = "rounding", {"corrected": "optimal-rounding", "as released": "optimal-rounding-released"}


@figure(
    "S5",
    title="The rounding defense of the released code",
    caption="In the released code and not in the paper: every coordinate is rounded to a multiple of one step, or of a "
    "step proportional to optimal noise's standard deviation; the released ratio takes the gradient without its "
    f"absolute value. {TRADED.format(optimiser='Adam')} {INTERVALS} {REFERENCES}",
    experiments=(UNDEFENDED, reads("rounding", defenses=(UNIFORM, *ROUNDED.values()), attacks=ATTACK)),
    any_sweep=True,
)
def fig_s5(tables: Tables) -> Drawing:
    """Trade-off of rounding, for both readings of the ratio."""
    frame, shown = together(tables), {}
    for title, label in ROUNDED.items():
        others = set(ROUNDED.values()) - {label}
        names = {UNIFORM: "rounding to one step", label: "optimal rounding"}
        here = frame[~frame["defense"].isin(others)]
        shown[title] = TradeOff(here, "scale", names, "RMS of the steps", {ATTACK: ""})
    return trade_offs(shown, **MSE_AGAINST_LOSS)
