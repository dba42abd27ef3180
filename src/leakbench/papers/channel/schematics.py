"""Figures 1 to 4, 7 and 17: the paper's schematics and formulas, drawn from numbers."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from leakbench.defenses.channel import PersonalizedChannel
from leakbench.lazy import pd, torch
from leakbench.papers.channel.common import CALIBRATED, CHANNELS, figure
from leakbench.papers.channel.jobs.calibrate import VISITS
from leakbench.papers.channel.theory.compression import equivalent_variance, without_directions
from leakbench.papers.channel.theory.toy_channel import next_weight, toy_capacity, toy_variance
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, values_of
from leakbench.report.style import REFERENCE_COLOUR, colour, panels
from leakbench.report.tidy import SETTING
from leakbench.theory.capacity import capacity, natural_variance

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KAPPA = SETTING + "kappa"
MECHANISMS = {
    "natural-all": "natural_channel",
    "white-all": "white_channel",
    "personalized-all": "personalized_channel",
}
NATURAL = "natural-all"
LINES = ("-", "--", "-.", ":")
DIMENSION = 1024
"""Inputs of the formulas' images: 32x32, grey."""


def _first_dataset(frame: pd.DataFrame) -> pd.DataFrame:
    first: pd.DataFrame = frame[frame["dataset"] == frame["dataset"].iloc[0]]
    return first


def _middle(frame: pd.DataFrame) -> float:
    """The capacity in the middle of the grid."""
    grid = sorted(frame[KAPPA].dropna().unique())
    return float(grid[len(grid) // 2])


@figure(
    1,
    title="A channel of limited capacity",
    caption="The paper's figure is a sketch of a controlled channel; these are the three channels at one capacity, on "
    "the first data set. Left: variance of the images along the directions in which they differ most (eigenvectors of "
    "their covariance, by falling variance) and of the noise along the same ones, in squared normalised inputs. "
    "Right: what each direction alone carries, half ln(1 + signal / noise) nats; together the directions that are not "
    "shown carry the rest. Noise of the personalized channel is not independent between these directions, and its "
    "capacity is solved for by an upper bound, so it stays below what is asked for.",
    experiments=(CALIBRATED,),
    leaves_out="it is a sketch with the paper's channels",
)
def fig01(tables: Tables) -> Drawing:
    """Signal and noise by eigen-direction, and the capacity of each."""
    frame = _first_dataset(tables["calibration"])
    kappa = _middle(frame)
    drawn, (left, right) = panels(2, width=4.3, height=3.2)
    signal = values_of(frame, "eigenvalues").drop_duplicates("index").sort_values("index")
    number, variance = signal["index"].to_numpy() + 1, signal["value"].to_numpy()
    left.plot(number, variance, color="#000000", linewidth=2, label="images")
    numbers: list[dict[str, Any]] = [
        {"series": "images", "direction": k, "variance": v} for k, v in zip(number, variance, strict=True)
    ]
    at = frame[frame[KAPPA] == kappa]
    for (label, name), style in zip(CHANNELS.items(), LINES, strict=False):
        noise = values_of(at, "direction_noise", defense=label).sort_values("index")["value"].to_numpy()
        if not len(noise):
            continue
        reached = values_of(at, "capacity", defense=label)["value"].iloc[0]
        carried = pd.Series(variance / noise).add(1).map(_half_log).to_numpy()
        tint = colour(MECHANISMS[label])
        left.plot(number, noise, color=tint, linestyle=style, label=f"{name} noise")
        right.plot(number, carried, color=tint, linestyle=style, label=f"{name}: {reached:.3g} nats in all")
        numbers += [
            {"series": name, "direction": k, "variance": v, "nats": c, "capacity": reached, "kappa": kappa}
            for k, v, c in zip(number, noise, carried, strict=True)
        ]
    dataset = frame["dataset"].iloc[0]
    left.set(yscale="log", xlabel="direction", ylabel="variance (squared input)", title=dataset)
    right.set(
        yscale="log", xlabel="direction", ylabel="capacity (nats)", title=rf"asked for: $\kappa$ = {kappa:g} nats"
    )
    for ax in (left, right):
        ax.legend(fontsize="small")
    return Drawing(drawn, pd.DataFrame(numbers))


def _half_log(value: float) -> float:
    return math.log(value) / 2


@figure(
    2,
    title="How information adds up over the steps of training",
    caption="The paper's figure is a sketch of federated learning as a Markov chain; this is what the chain lets add "
    "up, for the natural channel on the first data set, against how often training visits an image. Left: the paper's "
    "sum of as many capacities (eq. 9); what as many fresh draws of the noise tell together, f(sigma / visits); and "
    "one draw for all visits, of which nothing more can be learnt. Right: the factor exp(-2 I / d) by which each "
    "lowers the error bound of Theorem 1, for d inputs per image.",
    experiments=(reads("calibration", defenses=NATURAL),),
    leaves_out="it is a sketch with one channel",
)
def fig02(tables: Tables) -> Drawing:
    """Nats against visits under three ways of counting, and the factor on the error bound."""
    frame = _first_dataset(tables["calibration"])
    frame = frame[frame["defense"] == NATURAL]
    kappa = _middle(frame)
    at = frame[frame[KAPPA] == kappa]
    fresh = values_of(at, "fresh_capacity").sort_values("index")["value"].to_numpy()
    log_factor = float(values_of(at, "log_factor")["value"].iloc[0])
    visits = [float(count) for count in VISITS[: len(fresh)]]
    series = {
        r"sum of capacities, $n \kappa$": [kappa * count for count in visits],
        "noise drawn afresh": fresh.tolist(),
        "noise drawn once": [kappa] * len(visits),
    }
    drawn, (left, right) = panels(2, width=4.3, height=3.2)
    numbers: list[dict[str, Any]] = []
    for (name, nats), style, tint in zip(
        series.items(), ("--", "-", "-."), (REFERENCE_COLOUR, "#D55E00", colour("natural_channel")), strict=True
    ):
        # ln of the factor is proportional to the nats.
        factor = torch.tensor([log_factor / kappa * value for value in nats], dtype=torch.float64).exp().tolist()
        left.plot(visits, nats, color=tint, linestyle=style, label=name)
        right.plot(visits, factor, color=tint, linestyle=style, label=name)
        numbers += [
            {"series": name, "visits": v, "nats": n, "factor": f, "kappa": kappa}
            for v, n, f in zip(visits, nats, factor, strict=True)
        ]
    dataset = frame["dataset"].iloc[0]
    left.set(xscale="log", yscale="log", ylabel="information about an image (nats)", title=dataset)
    right.set(xscale="log", ylabel="factor on the error bound", ylim=(-0.03, 1.03), title=rf"$\kappa$ = {kappa:g} nats")
    for ax in (left, right):
        ax.set_xlabel("visits of an image")
    left.legend(fontsize="small")
    return Drawing(drawn, pd.DataFrame(numbers))


@figure(
    3,
    title="Capacity by signal and noise",
    caption="Theorem 2 where all d eigenvalues of the parameters' covariance are lambda: C = d / 2 ln(1 + lambda / "
    "sigma) nats, here per dimension, under noise of variance sigma. A server that makes lambda larger by the "
    "parameters it sends raises the capacity.",
    experiments=(),
)
def fig03(_: Tables) -> Drawing:
    """Contours over lambda and sigma, and cuts through them."""
    grid = torch.logspace(-2, 2, 41, dtype=torch.float64)
    nats = capacity(grid[:, None, None], grid)  # [lambda, sigma]
    drawn, (left, right) = panels(2, width=4.3, height=3.4)
    levels = [0.005, 0.05, 0.25, 0.5, 1.0, 2.0, 3.0, 4.0]
    drawn_levels = left.contourf(grid, grid, nats.T, levels=[0.0, *levels, 5.0], cmap="Blues")
    lines = left.contour(grid, grid, nats.T, levels=levels, colors="#333333", linewidths=0.6)
    left.clabel(lines, fmt="%g", fontsize="x-small")
    left.figure.colorbar(drawn_levels, ax=left, label=r"$C / d$ (nats)", pad=0.02)
    left.set(xscale="log", yscale="log", xlabel=r"signal $\lambda$", ylabel=r"noise $\sigma$")
    for place, style in zip(range(10, 41, 10), LINES, strict=True):
        right.plot(grid, nats[place], color="#332288", linestyle=style, label=rf"$\lambda$ = {float(grid[place]):g}")
    right.set(xscale="log", xlabel=r"noise $\sigma$", ylabel=r"$C / d$ (nats)")
    right.legend(fontsize="small")
    numbers = [
        {"lambda": signal, "sigma": noise, "nats_per_dimension": float(nats[row, column])}
        for (row, signal), (column, noise) in itertools.product(enumerate(grid.tolist()), repeat=2)
    ]
    return Drawing(drawn, pd.DataFrame(numbers))


@figure(
    4,
    title="Noise on parameters has to be found again in each round",
    caption="The paper's example: F = W^2 D with D normal, mean -1 and variance 1, so the gradient 2 W D has the "
    "variance 4 W^2. Training by the mean gradient at rate 1 takes W = 2 to 6 and 18. Left: capacity of noise that "
    "was chosen for 1 nat at W = 2 (dots: the rounds). Right: the variance that keeps 1 nat. Noise on the data passes "
    "through the same gradient and needs no change.",
    experiments=(),
)
def fig04(_: Tables) -> Drawing:
    """Capacity of fixed noise, and the noise for a fixed capacity, over the weight."""
    weights = torch.linspace(0.5, 20, 196, dtype=torch.float64)
    start = torch.tensor(2.0, dtype=torch.float64)
    rounds = torch.stack([start, next_weight(start), next_weight(next_weight(start))])
    drawn, (left, right) = panels(2, width=4.3, height=3.0)
    numbers: list[dict[str, Any]] = []
    for space, words, mechanism, style in (
        ("parameter", "noise on the parameter", "parameter_channel", "--"),
        ("data", "noise on the data", "natural_channel", "-"),
    ):
        chosen = toy_variance(start, 1.0, space)  # type: ignore[arg-type]
        tint = colour(mechanism)
        for kind, x in (("curve", weights), ("round", rounds)):
            nats = toy_capacity(x, chosen, space)  # type: ignore[arg-type]
            needed = toy_variance(x, 1.0, space)  # type: ignore[arg-type]
            for ax, y in ((left, nats), (right, needed)):
                if kind == "curve":
                    ax.plot(x, y, color=tint, linestyle=style, label=words)
                else:
                    ax.plot(x, y, color=tint, linestyle="", marker="o", zorder=3)
            numbers += [
                {"series": words, "kind": kind, "weight": w, "capacity": c, "variance_for_1_nat": v}
                for w, c, v in zip(x.tolist(), nats.tolist(), needed.tolist(), strict=True)
            ]
    left.set(xlabel="W", ylabel="capacity (nats)", title="noise chosen at W = 2")
    right.set(xlabel="W", ylabel="variance of the noise", yscale="log", title="noise for 1 nat")
    left.legend(fontsize="small")
    return Drawing(drawn, pd.DataFrame(numbers))


@figure(
    7,
    title="Removing dimensions is adding noise",
    caption=f"From the formulas, for {DIMENSION} eigenvalues that fall as those of photographs do, lambda_k = k^-1.3, "
    "and noise of the variance that gives 300 nats. Left: capacity of what is kept when the directions of largest, or "
    "of smallest, variance are removed. Right: the noise, over that noise, under which all directions together have "
    "the capacity of what is kept.",
    experiments=(),
)
def fig07(_: Tables) -> Drawing:
    """Capacity that is kept, and the equivalent noise, over the number of removed directions."""
    eigenvalues = torch.arange(1, DIMENSION + 1, dtype=torch.float64) ** -1.3
    sigma = natural_variance(eigenvalues, 300.0)
    removed = torch.tensor([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1000])
    place = torch.arange(DIMENSION)
    drawn, (left, right) = panels(2, width=4.3, height=3.0)
    numbers: list[dict[str, Any]] = []
    for words, dropped, style, tint in (
        ("largest first", place < removed[:, None], "-", "#0072B2"),
        ("smallest first", place >= DIMENSION - removed[:, None], "--", "#D55E00"),
    ):
        kept = capacity(without_directions(eigenvalues, dropped), sigma)
        ratio = equivalent_variance(eigenvalues.expand(len(removed), -1), kept) / sigma
        left.plot(removed, kept, color=tint, linestyle=style, marker="o", markersize=3, label=words)
        right.plot(removed, ratio, color=tint, linestyle=style, marker="o", markersize=3, label=words)
        numbers += [
            {"series": words, "removed": k, "capacity": c, "noise_ratio": r}
            for k, c, r in zip(removed.tolist(), kept.tolist(), ratio.tolist(), strict=True)
        ]
    left.set(xscale="symlog", ylabel="capacity of what is kept (nats)")
    right.set(xscale="symlog", yscale="log", ylabel=r"equivalent noise $\sigma' / \sigma$")
    for ax in (left, right):
        ax.set_xlabel("removed directions")
        ax.set_xlim(left=0)
    left.legend(fontsize="small")
    return Drawing(drawn, pd.DataFrame(numbers))


@figure(
    17,
    title="Weights of the personalized channel",
    caption="Beta, the relative variance of the noise per pixel, in every colour channel of an image of 32x32 pixels: "
    "50 on rows 12 to 19 and columns 8 to 23, where the eyes of an aligned face may lie, and 1 elsewhere.",
    experiments=(),
)
def fig17(_: Tables) -> Drawing:
    """The matrix beta."""
    beta = PersonalizedChannel(kappa=1.0).weights((1, 32, 32)).view(32, 32)
    drawn, (ax,) = panels(1, width=3.9, height=3.3)
    _matrix(ax, beta)
    numbers = [
        {"row": row, "column": column, "beta": float(beta[row, column])}
        for row, column in itertools.product(range(32), repeat=2)
    ]
    return Drawing(drawn, pd.DataFrame(numbers))


def _matrix(ax: Axes, beta: torch.Tensor) -> None:
    shown = ax.imshow(beta.numpy(), cmap="Blues", vmin=0, interpolation="nearest")
    ax.figure.colorbar(shown, ax=ax, label=r"$\beta$", pad=0.02, ticks=[1, 50])
    ax.set(xlabel="column", ylabel="row")
    ax.grid(False)
