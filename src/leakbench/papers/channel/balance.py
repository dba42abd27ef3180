"""Figures 11, 15, 16 and 24: accuracy against protection from both kinds of attack.

Improvements over the undefended model of the same seed are computed seed by seed, then averaged.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from leakbench.lazy import np, pd
from leakbench.metrics.defense_capability import dra_improvement, mia_improvement
from leakbench.papers.channel.common import UNDEFENDED, figure
from leakbench.papers.channel.released import (
    MIA,
    MSE,
    judged_by_strongest,
    models_of,
    row_of_panels,
    strongest_membership,
)
from leakbench.report.artifacts import Tables
from leakbench.report.gate_verdicts import VOID_MODEL
from leakbench.report.labels import Reads, reads
from leakbench.report.plots import Drawing, having, judged, named, whiskers
from leakbench.report.style import REFERENCE_COLOUR, colour, marker
from leakbench.report.tidy import SETTING, cells_of, of_cell
from leakbench.report.trade_offs import keep_in_view
from leakbench.report.wording import INTERVALS

if TYPE_CHECKING:
    import numpy.typing as npt
    from matplotlib.axes import Axes

    from leakbench.report.statistics import Array

SERIES = {
    "natural": "Natural",
    "white": "White",
    "personalized": "Personalized",
    "dp-sgd": "DP-SGD",
    "dp-psac": "DP-PSAC",
}
DP = ("dp-sgd", "dp-psac")
WORLD: tuple[str | Reads, ...] = (
    UNDEFENDED,
    *(reads(channel, defenses=channel) for channel in SERIES if channel not in DP),
    reads("dp", defenses=DP),
)
CELL = ["dataset", "model", "seed"]
IMPROVED = (
    "IMP_MIA = 1 - AUC / AUC_0 and IMP_DRA = 1 - MSE_0 / MSE of model inversion, where 0 marks the undefended model of "
    "the same seed; the membership attack is that with the largest mean AUC on undefended models. Points of one "
    "line differ in the capacity (channels) or the noise multiplier (DP), which is larger where the point is."
)


COLUMNS = {"accuracy": "accuracy", "inversion_mse": "mse", MIA.metric: "auc"}
"""Metric -> its name here."""


def measured(frame: pd.DataFrame, undefended: pd.DataFrame) -> pd.DataFrame:
    """One row per run, with its ``accuracy``, ``mse`` and the ``auc`` of the strongest membership attack."""
    frame = judged_by_strongest(having(having(frame, "kappa"), "multiplier"), undefended)
    keys = [*CELL, "defense", "mechanism", "void", SETTING + "kappa", SETTING + "multiplier"]
    keys += [SETTING + "steps"] if SETTING + "steps" in frame else []
    chosen = frame[frame["metric"].isin(COLUMNS)]
    wide = chosen.set_index([*keys, "metric"])["value"].unstack("metric").reset_index()
    return wide.rename(columns=COLUMNS)


def improvements(tables: Tables) -> pd.DataFrame:
    """Every defended run with its ``accuracy``, ``imp_mia``, ``imp_dra`` and ``gdc``; NaN where a run was lost."""
    bare = tables[UNDEFENDED]
    undefended = measured(bare, bare)[[*CELL, "auc", "mse"]]
    defended = pd.concat([measured(frame, bare) for name, frame in tables.items() if name != UNDEFENDED])
    runs = defended.merge(undefended, on=CELL, suffixes=("", "_0"))
    known = runs[["auc", "mse", "auc_0", "mse_0"]].notna().all(axis=1)
    for column in ("imp_mia", "imp_dra"):
        runs[column] = np.nan
    finished = runs[known]
    runs.loc[known, "imp_mia"] = mia_improvement(finished["auc"], finished["auc_0"])
    runs.loc[known, "imp_dra"] = dra_improvement(finished["mse"], finished["mse_0"])
    return runs.assign(gdc=(runs["imp_mia"] + runs["imp_dra"]) / 2)


def pareto(points: Array) -> npt.NDArray[np.bool_]:
    """Mask ``[n]`` of the points ``[n, 2]`` that no other one exceeds in one coordinate and reaches in the other."""
    least = (points[None] >= points[:, None]).all(axis=2)
    more = (points[None] > points[:, None]).any(axis=2)
    beaten: npt.NDArray[np.bool_] = np.logical_and(least, more).max(axis=1)
    return np.logical_not(beaten)


def hypervolume(points: Array, worst: Array) -> float:
    """Area between the points ``[n, 2]`` and a corner ``[2]`` that is nowhere above any of them."""
    area, height = 0.0, float(worst[1])
    for x, y in points[np.lexsort((-points[:, 1], -points[:, 0]))]:  # from the right: each step up adds a slab
        area += max(0.0, float(x - worst[0])) * max(0.0, float(y) - height)
        height = max(height, float(y))
    return area


def _strength(frame: pd.DataFrame) -> pd.Series:
    return frame[SETTING + "kappa"].fillna(frame[SETTING + "multiplier"])


def plane(tables: Tables, *, x: str, y: str, xlabel: str, ylabel: str, front: bool) -> Drawing:
    """Two columns of :func:`improvements` against each other: a panel per data set and model, a line per defense.

    Only models that every experiment has are drawn. With ``front`` the Pareto front of all points is, too.
    """
    runs = improvements(tables)
    dp = tables["dp"]["model"].unique() if "dp" in tables else runs["model"].unique()
    runs = runs[runs["model"].isin(dp)].assign(strength=_strength)
    cells = cells_of(runs)
    shown, axes = row_of_panels(len(cells))
    numbers: list[dict[str, Any]] = []
    for ax, (dataset, model) in zip(axes, cells, strict=True):
        here = of_cell(runs, dataset, model)
        by = ["defense", "mechanism", "strength"]
        points = judged(here.assign(value=here[x]), by).merge(
            judged(here.assign(value=here[y]), by).drop(columns="void"), on=by, suffixes=("_x", "_y")
        )
        points = points[points[["mean_x", "mean_y"]].notna().all(axis=1)].reset_index(drop=True)
        where = points[["mean_x", "mean_y"]].to_numpy(dtype=float)
        points["on_front"] = pareto(where) if len(points) else False
        worst = where.min(axis=0) if len(points) else np.zeros(2)
        for defense in dict.fromkeys([*SERIES, *points["defense"]]):
            settings = points[points["defense"] == defense].sort_values("strength")
            if settings.empty:
                continue
            _draw(ax, settings, SERIES.get(defense, defense))
            volume = hypervolume(settings[["mean_x", "mean_y"]].to_numpy(dtype=float), worst)
            numbers += [
                {"dataset": dataset, "model": model, "series": SERIES.get(defense, defense)}
                | {"strength": row["strength"]}
                | {f"{x}{end}": row[f"{part}_x"] for part, end in ENDS.items()}
                | {f"{y}{end}": row[f"{part}_y"] for part, end in ENDS.items()}
                | {"seeds": row["seeds_x"], "lost": row["lost_x"] + row["lost_y"], "void": row["void"]}
                | ({"on_front": row["on_front"], "hypervolume": volume} if front else {})
                for row in settings.to_dict("records")
            ]
        if front and len(points):
            best = points[points["on_front"]].sort_values("mean_x")
            ax.step(best["mean_x"], best["mean_y"], where="pre", color=REFERENCE_COLOUR, linewidth=1, zorder=0)
        keep_in_view(ax, [{"x": row[0], "y": row[1]} for row in where])
        ax.set(title=f"{dataset}, {model}", xlabel=xlabel)
    axes[0].set_ylabel(ylabel)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(shown, pd.DataFrame(numbers))


ENDS = {"mean": "", "low": "_low", "high": "_high"}
"""Statistic -> ending of the name of a column of numbers."""


def _draw(ax: Axes, points: pd.DataFrame, name: str) -> None:
    mechanism, void = points["mechanism"].iloc[0], bool(points["void"].any())
    x, y = points["mean_x"], points["mean_y"]
    tint = colour(mechanism)
    bars: dict[str, Any] = {"xerr": whiskers(points, "_x"), "yerr": whiskers(points, "_y")}
    ax.errorbar(x, y, **bars, color=tint, linewidth=0.7, alpha=0.6)
    sizes = [14 + 14 * place for place in range(len(points))]
    words = named(name, void, VOID_MODEL)
    filled = "none" if void else tint
    ax.scatter(x, y, s=sizes, edgecolor=tint, facecolor=filled, marker=marker(mechanism), label=words, zorder=3)


def exchange(tables: Tables, *, experiment: str, parameter: str) -> Drawing:
    """Accuracy against the error of model inversion, a panel per data set, a line per model over the parameter."""
    frame = having(tables[experiment], parameter)
    column, bare = SETTING + parameter, having(tables[UNDEFENDED], parameter)
    strongest = strongest_membership(bare)
    datasets = list(frame["dataset"].unique())
    shown, axes = row_of_panels(len(datasets))
    numbers: list[dict[str, Any]] = []
    for ax, dataset in zip(axes, datasets, strict=True):
        trained = set(frame.loc[frame["dataset"] == dataset, "model"])
        for model, tint in models_of(tables).items():
            if model not in trained:
                continue
            for series, source in (("no defense", bare), (experiment, frame)):
                here = of_cell(judged_by_strongest(source, bare), dataset, model)
                parts = {
                    name: judged(here[here["metric"] == metric], [column]).set_index(column)
                    for metric, name in COLUMNS.items()
                }
                points = pd.concat(parts, axis=1).sort_index()
                if points.empty:
                    continue
                _draw_exchange(ax, points, model, tint, defended=series == experiment)
                numbers += [
                    {
                        "dataset": dataset,
                        "model": model,
                        "series": series,
                        parameter: value,
                        "attack": strongest.get((dataset, model)),
                    }
                    | {f"{name}{end}": row[name, part] for name in parts for part, end in ENDS.items()}
                    | {name: row["accuracy", name] for name in ("seeds", "lost", "void")}
                    for value, row in points.iterrows()
                ]
        keep_in_view(ax, [{"x": row["mse"], "y": row["accuracy"]} for row in numbers if row["dataset"] == dataset])
        ax.set(title=dataset, xlabel=MSE.ylabel)
    axes[0].set_ylabel("test accuracy")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(shown, pd.DataFrame(numbers))


def _draw_exchange(ax: Axes, points: pd.DataFrame, model: str, tint: str, *, defended: bool) -> None:
    x, y = points["mse"], points["accuracy"]
    look: dict[str, Any] = {"color": tint, "linestyle": "-" if defended else "none", "linewidth": 0.7, "alpha": 0.6}
    ax.errorbar(x["mean"], y["mean"], xerr=whiskers(x), yerr=whiskers(y), **look)
    sizes = [14 + 14 * place for place in range(len(points))] if defended else 70
    void = bool(y["void"].any())
    ax.scatter(
        x["mean"],
        y["mean"],
        s=sizes,
        edgecolor=tint,
        facecolor="none" if void else tint,
        marker="o" if defended else "*",
        label=named(model, void, VOID_MODEL) if defended else None,
    )


for number, experiment, parameter, words in (
    (11, "natural", "kappa", "the capacity"),
    (24, "steps", "steps", "the number of steps"),
):
    figure(
        number,
        title=f"Utility and privacy over {words}",
        caption="Accuracy on clean test images against the squared error of model inversion (network inputs, median "
        f"over classes), Natural channel; larger points have more of {words}, stars no defense. A better defense lies "
        f"higher and further right. The CSV holds the membership AUC beside them. {INTERVALS}",
        experiments=(UNDEFENDED, experiment),
    )(partial(exchange, experiment=experiment, parameter=parameter))

figure(
    15,
    title="Accuracy against the general defense capability",
    caption="Accuracy on clean test images against GDC, the mean of IMP_MIA and IMP_DRA; larger is better in both. "
    f"{IMPROVED} Grey: the Pareto front of all mean points. The CSV has each series' hypervolume: the area that its "
    f"mean points dominate above the smallest GDC and accuracy of the panel. {INTERVALS}",
    experiments=WORLD,
)(partial(plane, x="gdc", y="accuracy", xlabel="GDC", ylabel="test accuracy", front=True))

figure(
    16,
    title="Improvement against reconstruction and against membership inference",
    caption=f"What a defense takes from both kinds of attack; larger is better. {IMPROVED} {INTERVALS}",
    experiments=WORLD,
)(partial(plane, x="imp_dra", y="imp_mia", xlabel=r"IMP$_{DRA}$", ylabel=r"IMP$_{MIA}$", front=False))
