"""Figures 5, 6, 8, 14, 30 to 33 and S1 to S6: images as channels release them, and gradient inversion of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from leakbench.lazy import np, pd, torch
from leakbench.papers.channel.common import CALIBRATED, CHANNELS, figure
from leakbench.report.artifacts import Tables
from leakbench.report.gate_verdicts import VOID
from leakbench.report.labels import Reads, reads
from leakbench.report.plots import (
    STATISTICS,
    Drawing,
    draw_swept,
    draw_undefended_and_references,
    having,
    judged,
    named,
    series_of,
    values_of,
)
from leakbench.report.record_tensors import RecordTensors
from leakbench.report.style import IMAGE_REFERENCES, REFERENCE_COLOUR, colour, panels, use_style
from leakbench.report.tidy import SETTING
from leakbench.report.under_attacked import marked
from leakbench.report.wording import rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KAPPA, BATCH, DIRECTION = SETTING + "kappa", SETTING + "batch_size", SETTING + "direction"
ATTACK, ADAPTIVE, ONE = "ig", "ig-posterior", "ig-one"
BATCHED = {"none": "no defense", "dp-sgd-1.3": "DP-SGD", "gaussian-0.01": "constant noise"}
MSE = "MSE (squared normalised inputs)"
UNTRAINED = " on an untrained model"
INVERTED = (
    "Inverting Gradients of single images{model}, with the true labels; mean over images and over seeds of the "
    "initialisation. Channels add noise to the images once; reconstructions are compared with the clean images. "
    "Below each panel what the paper's attack makes of undefended gradients, and attackers that never see a gradient; "
    "and defenses that have no capacity, if there are any."
)


def _heatmaps(
    frame: pd.DataFrame,
    references: pd.DataFrame,
    metric: str,
    label: str,
    attack: str,
    *,
    hotter_is: str,
    least: str | None = None,
) -> Drawing:
    """One panel per data set: channels by capacity, with the numbers in the cells.

    Args:
        frame: table of the channels.
        references: table of the undefended cells and reference attackers.
        metric: what is shown.
        label: name of the metric on panels, with its unit.
        attack: label of the attack that is shown.
        hotter_is: "higher" or "lower": which values are dark; dark is more leakage.
        least: the metric of one value per setting that stands below each number, if any.
    """
    frame = having(frame, "kappa")
    datasets = list(dict.fromkeys(frame["dataset"]))
    cells = max(frame[KAPPA].nunique(), 1)
    stacked = len(datasets) > 2 or cells > 5
    width = max(1.9 + 0.52 * cells, 5.5 if stacked or len(datasets) == 1 else 0.0)  # room for the caption
    height = 2.6 if least is None else 3.5
    drawn, axes = panels(len(datasets), width=width, height=height, columns=1 if stacked else None)
    numbers: list[dict[Any, Any]] = []
    for ax, dataset in zip(axes, datasets, strict=True):
        every = values_of(frame, metric, attack=attack, dataset=dataset)
        swept = every[every[KAPPA].notna()]
        points = judged(swept, ["defense", KAPPA])
        if least is not None:
            floors = values_of(frame, least, dataset=dataset).groupby(["defense", KAPPA])["value"].first()
            points = points.join(floors.rename("least"), on=["defense", KAPPA])
        beside = _references(references, metric, dataset)
        others = every[every[KAPPA].isna() & (every["mechanism"] != "none")]
        beside += [
            {str(key): value for key, value in row.items()} for row in judged(others, ["defense"]).to_dict("records")
        ]
        numbers += [{"dataset": dataset, "metric": metric, **row} for row in points.to_dict("records")]
        numbers += [{"dataset": dataset, "metric": metric, **row} for row in beside]
        _heatmap(ax, points, {**CHANNELS, **series_of(swept, CHANNELS)}, hotter_is)
        void = f" ({VOID})" if points["void"].any() else ""
        ax.set_title(f"{dataset}: {label}{void}", fontsize="medium")
        words = [f"{row['defense']} {row['mean']:.3g}" for row in beside]
        lines = [", ".join(words[place : place + 2]) for place in range(0, len(words), 2)]
        ax.set_xlabel("\n".join([r"capacity $\kappa$ (nats per image)", *lines]), fontsize="small")
    return Drawing(drawn, pd.DataFrame(numbers).rename(columns={"defense": "series", KAPPA: "kappa"}))


def _references(frame: pd.DataFrame, metric: str, dataset: str) -> list[dict[Any, Any]]:
    """Means of the undefended attack and the reference attackers."""
    names = {ATTACK: "no defense"} | {name: words for name, (words, _) in IMAGE_REFERENCES.items()}
    means = []
    for attack, words in names.items():
        rows = values_of(frame, metric, attack=attack, dataset=dataset, mechanism="none")
        if len(rows):
            (row,) = judged(rows, ["mechanism"]).drop(columns="mechanism").to_dict("records")
            means.append({"defense": words, **row})
    return means


def _heatmap(ax: Axes, points: pd.DataFrame, names: Mapping[str, str], hotter_is: str) -> None:
    labels = [label for label in names if label in set(points["defense"])]
    table = points.pivot(index="defense", columns=KAPPA, values="mean").reindex(labels)
    values = table.to_numpy(dtype=float)
    ax.imshow(values, cmap="YlOrRd" if hotter_is == "higher" else "YlOrRd_r", aspect="auto", interpolation="nearest")
    floors = None
    if "least" in points:
        floors = points.pivot(index="defense", columns=KAPPA, values="least").reindex(labels).to_numpy(dtype=float)
    low, high = np.nanmin(values), np.nanmax(values)
    for row, column in np.ndindex(values.shape):
        value = values[row, column]
        part = (value - low) / (high - low) if high > low else 0.5
        dark = part > 0.65 if hotter_is == "higher" else part < 0.35
        text = rounded(float(value))
        if floors is not None:
            text += f"\n({floors[row, column]:.2g})"
        ax.text(column, row, text, ha="center", va="center", fontsize="small", color="white" if dark else "black")
    ax.set_xticks(range(len(table.columns)), [f"{kappa:g}" for kappa in table.columns])
    words = [marked(names[label], points[points["defense"] == label]) for label in labels]
    ax.set_yticks(range(len(labels)), words)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


@figure(
    5,
    title="Images as the channels release them",
    caption="Test images and what a client that defends them holds instead, for every channel and capacity in nats, "
    "with one draw of the noise; pixels are clipped to [0, 1] for the picture alone.",
    experiments=(reads("pictures", defenses=CHANNELS),),
    tensors=("pictures",),
)
def fig05(tables: Tables, stored: RecordTensors) -> Drawing:
    """Rows: channels and images; columns: the clean image, then rising capacity."""
    use_style()
    import matplotlib.pyplot as plt

    frame = having(tables["pictures"], "kappa")
    names = series_of(frame, CHANNELS)
    pictures = {label: stored.tensors("pictures", label, "calibrate") for label in names}
    grids = {label: _capacities(frame, stored, label) for label in names}
    images = len(next(iter(pictures.values()))["seed0/clean"])
    columns = 1 + max(map(len, grids.values()))
    size = (max(1.2 + 0.85 * columns, 5.5), 0.25 + 0.95 * images * len(names))
    drawn, axes = plt.subplots(images * len(names), columns, figsize=size, squeeze=False, layout="constrained")
    numbers = []
    for block, (label, name) in enumerate(names.items()):
        clean, noisy = pictures[label]["seed0/clean"], pictures[label]["seed0/protected"]
        for image in range(images):
            row = axes[block * images + image]
            for ax in row:
                ax.set_axis_off()
            _show(row[0], clean[image], "clean" if image == 0 else "")
            if image == 0:
                row[0].text(-0.15, 0.5, name, transform=row[0].transAxes, ha="right", va="center")
            for column, (place, kappa) in enumerate(grids[label].items(), 1):
                _show(row[column], noisy[place, image], f"{kappa:g}" if image == 0 and kappa == kappa else "")
                error = (noisy[place, image] - clean[image]).square().mean()
                numbers.append({"series": name, "kappa": kappa, "image": image, "mse_pixels": float(error)})
    return Drawing(drawn, pd.DataFrame(numbers))


def _capacities(frame: pd.DataFrame, stored: RecordTensors, label: str) -> dict[int, float]:
    """Places of a defense's settings in its record -> their capacities; NaN of a defense without capacity."""
    capacities = list(dict.fromkeys(frame.loc[(frame["defense"] == label) & frame[KAPPA].notna(), KAPPA]))
    return dict(enumerate(capacities)) or {stored.place("pictures", label, "calibrate"): math.nan}


def _show(ax: Axes, image: torch.Tensor, title: str) -> None:
    pixels = image.clamp(0, 1).permute(1, 2, 0).squeeze(2).numpy()
    ax.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    ax.set_title(title, fontsize="small", pad=2)


def one_for_a_batch(tables: Tables, *, experiment: str) -> Drawing:
    """MSE against the batch size, with and without noise."""
    frame = having(tables[experiment], "batch_size")
    drawn, (ax,) = panels(1, width=6.2, height=3.3)
    numbers: list[dict[Any, Any]] = []
    for label, name in {"none": BATCHED["none"], **series_of(frame, BATCHED)}.items():
        numbers += draw_swept(ax, values_of(frame, "mse_input", defense=label, attack=ONE), "batch_size", name)
    for attack, (name, style) in IMAGE_REFERENCES.items():
        rows = values_of(frame, "mse_input", mechanism="none", attack=attack)
        if len(rows):
            points = judged(rows, [BATCH]).sort_values(BATCH)
            ax.plot(points[BATCH], points["mean"], color=REFERENCE_COLOUR, linestyle=style, linewidth=1, label=name)
            numbers += [
                {"series": name, **row} for row in points.rename(columns={BATCH: "batch_size"}).to_dict("records")
            ]
    ax.set_xscale("log", base=2)
    ax.set(yscale="log", xlabel="batch size", ylabel=MSE)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(drawn, pd.DataFrame(numbers))


for number, experiment, target in (
    (6, "batch_size", "the mean of the batch's images"),
    ("S5", "dataset_mean", "the mean of all training images"),
):
    figure(
        number,
        title="One image for the gradient of a batch" + (", against the data set" if number != 6 else ""),
        caption="Inverting Gradients searches one image, with the mean of the batch's one-hot labels, whose gradient "
        f"is that of the batch; its error is that against {target} (the paper has 'the mean of local data'). DP-SGD: "
        "clipping norm 1, noise multiplier 1.3; constant noise: standard deviation 0.01 on every coordinate of the "
        "gradient. The mean of auxiliary images needs no gradient: only what lies below its line was learnt from the "
        "gradient. Intervals: 95 % t-intervals over seeds of the initialisation.",
        experiments=(reads(experiment, defenses=BATCHED, attacks=(ONE, "mean_image", "grey")),),
    )(partial(one_for_a_batch, experiment=experiment))


@figure(
    "S6",
    title="Noise on the parameters and on the data",
    caption="Accuracy on clean test images of a client that trains alone, against the capacity: noise on its images, "
    "drawn once, or on every gradient, calibrated anew at each step to the covariance of the step's gradients (section "
    "5.1). Capacities are those of an image's noise and of one step. Intervals: 95 % t-intervals over seeds.",
    experiments=(reads("parameter_space", defenses=("none", "parameter", "natural-all")),),
    leaves_out="it compares noise in two places",
)
def fig_s6(tables: Tables) -> Drawing:
    """Accuracy against capacity in both spaces: a panel per data set."""
    frame = having(tables["parameter_space"], "kappa")
    names = {"natural-all": "noise on the data (Natural)", "parameter": "noise on the parameters"}
    datasets = list(frame["dataset"].unique())
    drawn, axes = panels(len(datasets), width=max(3.4, 6.4 / max(len(datasets), 1)), height=3.2)
    numbers: list[dict[Any, Any]] = []
    for ax, dataset in zip(axes, datasets, strict=True):
        here = frame[frame["dataset"] == dataset]
        points = draw_undefended_and_references(ax, here, "accuracy", None)
        for label, name in series_of(here, names, "kappa").items():
            points += draw_swept(ax, values_of(here, "accuracy", defense=label), "kappa", name)
        numbers += [{"dataset": dataset, **row} for row in points]
        ax.set(title=dataset, xscale="log", xlabel=r"capacity $\kappa$ (nats)")
    axes[0].set_ylabel("test accuracy")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(drawn, pd.DataFrame(numbers))


@figure(
    8,
    title="Gradient inversion without one direction of the images",
    caption="Clients take one eigen-direction out of their images, by falling variance: the first, the second and the "
    "eleventh (the paper's largest, 1 and 10). Error of Inverting Gradients against the clean images, mean over "
    "images; lines: the same attack on the undefended gradient. Crosses: the variance of the direction over the "
    "number of inputs, which is the least error left where everything else is reconstructed exactly, on average over "
    "the training images. Intervals: 95 % t-intervals over seeds of the initialisation.",
    experiments=(reads("compression", attacks=ATTACK),),
    leaves_out="it is about the direction that one mechanism takes out of the images",
)
def fig08(tables: Tables) -> Drawing:
    """MSE per data set and removed direction."""
    frame = having(tables["compression"], "direction")
    datasets = list(dict.fromkeys(frame["dataset"]))
    drawn, (ax,) = panels(1, width=max(1.6 + 1.5 * len(datasets), 5.0), height=3.4)
    numbers: list[dict[Any, Any]] = []
    tint = colour("eigen_compression")
    ticks: dict[float, str] = {}
    for start, dataset in enumerate(datasets):
        removed = values_of(frame, "mse_input", attack=ATTACK, dataset=dataset)
        points = judged(removed[removed[DIRECTION].notna()], [DIRECTION]).sort_values(DIRECTION)
        least = values_of(frame, "mmse", dataset=dataset).set_index(DIRECTION)["value"]
        bare = judged(values_of(frame, "mse_input", attack=ATTACK, dataset=dataset, mechanism="none"), ["mechanism"])
        first = start == 0
        for place, row in enumerate(points.to_dict("records")):
            x = start * (len(points) + 1) + place
            ticks[x] = f"$\\lambda_{{{row[DIRECTION]:g}}}$"
            void, error = bool(row["void"]), float(least.get(row[DIRECTION], float("nan")))
            bars = [[row["mean"] - row["low"]], [row["high"] - row["mean"]]]
            words = named("one direction removed", void) if first and place == 0 else None
            ax.errorbar(x, row["mean"], yerr=bars, color=tint, marker="o", label=words, mfc="none" if void else tint)
            ax.plot(x, error, color="#333333", marker="x", linestyle="", label="its variance" if words else None)
            numbers.append(
                {"dataset": dataset, "direction": row[DIRECTION], "least": error}
                | {key: row[key] for key in STATISTICS}
            )
        for row in bare.to_dict("records"):
            span = [start * (len(points) + 1) - 0.4, start * (len(points) + 1) + len(points) - 0.6]
            ax.plot(span, [row["mean"]] * 2, color=colour("none"), linewidth=1, label="no defense" if first else None)
            numbers.append({"dataset": dataset, "series": "no defense", **row})
        middle = start * (len(points) + 1) + (len(points) - 1) / 2
        ax.text(middle, 1.02, dataset, transform=ax.get_xaxis_transform(), ha="center", va="bottom")
    ax.set_xticks(list(ticks), list(ticks.values()))
    ax.set(yscale="log", xlabel="removed direction", ylabel=MSE)
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(drawn, pd.DataFrame(numbers))


class Heatmap(NamedTuple):
    """A figure of :func:`_heatmaps`.

    Attributes:
        title: of the figure.
        words: the first sentence of the caption.
        metric: the one that is shown.
        label: its name, with the unit.
        leaks: whether higher or lower values are more leakage.
        datasets: the data sets that are shown.
        experiment: of the channels.
        attack: label of the attack.
        model: what the caption says of the network.
        least: the metric that stands below each number, if any.
    """

    title: str
    words: str = ""
    metric: str = "mse_input"
    label: str = MSE
    leaks: Literal["higher", "lower"] = "lower"
    datasets: Literal["all", "first", "others"] = "all"
    experiment: str = "inversion"
    attack: str = ATTACK
    model: str = UNTRAINED
    least: str | None = None


HEATMAPS: Mapping[int | str, Heatmap] = {
    14: Heatmap("error", "First data set.", datasets="first"),
    30: Heatmap("error on the other data sets", datasets="others"),
    31: Heatmap("PSNR", metric="psnr", label="PSNR (dB, pixels in [0, 1])", leaks="higher"),
    32: Heatmap("structural similarity", metric="ssim", label="SSIM", leaks="higher"),
    33: Heatmap("cosine similarity", metric="cosine", label="cosine of pixel vectors", leaks="higher"),
    "S1": Heatmap(
        "error for an attacker who knows the channel",
        "Fig. 14 and 30 for an attacker who knows the covariance of the noise and denoises the reconstruction (the "
        "mean of normal images given a noisy one, with moments of auxiliary images); its search has neither the box "
        "nor the total variation of the paper's attack. In brackets: the floor, the least mean squared error that a "
        "linear estimate leaves given the exact noisy images (Wiener 1949), on average over the training images.",
        experiment="inversion_adaptive",
        attack=ADAPTIVE,
        least="mmse",
    ),
    "S3": Heatmap(
        "error on the paper's LeNet-5",
        "Fig. 14 and 30 on the model of the paper's width, whose gradient the attack hardly inverts.",
        experiment="inversion_lenet5",
    ),
    "S4": Heatmap(
        "error on a trained network",
        "Fig. 14 and 30 for a network that was trained, without a defense and on images of no victim.",
        experiment="inversion_trained",
        model="",
    ),
}


def heatmap(tables: Tables, *, shown: Heatmap) -> Drawing:
    """A metric by channel and capacity; below each panel that of the same model without a channel."""
    frame = tables[shown.experiment]
    references = tables["inversion"] if shown.attack == ADAPTIVE else frame
    if shown.datasets != "all":
        first = frame["dataset"] == frame["dataset"].iloc[0]
        frame = frame[first] if shown.datasets == "first" or first.all() else frame[~first]
    return _heatmaps(
        frame, references, shown.metric, shown.label, shown.attack, hotter_is=shown.leaks, least=shown.least
    )


def _read_by(shown: Heatmap) -> tuple[Reads, ...]:
    """The table of the channels, and that of the undefended cells and reference attackers if it is another one."""
    bare = (ATTACK, *IMAGE_REFERENCES)
    if shown.attack == ATTACK:
        return (reads(shown.experiment, defenses=CHANNELS, attacks=bare),)
    return reads("inversion", attacks=bare), reads(shown.experiment, defenses=CHANNELS, attacks=shown.attack)


for number, entry in HEATMAPS.items():
    darker = "a smaller error, so more leakage" if entry.leaks == "lower" else "more leakage"
    figure(
        number,
        title=f"Gradient inversion under the channels: {entry.title}",
        caption=" ".join(filter(None, (entry.words, INVERTED.format(model=entry.model), f"Darker: {darker}."))),
        experiments=_read_by(entry),
    )(partial(heatmap, shown=entry))


@figure(
    "S2",
    title="What capacity costs, and what it should buy",
    caption="From the covariance of the images alone. Left: the capacity that each channel reaches against the one "
    "asked for; the personalized channel follows an upper bound (Theorem 3). Middle: mean variance of the noise per "
    "input. Right: the least mean squared error of any attacker who sees the noisy image, for normal images, over the "
    "images' variance.",
    experiments=(CALIBRATED,),
    leaves_out="it is about the capacity kappa of the paper's channels",
)
def fig_s2(tables: Tables) -> Drawing:
    """Capacity, noise and least error against kappa."""
    frame = having(tables["calibration"], "kappa")
    least = values_of(frame, "mmse")
    # Variance per input: of the trace, what one pixel has; noise_variance is a mean over as many.
    d = values_of(frame, "capacity").merge(
        values_of(frame, "log_factor"), on=["dataset", "defense", KAPPA], suffixes=("", "_log")
    )
    inputs = (-2 * d["value"] / d["value_log"]).groupby(d["dataset"]).first().round()
    variance = values_of(frame, "trace").groupby("dataset")["value"].first() / inputs
    relative = least.assign(value=least["value"] / least["dataset"].map(variance), metric="relative_error")
    shown = {
        "capacity": (values_of(frame, "capacity"), "capacity (nats)"),
        "noise": (values_of(frame, "noise_variance"), "noise (squared input, mean)"),
        "error": (relative, "least error over variance"),
    }
    drawn, axes = panels(3, width=3.3, height=3.0)
    numbers: list[dict[str, Any]] = []
    for ax, (panel, (rows, ylabel)) in zip(axes, shown.items(), strict=True):
        for dataset, style in zip(dict.fromkeys(frame["dataset"]), ("-", "--", "-.", ":"), strict=False):
            for label, name in CHANNELS.items():
                curve = rows[(rows["dataset"] == dataset) & (rows["defense"] == label)]
                points = draw_swept(ax, curve, "kappa", f"{name}, {dataset}", style=style, mark="")
                numbers += [{"panel": panel, "dataset": dataset, **row} for row in points]
        ax.set(xscale="log", yscale="log", xlabel=r"$\kappa$ (nats)", ylabel=ylabel)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return Drawing(drawn, pd.DataFrame(numbers))
