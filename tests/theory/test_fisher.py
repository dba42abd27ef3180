"""Fisher information of Gaussian messages, against autodiff, sampling and what its definition says at the edges."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.theory.fisher import gaussian_information, information_trace, least_error


class TestTrace:
    def test_sums_sensitivity_over_variance(self) -> None:
        assert close(information_trace(row(4, 1, 9), row(2, 4, 3)), 5.25)

    def test_only_what_passes_counts(self) -> None:
        a, variance = row(4, 1, 9), row(2, 4, 0)
        assert close(information_trace(a, variance, torch.tensor([True, True, False])), 2.25)
        assert close(information_trace(a, variance, row(0.5, 1, 0)), 1.25)

    def test_what_is_sent_without_noise_tells_all(self) -> None:
        assert information_trace(row(4, 1), row(0, 1)) == math.inf
        assert information_trace(row(4, 1), row(0, 1), row(0.01, 1)) == math.inf
        assert close(information_trace(row(0, 1), row(0, 1)), 1)

    def test_rows_do_not_mix(self) -> None:
        a, variance, passing = normal(0, 3, 2, 5).square(), normal(1, 3, 2, 5).exp(), normal(2, 3, 2, 5) > 0
        together = information_trace(a, variance, passing)
        assert together.shape == (3, 2)
        for index in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
            alone = (passing * a / variance)[*index].sum()
            assert close(together[*index], float(alone))


class TestLeastError:
    """The least that ``tr (P + J)^-1`` is of all ``J`` of one trace."""

    @given(
        st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6),
        st.floats(1e-6, 1e6),
        st.integers(0, 2**16),
    )
    def test_no_information_of_that_trace_has_a_smaller_error(
        self, variances: list[float], trace: float, seed: int
    ) -> None:
        prior, size = row(*variances), len(variances)
        bound = float(least_error(row(trace)[0], prior))
        factor = normal(seed, size, size)
        information = factor @ factor.mT
        information *= trace / information.trace()
        error = torch.linalg.inv((1 / prior).diag() + information).trace()
        assert bound <= float(error) * (1 + 1e-9)
        # It is reached by one that fills, and above the bound by traces alone.
        level = _level(prior, trace)
        filling = (1 / level - 1 / prior).clamp(min=0)
        assert close(filling.sum(), trace) and close((1 / (1 / prior + filling)).sum(), bound)
        assert bound >= size**2 / (trace + float((1 / prior).sum())) * (1 - 1e-9)

    def test_without_a_message_it_is_the_variance_and_with_all_of_it_none(self) -> None:
        assert close(least_error(row(0, math.inf), row(4, 1, 0)), 5, 0)

    def test_directions_without_variance_and_order_do_not_matter(self) -> None:
        assert close(least_error(row(0.5, 2), row(0, 1, 4, 0)), *least_error(row(0.5, 2), row(4, 1)).tolist())


def _level(variances: torch.Tensor, trace: float) -> float:
    """The level by bisection of its logarithm."""
    low, high = -40.0, 40.0
    for _ in range(200):
        middle = (low + high) / 2
        filled = (math.exp(-middle) - 1 / variances).clamp(min=0).sum()
        low, high = (middle, high) if filled > trace else (low, middle)
    return math.exp(low)


class TestLeastSquares:
    """The gradient of ``(theta x - t)^2 / 2``."""

    x = row(3, -1)

    @staticmethod
    def gradient(x: torch.Tensor) -> torch.Tensor:
        return x * (row(1, 2) @ x - 0.5)

    def test_trace_is_the_curvature_of_the_divergence(self) -> None:
        variance = row(0.81811304, 0.63698263)

        def divergence(other: torch.Tensor) -> torch.Tensor:
            return ((self.gradient(self.x) - self.gradient(other)).square() / variance).sum() / 2

        curvature = torch.func.hessian(divergence)(self.x)
        jacobian = torch.func.jacfwd(self.gradient)(self.x)
        torch.testing.assert_close(gaussian_information(jacobian, variance), curvature)
        assert close(information_trace(jacobian.square().sum(dim=1), variance), float(curvature.trace()))
        assert close(curvature.trace(), 64.0793598)


class TestCovarianceThatDependsOnTheData:
    """``g = (x^2 + 1, sin x + 2)`` at 0.7, with the local optimal variance ``lambda |g'| / |g|``."""

    x = row(0.7)

    @staticmethod
    def mean(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.square() + 1, x.sin() + 2])

    @classmethod
    def variance(cls, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([2 * x, x.cos()]).abs() / cls.mean(x).abs()

    def information(self, scale: float, *, covariance: bool) -> float:
        jacobian = torch.func.jacfwd(self.mean)(self.x)
        log_jacobian = torch.func.jacfwd(lambda x: self.variance(x).log())(self.x) if covariance else None
        return float(gaussian_information(jacobian, scale * self.variance(self.x), log_jacobian))

    @pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
    def test_leaks_the_same_at_every_scale(self, scale: float) -> None:
        mean_term = self.information(scale, covariance=False)
        assert close(mean_term, 4.1084092 / scale)
        assert close(self.information(scale, covariance=True) - mean_term, 0.7597383)

    def test_is_what_sampling_finds(self) -> None:
        noise = normal(0, 200_000, 2)
        sent = self.mean(self.x) + (10 * self.variance(self.x)).sqrt() * noise

        def log_density(x: torch.Tensor) -> torch.Tensor:
            variance = 10 * self.variance(x)
            return -((sent - self.mean(x)).square() / variance + variance.log()).sum(dim=1) / 2

        score = torch.func.jvp(log_density, (self.x,), (torch.ones_like(self.x),))[1]
        squares = score.square()
        error = float(squares.std() / len(squares) ** 0.5)
        assert float(squares.mean()) == pytest.approx(self.information(10.0, covariance=True), abs=4 * error)
        assert error < 0.01  # so the mean term alone, 0.41, is far away

    def test_of_a_batch(self) -> None:
        jacobian, variance, logs = normal(0, 4, 6, 3), normal(1, 4, 6).exp(), normal(2, 4, 6, 3)
        together = gaussian_information(jacobian, variance, logs)
        for index in range(4):
            expected = torch.zeros(3, 3, dtype=torch.float64)
            for i in range(6):
                expected += torch.outer(jacobian[index, i], jacobian[index, i]) / variance[index, i]
                expected += torch.outer(logs[index, i], logs[index, i]) / 2
            torch.testing.assert_close(together[index], expected)
