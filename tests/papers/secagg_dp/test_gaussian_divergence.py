"""The exact divergence against its formula, an integral, and pairs that are told apart."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError
from leakbench.papers.secagg_dp.theory.gaussian_divergence import renyi_divergence


def scalars(mean: float, variance: float, other_mean: float, other_variance: float, order: float) -> float:
    pair = (row(mean), row(variance).view(1, 1), row(other_mean), row(other_variance).view(1, 1))
    return float(renyi_divergence(*pair, order))


def by_formula(mean: np.ndarray, first: np.ndarray, other: np.ndarray, second: np.ndarray, order: float) -> float:
    mixed = (1 - order) * first + order * second
    if np.linalg.eigvalsh(mixed)[0] <= 0:
        return math.inf
    shift = mean - other
    logs = [np.linalg.slogdet(matrix)[1] for matrix in (mixed, first, second)]
    spread = logs[0] - (1 - order) * logs[1] - order * logs[2]
    return float(order / 2 * shift @ np.linalg.solve(mixed, shift) - spread / (2 * (order - 1)))


def test_scalars() -> None:
    assert scalars(1, 1, 0.5, 0.5, 1.9) == pytest.approx(5.68264035, rel=1e-8)
    assert scalars(1, 2, 0, 2, 3) == pytest.approx(3 / 4, rel=1e-12)  # a d^2 / (2 s)
    assert scalars(1, 2, 0, 1, 2) == math.inf  # (1 - 2) 2 + 2 1 = 0
    assert math.isfinite(scalars(1, 2, 0, 1, 1.99)) and scalars(1, 2, 0, 1, 2.01) == math.inf


@pytest.mark.parametrize(
    ("mean", "variance", "other", "order"), [(0.3, 1.5, 1.0, 2.5), (-1.0, 0.4, 2.0, 7.0), (0.0, 1.1, 1.0, 9.0)]
)
def test_integral(mean: float, variance: float, other: float, order: float) -> None:
    def integrand(x: float) -> float:
        first = -((x - mean) ** 2) / (2 * variance) - math.log(2 * math.pi * variance) / 2
        second = -(x**2) / (2 * other) - math.log(2 * math.pi * other) / 2
        return math.exp(order * first + (1 - order) * second)

    expected = math.log(quad(integrand, -60, 60, limit=500)[0]) / (order - 1)
    assert scalars(mean, variance, 0.0, other, order) == pytest.approx(expected, rel=1e-7)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(0, 2**31), st.floats(1.01, 40), st.floats(-8, 0), st.floats(-12, 12))
def test_formula(size: int, seed: int, order: float, exponent: float, scale: float) -> None:
    factors = normal(seed, 2, size, size + 2)
    factors[1] = factors[0] + 2.0**exponent * factors[1]
    first, second = 2.0**scale * factors @ factors.mT
    mean = normal(seed + 1, size)
    other = mean + 2.0**exponent * 2.0 ** (scale / 2) * normal(seed + 2, size)
    found = float(renyi_divergence(mean, first, other, second, order))
    expected = by_formula(mean.numpy(), first.numpy(), other.numpy(), second.numpy(), order)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9) and found >= 0


def test_batches() -> None:
    factors, means = normal(0, 5, 2, 3, 8), normal(1, 5, 2, 3)
    covariances = factors @ factors.mT
    orders = torch.linspace(1.05, 1.6, 5, dtype=torch.float64)
    found = renyi_divergence(means[:, 0], covariances[:, 0], means[:, 1], covariances[:, 1], orders)
    for i in range(5):
        (mean, other), (first, second) = means[i].numpy(), covariances[i].numpy()
        expected = by_formula(mean, first, other, second, float(orders[i]))
        assert float(found[i]) == pytest.approx(expected, rel=1e-9)
    assert found.isfinite().any()


def test_small_differences_keep_their_digits() -> None:
    """Of variances 1 and 1 + x it is a x^2 / 4 and more: far below the rounding of a determinant."""
    for x in (1e-3, 1e-6, 1e-7):
        assert scalars(0, 1, 0, 1 + x, 2) == pytest.approx(x**2 / 2, rel=3e-2 if x == 1e-7 else 3e-3)


def test_support() -> None:
    line = torch.tensor([[1.0, 1], [1, 1]], dtype=torch.float64)
    zero = torch.zeros(2, dtype=torch.float64)
    along, across = row(0.5, 0.5), row(0.5, -0.5)
    assert close(renyi_divergence(along, line, zero, line, 2.0), 2 / 2 * 0.25 * 2 / 2)  # length^2 1/2, variance 2
    assert renyi_divergence(across, line, zero, line, 2.0) == math.inf
    plane = torch.eye(2, dtype=torch.float64)
    for first, second in ((line, plane), (plane, line), (line, line * (2 * plane - 1))):
        assert renyi_divergence(zero, first, zero, second, 1.5) == math.inf
    nothing = torch.zeros(2, 2, dtype=torch.float64)
    assert close(renyi_divergence(zero, nothing, zero, nothing, 2.0), 0)
    assert renyi_divergence(along, nothing, zero, nothing, 2.0) == math.inf


def test_errors() -> None:
    zero, one = row(0), row(1).view(1, 1)
    for order in (1.0, 0.5, math.nan, math.inf):
        with pytest.raises(ConfigError, match="order of the divergence"):
            renyi_divergence(zero, one, zero, one, order)
    with pytest.raises(ConfigError, match="finite"):
        renyi_divergence(zero, one * math.inf, zero, one, 2.0)
