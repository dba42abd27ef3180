"""The optimal noise at a budget of utility: the paper's algebra on small numbers, and optimality for all numbers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.papers.optimal_defense.theory.noise_budget import (
    gain_over_isotropic,
    isotropic_variance,
    minimal_trace,
    optimal_clipped_variance,
    optimal_variance,
)
from leakbench.theory.fisher import information_trace
from leakbench.theory.optimal_noise import scale_variance, variance_ratio
from leakbench.theory.utility import u2

A, B = row(4, 1, 9), row(1, 4, 0.25)


def test_optimum() -> None:
    variance = optimal_variance(A, B, 10)
    assert close(variance, 3.6363636, 0.9090909, 10.9090909)
    assert close(variance / (A / B).sqrt(), *[1.8181818] * 3)
    assert close(information_trace(A, variance), 3.025)
    assert close(minimal_trace(A, B, 10), 3.025)


def test_isotropic() -> None:
    assert close(isotropic_variance(B, 10), *[1.9047619] * 3)
    assert close(information_trace(A, isotropic_variance(B, 10)), 7.35)
    assert close(gain_over_isotropic(A, B), 2.4297521)


class TestClipped:
    """Two equiprobable samples, (0.5, 3) and (-0.5, 0.2), with squared norms (1, 4) both, clipped at 1."""

    g = torch.tensor([[0.5, 3], [-0.5, 0.2]], dtype=torch.float64)
    a = torch.where(g.abs() < 1, row(1, 4), 0.0).mean(dim=0)
    b, b_clipped = g.square().mean(dim=0), g.clamp(-1, 1).square().mean(dim=0)

    def test_moments(self) -> None:
        assert close(self.a, 1, 2) and close(self.b, 0.25, 4.52) and close(self.b_clipped, 0.25, 0.52)

    @pytest.mark.parametrize(("form", "trace"), [("corrected", 12.2966593), ("as_printed", 14.2321266)])
    def test_forms(self, form: str, trace: float) -> None:
        variance = optimal_clipped_variance(self.a, self.b, self.b_clipped, 1.0, form)  # type: ignore[arg-type]
        assert close(-u2(self.b.sqrt(), variance), 1)
        assert close(information_trace(self.a, variance), trace)

    def test_isotropic(self) -> None:
        assert close(information_trace(self.a, isotropic_variance(self.b, 1.0)), 14.31)


def test_what_tells_nothing_gets_no_noise() -> None:
    a, b = row(4, 0, 0, 9), row(1, 2, 0, 0.25)
    for variance in (optimal_variance(a, b, 3.0), optimal_clipped_variance(a, b, b, 3.0, "as_printed")):
        assert variance[1:3].eq(0).all() and close(-u2(b.sqrt(), variance), 3)
        assert close(information_trace(a, variance), float(minimal_trace(a, b, 3.0)))
    assert optimal_variance(torch.zeros(3), b[:3].float(), 1.0).eq(0).all()


sizes = st.shared(st.integers(1, 7), key="d")
positive = st.floats(1e-3, 1e3)
rows = sizes.flatmap(lambda d: st.lists(positive, min_size=d, max_size=d)).map(lambda values: row(*values))


@given(rows, rows, rows, positive)
def test_no_diagonal_covariance_of_equal_utility_beats_the_optimum(
    a: torch.Tensor, b: torch.Tensor, other: torch.Tensor, budget: float
) -> None:
    rival = other * budget / -u2(b.sqrt(), other)
    assert information_trace(a, rival) >= minimal_trace(a, b, budget) * (1 - 1e-9)
    best = optimal_variance(a, b, budget)
    assert close(-u2(b.sqrt(), best), budget) and close(isotropic_variance(b, budget) @ b, budget)
    assert close(information_trace(a, best), float(minimal_trace(a, b, budget)))
    isotropic = information_trace(a, isotropic_variance(b, budget))
    assert close(isotropic, float(gain_over_isotropic(a, b) * minimal_trace(a, b, budget)))
    assert gain_over_isotropic(a, b) >= 1 - 1e-9


@given(rows, positive)
def test_only_equal_ratios_gain_nothing(a: torch.Tensor, scale: float) -> None:
    assert close(gain_over_isotropic(a, scale * a), 1)
    assert close(optimal_variance(a, scale * a, 1.0) / isotropic_variance(scale * a, 1.0), *[1.0] * len(a))


@given(rows, rows, positive)
def test_the_local_form_is_the_global_one_of_a_single_input(a: torch.Tensor, g: torch.Tensor, budget: float) -> None:
    local = scale_variance(variance_ratio(a, g), g, budget, "u2")
    torch.testing.assert_close(optimal_variance(a, g.square(), budget), local)


def test_rows_have_budgets_of_their_own() -> None:
    a, b, clipped = normal(0, 3, 2, 5).exp(), normal(1, 3, 2, 5).exp(), normal(2, 3, 2, 5).exp()
    budget = normal(3, 3, 2).exp()
    for index in torch.cartesian_prod(torch.arange(3), torch.arange(2)).tolist():
        one, c = (a[*index], b[*index]), float(budget[*index])
        torch.testing.assert_close(optimal_variance(a, b, budget)[*index], optimal_variance(*one, c))
        torch.testing.assert_close(isotropic_variance(b, budget)[*index], isotropic_variance(one[1], c))
        torch.testing.assert_close(minimal_trace(a, b, budget)[*index], minimal_trace(*one, c))
        torch.testing.assert_close(gain_over_isotropic(a, b)[*index], gain_over_isotropic(*one))
        printed = optimal_clipped_variance(*one, clipped[*index], c, "as_printed")
        together = optimal_clipped_variance(a, b, clipped, budget, "as_printed")
        torch.testing.assert_close(together[*index], printed)
