"""Mechanisms and their parameters, recovery rates, losses of accuracy and bits, for the figures of measurements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from leakbench.lazy import np, pd, torch
from leakbench.papers.tfl_meta.jobs.leakage import leakage_metric_name
from leakbench.report.artifacts import Tables
from leakbench.report.labels import Reads, reads
from leakbench.report.plots import having, judged, values_of
from leakbench.report.statistics import over_seeds
from leakbench.report.tidy import SETTING, of_cell
from leakbench.theory.leakage_surrogate import amplification
from leakbench.theory.protection_parameters import optimal_dropped_log

CONSTANTS, SWEPT, MASKED = "constants", "swept", "swept_masked"
TUNED, ENCRYPTED = "tuned", "tuned_encrypted"
UTILITY, UTILITY_TUNED, PAIRS = "utility", "utility_tuned", "utility_pairs"
BUDGET, THRESHOLD = SETTING + "budget", SETTING + "threshold"

RECOVERY = "recovery"
LEAKAGE = leakage_metric_name("leakage", "null", 0.001)
"""Under the prior of null attacks, hardly smoothed: with few attempts smoothing pulls beliefs to the prior."""
CELL = ["dataset", "model"]
CORRECTED, PRINTED, EXACT, ALIVE = "corrected", "as printed", "exact TV", "larger floor of deviations"
FORMS: dict[str, Any] = {CORRECTED: "-", PRINTED: ":", EXACT: "--", ALIVE: "-."}
"""Forms of optima, and their line styles."""


@dataclass(frozen=True)
class Swept:
    """A mechanism over its parameter.

    Attributes:
        label: of the defense in the experiments.
        mechanism: whose colour it has.
        name: in words.
        parameter: that is swept.
        axis: the parameter in words.
        utility: experiment of its accuracy; empty if there is none.
        attacks: experiment -> attack in words.
        tuned: label of the defense that is tuned -> its form.
        place: of an optimum among values of the parameter, from the metrics ``parameter``, ``tau`` and ``dimension``.
    """

    label: str
    mechanism: str
    name: str
    parameter: str
    axis: str
    utility: str
    attacks: dict[str, str] = field(default_factory=lambda: {SWEPT: "DLG"})
    tuned: dict[str, str] = field(default_factory=dict)
    place: Callable[[float, float, float], float] = lambda parameter, *_: parameter

    @property
    def column(self) -> str:
        """The parameter's column of tidy tables."""
        return SETTING + self.parameter


def dropped(tau: float, size: float, rescaled: bool = False) -> float:
    """``1 - rho*`` from ``tau``, since rho has no digits for it; ``rescaled`` by eq. 85 around zero."""
    return -math.expm1(-float(optimal_dropped_log(tau, size, "rescaled" if rescaled else "corrected")))


MASKED_DLG = "DLG on what is left"
MECHANISMS = (
    Swept(
        "noise",
        "gaussian_noise",
        "Gaussian noise",
        "scale",
        "standard deviation",
        UTILITY,
        tuned={"tuned-noise": CORRECTED, "tuned-noise-exact": EXACT, "tuned-noise-alive": ALIVE},
        place=lambda parameter, *_: math.sqrt(parameter),
    ),
    Swept(
        "compression",
        "random_mask",
        "compression",
        "probability",
        r"part dropped, $1 - \rho$",
        UTILITY,
        {SWEPT: "DLG", MASKED: MASKED_DLG},
        {"tuned-compression": CORRECTED},
        lambda _, tau, size: dropped(tau, size),
    ),
    Swept(
        "rescaled",
        "random_mask",
        "compression, rescaled",
        "probability",
        r"part dropped, $1 - \rho$",
        UTILITY,
        {SWEPT: "DLG", MASKED: MASKED_DLG},
    ),
    Swept(
        "masks",
        "masked_pair",
        "shared masks",
        "bound",
        "bound $r$ of masks",
        PAIRS,
        tuned={"tuned-masks": CORRECTED, "tuned-masks-printed": PRINTED, "tuned-masks-exact": EXACT},
    ),
    Swept("encrypted", "paillier", "Paillier, toy keys", "key_bits", "bits of the key", ""),
)
"""In the order of figures. Encryption and sharing in a ring have no parameter that matters, and no curve."""
SHARES, IN_USE = "shares", "tuned-encrypted"
MECHANISM_OF = {label: entry for entry in MECHANISMS for label in entry.tuned}
"""By the label of a defense that is tuned."""
FIXED_POINT = "fixed-point"
_ALONE = [entry.label for entry in MECHANISMS if entry.utility == UTILITY]
READ = {
    SWEPT: reads(SWEPT, defenses=(*(entry.label for entry in MECHANISMS), SHARES)),
    MASKED: reads(MASKED, defenses=[entry.label for entry in MECHANISMS if MASKED in entry.attacks]),
    TUNED: reads(TUNED, defenses=MECHANISM_OF),
    ENCRYPTED: reads(ENCRYPTED, defenses=IN_USE),
    UTILITY: reads(UTILITY, defenses=("none", *_ALONE, SHARES, FIXED_POINT)),
    UTILITY_TUNED: reads(
        UTILITY_TUNED, defenses=[label for label, entry in MECHANISM_OF.items() if entry.utility == UTILITY]
    ),
    PAIRS: reads(PAIRS, defenses=("none", "masks", "tuned-masks")),
}
"""The labels that figures read, by experiment."""
EXPERIMENTS: tuple[str | Reads, ...] = (CONSTANTS, *READ.values())


def tables_of(tables: Tables, dataset: str, model: str) -> dict[str, pd.DataFrame]:
    """The tables of one data set and model."""
    return {name: of_cell(frame, dataset, model) for name, frame in tables.items()}


def first_threshold(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of the threshold that recovery is judged by, the first of a job's."""
    return frame[frame[THRESHOLD] == frame[THRESHOLD].iloc[0]] if len(frame) else frame


def undefended(constants: pd.DataFrame, beside: pd.DataFrame) -> pd.DataFrame:
    """Rows of the undefended upload, of the seeds that another table has."""
    return first_threshold(constants[constants["seed"].isin(beside["seed"].unique())])


def rates(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Recovery rates, means over clients and seeds: columns ``by``, ``mean``, ``low``, ``high``, ``seeds``, ``void``.

    ``low`` and ``high`` are the ends of Wilson's interval of one client, means likewise.
    """
    ends = {"mean": RECOVERY, "low": f"{RECOVERY}_low", "high": f"{RECOVERY}_high"}
    parts = [values_of(frame, metric).groupby(list(by), dropna=False)["value"].mean() for metric in ends.values()]
    means = pd.concat(parts, axis=1, keys=list(ends))
    groups = values_of(frame, RECOVERY).groupby(list(by), dropna=False)
    return means.assign(seeds=groups["seed"].nunique(), void=groups["void"].any()).reset_index()


def leaked(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Measured leakage with 95 % t-intervals over seeds, the columns of :func:`rates`."""
    return judged(values_of(frame, LEAKAGE), by)


def accuracy_loss(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Loss of accuracy against undefended training of the same seed, in percentage points, over seeds.

    Args:
        frame: of training, with the undefended runs; of one data set and model.
        by: columns whose values distinguish the rows of the result.
    """
    rows = values_of(frame, "accuracy")
    plain = rows[rows["defense"] == "none"].groupby("seed")["value"].mean()
    lost = 100 * (rows["seed"].map(plain) - rows["value"])
    return over_seeds(rows.assign(value=lost), by).assign(void=False)


def loss_of(frame: pd.DataFrame, label: str, by: Sequence[str] = ()) -> pd.DataFrame:
    """:func:`accuracy_loss` of one defense."""
    lost = accuracy_loss(frame[frame["defense"].isin(["none", label])], ["defense", *by])
    return lost[lost["defense"] == label]


def tuned_runs(tables: Tables, entry: Swept) -> pd.DataFrame:
    """Trainings of a mechanism at its optima, and the undefended ones beside them."""
    plain, trained = tables[entry.utility], tables[PAIRS if entry.utility == PAIRS else UTILITY_TUNED]
    return pd.concat([plain[plain["defense"] == "none"], trained[trained["defense"].isin(entry.tuned)]])


def bits_over_plain(frame: pd.DataFrame, constants: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Bits of an upload over those of one without protection, as they are for all seeds."""
    plain = float(values_of(constants, "bits")["value"].mean())
    rows = values_of(frame, "bits")
    return over_seeds(rows.assign(value=rows["value"] / plain), by).assign(void=False)


def optima(tuned: pd.DataFrame, entry: Swept) -> pd.DataFrame:
    """Optima on the axis of a mechanism: columns ``defense``, ``form``, ``budget``, ``seed``, ``place``.

    Budgets that no parameter meets, and those that need no protection, are left out.
    """
    rows = tuned[tuned["defense"].isin(entry.tuned)]
    wide = rows[rows["metric"].isin(["parameter", "tau", "dimension"])]
    wide = wide.groupby(["defense", BUDGET, "seed", "metric"])["value"].mean().unstack("metric")
    wide = wide.dropna(subset=["parameter"]) if "parameter" in wide else wide[:0]
    places = [entry.place(row["parameter"], row["tau"], row["dimension"]) for _, row in wide.iterrows()]
    wide = wide.reset_index().assign(place=np.asarray(places, dtype=float))
    return wide.assign(form=wide["defense"].map(entry.tuned), budget=wide[BUDGET])


@dataclass(frozen=True)
class System:
    """The constants that budgets are of: ``C1`` and ``C2``."""

    c1: float
    c2: float


def system(constants: pd.DataFrame) -> System:
    """The constants of one data set and model: ``C1`` is the mean over clients and seeds, ``xi`` the largest."""
    rows = first_threshold(constants)
    c1 = values_of(rows, leakage_metric_name("leakage", "null"))["value"].mean()
    xi = values_of(rows, leakage_metric_name("xi", "null"))["value"].max()
    return System(float(c1), float(amplification(torch.tensor(float(xi), dtype=torch.float64))))


def strongest(tables: Tables, entry: Swept) -> dict[str, pd.DataFrame]:
    """Rows of a mechanism, by the attacker in words."""
    return {
        words: first_threshold(having(tables[name], entry.parameter).query("defense == @entry.label"))
        for name, words in entry.attacks.items()
    }
