"""What random probes are worth, against scipy and sampling."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.special import chdtr
from tests.theory.vectors import close, normal

from leakbench.papers.optimal_defense.theory.noise_budget import minimal_trace, optimal_variance
from leakbench.papers.optimal_defense.theory.probes import (
    chebyshev_coverage,
    exact_coverage,
    mean_power,
    relative_std,
    trace_penalty,
)
from leakbench.theory.fisher import information_trace


@pytest.mark.parametrize(
    ("probes", "tolerance", "bound", "exact"),
    [(10, 0.5, 0.2, 0.759116), (10, 1, 0.8, 0.970747), (10, 0.25, 0, 0.424562), (100, 0.5, 0.92, 0.999089)],
)
def test_coverage(probes: int, tolerance: float, bound: float, exact: float) -> None:
    assert close(chebyshev_coverage(probes, tolerance), bound)
    assert close(exact_coverage(probes, tolerance), exact)


def test_coverage_is_that_of_the_chi_square_law() -> None:
    for probes in (1, 2, 5, 10, 50):
        for tolerance in (0.1, 0.5, 0.99, 1.0, 3.0):
            ends = (probes * max(0.0, 1 - tolerance), probes * (1 + tolerance))
            assert close(exact_coverage(probes, tolerance), chdtr(probes, ends[1]) - chdtr(probes, ends[0]), rel=1e-9)
            assert chebyshev_coverage(probes, tolerance) <= exact_coverage(probes, tolerance)


def test_spread_and_bias() -> None:
    assert close(relative_std(10), 0.4472136)
    assert close(mean_power(10, 1), 1) and close(mean_power(10, 2), 1 + relative_std(10) ** 2)
    assert close(mean_power(10, 0.5), 0.97535, rel=1e-5)
    assert mean_power(2, -1) == mean_power(1, -0.5) == math.inf


@pytest.mark.parametrize(("probes", "penalty"), [(10, 1.0570), (20, 1.0267), (5, 1.1318), (2, 1.5708)])
def test_penalty(probes: int, penalty: float) -> None:
    assert close(trace_penalty(probes), penalty, rel=5e-5)


def test_one_probe_has_no_finite_penalty() -> None:
    assert trace_penalty(1) == math.inf


@pytest.mark.parametrize("probes", [5, 10])
def test_sampling_agrees(probes: int) -> None:
    s = normal(0, probes, 200_000).square().mean(dim=0)
    assert close(s.mean(), 1, rel=0.01) and close(s.std(), relative_std(probes), rel=0.01)
    for power in (0.5, -0.5):
        assert close((s**power).mean(), mean_power(probes, power), rel=0.01)
    assert float(((s - 1).abs() <= 0.5).double().mean()) == pytest.approx(exact_coverage(probes, 0.5), abs=0.005)


def test_penalty_is_what_estimated_noise_costs() -> None:
    a, b = normal(0, 100_000).exp(), normal(1, 100_000).exp()
    estimate = a * normal(2, 10, 100_000).square().mean(dim=0)
    cost = information_trace(a, optimal_variance(estimate, b, 1.0)) / minimal_trace(a, b, 1.0)
    assert float(cost) == pytest.approx(trace_penalty(10), abs=0.01)
    assert torch.isclose(cost, information_trace(a, optimal_variance(3 * estimate, b, 1.0)) / minimal_trace(a, b, 1.0))
