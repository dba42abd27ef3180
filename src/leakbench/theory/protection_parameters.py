"""The parameter of a protection mechanism that meets a budget of leakage with the least distortion.

The paper requires ``2 C1 - C2 TV <= epsilon`` (eq. 6), so a total variation of ``tau = (2 C1 - epsilon) / C2`` at
least, and solves for the modulus ``n`` of Paillier's scheme, the bound ``r`` of masks, the variance of noise, or the
probability ``rho`` to keep a coordinate. ``as_printed`` is its Table 1, whose first two columns lack "1 -" and so reach
``1 - tau``; ``corrected`` solves the constraint. The constraint is on the paper's metric, not on leakage: it bounds
leakage only where ``epsilon >= 3/2 C1``, and there no protection meets the budget as well.
Source: Zhang, Kang et al. (2023), Theorems 5.1 and 6.1 to 6.4, Table 1, eqs. 7 and 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from leakbench.errors import ConfigError, Infeasible
from leakbench.lazy import np, torch
from leakbench.theory.arguments import positive, positive_number
from leakbench.theory.distortion import (
    NOISE_LOWER,
    NOISE_UPPER,
    dimension,
    exact_sharing_tv,
    noise_steepness,
    noise_tv,
    noise_tv_lower,
    product_tv,
)
from leakbench.theory.leakage_surrogate import Form, leakage_metric, not_negative

Mechanism = Literal["paillier", "secret_sharing", "randomization", "compression"]
"""Columns of Table 1, in its order."""
Status = Literal["no protection needed", "ok", "infeasible", "undefined"]
"""``undefined``: a printed formula that has no value, as it takes the root of zero or of a negative number."""

_ROUNDING = 1e-12


def required_tv(c1: torch.Tensor | float, c2: torch.Tensor | float, epsilon: torch.Tensor | float) -> torch.Tensor:
    """``tau = (2 C1 - epsilon) / C2``, ``[...]``; zero or negative where no protection is needed.

    >>> round(float(required_tv(c1=0.3, c2=1.0, epsilon=0.2)), 6)
    0.4

    Raises:
        ConfigError: ``C1`` or ``epsilon`` is negative, or ``C2`` not positive.
    """
    budget = not_negative(epsilon, "the budget epsilon")
    return (2 * not_negative(c1, "C1") - budget) / positive(c2, "C2")


def certified(c1: torch.Tensor | float, epsilon: torch.Tensor | float, form: Form = "corrected") -> torch.Tensor:
    """Whether the solution of the metric bounds leakage by ``epsilon``, boolean ``[...]``.

    There ``x = 2 C1 - epsilon``. ``as_printed``: by eq. 4, where ``x <= C1``, so ``epsilon >= C1``; ``corrected``: by
    the proved bound, ``C1 + x <= epsilon``, so ``epsilon >= 3/2 C1``.

    Raises:
        ConfigError: an argument is negative.
    """
    factor = 1.0 if form == "as_printed" else 1.5
    return not_negative(epsilon, "the budget epsilon") >= factor * not_negative(c1, "C1") * (1 - _ROUNDING)


def log_widening(tau: torch.Tensor | float, size: torch.Tensor | float, form: Form = "corrected") -> torch.Tensor:
    """``ln (r* / delta)``, ``[...]``: ``-ln(1 - tau) / m``, or ``-ln(tau) / m`` as printed; NaN outside of (0, 1).

    ``expm1`` of it is ``r* / delta - 1``, which is 2.3e-5 for ``tau`` = 0.9 and 100,000 coordinates.

    Args:
        tau: required total variation.
        size: ``m``.
        form: see the module.

    Raises:
        ConfigError: the dimension is below 1.
    """
    level = torch.as_tensor(tau, dtype=torch.float64)
    inside = torch.where((level > 0) & (level < 1), level, torch.nan)
    return -(inside.log() if form == "as_printed" else (-inside).log1p()) / dimension(size)


def optimal_log_modulus(
    tau: torch.Tensor | float,
    delta: torch.Tensor | float,
    size: torch.Tensor | float,
    form: Form = "corrected",
) -> torch.Tensor:
    """``ln n*`` of Paillier's modulus, ``[...]``: ``(ln(2 delta) - ln(1 - tau) / m) / 2``; NaN outside of (0, 1).

    Args:
        tau: required total variation.
        delta: half-width of plaintexts.
        size: ``m``.
        form: ``as_printed``: with ``ln(tau)``.

    Raises:
        ConfigError: ``delta`` is not positive or the dimension below 1.
    """
    return ((2 * positive(delta, "delta")).log() + log_widening(tau, size, form)) / 2


def optimal_mask(
    tau: torch.Tensor | float,
    delta: torch.Tensor | float,
    size: torch.Tensor | float,
    form: Form | Literal["exact"] = "corrected",
) -> torch.Tensor:
    """``r*`` of masks, ``[...]``: ``delta (1 - tau)^(-1/m)``; NaN outside of (0, 1).

    Args:
        tau: required total variation.
        delta: half-width of unmasked values.
        size: ``m``.
        form: ``as_printed``: with ``tau`` for ``1 - tau``; ``exact``: for shares that really are a value plus a mask,
            ``4 delta (1 - (1 - tau)^(1/m))`` up to ``2 delta``, from where on the model is exact.

    Raises:
        ConfigError: ``delta`` is not positive or the dimension below 1.
    """
    half = positive(delta, "delta")
    if form != "exact":
        return half * log_widening(tau, size, form).exp()
    widening = log_widening(tau, size)
    trapezoid = -4 * (-widening).expm1()
    return half * torch.where(trapezoid <= 2, trapezoid, widening.exp())


def optimal_noise_variance(tau: torch.Tensor | float, steepness: torch.Tensor | float) -> torch.Tensor:
    """``100 tau / A``, ``[...]``, by the lower bound of the total variation; NaN outside of (0, 1/100].

    Args:
        tau: required total variation.
        steepness: ``A``.

    Raises:
        ConfigError: ``A`` is not positive.
    """
    level = torch.as_tensor(tau, dtype=torch.float64)
    return torch.where((level > 0) & (level <= NOISE_LOWER), level / NOISE_LOWER, torch.nan) / positive(steepness, "A")


def exact_noise_variance(
    tau: torch.Tensor | float, sigma: torch.Tensor, counts: torch.Tensor | None = None
) -> torch.Tensor:
    """The variance of noise whose exact total variation is ``tau``, ``[...]``; NaN outside of (0, 1).

    Args:
        tau: required total variation, of the mean over clients.
        sigma: standard deviations of the coordinates, ``[m]``.
        counts: how many coordinates of each client have them, ``[K, m]``, see :func:`~.distortion.binned`; by default
            there is one client, who has each once.

    Raises:
        ConfigError: a standard deviation is not positive.
    """
    from scipy.optimize.elementwise import bracket_root, find_root

    level = torch.as_tensor(tau, dtype=torch.float64)
    inside = (level > 0) & (level < 1)
    if not bool(inside.any()):
        return torch.full_like(level, torch.nan)
    wanted = level[inside]
    steepness = noise_steepness(sigma)

    def variation(variance: torch.Tensor) -> torch.Tensor:
        if counts is None:
            return noise_tv(variance, sigma)
        return noise_tv(variance.unsqueeze(-1), sigma, counts).mean(dim=-1)

    def excess(log_variance: Any, target: Any) -> Any:
        there = variation(torch.as_tensor(log_variance).exp())
        return np.log(there.clamp(min=1e-300).numpy()) - target

    start = (wanted / steepness).log().numpy()  # rough where clients share deviations; the bracket grows
    target = (wanted.log().numpy(),)
    bracket = bracket_root(excess, start, start + 2, args=target)
    result = find_root(
        excess, bracket.bracket, args=target, tolerances={"xatol": 1e-12, "frtol": 1e-13, "fatol": 1e-14}
    )
    variance = torch.full_like(level, torch.nan)
    variance[inside] = torch.as_tensor(result.x, dtype=torch.float64).exp()
    return variance


def optimal_kept(
    tau: torch.Tensor | float, size: torch.Tensor | float, form: Literal["corrected", "rescaled"] = "corrected"
) -> torch.Tensor:
    """``rho*`` of compression, the largest that meets the budget, ``[...]``; 1 for ``tau <= 0`` and NaN above 1.

    Args:
        tau: required total variation.
        size: ``m``.
        form: ``corrected``, and printed, for eq. 13: ``(1 - tau)^(1/m)``; ``rescaled`` for eq. 85 around zero:
            ``(1 - tau)^(1/(2m))``.

    Raises:
        ConfigError: the dimension is below 1.
    """
    return (-optimal_dropped_log(tau, size, form)).exp()


def optimal_dropped_log(
    tau: torch.Tensor | float, size: torch.Tensor | float, form: Literal["corrected", "rescaled"] = "corrected"
) -> torch.Tensor:
    """``-ln rho*``, ``[...]``, from which ``m (1 - rho*)`` dropped coordinates follow; see :func:`optimal_kept`."""
    level = torch.as_tensor(tau, dtype=torch.float64).clamp(min=0)
    lost = -(-torch.where(level <= 1, level, torch.nan)).log1p()
    return lost / dimension(size) / (2 if form == "rescaled" else 1)


def dropped_coordinates(
    tau: torch.Tensor | float, size: torch.Tensor | float, form: Literal["corrected", "rescaled"] = "corrected"
) -> torch.Tensor:
    """``m (1 - rho*)``, ``[...]``: mean number of coordinates that the optimum drops; see :func:`optimal_kept`."""
    return -dimension(size) * (-optimal_dropped_log(tau, size, form)).expm1()


def least_parameter(
    variation: Callable[[torch.Tensor], torch.Tensor], tau: float, low: float, high: float = math.inf
) -> float:
    """The least parameter at which the mean total variation over clients is ``tau``, by bisection on a log scale.

    For clients that differ, where no closed form applies.

    Args:
        variation: from a parameter to the total variations of the clients, ``[K]``, which do not fall in it.
        tau: required, of the mean.
        low: positive, where the mean is below ``tau``.
        high: where it is not; by default from doubling ``low``.

    Raises:
        ConfigError: ``low`` is not positive.
        Infeasible: the mean never reaches ``tau``.
    """

    def reached(place: float) -> float:
        return float(variation(torch.tensor(place, dtype=torch.float64)).mean())

    lower = positive_number(low, "the lower end of the search")
    upper = high
    if math.isinf(high):
        upper = lower
        for _ in range(200):
            upper *= 2
            if reached(upper) >= tau:
                break
    if reached(upper) < tau:
        raise Infeasible(
            f"the mean total variation over clients reaches {reached(upper):.6g}, and {tau:.6g} is required"
        )
    if reached(lower) >= tau:
        return lower
    while upper > lower * (1 + 1e-15):
        middle = math.sqrt(lower) * math.sqrt(upper)
        if not lower < middle < upper:
            break
        lower, upper = (middle, upper) if reached(middle) < tau else (lower, middle)
    return upper


def common_mask(tau: float, delta: torch.Tensor, size: float) -> float:
    """One ``r`` for clients of several half-widths, ``[K]``, by :func:`least_parameter`.

    A client whose half-width is not below ``r`` counts as not protected.

    Raises:
        ConfigError: a half-width is not positive or the dimension below 1.
        Infeasible: ``tau`` is 1 or more.
    """
    half = positive(delta, "delta").double()
    return least_parameter(lambda r: product_tv((half.log() - r.log()).clamp(max=0), size), tau, float(half.min()))


def common_exact_mask(tau: float, delta: torch.Tensor, size: float) -> float:
    """One ``r`` for shares that really are a value plus a mask, of clients of several half-widths, ``[K]``.

    Raises:
        ConfigError: a half-width is not positive or the dimension below 1.
        Infeasible: ``tau`` exceeds 1.
    """
    half = positive(delta, "delta").double()
    low = float(optimal_mask(min(tau, 0.5), half.min(), size, "exact"))  # enough for the narrowest client alone
    return least_parameter(lambda r: exact_sharing_tv(r, half, size), tau, low)


def common_log_modulus(tau: float, delta: torch.Tensor, size: float) -> float:
    """``ln n`` of one Paillier modulus for clients of several half-widths, ``[K]``; see :func:`common_mask`."""
    half = positive(delta, "delta").double()
    return (math.log(2) + math.log(common_mask(tau, half, size))) / 2


def common_noise_variance(tau: float, steepness: torch.Tensor) -> float:
    """One variance of noise for clients of several ``A``, ``[K]``, by the lower bound of the total variation.

    Raises:
        ConfigError: some ``A`` is not positive.
        Infeasible: ``tau`` exceeds 1/100.
    """
    slope = positive(steepness, "A").double()
    most = float(1 / slope.min())  # there all clients have reached their bound
    if tau > NOISE_LOWER:
        raise Infeasible(
            f"by the lower bound noise reaches a total variation of {NOISE_LOWER:g}, and {tau:.6g} is required"
        )
    return least_parameter(lambda v: noise_tv_lower(v, slope), tau, 1e-12 * most, most * (1 + 1e-12))


@dataclass(frozen=True)
class UploadLaw:
    """Law of the uploads, as far as optima depend on it; fields that a mechanism does not read may be left out.

    Attributes:
        size: ``m``.
        delta: half-width of an upload's coordinates (``paillier``, ``secret_sharing``).
        steepness: ``A`` (``randomization``).
    """

    size: float = 1
    delta: float = math.nan
    steepness: float = math.nan


@dataclass(frozen=True)
class Optimum:
    """The solution of Theorem 5.1, if there is one.

    Attributes:
        status: see :data:`Status`.
        tau: required total variation.
        parameter: ``n`` (infinite where no float holds it), ``r``, the variance or ``rho``; NaN where there is none.
        log_parameter: its logarithm.
        variation: total variation that the paper's formula has at the parameter; 0 without protection.
        metric: ``2 C1 - C2 TV`` there.
        meets: whether that is the budget at most, but for rounding.
        branch_ok_paper: ``epsilon >= C1``, so that eq. 4 says that the metric bounds leakage.
        branch_ok_valid: ``epsilon >= 3/2 C1``, so that it does.
        reason: why there is none.
    """

    mechanism: Mechanism
    status: Status
    tau: float
    parameter: float
    log_parameter: float
    variation: float
    metric: float
    meets: bool
    branch_ok_paper: bool
    branch_ok_valid: bool
    reason: str = ""

    def usable(self) -> float:
        """The parameter.

        Raises:
            Infeasible: there is none; the message names the limit.
        """
        if self.status != "ok":
            raise Infeasible(f"{self.mechanism}: {self.reason}")
        return self.parameter


def optimum(
    mechanism: Mechanism,
    c1: float,
    c2: float,
    epsilon: float,
    setting: UploadLaw,
    form: Form = "corrected",
    utility_budget: float = math.inf,
    largest_utility: float = 1.0,
) -> Optimum:
    """The least distorting parameter of one mechanism, for clients that are alike (eqs. 7 and 8).

    It depends on neither weights nor ``C5``, since losses grow with the parameter, and on ``C4`` by the budget of
    utility alone.

    Args:
        mechanism: see :data:`Mechanism`.
        c1: ``C1``.
        c2: ``C2``.
        epsilon: the budget of leakage.
        setting: law of the uploads.
        form: Table 1 as printed, or the solution of the constraint.
        utility_budget: ``phi``, an upper limit of the bound on the loss of utility (problem 8).
        largest_utility: ``C4``.

    Raises:
        ConfigError: ``epsilon``, ``C1`` or ``phi`` is negative; ``C2``, ``C4``, ``delta`` or ``A`` is not positive; the
            dimension is below 1; there is no such mechanism.
    """
    if mechanism not in get_args(Mechanism):
        raise ConfigError(f"the mechanisms are {', '.join(get_args(Mechanism))}, found {mechanism}")
    tau = float(required_tv(c1, c2, epsilon))
    log_parameter, variation, status, reason = _solved(mechanism, tau, setting, form)
    if status == "ok":
        limit = utility_tv_limit(mechanism, utility_budget, largest_utility)
        if variation > limit * (1 + _ROUNDING):
            status, log_parameter = "infeasible", math.nan
            reason = (
                f"the budget of leakage needs a total variation of {variation:.6g}, and a loss of utility of at most "
                f"phi = {utility_budget:g} allows {limit:.6g}"
            )
            variation = math.nan
    metric = math.nan if math.isnan(variation) else float(leakage_metric(c1, c2, variation))
    return Optimum(
        mechanism,
        status,
        tau,
        _exp(log_parameter),
        log_parameter,
        variation,
        metric,
        metric <= epsilon + 1e-9 * max(1.0, c2),
        bool(certified(c1, epsilon, "as_printed")),
        bool(certified(c1, epsilon)),
        reason,
    )


def _solved(mechanism: Mechanism, tau: float, setting: UploadLaw, form: Form) -> tuple[float, float, Status, str]:
    """Logarithm of the parameter, total variation, status, reason."""
    budget = "the budget epsilon is 2 C1 or more, which the metric has without protection"
    size = setting.size
    dimension(size)
    if mechanism in ("paillier", "secret_sharing"):
        half = positive_number(setting.delta, "delta")
        if tau <= 0 and form == "as_printed":
            return math.nan, math.nan, "undefined", f"{budget}; the printed formula has the root of {tau:.6g}"
        if tau <= 0:
            return math.nan, 0.0, "no protection needed", budget
        if tau >= 1:
            limit = f"the total variation stays below 1 and {tau:.6g} is required: epsilon must exceed 2 C1 - C2"
            return math.nan, math.nan, "infeasible", limit
        widening = float(log_widening(tau, size, form))
        variation = float(product_tv(-widening, size))
        if mechanism == "secret_sharing":
            return math.log(half) + widening, variation, "ok", ""
        return float(optimal_log_modulus(tau, half, size, form)), variation, "ok", ""
    if mechanism == "randomization":
        steepness = positive_number(setting.steepness, "A")
        if tau <= 0:
            return -math.inf, 0.0, "no protection needed", budget
        if tau > NOISE_LOWER:
            limit = (
                f"by its lower bound the total variation is {NOISE_LOWER:g} at most and {tau:.6g} is required: "
                "epsilon must be 2 C1 - C2 / 100 at least"
            )
            return math.nan, math.nan, "infeasible", limit
        variance = optimal_noise_variance(tau, steepness)
        return float(variance.log()), float(noise_tv_lower(variance, steepness)), "ok", ""
    if tau <= 0:
        return 0.0, 0.0, "no protection needed", budget
    if tau > 1:
        limit = f"the total variation is 1 at most and {tau:.6g} is required: epsilon must be 2 C1 - C2 at least"
        return math.nan, math.nan, "infeasible", limit
    lost = -float(optimal_dropped_log(tau, size))
    return lost, float(product_tv(lost, size)), "ok", ""


def _exp(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def utility_tv_limit(mechanism: Mechanism, utility_budget: float, largest_utility: float = 1.0) -> float:
    """The largest total variation, as :func:`optimum` has it, at which the bound on the loss of utility is ``phi``.

    Bounds are ``150 C4 TV`` for noise, whose parameter solves the lower bound and whose utility is bounded by the upper
    one, ``C4 TV`` for compression, and 0 for the others.

    Args:
        mechanism: see :data:`Mechanism`.
        utility_budget: ``phi``, not negative.
        largest_utility: ``C4``.

    Raises:
        ConfigError: ``phi`` is negative or ``C4`` not positive.
    """
    share = float(not_negative(utility_budget, "the budget of utility")) / positive_number(largest_utility, "C4")
    if mechanism == "compression":
        return share if share < 1 else math.inf
    if mechanism == "randomization":
        return share * NOISE_LOWER / NOISE_UPPER if share < NOISE_UPPER else math.inf
    return math.inf


def bounds_at_optimum(
    mechanism: Mechanism,
    tau: float,
    setting: UploadLaw,
    largest_utility: float = 1.0,
    largest_cost: float = 1.0,
    clients: int = 2,
) -> tuple[float, float]:
    """The paper's bounds on loss of utility and of efficiency at the corrected optimum.

    ``(0, C5 tau)`` of Paillier, ``(0, K m log2 r*)`` bits of sharing, whose base the paper leaves open and which is
    negative for ``r* < 1``; ``(150 C4 tau, 150 C5 tau)`` of noise, ``(C4 tau, C5 tau)`` of compression.

    Args:
        mechanism: see :data:`Mechanism`.
        tau: required total variation, in the mechanism's range.
        setting: law of the uploads.
        largest_utility: ``C4``.
        largest_cost: ``C5``.
        clients: ``K``.

    Raises:
        Infeasible: the mechanism does not reach ``tau``, or no protection is needed.
    """
    log_parameter, _, status, reason = _solved(mechanism, tau, setting, "corrected")
    if status != "ok":
        raise Infeasible(f"{mechanism}: {reason}")
    if mechanism == "paillier":
        return 0.0, largest_cost * tau
    if mechanism == "secret_sharing":
        return 0.0, clients * setting.size * log_parameter / math.log(2)
    factor = NOISE_UPPER / NOISE_LOWER if mechanism == "randomization" else 1.0
    return factor * largest_utility * tau, factor * largest_cost * tau
