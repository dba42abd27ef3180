"""The best ROC curve that (epsilon, delta) leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from leakbench.errors import ConfigError
from leakbench.theory.membership_bound import auc_bound, true_positive_bound

EPSILONS, DELTAS = st.floats(0, 20), st.floats(0, 1)


@given(EPSILONS, DELTAS)
def test_the_area_is_that_under_the_curve(epsilon: float, delta: float) -> None:
    # The curve is piecewise linear, with corners at 0, where the lines cross, and where it reaches 1.
    corners = [0.0, (1 - delta) / (1 + math.exp(epsilon)), 1 - delta, 1.0]
    curve = [true_positive_bound(epsilon, delta, corner) for corner in corners]
    assert auc_bound(epsilon, delta) == pytest.approx(np.trapezoid(curve, corners), abs=1e-9)


@given(EPSILONS, DELTAS, st.floats(0, 1))
def test_the_curve_is_what_the_definition_allows(epsilon: float, delta: float, rate: float) -> None:
    """Both ways: Pr[S | with] <= e^epsilon Pr[S | without] + delta, and for the complement with the roles swapped."""
    found = true_positive_bound(epsilon, delta, rate)
    allowed = min(1.0, math.exp(epsilon) * rate + delta, 1 - math.exp(-epsilon) * (1 - rate - delta))
    assert found == pytest.approx(allowed, abs=1e-12)
    assert found >= rate - 1e-12


def test_ends() -> None:
    assert auc_bound(0, 0) == 0.5
    assert auc_bound(math.inf, 0) == auc_bound(0, 1) == auc_bound(900, 0) == 1
    assert auc_bound(1, 0) == pytest.approx(math.e / (1 + math.e))
    assert true_positive_bound(math.log(3), 0.1, 0.2) == pytest.approx(0.7)
    assert true_positive_bound(900, 0, 0.01) == 1


def test_randomised_response_reaches_it() -> None:
    """It tells the truth with probability e^epsilon / (1 + e^epsilon), which is its area too."""
    epsilon = 1.3
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert auc_bound(epsilon, 0) == pytest.approx(truth * truth + truth * (1 - truth))
    assert true_positive_bound(epsilon, 0, 1 - truth) == pytest.approx(truth)


def test_the_gaussian_mechanism_stays_below() -> None:
    """Of sensitivity 1 and noise sigma: AUC Phi(1 / (sigma sqrt(2))), delta by Balle and Wang (2018)."""
    for sigma in (0.5, 1.0, 3.0):
        area = norm.cdf(1 / (sigma * math.sqrt(2)))
        for epsilon in (0.1, 1.0, 4.0):
            middle = epsilon * sigma
            delta = norm.cdf(0.5 / sigma - middle) - math.exp(epsilon) * norm.cdf(-0.5 / sigma - middle)
            assert area <= auc_bound(epsilon, delta) + 1e-12


@pytest.mark.parametrize(("epsilon", "delta"), [(-1, 0), (1, -0.1), (1, 1.1), (math.nan, 0)])
def test_out_of_range(epsilon: float, delta: float) -> None:
    with pytest.raises(ConfigError):
        auc_bound(epsilon, delta)
    with pytest.raises(ConfigError):
        true_positive_bound(epsilon, delta, 0.1)
    with pytest.raises(ConfigError, match="false positives"):
        true_positive_bound(1, 0, 1.5)
