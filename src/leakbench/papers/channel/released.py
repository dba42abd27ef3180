"""Figures 9, 10, 12, 13, 18 to 23, 25 to 29 and S7: accuracy and leakage of released models.

All have one form: a panel per data set, a line per model, a metric against the capacity of the noise or the number of
steps, and beside each line what the same model reaches without a defense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from leakbench.lazy import pd
from leakbench.papers.channel.common import UNDEFENDED, figure
from leakbench.report.artifacts import Tables
from leakbench.report.gate_verdicts import VOID_MODEL
from leakbench.report.plots import STATISTICS, Drawing, having, judged, named, values_of
from leakbench.report.style import MODEL_COLOURS, panels
from leakbench.report.tidy import SETTING
from leakbench.report.trade_offs import keep_in_view
from leakbench.report.wording import INTERVALS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AUC, PROTECTED = "auc/", "_noisy"
PAPERS_ATTACK = "auc/four_branch"
"""The paper's membership attack."""
XLABELS = {"kappa": r"capacity $\kappa$ (nats per image)", "steps": "training steps $n$"}


class Measure(NamedTuple):
    """A metric as the figures show it; ``mia`` stands for that of the strongest membership attack.

    Attributes:
        beside: another metric, drawn beside it, and its words in the legend; of none empty.
    """

    metric: str
    ylabel: str
    words: str
    beside: tuple[str, str] = ("", "")


ACCURACY = Measure("accuracy", "test accuracy", "Accuracy on clean test images")
MIA = Measure(
    "mia",
    "membership AUC",
    "Area under the ROC curve of membership inference on clean candidates",
    (PAPERS_ATTACK, "the paper's attack"),
)
NOISY = Measure(
    "auc/threshold" + PROTECTED,
    "membership AUC (threshold)",
    "Area under the ROC curve of membership inference by the loss",
    ("auc/threshold", "clean candidates"),
)
MSE = Measure("inversion_mse", "inversion MSE (network inputs)", "Squared error of model inversion, in network inputs")
PSNR = Measure("inversion_psnr", "inversion PSNR (dB)", "Peak signal-to-noise ratio of model inversion, in dB")
SSIM = Measure("inversion_ssim", "inversion SSIM", "Structural similarity of model inversion (11x11 Gaussian window)")
COSINE = Measure("inversion_cosine", "inversion cosine", "Cosine of model inversion, of flattened network inputs")
CENTRES = "Inverted images are compared with the mean image of their class; median over classes."
STRONGEST = (
    "Solid is, for each data set and model, the attack with the largest mean AUC without a defense, dash-dotted the "
    "paper's own where that is another one; the CSV holds all attacks."
)
REFERENCE = "Dotted: the same model without a defense."


def membership_metrics(frame: pd.DataFrame) -> list[str]:
    """The AUCs of attacks on clean candidates in a table."""
    return sorted(name for name in frame["metric"].unique() if name.startswith(AUC) and not name.endswith(PROTECTED))


def strongest_membership(undefended: pd.DataFrame) -> dict[tuple[str, str], str]:
    """By data set and model: the metric of the attack with the largest mean AUC on undefended models.

    Of equal attacks the first by name. The claims choose in the same way.
    """
    areas = undefended[undefended["metric"].isin(membership_metrics(undefended))]
    means = areas.groupby(["dataset", "model", "metric"])["value"].mean().dropna()
    return {(dataset, model): metric for dataset, model, metric in means.groupby(level=[0, 1]).idxmax()}


def judged_by_strongest(frame: pd.DataFrame, undefended: pd.DataFrame) -> pd.DataFrame:
    """A table in which the AUC of each data set's and model's strongest membership attack is the metric ``mia``."""
    strongest = strongest_membership(undefended)
    cells = zip(frame["dataset"], frame["model"], strict=True)
    chosen = frame["metric"] == [strongest.get(cell) for cell in cells]
    return frame.assign(metric=frame["metric"].where(~chosen, MIA.metric))


def models_of(tables: Tables) -> dict[str, str]:
    """The models of some tables and their colours, in the order of the configuration."""
    names = dict.fromkeys(name for frame in tables.values() for name in frame["model"])
    return {name: MODEL_COLOURS[place % len(MODEL_COLOURS)] for place, name in enumerate(names)}


def row_of_panels(count: int) -> tuple[Figure, list[Axes]]:
    """Axes for so many data sets, with room for a legend and a caption."""
    return panels(count, width=max(3.4, 6.4 / max(count, 1)), height=4.2)


def against(tables: Tables, *, experiment: str, measure: Measure, parameter: str) -> Drawing:
    """A metric against a swept parameter: a panel per data set, a line per model, dotted without a defense.

    Args:
        tables: the undefended one and that of ``experiment``.
        experiment: the one that sweeps the parameter.
        measure: the metric, with the label of its axis.
        parameter: the one that is swept.
    """
    undefended, frame = tables[UNDEFENDED], having(tables[experiment], parameter)
    strongest = strongest_membership(undefended) if measure is MIA else {}
    beside, words = measure.beside
    metrics = membership_metrics(frame) if measure is MIA else [measure.metric, *filter(None, [beside])]
    datasets, models = list(frame["dataset"].unique()), models_of(tables)
    shown, axes = row_of_panels(len(datasets))
    numbers: list[dict[str, Any]] = []
    for ax, dataset in zip(axes, datasets, strict=True):
        for model, tint in models.items():
            drawn = strongest.get((dataset, model)) if measure is MIA else measure.metric
            levels: dict[str | None, list[float]] = {}
            for metric in metrics:
                cell = _cell(frame, dataset, model, metric)
                if cell.empty:
                    continue
                without = _cell(undefended, dataset, model, metric)
                points = judged(cell, [SETTING + parameter]).sort_values(SETTING + parameter)
                reference = judged(without, ["model"])
                shows = metric in (drawn, beside)
                if shows:
                    _draw(ax, points, SETTING + parameter, model, tint, words if metric != drawn else "")
                    levels[metric] = reference["mean"].dropna().tolist()
                where = {"dataset": dataset, "model": model, "metric": metric, "drawn": shows}
                numbers += [where | {"series": "no defense", **_statistics(row)} for row in _rows(reference)]
                numbers += [
                    where | {"series": experiment, parameter: row[SETTING + parameter], **_statistics(row)}
                    for row in _rows(points)
                ]
            for value in levels.get(drawn) or levels.get(beside, []):
                ax.axhline(value, color=tint, linestyle=":", linewidth=1)
        keep_in_view(ax, [{"y": row["mean"]} for row in numbers if row["drawn"] and row["dataset"] == dataset])
        ax.set(title=dataset, xlabel=XLABELS[parameter])
    axes[0].set_ylabel(measure.ylabel + _attacks(strongest))
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(shown, pd.DataFrame(numbers))


def _attacks(strongest: Mapping[tuple[str, str], str]) -> str:
    """The strongest attack, where all data sets and models have the same."""
    names = {metric.removeprefix(AUC) for metric in strongest.values()}
    return f" ({names.pop()})" if len(names) == 1 else " (strongest attack)" if names else ""


def _cell(frame: pd.DataFrame, dataset: str, model: str, metric: str) -> pd.DataFrame:
    return values_of(frame, metric, dataset=dataset, model=model)


def _rows(points: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in points.to_dict("records")]


def _statistics(row: dict[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in STATISTICS}


def _draw(ax: Axes, points: pd.DataFrame, column: str, model: str, tint: str, beside: str) -> None:
    """A line with its band; ``beside``: words of what stands beside the line proper."""
    x, void = points[column], bool(points["void"].any())
    name = named(f"{model}, {beside}" if beside else model, void, VOID_MODEL)
    style = "-." if beside else "--" if void else "-"
    filled = "none" if void else tint
    ax.plot(x, points["mean"], color=tint, marker="x" if beside else "o", mfc=filled, linestyle=style, label=name)
    if not beside:
        ax.fill_between(x, points["low"], points["high"], color=tint, alpha=0.15, linewidth=0)


CHANNELS = {
    "natural": "Natural channel",
    "white": "White channel",
    "personalized": "Personalized channel, with the noise of Theorem 3's bound",
}
SHOWN: Sequence[tuple[int, str, Measure, str]] = (
    (9, "natural", ACCURACY, "kappa"),
    (10, "natural", MSE, "kappa"),
    (12, "steps", ACCURACY, "steps"),
    (13, "steps", MSE, "steps"),
    (18, "white", ACCURACY, "kappa"),
    (19, "white", MIA, "kappa"),
    (20, "white", MSE, "kappa"),
    (21, "personalized", ACCURACY, "kappa"),
    (22, "personalized", MIA, "kappa"),
    (23, "personalized", MSE, "kappa"),
    (25, "natural", MIA, "kappa"),
    (26, "steps", MIA, "steps"),
    (27, "natural", PSNR, "kappa"),
    (28, "natural", SSIM, "kappa"),
    (29, "natural", COSINE, "kappa"),
)
"""Number, experiment, metric, parameter."""


def _register(number: int, experiment: str, measure: Measure, parameter: str) -> None:
    over = "the number of steps" if parameter == "steps" else "the capacity of one noisy image"
    mechanism = CHANNELS.get(experiment, "Natural channel of fixed capacity")
    explained = STRONGEST if measure is MIA else "" if measure is ACCURACY else CENTRES
    figure(
        number,
        title=f"{mechanism.split(',')[0]}: {measure.ylabel} against {over}",
        caption=f"{measure.words}, against {over}. {mechanism}; noise is drawn once per image. "
        + " ".join(filter(None, (explained, REFERENCE, INTERVALS))),
        experiments=(UNDEFENDED, experiment),
    )(partial(against, experiment=experiment, measure=measure, parameter=parameter))


for entry in SHOWN:
    _register(*entry)

figure(
    "S7",
    title="Membership inference on noisy candidates",
    caption=f"{NOISY.words}, against the capacity of one noisy image. Natural channel; noise is drawn once per image. "
    "Solid: candidates are as the defense makes them, for members the very images that were trained on, of which a "
    "model also remembers the noise. Dash-dotted: clean candidates, as an attacker has them, who never sees the noise; "
    f"dotted the same without a defense. {INTERVALS}",
    experiments=(UNDEFENDED, "natural"),
)(partial(against, experiment="natural", measure=NOISY, parameter="kappa"))
