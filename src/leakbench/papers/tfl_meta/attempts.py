"""Figure S7: error of C1 estimated from few attempts of a real attack, and the bound of Theorem 7.1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from leakbench.lazy import pd, torch
from leakbench.papers.tfl_meta import PAPER
from leakbench.papers.tfl_meta.common import figure
from leakbench.papers.tfl_meta.estimation_error import FAILURE
from leakbench.papers.tfl_meta.theory.leakage_estimation import (
    c1_error,
    data_belief,
    null_prior,
    recovery_counts,
    relative_error,
)
from leakbench.randomness import generator
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import Drawing, named
from leakbench.report.record_tensors import RecordTensors
from leakbench.report.style import MODEL_COLOURS, panels, plain_ticks
from leakbench.report.tidy import SETTING, cells_of
from leakbench.theory.leakage_surrogate import LARGEST_LEAKAGE, leakage

REFERENCE, DEFENSE, ATTACK = "reference", "none", "dlg"
ATTEMPTS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
DRAWS = 200
PART = 4
"""An estimate is of this part of all attempts at most, so that draws differ."""


@figure(
    "S7",
    title="Error of the estimate of C1 over attempts of a real attack",
    caption=f"DLG on one upload of each client of seed 0. Solid: the 95 % quantile of |estimate - C1| over {DRAWS} "
    "draws, without replacement, of T of all attempts; C1 is that of all of them, under the null prior, without "
    "smoothing. Dashed: Theorem 7.1 with the relative error that Lemma C.1 guarantees with probability 0.95 for the "
    "rates of all attempts; it begins where that is below 1. Dotted: sqrt(ln 2), which no error exceeds. In brackets: "
    "the PSNR from which on a client's datum counts as recovered, and how often it is. At 25 dB, as elsewhere, DLG "
    "recovers a single image nearly always, and of a datum that is always or never recovered the error is zero: no "
    "solid line. So the other one is chosen to be missed at times, and no measure of leakage. Draws are of a quarter "
    "of all attempts at most. Fig. S1 has the same of rates that are made up.",
    experiments=(reads(REFERENCE, defenses=DEFENSE, attacks=ATTACK),),
    tensors=(REFERENCE,),
)
def fig_s7(tables: Tables, stored: RecordTensors) -> Drawing:
    """A line and a bound per client."""
    frame = tables[REFERENCE]
    void = bool(frame.loc[frame["attack"] == ATTACK, "void"].any())
    dataset, model = cells_of(frame)[0]
    thresholds = frame[SETTING + "threshold"].dropna().drop_duplicates().tolist()
    numbers = errors(stored, thresholds).assign(dataset=dataset, model=model, void=void)
    drawn, (ax,) = panels(1, width=7.0, height=3.8)
    for ((threshold, client), rows), tint in zip(
        numbers.groupby(["threshold", "client"], sort=False), MODEL_COLOURS, strict=False
    ):
        rate = rows["rate"].iloc[0]
        words = f"client {client} ({threshold:g} dB, {100 * rate:.3g} %)"
        shown = rows[rows["error"] > 0]
        face = "none" if void else tint
        if shown.empty:
            words += ": no error"
        ax.plot(shown["T"], shown["error"], color=tint, marker="o", markerfacecolor=face, label=named(words, void))
        ax.plot(rows["T"], rows["bound"], color=tint, linestyle="--", label=f"Theorem 7.1, client {client}")
    ax.axhline(LARGEST_LEAKAGE, color="#333333", linewidth=0.9, linestyle=":", label=r"$\sqrt{\ln 2}$")
    ax.set(xlabel="attempts T", ylabel=r"error of $C_1$ (nats$^{1/2}$)", xscale="log", yscale="log")
    plain_ticks(ax.yaxis)
    ax.set_title(f"{dataset}, {model}", fontsize="medium")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small")
    return Drawing(drawn, numbers)


def errors(stored: RecordTensors, thresholds: Sequence[float]) -> pd.DataFrame:
    """Columns ``threshold``, ``client``, ``rate``, ``T``, ``error``, ``bound``, ``covered``, of seed 0; NaN: none.

    Args:
        stored: tensors of :data:`REFERENCE`.
        thresholds: of its record, in order.
    """
    tensors = stored.tensors(REFERENCE, DEFENSE, ATTACK)
    rows = list[dict[str, Any]]()
    kept = (tensors[f"seed0/{name}"].flatten(2, 3).double() for name in ("recovered", "null_recovered"))
    for threshold, recovered, null in zip(thresholds, *kept, strict=True):  # [K, M T, S] each
        priors = null_prior(null.sum(dim=1), null.shape[1])
        for client, (attempts, prior) in enumerate(zip(recovered, priors, strict=True)):
            rows += [{"threshold": threshold} | row for row in _of_client(client, attempts, prior)]
    return pd.DataFrame(rows)


def _of_client(client: int, recovered: torch.Tensor, prior: torch.Tensor) -> Iterator[dict[str, Any]]:
    every, data = recovered.shape
    kappa = data_belief(recovery_counts(recovered), every)
    true = leakage(kappa, prior)
    drawn = generator(PAPER, "attempts", client)
    for attempts in ATTEMPTS:
        bound = float(c1_error(relative_error(attempts, FAILURE, kappa, data=data)))
        row = {"client": client, "rate": float(recovered.mean()), "T": attempts, "error": math.nan, "covered": math.nan}
        if PART * attempts <= every:
            rows = torch.rand(DRAWS, every, generator=drawn).argsort(dim=1)[:, :attempts]
            off = (leakage(data_belief(recovery_counts(recovered[rows]), attempts), prior) - true).abs()
            row |= {"error": float(off.quantile(0.95)), "covered": float((off <= bound).double().mean())}
        yield row | {"bound": bound if bound < math.inf else math.nan}
