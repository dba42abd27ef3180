"""Figure S11: what a second attacker, inverting gradients, recovers beside DLG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.papers.tfl_meta import measured
from leakbench.papers.tfl_meta.common import UNPROTECTED, figure
from leakbench.papers.tfl_meta.measured import CELL, MECHANISMS, RECOVERY, SWEPT, Swept, first_threshold
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, judged, named, values_of
from leakbench.report.style import MODEL_COLOURS, use_style
from leakbench.report.tidy import cells_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SECOND = "second_attacker"
ENTRIES = tuple(entry for entry in MECHANISMS if entry.label in ("noise", "compression"))
LABELS = [entry.label for entry in ENTRIES]
QUANTITIES = {RECOVERY: "recovered, PSNR above 25 dB", "ssim": "mean SSIM"}
"""Metrics, and their axes."""
ATTACKERS = {"DLG": (SWEPT, UNPROTECTED, "o"), "inverting gradients": (SECOND, SECOND, "s")}
"""By name: the experiments under protection and without, and the mark."""
SIMILAR = 0.6
"""SSIM above which Table S4 counts a datum as recovered, too."""


@figure(
    "S11",
    title="A second attacker beside DLG, over noise and the part that is dropped",
    caption="DLG (squared distance of gradients, L-BFGS, labels searched too) and inverting gradients (their cosine "
    "and the total variation of images, signed Adam, labels known), on the same uploads without protection (thin "
    "lines) and under Gaussian noise and compression. Top: the part of data and attempts whose PSNR exceeds 25 dB. "
    f"Bottom: the mean structural similarity; dotted: {SIMILAR:g}, above which a datum counts as recovered in one row "
    "of Table S4. Intervals are 95 % t-intervals over seeds; of two seeds, their range. C1 and C2, and so all optima, "
    "are of DLG alone.",
    experiments=(
        reads(UNPROTECTED, defenses="none", attacks="dlg"),
        reads(SWEPT, defenses=LABELS, attacks="dlg"),
        reads(SECOND, defenses=("none", *LABELS), attacks="ig"),
    ),
    leaves_out="it compares attackers, under two of the paper's mechanisms",
)
def fig_s11(tables: Tables) -> Drawing:
    """Two rows of panels per data set and model, a column per mechanism."""
    use_style()
    import matplotlib.pyplot as plt

    cells = cells_of(tables[SECOND])
    rows, columns = len(cells) * len(QUANTITIES), len(ENTRIES)
    drawn, grid = plt.subplots(
        rows, columns, figsize=(8.0, 2.5 * rows + 0.6), squeeze=False, sharex="col", sharey="row", layout="constrained"
    )
    numbers = []
    for block, cell in enumerate(cells):
        here = measured.tables_of(tables, *cell)
        for place, metric in enumerate(QUANTITIES):
            for ax, entry in zip(grid[block * len(QUANTITIES) + place], ENTRIES, strict=True):
                shown = _panel(ax, here, entry, metric)
                numbers.append(shown.assign(metric=metric, mechanism=entry.label, **dict(zip(CELL, cell, strict=True))))
                if not place:
                    ax.set_title(f"{entry.name} ({cell[0]}, {cell[1]})", fontsize="medium")
            grid[block * len(QUANTITIES) + place, 0].set_ylabel(QUANTITIES[metric])
    for ax, entry in zip(grid[-1], ENTRIES, strict=True):
        ax.set(xscale="log", xlabel=entry.axis)
    grid[0, 0].legend(loc="lower left", fontsize="small")
    return Drawing(drawn, pd.concat(numbers, ignore_index=True))


def _panel(ax: Axes, tables: Tables, entry: Swept, metric: str) -> pd.DataFrame:
    """One metric of both attackers; returns the numbers, without a parameter where there is no protection."""
    parts = []
    for (name, (protected, plain, mark)), tint in zip(ATTACKERS.items(), MODEL_COLOURS, strict=False):
        rows = first_threshold(tables[protected][tables[protected]["defense"] == entry.label])
        points = judged(values_of(rows, metric), [entry.column]).rename(columns={entry.column: "parameter"})
        bare = first_threshold(tables[plain][tables[plain]["defense"] == "none"])
        bare = judged(values_of(bare[bare["seed"].isin(rows["seed"].unique())], metric), ["metric"])
        void = bool(points["void"].any())
        style: dict[str, Any] = {"color": tint, "linestyle": "--" if void else "-"}
        ax.axhline(bare["mean"].iloc[0], linewidth=0.8, alpha=0.6, **style)
        ax.plot(
            points["parameter"],
            points["mean"],
            marker=mark,
            markersize=4,
            markerfacecolor="none" if void else tint,
            label=named(name, void),
            **style,
        )
        low, high = points["low"].clip(lower=0 if metric == RECOVERY else -1), points["high"].clip(upper=1)
        ax.fill_between(points["parameter"], low, high, color=tint, alpha=0.15, linewidth=0)
        parts.append(pd.concat([points, bare.drop(columns="metric")]).assign(series=name))
    if metric == "ssim":
        ax.axhline(SIMILAR, color="#333333", linewidth=0.8, linestyle=":")
    else:
        ax.set_ylim(-0.05, 1.05)
    return pd.concat(parts, ignore_index=True)
