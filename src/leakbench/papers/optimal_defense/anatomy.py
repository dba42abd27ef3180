"""Figures 1 and 14: where optimal noise goes, by coordinate in one step, and by parameter tensor during training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from leakbench.jobs.train import noise_metric
from leakbench.lazy import np, pd, torch
from leakbench.papers.optimal_defense.common import INTERVALS, figure
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, draw_curve, values_of
from leakbench.report.record_tensors import RecordTensors
from leakbench.report.style import colour, legend_below, panels, plain_ticks, shades, whole_ticks
from leakbench.theory.optimal_noise import variance_ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes

OPTIMAL, ISOTROPIC = "optimal-0.1", "dpsgd-0.1"
OPTIMAL_NOISE, ISOTROPIC_NOISE = "optimal_clipped_noise", "clipped_noise"
"""Mechanisms of these defenses."""
QUANTILES = {"5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95}
WINDOW = 10
LINES = ("-", "--", "-.", ":")


def _in_order(tensors: list[str]) -> list[str]:
    """Names of parameter tensors by layer, weights before biases."""
    return sorted(tensors, key=lambda name: (name.rpartition(".")[0], name.endswith("bias")))


@figure(
    1,
    title="Noise for every coordinate instead of noise for all",
    caption="The paper's figure is a sketch; this is one gradient of one client, at initialisation. Left: every "
    "coordinate by its magnitude and by how much it depends on the images (norm of its gradient by the inputs). "
    "Optimal noise has a variance proportional to the second over the first, so that it grows towards the upper left; "
    "on the line it equals isotropic noise of the same root mean square. Coordinates that are exactly zero are left "
    "out. Right: standard deviations of optimal noise in every parameter tensor, beside the one of isotropic noise.",
    experiments=(reads("coordinates", defenses=OPTIMAL),),
    tensors=("coordinates",),
)
def fig01(_: Tables, stored: RecordTensors) -> Drawing:
    """Magnitude and sensitivity of coordinates, and the noise that follows, in one step."""
    tensors = stored.tensors("coordinates", OPTIMAL, "fisher")
    prefix = "seed0/gradient/"
    names = _in_order([key.removeprefix(prefix) for key in tensors if key.startswith(prefix)])
    gradient, sensitivity, variance = (
        {name: tensors[f"seed0/{kind}/{name}"].double().flatten() for name in names}
        for kind in ("gradient", "sensitivity", "variance0")
    )
    g, a, v = (torch.cat(list(parts.values())) for parts in (gradient, sensitivity, variance))
    isotropic = float(v.mean().sqrt())
    drawn, (left, right) = panels(2, width=4.7, height=3.7)
    numbers = _density(left, g, a, v, isotropic)
    numbers += _deviations(right, {name: part.sqrt() for name, part in variance.items()}, isotropic)
    return Drawing(drawn, pd.DataFrame(numbers))


def _density(
    ax: Axes, gradient: torch.Tensor, sensitivity: torch.Tensor, variance: torch.Tensor, isotropic: float
) -> list[dict[str, Any]]:
    """Histogram of coordinates by magnitude and sensitivity, and the line where both kinds of noise are equal."""
    magnitude, norm = gradient.abs(), sensitivity.sqrt()
    positive = (magnitude > 0) & (norm > 0)
    cells = ax.hexbin(
        magnitude[positive].numpy(),
        norm[positive].numpy(),
        xscale="log",
        yscale="log",
        bins="log",
        gridsize=38,
        mincnt=1,
        cmap="Greys",
        linewidths=0,
    )
    ax.figure.colorbar(cells, ax=ax, label="coordinates per cell", pad=0.02)
    # Variance = factor * ratio. The sensitivities were estimated anew, so the factor is that of most coordinates.
    ratio = variance_ratio(sensitivity, gradient)
    noisy = (variance > 0) & (ratio > 0)
    factor = float((variance[noisy] / ratio[noisy]).median())
    limits = ax.get_xlim(), ax.get_ylim()
    x = torch.tensor(limits[0], dtype=torch.float64)
    ax.plot(x, x * isotropic**2 / factor, color=colour(ISOTROPIC_NOISE), linewidth=1.5)
    ax.set(xlim=limits[0], ylim=limits[1])
    more = float((variance > isotropic**2).double().mean())
    box = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5}
    words = {"more": (0.03, 0.97, "left", "top", more), "less": (0.97, 0.03, "right", "bottom", 1 - more)}
    for word, (across, up, horizontal, vertical, part) in words.items():
        ax.text(
            across,
            up,
            f"{word} noise than isotropic:\n{part:.0%} of the coordinates",
            transform=ax.transAxes,
            ha=horizontal,
            va=vertical,
            fontsize="small",
            color=colour(OPTIMAL_NOISE) if word == "more" else colour(ISOTROPIC_NOISE),
            bbox=box,
        )
    ax.set(xlabel="magnitude $|g_i|$", ylabel=r"sensitivity to the inputs $\|\nabla_x g_i\|$")
    counts = np.asarray(cells.get_array()).tolist()
    centres = (10 ** np.asarray(cells.get_offsets())).tolist()  # it counts logarithms
    return [
        {"panel": "coordinates", "magnitude": x, "sensitivity": y, "count": count}
        for (x, y), count in zip(centres, counts, strict=True)
    ] + [{"panel": "more noise than isotropic", "part": more}]


def _deviations(ax: Axes, deviations: dict[str, torch.Tensor], isotropic: float) -> list[dict[str, Any]]:
    """Quantiles of the standard deviation in every parameter tensor, the first on top, and the isotropic one."""
    levels = torch.tensor(list(QUANTILES.values()), dtype=torch.float64)
    names, tint = list(deviations), colour(OPTIMAL_NOISE)
    quantiles = torch.stack([torch.quantile(part, levels) for part in deviations.values()])
    most = torch.stack([part.max() for part in deviations.values()])
    rows = range(len(names), 0, -1)
    low, lower, middle, upper, high = quantiles.T
    ax.hlines(rows, low, high, color=tint, linewidth=1, label="optimal: 5 % to 95 %")
    ax.hlines(rows, lower, upper, color=tint, linewidth=5, alpha=0.6, label="optimal: 25 % to 75 %")
    ax.plot(middle, rows, color="white", marker="o", markeredgecolor=tint, linestyle="none", label="optimal: median")
    ax.plot(most, rows, color=tint, marker="|", linestyle="none", label="optimal: largest")
    ax.axvline(isotropic, color=colour(ISOTROPIC_NOISE), label="isotropic, equal RMS")
    ax.set(xscale="log", xlabel="standard deviation of the noise", yticks=rows, yticklabels=names)
    legend_below(ax)
    shown = [
        {"panel": "tensors", "tensor": name, **dict(zip(QUANTILES, values, strict=True)), "largest": largest}
        for name, values, largest in zip(names, quantiles.tolist(), most.tolist(), strict=True)
    ]
    return [*shown, {"panel": "tensors", "tensor": "isotropic", "median": isotropic}]


@figure(
    14,
    title="Noise in every parameter tensor during training",
    caption="Mean standard deviation of the noise in every parameter tensor during federated training with "
    f"optimal noise at scale 0.1, mean of {WINDOW} steps; left weights, right biases. {INTERVALS}",
    experiments=(reads("noise_training", defenses=(OPTIMAL, ISOTROPIC)),),
    leaves_out="it takes the noise of one mechanism apart",
)
def fig14(tables: Tables) -> Drawing:
    """Noise per parameter tensor against the step, for optimal noise and, as one level, for isotropic noise."""
    return _noise_curves(tables["noise_training"], f"mean standard deviation,\nmean of {WINDOW} steps")


@figure(
    "S6",
    title="What the released code plots as Figure 14",
    caption="The released notebook plots no noise that is added: it takes the gradient of the last client without its "
    "absolute value, so that every negative entry counts as one of 1e-6, and divides by the root mean square. Mean of "
    f"{WINDOW} steps of the training of Figure 14; left weights, right biases. {INTERVALS}",
    experiments=(reads("plotted_noise", defenses=OPTIMAL),),
)
def fig_s6(tables: Tables) -> Drawing:
    """The plotted ratios per parameter tensor against the step."""
    return _noise_curves(tables["plotted_noise"], f"mean plotted ratio,\nmean of {WINDOW} steps")


def _noise_curves(frame: pd.DataFrame, ylabel: str) -> Drawing:
    """Curves of ``noise_per_tensor`` for optimal noise, and the level of isotropic noise where it was trained."""
    prefix = noise_metric("")
    noise = frame[frame["metric"].str.startswith(prefix)]
    optimal = noise[noise["defense"] == OPTIMAL]
    names = _in_order([metric.removeprefix(prefix) for metric in optimal["metric"].unique()])
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    tints = dict(zip(layers, shades(OPTIMAL_NOISE, len(layers)), strict=True))
    level = noise.loc[noise["defense"] == ISOTROPIC, "value"].mean()
    drawn, axes = panels(2, width=3.7, height=3.1)
    shown = []
    for ax, (kind, title) in zip(axes, {"weight": "weights", "bias": "biases"}.items(), strict=True):
        for place, layer in enumerate(layers):
            name = f"{layer}.{kind}"
            rows = values_of(optimal, noise_metric(name))
            if rows["value"].notna().any():
                style = LINES[place % len(LINES)]
                curve = draw_curve(ax, rows, f"optimal noise, {layer}", window=WINDOW, style=style, tint=tints[layer])
                shown.append(curve.assign(series=name, panel=title))
        if not math.isnan(level):
            ax.axhline(level, color=colour(ISOTROPIC_NOISE), linewidth=1, label="isotropic noise")
        ax.set(title=title, xlabel="server step", yscale="log")
        whole_ticks(ax.xaxis)
    means = pd.concat([curve["mean"] for curve in shown], ignore_index=True).tolist() if shown else []
    heights = [height for height in (*means, level) if height > 0]
    for ax in axes:
        if heights:  # intervals that reach zero have no end on this axis
            ax.set_ylim(min(heights) / 2, 2 * max(heights))
        plain_ticks(ax.yaxis)
    axes[0].set_ylabel(ylabel)
    axes[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    if not math.isnan(level):
        shown.append(pd.DataFrame([{"series": "isotropic noise", "mean": level}]))
    return Drawing(drawn, pd.concat(shown, ignore_index=True))
