"""Figure S6: recovery and leakage at the parameters that budgets of leakage ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leakbench.lazy import np, pd
from leakbench.papers.tfl_meta import measured
from leakbench.papers.tfl_meta.common import figure
from leakbench.papers.tfl_meta.measured import (
    BUDGET,
    CONSTANTS,
    ENCRYPTED,
    FORMS,
    IN_USE,
    LEAKAGE,
    MECHANISM_OF,
    READ,
    RECOVERY,
    TUNED,
    first_threshold,
    leaked,
    rates,
)
from leakbench.report.artifacts import Tables
from leakbench.report.plots import Drawing, named
from leakbench.report.style import REFERENCE_COLOUR, colour, marker, use_style
from leakbench.report.tidy import cells_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DODGE = 0.016
"""Between series at one budget, in budgets over C1."""
NONE_MET = -0.06
"""Height of the crosses of budgets that no parameter meets."""


@figure(
    "S6",
    title="Recovery and leakage at the parameters that budgets ask for",
    caption="DLG on uploads that are protected with the parameter at which the paper's metric is epsilon. Left: the "
    "part of data and attempts that is recovered, with Wilson's 95 % interval of one client, means over clients and "
    "seeds. Right: measured leakage (null prior, alpha = 0.001) with 95 % t-intervals over seeds; of two seeds, their "
    "range. Leakage should lie on or below the solid grey line, which is the budget. Dotted: C1. Black: without "
    "protection, of more attempts. At 2 C1 the metric asks for no protection, so that what is measured there is the "
    "undefended upload, with as many attempts as the rest. Crosses: no parameter meets the budget, or a printed "
    "formula has no value. Series stand beside each other where they have one budget.",
    experiments=(CONSTANTS, READ[TUNED], READ[ENCRYPTED]),
)
def fig_s6(tables: Tables) -> Drawing:
    """Two panels per data set and model, a line per mechanism and formula."""
    use_style()
    import matplotlib.pyplot as plt

    cells = cells_of(tables[TUNED])
    size = (10.4, 3.3 * len(cells) + 0.3)
    drawn, grid = plt.subplots(len(cells), 2, figsize=size, squeeze=False, layout="constrained")
    numbers = []
    for (left, right), cell in zip(grid, cells, strict=True):
        here = measured.tables_of(tables, *cell)
        for ax, metric in ((left, RECOVERY), (right, LEAKAGE)):
            numbers.append(_panel(ax, here, metric).assign(dataset=cell[0], model=cell[1], metric=metric))
            ax.set(xlabel=r"budget $\epsilon / C_1$", title=f"{cell[0]}, {cell[1]}")
        left.set(ylabel="recovered", ylim=(-0.1, 1.05))
        right.set_ylabel("leakage (nats$^{1/2}$)")
        c1 = measured.system(here[CONSTANTS]).c1
        right.axhline(c1, color=REFERENCE_COLOUR, linestyle=":", linewidth=1)
        right.plot([0, 2], [0, 2 * c1], color=REFERENCE_COLOUR, linewidth=1, label=r"budget $\epsilon$")
        right.set_ylim(-0.1, max(1.25 * c1, 0.9))
    grid[0, 1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", handlelength=3)
    return Drawing(drawn, pd.concat(numbers, ignore_index=True))


def _panel(ax: Axes, tables: Tables, metric: str) -> pd.DataFrame:
    """One metric of all series."""
    summary = rates if metric == RECOVERY else leaked
    tuned = first_threshold(tables[TUNED])
    bare = summary(measured.undefended(tables[CONSTANTS], tuned), ["defense"])
    ax.axhline(bare["mean"].iloc[0], color=colour("none"), linewidth=1, label="without protection")
    parts = [bare.assign(series="without protection")]
    labels = [label for label in MECHANISM_OF if (tuned["defense"] == label).any()]
    for place, label in enumerate([*labels, IN_USE]):
        rows = first_threshold(tables[ENCRYPTED]) if label == IN_USE else tuned
        rows = rows[rows["defense"] == label]
        if rows.empty:
            continue
        points = summary(rows, [BUDGET]).sort_values(BUDGET)
        entry = MECHANISM_OF.get(label)
        name = f"{entry.name}, {entry.tuned[label]}" if entry else "Paillier, a key in use"
        mechanism = entry.mechanism if entry else "paillier"
        style: Any = FORMS[entry.tuned[label]] if entry else "-"
        _series(ax, points, mechanism, style, name, DODGE * (place - len(labels) / 2))
        parts.append(points.assign(series=name, defense=label))
    return pd.concat(parts, ignore_index=True).rename(columns={BUDGET: "budget"})


def _series(ax: Axes, points: pd.DataFrame, mechanism: str, style: Any, name: str, shift: float) -> None:
    tint, void = colour(mechanism), bool(points["void"].any())
    x, mean = points[BUDGET].to_numpy(dtype=float) + shift, points["mean"].to_numpy(dtype=float)
    low, high = points["low"].to_numpy(dtype=float), points["high"].to_numpy(dtype=float)
    ax.plot(
        x,
        mean,
        color=tint,
        linestyle=style,
        linewidth=1.1,
        marker=marker(mechanism),
        markersize=4,
        markerfacecolor="none" if void else tint,
        label=named(name, void),
    )
    ax.vlines(x, low, high, color=tint, linewidth=0.8, alpha=0.6)
    lost = np.isnan(mean)
    ax.plot(x[lost], np.full(int(lost.sum()), NONE_MET), color=tint, linestyle="none", marker="x", markersize=4)
