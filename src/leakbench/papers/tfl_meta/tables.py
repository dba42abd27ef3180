"""Tables 1, S2 and S7: the paper's optimal parameters in numbers, as printed and as they solve its constraint."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from leakbench.errors import Infeasible
from leakbench.lazy import pd
from leakbench.papers.tfl_meta.common import DELTA, DEVIATION, NAMES, SIZE, table
from leakbench.report.artifacts import Tables
from leakbench.report.wording import NONE
from leakbench.theory.leakage_surrogate import Form
from leakbench.theory.protection_parameters import (
    Mechanism,
    Optimum,
    UploadLaw,
    bounds_at_optimum,
    dropped_coordinates,
    log_widening,
    optimum,
    required_tv,
    utility_tv_limit,
)

SETTING = UploadLaw(SIZE, DELTA, math.sqrt(SIZE) / DEVIATION**2)


@dataclass(frozen=True)
class Budget:
    """Constants and a budget: ``C1``, ``C2`` and ``epsilon``."""

    c1: float
    c2: float
    epsilon: float

    def solved(self, mechanism: Mechanism, form: Form, utility_budget: float = math.inf) -> Optimum:
        """The optimum of a mechanism in the setting of the tables; with a budget of utility, of problem (8)."""
        return optimum(mechanism, self.c1, self.c2, self.epsilon, SETTING, form, utility_budget)


SMALL, LARGE = Budget(0.4, 50.0, 0.4), Budget(0.4, 1.25, 0.1)
"""A small total variation is required, which noise reaches, too; one of more than 1/2 is."""

ROWS: dict[Mechanism, tuple[str, str, str, str]] = {
    "paillier": ("n", "sqrt(2 delta) t^(-1/(2m))", "sqrt(2 delta) (1 - t)^(-1/(2m))", "n* / sqrt(2 delta) - 1"),
    "secret_sharing": ("r", "delta t^(-1/m)", "delta (1 - t)^(-1/m)", "r* / delta - 1"),
    "randomization": ("sigma_eps^2", "100 t / A", "the same, by a lower bound of TV", "sigma_eps^2"),
    "compression": ("rho", "(1 - t)^(1/m)", "the same, where coordinates are dropped", "m (1 - rho*)"),
}
"""Rows of Table 1: the parameter, its optimum as printed and as it solves the constraint, the number that is given."""


def number(mechanism: Mechanism, solution: Optimum, form: Form) -> str:
    """An optimum in Table 1, with digits that a parameter close to its limit would not have."""
    if solution.status != "ok":
        return solution.status
    if mechanism == "randomization":
        return f"{solution.parameter:.4g}"
    if mechanism == "compression":
        return f"{float(dropped_coordinates(solution.tau, SIZE)):.4g}"
    widening = float(log_widening(solution.tau, SIZE, form))
    return f"{math.expm1(widening / 2 if mechanism == 'paillier' else widening):.4g}"


@table(
    1,
    title="Optimal parameters of protection",
    caption="The paper's formulas, with t = (2 C1 - epsilon) / C2, as printed and as they solve 2 C1 - C2 TV = "
    f"epsilon, at m = {SIZE}, delta = {DELTA:g}, and A = sqrt(sum sigma_i^-4) with sigma_i = {DEVIATION:g} (ours; the "
    f"paper has no numbers). Left: C1 = {SMALL.c1:g}, C2 = {SMALL.c2:g}, epsilon = {SMALL.epsilon:g}, t = 0.008. "
    f"Right: C2 = {LARGE.c2:g}, epsilon = {LARGE.epsilon:g}, t = 0.56. Parameters lie so close to their limits that "
    "what is above them is given. Reached: 2 C1 - C2 TV at the printed optimum; above epsilon it violates the "
    "constraint, below it protects more than asked.",
    experiments=(),
)
def table01(_: Tables) -> pd.DataFrame:
    """A row per mechanism."""
    rows = []
    for mechanism, (parameter, printed, solves, given) in ROWS.items():
        row = {"mechanism": NAMES[mechanism], "parameter": parameter, "as printed": printed, "solves": solves}
        row["given"] = given
        for budget in (SMALL, LARGE):
            solutions = {form: budget.solved(mechanism, form) for form in get_args(Form)}
            at = f", t = {float(required_tv(budget.c1, budget.c2, budget.epsilon)):g}"
            row |= {f"{form.replace('_', ' ')}{at}": number(mechanism, each, form) for form, each in solutions.items()}
            metric = solutions["as_printed"].metric
            row[f"reached{at}"] = NONE if math.isnan(metric) else f"{metric:.4g}"
        rows.append(row)
    return pd.DataFrame(rows)


C1, C2, BUDGETS = (0.1, 0.4, 0.8), (1.25, 4.0, 50.0, 5000.0), (0.0, 0.5, 1.5, 2.0)
"""The grid; budgets in units of C1."""
COLUMNS: dict[str, tuple[Mechanism, Form]] = {
    "Paillier and sharing, as printed": ("paillier", "as_printed"),
    "Paillier and sharing, corrected": ("paillier", "corrected"),
    "Gaussian noise": ("randomization", "corrected"),
    "compression": ("compression", "corrected"),
}
"""Paillier's scheme and sharing reach the same total variation under either form."""


@table(
    "S2",
    title="Where optimal parameters exist",
    caption="On a grid of constants and budgets: whether there is a parameter, the total variation that it has by the "
    "paper's formula, and 2 C1 - C2 TV there, which should be epsilon. 'Certified': whether the metric bounds leakage, "
    "by the paper's condition (eq. 4: epsilon of C1 or more) and by what is proved (3/2 C1 or more), where no "
    "protection meets the budget as well.",
    experiments=(),
)
def table_s2(_: Tables) -> pd.DataFrame:
    """A row per setting."""
    rows = []
    for c1 in C1:
        for c2 in C2:
            for share in BUDGETS:
                budget = Budget(c1, c2, share * c1)
                solutions = {name: budget.solved(*column) for name, column in COLUMNS.items()}
                first = next(iter(solutions.values()))
                rows.append(
                    {"C1": f"{c1:g}", "C2": f"{c2:g}", "epsilon": f"{budget.epsilon:g}", "t": f"{first.tau:.3g}"}
                    | {name: optimum_in_words(each, budget.epsilon) for name, each in solutions.items()}
                    | {"certified": certification(first)}
                )
    return pd.DataFrame(rows)


def optimum_in_words(solution: Optimum, epsilon: float) -> str:
    """A cell of Table S2."""
    if solution.status != "ok":
        return solution.status
    verdict = "" if solution.meets else ", violates"
    if solution.metric < epsilon - 1e-9 * max(1.0, abs(epsilon)):
        verdict = ", more than asked"
    return f"TV {solution.variation:.3g}, reached {round(solution.metric, 9):.3g}{verdict}"


def certification(solution: Optimum) -> str:
    """Whether the metric bounds leakage by the paper's condition, and by what is proved."""
    if solution.branch_ok_valid:
        return "by both"
    return "by the paper alone" if solution.branch_ok_paper else "by neither"


LOSSES = (0.0, 0.01, 0.3, 1.5)
"""Budgets of utility, phi: the bound on the loss of accuracy, which is 1 at most; the last one allows every loss."""


@table(
    "S7",
    title="Optimal parameters under a second budget, of utility",
    caption="Problem (8): the least efficiency that is lost where 2 C1 - C2 TV is epsilon at most and the bound on the "
    "loss of utility phi at most (C4 = 1), in the setting of Table 1, by corrected formulas. Losses of efficiency rise "
    "with the parameter, so that the answer is the optimum of problem (7) if the bound on the loss of utility allows "
    "it, and infeasible else. Allowed: the largest TV whose bound is phi; noise by its upper bound of TV, while the "
    "parameter solves the lower one, so that its bound at the optimum is 150 t. Bounds of 1 or more say nothing of an "
    f"accuracy. Left: C2 = {SMALL.c2:g}, epsilon = {SMALL.epsilon:g}, t = 0.008. Right: C2 = {LARGE.c2:g}, epsilon = "
    f"{LARGE.epsilon:g}, t = 0.56; C1 = {SMALL.c1:g}. Parameters are given as in Table 1.",
    experiments=(),
)
def table_s7(_: Tables) -> pd.DataFrame:
    """A row per mechanism and budget of utility."""
    rows = []
    for mechanism, (*_words, given) in ROWS.items():
        for loss in LOSSES:
            limit = utility_tv_limit(mechanism, loss)
            row = {"mechanism": NAMES[mechanism], "given": given, "phi": f"{loss:g}"}
            row["TV allowed"] = "any" if math.isinf(limit) else f"{limit:.3g}"
            for budget in (SMALL, LARGE):
                at = f", t = {float(required_tv(budget.c1, budget.c2, budget.epsilon)):g}"
                row[f"bound on the loss{at}"] = loss_in_words(mechanism, budget)
                row[f"answer{at}"] = number(mechanism, budget.solved(mechanism, "corrected", loss), "corrected")
            rows.append(row)
    return pd.DataFrame(rows)


def loss_in_words(mechanism: Mechanism, budget: Budget) -> str:
    """The bound on the loss of utility at the optimum of problem (7)."""
    try:
        return f"{bounds_at_optimum(mechanism, budget.solved(mechanism, 'corrected').tau, SETTING)[0]:.3g}"
    except Infeasible:
        return NONE
