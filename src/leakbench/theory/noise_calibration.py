"""The least noise with which rounds of aggregation reach a total (epsilon, delta), by each way of accounting.

Rounds are equal. ``composition`` is that of Zhang et al. (2024): the least epsilon over orders of a round, composed by
Theorem 3.4 of Kairouz, Oh and Viswanath; ``optimal`` composes by their exact Theorem 3.3; ``renyi`` sums Rényi
divergences and converts once; ``sampled_renyi`` does so for batches that are Poisson samples (``sgd`` alone), whose
neighbours differ by one record added or removed: an indication for batches of fixed size and a replaced record, and no
proof. Half of delta is the rounds', in equal parts, and half the slack of composition; Rényi accounting spends it at
once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from leakbench.errors import ConfigError, Infeasible
from leakbench.theory.aggregate_dp import Aggregation, Form, Mechanism, round_curve, round_guarantee
from leakbench.theory.arguments import positive_number
from leakbench.theory.dp_capacity import Conversion, composed_epsilon
from leakbench.theory.dp_composition import composed_round, optimal_epsilon
from leakbench.theory.renyi_curves import in_unit_interval

Accounting = Literal["composition", "optimal", "renyi", "sampled_renyi"]

_PRECISION = 1e-9
"""Relative precision of a variance; 1e-4 with the accountant of samples, which is slow."""
_STEPS = 400
"""Factors of two in the search for a bracket: 240 decades."""


@contextmanager
def _quiet_accountant() -> Iterator[None]:
    """Silence the accountant's warning per order that it leaves out, which can only raise epsilon."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def total_epsilon(
    setting: Aggregation,
    variance: float,
    rounds: int,
    delta: float,
    mechanism: Mechanism,
    form: Form = "corrected",
    accounting: Accounting = "composition",
    conversion: Conversion = "classical",
) -> float:
    """Epsilon of all rounds.

    Args:
        setting: ``N``, ``D``, ``B`` and ``C``.
        variance: ``sigma^2``, of one client.
        rounds: ``T``.
        delta: of all rounds, in (0, 1).
        mechanism: a row of Table 1.
        form: which bound of the row; ``sampled_renyi`` needs none.
        accounting: see above; ``renyi`` of ``sgd`` is without amplification.
        conversion: from Rényi divergence.

    Raises:
        ConfigError: an argument is out of its range; batches are sampled by another mechanism than ``sgd``.
        Infeasible: the variance is too small for the bound.
    """
    in_unit_interval(delta, "delta")
    if rounds < 1:
        raise ConfigError(f"the number of rounds must be 1 at least, found {rounds}")
    if accounting == "sampled_renyi":
        if mechanism != "sgd":
            raise ConfigError(f"sampled_renyi accounts for random batches, so for sgd, found {mechanism}")
        total = setting.users * positive_number(variance, "the variance of noise")
        multiplier = math.sqrt(total) * setting.batch / (2 * setting.clip)
        with _quiet_accountant():
            return composed_epsilon(multiplier, setting.rate, rounds, delta, conversion)
    if accounting == "renyi":
        return round_curve(setting, variance, mechanism, form).guarantee(delta, rounds, conversion).epsilon
    each = delta / (2 * rounds)
    epsilon = round_guarantee(setting, variance, each, mechanism, form, conversion).epsilon
    if accounting == "composition":
        return composed_round(epsilon, rounds, delta / 2)
    return optimal_epsilon(epsilon, each, rounds, delta)


def least_feasible_variance(setting: Aggregation, mechanism: Mechanism, form: Form = "corrected") -> float:
    """The variance above which the bound of a round has any order, ``sigma^2``; 0 for bounds that have always.

    Raises:
        ConfigError: the mechanism has no such form.
        Infeasible: the mechanism gives no guarantee at any variance.
    """
    return 1 / _range_per_variance(setting, mechanism, form)


def _range_per_variance(setting: Aggregation, mechanism: Mechanism, form: Form) -> float:
    """The limit of orders per unit of variance (beyond 1, if repaired)."""
    trial = setting.clip**2 / setting.batch * 4  # feasible under every form: r <= 1/4 / N, limits >= N D / B
    limit = round_curve(setting, trial, mechanism, form).limit
    return (limit - 1 if form == "repaired" else limit) / trial


def _bracket(passes: Callable[[float], bool], start: float, factor: float) -> tuple[float, float]:
    """Two variances, ``factor`` apart, of which only the larger one passes.

    Raises:
        Infeasible: none is found.
    """
    upper, step = start, factor if not passes(start) else 1 / factor
    for _ in range(_STEPS):
        following = upper * step
        if not 0 < following < math.inf:
            break
        if passes(following) == (step > 1):
            return (upper, following) if step > 1 else (following, upper)
        upper = following
    raise Infeasible("no variance that this number format can hold has that epsilon")


def calibrated_variance(
    setting: Aggregation,
    epsilon: float,
    rounds: int,
    delta: float,
    mechanism: Mechanism,
    form: Form = "corrected",
    accounting: Accounting = "composition",
    conversion: Conversion = "classical",
) -> float:
    """The least ``sigma^2`` of one client at which :func:`total_epsilon` is at most ``epsilon``.

    Above :func:`least_feasible_variance` the total falls with the variance to zero, so there is always one.

    >>> setting = Aggregation(users=100, records=500, batch=50, clip=1.0)
    >>> variance = calibrated_variance(setting, epsilon=8.0, rounds=100, delta=1e-5, mechanism="sgd")
    >>> round(total_epsilon(setting, variance, 100, 1e-5, "sgd"), 6)
    8.0

    Args:
        setting: ``N``, ``D``, ``B`` and ``C``.
        epsilon: of all rounds; the other arguments are those of :func:`total_epsilon`.
        rounds: ``T``.
        delta: of all rounds, in (0, 1).
        mechanism: a row of Table 1.
        form: which bound of the row.
        accounting: how rounds add up; see the module.
        conversion: from Rényi divergence.

    Raises:
        ConfigError: epsilon is not positive; as :func:`total_epsilon`.
        Infeasible: the mechanism gives no guarantee at any variance.
    """
    target = positive_number(epsilon, "epsilon")
    start = setting.clip**2 / setting.batch * 4
    total_epsilon(setting, start, rounds, delta, mechanism, form, accounting, conversion)  # refuses what never passes

    def excess(variance: float) -> float:
        """``ln(epsilon / target)``; infinite where there is no epsilon."""
        try:
            total = total_epsilon(setting, variance, rounds, delta, mechanism, form, accounting, conversion)
        except Infeasible:
            return math.inf
        return math.log(total / target) if total > 0 else -math.inf

    if accounting == "sampled_renyi":
        from scipy.optimize import brentq

        low, high = _bracket(lambda variance: excess(variance) <= 0, start, 16.0)
        root = brentq(lambda x: excess(math.exp(x)), math.log(low), math.log(high), xtol=5e-5)
        return math.exp(float(root) + 5e-5)
    low, high = _bracket(lambda variance: excess(variance) <= 0, start, 2.0)
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
    return high
