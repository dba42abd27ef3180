"""Figure 11 and the supplement S4: how well BERT and DistilBERT learn under every defense."""

from __future__ import annotations

from leakbench.lazy import pd
from leakbench.papers.cdpa.common import figure, table
from leakbench.papers.cdpa.tables_attacks import with_interval
from leakbench.papers.cdpa.text_attacked import TRAINED
from leakbench.papers.cdpa.utility import STATISTICS, draw_known
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, series_of, values_of
from leakbench.report.statistics import over_seeds
from leakbench.report.style import use_style
from leakbench.report.tidy import cells_of, of_cell
from leakbench.report.wording import INTERVALS, NONE

NAMES = {"grad-drop-text": "GradDrop", "dp-delta": "LDP", "dp": "LDP, of the gradient", "cdpa-text-delta": "CDPA"}
"""Labels of the defenses that are trained with -> the paper's names, but for the second LDP."""
OTHER_READING = "dp"
CURVES = reads(TRAINED, defenses=("none", *NAMES))
EPOCHS = (20, 30)
"""Section 5.1 trains on CoLA for 20 epochs and on Rotten Tomatoes for 30, Appendix N the other way round."""
UNITS = (
    "A round is an epoch. LDP is Gaussian noise of 0.005, of the change of the parameters, as CDPA encodes it; dotted: "
    "of the update over the learning rate."
)


@figure(
    11,
    title="Matthews correlation over epochs",
    caption="Federated fine-tuning of four clients: Matthews correlation coefficient on the sentences that judge "
    f"(CoLA: the validation split, whose labels are public). {UNITS} The paper trains for 20 or 30 epochs and "
    f"contradicts itself on which data set gets which; grey: epoch 20. {INTERVALS}",
    experiments=(CURVES,),
)
def fig11(tables: Tables) -> Drawing:
    """A row per model, a column per data set, a line per defense."""
    use_style()
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    frame = tables[TRAINED]
    cells = cells_of(frame)
    models, datasets = (list(dict.fromkeys(cell[place] for cell in cells)) for place in (1, 0))
    size = (max(6.4, 3.6 * len(datasets)), 2.6 * len(models) + 0.5)
    drawn, axes = plt.subplots(len(models), len(datasets), figsize=size, squeeze=False, layout="constrained")
    for ax in axes.flat:
        ax.set_visible(False)  # until something is drawn in it
    shown: list[pd.DataFrame] = []
    for dataset, model in cells:
        ax = axes[models.index(model), datasets.index(dataset)]
        ax.set_visible(True)
        rows = values_of(frame, "mcc_curve", dataset=dataset, model=model)
        for label, name in {"none": "none", **series_of(rows, NAMES)}.items():
            curve = rows[rows["defense"] == label]
            if curve.empty:
                continue
            style = "--" if label == "none" else ":" if label == OTHER_READING else "-"
            shown.append(draw_known(ax, curve, name, style).assign(dataset=dataset, model=model))
        if rows["index"].max() >= EPOCHS[0]:
            ax.axvline(EPOCHS[0], color="#bbbbbb", linewidth=1, zorder=0)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        ax.set(title=f"{model}, {dataset}", xlabel="epoch", ylabel="Matthews correlation")
    handles, names = axes[models.index(cells[0][1]), datasets.index(cells[0][0])].get_legend_handles_labels()
    drawn.legend(handles, names, loc="outside upper center", ncol=5)
    numbers = pd.concat(shown)
    return Drawing(drawn, numbers[["dataset", "model", *(name for name in STATISTICS if name in numbers)]])


@table(
    "S4",
    title="Matthews correlation at the epochs that the paper names",
    caption=f"As Fig. 11, after so many epochs, and of the model of the best validation accuracy. {UNITS} {INTERVALS}",
    experiments=(CURVES,),
)
def table_s4(tables: Tables) -> pd.DataFrame:
    """A row per data set, model and defense."""
    frame = tables[TRAINED]
    curves = values_of(frame, "mcc_curve")
    last = int(curves["index"].max()) + 1
    epochs = sorted({epoch for epoch in EPOCHS if epoch < last} | {last})
    rows = []
    for dataset, model in cells_of(frame):
        here = of_cell(frame, dataset, model)
        for label, name in {"none": "none", **series_of(here, NAMES)}.items():
            trained = here[here["defense"] == label]
            cells = {
                f"epoch {epoch}": _at(trained[(trained["metric"] == "mcc_curve") & (trained["index"] == epoch - 1)])
                for epoch in epochs
            }
            cells["best validation"] = _at(trained[trained["metric"] == "mcc_at_best"])
            rows.append({"data set": dataset, "model": model, "defense": name, **cells})
    return pd.DataFrame(rows)


def _at(rows: pd.DataFrame) -> str:
    return NONE if rows.empty else with_interval(over_seeds(rows, ["metric"]).assign(void=False).iloc[0])
