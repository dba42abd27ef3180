"""The bound on the attacker's error, against the exact error of normal data and against a Monte Carlo attacker."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError
from leakbench.theory.capacity import capacity, gaussian_capacity, total_information
from leakbench.theory.reconstruction_bound import (
    diagonal_error,
    error_bound,
    gaussian_error,
    gaussian_log_entropy_power,
    information_at,
    information_factor,
    log_entropy_power,
)


def test_factor_of_a_whole_run() -> None:
    """The logarithm survives where the number does not."""
    for kappa, decade in ((300.0, -848), (50.0, -141)):
        factor = information_factor(total_information(kappa, 10_000), 3072)
        assert int(float(factor.log) / math.log(10)) == decade
        assert (float(factor.value) == 0) == (decade < -324)
    assert close(information_factor(row(300, 50), 3072).value, 0.823, 0.968, rel=6e-4)
    assert close(information_factor(7.0, 2).log, -7) and close(information_factor(0.0, 5).value, 1)


def test_information_at_a_factor() -> None:
    known = information_at(0.01, 3072)
    assert close(information_factor(known, 3072).value, 0.01, rel=1e-12)
    assert information_at(1.0, 10) == 0 and 23 < known / 300 < 24  # within 24 steps of 300 nats


def test_entropy_power() -> None:
    """Of normals, correlated or not, of a uniform, and of pixels, which have no density."""
    eigenvalues = row(4, 1, 0.25)
    entropy = math.log((2 * math.pi * math.e) ** 3 * 1.0) / 2  # 1/2 ln((2 pi e)^d det)
    assert close(log_entropy_power(entropy, 3), 0) and close(gaussian_log_entropy_power(eigenvalues), 0)
    assert close(gaussian_log_entropy_power(row(4, 9)), math.log(6), rel=1e-12)
    assert close(log_entropy_power(math.log(2.0), 1).exp(), 4 / (2 * math.pi * math.e))  # below its variance, 1/3
    assert log_entropy_power(-math.inf, 4) == -math.inf and gaussian_log_entropy_power(row(1, 0)) == -math.inf
    nothing = error_bound(gaussian_log_entropy_power(row(1, 0)), 1.0, 2)
    assert nothing.value == 0 and nothing.log == -math.inf


@pytest.mark.parametrize("dimension", [1, 3])
def test_uniform_data(dimension: int) -> None:
    """The bound holds for data that are not normal: uniform pixels in [0, 1], seen with 8 grey levels or not at all."""
    power = log_entropy_power(0.0, dimension)
    for levels in (1, 8):
        told = dimension * math.log(levels)
        least = 1 / (12 * levels**2)
        bound = float(error_bound(power, told, dimension).value)
        assert bound == pytest.approx(12 / (2 * math.pi * math.e) * least) and bound < least


def test_errors_are_those_of_the_posterior_mean() -> None:
    root, other = normal(0, 3, 3), normal(1, 3, 3)
    data, noise = root @ root.mT, other @ other.mT
    literal = (data - data @ torch.linalg.inv(data + noise) @ data).trace() / 3
    assert close(gaussian_error(data, noise), float(literal), rel=1e-10)
    truth = normal(2, 200_000, 3) @ root.mT
    seen = truth + normal(3, 200_000, 3) @ other.mT
    guess = seen @ torch.linalg.inv(data + noise) @ data
    assert close((guess - truth).square().mean(), float(literal), rel=0.01)


def test_pairs_are_diagonal_matrices() -> None:
    eigenvalues, variances = row(4, 1, 0, 0), row(0.5, 2, 3, 0)
    by_hand = (4 * 0.5 / 4.5 + 1 * 2 / 3) / 4
    assert close(diagonal_error(eigenvalues, variances), by_hand, rel=1e-12)
    assert close(gaussian_error(torch.diag(eigenvalues), torch.diag(variances)), by_hand, rel=1e-12)
    assert close(diagonal_error(eigenvalues, row(math.inf)), 1.25)  # no message: the variance


@given(st.integers(0, 300), st.integers(1, 6))
def test_the_bound_is_below_the_error(seed: int, size: int) -> None:
    root = normal(2 * seed, 4, size, size) * normal(2 * seed + 1, 4, size, 1).exp()
    other, eye = root.flip(0), torch.eye(size, dtype=torch.float64)
    data, noise = root @ root.mT + 1e-3 * eye, other @ other.mT + 1e-3 * eye
    power = gaussian_log_entropy_power(torch.linalg.eigvalsh(data))
    bound = error_bound(power, gaussian_capacity(data, noise), size)
    assert (gaussian_error(data, noise) >= bound.value * (1 - 1e-7)).all()


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(1, 50))
def test_equal_where_everything_is_isotropic(eigenvalue: float, sigma: float, size: int) -> None:
    equal = torch.full((size,), eigenvalue, dtype=torch.float64)
    error = diagonal_error(equal, torch.full_like(equal, sigma))
    bound = error_bound(gaussian_log_entropy_power(equal), capacity(equal, sigma), size)
    assert close(error, float(bound.value), rel=1e-9)


def test_errors() -> None:
    for told in (-1.0, math.nan):
        with pytest.raises(ConfigError, match="at least 0 nats"):
            information_factor(told, 3)
        with pytest.raises(ConfigError, match="at least 0 nats"):
            error_bound(row(1), told, 3)
    for factor in (0.0, 1.5, math.nan):
        with pytest.raises(ConfigError, match=r"lies in \(0, 1\]"):
            information_at(factor, 3)
    with pytest.raises(ConfigError, match="cannot be negative"):
        diagonal_error(row(1, 2), row(-1, 1))
