"""Table S4: the constants of leakage, which an attack on uploads without protection gives, and what they depend on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from leakbench.lazy import pd
from leakbench.papers.tfl_meta.common import THRESHOLD, UNPROTECTED, table
from leakbench.report.artifacts import Tables
from leakbench.report.plots import having, values_of
from leakbench.report.statistics import over_seeds
from leakbench.report.tidy import SETTING, cells_of
from leakbench.report.wording import NONE

SMOOTHING = 0.5
"""alpha of the metrics that name none."""
BATCHES, SKEWED = "batch_sizes", "skewed"
LIMIT, BATCH = SETTING + "threshold", SETTING + "batch_size"

PRIORS = {"null": "null attack", "uniform": "same for all", "population": "one of the population"}
"""By the name that metrics have."""
RECOVERED = "recovery"


@dataclass(frozen=True)
class Case:
    """Estimates of one setting: what differs from the first one, in words, its rows, and alpha."""

    words: str
    rows: pd.DataFrame
    alpha: float = SMOOTHING

    def metric(self, name: str, prior: str) -> str:
        """Name in records: ``leakage/null``, or ``leakage/null/0.001``."""
        return f"{name}/{prior}" + ("" if self.alpha == SMOOTHING else f"/{self.alpha:g}")


def amplified(xi: float) -> float:
    """``C2`` of ``xi``."""
    return math.expm1(2 * xi) / 2


def alphas(frame: pd.DataFrame) -> list[float]:
    """Values of alpha in records beside the first one."""
    head = "leakage/null/"
    return sorted(float(name.removeprefix(head)) for name in frame["metric"].unique() if name.startswith(head))


def cases(tables: Tables, dataset: str, model: str) -> Iterator[Case]:
    """The first setting, and others that differ from it in one thing each."""

    def of_cell(experiment: str) -> pd.DataFrame:
        frame = having(tables[experiment], "batch_size")
        return frame[(frame["dataset"] == dataset) & (frame["model"] == model)]

    plain = of_cell(UNPROTECTED)
    first = plain[plain[LIMIT] == THRESHOLD]
    yield Case("first", first)
    for alpha in alphas(first):
        yield Case(f"alpha = {alpha:g}", first, alpha)
    for limit in sorted(set(plain[LIMIT].dropna()) - {THRESHOLD}):
        yield Case(f"recovered above {limit:g} dB", plain[plain[LIMIT] == limit])
    batches = of_cell(BATCHES)
    batches = batches[batches[LIMIT] == THRESHOLD]
    for size in sorted(batches[BATCH].dropna().unique()):
        yield Case(f"S = {size:g}", batches[batches[BATCH] == size])
    skewed = of_cell(SKEWED)
    if len(skewed):
        yield Case("skewed labels", skewed[skewed[LIMIT] == THRESHOLD])


def between(rows: pd.DataFrame, metric: str) -> str:
    """Mean over clients and seeds with the interval over seeds; that of a part ends at 0 and 1."""
    rows = values_of(rows, metric)
    if not rows["value"].notna().any():
        return NONE
    ((mean, low, high, seeds),) = over_seeds(rows, ["metric"])[["mean", "low", "high", "seeds"]].to_numpy()
    if metric.endswith(RECOVERED):
        low, high = max(low, 0.0), min(high, 1.0)
    return f"{mean:.3f}" + (f" [{low:.3f}, {high:.3f}]" if seeds > 1 else "")


def _range(rows: pd.DataFrame, low: str, high: str | None = None) -> str:
    """The least and the greatest over clients and seeds; of two metrics, the means of both."""
    values = [values_of(rows, metric)["value"].dropna() for metric in (low, high or low)]
    if not all(map(len, values)):
        return NONE
    ends = (values[0].mean(), values[1].mean()) if high else (values[0].min(), values[1].max())
    return f"{ends[0]:.3f} to {ends[1]:.3f}"


@table(
    "S4",
    title="Constants of leakage",
    caption="What DLG recovers of single uploads without protection, and the constants that follow (Algorithms 1 and "
    "2). First setting: S = 2 images, recovered if PSNR exceeds 25 dB, alpha = 0.5, i.i.d. clients; the others differ "
    "from it in one thing, and have fewer models and attempts where S or the labels differ. Recovery: part of data and "
    "attempts; elsewhere: the same test passed by reconstructions from another client's upload. C1 (nats^(1/2), at "
    "most 0.833) is the mean over clients, xi (nats) and C2 = (e^(2 xi) - 1) / 2 the largest over clients, models, "
    "data and seeds. Brackets: 95 % t-intervals over seeds; of two seeds, their range. Clients: least and greatest "
    "over clients and seeds. Attempts: ends of a client's 95 % interval, bootstrap, mean over clients and seeds. The "
    "prior decides everything, and the paper leaves it open: by the null attack's a datum is as probable beforehand as "
    "another client's upload would make it; where it is the same for all S + 1 candidates, misses among them, C1 is "
    "zero at a recovery of S / (S + 1), and a failed attack leaks more than a perfect one; one of the population: 1 / "
    "N for each datum. C2 hangs on alpha where some candidate was never, or always, recovered, since it is then alpha "
    "that keeps xi finite. Classes (Algorithm 3, null attack, without alpha): C1 of the recovered classes, with misses "
    "as a further candidate, and the sum of the printed estimates, which should be 1.",
    experiments=(UNPROTECTED, BATCHES, SKEWED),
)
def table_s4(tables: Tables) -> pd.DataFrame:
    """A row per data set and model, setting and prior."""
    rows = []
    for dataset, model in cells_of(tables[UNPROTECTED]):
        for case in cases(tables, dataset, model):
            for prior, words in PRIORS.items():
                rows.append({"data": f"{dataset}, {model}", "setting": case.words, "prior": words} | _row(case, prior))
    return pd.DataFrame(rows)


def _row(case: Case, prior: str) -> dict[str, str]:
    known = values_of(case.rows, case.metric("xi", prior))["value"].dropna()
    xi = known.max() if len(known) else math.nan
    leaked = case.metric("leakage", prior)
    classes = prior == "null" and case.alpha == SMOOTHING
    return {
        "recovery": between(case.rows, RECOVERED),
        "elsewhere": between(case.rows, "null_recovery"),
        "C1": between(case.rows, leaked),
        "C1, clients": _range(case.rows, leaked),
        "C1, attempts": _range(case.rows, f"leakage_low/{prior}", f"leakage_high/{prior}")
        if case.alpha == SMOOTHING
        else NONE,
        "xi": NONE if math.isnan(xi) else f"{xi:.3f}",
        "C2": NONE if math.isnan(xi) else f"{amplified(xi):.3g}",
        "C1 of classes": between(case.rows, "classes") if classes else NONE,
        "printed sum": between(case.rows, "classes_sum") if classes else NONE,
    }
