"""Figures 4 and S1: errors of a vote on flipped bits, from formulas and from simulated clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakbench.federated.fixed_point import FixedPoint, unbiased_mean, vote
from leakbench.lazy import pd, torch
from leakbench.papers.cdpa.common import MASK, figure
from leakbench.randomness import Streams
from leakbench.report.artifacts import Tables
from leakbench.report.plots import Drawing
from leakbench.report.statistics import over_seeds
from leakbench.report.style import MODEL_COLOURS, REFERENCE_COLOUR, colour, panels
from leakbench.theory.bit_votes import least_ones, recovery_error, vote_errors

CLIENTS = (4, 10, 20, 50, 100)
KEEP = [place / 200 for place in range(101, 200)]
"""p from 0.505 to 0.995."""
FLOOR = 1e-12
"""Lower end of the vertical axis; smaller errors do not occur in practice."""

ERRORS = {
    "eq. 3, either bit": "as printed (eqs. 3, 4): $1 - p_{\\gamma 2}$",
    "eq. 2, true 0": "the server's rule (eq. 2), true bit 0",
    "eq. 2, true 1": "the server's rule (eq. 2), true bit 1",
}
"""Series -> title of its panel."""


@figure(
    4,
    title="Error of recovery against the probability of keeping a bit",
    caption="Probability that the vote gets a masked bit wrong which all R clients share, against p. Left: 1 - "
    "p_gamma2 of eqs. 3 and 4, which the paper draws; it counts R / 2 right bits as success and holds for either bit. "
    "Middle and right: the rule of eq. 2 sets a bit where R p / 2 clients sent a one, so that zeros are lost far more "
    "often than ones; nearly all masked bits are zeros, since they are high ones. Steps: the number of ones that it "
    "takes is whole. Errors below 1e-12 are cut off. The paper does not print its numbers of clients.",
    experiments=(),
)
def fig04(_: Tables) -> Drawing:
    """A panel per formula, a line per number of clients."""
    frame = recovery_errors()
    drawn, axes = panels(len(ERRORS), width=3.4, height=3.2)
    for ax, (series, title) in zip(axes, ERRORS.items(), strict=True):
        for clients, tint in zip(CLIENTS, MODEL_COLOURS, strict=False):
            rows = frame[(frame["series"] == series) & (frame["clients"] == clients)]
            ax.plot(rows["p"], rows["error"].where(rows["error"] >= FLOOR), color=tint, label=f"R = {clients}")
        ax.set(xlabel="probability $p$ of keeping a bit", title=title, yscale="log", ylim=(FLOOR, 1), xlim=(0.5, 1))
    axes[0].set_ylabel("probability of a wrong bit")
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(drawn, frame)


def recovery_errors() -> pd.DataFrame:
    """Columns ``series``, ``clients``, ``p``, ``error``."""
    rows = []
    for clients in CLIENTS:
        for keep in KEEP:
            one, zero = vote_errors(clients, keep)
            errors = (recovery_error(clients, keep), zero, one)
            rows += [
                {"series": series, "clients": clients, "p": keep, "error": error}
                for series, error in zip(ERRORS, errors, strict=True)
            ]
    return pd.DataFrame(rows)


VOTERS, VALUES, SEEDS = 20, 20_000, 5
SPREADS = (0.1, 0.3, 1.0, 3.0)
"""Values of kappa: spread between clients over spread between coordinates."""
SCALE = 0.02
"""Standard deviation of the mean update; far below the weight 0.4096 of the lowest masked bit."""
SERIES = {
    "vote, no flips": (1.0, "as_printed"),
    "vote, p = 0.98": (0.98, "as_printed"),
    "vote, p = 0.8": (0.8, "as_printed"),
    "unbiased mean of bits, p = 0.98": (0.98, "corrected"),
}
"""Name -> p, and the variant of the defense."""
STYLES: dict[str, dict[str, Any]] = {
    "vote, no flips": {"color": REFERENCE_COLOUR, "linewidth": 5, "alpha": 0.5, "markersize": 9},
    "vote, p = 0.98": {"color": colour("cdpa")},
    "vote, p = 0.8": {"color": colour("cdpa"), "linestyle": "--"},
    "unbiased mean of bits, p = 0.98": {"color": MODEL_COLOURS[0], "linestyle": ":"},
}
MEASURES = {"relative_error": "relative error", "cosine": "cosine", "sign_agreement": "part of right signs"}


@figure(
    "S1",
    title="The vote of bits is no mean",
    caption=f"Updates of R = {VOTERS} clients, m + kappa 0.02 z, with m = 0.02 z' the same for all (z, z' standard "
    f"normal, {VALUES:,} coordinates, {SEEDS} seeds, means), written as words of 16 bits with 4 decimals: what "
    "the server makes of them against their mean: error over the norm of the mean, cosine, signs. The vote "
    "(eq. 2) of many different integers is not near their mean even if no bit is flipped; flips at p = 0.98 "
    "add next to nothing, and at p = 0.8 the server's threshold, R p / 2 = 8, lets 3 % of the zeros become "
    "high ones. The mean of bits is unbiased, and pays with the noise of the flips.",
    experiments=(),
)
def fig_s1(_: Tables) -> Drawing:
    """A panel per measure, a line per way to aggregate, against kappa."""
    frame = simulated()
    points = over_seeds(frame, ["metric", "series", "kappa"])
    drawn, axes = panels(len(MEASURES), width=3.4, height=3.2)
    for ax, (metric, ylabel) in zip(axes, MEASURES.items(), strict=True):
        for series, style in STYLES.items():
            rows = points[(points["metric"] == metric) & (points["series"] == series)].sort_values("kappa")
            ax.plot(rows["kappa"], rows["mean"], marker="o", label=series, **style)
            ax.fill_between(rows["kappa"], rows["low"], rows["high"], color=style["color"], alpha=0.15, linewidth=0)
        ax.set(xlabel=r"disagreement of clients, $\kappa$", ylabel=ylabel, xscale="log")
        ax.set_xticks(SPREADS, [f"{spread:g}" for spread in SPREADS])
        ax.minorticks_off()
    axes[0].set_yscale("log")
    axes[1].set_ylim(0, 1.02)
    axes[-1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return Drawing(drawn, points)


def simulated() -> pd.DataFrame:
    """Columns ``seed``, ``kappa``, ``series``, ``metric``, ``value``."""
    form = FixedPoint()
    streams = Streams([("cdpa", "vote", seed, client) for seed in range(SEEDS) for client in range(VOTERS)])
    shared = Streams([("cdpa", "vote", seed) for seed in range(SEEDS)]).normal(VALUES)[:, None]  # [S, 1, d]
    individual = streams.normal(VALUES).unflatten(0, (SEEDS, VOTERS))
    rows = []
    for kappa in SPREADS:
        updates = SCALE * (shared + kappa * individual)
        words = form.encode(updates)[0]
        for series, (keep, variant) in SERIES.items():
            sent = words
            if keep < 1:
                flips = streams.child("flips", series, str(kappa))
                sent = form.flip(words.flatten(0, 1), MASK, keep, flips).view_as(words)
            aggregate = (
                form.decode(vote(sent, least_ones(VOTERS, keep)))
                if variant == "as_printed"
                else unbiased_mean(sent, form, MASK, keep)
            )
            for metric, values in compared(aggregate, updates.mean(dim=1)).items():
                rows += [
                    {"seed": seed, "kappa": kappa, "series": series, "metric": metric, "value": value}
                    for seed, value in enumerate(values.tolist())
                ]
    return pd.DataFrame(rows)


def compared(aggregate: torch.Tensor, mean: torch.Tensor) -> Mapping[str, torch.Tensor]:
    """Distances of an aggregate from the mean, both ``[S, d]``: each of :data:`MEASURES`, ``[S]``."""
    aggregate, mean = aggregate.double(), mean.double()
    return {
        "relative_error": (aggregate - mean).norm(dim=1) / mean.norm(dim=1),
        "cosine": torch.nn.functional.cosine_similarity(aggregate, mean, dim=1),
        "sign_agreement": (aggregate.sign() == mean.sign()).double().mean(dim=1),
    }
