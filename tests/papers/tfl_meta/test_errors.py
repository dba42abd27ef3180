"""Errors of Zhang, Kang et al. (2023), each shown by computing: what is printed fails, what is corrected holds.

The names count the errors as the page of tfl_meta does, which says in words what is wrong.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.theory.vectors import close, row

from leakbench.papers.tfl_meta.theory.leakage_estimation import (
    attempts_made,
    c1_error,
    class_belief,
    constants,
    data_belief,
    failure_probability,
    metric_error,
    population_prior,
    recovery_counts,
    uniform_prior,
)
from leakbench.theory.distortion import (
    compression_tv,
    equal_noise_tv,
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
    amplification,
    largest_log_ratio,
    leakage,
    leakage_bounds,
    leakage_metric,
    printed_bound,
    total_variation,
)
from leakbench.theory.protection_parameters import (
    UploadLaw,
    bounds_at_optimum,
    certified,
    optimal_log_modulus,
    optimal_mask,
    optimum,
    required_tv,
)

EVEN = row(0.5, 0.5)
LEANING = row(0.4, 0.6, 0.6, 0.4).view(2, 2)


class TestI01Theorem41:
    """Two uploads that speak for one candidate each; protection makes the second one likelier."""

    BEFORE, AFTER = row(0.4, 0.6), row(0.3625, 0.6375)

    def test_i01_it_is_false(self) -> None:
        x = amplification(largest_log_ratio(LEANING, EVEN)) * total_variation(self.BEFORE, self.AFTER)
        c1, found = leakage(self.BEFORE @ LEANING, EVEN), leakage(self.AFTER @ LEANING, EVEN)
        assert c1 / 2 < x < c1
        for equation in ("eq3", "eq4"):
            assert float(found / printed_bound(c1, x, equation)) == pytest.approx(1.0963720, rel=1e-6)
        low, high = leakage_bounds(c1, x)
        assert low < found < high

    def test_i01_its_two_equations_differ(self) -> None:
        """Between 3/4 C1 and C1; eq. 4 jumps from C1 to 2 C1, and eq. 3 is never below 5/4 C1."""
        x = torch.linspace(0, 3, 3001, dtype=torch.float64)
        first, second = printed_bound(1.0, x), printed_bound(1.0, x, "eq4")
        apart = x[(first - second).abs() > 1e-9]
        assert float(apart.min()) == pytest.approx(0.751) and float(apart.max()) == pytest.approx(1.0, abs=2e-3)
        assert float(first.min()) == pytest.approx(1.25)
        assert close(printed_bound(1.0, row(1.0, 1.0 + 1e-12), "eq4"), 1, 2)


def test_i02_the_metric_points_the_other_way() -> None:
    """What is proved grows with TV; without protection it is C1, where the metric is 2 C1; far out that is negative."""
    x = row(0.0, 0.2, 0.5, 2.1)
    assert close(leakage_bounds(1.0, x)[1], 1, 1.2, 1.5, 3.1)
    assert close(leakage_metric(1.0, 1.0, x), 2, 1.8, 1.5, -0.1)
    for share, by_paper, proved in ((0.9, False, False), (1.2, True, False), (1.5, True, True)):
        distance = 2 - share  # x of the optimum, in units of C1
        assert bool(certified(1.0, share, "as_printed")) == by_paper == (distance <= 1)
        assert bool(certified(1.0, share)) == proved == (1 + distance <= share + 1e-9)
    assert float(printed_bound(1.0, 2 - 0.5)) == pytest.approx(5 - 3 * 0.5)


@pytest.mark.parametrize("tau", [0.1, 0.4, 0.6, 0.9])
def test_i03_and_i04_printed_roots_lack_one_minus(tau: float) -> None:
    """The total variation that they reach is 1 - tau: too much below 1/2, too little above."""
    reached = (
        paillier_tv(optimal_log_modulus(tau, 0.3, 40, "as_printed"), 0.3, 40),
        sharing_tv(optimal_mask(tau, 0.3, 40, "as_printed"), 0.3, 40),
    )
    for variation in reached:
        assert float(variation) == pytest.approx(1 - tau, rel=1e-9)
        assert float(leakage_metric(1.0, 2.0, variation)) == pytest.approx(4 - 2 - (2 - 2 * tau))  # 4 C1 - C2 - epsilon
    found = optimum("secret_sharing", 1.0, 2.0, 2 - 2 * tau, UploadLaw(40, 0.3), "as_printed")
    assert found.meets == (tau <= 0.5)


def test_i05_theorem_6_2_drops_a_term() -> None:
    """Its metric grows with n, and eq. 12's falls."""
    variation = paillier_tv(row(0.1, 0.2, 0.5), 0.5, 3)
    assert bool((1.5 * variation).diff().gt(0).all()) and bool(leakage_metric(0.6, 1.5, variation).diff().lt(0).all())


def test_i06_eq_11_has_no_c1() -> None:
    """Without noise it says that nothing leaks. F.4 needs the lower bound of TV, and cites the upper one."""
    assert float(noise_tv_upper(0.0, 5.0)) == 0 and float(leakage(row(0.9, 0.1), EVEN)) > 0.3
    exact = noise_tv(0.1, row(1.0, 1.0))
    low, high = noise_tv_lower(0.1, math.sqrt(2)), noise_tv_upper(0.1, math.sqrt(2))
    assert leakage_metric(0.6, 2.0, high) < leakage_metric(0.6, 2.0, exact) < leakage_metric(0.6, 2.0, low)


def test_i07_theorem_7_2_has_another_metric() -> None:
    """3/2 C1 - x is what leakage is below where x <= C1 / 4; eq. 6 has 2 C1, and so the factor 2."""
    assert leakage_bounds(1.0, 0.25)[1] <= 1.5 - 0.25 and leakage_bounds(1.0, 0.26)[1] > 1.5 - 0.26
    assert float(metric_error(0.1, "as_printed") / metric_error(0.1)) == pytest.approx(3 / 4)


def test_i08_one_is_a_bound_in_bits() -> None:
    apart = leakage(row(1.0, 0.0), row(0.0, 1.0))
    assert close(apart, LARGEST_LEAKAGE) and close(apart.square() / math.log(2), 1)


def test_i09_h1_loses_a_factor() -> None:
    """1 - (1 / (b + r))^m is negative for narrow masks, and no total variation."""
    assert 1 - (1 / (0.3 + 0.4)) ** 3 < 0
    assert close(sharing_tv(0.4, 0.1, 3, below=0.3), 1 - (0.2 / 0.7) ** 3)


def test_i10_h4_is_negative_for_narrow_masks() -> None:
    setting = UploadLaw(100, 0.25)
    assert bounds_at_optimum("secret_sharing", 0.5, setting)[1] < 0
    steps = row(1.0, 1.1, 1.2).log()
    assert float(steps.diff().diff()) < 0  # H.5: second derivative 0


def test_i11_second_derivatives_are_not_zero() -> None:
    """Of 1 - rho^m by rho it is -m (m - 1) rho^(m - 2)."""
    rho, step, size = 0.9, 1e-4, 7
    values = compression_tv(row(rho - step, rho, rho + step), size)
    assert float(values.diff().diff()) / step**2 == pytest.approx(-size * (size - 1) * rho ** (size - 2), rel=1e-5)
    reach = noise_reach(row(0.5, 1.0, 1.5), 1.0)
    assert float(reach.diff().diff()) < 0


def test_i12_eq_13_and_eq_85_differ() -> None:
    assert close(compression_tv(0.5, 1), 0.5) and close(compression_tv(0.9, 1), 0.1)
    assert close(rescaled_compression_tv(0.5, 0.1, 1), 0.75) and close(rescaled_compression_tv(0.9, 0.1, 1, 1.0), 0.595)


def test_i13_the_mean_of_clients_is_another_law() -> None:
    """Two clients, rho = 0.9, one coordinate, far from zero: 0.19, and not 0.1. A mean of uniforms is triangular."""
    assert close(compression_tv(0.9, 1, clients=2), 0.19)
    draws = np.random.default_rng(0).uniform(-1, 1, (100_000, 2)).mean(axis=1)
    assert float((np.abs(draws) < 0.5).mean()) == pytest.approx(0.75, abs=0.01)


def test_i14_compression_sends_less() -> None:
    """Bits fall with 1 - rho, and Lemma I.3 has a bound that grows from 0."""
    bits = [32 * 1000 * rho for rho in (1.0, 0.5)]
    assert bits[1] < bits[0] and bool(compression_tv(row(1.0, 0.5), 1000).diff() > 0)


def test_i15_optimal_moduli_are_no_keys() -> None:
    """About sqrt(2 delta): 2^16.5 for values of 32 binary places, where keys have 2,048 bits; those reach TV = 1."""
    log_modulus = float(optimal_log_modulus(0.1, 2.0**32, 2410))
    assert log_modulus / math.log(2) == pytest.approx(16.5, abs=1e-4)
    assert float(paillier_tv(math.log(2**2047 + 1), 2.0**32, 2410)) == 1


class TestI16PaillierKeys:
    def test_i16_the_printed_condition_is_not_enough(self) -> None:
        p, q = 7, 3
        assert math.gcd(p * q, (p - q) * (q - 1)) == 1 and math.gcd(p * q, (p - 1) * (q - 1)) == 3
        n, power = p * q, math.lcm(p - 1, q - 1)
        for g in range(1, n * n):
            found = pow(g, power, n * n)
            if math.gcd(g, n) == 1 and (found - 1) % n == 0:
                assert math.gcd((found - 1) // n, n) > 1

    def test_i16_not_every_unit_is_a_generator(self) -> None:
        n, power = 77, 30
        units = [g for g in range(1, n * n) if math.gcd(g, n) == 1]
        fit = [g for g in units if math.gcd((pow(g, power, n * n) - 1) // n, n) == 1]
        assert (len(units), len(fit)) == (4620, 3600) and n + 1 in fit

    def test_i16_a_key_that_works(self) -> None:
        n, g, power, inverse = 77, 78, 30, 18

        def encrypt(plain: int, blind: int) -> int:
            return pow(g, plain, n * n) * pow(blind, n, n * n) % (n * n)

        first, second = encrypt(42, 23), encrypt(15, 5)
        assert (first, second, first * second % (n * n)) == (3840, 5162, 1433)
        assert (pow(1433, power, n * n) - 1) // n * inverse % n == 57


def test_i17_the_interval_of_ciphertexts() -> None:
    """[0, n^2 - 1] has length n^2 - 1: at n = 3 and delta = 1/2 that is TV = 7/8, and the formula has 8/9."""
    assert close(paillier_tv(math.log(3), 0.5, 1), 8 / 9)
    assert 1 - 2 * 0.5 / (3**2 - 1) == 7 / 8


def test_i18_shares_are_not_uniform() -> None:
    """r = 1.5 delta: 0.375, where the model has 1/3. Optimal masks are below 2 delta, where the model is off."""
    assert close(exact_sharing_tv(1.5, 1.0, 1), 0.375) and close(product_tv(-math.log(1.5), 1), 1 / 3)
    model, exact = optimal_mask(0.175, 1.0, 2410), optimal_mask(0.175, 1.0, 2410, "exact")
    assert 1 < float(model) < 1.0001 and float(exact) == pytest.approx(4 * float(model.log()), rel=1e-3)


def test_i20_a_degenerate_law_has_no_total_variation_to_tune() -> None:
    """Lemma C.1's unprotected upload is a point: from a continuous protected one it differs by TV = 1 at any noise."""
    assert float(noise_tv(1e-6, torch.full((10,), 1e-9))) == pytest.approx(1)


def test_i21_estimates_must_be_over_st() -> None:
    """Eq. 26 divides by T alone, so that a batch of four has a sum of four. Impossible data void the Chernoff bound."""
    counts = row(7, 3, 0, 10, 20)
    assert float(data_belief(counts, 10).sum()) == pytest.approx(1) and float((counts / 10).sum()) == 4
    assert 2 * math.exp(-(0.2**2) * 1e6 * 0 / 3) > 1
    assert float(failure_probability(1e6, 0.2, row(0.0, 0.5, 0.5))) < 1e-9


def test_i22_eq_38_is_false() -> None:
    """For a candidate that is likelier before than after."""
    after, before, relative, estimate = 0.01, 0.5, 0.1, 0.009
    left = estimate * math.log(2 * estimate / (estimate + before))
    right = (1 + relative) * after * math.log(2 * (1 + relative) * after / ((1 - relative) * after + before))
    assert left == pytest.approx(-0.0300787, rel=1e-5) and right == pytest.approx(-0.0345555, rel=1e-5)


def test_i23_loops_and_divisors() -> None:
    """T + 1 attempts over T; classes over their number."""
    recovered = torch.ones(attempts_made(10, "as_printed"), 2)
    assert float(data_belief(recovery_counts(recovered), 10).sum()) == pytest.approx(1.1)
    assert close(class_belief(row(50, 30), 8, 10, "as_printed"), 2.5, 1.5)
    assert close(class_belief(row(50, 30), 8, 10), 0.625, 0.375, 0)


class TestI25Assumption71:
    def test_i25_it_forces_equality(self) -> None:
        """Laws that are nowhere below one of them are it, since all sum to one."""
        laws = torch.rand(10_000, 4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        laws = laws / laws.sum(dim=-1, keepdim=True)
        assert not bool((laws[:, :1] >= laws[:, 1:]).all(dim=-1).any())

    def test_i25_it_does_not_give_eq_17(self) -> None:
        """The first upload has the largest ratio, 1.8; the second, which all but excludes a candidate, has xi."""
        prior = torch.full((3,), 1 / 3, dtype=torch.float64)
        posterior = torch.stack([row(0.6, 0.3, 0.1), row(0.48, 0.48, 0.04)])
        assert (posterior / prior).amax(dim=1).argmax() == 0
        assert close(largest_log_ratio(posterior, prior), -math.log(0.12))
        assert close(largest_log_ratio(posterior[:1], prior), -math.log(0.3))

    def test_i25_a_datum_that_is_never_recovered(self) -> None:
        found = constants(row(5, 0, 15).unsqueeze(0), 10, uniform_prior(2), smoothing=0)
        assert float(found.xi) == math.inf == float(found.c2)


def test_i26_c2_is_exponentially_sensitive() -> None:
    """One recovery more or less of a rare datum, and the choice of the prior, change C2 by a factor of several."""
    few, one = row(0, 8, 24), row(1, 8, 23)
    prior = population_prior(2, 1437)
    factors = [float(constants(counts.unsqueeze(0), 16, prior).c2) for counts in (few, one)]
    uniform = float(constants(few.unsqueeze(0), 16, uniform_prior(2)).c2)
    assert factors[0] > 1e4 and uniform < 500
    assert close(required_tv(0.5, factors[0], 0.0), 1 / factors[0])
    assert c1_error(0.28) < LARGEST_LEAKAGE < c1_error(0.29)


def test_noise_bound_is_loose() -> None:
    """1/100 is 16 times below the exact value at its tightest: one coordinate, noise of its own variance."""
    assert float(equal_noise_tv(1.0, 1)) == pytest.approx(0.166064, rel=1e-5)
    assert float(noise_tv_lower(1.0, noise_steepness(row(1.0)))) == 0.01
