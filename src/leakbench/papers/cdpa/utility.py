"""Figures 5 and S2: accuracy and loss over rounds, and accuracy under the readings of the paper and skewed clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.papers.cdpa.common import TRAINED, defense_name, defenses_of, figure
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, draw_curve, having, whiskers
from leakbench.report.statistics import over_seeds
from leakbench.report.style import MODEL_COLOURS, colour, panels, use_style
from leakbench.report.tidy import SETTING, cells_of, of_cell
from leakbench.report.wording import INTERVALS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PLAIN = ("none", "sdq")
"""Defenses beside which the readings of CDPA are shown."""
CURVES = {"accuracy_curve": "test accuracy", "zoom": "test accuracy, zoomed", "loss_curve": "training loss (nats)"}
BELOW, ABOVE = 0.1, 0.04
"""Ends of the zoomed axis, from the undefended accuracy of the last round."""


@figure(
    5,
    title="Accuracy and loss over rounds",
    caption="Federated averaging with every defense; a column per model. Top: accuracy on the test images. Middle: "
    "the same in the second half of training, from 10 points below the undefended accuracy of the last round "
    "to 4 points above it; what is worse lies outside. Bottom: loss of the clients' local steps, mean over "
    f"steps and clients. Lines end where training diverged in all seeds. {INTERVALS}",
    experiments=(reads("utility", defenses=TRAINED),),
)
def fig05(tables: Tables) -> Drawing:
    """A row per measure, a column per model, a line per defense."""
    use_style()
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    frame = tables["utility"]
    cells = cells_of(frame)
    size = (max(6.4, 3.6 * len(cells)), 2.4 * len(CURVES) + 0.6)
    drawn, axes = plt.subplots(len(CURVES), len(cells), figsize=size, squeeze=False, layout="constrained")
    shown: list[pd.DataFrame] = []
    for place, (dataset, model) in enumerate(cells):
        column = axes[:, place]
        cell = of_cell(frame, dataset, model)
        for ax, (curve, ylabel) in zip(column, CURVES.items(), strict=True):
            metric = "accuracy_curve" if curve == "zoom" else curve
            points = [
                draw_known(ax, rows, defense_name(label, mechanism), "--" if mechanism == "none" else "-")
                for label, mechanism in defenses_of(cell).items()
                if not (rows := cell[(cell["defense"] == label) & (cell["metric"] == metric)]).empty
            ]
            if curve == "zoom":
                _zoom(ax, points)
            else:
                shown += [part.assign(dataset=dataset, model=model, metric=metric) for part in points]
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            ax.set_ylabel("" if place else ylabel)
        column[0].set_title(f"{model}, {dataset}")
        column[-1].set_xlabel("round")
    handles, names = axes[0, 0].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside upper center", ncol=5)
    numbers = pd.concat(shown)
    return Drawing(drawn, numbers[["dataset", "model", "metric", *(name for name in numbers if name in STATISTICS)]])


STATISTICS = ("series", "step", "mean", "low", "high", "seeds", "lost")


def draw_known(ax: Axes, rows: pd.DataFrame, name: str, style: str) -> pd.DataFrame:
    """Draw a defense's curve, without the rounds in which no seed was evaluated."""
    known = rows[rows["value"].notna()]
    if known.empty:
        ax.plot([], [], color=colour(rows["mechanism"].iloc[0]), label=f"{name} (diverged)")
        return pd.DataFrame({"series": [name], "seeds": 0, "lost": rows["seed"].nunique()})
    return draw_curve(ax, rows[rows["index"].isin(known["index"])], name, window=1, style=style)


def _zoom(ax: Axes, curves: list[pd.DataFrame]) -> None:
    last = max(float(curve["step"].max()) for curve in curves if "step" in curve)
    undefended = next((curve for curve in curves if curve["series"].iloc[0] == "none" and "step" in curve), None)
    ax.set_xlim(last / 2, last)
    if undefended is not None:
        reached = float(undefended.sort_values("step")["mean"].iloc[-1])
        ax.set_ylim(reached - BELOW, reached + ABOVE)


VARIANT, LAYERS, ALPHA = SETTING + "variant", SETTING + "layers", SETTING + "alpha"
THRESHOLD, FACTOR = SETTING + "threshold", SETTING + "factor"
READINGS = {
    "as_printed": "as printed: vote, linear layers",
    "as_released": "as released: overflow, other rounding",
    "corrected": "corrected: unbiased mean of bits",
    "last": "as printed, last layer alone",
    "all": "as printed, all layers",
    "printed": "as printed, p = 0.8",
    "majority": "p = 0.8, vote of R / 2 ones",
    "cdpa-complement": "as printed, two's complement",
    "cdpa-gradient": "as printed, in units of the gradient",
    "grad-drop-residual": "GradDrop, what it drops sent later",
}
"""Swept variants, layers (``linear`` ones are those of the variants) and thresholds, then labels."""


@figure(
    "S2",
    title="Readings of CDPA, and clients whose labels differ",
    caption="Test accuracy after the last round of CDPA (p = 0.98) as the paper prints it, as its public code computes "
    "it, corrected to an unbiased mean, on other layers, with another threshold, in two's complement and in units of "
    "the gradient, beside no defense, quantisation alone, GradDrop with its residual, and signs alone at several "
    "steps, of which the best is tuned. Clients hold i.i.d. images, or labels drawn from a Dirichlet law of "
    f"concentration alpha: the smaller, the more they differ. The paper has i.i.d. clients alone. {INTERVALS}",
    experiments=(
        reads("utility", defenses=PLAIN),
        reads("readings", defenses=("cdpa-complement", "cdpa-gradient", "grad-drop-residual")),
        reads("skewed", defenses=PLAIN),
    ),
)
def fig_s2(tables: Tables) -> Drawing:
    """A panel per model: accuracy by reading, a colour per split of the labels."""
    frame = accuracies(tables)
    cells = cells_of(frame)
    splits = list(dict.fromkeys(frame["split"]))
    order = [name for name in ("none", "SDQ", *READINGS.values()) if name in set(frame["series"])]
    order += [name for name in dict.fromkeys(frame["series"]) if name not in order]
    drawn, axes = panels(len(cells), width=7.0, height=1.0 + 0.28 * len(order))
    for ax, (dataset, model) in zip(axes, cells, strict=True):
        here = of_cell(frame, dataset, model)
        for place, split in enumerate(splits):
            rows = here[here["split"] == split]
            heights = [order.index(name) + 0.2 * (place - (len(splits) - 1) / 2) for name in rows["series"]]
            look: dict[str, Any] = {"color": MODEL_COLOURS[place], "fmt": "o", "elinewidth": 1, "label": split}
            ax.errorbar(rows["mean"], heights, xerr=whiskers(rows), **look)
        ax.set_yticks(range(len(order)), order if ax is axes[0] else [])
        ax.invert_yaxis()
        ax.set(xlabel="test accuracy after the last round", title=f"{model}, {dataset}")
    axes[-1].legend(title="clients", loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(drawn, frame)


def accuracies(tables: Tables) -> pd.DataFrame:
    """Accuracy by data set, model, split of the labels and reading: the columns of ``over_seeds`` beside these.

    Of i.i.d. clients only models that others are compared on.
    """
    others = pd.concat([tables["readings"], tables["skewed"]])
    compared = set(zip(others["dataset"], others["model"], strict=True))
    plain = tables["utility"][tables["utility"]["mechanism"].isin(["none", "sdq"])]
    rows = pd.concat([plain, tables["readings"], tables["skewed"]], ignore_index=True)
    for column in (VARIANT, LAYERS, THRESHOLD, FACTOR, ALPHA):
        rows = having(rows, column.removeprefix(SETTING))
    rows = rows[(rows["metric"] == "accuracy") & (rows[LAYERS] != "linear")]  # that is the variant as printed
    rows = rows[[cell in compared for cell in zip(rows["dataset"], rows["model"], strict=True)]]
    rows = rows.assign(
        split=["i.i.d." if pd.isna(alpha) else rf"Dirichlet, $\alpha$ = {alpha:g}" for alpha in rows[ALPHA]],
        series=[_reading(row) for _, row in rows.iterrows()],
    )
    rows = rows.sort_values(ALPHA, ascending=False, na_position="first", kind="stable")
    means = over_seeds(rows, ["dataset", "model", "split", "series"])
    order = {split: place for place, split in enumerate(dict.fromkeys(rows["split"]))}
    return means.sort_values("split", key=lambda names: names.map(order), kind="stable").reset_index(drop=True)


def _reading(row: pd.Series) -> str:
    if not pd.isna(row[FACTOR]):
        return f"SignSGD, signs times {row[FACTOR]:g}"
    swept = next((row[column] for column in (VARIANT, LAYERS, THRESHOLD) if not pd.isna(row[column])), row["defense"])
    return READINGS.get(swept, defense_name(row["defense"], row["mechanism"]))
