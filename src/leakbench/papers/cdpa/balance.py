"""Figure 10: every defense on five axes at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from leakbench.lazy import np, pd
from leakbench.metrics.assignment import ASSIGNED
from leakbench.papers.cdpa.attacked import ROG
from leakbench.papers.cdpa.common import TRAINED, defense_name, defenses_of, figure
from leakbench.report.artifacts import Tables
from leakbench.report.gate_verdicts import VOID
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing
from leakbench.report.statistics import over_seeds
from leakbench.report.style import colour, use_style
from leakbench.report.tidy import of_cell

if TYPE_CHECKING:
    from matplotlib.projections.polar import PolarAxes

AXES = {
    "Acc": "test accuracy after the last round",
    "TE": "time efficiency, t_none / t",
    "CEE": "carbon efficiency, kg_none / kg",
    "CE": "communication efficiency, 1 - elements / elements_none",
    "PR": "privacy",
}
"""The paper's axes; more is better on all of them."""
GROUPS = {
    "compression": ("sign_sgd", "grad_drop", "sdq"),
    "compression and privacy": ("cafl", "jopeq", "cdpa"),
    "privacy": ("soteria", "laplace"),
}
"""Panels and their mechanisms, as in Table I; undefended training and CDPA are drawn in all."""
IN_ALL = ("none", "cdpa")
CARBON = "carbon_formula_kg"
"""The paper's carbon. What codecarbon measures depends on what else the machine does: Table IV has both."""


def scores(utility: pd.DataFrame, rog: pd.DataFrame) -> pd.DataFrame:
    """A row per defense and axis: ``score``, ``scaled`` to [0, 1] over all defenses, ``source`` and ``void``.

    A score that is not known is NaN. Where all defenses score the same, all are scaled to 1.

    Args:
        utility: of one data set and model.
        rog: of attacks; a defense is found there by its mechanism, since its settings have other labels.
    """
    defenses = defenses_of(utility)
    reference = next((label for label, mechanism in defenses.items() if mechanism == "none"), None)
    privacy, source = _privacy(rog)
    rows = []
    for label, mechanism in defenses.items():
        value, void = privacy.get(mechanism, (math.nan, False))
        by_axis = {
            "Acc": _mean(utility, label, "accuracy"),
            "TE": _mean(utility, reference, "seconds") / _mean(utility, label, "seconds"),
            "CEE": _mean(utility, reference, CARBON) / _mean(utility, label, CARBON),
            "CE": 1 - _mean(utility, label, "mebi_elements") / _mean(utility, reference, "mebi_elements"),
            "PR": value,
        }
        rows += [
            {"defense": label, "series": defense_name(label, mechanism), "mechanism": mechanism, "axis": axis}
            | {"score": score, "source": source if axis == "PR" else "", "void": void and axis == "PR"}
            for axis, score in by_axis.items()
        ]
    frame = pd.DataFrame(rows)
    low, high = (frame.groupby("axis")["score"].transform(end) for end in ("min", "max"))
    scaled = ((frame["score"] - low) / (high - low)).mask((high == low) & frame["score"].notna(), 1.0)
    return frame.assign(scaled=scaled)


def _mean(frame: pd.DataFrame, label: str | None, metric: str) -> float:
    """Over seeds; NaN where nothing is known."""
    rows = frame[(frame["defense"] == label) & (frame["metric"] == metric)]
    return math.nan if rows.empty else float(over_seeds(rows, ["defense"])["mean"].iloc[0])


def _privacy(rog: pd.DataFrame) -> tuple[dict[str, tuple[float, bool]], str]:
    """Privacy by mechanism, with whether the attack is void, and its name: LPIPS if known for all, else 1 - SSIM."""
    rows = rog[rog["attack"] == ROG]
    lpips = rows[rows["metric"] == ASSIGNED + "lpips"]
    known = len(lpips) > 0 and bool(lpips.groupby("mechanism")["value"].count().all())
    chosen = lpips if known else rows[rows["metric"] == ASSIGNED + "ssim_global"]
    means = over_seeds(chosen, ["mechanism"]).set_index("mechanism")["mean"]
    void = chosen.groupby("mechanism")["void"].any()
    values = {
        name: (float(mean if known else 1 - mean), bool(void[name]))
        for name, mean in zip(map(str, means.index), means, strict=True)
    }
    return values, "LPIPS" if known else "1 - SSIM"


@figure(
    10,
    title="The balance of every defense",
    caption="Accuracy (Acc), time efficiency (TE, t_none / t), carbon efficiency (CEE, kg_none / kg), communication "
    "efficiency (CE, 1 - elements / elements_none) and privacy against ROG (PR: LPIPS if its weights are "
    "staged, else 1 - global SSIM, as in the paper's code), of the largest model; outwards is better. Every "
    "axis runs from the worst defense (inner ring) to the best (rim), means over seeds; the CSV has the "
    "numbers themselves. The paper does not say how it scales its axes. Where a corner is left out the metric "
    "is missing; a hollow PR is void, since ROG is too weak without a defense. PR is of ROG's data and model "
    "and of the settings of Table III, which are not those of the accuracy. CEE repeats TE, as in the paper: "
    "its carbon is time, times a constant. Groups as in Table I; no defense and CDPA in all.",
    experiments=(reads("utility", defenses=TRAINED), reads("rog", attacks=ROG)),
)
def fig10(tables: Tables) -> Drawing:
    """A panel per group of defenses, a polygon per defense."""
    use_style()
    import matplotlib.pyplot as plt

    utility = tables["utility"]
    model, dataset = utility["model"].iloc[-1], utility["dataset"].iloc[0]
    frame = scores(of_cell(utility, dataset, model), tables["rog"])
    groups = dict(GROUPS)
    if others := [name for name in frame["mechanism"].unique() if name not in {"none", *sum(GROUPS.values(), ())}]:
        groups["others"] = tuple(others)
    size = (3.3 * len(groups), 3.9)
    drawn, axes = plt.subplots(1, len(groups), figsize=size, subplot_kw={"projection": "polar"}, layout="constrained")
    handles: dict[str, Any] = {}
    for ax, (group, mechanisms) in zip(axes, groups.items(), strict=True):
        for _, rows in frame[frame["mechanism"].isin([*IN_ALL, *mechanisms])].groupby("defense", sort=False):
            handles.setdefault(rows["series"].iloc[0], _polygon(ax, rows))
        _dress(ax, group, frame)
    drawn.legend(handles.values(), handles.keys(), loc="outside upper center", ncol=5)
    return Drawing(drawn, frame.assign(dataset=dataset, model=model))


INNER = 0.2
"""Radius of the worst score, so that the corners of polygons stay apart."""


def _polygon(ax: PolarAxes, rows: pd.DataFrame) -> Any:
    angles = np.linspace(0, 2 * np.pi, len(AXES), endpoint=False)
    corners = rows.set_index("axis").loc[list(AXES)]
    radius = INNER + (1 - INNER) * corners["scaled"].to_numpy(dtype=float)
    mechanism = rows["mechanism"].iloc[0]
    tint, style = colour(mechanism), "--" if mechanism == "none" else "-"
    around = [*range(len(AXES)), 0]
    (line,) = ax.plot(angles[around], radius[around], color=tint, linestyle=style, linewidth=1.6)
    sure = ~corners["void"].to_numpy(dtype=bool)
    ax.plot(angles[sure], radius[sure], color=tint, linestyle="none", marker="o")
    ax.plot(angles[~sure], radius[~sure], color=tint, linestyle="none", marker="o", markerfacecolor="white")
    return line


def _dress(ax: PolarAxes, group: str, frame: pd.DataFrame) -> None:
    """Names of the axes, with a word where they are void or missing for all."""
    names = []
    for axis in AXES:
        rows = frame[frame["axis"] == axis]
        word = "missing" if rows["score"].isna().all() else VOID if rows["void"].any() else ""
        names.append(f"{axis}\n({word})" if word else axis)
    ax.set_xticks(np.linspace(0, 2 * np.pi, len(AXES), endpoint=False), names)
    ax.set_yticks([INNER, (1 + INNER) / 2, 1.0], ["", "", ""])
    ax.set_ylim(0, 1.05)
    ax.set_theta_zero_location("N")
    ax.set_title(group)
