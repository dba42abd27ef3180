"""The paper's theorems and formulas, checked by computing: see :mod:`leakbench.report.checks`.

A check of a wrong statement of the paper does not hold; the check whose key follows is of the correction.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial

from leakbench.lazy import np, torch
from leakbench.papers.tfl_meta import PAPER
from leakbench.papers.tfl_meta.estimation_error import FAILURE, errors
from leakbench.papers.tfl_meta.theory.leakage_estimation import (
    attempts_made,
    c1_error,
    certain_constants,
    data_belief,
    recovery_counts,
)
from leakbench.papers.tfl_meta.toy import ROUNDING, Toys, toys
from leakbench.randomness import generator
from leakbench.report.checks import EXACT, Checked, checked, required, theorem_of
from leakbench.theory.distortion import (
    compression_tv,
    exact_sharing_tv,
    noise_reach,
    noise_steepness,
    noise_tv,
    noise_tv_lower,
    noise_tv_upper,
    paillier_tv,
    product_tv,
    rescaled_compression_tv,
    sharing_tv,
)
from leakbench.theory.leakage_surrogate import (
    LARGEST_LEAKAGE,
    Equation,
    Form,
    amplification,
    efficiency_loss_bound,
    largest_log_ratio,
    leakage,
    leakage_bounds,
    leakage_metric,
    printed_bound,
    utility_loss_bound,
)
from leakbench.theory.protection_parameters import (
    UploadLaw,
    bounds_at_optimum,
    optimal_kept,
    optimal_log_modulus,
    optimal_mask,
    optimal_noise_variance,
)

theorem = partial(theorem_of, PAPER)

TRIALS = 100_000
SAMPLES = 200_000
SAMPLED = 0.005
"""Samples of a law, and the error of its parts, but for a case in a hundred thousand."""


def _uniform(name: str, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, generator=generator(PAPER, "theory", name), dtype=torch.float64)


def _law(name: str, *shape: int) -> torch.Tensor:
    """Random laws, from nearly even to nearly certain; some candidates are impossible."""
    drawn = _uniform(name, *shape).pow(1 + 7 * _uniform(f"{name}, power", *shape[:-1], 1))
    kept = _uniform(f"{name}, kept", *shape) < 0.9
    kept[..., 0] = True
    drawn = torch.where(kept, drawn, 0.0)
    return drawn / drawn.sum(dim=-1, keepdim=True)


@cache
def _toys() -> Toys:
    return toys()


@theorem(
    "T1",
    "The root of the Jensen-Shannon divergence lies in [0, sqrt(ln 2)] and is a metric.",
    source="section 4, eq. 2",
)
def root_of_js_is_a_metric() -> Checked:
    """JS lies in [0, ln 2], and its root satisfies the triangle inequality."""
    slacks = []
    for size in range(2, 7):
        p, q, r = _law(f"triples of {size}", 3, TRIALS // 5, size)
        sides = leakage(p, q), leakage(q, r), leakage(p, r)
        slacks.append(sides[0] + sides[1] - sides[2] + ROUNDING)
        slacks += [required(torch.minimum(side, LARGEST_LEAKAGE + ROUNDING - side)) for side in sides]
    return checked(slacks, TRIALS, "what two sides of a triangle exceed the third by, nats^(1/2)")


@theorem(
    "T2",
    "Leakage after protection differs from C1 by C2 TV at most.",
    source="Lemmas E.2 and E.4; the upper side is the second step of Theorem E.5's proof",
)
def leakage_stays_near_c1() -> Checked:
    """Leakage after protection differs from C1 by x = C2 TV at most."""
    toy = _toys()
    low, high = leakage_bounds(toy.c1, toy.x)
    slacks = [(high - toy.leaked) / toy.c1 + EXACT, (toy.leaked - low) / toy.c1 + EXACT]
    return checked(slacks, len(toy.c1), "distance of leakage from its bounds, in parts of C1")


def _theorem_4_1(equation: Equation, inside: Callable[[torch.Tensor], torch.Tensor]) -> Checked:
    toy = _toys()
    here = inside(toy.x / toy.c1)
    slack = (printed_bound(toy.c1, toy.x, equation) - toy.leaked)[here] / toy.c1[here] + EXACT
    return checked([slack], int(here.sum()), "excess of the bound over leakage, in parts of C1")


def _anywhere(ratio: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(ratio, dtype=torch.bool)


@theorem("T3a", "Leakage is at most max(2 C1 - x, 3x - C1), with x = C2 TV.", source="Theorem 4.1, eq. 3, as stated")
def equation_3_bounds_leakage() -> Checked:
    """Leakage is at most ``max(2 C1 - x, 3x - C1)``."""
    return _theorem_4_1("eq3", _anywhere)


@theorem("T3b", "Leakage is at most 2 C1 - x wherever x is C1 or less.", source="Theorem 4.1, eq. 4, as stated")
def equation_4_bounds_leakage() -> Checked:
    """Leakage is at most ``2 C1 - x`` up to ``x = C1``."""
    return _theorem_4_1("eq4", _anywhere)


@theorem("T4", "Both hold where x is C1 / 2 or less, or C1 or more.", source="Theorem 4.1; our correction")
def theorem_4_1_holds_outside() -> Checked:
    """Equations 3 and 4 hold where ``x <= C1 / 2``, and where ``x >= C1``."""
    return _theorem_4_1("eq4", lambda ratio: (ratio <= 0.5) | (ratio >= 1))


@theorem("T5", "2 C1 - C2 TV bounds leakage at every TV.", source="eq. 6, as the paper uses it")
def metric_bounds_leakage() -> Checked:
    """``2 C1 - C2 TV`` is an upper bound of leakage, whatever TV."""
    toy = _toys()
    slack = leakage_metric(toy.c1, toy.c2, toy.variation).clamp(min=0) - toy.leaked + EXACT
    what = "excess over leakage of the metric, or of 0 where that is negative, nats^(1/2)"
    return checked([slack], len(toy.c1), what)


@theorem(
    "T6", "2 C1 is C2 / sqrt(2) at most, for constants of one attacker.", source="ours; it decides where optima exist"
)
def c1_is_below_half_c2() -> Checked:
    """``2 C1 <= C2 / sqrt(2)`` for constants of one attacker."""
    toy = _toys()
    slack = 1 - math.sqrt(2) * 2 * toy.c1 / toy.c2 + EXACT
    return checked([slack], len(toy.c1), "C2 / sqrt(2) minus 2 C1, relative")


@theorem(
    "T7",
    "Along n, r, the variance of noise and 1 - rho the metric does not rise, and bounds of losses do not fall.",
    source="Assumption 5.1",
)
def bounds_are_monotone() -> Checked:
    """The metric does not rise along n, r, sigma_eps^2 and 1 - rho, and bounds of losses do not fall."""
    steps = torch.linspace(0, 1, 400, dtype=torch.float64)
    slacks = []
    for size in (1.0, 50.0, 1e5):
        wide = 10 / size * steps  # ln of a ratio that m coordinates amplify
        variances = 10 ** (6 * steps - 5)
        noise = noise_tv_upper(variances, 1.0)
        parameters = {
            "paillier": (paillier_tv(wide, 0.5, size),) * 2,
            "secret_sharing": (sharing_tv(wide.exp(), 1.0, size),) * 2,
            "randomization": (noise_tv_lower(variances, 1.0), noise),
            "compression": (compression_tv((-wide).exp(), size),) * 2,
        }
        for low, high in parameters.values():
            slacks.append(-leakage_metric(0.4, 2.0, low).diff() + ROUNDING)
            slacks.append(required(utility_loss_bound(high, 1.0).diff() + ROUNDING))
            slacks.append(required(efficiency_loss_bound(high, 3.0).diff() + ROUNDING))
    return checked(slacks, len(slacks) * 399, "least fall of the metric from one parameter to the next")


@cache
def _settings() -> tuple[torch.Tensor, ...]:
    """C1, C2, tau in (0, 1), m and delta of random settings; epsilon follows."""
    draws = _uniform("settings", 5, TRIALS)
    c1 = 0.8325 * draws[0]
    c2 = 10 ** (4 * draws[1] - 1)
    tau = (2 * c1 / c2).clamp(max=1 - 1e-6) * draws[2]
    size = (10 ** (5 * draws[3])).floor()
    return c1, c2, tau, size, 10 ** (4 * draws[4] - 3)


def _variations(form: Form) -> dict[str, torch.Tensor]:
    """Total variation at each mechanism's optimum in random settings; noise where it reaches tau."""
    _, _, tau, size, delta = _settings()
    slope = 1 / delta
    small = tau.clamp(max=0.01)
    return {
        "paillier": paillier_tv(optimal_log_modulus(tau, delta, size, form), delta, size),
        "secret_sharing": sharing_tv(optimal_mask(tau, delta, size, form), delta, size),
        "randomization": torch.where(tau <= 0.01, noise_tv_lower(optimal_noise_variance(small, slope), slope), tau),
        "compression": compression_tv(optimal_kept(tau, size), size),
    }


@theorem(
    "T8",
    "The corrected optimum has the metric epsilon, and one of less total variation violates the budget.",
    source="Theorem 5.1; Table 1, our correction",
)
def corrected_optimum_is_exact() -> Checked:
    """The corrected optimum has the metric epsilon, and one of 0.1 % less total variation violates the budget."""
    c1, c2, tau, _, _ = _settings()
    epsilon = 2 * c1 - c2 * tau
    slacks = []
    for variation in _variations("corrected").values():
        off = (leakage_metric(c1, c2, variation) - epsilon).abs()
        slacks.append(1e-9 - off / c2.clamp(min=1))
        less = torch.where(tau > 1e-5, leakage_metric(c1, c2, 0.999 * variation) - epsilon, torch.inf)
        slacks.append(required(less))
    return checked(slacks, 4 * TRIALS, "1e-9 max(1, C2) minus the metric's distance to epsilon")


def _printed(mechanism: str) -> Checked:
    _, _, tau, _, _ = _settings()
    slack = _variations("as_printed")[mechanism] - tau + EXACT
    return checked([slack], TRIALS, "excess of the total variation over what is required")


@theorem("T9a", "The printed n* of Paillier's scheme meets the budget.", source="Theorem 6.2, Table 1, as stated")
def printed_modulus_meets_the_budget() -> Checked:
    """The printed ``n*`` meets the budget."""
    return _printed("paillier")


@theorem("T9b", "The printed r* of secret sharing meets the budget.", source="Theorem 6.3, Table 1, as stated")
def printed_mask_meets_the_budget() -> Checked:
    """The printed ``r*`` meets the budget."""
    return _printed("secret_sharing")


@theorem(
    "T9c",
    "Both have a total variation of 1 - tau where tau is required, so they meet it where tau is 1/2 or less.",
    source="Table 1; ours",
)
def printed_optima_have_the_complement() -> Checked:
    """The printed optima have a total variation of 1 - tau, so they meet it where tau is 1/2 or less."""
    _, _, tau, _, _ = _settings()
    variations = _variations("as_printed")
    slacks = [1e-6 - (variations[name] - (1 - tau)).abs() for name in ("paillier", "secret_sharing")]
    return checked(slacks, 2 * TRIALS, "1e-6 minus the distance to 1 - tau")


@theorem("T10", "The optimum depends on neither weights nor C4 nor C5.", source="Theorem 5.1 and its remark")
def weights_do_not_matter() -> Checked:
    """The least parameter that meets the budget minimises the objective, whatever weights, C4 and C5."""
    grid = torch.linspace(0, 1, 2001, dtype=torch.float64)
    draws = _uniform("weights", 200, 6)
    slacks = []
    for c1, share, *weights in draws.tolist():
        c2 = 3.0 * c1 + 1e-3
        epsilon = 2 * c1 * share
        for steep in (1.0, 0.01):  # total variations as the metric takes them, of all others and of noise
            metric = leakage_metric(c1, c2, steep * grid)
            meets = metric <= epsilon
            if not bool(meets.any()):
                continue
            utility, cost = utility_loss_bound(grid, 10 * weights[2]), efficiency_loss_bound(grid, 1e3 * weights[3])
            objective = torch.where(meets, weights[0] * utility + weights[1] * cost, torch.inf)
            first = int(meets.nonzero()[0])
            slacks.append(objective.min() - objective[first] + ROUNDING)
    return checked(slacks, len(slacks), "what any other parameter has above the least one's objective")


CASES = ((1, 400), (2, 400), (5, 200), (30, 100), (300, 40), (3000, 4))
"""Coordinates, and how many laws of so many."""


@cache
def _noise() -> tuple[torch.Tensor, torch.Tensor]:
    """Exact total variation, and min(1, sigma_eps^2 A), of random laws."""
    exact, reach = [], []
    for size, count in CASES:
        spread = 2 * _uniform(f"spread {size}", count, 1)
        sigma = (spread * (2 * _uniform(f"deviations {size}", count, size) - 1)).exp()
        steepness = noise_steepness(sigma)
        variance = 10 ** (6 * _uniform(f"variances {size}", count) - 4) / steepness
        exact.append(noise_tv(variance, sigma))
        reach.append(noise_reach(variance, steepness))
    return torch.cat(exact), torch.cat(reach)


@theorem(
    "T13a", "Under Gaussian noise TV lies between 1/100 and 3/2 of min(1, sigma_eps^2 A).", source="eq. 9, Appendix F"
)
def noise_lies_between() -> Checked:
    """The exact total variation of noise lies between 1/100 and 3/2 of min(1, sigma_eps^2 A)."""
    exact, reach = _noise()
    slacks = [exact / reach / 0.01 - 1, required(1.5 - exact / reach)]
    return checked(slacks, len(exact), "excess of the exact total variation over its lower bound, in parts of it")


@theorem("T13b", "It is 16 times the lower bound at least.", source="eq. 9; ours")
def noise_reaches_more() -> Checked:
    """The total variation is 16 times the lower bound at least."""
    exact, reach = _noise()
    return checked([exact / reach / 0.16 - 1], len(exact), "excess of it over 0.16 min(1, sigma_eps^2 A), in parts")


def _near(name: str, size: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Laws, others of which no probability is off by more than a relative error, and that error."""
    law = _law(f"{name}, laws {size}", count, size)
    shift = (2 * _uniform(f"{name}, shifts {size}", count, size) - 1) * law
    shift = torch.where(_uniform(f"{name}, extremes {size}", count, 1) < 0.5, shift.sign() * law, shift)
    shift = shift - law * shift.sum(dim=-1, keepdim=True)
    most = torch.where(law > 0, (shift / law).abs(), 0.0).amax(dim=-1, keepdim=True)
    relative = 10 ** (3 * _uniform(f"{name}, errors {size}", count, 1) - 3) * 0.99
    shift = torch.where(most > 1e-9, shift / most * relative, 0.0)
    return law, (law + shift).clamp(min=0), relative.squeeze(-1)


_errors = cache(errors)


@theorem("T17a", "C1 of beliefs that are off by a relative error is off by eq. 20 at most.", source="Theorem 7.1")
def theorem_7_1_holds() -> Checked:
    """C1 of beliefs that are off by a relative error is off by ``B`` at most."""
    slacks = []
    for size in range(2, 7):
        law, other, relative = _near("theorem 7.1", size, TRIALS // 5)
        other = other / other.sum(dim=-1, keepdim=True)
        prior = _law(f"theorem 7.1, priors {size}", TRIALS // 5, size)
        slacks.append(1 - (leakage(other, prior) - leakage(law, prior)).abs() / c1_error(relative))
    return checked(slacks, TRIALS, "bound of the error minus the error, relative")


@theorem(
    "T17b",
    "Estimates of T attempts are within that bound with the probability that Lemma C.1 states.",
    source="Lemma C.1, Theorem 7.1",
)
def theorem_7_1_covers() -> Checked:
    """Estimates of T attempts are within the bound with probability 0.95 or more."""
    frame = _errors()
    covered = torch.as_tensor(frame["covered"].to_numpy(copy=True))
    return checked([covered - (1 - FAILURE)], len(frame), "excess of the part of estimates within the bound over 0.95")


@theorem("T18", "The error of C1 falls as T^(-1/2), and its bound as T^(-1/4).", source="section 7.4; ours")
def errors_fall_as_roots() -> Checked:
    """The error falls as T^(-1/2), and its bound as T^(-1/4), to 0.05 in the exponent, from T = 1000 on."""
    slacks = []
    for _, rows in _errors().groupby("series"):
        late = rows[rows["T"] >= 1000]
        for column, slope, first in (("error", -0.5, 0), ("bound", -0.25, 4)):
            values = late.iloc[first:]
            exponent = np.polyfit(np.log(values["T"]), np.log(values[column]), 1)[0]
            slacks.append(torch.tensor(0.05 - abs(float(exponent) - slope), dtype=torch.float64))
    return checked(slacks, len(slacks), "0.05 minus the exponent's distance")


def _sums(form: Form) -> Checked:
    slacks = []
    for data, attempts in ((1, 1), (2, 5), (8, 16), (4, 200)):
        recovered = _uniform(f"sums {data}", 100, attempts_made(attempts, form), data) < 0.5
        whole = data_belief(recovery_counts(recovered), attempts).sum(dim=-1)
        slacks.append(EXACT - (whole - 1).abs())
    return checked(slacks, 400, "1e-9 minus the distance of the sum of beliefs to 1")


@theorem("T19a", "The estimates of Algorithm 2 sum to 1.", source="Algorithm 2, as printed; eq. 44 needs it")
def printed_beliefs_sum_to_one() -> Checked:
    """The estimates of T + 1 attempts, as printed, sum to 1."""
    return _sums("as_printed")


@theorem("T19b", "They do with T attempts, where the printed loop has T + 1.", source="Algorithm 2; our correction")
def beliefs_sum_to_one() -> Checked:
    """The estimates of T attempts sum to 1."""
    return _sums("corrected")


@theorem(
    "T20",
    "At equal TV the bounded objective of Paillier's scheme is at most compression's, and that at most noise's.",
    source="Appendices F, G and I; the order is ours",
)
def mechanisms_are_ordered() -> Checked:
    """At equal tau the bounded objective of Paillier is at most that of compression, and that at most noise's."""
    draws = _uniform("objectives", 500, 5)
    slacks = []
    for tau, utility, cost, c4, c5 in draws.tolist():
        level = 0.01 * tau + 1e-6
        setting = UploadLaw(100, 0.5, 3.0)
        values = []
        for mechanism in ("paillier", "compression", "randomization"):
            bounds = bounds_at_optimum(mechanism, level, setting, c4, c5)
            values.append(utility * bounds[0] + cost * bounds[1])
        slacks.append(torch.tensor([values[1] - values[0], values[2] - values[1]]).double() / values[2])
    return checked(slacks, len(slacks), "least difference between neighbours, in parts of noise's objective")


@theorem("T21", "The metric of Theorem 6.2, C2 [1 - (2 delta / n^2)^m], falls with n.", source="Theorem 6.2, as stated")
def metric_of_theorem_6_2_falls() -> Checked:
    """The metric, ``C2 [1 - (2 delta / n^2)^m]``, falls with n, as it says of leakage."""
    variation = paillier_tv(torch.linspace(0, 2, 200, dtype=torch.float64), 0.5, 3)
    slack = -(1.5 * variation).diff()
    return checked([slack], len(slack), "least fall from one modulus to the next")


def _attacker() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """C1, C2, min(1, s) and exact leakage of an attacker who sees whether a normal coordinate is far from its mean.

    Either speaks for one of two candidates; noise has s times the coordinate's variance.
    """
    draws = _uniform("far", 4, TRIALS)
    lean, far, ratio = 0.49 * draws[0] + 0.005, 4 * draws[1], 10 ** (6 * draws[2] - 4)
    posterior = torch.stack([0.5 + lean, 0.5 - lean, 0.5 - lean, 0.5 + lean], dim=-1).view(TRIALS, 2, 2)

    def believed(part: torch.Tensor) -> torch.Tensor:
        """A belief where the coordinate is far in a part of uploads."""
        law = torch.stack([part, 1 - part], dim=-1)
        belief: torch.Tensor = (law.unsqueeze(1) @ posterior).squeeze(1)
        return belief

    def beyond(deviation: torch.Tensor) -> torch.Tensor:
        return (far / deviation / math.sqrt(2)).erfc()

    prior = believed(draws[3])
    before, after = (leakage(believed(beyond(s)), prior) for s in (torch.ones_like(ratio), (1 + ratio).sqrt()))
    return before, amplification(largest_log_ratio(posterior, prior)), ratio.clamp(max=1), after


@theorem(
    "T22a", "Under noise leakage is at most 3/2 C2 min(1, sigma_eps^2 A).", source="Theorem 6.1, eq. 11, as stated"
)
def theorem_6_1_bounds_leakage() -> Checked:
    """Under noise leakage is at most ``3/2 C2 min(1, sigma_eps^2 A)``."""
    _, c2, reach, leaked = _attacker()
    return checked([1.5 * c2 * reach - leaked + EXACT], TRIALS, "excess of the bound over leakage, nats^(1/2)")


@theorem("T22b", "It is at most that and C1.", source="Theorem 6.1; our correction")
def theorem_6_1_with_c1_bounds_leakage() -> Checked:
    """Under noise leakage is at most the smaller of that and C1."""
    c1, c2, reach, leaked = _attacker()
    return checked([c1 + 1.5 * c2 * reach - leaked + EXACT], TRIALS, "excess of the bound over leakage, nats^(1/2)")


def _outside(protected: torch.Tensor, centre: float, delta: float) -> torch.Tensor:
    """Part of draws of one coordinate that leave the cube of the unprotected one."""
    return ((protected - centre).abs() > delta).double().mean()


RESCALED = ((0.5, 0.0), (0.9, 0.0), (0.9, 0.2), (0.7, 1.0))
"""rho and a, with delta = 0.1."""


def _rescaled(expected: Callable[[float, float], torch.Tensor]) -> Checked:
    """Against sampling: the density of what stays in the cube is rho times the unprotected one's or less."""
    slacks = []
    for place, (kept, centre) in enumerate(RESCALED):
        value, coin = _uniform(f"rescaled {place}", 2, SAMPLES)
        protected = (centre + 0.1 * (2 * value - 1)) * (coin < kept) / kept
        inside = ((protected - centre).abs() <= 0.1) & (coin < kept)  # what is dropped has no density
        slacks.append(SAMPLED - (1 - inside.double().mean() - expected(kept, centre)).abs())
    return checked(slacks, len(RESCALED) * SAMPLES, "0.005 minus the distance to the sampled total variation")


@theorem(
    "T23a", "Where kept coordinates are divided by rho, TV is 1 - rho^m.", source="Lemma I.1 with eq. 85, as stated"
)
def rescaled_compression_is_the_same() -> Checked:
    """TV is 1 - rho^m where kept coordinates are divided by rho."""
    return _rescaled(lambda kept, _: compression_tv(kept, 1))


@theorem("T23b", "It is 1 - rho^(2m) around zero, and up to 1 elsewhere.", source="eq. 85; our correction")
def rescaled_compression_is_not() -> Checked:
    """TV is 1 - rho^(2m) around zero, and up to 1 elsewhere."""
    return _rescaled(lambda kept, centre: rescaled_compression_tv(kept, 0.1, 1, centre))


def _of_the_mean(expected: Callable[[float, int], torch.Tensor]) -> Checked:
    slacks = []
    for clients in (1, 2, 5):
        value, coin = _uniform(f"mean of {clients}", 2, SAMPLES, clients)
        uploads = 100 + 0.1 * (2 * value - 1)
        outside = _outside((uploads * (coin < 0.9)).mean(dim=1), 100.0, 0.1)
        slacks.append(SAMPLED - (outside - expected(0.9, clients)).abs())
    return checked(slacks, 3 * SAMPLES, "0.005 minus the distance to the sampled total variation")


@theorem("T24a", "The mean of K sparse uploads has the TV of one.", source="Lemma I.2, as stated")
def mean_of_sparse_uploads_is_the_same() -> Checked:
    """The mean of K sparse uploads has the total variation of one, far from zero."""
    return _of_the_mean(lambda kept, _: compression_tv(kept, 1))


@theorem("T24b", "Far from zero it is 1 - rho^(K m).", source="Lemma I.2; our correction")
def mean_of_sparse_uploads_is_not() -> Checked:
    """Far from zero the mean has a total variation of 1 - rho^(K m)."""
    return _of_the_mean(lambda kept, clients: compression_tv(kept, 1, clients))


PRIMES = tuple(n for n in range(3, 200) if all(n % k for k in range(2, n)))


def _keys(passes: Callable[[int, int], bool]) -> Checked:
    """Whether every pair of primes that passes has a secret key: ``mu = L(g^lambda mod n^2)^-1 mod n``, g = n + 1."""
    slacks = []
    for p in PRIMES:
        for q in PRIMES:
            n, power = p * q, math.lcm(p - 1, q - 1)
            if p != q and passes(p, q):
                quotient = (pow(n + 1, power, n * n) - 1) // n
                slacks.append(1.0 if math.gcd(quotient, n) == 1 else -1.0)
    what = "1: every pair of primes has a key; -1: one has none"
    return checked([torch.tensor(slacks, dtype=torch.float64)], len(slacks), what)


@theorem("T25a", "Primes with gcd(pq, (p - q)(q - 1)) = 1 give a Paillier key.", source="Appendix G, as stated")
def printed_condition_gives_keys() -> Checked:
    """Primes with ``gcd(pq, (p - q)(q - 1)) = 1`` give a Paillier key."""
    return _keys(lambda p, q: math.gcd(p * q, (p - q) * (q - 1)) == 1)


@theorem("T25b", "Primes with gcd(pq, (p - 1)(q - 1)) = 1 do.", source="Appendix G; our correction")
def condition_gives_keys() -> Checked:
    """Primes with ``gcd(pq, (p - 1)(q - 1)) = 1`` give a Paillier key."""
    return _keys(lambda p, q: math.gcd(p * q, (p - 1) * (q - 1)) == 1)


def _shares(expected: Callable[[float], torch.Tensor]) -> Checked:
    slacks = []
    for ratio in (0.5, 1.0, 1.2, 1.5, 2.0, 4.0):
        value, mask = 2 * _uniform(f"shares {ratio}", 2, SAMPLES) - 1
        slacks.append(SAMPLED - (_outside(value + ratio * mask, 0.0, 1.0) - expected(ratio)).abs())
    return checked(slacks, len(slacks) * SAMPLES, "0.005 minus the distance to the sampled total variation")


@theorem("T26a", "A share, a value plus a uniform mask, has TV 1 - (delta / r)^m.", source="Appendix H, as stated")
def shares_are_uniform() -> Checked:
    """A value plus a uniform mask has TV ``1 - (delta / r)^m``, and none for masks up to delta."""
    return _shares(lambda ratio: product_tv(-math.log(max(ratio, 1.0)), 1))


@theorem(
    "T26b", "It has from r = 2 delta on; below TV is 1 - (1 - r / (4 delta))^m.", source="Appendix H; our correction"
)
def shares_are_trapezoidal() -> Checked:
    """A share has that TV from ``r = 2 delta`` on, and ``1 - (1 - r / (4 delta))^m`` below."""
    return _shares(lambda ratio: exact_sharing_tv(ratio, 1.0, 1))


@theorem("T27", "Eq. 38 holds for every candidate.", source="proof of Theorem 7.1, as stated")
def equation_38_holds() -> Checked:
    """Equation 38, a step of the proof of Theorem 7.1, holds for every candidate."""
    slacks = []
    for size in (2, 4):
        law, other, relative = _near("equation 38", size, TRIALS // 2)
        prior = _law(f"equation 38, priors {size}", TRIALS // 2, size)
        e = relative.unsqueeze(-1)
        left = torch.xlogy(other, 2 * other / (other + prior).clamp(min=1e-300))
        right = torch.xlogy((1 + e) * law, 2 * (1 + e) * law / ((1 - e) * law + prior).clamp(min=1e-300))
        slacks.append(torch.where(law > 0, right - left, torch.inf) + EXACT)
    return checked(slacks, TRIALS, "excess of the right side over the left one, nats")


@theorem(
    "T28",
    "xi is that of the upload with the largest ratio of posterior to prior.",
    source="eq. 17, which Assumption 7.1 is to give",
)
def the_leakiest_upload_has_the_largest_ratio() -> Checked:
    """``xi`` is that of the upload with the largest ratio of posterior to prior, for any candidate."""
    slacks = []
    for size in range(2, 5):
        posterior = _law(f"ratios {size}", TRIALS // 4, size, 3) * 0.999 + 0.001 / 3
        prior = (_law(f"ratios, means {size}", TRIALS // 4, 1, size) @ posterior).squeeze(1)
        ratio = posterior / prior.unsqueeze(1)
        chosen = ratio.amax(dim=-1).argmax(dim=-1)
        largest = ratio[torch.arange(len(ratio)), chosen].log().abs().amax(dim=-1)
        slacks.append(largest - largest_log_ratio(posterior, prior) + EXACT)
    return checked(slacks, 3 * (TRIALS // 4), "what the upload's own ratio exceeds xi by, nats")


@theorem(
    "T29", "K m log r bounds a cost from above at the optimum, so it is not negative.", source="Lemma H.4, as stated"
)
def bound_on_sharing_is_not_negative() -> Checked:
    """``K m log r`` bounds a cost, which is not negative, at the optimum."""
    _, _, tau, size, delta = _settings()
    slack = optimal_mask(tau.clamp(min=1e-9), delta, size).log() * 2 * size
    return checked([slack], TRIALS, "the bound at the corrected optimum, nats")


@theorem(
    "T30",
    "Where all data are recovered in every attempt and the null attack never succeeds, C2 grows as the square of the "
    "number of attempts, without limit.",
    source="ours; eq. 18 with the null attack's prior, whose number of attempts the paper leaves open",
)
def c2_grows_with_attempts() -> Checked:
    """``ln C2`` over ``ln T`` has a slope within 0.05 of 2 from T = 1000 on, whatever S, M and alpha."""
    slacks = []
    drawn = _uniform("attempts", 200, 3)
    for place, (data, models, alpha) in enumerate(drawn.tolist()):
        few, many = (
            certain_constants(
                1 + int(5 * models), 1000 * (1 + place) * more, 1 + int(8 * data), 10 ** (4 * alpha - 4)
            ).c2
            for more in (1, 4)
        )
        slacks.append(0.05 - ((many / few).log() / math.log(4) - 2).abs())
    return checked(slacks, len(slacks), "0.05 minus the exponent's distance to 2")
