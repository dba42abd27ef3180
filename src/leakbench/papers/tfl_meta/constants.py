"""Table S4: the constants of leakage, as :mod:`.theory.leakage_estimation` estimates them without protection."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from leakbench.errors import ConfigError
from leakbench.lazy import pd
from leakbench.papers.tfl_meta.common import THRESHOLD, UNPROTECTED, table
from leakbench.papers.tfl_meta.jobs.leakage import Prior, leakage_metric_name, of_trials
from leakbench.papers.tfl_meta.theory.leakage_estimation import SMOOTHING
from leakbench.report.artifacts import Tables
from leakbench.report.plots import having, values_of
from leakbench.report.statistics import over_seeds
from leakbench.report.tidy import SETTING, cells_of, of_cell
from leakbench.report.wording import NONE
from leakbench.theory.leakage_surrogate import amplification

BATCHES, SKEWED = "batch_sizes", "skewed"
LIMIT, BATCH = SETTING + "threshold", SETTING + "batch_size"

PRIORS: dict[Prior, str] = {
    "null": "null attack",
    "null_upper": "null attack, upper end",
    "uniform": "same for all",
    "population": "one of the population",
}
"""By the name that metrics have."""
RECOVERED = "recovery"
SIMILARITY = SETTING + "similarity"


@dataclass(frozen=True)
class Case:
    """Estimates of one setting: what differs from the first one, in words, its rows, alpha, and attempts if not all."""

    words: str
    rows: pd.DataFrame
    alpha: float = SMOOTHING
    trials: int | None = None

    def metric(self, name: str, prior: Prior) -> str:
        """Name in records: ``leakage/null``, ``leakage/null/0.001``, or of fewer attempts ``leakage/null/n8``."""
        return leakage_metric_name(name, prior, None if self.alpha == SMOOTHING else self.alpha, self.trials)

    def rate(self, name: str) -> str:
        """Name in records of a rate of recovery."""
        return name + of_trials(self.trials)


def c2_of(xi: float) -> float:
    """``C2`` of ``xi``; NaN of NaN."""
    return math.nan if math.isnan(xi) else float(amplification(xi))


def alphas(frame: pd.DataFrame) -> list[float]:
    """Values of alpha in records beside the first one."""
    names = (re.fullmatch(r"leakage/null/([0-9.e-]+)", name) for name in frame["metric"].unique())
    return sorted(float(match[1]) for match in names if match)


def trials(frame: pd.DataFrame) -> list[int]:
    """Numbers of attempts, M T, that constants in records are estimated from beside all."""
    names = (re.fullmatch(rf"{RECOVERED}/n([0-9]+)", name) for name in frame["metric"].unique())
    return sorted(int(match[1]) for match in names if match)


def cases(tables: Tables, dataset: str, model: str) -> Iterator[Case]:
    """All attempts; then as many as all experiments have: the first setting, and others that differ in one thing each.

    Raises:
        ConfigError: the experiments have no number of attempts in common.
    """
    plain, batches, skewed = (
        of_cell(having(having(tables[name], "batch_size"), "similarity"), dataset, model)
        for name in (UNPROTECTED, BATCHES, SKEWED)
    )
    shared = set.intersection(*(set(trials(rows)) for rows in (plain, batches, skewed) if len(rows)))
    if not shared:
        raise ConfigError(
            f"Table S4 compares experiments by one number of attempts: give {UNPROTECTED}, {BATCHES} and {SKEWED} one "
            "pair of models and attempts in common in their field fewer"
        )
    case = partial(Case, trials=max(shared))
    first = plain[plain[LIMIT] == THRESHOLD]
    yield Case("first, all attempts", first)
    yield case("first", first)
    for alpha in alphas(first):
        yield case(f"alpha = {alpha:g}", first, alpha)
    others = plain[plain[LIMIT] != THRESHOLD]
    for (by, limit), rows in others.groupby([SIMILARITY, LIMIT], dropna=False):
        yield case(f"recovered above {by.upper()} {limit:g}" if by == "ssim" else f"recovered above {limit:g} dB", rows)
    batches = batches[batches[LIMIT] == THRESHOLD]
    for size in sorted(batches[BATCH].dropna().unique()):
        yield case(f"S = {size:g}", batches[batches[BATCH] == size])
    if len(skewed):
        yield case("skewed labels", skewed[skewed[LIMIT] == THRESHOLD])


def between(rows: pd.DataFrame, metric: str) -> str:
    """Mean over clients and seeds with the interval over seeds; that of a part ends at 0 and 1."""
    rows = values_of(rows, metric)
    if not rows["value"].notna().any():
        return NONE
    ((mean, low, high, seeds),) = over_seeds(rows, ["metric"])[["mean", "low", "high", "seeds"]].to_numpy()
    if RECOVERED in metric:
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
    "2). First setting: S = 2 images, recovered if PSNR exceeds 25 dB, alpha = 0.5, i.i.d. clients; budgets are in its "
    "constants from all attempts. M T: attempts on an upload of each client, at all models, the same in all other "
    "rows, since C2 grows with it (Fig. S10); these differ from the first setting in one thing. Recovery: part of data "
    "and attempts; elsewhere: the same test passed by what comes of another client's upload. C1 (nats^(1/2), at most "
    "0.833) is the mean over clients, xi (nats) and C2 = (e^(2 xi) - 1) / 2 the largest over clients, models, data and "
    "seeds. Brackets: 95 % t-intervals over seeds; of two seeds, their range. Clients: least and greatest over clients "
    "and seeds. Attempts: ends of a client's 95 % interval, bootstrap, mean over clients and seeds. The prior decides "
    "everything, and the paper leaves it open: by the null attack's a datum is as probable beforehand as another "
    "client's upload would make it, by the estimated rate or by the upper end of its one-sided 95 % interval (Clopper "
    "and Pearson); its lower end is zero where the null attack never succeeds, so that C2 has no upper limit; where it "
    "is the same for all S + 1 candidates, misses among them, C1 is zero at a recovery of S / (S + 1), and a failed "
    "attack leaks more than a perfect one; one of the population: 1 / N for each datum. C2 hangs on alpha, too, where "
    "some candidate was never, or always, recovered, since it is then alpha that keeps xi finite. Classes (Algorithm "
    "3, null attack, without alpha, all attempts): C1 of the recovered classes, with misses as a further candidate, "
    "and the sum of the printed estimates, which should be 1.",
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


def _row(case: Case, prior: Prior) -> dict[str, str]:
    known = values_of(case.rows, case.metric("xi", prior))["value"].dropna()
    xi = known.max() if len(known) else math.nan
    leaked = case.metric("leakage", prior)
    attempts = values_of(case.rows, "trials")["value"].mean()
    whole = case.alpha == SMOOTHING and case.trials in (None, attempts)
    classes = prior == "null" and whole
    return {
        "M T": f"{case.trials or attempts:g}",
        "recovery": between(case.rows, case.rate(RECOVERED)),
        "elsewhere": between(case.rows, case.rate("null_recovery")),
        "C1": between(case.rows, leaked),
        "C1, clients": _range(case.rows, leaked),
        "C1, attempts": _range(case.rows, f"leakage_low/{prior}", f"leakage_high/{prior}") if whole else NONE,
        "xi": NONE if math.isnan(xi) else f"{xi:.3f}",
        "C2": NONE if math.isnan(xi) else f"{c2_of(xi):.3g}",
        "C1 of classes": between(case.rows, "classes") if classes else NONE,
        "printed sum": between(case.rows, "classes_sum") if classes else NONE,
    }
