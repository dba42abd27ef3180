"""The least noise with which rounds of aggregation reach a total (epsilon, delta), by each way of accounting.

Rounds are equal. ``composition`` is that of Zhang et al. (2024): the least epsilon over orders of a round, composed by
Theorem 3.4 of Kairouz, Oh and Viswanath; ``optimal`` composes by their exact Theorem 3.3; ``renyi`` sums Rényi
divergences and converts once. ``tight`` is the least that is proved here for each row: of ``gd`` the exact epsilon of
its rounds, which are one Gaussian mechanism (Balle and Wang 2018); of ``sgd`` Rényi divergences of batches drawn
without replacement, between data sets that differ in a replaced record (Wang, Balle and Kasiviswanathan 2019, Theorem
27), or the exact epsilon without sampling where that is less; of others ``renyi`` with the improved conversion.
``poisson_renyi`` is of Poisson samples (``sgd`` alone), whose neighbours differ by one record added or removed: not the
paper's relation, so an indication and no proof. Half of delta is the rounds', in equal parts, and half the slack of
composition; Rényi accounting spends it at once.
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

Proved = Literal["composition", "optimal", "renyi", "tight"]
"""Accounting that holds for records that are replaced, and batches of fixed size."""
Accounting = Literal[Proved, "poisson_renyi"]

_PRECISION = 1e-9
"""Relative precision of a variance; 1e-4 with accountants of samples, which are slow."""
_ORDERS = (1.25, 1.5, 1.75, *range(2, 17), *range(18, 65, 2))
"""For batches without replacement: larger ones take the time, and matter below an epsilon of 0.1 alone."""
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
        form: which bound of the row; accountants of samples need none.
        accounting: see above; ``renyi`` of ``sgd`` is without amplification.
        conversion: from Rényi divergence; ``tight`` has the improved one.

    Raises:
        ConfigError: an argument is out of its range; batches are sampled by another mechanism than ``sgd``.
        Infeasible: the variance is too small for the bound.
    """
    in_unit_interval(delta, "delta")
    if rounds < 1:
        raise ConfigError(f"the number of rounds must be 1 at least, found {rounds}")
    if accounting == "poisson_renyi" and mechanism != "sgd":
        raise ConfigError(f"poisson_renyi accounts for random batches, so for sgd, found {mechanism}")
    if _samples(accounting, mechanism) or (accounting == "tight" and mechanism == "gd"):
        size = setting.batch if mechanism == "sgd" else setting.records
        total = setting.users * positive_number(variance, "the variance of noise")
        multiplier = math.sqrt(total) * size / (2 * setting.clip)
        with _quiet_accountant():
            if accounting == "poisson_renyi":
                return composed_epsilon(multiplier, setting.rate, rounds, delta, conversion)
            return _exact_or_sampled(multiplier, setting, rounds, delta, sampled=mechanism == "sgd")
    if accounting == "tight":
        accounting, conversion = "renyi", "improved"
    if accounting == "renyi":
        return round_curve(setting, variance, mechanism, form).guarantee(delta, rounds, conversion).epsilon
    each = delta / (2 * rounds)
    epsilon = round_guarantee(setting, variance, each, mechanism, form, conversion).epsilon
    if accounting == "composition":
        return composed_round(epsilon, rounds, delta / 2)
    return optimal_epsilon(epsilon, each, rounds, delta)


def _samples(accounting: Accounting, mechanism: Mechanism) -> bool:
    """Whether an accountant of samples is asked, which is slow."""
    return mechanism == "sgd" and accounting in ("tight", "poisson_renyi")


def _exact_or_sampled(multiplier: float, setting: Aggregation, rounds: int, delta: float, *, sampled: bool) -> float:
    """Epsilon of all rounds of Gaussian noise, where a record is replaced; of ``sampled`` batches the less of two."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    exact = float(dp_accounting.get_epsilon_gaussian(multiplier / math.sqrt(rounds), delta))
    if not sampled:
        return exact
    accountant = RdpAccountant(_ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
    gaussian = dp_accounting.GaussianDpEvent(multiplier)
    accountant.compose(
        dp_accounting.SampledWithoutReplacementDpEvent(setting.records, int(setting.batch), gaussian), rounds
    )
    return min(exact, float(accountant.get_epsilon(delta)))


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

    if _samples(accounting, mechanism):
        from scipy.optimize import brentq

        low, high = _bracket(lambda variance: excess(variance) <= 0, start, 16.0)
        root = brentq(lambda x: excess(math.exp(x)), math.log(low), math.log(high), xtol=5e-5)
        return math.exp(float(root) + 5e-5)
    low, high = _bracket(lambda variance: excess(variance) <= 0, start, 2.0)
    while high > low * (1 + _PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
    return high
