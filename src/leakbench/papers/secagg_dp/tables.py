"""Tables 1, S1 and S2: the paper's formulas at its setting, and the noise that a total epsilon takes."""

from __future__ import annotations

from functools import cache
from typing import cast

from leakbench.errors import Infeasible
from leakbench.lazy import pd
from leakbench.papers.secagg_dp.common import DELTA, EPSILONS, LINEAR, MNIST, ROUNDS, table
from leakbench.report.artifacts import Tables
from leakbench.report.wording import NONE
from leakbench.theory.aggregate_dp import Form, Mechanism, forms, round_guarantee
from leakbench.theory.noise_calibration import Accounting, calibrated_variance

VARIANCE = 0.05
"""sigma^2 at which Table 1 is evaluated."""

ROWS: dict[Mechanism, tuple[str, str, str, str]] = {
    "sgd": (
        "batches",
        "isotropic",
        "ln(1 + q (e^x - 1)), x = min_a L / (a - 1) + 2 a C^2 / (B^2 S)",
        "the same, and delta becomes q delta",
    ),
    "sgd_filled": ("batches", "water-filling", "no guarantee", "no guarantee"),
    "gd": ("all records", "isotropic", "min_a L / (a - 1) + 2 a C^2 / (D^2 S)", "the same"),
    "gd_filled": ("all records", "water-filling", "no guarantee", "no guarantee"),
    "gaussian": (
        "Gaussian weights",
        "isotropic",
        "min_a L / (a - 1) + (2 a C^2 / D^2 + a u / (a - 1)) / (S - a u)",
        "the same",
    ),
    "gaussian_filled": (
        "Gaussian weights",
        "water-filling",
        "that of the row above",
        "min_a L / (a - 1) + (2 a C^2 / D^2 + 2 a u / (a - 1)) / (S - 2 a u), a < S / (2 u)",
    ),
}
"""Rows of Table 1: how an update is drawn, what is added, the bound as printed and as it holds."""

COLUMNS: dict[str, Form] = {
    "as printed": "as_printed",
    "as printed in Theorem 4": "theorem_as_printed",
    "corrected": "corrected",
    "repaired": "repaired",
}


@table(
    1,
    title="Epsilon of a round",
    caption="The paper's formulas, as printed and as they hold, and epsilon of one round at its setting: N = "
    f"{MNIST.users}, D = {MNIST.records}, B = {MNIST.batch:g}, C = {MNIST.clip:g}, delta = {DELTA:g}, with sigma^2 = "
    f"{VARIANCE:g} (ours; the paper prints none). S = N sigma^2, u = C^2 / (B D), q = B / D, L = ln(1 / delta). The "
    "last row is false as printed; Theorem 4 has another one, whose printed range of orders, a < S D / (2 C^2), is B "
    "times too short. Repaired: our bound by the Frobenius norm, without the pole at order 1.",
    experiments=(),
)
def table01(_: Tables) -> pd.DataFrame:
    """A row per way to draw an update and kind of noise."""
    rows = []
    for mechanism, (update, noise, as_printed, as_holds) in ROWS.items():
        row = {"update": update, "noise": noise, "bound, as printed": as_printed, "bound, as it holds": as_holds}
        rows.append(row | {name: _round_epsilon(mechanism, form) for name, form in COLUMNS.items()})
    return pd.DataFrame(rows)


def _round_epsilon(mechanism: Mechanism, form: Form) -> str:
    if form not in forms(mechanism):
        return NONE
    try:
        return f"{round_guarantee(MNIST, VARIANCE, DELTA, mechanism, form).epsilon:.4g}"
    except Infeasible:
        return "no guarantee"


EPOCH = -(-MNIST.records // int(MNIST.batch))
"""Batches of an epoch."""

ACCOUNTING: dict[Accounting, str] = {"composition": "composition (Theorem 3.4)", "renyi": "Rényi", "tight": "tight"}

NAMES: dict[tuple[Mechanism, Form], str] = {
    ("sgd", "as_printed"): "SGD-DP, row 1",
    ("sgd", "corrected"): "SGD-DP, row 1 with delta / q",
    ("gd", "corrected"): "GD-DP, row 3",
    ("gaussian", "as_printed"): "Gaussian weights and isotropic noise, row 5",
    ("gaussian_filled", "as_printed"): "GSGD-DP, row 6 (false)",
    ("gaussian_filled", "corrected"): "GSGD-DP, eq. 35",
    ("gaussian_filled", "repaired"): "GSGD-DP, repaired",
}

LEVELS: tuple[tuple[Accounting, int, tuple[tuple[str, str], ...]], ...] = (
    (
        "composition",
        ROUNDS,
        (
            ("gd", "corrected"),
            ("gaussian", "as_printed"),
            ("gaussian_filled", "as_printed"),
            ("gaussian_filled", "repaired"),
            ("gaussian_filled", "corrected"),
            ("sgd", "as_printed"),
            ("sgd", "corrected"),
        ),
    ),
    ("composition", ROUNDS * EPOCH, (("sgd", "as_printed"),)),
    ("renyi", ROUNDS, (("gd", "corrected"), ("gaussian_filled", "repaired"), ("gaussian_filled", "corrected"))),
    (
        "tight",
        ROUNDS,
        (("gd", "corrected"), ("gaussian_filled", "repaired"), ("gaussian_filled", "corrected"), ("sgd", "corrected")),
    ),
)
"""Ways of accounting, rounds, and what is accounted for so."""


@table(
    "S1",
    title="Noise that a total epsilon takes",
    caption=f"The least sigma^2 of one user with which all rounds have this epsilon at delta = {DELTA:g}, at the "
    "setting of Table 1. Composition of Kairouz, Oh and Viswanath (2015) is the paper's; half of delta is the rounds', "
    f"half the slack. SGD-DP has {ROUNDS} rounds if an epoch is a round, and {ROUNDS * EPOCH} if an epoch is all of a "
    "user's batches. Rényi divergences are summed over rounds and converted once, classically. Tight: of GD-DP the "
    "exact epsilon of all rounds, of GSGD-DP Rényi divergences with the improved conversion, of SGD-DP those of "
    "batches without replacement where a record is replaced (Wang et al. 2019). The mean of the users' updates has "
    "sigma^2 / N per coordinate.",
    experiments=(),
)
def table_s1(_: Tables) -> pd.DataFrame:
    """A row per mechanism and way of accounting, a column per epsilon."""
    return pd.DataFrame(
        {"mechanism": name, "accounting": ACCOUNTING[accounting], "rounds": rounds}
        | {f"epsilon {epsilon:g}": f"{variance:.3g}" for epsilon, variance in variances.items()}
        for name, accounting, rounds, variances in levels()
    )


@cache
def levels() -> tuple[tuple[str, Accounting, int, dict[float, float]], ...]:
    """Name, accounting, rounds, and sigma^2 by epsilon, in the order of Table S1."""
    rows = []
    for accounting, rounds, mechanisms in LEVELS:
        for pair in mechanisms:
            mechanism, form = cast("tuple[Mechanism, Form]", pair)
            variances = {
                epsilon: calibrated_variance(MNIST, epsilon, rounds, DELTA, mechanism, form, accounting)
                for epsilon in EPSILONS
            }
            rows.append((NAMES[mechanism, form], accounting, rounds, variances))
    return tuple(rows)


@table(
    "S2",
    title="Noise that water-filling adds and saves",
    caption=f"Trace of the noise that one user adds for a total epsilon, on the linear model (K = {LINEAR}), by the "
    "paper's composition at the setting of Table 1. Isotropic noise has K sigma^2. Water-filling adds K sigma^2 less "
    "what the update has already, which is at most C^2 / B: the least that it can add is given. The third column of "
    "each is the excess of water-filling over isotropic noise.",
    experiments=(),
)
def table_s2(_: Tables) -> pd.DataFrame:
    """A row per epsilon."""
    rows = []
    for epsilon in EPSILONS:
        row: dict[str, str] = {"epsilon": f"{epsilon:g}"}
        for name, isotropic, filled in (("", "as_printed", "corrected"), (", repaired", "repaired", "repaired")):
            even, least = traces(epsilon, cast(Form, isotropic), cast(Form, filled))
            row |= {
                f"isotropic{name}": f"{even:.4g}",
                f"water-filling, at least{name}": f"{least:.4g}",
                f"excess{name}": f"{least - even:+.4g}",
            }
        rows.append(row)
    return pd.DataFrame(rows)


def traces(epsilon: float, isotropic: Form, filled: Form) -> tuple[float, float]:
    """Trace of isotropic noise and the least one of water-filling, both on Gaussian weights, at one total epsilon."""
    even = calibrated_variance(MNIST, epsilon, ROUNDS, DELTA, "gaussian", isotropic)
    floor = calibrated_variance(MNIST, epsilon, ROUNDS, DELTA, "gaussian_filled", filled)
    return LINEAR * even, LINEAR * floor - MNIST.clip**2 / MNIST.batch
