"""DP-SGD as a channel: printed numbers, the clipped gradients that reach the bound, and an accountant of our own."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from tests.theory.vectors import close, normal, row

from leakbench.errors import ConfigError
from leakbench.theory.capacity import batch_capacity, spectrum
from leakbench.theory.dp_capacity import (
    Conversion,
    DPForm,
    capacity_multiplier,
    composed_epsilon,
    curvature_in_dimension,
    epsilon_capacity,
    finite_step_capacity,
    multiplier_capacity,
    release_epsilon,
    step_capacity,
)

EXACT = 1e-8
MULTIPLIERS = row(0.8, 0.57, 0.46, 0.2066)
FORMS: tuple[DPForm, ...] = ("corrected", "as_printed")


def test_bounds_of_the_paper_s_multipliers() -> None:
    printed, corrected = (multiplier_capacity(64, MULTIPLIERS, form) for form in ("as_printed", "corrected"))
    assert close(printed, 100, 196.98368729, 302.45746691, 1499.40632881, rel=EXACT)
    assert close(corrected, 50, 98.49184, 151.22873, 749.70316, rel=5e-8)
    torch.testing.assert_close(printed, step_capacity(64, MULTIPLIERS.square(), form="as_printed"))
    for clip in (0.1, 3.0):  # the multiplier is in units of the norm
        torch.testing.assert_close(step_capacity(64, (clip * MULTIPLIERS).square(), clip), corrected)
    assert close(finite_step_capacity(64, 0.64, 62006), 49.95972, rel=EXACT * 10)


def test_multipliers_of_capacities() -> None:
    kappas = row(50, 200, 300, 1500)
    assert close(capacity_multiplier(64, kappas, "as_printed"), 1.13137, 0.565685, 0.461880, 0.206559, rel=3e-6)
    for form in FORMS:
        torch.testing.assert_close(multiplier_capacity(64, capacity_multiplier(64, kappas, form), form), kappas)


def test_single_release() -> None:
    epsilon = release_epsilon(MULTIPLIERS, 1e-5)
    assert close(epsilon, 6.056, 8.500, 10.532, 23.450, rel=1e-4)
    for form in FORMS:
        torch.testing.assert_close(
            epsilon_capacity(64, epsilon, 1e-5, form), multiplier_capacity(64, MULTIPLIERS, form)
        )
    assert close(epsilon_capacity(64, 2.0, 1e-5, "as_printed"), 64 * 4 / (2 * math.log(1.25e5)), rel=1e-12)


def test_curvature() -> None:
    corrected, printed = (curvature_in_dimension(row(5), 0.64, form=form) for form in FORMS)
    assert close(corrected, -0.0113379, rel=5e-6) and close(printed, -0.0839002, rel=1e-6)

    def u(dimension: torch.Tensor, sigma: float, clip: float) -> torch.Tensor:
        return dimension * ((sigma + clip**2 / dimension) / sigma).log()

    for dimension, sigma, clip in ((5.0, 0.64, 1.0), (2.0, 3.0, 0.7), (300.0, 0.1, 2.0)):
        curvature = torch.func.grad(torch.func.grad(u))(torch.tensor(dimension).double(), sigma, clip)
        assert close(curvature_in_dimension(row(dimension), sigma, clip), float(curvature), rel=1e-7)


@given(st.floats(1, 1e3), st.floats(1e-3, 1e3), st.floats(1, 1e6), st.floats(0.1, 10))
def test_more_parameters_and_larger_batches_let_more_through(
    batch: float, sigma: float, size: float, clip: float
) -> None:
    sizes = size * row(1, 2, 1e9)
    finite, limit = finite_step_capacity(batch, sigma, sizes, clip), step_capacity(batch, sigma, clip)
    assert (finite.diff() > -1e-9 * finite[:2]).all() and (finite <= limit * (1 + 1e-12)).all()
    twice = step_capacity(batch, sigma, clip, "as_printed")
    assert close(twice, 2 * float(limit), rel=1e-12)
    assert step_capacity(2 * batch, sigma, clip) > limit
    assert (curvature_in_dimension(sizes, sigma, clip) <= 0).all()


def test_clipped_gradients_stay_below() -> None:
    """Literally: covariances of clipped vectors, noise on their sum; equal directions come closest."""
    batch, sigma, size = 16, 2.0, 12
    gradients = normal(0, 30, 400, size) * normal(1, 30, 1, size).exp()
    clipped = gradients / gradients.norm(dim=-1, keepdim=True).clamp(min=1)
    centred = clipped - clipped.mean(dim=1, keepdim=True)
    values = spectrum(centred.mT @ centred / 400)
    found, bound = batch_capacity(values, sigma, batch, "dp"), finite_step_capacity(batch, sigma, size)
    assert (found < bound).all() and (found > 0.5 * bound).any()
    equal = torch.full((size,), 1 / size, dtype=torch.float64)
    assert close(batch_capacity(equal, sigma, batch, "dp"), float(bound), rel=1e-12)
    assert bound < step_capacity(batch, sigma) < step_capacity(batch, sigma, form="as_printed")


def integer_order_epsilon(multiplier: float, rate: float, steps: int, delta: float, conversion: Conversion) -> float:
    """Rényi divergences of orders 2 to 60 by the binomial theorem."""
    best = math.inf
    for a in range(2, 61):
        terms = [
            math.log(math.comb(a, k)) + k * math.log(rate) + (a - k) * math.log1p(-rate)
            + (k * k - k) / (2 * multiplier**2)
            for k in range(a + 1)
        ]  # fmt: skip
        divergence = steps * float(logsumexp(terms)) / (a - 1)
        classical = divergence - math.log(delta) / (a - 1)
        improved = divergence + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)
        best = min(best, classical if conversion == "classical" else improved)
    return best


class TestComposed:
    def test_usual_check(self) -> None:
        """MNIST, 60 epochs of batches of 256 at multiplier 1.1."""
        assert composed_epsilon(1.1, 256 / 60_000, 14_063, 1e-5, "classical") == pytest.approx(3.008, rel=2e-3)
        assert composed_epsilon(1.1, 256 / 60_000, 14_063, 1e-5) == pytest.approx(2.597, rel=2e-3)

    @pytest.mark.parametrize(
        ("multiplier", "improved", "classical"),
        [(0.8, 1.561, 2.001), (0.57, 4.594, 5.393), (0.46, 10.361, 11.525), (0.2066, 217.4, 220.8)],
    )
    def test_the_paper_s_multipliers(self, multiplier: float, improved: float, classical: float) -> None:
        """The expected numbers are of Rényi divergences by quadrature."""
        found = composed_epsilon(multiplier, 64 / 50_000, 10_000, 1e-5)
        assert found == pytest.approx(improved, rel=2e-3)
        other = composed_epsilon(multiplier, 64 / 50_000, 10_000, 1e-5, "classical")
        assert other == pytest.approx(classical, rel=2e-3) and other > found

    @pytest.mark.parametrize("conversion", ["classical", "improved"])
    def test_equals_integer_orders(self, conversion: Conversion) -> None:
        """Where the best order is large, fractional orders gain little."""
        expected = integer_order_epsilon(2.0, 0.01, 1000, 1e-6, conversion)
        found = composed_epsilon(2.0, 0.01, 1000, 1e-6, conversion)
        assert expected * 0.999 < found <= expected * (1 + 1e-9)

    def test_without_sampling(self) -> None:
        """One release of the whole data: Rényi divergence ``a / (2 z^2)``; less than the classical calibration."""
        found = composed_epsilon(5.0, 1.0, 1, 1e-5, "classical")
        best = min(a / 50 - math.log(1e-5) / (a - 1) for a in range(2, 64))
        assert found == pytest.approx(best, rel=1e-3) and found < 5 * float(release_epsilon(5.0, 1e-5))


def test_errors() -> None:
    for bad in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="the variance of noise"):
            step_capacity(64, bad)
        with pytest.raises(ConfigError, match="the noise multiplier"):
            multiplier_capacity(64, bad)
        with pytest.raises(ConfigError, match="the noise multiplier"):
            release_epsilon(bad, 1e-5)
        with pytest.raises(ConfigError, match="the capacity"):
            capacity_multiplier(64, bad)
        with pytest.raises(ConfigError, match="epsilon must"):
            epsilon_capacity(64, bad, 1e-5)
        with pytest.raises(ConfigError, match="the number of parameters"):
            finite_step_capacity(64, 1.0, bad)
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigError, match="delta"):
            release_epsilon(1.0, delta)
        with pytest.raises(ConfigError, match="delta"):
            composed_epsilon(1.0, 0.1, 10, delta)
    for arguments in ((0.0, 0.1, 10), (1.0, 0.0, 10), (1.0, 1.1, 10), (1.0, 0.1, 0), (math.nan, 0.1, 10)):
        with pytest.raises(ConfigError, match="DP-SGD needs"):
            composed_epsilon(*arguments, 1e-5)
