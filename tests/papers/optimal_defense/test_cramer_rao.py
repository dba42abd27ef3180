"""Bounds on the error of every attacker, against exact errors of linear Gaussian models."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.theory.vectors import close, normal, row

from leakbench.papers.optimal_defense.theory.cramer_rao import (
    BoundForm,
    error_bound,
    linear_gaussian_error,
    mixed_error_bound,
)
from leakbench.theory.fisher import information_trace

PRIOR = row(0.1, 0.5, 0.2, 0.3)


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("corrected", 16 / 12),
        ("sharper", 16 / 11.1),
        ("smallest_eigenvalue", 16 / 10.4),
        ("parameter_count", 144 / 16),
        ("as_printed", 144 / 11.2),
    ],
)
def test_forms(form: BoundForm, expected: float) -> None:
    assert close(error_bound(row(10)[0], PRIOR, form, parameters=12), expected)


def test_corrected_is_the_default_and_needs_no_number_of_parameters() -> None:
    assert close(error_bound(row(10), PRIOR), 1.3333333)
    with pytest.raises(ValueError, match="number of parameters"):
        error_bound(row(10), PRIOR, "as_printed")


def test_a_flat_prior_leaves_the_trace_alone() -> None:
    assert close(error_bound(row(10, 20, torch.inf), torch.zeros(3, 4).double()), 1.6, 0.8, 0)


@pytest.mark.parametrize(
    ("diagonal", "variance", "error", "bound"),
    [(row(1, 2), row(1, 4), 1, 1), (row(1, 3), row(1, 1), 0.6, 0.3333333)],
)
def test_exact_error(diagonal: torch.Tensor, variance: torch.Tensor, error: float, bound: float) -> None:
    """The first is tight: both directions are seen equally well."""
    assert close(linear_gaussian_error(torch.diag(diagonal), variance, torch.eye(2).double()), error)
    assert close(error_bound(information_trace(diagonal.square(), variance), row(1, 1)), bound)


def test_exact_error_is_that_of_the_posterior_mean() -> None:
    """Sampling the model and estimating; more estimation error with any other gain."""
    jacobian, variance, prior = normal(0, 3, 2), row(0.5, 1, 2), row(2, 0.3, 0.3, 1).view(2, 2)
    covariance = torch.linalg.inv(prior)
    x = normal(1, 200_000, 2) @ torch.linalg.cholesky(covariance).mT
    y = x @ jacobian.mT + variance.sqrt() * normal(2, 200_000, 3)
    gain = covariance @ jacobian.mT @ torch.linalg.inv(jacobian @ covariance @ jacobian.mT + torch.diag(variance))
    exact = float(linear_gaussian_error(jacobian, variance, prior))

    def error(gain: torch.Tensor) -> float:
        return float((y @ gain.mT - x).square().sum(dim=1).mean())

    assert error(gain) == pytest.approx(exact, rel=0.01)
    assert min(error(0.8 * gain), error(1.2 * gain)) > 1.02 * exact


numbers = st.floats(1e-2, 1e2)


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(1, 8), numbers, numbers)
def test_the_bound_never_exceeds_the_exact_error(seed: int, m: int, d: int, noise: float, ridge: float) -> None:
    jacobian, root = normal(seed, d, m), normal(seed + 1, m, m)
    variance = noise * normal(seed + 2, d).exp()
    prior = root.mT @ root + ridge * torch.eye(m).double()
    exact = linear_gaussian_error(jacobian, variance, prior) * (1 + 1e-9)
    trace, eigenvalues = information_trace(jacobian.square().sum(dim=1), variance), torch.linalg.eigvalsh(prior)
    assert error_bound(trace, eigenvalues) <= error_bound(trace, eigenvalues, "sharper") * (1 + 1e-9)
    assert error_bound(trace, eigenvalues, "sharper") <= exact


def test_mixed() -> None:
    traces, prior = row(2, 8), torch.full((4,), 0.5).double()
    assert close((error_bound(traces, prior.expand(2, 4)) / 2).sum(), 2.8)
    assert close(mixed_error_bound(traces, row(0.5, 0.5), prior), 2.2857143)
    assert close(mixed_error_bound(traces, row(0.5, 0.5), PRIOR, "sharper"), 16 / 6.1)


def test_what_is_never_drawn_does_not_count() -> None:
    assert close(mixed_error_bound(row(2, torch.inf), row(1, 0), PRIOR), float(error_bound(row(2), PRIOR)))
    assert close(mixed_error_bound(row(2, torch.inf), row(0.99, 0.01), PRIOR), 0)


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=5), numbers)
def test_mixing_never_lowers_the_bound(parts: list[tuple[float, float]], eigenvalue: float) -> None:
    traces, weights = torch.tensor(parts, dtype=torch.float64).unbind(dim=1)
    probabilities, prior = weights / weights.sum(), torch.full((3,), eigenvalue).double()
    separate = (probabilities * error_bound(traces, prior)).sum()
    assert separate >= mixed_error_bound(traces, probabilities, prior) * (1 - 1e-9)


def test_of_a_batch() -> None:
    jacobian, variance, root = normal(0, 4, 6, 3), normal(1, 4, 6).exp(), normal(2, 4, 3, 3)
    prior = root.mT @ root + torch.eye(3).double()
    eigenvalues, traces, chances = torch.linalg.eigvalsh(prior), normal(3, 4, 2).exp(), row(0.3, 0.7).expand(4, 2)
    exact, mixed = linear_gaussian_error(jacobian, variance, prior), mixed_error_bound(traces, chances, eigenvalues)
    bounds = error_bound(traces[:, 0], eigenvalues)
    for index in range(4):
        information = prior[index] + jacobian[index].mT @ torch.diag(1 / variance[index]) @ jacobian[index]
        assert close(exact[index], float(torch.linalg.inv(information).trace()))
        assert close(bounds[index], float(error_bound(traces[index, 0], eigenvalues[index])))
        assert close(mixed[index], float(mixed_error_bound(traces[index], row(0.3, 0.7), eigenvalues[index])))
