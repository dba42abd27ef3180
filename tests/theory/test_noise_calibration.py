"""Variances for a total epsilon: a table of them, what they were found for, and where there are none."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.errors import ConfigError, Infeasible
from leakbench.theory.aggregate_dp import Aggregation, Form, Mechanism, round_curve, round_guarantee
from leakbench.theory.dp_composition import composed_round
from leakbench.theory.noise_calibration import (
    Accounting,
    calibrated_variance,
    least_feasible_variance,
    total_epsilon,
)

MNIST = Aggregation(users=50, records=1200, batch=32, clip=10.0)
DELTA, ROUNDS = 1e-4, 100
EPSILONS = (1, 2, 4, 8, 16)
ROWS: tuple[tuple[Mechanism, Form], ...] = (
    ("sgd", "as_printed"),
    ("gd", "as_printed"),
    ("gaussian", "as_printed"),
    ("gaussian_filled", "as_printed"),
    ("gaussian_filled", "corrected"),
    ("gaussian_filled", "repaired"),
)


@pytest.mark.parametrize(
    ("row", "rounds", "accounting", "expected"),
    [
        (0, 100, "composition", "0.565 0.236 0.114 0.0619 0.0377"),
        (1, 100, "composition", "0.289 0.0813 0.0235 0.00689 0.00215"),
        (2, 100, "composition", "0.355 0.116 0.0413 0.0162 0.0072"),
        (3, 100, "composition", "0.355 0.116 0.0413 0.0162 0.0072"),
        (4, 100, "composition", "0.417 0.147 0.0576 0.0247 0.0118"),
        (5, 100, "composition", "0.374 0.125 0.0461 0.0186 0.0085"),
        (0, 3750, "composition", "15.5 4.87 1.68 0.646 0.291"),
        (1, 100, "renyi", "0.0108 0.00283 0.00077 0.00022 0.00007"),
        (4, 100, "renyi", "0.0311 0.0129 0.0059 0.0029 0.0016"),
        (5, 100, "renyi", "0.0126 0.00394 0.00148 0.00068 0.00037"),
    ],
)
def test_table(row: int, rounds: int, accounting: Accounting, expected: str) -> None:
    """To the digits that the expected numbers have."""
    for epsilon, variance in zip(EPSILONS, expected.split(), strict=True):
        found = calibrated_variance(MNIST, epsilon, rounds, DELTA, *ROWS[row], accounting)
        digits = len(variance.split(".")[1])
        assert found == pytest.approx(float(variance), rel=0, abs=0.6 * 10**-digits)


def test_epsilons_of_rounds() -> None:
    for epsilon, each in zip(EPSILONS, (0.0236, 0.0446, 0.0829, 0.153, 0.275), strict=True):
        variance = calibrated_variance(MNIST, epsilon, ROUNDS, DELTA, "gd")
        found = round_guarantee(MNIST, variance, DELTA / 200, "gd").epsilon
        assert found == pytest.approx(each, rel=3e-3)
        assert composed_round(found, ROUNDS, DELTA / 2) == pytest.approx(epsilon, rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("epsilon", "expected"), list(zip(EPSILONS, (0.0192, 0.0094, 0.0050, 0.0030, 0.0017), strict=True))
)
def test_sampled_batches(epsilon: float, expected: float) -> None:
    """The expected numbers are of fewer orders, so up to a few hundredths larger."""
    found = calibrated_variance(MNIST, epsilon, ROUNDS, DELTA, "sgd", accounting="poisson_renyi")
    assert 0.95 * expected < found < 1.01 * expected
    assert total_epsilon(MNIST, found, ROUNDS, DELTA, "sgd", accounting="poisson_renyi") <= epsilon


@pytest.mark.parametrize(
    ("row", "expected"), [(0, "0.0345 0.0131 0.00548"), (4, "0.0248 0.0111 0.00532"), (5, "0.0082 0.0029 0.0012")]
)
def test_tight(row: int, expected: str) -> None:
    """To the digits that the expected numbers have: SGD-DP without replacement, eq. 35 and the repaired bound."""
    for epsilon, variance in zip((1, 2, 4), expected.split(), strict=True):
        found = calibrated_variance(MNIST, epsilon, ROUNDS, DELTA, *ROWS[row], "tight")
        assert found == pytest.approx(float(variance), rel=0, abs=0.6 * 10 ** -len(variance.split(".")[1]))
        assert total_epsilon(MNIST, found, ROUNDS, DELTA, *ROWS[row], "tight") <= epsilon


def test_tight_of_all_records_is_exact() -> None:
    """All rounds are one Gaussian mechanism, whose delta is Phi(m/2 - e/m) - e^e Phi(-m/2 - e/m)."""
    for epsilon, expected in ((1, 0.0056), (2, 0.0017), (4, 0.0005)):
        found = calibrated_variance(MNIST, epsilon, ROUNDS, DELTA, "gd", accounting="tight")
        assert found == pytest.approx(expected, abs=6e-5)
        shift = math.sqrt(ROUNDS) * 2 * MNIST.clip / (MNIST.records * math.sqrt(MNIST.users * found))
        above, below = (NormalDist().cdf(sign * shift / 2 - epsilon / shift) for sign in (1, -1))
        assert above - math.exp(epsilon) * below == pytest.approx(DELTA, rel=1e-5)


def test_what_noise_of_the_papers_accounting_costs() -> None:
    """Of epsilon = 2, stated."""
    costs = [
        total_epsilon(
            MNIST, calibrated_variance(MNIST, 2, ROUNDS, DELTA, *ROWS[row]), ROUNDS, DELTA, *ROWS[row], "tight"
        )
        for row in (1, 0)
    ]
    assert costs == pytest.approx([0.223, 0.317], abs=6e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 40), st.floats(0.5, 20), st.integers(1, 30), st.floats(-7, -2))
def test_tight_is_no_more_than_any_proof(batch: int, multiplier: float, rounds: int, power: float) -> None:
    setting, delta = Aggregation(4, 40, batch, 1.0), 10.0**power
    variance = (2 * multiplier / batch) ** 2 / 4
    found = total_epsilon(setting, variance, rounds, delta, "sgd", accounting="tight")
    exact = total_epsilon(Aggregation(4, batch, batch, 1.0), variance, rounds, delta, "gd", accounting="tight")
    renyi = total_epsilon(Aggregation(4, batch, batch, 1.0), variance, rounds, delta, "gd", "corrected", "renyi")
    assert found <= exact <= renyi
    if batch == 40:
        assert found == exact


def test_tight_bounds_a_mixture_that_it_speaks_of() -> None:
    """One coordinate, one round: half of the time the replaced record is in the batch; delta by integration."""
    setting = Aggregation(2, 2, 1, 1.0)
    for multiplier in (0.5, 1.0, 3.0):
        variance, delta = (2 * multiplier) ** 2 / 2, 1e-3
        epsilon = total_epsilon(setting, variance, 1, delta, "sgd", accounting="tight")
        grid = torch.linspace(-60, 60, 400_001, dtype=torch.float64) * multiplier
        spread = 2 * multiplier

        def density(mean: float, grid: torch.Tensor = grid, spread: float = spread) -> torch.Tensor:
            return (-((grid - mean) ** 2) / (2 * spread**2)).exp() / (spread * math.sqrt(2 * math.pi))

        ours, theirs = (0.5 * density(0.0) + 0.5 * density(mean) for mean in (1.0, -1.0))
        lost = torch.trapezoid((ours - math.exp(epsilon) * theirs).clamp(min=0), grid)
        assert float(lost) <= delta


def test_sampled_batches_once() -> None:
    found = calibrated_variance(MNIST, 1.0, 10, DELTA, "sgd", accounting="poisson_renyi")
    total = total_epsilon(MNIST, found, 10, DELTA, "sgd", accounting="poisson_renyi")
    assert 0.999 < total <= 1
    assert found < calibrated_variance(MNIST, 1.0, 10, DELTA, "sgd", "corrected", "optimal")


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([*ROWS, ("gaussian", "repaired"), ("sgd", "corrected"), ("gaussian_filled", "theorem_as_printed")]),
    st.sampled_from(["composition", "optimal", "renyi"]),
    st.sampled_from(["classical", "improved"]),
    st.floats(-3, 3),
    st.sampled_from([1, 7, 40]),
    st.floats(-9, -1),
)
def test_totals_are_met(
    row: tuple[Mechanism, Form], accounting: Accounting, conversion: str, exponent: float, rounds: int, power: float
) -> None:
    """The total is the target, and a little less noise exceeds it; noise grows for smaller epsilons."""
    setting, epsilon, delta = Aggregation(5, 60, 12, 2.0), 10.0**exponent, 10.0**power
    words = (rounds, delta, *row, accounting, conversion)
    found = calibrated_variance(setting, epsilon, *words)  # type: ignore[arg-type]
    total = total_epsilon(setting, found, *words)  # type: ignore[arg-type]
    assert total <= epsilon * (1 + 1e-12)
    if accounting != "optimal":  # whose epsilons are steps
        assert total >= epsilon * (1 - 1e-6)
    limit = least_feasible_variance(setting, *row)
    assert found > limit
    less = max(found * (1 - 1e-6), limit * (1 + 1e-9))
    if less < found:
        assert total_epsilon(setting, less, *words) > epsilon * (1 - 1e-12)  # type: ignore[arg-type]
    assert calibrated_variance(setting, epsilon / 2, *words) > found  # type: ignore[arg-type]


def test_order_of_the_rows() -> None:
    """All records need least, then Gaussian weights, then batches; all the same at tiny epsilons of rounds."""
    for epsilon in EPSILONS:
        gd, repaired, corrected, sgd = (
            calibrated_variance(MNIST, epsilon, ROUNDS, DELTA, *ROWS[row]) for row in (1, 5, 4, 0)
        )
        assert gd < repaired < corrected < sgd
        exact = calibrated_variance(MNIST, epsilon, ROUNDS, DELTA, "gd", "corrected", "optimal")
        assert exact < gd


def test_limits() -> None:
    """Below them no order is left; above them there is one."""
    for mechanism, form in (*ROWS[2:], ("gaussian", "repaired"), ("gaussian_filled", "theorem_as_printed")):
        limit = least_feasible_variance(MNIST, mechanism, form)
        with pytest.raises(Infeasible):
            round_curve(MNIST, limit * (1 - 1e-9), mechanism, form)
        with pytest.raises(Infeasible):
            total_epsilon(MNIST, limit * (1 - 1e-9), ROUNDS, DELTA, mechanism, form)
        assert round_curve(MNIST, limit * (1 + 1e-6), mechanism, form).limit > 1
    assert least_feasible_variance(MNIST, "gd") == 0 == least_feasible_variance(MNIST, "sgd")
    assert least_feasible_variance(MNIST, "gaussian_filled") == pytest.approx(2 * 100 / (32 * 1200 * 50))


def test_errors() -> None:
    for mechanism in ("sgd_filled", "gd_filled"):
        with pytest.raises(Infeasible, match="no differential privacy"):
            calibrated_variance(MNIST, 1.0, ROUNDS, DELTA, mechanism)
        with pytest.raises(Infeasible, match="no differential privacy"):
            least_feasible_variance(MNIST, mechanism)
    for epsilon in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="epsilon must be positive"):
            calibrated_variance(MNIST, epsilon, ROUNDS, DELTA, "gd")
    with pytest.raises(ConfigError, match="rounds"):
        total_epsilon(MNIST, 1.0, 0, DELTA, "gd")
    with pytest.raises(ConfigError, match="delta"):
        calibrated_variance(MNIST, 1.0, ROUNDS, 1.0, "gd")
    with pytest.raises(ConfigError, match="so for sgd, found gd"):
        calibrated_variance(MNIST, 1.0, ROUNDS, DELTA, "gd", accounting="poisson_renyi")
    with pytest.raises(ConfigError, match="the variance of noise"):
        total_epsilon(MNIST, 0.0, ROUNDS, DELTA, "sgd", accounting="poisson_renyi")
