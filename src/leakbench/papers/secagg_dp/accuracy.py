"""Figure 5 and Table S3: accuracy at equal epsilon, and what a round takes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from leakbench.lazy import pd
from leakbench.papers.secagg_dp.common import figure, table
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, having, whiskers
from leakbench.report.statistics import over_seeds
from leakbench.report.style import MODEL_COLOURS, colour, panels
from leakbench.report.tidy import SETTING, cells_of, of_cell
from leakbench.report.wording import NONE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTS = ("accuracy_all", "accuracy_batches", "accuracy_epochs")
"""Experiments of the linear model; those of the CNN have the ending :data:`CNN`."""
CNN = "_cnn"
TRAINED = tuple(f"{name}{ending}" for ending in ("", CNN) for name in PARTS)
HOME = {
    **dict.fromkeys(("gd", "gsgd", "gsgd-repaired", "gsgd-printed", "gd-tight", "gsgd-tight"), "accuracy_all"),
    **dict.fromkeys(("sgd", "sgd-amplified", "sgd-tight"), "accuracy_batches"),
    "sgd-epochs": "accuracy_epochs",
}
"""The experiment of a defense on the linear model."""
READ = tuple(
    reads(f"{part}{ending}", defenses=[label for label, home in HOME.items() if home == part])
    for ending in ("", CNN)
    for part in PARTS
)
EPSILON, RATE = SETTING + "epsilon", SETTING + "rate"
CELL = ["dataset", "model", "defense", "mechanism", EPSILON]

NAMES = {
    "gd": "GD-DP",
    "gsgd": "GSGD-DP (eq. 35)",
    "gsgd-repaired": "GSGD-DP, repaired bound",
    "gsgd-printed": "GSGD-DP, row 6 (false)",
    "sgd": "SGD-DP, an epoch is a round",
    "sgd-amplified": "SGD-DP with delta / q",
    "sgd-epochs": "SGD-DP, an epoch is all batches",
    "gd-tight": "GD-DP, tight accounting",
    "gsgd-tight": "GSGD-DP (eq. 35), tight accounting",
    "sgd-tight": "SGD-DP, tight accounting",
}
ROUNDS = {
    "accuracy_all": "all records",
    "accuracy_batches": "random batches",
    "accuracy_epochs": "an epoch is all batches",
}
"""Experiment -> what a round takes, behind the name of a defense that is in all of them."""
STYLES = {
    "sgd-epochs": "--",
    "sgd-amplified": ":",
    "gsgd-repaired": "--",
    "gsgd-printed": ":",
    **dict.fromkeys(("gd-tight", "gsgd-tight", "sgd-tight"), "-."),
}
OTHERWISE = {"accuracy_batches": "--", "accuracy_epochs": ":"}
"""Styles of a defense that is in all experiments."""
CHOICE = (
    "The learning rate is chosen for every mechanism and epsilon by the training loss after the last round, mean over "
    "seeds, never by the test accuracy; the choice is not charged to epsilon"
)


def chosen(frame: pd.DataFrame) -> pd.DataFrame:
    """Test accuracy at the chosen rate: the columns of :data:`CELL`, ``rate`` and those of ``over_seeds``.

    A rate at which a seed diverged is not chosen; where all diverged the rate and the mean are NaN.

    Args:
        frame: tidy tables of :data:`TRAINED`, one below the other.
    """
    frame = having(having(frame, "epsilon"), "rate")
    keys = [*CELL, RATE]
    loss = frame[frame["metric"] == "final_loss"].groupby(keys, dropna=False)["value"]
    losses = loss.agg(lambda values: values.mean(skipna=False)).rename("loss").reset_index()
    known = losses.dropna(subset="loss").sort_values("loss", kind="stable").drop_duplicates(CELL)
    accuracy = over_seeds(frame[frame["metric"] == "accuracy"], keys)
    rows = known[keys].merge(accuracy, on=keys, how="left")
    every = losses[CELL].drop_duplicates()
    return every.merge(rows, on=CELL, how="left", sort=False).rename(columns={RATE: "rate", EPSILON: "epsilon"})


def name_of(label: str, experiment: str) -> str:
    """The name of a series; users' defenses keep their label, with what a round takes."""
    return NAMES.get(label) or f"{label}, {ROUNDS[experiment]}"


def tint(label: str, mechanism: str) -> str:
    """The colour of a series; SGD-DP has another than GD-DP, whose mechanism it shares."""
    return MODEL_COLOURS[0] if label.startswith("sgd") else colour(mechanism)


def trained(tables: Tables) -> pd.DataFrame:
    """All of :data:`TRAINED`, with the columns of :func:`chosen` and ``experiment``."""
    return pd.concat(
        [chosen(tables[name]).assign(experiment=name.removesuffix(CNN)) for name in TRAINED], ignore_index=True
    )


@figure(
    5,
    title="Accuracy at equal epsilon",
    caption="Test accuracy over epsilon of all rounds, a panel per model, with noise by the paper's accounting; "
    "dash-dotted: by tight accounting (Table S1), with less noise. SGD-DP: isotropic noise on random batches; dashed "
    "blue: an epoch is all of a user's batches, a round each; dotted blue: with the amplification of delta, which the "
    "paper leaves out (I14). GSGD-DP: Gaussian sampling and water-filling; dashed and dotted: other bounds, of which "
    "row 6 is false. GD-DP: isotropic noise on all records. Black: all records without noise and clipping. Defenses "
    f"without an epsilon are horizontal. {CHOICE}. Intervals: 95 % t-intervals over seeds; of two seeds, their range.",
    experiments=READ,
    in_parts=True,
)
def fig05(tables: Tables) -> Drawing:
    """A panel per data set and model, a line per mechanism."""
    frame = trained(tables)
    cells = cells_of(frame)
    drawn, axes = panels(len(cells), width=4.2, height=3.3)
    for ax, (dataset, model) in zip(axes, cells, strict=True):
        _panel(ax, of_cell(frame, dataset, model))
        ax.set(title=f"{model}, {dataset}", xlabel=r"$\epsilon$ of all rounds")
    axes[0].set_ylabel("test accuracy")
    handles = {name: handle for ax in axes for handle, name in zip(*ax.get_legend_handles_labels(), strict=True)}
    drawn.legend(handles.values(), handles.keys(), loc="outside right center", fontsize="small")
    numbers = frame[["dataset", "model", "defense", "epsilon", "rate", "mean", "low", "high", "seeds", "lost"]]
    return Drawing(drawn, numbers.assign(series=list(map(name_of, frame["defense"], frame["experiment"]))))


def _panel(ax: Axes, frame: pd.DataFrame) -> None:
    for label in ordered(frame):
        of_label = frame[frame["defense"] == label]
        for experiment in of_label["experiment"].unique():
            rows = of_label[of_label["experiment"] == experiment].sort_values("epsilon")
            look: dict[str, Any] = {
                "color": tint(label, rows["mechanism"].iloc[0]),
                "label": name_of(label, experiment),
            }
            look["linestyle"] = STYLES.get(label, "-") if label in NAMES else OTHERWISE.get(experiment, "-")
            for mean in rows.loc[rows["epsilon"].isna(), "mean"]:
                ax.axhline(mean, **look)
            rows = rows[rows["epsilon"].notna()]
            if len(rows):
                marks: dict[str, Any] = {"marker": "o", "markersize": 3.5, "elinewidth": 1, "capsize": 2}
                ax.errorbar(rows["epsilon"], rows["mean"], yerr=whiskers(rows), **look, **marks)
    free = frame[(frame["mechanism"] == "none") & (frame["experiment"] == "accuracy_all")]
    for mean in free["mean"].dropna():
        ax.axhline(float(mean), color=colour("none"), linewidth=1, label="no defense")
    grid = sorted(frame["epsilon"].dropna().unique())
    ax.set_xscale("log")
    ax.set_xticks(grid, [f"{epsilon:g}" for epsilon in grid])
    ax.set_xticks([], minor=True)


def ordered(frame: pd.DataFrame) -> list[str]:
    """Defenses of a table, those that are named first."""
    present = set(frame["defense"][frame["mechanism"] != "none"])
    return [label for label in NAMES if label in present] + sorted(present - set(NAMES))


@table(
    "S3",
    title="Accuracy, learning rate, noise and time",
    caption="What Fig. 5 shows, with the learning rate, sigma^2 of one user, and wall time of a round of all users "
    "on one machine, mean over repetitions at the timed epsilon; it does not depend on the bound or the number of "
    f"rounds but for the noise level, which decides how many eigenvectors water-filling takes. {CHOICE}. Undefended "
    "rows: all records, then random batches.",
    experiments=(*READ, "accuracy_times"),
    in_parts=True,
)
def table_s3(tables: Tables) -> pd.DataFrame:
    """A row per model, mechanism and epsilon."""
    frame, seconds = trained(tables), round_seconds(tables["accuracy_times"])
    levels = noise_levels(tables)
    rows = []
    order = {label: place for place, label in enumerate(("none", *NAMES))}
    frame = frame.assign(place=frame["defense"].map(order).fillna(len(order)))
    models = {model: place for place, model in enumerate(dict.fromkeys(frame["model"]))}
    frame = frame.assign(panel=frame["model"].map(models))
    for row in frame.sort_values(["dataset", "panel", "place", "experiment", "epsilon"], kind="stable").to_dict(
        "records"
    ):
        undefended = row["mechanism"] == "none"
        level = levels.get((row["dataset"], row["model"], row["defense"], row["epsilon"]))
        taken = seconds.get((row["dataset"], row["model"], row["defense"].partition("-")[0]))
        diverged = math.isnan(row["rate"])
        kind = "all records" if row["experiment"] == "accuracy_all" else "random batches"
        rows.append(
            {
                "model": f"{row['model']}, {row['dataset']}",
                "mechanism": f"no defense, {kind}" if undefended else name_of(row["defense"], row["experiment"]),
                "epsilon": NONE if math.isnan(row["epsilon"]) else f"{row['epsilon']:g}",
                "test accuracy": "diverged" if diverged else f"{row['mean']:.3f}",
                "interval": NONE if diverged else f"{row['low']:.3f} to {row['high']:.3f}",
                "learning rate": NONE if diverged else f"{row['rate']:g}",
                "sigma^2": NONE if level is None else f"{level:.3g}",
                "seconds of a round": NONE if taken is None else f"{taken:.3g}",
            }
        )
    return pd.DataFrame(rows)


def round_seconds(frame: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    """Mean wall time of a round by data set, model and method."""
    rows = frame[frame["metric"] == "round_wall_s"]
    rows = rows.assign(method=rows[SETTING + "method"])
    means = rows.groupby(["dataset", "model", "method"], as_index=False)["value"].mean()
    keys = zip(means["dataset"], means["model"], means["method"], strict=True)
    return dict(zip(keys, means["value"].astype(float), strict=True))


def noise_levels(tables: Tables) -> dict[tuple[str, str, str, float], float]:
    """``sigma^2`` by data set, model, defense and epsilon."""
    levels: dict[tuple[str, str, str, float], float] = {}
    for name in TRAINED:
        rows = having(tables[name], "epsilon")
        rows = rows[rows["metric"] == "noise_variance"].drop_duplicates(["dataset", "model", "defense", EPSILON])
        keys = zip(rows["dataset"], rows["model"], rows["defense"], rows[EPSILON], strict=True)
        levels |= dict(zip(keys, rows["value"].astype(float), strict=True))
    return levels


SUMMED = {
    "sgd": ("accuracy_batches", "in the clear"),
    "sgd-secure": ("accuracy_secure", "secure aggregation"),
    "sgd-discrete": ("accuracy_secure", "secure aggregation; discrete noise"),
    "sgd-dropout": ("accuracy_dropout", "secure aggregation; users drop out and collude"),
}
"""SGD-DP -> its experiment, and how updates are summed."""


@table(
    "S7",
    title="SGD-DP through secure aggregation, and in the clear",
    caption="One cell of Fig. 5a (epsilon, learning rate) with the same records and batches: sums in the clear, as all "
    "other cells of Fig. 5; through the whole protocol, with the same noise and fresh keys in every round; so with "
    "discrete Gaussian noise on gradients in fixed point (Kairouz et al. 2021), where the guarantee is of what is "
    "summed and not of continuous noise; and, with normal noise, where users leave before or after they have shared "
    "their keys, and some may collude with the server, so that noise is calibrated for the least number of honest "
    "users in a sum. Differences: the largest of a seed from the clear.",
    experiments=(
        reads("accuracy_batches", defenses="sgd"),
        reads("accuracy_secure", defenses=["sgd-secure", "sgd-discrete"]),
        reads("accuracy_dropout", defenses="sgd-dropout"),
    ),
    leaves_out="it compares ways to sum the updates of one mechanism",
)
def table_s7(tables: Tables) -> pd.DataFrame:
    """A row per way to sum updates."""
    cells = summed(tables)
    rows = []
    for (label, (_, way)), cell in zip(SUMMED.items(), cells, strict=True):
        accuracy, loss = cell["accuracy"], cell["final_loss"]
        apart = [float((cell[metric] - cells[0][metric]).abs().max()) for metric in ("accuracy", "final_loss")]
        clear = label == "sgd"
        rows.append(
            {
                "updates are summed": way,
                "epsilon": f"{cell.attrs['epsilon']:g}",
                "learning rate": f"{cell.attrs['rate']:g}",
                "sigma^2": f"{cell['noise_variance'].iloc[0]:.3g}",
                "test accuracy": f"{accuracy.mean():.3f}",
                "training loss": f"{loss.mean():.4f}",
                "difference in accuracy": NONE if clear else f"{apart[0]:.3g}",
                "difference in loss": NONE if clear else f"{apart[1]:.2g}",
                "KiB per user and round": f"{cell['bits'].mean() / 8192:.1f}",
            }
        )
    return pd.DataFrame(rows)


def summed(tables: Tables) -> list[pd.DataFrame]:
    """The runs of each of :data:`SUMMED` in the secure one's cell: metrics by seed; epsilon and rate are attributes."""
    secure = tables["accuracy_secure"]
    epsilon, rate = (float(secure[name].dropna().iloc[0]) for name in (EPSILON, RATE))
    cells = []
    for label, (name, _) in SUMMED.items():
        frame = tables[name]
        rows = frame[(frame["defense"] == label) & (frame[EPSILON] == epsilon) & (frame[RATE] == rate)]
        rows = rows[rows["axis"].isna()]
        cell = rows.pivot_table(index="seed", columns="metric", values="value", dropna=False)
        cell.attrs = {"epsilon": epsilon, "rate": rate}
        cells.append(cell)
    return cells
