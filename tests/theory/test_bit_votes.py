"""Votes on flipped bits: exact sums over binomials, the paper's printed numbers, enumeration."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from leakbench.errors import ConfigError
from leakbench.theory.bit_votes import (
    VoteRule,
    aggregation_error,
    bit_weight,
    composed_epsilon,
    convergence_bound,
    epsilon_per_bit,
    flip_moments,
    gradient_gap_bound,
    keep_for_epsilon,
    least_ones,
    likelihood_ratio,
    loss_gap_bound,
    recovery_error,
    recovery_probability,
    smoothness,
    value_epsilon,
    vote_errors,
)


def exactly(number: float, expected: float, digits: int) -> bool:
    """Equal to a number that is printed with so many digits."""
    return number == pytest.approx(expected, rel=0.51 * 10 ** (1 - digits), abs=0)


def few(least: int, clients: int, probability: Fraction) -> Fraction:
    terms = (math.comb(clients, i) * probability**i * (1 - probability) ** (clients - i) for i in range(least))
    return sum(terms, Fraction(0))


@pytest.mark.parametrize(
    ("clients", "keep", "expected"),
    [
        (20, 0.8, 0.9994365863023),
        (20, 0.9, 0.9999992911391),
        (20, 0.98, 1 - 2.912e-14),
        (4, 0.8, 0.9728),
        (4, 0.98, 0.99996848),
        (4, 0.999, 0.999999996003),
        (5, 0.9, 0.99144),
        (3, 0.9, 0.972),
        (10, 0.8, 0.9936306176),
        (11, 0.8, 0.98834579456),
    ],
)
def test_recovery_probability(clients: int, keep: float, expected: float) -> None:
    assert recovery_probability(clients, keep) == pytest.approx(expected, abs=1e-12)


FIGURE_4 = {
    4: (1.792e-1, 8.370e-2, 2.720e-2, 3.700e-3, 4.813e-4, 3.152e-5),
    5: (3.174e-1, 1.631e-1, 5.792e-2, 8.560e-3, 1.158e-3, 7.762e-5),
    10: (1.662e-1, 4.735e-2, 6.369e-3, 1.469e-4, 2.755e-6, 1.254e-8),
    20: (1.275e-1, 1.714e-2, 5.634e-4, 7.089e-7, 5.380e-10, 2.912e-14),
    50: (5.734e-2, 9.332e-4, 4.924e-7, 1.075e-13, 5.547e-21, 5.116e-31),
    100: (1.676e-2, 9.035e-6, 5.180e-12, 6.323e-25, 3.743e-39, 8.439e-59),
}


@pytest.mark.parametrize("clients", FIGURE_4)
def test_recovery_error_of_figure_4(clients: int) -> None:
    for keep, expected in zip(("0.6", "0.7", "0.8", "0.9", "0.95", "0.98"), FIGURE_4[clients], strict=True):
        found = recovery_error(clients, float(keep))
        assert exactly(found, expected, 4), keep
        assert found == pytest.approx(float(few(-(-clients // 2), clients, Fraction(keep))), rel=1e-9, abs=0)


def test_tails_far_below_the_resolution_of_one() -> None:
    """R = 100 and p = 0.994: the error is about 1e-84; one minus the probability would be zero."""
    exact = few(50, 100, Fraction("0.994"))
    assert exact < Fraction(1, 10**82)
    assert recovery_error(100, 0.994) == pytest.approx(float(exact), rel=1e-9, abs=0)
    assert recovery_probability(100, 0.994) == 1


def test_more_clients_help_within_one_parity_alone() -> None:
    assert recovery_error(2, 0.8) == pytest.approx(0.04) and recovery_error(3, 0.8) == pytest.approx(0.104)
    for parity in (0, 1):
        errors = [recovery_error(clients, 0.8) for clients in range(2 + parity, 40, 2)]
        assert errors == sorted(errors, reverse=True)


@pytest.mark.parametrize(
    ("clients", "keep", "least", "if_one", "if_zero"),
    [
        (20, 0.8, 8, 1.5163e-5, 3.2143e-2),
        (20, 0.9, 9, 5.815e-8, 5.986e-5),
        (20, 0.98, 10, 2.912e-14, 1.5749e-12),
        (4, 0.98, 2, 3.152e-5, 2.3365e-3),
        (4, 0.999, 2, 3.997e-9, 5.992e-6),
    ],
)
def test_what_the_printed_rule_gives(clients: int, keep: float, least: int, if_one: float, if_zero: float) -> None:
    assert least_ones(clients, keep) == least
    assert vote_errors(clients, keep) == pytest.approx((if_one, if_zero), rel=2e-4, abs=0)
    exact = Fraction(str(keep))
    assert vote_errors(clients, keep)[0] == pytest.approx(float(few(least, clients, exact)), rel=1e-9, abs=0)
    zero = few(clients - least + 1, clients, exact)  # as many ones flipped from zeros: so few were kept
    assert vote_errors(clients, keep)[1] == pytest.approx(float(zero), rel=1e-9, abs=0)


def test_a_majority_of_odd_numbers_treats_ones_and_zeros_alike() -> None:
    one, zero = vote_errors(21, 0.8, "majority")
    assert one == pytest.approx(zero, rel=1e-12)
    assert one == pytest.approx(recovery_error(21, 0.8))


@pytest.mark.parametrize(
    ("clients", "keep", "rule", "least"),
    [
        (20, 0.95, "printed", 10),
        (40, 0.55, "printed", 11),  # in floats, 0.55 * 40 / 2 is above 11
        (1, 0.98, "printed", 1),
        (1, 0.51, "majority", 1),
        (2, 1.0, "printed", 1),
        (20, 0.8, "majority", 10),
        (5, 0.8, "majority", 3),
        (5, 0.8, "printed", 2),
    ],
)
def test_thresholds(clients: int, keep: float, rule: VoteRule, least: int) -> None:
    assert least_ones(clients, keep, rule) == least


class TestEpsilon:
    @pytest.mark.parametrize(
        ("keep", "expected"),
        [(0.8, 1.386294), (0.9, 2.197225), (0.95, 2.944439), (0.98, 3.891820), (0.999, 6.906755)],
    )
    def test_of_a_bit(self, keep: float, expected: float) -> None:
        assert epsilon_per_bit(keep) == pytest.approx(expected, abs=5e-7)
        assert keep_for_epsilon(epsilon_per_bit(keep)) == pytest.approx(keep)
        assert math.log(likelihood_ratio(keep, 1)) == pytest.approx(epsilon_per_bit(keep))

    @pytest.mark.parametrize(("epsilon", "keep"), [(1, 0.731059), (2, 0.880797), (4, 0.982014), (8, 0.999665)])
    def test_p_of_an_epsilon(self, epsilon: float, keep: float) -> None:
        assert keep_for_epsilon(epsilon) == pytest.approx(keep, abs=5e-7)

    def test_bits_multiply_their_ratios(self) -> None:
        assert likelihood_ratio(0.98, 1) == pytest.approx(49)
        assert likelihood_ratio(0.98, 2) == pytest.approx(2401)
        assert math.log(likelihood_ratio(0.9, 3)) == pytest.approx(composed_epsilon(0.9, 3))

    def test_composed(self) -> None:
        assert composed_epsilon(0.98, 2) == pytest.approx(7.78364, abs=1e-5)
        assert composed_epsilon(0.98, 2, 5130) == pytest.approx(39_930.08, abs=0.01)
        assert composed_epsilon(0.98, 2, 5130, 95) == pytest.approx(3_793_357.2, abs=0.1)

    def test_a_value_with_a_clear_bit_has_none(self) -> None:
        assert value_epsilon(0.98, 2) == value_epsilon(0.6, 15) == math.inf
        assert value_epsilon(0.98, 16) == pytest.approx(16 * epsilon_per_bit(0.98))
        assert epsilon_per_bit(1.0) == math.inf


class TestErrorAndNoise:
    @pytest.mark.parametrize(
        ("position", "decimals", "weight"), [(2, 4, 0.8192), (3, 4, 0.4096), (5, 5, 0.01024), (6, 5, 0.00512)]
    )
    def test_weights(self, position: int, decimals: int, weight: float) -> None:
        assert bit_weight(position, decimals) == pytest.approx(weight, rel=1e-15)

    @pytest.mark.parametrize("position", [0, 16, -1])
    def test_no_such_bit(self, position: int) -> None:
        with pytest.raises(ConfigError, match="1 to 15"):
            bit_weight(position, 4)

    def test_error_of_a_bit(self) -> None:
        assert aggregation_error(20, 0.8, 2, 4) == pytest.approx(4.6155e-4, rel=1e-4)
        assert aggregation_error(20, 0.8, 2, 4, true_bit=0) == pytest.approx(2.6331e-2, rel=1e-4)
        assert aggregation_error(20, 0.8, 2, 4, true_bit=1) == pytest.approx(0.8192 * 1.5163e-5, rel=1e-4)

    def test_noise_of_a_value(self) -> None:
        mean, variance = flip_moments(0.98, 4, (2, 3))
        assert mean == pytest.approx(0.024576) and variance == pytest.approx(0.0164417, abs=5e-8)
        assert variance**0.5 == pytest.approx(0.128225, abs=5e-7)
        assert flip_moments(0.999, 5, (5, 6))[1] ** 0.5 == pytest.approx(3.62e-4, rel=1e-3)

    def test_noise_of_a_layer(self) -> None:
        mean, variance = flip_moments(0.98, 4, (2, 3))
        assert 32_768_000 * (mean**2 + variance) == pytest.approx(558_552, abs=1)


class TestTheorems:
    def test_first_by_hand(self) -> None:
        """mu = 2, gap = 3, T = 5, eta = 0.1, gamma = 0.2, sigma^2 = 0.5, beta_hat = 1.5."""
        bound = convergence_bound(3, 5, 0.1, 0.2, 0.5, 1.5, 2)
        assert float(bound) == pytest.approx(2 * (12 / 0.5 + 4 * 5 * 0.5 * 2.25 * (0.1 + 0.04)))

    def test_first_grows_with_rounds(self) -> None:
        bounds = [float(convergence_bound(1.0, rounds, 0.1, 0.1, 1.0, 1.0, 1.0)) for rounds in (10, 100, 1000)]
        assert bounds == sorted(bounds)

    @pytest.mark.parametrize(("rate", "radius", "name"), [(0.6, 0.1, "rate"), (0.1, 0.6, "radius")])
    def test_first_is_silent_beyond_its_conditions(self, rate: float, radius: float, name: str) -> None:
        with pytest.raises(ConfigError, match=f"{name} 0.6"):
            convergence_bound(1.0, 10, rate, radius, 1.0, 1.0, 1.0)

    def test_second_by_hand(self) -> None:
        error = 0.8192 * recovery_error(20, 0.8)
        assert loss_gap_bound(20, 0.8, 0.8192, 2, 3) == pytest.approx(6 * error)
        statement = gradient_gap_bound(20, 0.8, 0.8192, 2, 5, 3, 7)
        proof = gradient_gap_bound(20, 0.8, 0.8192, 2, 5, 3, 7, "proof")
        assert statement == pytest.approx((2 * 7 + 3) * error)
        assert proof == pytest.approx((4 * 7 + 5 * 3) * error) and smoothness(2, 5, 3, 7) == 43
