"""Table S5: the paper's bounds at the parameters that meet a budget of leakage, beside measurements.

Budgets and bounds are in the constants of the experiment without protection, of all its clients and seeds, by which
the mechanisms are tuned; the rest is read from records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from leakbench.errors import Infeasible
from leakbench.lazy import pd
from leakbench.papers.tfl_meta.common import FINE, NAMES, THRESHOLD, UNPROTECTED, table
from leakbench.papers.tfl_meta.constants import LIMIT, PRIORS, between, c2_of
from leakbench.papers.tfl_meta.tables import certification
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import having
from leakbench.report.tidy import SETTING, cells_of, of_cell
from leakbench.report.wording import NONE, rounded
from leakbench.theory.leakage_surrogate import Form, leakage_metric
from leakbench.theory.protection_parameters import (
    Mechanism,
    Optimum,
    UploadLaw,
    bounds_at_optimum,
    dropped_coordinates,
    optimum,
)

LEAKAGE = TUNED, TUNED_ENCRYPTED = "tuned", "tuned_encrypted"
ACCURACY = UTILITY, UTILITY_TUNED, UTILITY_PAIRS, UTILITY_ENCRYPTED = (
    "utility",
    "utility_tuned",
    "utility_pairs",
    "utility_encrypted",
)
BUDGET = SETTING + "budget"
PRIOR = next(iter(PRIORS))
C1, XI, LEAKED = f"leakage/{PRIOR}", f"xi/{PRIOR}", f"leakage/{PRIOR}/{FINE:g}"
FAILED = f"failed/{PRIOR}/{FINE:g}"
"""Leakage, as :data:`LEAKED`, of an attack that recovers nothing in as many attempts."""
PARTNERS = 2
"""Clients that share a mask, ``K`` of Lemma H.4."""
PLAIN = 32.0
"""Bits of a coordinate that is not protected."""


@dataclass(frozen=True)
class Way:
    """A defense that is tuned to a budget.

    Attributes:
        mechanism: of the paper.
        words: how its parameter is found, where not by the corrected formula.
        form: the formula whose metric is given; the exact laws have the total variation that is required.
        leaked: experiment of its leakage.
        trained: experiments of its accuracy, and of that without a defense in the same setting.
    """

    mechanism: Mechanism
    words: str = ""
    form: Form = "corrected"
    leaked: str = TUNED
    trained: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """Mechanism and words, for the table."""
        return NAMES[self.mechanism] + (f", {self.words}" if self.words else "")


ALONE = (UTILITY_TUNED, UTILITY)
PAIRED = (UTILITY_PAIRS, UTILITY_PAIRS)
WAYS = {
    "tuned-noise": Way("randomization", trained=ALONE),
    "tuned-noise-alive": Way("randomization", "sigma_i of 1e-3 at least", trained=ALONE),
    "tuned-noise-exact": Way("randomization", "exact TV", trained=ALONE),
    "tuned-compression": Way("compression", trained=ALONE),
    "tuned-masks": Way("secret_sharing", trained=PAIRED),
    "tuned-masks-printed": Way("secret_sharing", "as printed", form="as_printed"),
    "tuned-masks-exact": Way("secret_sharing", "exact TV"),
    "tuned-encrypted": Way("paillier", leaked=TUNED_ENCRYPTED, trained=(UTILITY_ENCRYPTED, UTILITY_ENCRYPTED)),
}
"""By the label of the defense, in the order of the table."""


@dataclass(frozen=True)
class System:
    """The constants of one data set and model that budgets are of, and how uploads vary."""

    c1: float
    xi: float
    setting: UploadLaw

    def solved(self, way: Way, budget: float) -> Optimum:
        """The optimum by the paper's formulas for a budget in units of C1."""
        return optimum(way.mechanism, self.c1, c2_of(self.xi), budget * self.c1, self.setting, way.form)


def system(frame: pd.DataFrame) -> System:
    """The constants from the rows of one data set and model of the experiment without protection."""
    rows = frame[frame[LIMIT] == THRESHOLD].groupby("metric")["value"]
    mean, largest = rows.mean(), rows.max()
    return System(
        float(mean[C1]),
        float(largest[XI]),
        UploadLaw(float(mean["dimension"]), float(largest["delta"]), float(mean["steepness"])),
    )


@dataclass(frozen=True)
class Point:
    """A tuned defense at one budget: the optimum by the formulas, and the rows of its attacks."""

    way: Way
    budget: float
    solution: Optimum
    rows: pd.DataFrame

    def _mean(self, metric: str) -> float:
        return float(self.rows["value"][self.rows["metric"] == metric].mean())

    @property
    def status(self) -> str:
        """Status of its jobs; that of the formulas where these give no parameter."""
        if set(self.rows["status"]) == {"ok"}:
            return "no protection needed" if math.isnan(self.parameter) else "ok"
        return self.solution.status if self.solution.status not in ("ok", "no protection needed") else "infeasible"

    @property
    def parameter(self) -> float:
        """``n``, ``r``, the variance or ``rho``; NaN without protection."""
        return self._mean("parameter")

    @property
    def bits(self) -> float:
        """Bits on the wire, of a client."""
        return self._mean("bits")


def points(tables: Tables, dataset: str, model: str) -> Iterator[tuple[str, Point]]:
    """Every tuned defense at every budget of one data set and model, with its label."""
    base = system(of_cell(tables[UNPROTECTED], dataset, model))
    for label, way in WAYS.items():
        rows = of_cell(having(tables[way.leaked], "budget"), dataset, model)
        rows = rows[(rows["defense"] == label) & (rows[LIMIT] == THRESHOLD)]
        for budget in sorted(rows[BUDGET].dropna().unique()):
            yield label, Point(way, budget, base.solved(way, budget), rows[rows[BUDGET] == budget])


def parameter_in_words(point: Point, setting: UploadLaw) -> str:
    """The parameter, in a form that shows its distance from its limit."""
    value = point.parameter
    if point.status != "ok":
        return NONE
    if point.way.mechanism == "randomization":
        return f"s.d. {math.sqrt(value):.3g}"
    if point.way.mechanism == "secret_sharing":
        return f"r = {value / setting.delta:.4g} delta"
    if point.way.mechanism == "paillier":
        return f"n* = {value:.4g}"
    dropped = float(dropped_coordinates(point.solution.tau, setting.size))
    return f"{dropped:.3g} of {setting.size:g} dropped"


def metric_there(point: Point, c1: float, c2: float) -> float:
    """``2 C1 - C2 TV`` by the paper's model, at the optimal parameter; NaN where there is none."""
    if point.status == "no protection needed":
        return 2 * c1
    if point.status != "ok":
        return math.nan
    if point.way.words == "exact TV":
        return float(leakage_metric(c1, c2, point.solution.tau))
    return point.solution.metric


def accuracy_loss(tables: Tables, label: str, way: Way, dataset: str, model: str, budget: float) -> str:
    """Accuracy without a defense minus that with it, in the same setting, paired by seed."""
    if way.trained is None:
        return NONE
    protected, plain = (of_cell(having(tables[name], "budget"), dataset, model) for name in way.trained)
    protected = protected[(protected["defense"] == label) & (protected[BUDGET] == budget)]
    plain = plain[plain["defense"] == "none"]
    both = [rows[rows["metric"] == "accuracy"][["seed", "value"]] for rows in (plain, protected)]
    paired = both[0].merge(both[1], on="seed", suffixes=("_plain", "_protected"))
    paired = paired.assign(metric="loss", value=paired["value_plain"] - paired["value_protected"])
    return _signed(between(paired, "loss"))


def _signed(text: str) -> str:
    """Zero without a sign."""
    return text.replace("-0.000", "0.000")


COLUMNS = [
    "data",
    "mechanism",
    "epsilon / C1",
    "epsilon",
    "status",
    "tau",
    "parameter",
    "metric",
    "certified",
    "leakage",
    "recovery",
    "accuracy loss",
    "bound on it",
    "bits over plain, minus 1",
    "bound on that",
]


def _trained_in(experiment: str) -> list[str]:
    """The defenses whose accuracy an experiment has, with ``none`` where others are compared with that."""
    ways = [(label, way.trained) for label, way in WAYS.items() if way.trained]
    plain = ["none"] if any(trained[1] == experiment for _, trained in ways) else []
    return plain + [label for label, trained in ways if trained[0] == experiment]


@table(
    "S5",
    title="Bounds at a budget of leakage, and what is measured",
    caption="The paper's mechanisms with the parameter that has the metric 2 C1 - C2 TV = epsilon, for budgets in "
    "units of C1 (null attack's prior, alpha = 0.5; Table S4), and without protection in the first row. tau: total "
    "variation that the budget asks for. r is over the widest range delta of an upload's coordinates; clients share "
    "one parameter, at which their mean TV is tau. Exact TV: by the law of the mechanism itself, in place of a bound "
    "or a model. Certified: whether the metric bounds leakage, by the paper's condition and by what is proved. "
    "Measured: leakage (null attack's prior, alpha = 0.001) and recovery of an attacker who does not know the "
    "parameter, mean over clients, of fewer models and attempts than without protection; brackets are 95 % t-intervals "
    "over seeds, of two seeds their range. Bounds on losses: C4 = 1, since accuracy is in [0, 1], for one round; "
    "accuracy is lost over a whole training, paired by seed with one without protection, of two clients for masks, of "
    "a few rounds for Paillier's scheme. Efficiency is in plain updates of 32 bits per coordinate: more bits than that "
    "per client and round, and its bound with C5 the larger of the plain and the protected update; of masks it is K m "
    "log2 r (Lemma H.4), with K = 2, which is negative for r below 1.",
    experiments=[
        UNPROTECTED,
        *(reads(name, defenses=[label for label, way in WAYS.items() if way.leaked == name]) for name in LEAKAGE),
        *(reads(name, defenses=_trained_in(name)) for name in ACCURACY),
    ],
    leaves_out="its rows are the parameters that the paper's formulas ask for",
)
def table_s5(tables: Tables) -> pd.DataFrame:
    """A row per data set and model, tuned defense and budget."""
    rows = []
    for dataset, model in cells_of(tables[TUNED]):
        cell = f"{dataset}, {model}"
        plain = of_cell(tables[UNPROTECTED], dataset, model)
        base = system(plain)
        rows.append({"data": cell, "mechanism": "no protection"} | _measured(plain[plain[LIMIT] == THRESHOLD]))
        for label, point in points(tables, dataset, model):
            asked = {"data": cell, "mechanism": point.way.name} | _asked(point, base)
            utility, efficiency = _bounds(point, base.setting)
            lost = accuracy_loss(tables, label, point.way, dataset, model, point.budget)
            rows.append(
                asked
                | _measured(point.rows)
                | {
                    "accuracy loss": lost,
                    "bound on it": utility,
                    "bits over plain, minus 1": rounded(point.bits / (PLAIN * base.setting.size) - 1),
                    "bound on that": efficiency,
                }
            )
    return pd.DataFrame(rows, columns=COLUMNS).fillna(NONE)


def _asked(point: Point, base: System) -> dict[str, str]:
    """Cells of the paper's formulas."""
    return {
        "epsilon / C1": f"{point.budget:g}",
        "epsilon": f"{point.budget * base.c1:.3f}",
        "status": point.status,
        "tau": rounded(max(point.solution.tau, 0.0)),
        "parameter": parameter_in_words(point, base.setting),
        "metric": rounded(metric_there(point, base.c1, c2_of(base.xi))),
        "certified": certification(point.solution),
    }


def _bounds(point: Point, setting: UploadLaw) -> tuple[str, str]:
    """The paper's bounds on the loss of accuracy and on that of efficiency, in plain updates."""
    if point.status == "no protection needed":
        return "0", "0"
    if point.status != "ok" or point.way.form == "as_printed" or point.way.words == "exact TV":
        return NONE, NONE
    plain = PLAIN * setting.size
    largest = max(point.bits / plain, 1.0)
    mechanism = point.way.mechanism
    if mechanism == "secret_sharing":  # at the mask that all clients share, not at that of the widest range
        return "0", rounded(PARTNERS * math.log2(point.parameter) / PLAIN)
    try:
        utility, efficiency = bounds_at_optimum(mechanism, point.solution.tau, setting, largest_cost=largest)
    except Infeasible:
        return NONE, NONE
    return rounded(utility), rounded(efficiency)


def _measured(rows: pd.DataFrame) -> dict[str, str]:
    return {"leakage": between(rows, LEAKED), "recovery": between(rows, "recovery")}
