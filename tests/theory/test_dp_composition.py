"""Composition: printed numbers, exact binomials, rounds that differ."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.theory.vectors import close, row

from leakbench.errors import ConfigError
from leakbench.theory.dp_composition import (
    composed_delta,
    composed_round,
    composed_rounds,
    composition_terms,
    optimal_composition,
    optimal_epsilon,
)


def test_printed_numbers() -> None:
    assert composition_terms(0.1, 100, 1e-5) == pytest.approx((10, 5.29811533, 5.29810966), rel=1e-8)
    assert composed_round(0.1, 100, 1e-5) == pytest.approx(5.29810966, rel=1e-8)
    assert composed_delta(1e-6, 100, 1e-5) == pytest.approx(1.0999405e-4, rel=1e-7)
    assert optimal_epsilon(0.1, 1e-6, 100, 1.0999405e-4) == pytest.approx(4.4, rel=1e-9)
    epsilons, deltas = optimal_composition(1.0, 0.0, 2)
    assert close(epsilons, 2, 0) and close(deltas, 0, math.tanh(0.5)) and math.tanh(0.5) == pytest.approx(0.46211716)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 12), st.floats(0, 3), st.floats(0, 0.2))
def test_optimal_is_binomial(rounds: int, epsilon: float, delta: float) -> None:
    """Theorem 3.3 literally, in exact arithmetic of one float: ``e^epsilon``."""
    epsilons, deltas = optimal_composition(epsilon, delta, rounds)
    grown, kept = Fraction(math.exp(epsilon)), (1 - Fraction(delta)) ** rounds
    for i in range(rounds // 2 + 1):
        lost = (
            sum(
                math.comb(rounds, step) * (grown ** (rounds - step) - grown ** (rounds - 2 * i + step))
                for step in range(i)
            )
            / (1 + grown) ** rounds
        )
        assert float(epsilons[i]) == pytest.approx((rounds - 2 * i) * epsilon, rel=1e-12, abs=1e-12)
        assert float(deltas[i]) == pytest.approx(float(1 - kept * (1 - lost)), rel=1e-9, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 300), st.floats(0.001, 2), st.floats(-9, -3))
def test_optimal_is_best(rounds: int, epsilon: float, exponent: float) -> None:
    """At the delta of Theorem 3.4 the exact epsilon, on its grid of 2 epsilon, is not larger."""
    delta, slack = 10.0**exponent / rounds, 10.0**exponent
    exact = optimal_epsilon(epsilon, delta, rounds, composed_delta(delta, rounds, slack))
    assert exact <= composed_round(epsilon, rounds, slack) + 2 * epsilon


def test_many_rounds() -> None:
    """Nothing overflows where e^(T epsilon) does; deltas are a distribution's, and grow."""
    _, deltas = optimal_composition(1.0, 1e-9, 3000)
    assert deltas.isfinite().all() and (deltas.diff() >= -1e-15).all() and float(deltas[-1]) <= 1


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 500), st.floats(0, 4), st.floats(0, 0.01), st.floats(1e-9, 1))
def test_equal_rounds_are_a_case(rounds: int, epsilon: float, delta: float, slack: float) -> None:
    found = composed_rounds(torch.full((rounds,), epsilon).double(), torch.full((rounds,), delta).double(), slack)
    assert found[0] == pytest.approx(composed_round(float(torch.tensor(epsilon)), rounds, slack), rel=1e-5, abs=1e-12)
    assert found[1] == pytest.approx(composed_delta(delta, rounds, slack), rel=1e-5, abs=1e-12)


def test_rounds_that_differ() -> None:
    epsilons, deltas, slack = row(0.1, 0.5, 0.02), row(1e-6, 0, 1e-5), 1e-4
    drift = sum(e * (math.exp(e) - 1) / (math.exp(e) + 1) for e in epsilons.tolist())
    square = sum(e * e for e in epsilons.tolist())
    second = drift + math.sqrt(2 * square * math.log(math.e + math.sqrt(square) / slack))
    expected = min(0.62, second, drift + math.sqrt(2 * square * math.log(1 / slack)))
    kept = (1 - 1e-6) * (1 - 1e-5) * (1 - slack)
    assert composed_rounds(epsilons, deltas, slack) == pytest.approx((expected, 1 - kept), rel=1e-9)
    assert composed_rounds(row(0.1), row(0.0), 1.0)[1] == 1 == composed_delta(0.0, 3, 1.0)


def test_errors() -> None:
    for slack in (0.0, 1.1, math.nan):
        with pytest.raises(ConfigError, match="slack"):
            composed_round(0.1, 10, slack)
        with pytest.raises(ConfigError, match="slack"):
            composed_rounds(row(0.1), row(0), slack)
    for rounds in (0, -1):
        with pytest.raises(ConfigError, match="rounds"):
            composed_delta(0.1, rounds, 0.1)
        with pytest.raises(ConfigError, match="rounds"):
            optimal_composition(0.1, 0.1, rounds)
    for epsilon, delta in ((-0.1, 0.0), (math.inf, 0.0), (0.1, 1.0), (0.1, -0.1), (math.nan, 0.0)):
        with pytest.raises(ConfigError, match="finite epsilons"):
            optimal_composition(epsilon, delta, 3)
        with pytest.raises(ConfigError, match="finite epsilons"):
            composed_rounds(row(epsilon), row(delta), 0.1)
    with pytest.raises(ConfigError, match="an epsilon and a delta per round"):
        composed_rounds(row(0.1, 0.2), row(0.1), 0.1)
    with pytest.raises(ConfigError, match="above 1e-06"):
        optimal_epsilon(0.1, 1e-6, 100, 1e-6)
