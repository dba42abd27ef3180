"""Figure S1: error of the estimate of C1 after T attempts, and the bound of Theorem 7.1."""

from __future__ import annotations

from leakbench.lazy import pd, torch
from leakbench.papers.tfl_meta import PAPER
from leakbench.papers.tfl_meta.common import figure
from leakbench.papers.tfl_meta.theory.leakage_estimation import c1_error, data_belief, population_prior, relative_error
from leakbench.randomness import generator
from leakbench.report.artifacts import Tables
from leakbench.report.plots import Drawing
from leakbench.report.style import MODEL_COLOURS, panels
from leakbench.theory.leakage_surrogate import LARGEST_LEAKAGE, leakage

RATES = {"rarely recovered": 0.1, "often recovered": 0.75}
"""Probability that an attempt recovers a datum."""
DATA, POPULATION = 4, 400
"""S and N, of the prior."""
ATTEMPTS = tuple(round(10 ** (1 + place / 4)) for place in range(17))
DRAWS = 2000
FAILURE = 0.05


@figure(
    "S1",
    title="Error of the estimate of C1 over attempts",
    caption=f"Batches of {DATA} data that an attempt recovers independently, each with the stated probability; the "
    f"prior is 1/{POPULATION} per datum. Solid: the 95 % quantile of |estimate - C1| over {DRAWS:,} draws of T "
    "attempts, without smoothing. Dashed: Theorem 7.1 with the relative error that Lemma C.1 guarantees with "
    "probability 0.95; it begins where that is below 1. Dotted: sqrt(ln 2), which no error exceeds. Errors fall as "
    "T^(-1/2), the bound as T^(-1/4).",
    experiments=(),
)
def fig_s1(_: Tables) -> Drawing:
    """Two lines per rate of recovery."""
    frame = errors()
    drawn, (ax,) = panels(1, width=6.4, height=3.8)
    for (name, rows), tint in zip(frame.groupby("series", sort=False), MODEL_COLOURS, strict=False):
        probability = f"{name}, {RATES[str(name)]:g}"
        ax.plot(rows["T"], rows["error"], color=tint, marker="o", label=f"error ({probability})")
        ax.plot(rows["T"], rows["bound"], color=tint, linestyle="--", label=f"Theorem 7.1 ({probability})")
    ax.axhline(LARGEST_LEAKAGE, color="#333333", linewidth=0.9, linestyle=":", label=r"$\sqrt{\ln 2}$")
    ax.set(xlabel="attempts T", ylabel=r"error of $C_1$ (nats$^{1/2}$)", xscale="log", yscale="log")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return Drawing(drawn, frame)


def errors() -> pd.DataFrame:
    """Columns ``series``, ``T``, ``error``, ``bound`` (NaN: there is none), ``covered``: part of draws within it."""
    prior = population_prior(DATA, POPULATION)
    rows = []
    for name, rate in RATES.items():
        drawn = generator(PAPER, "estimation error", name)
        kappa = torch.tensor([rate / DATA] * DATA + [1 - rate], dtype=torch.float64)
        true = leakage(kappa, prior)
        for attempts in ATTEMPTS:
            trials = torch.full((DRAWS, DATA), float(attempts), dtype=torch.float64)
            hits = torch.binomial(trials, torch.full_like(trials, rate), generator=drawn)
            counts = torch.cat([hits, DATA * attempts - hits.sum(dim=-1, keepdim=True)], dim=-1)
            off = (leakage(data_belief(counts, attempts), prior) - true).abs()
            bound = float(c1_error(relative_error(attempts, FAILURE, kappa, data=DATA)))
            rows.append(
                {
                    "series": name,
                    "T": attempts,
                    "error": float(off.quantile(0.95)),
                    "bound": bound if bound < float("inf") else float("nan"),
                    "covered": float((off <= bound).double().mean()),
                }
            )
    return pd.DataFrame(rows)
