"""Leakage between beliefs: printed numbers, literal sums, inequalities on random models."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.theory.vectors import close, row

from leakbench.errors import ConfigError
from leakbench.theory.leakage_surrogate import (
    LARGEST_LEAKAGE,
    amplification,
    efficiency_loss_bound,
    js_divergence,
    largest_log_ratio,
    leakage,
    leakage_bounds,
    leakage_metric,
    printed_bound,
    total_variation,
    utility_loss_bound,
)


def literal_js(p: list[float], q: list[float]) -> float:
    """The definition, with 0 log 0 = 0."""
    found = 0.0
    for a, b in zip(p, q, strict=True):
        for one in (a, b):
            if one > 0:
                found += one * math.log(one / ((a + b) / 2)) / 2
    return found


laws = st.integers(2, 6).flatmap(
    lambda size: st.lists(st.lists(st.floats(0, 1), min_size=size, max_size=size).filter(sum), min_size=3, max_size=3)
)


def normalised(values: list[float]) -> torch.Tensor:
    found = row(*values)
    return found / found.sum()


def test_printed_numbers() -> None:
    assert close(js_divergence(row(0.5, 0.5), row(0.9, 0.1)), 0.1017492251, rel=1e-9)
    assert close(leakage(row(0.5, 0.5), row(0.9, 0.1)), 0.3189815435, rel=1e-9)
    assert close(leakage(row(1, 0), row(0, 1)), 0.8325546112, rel=1e-10)
    assert math.isclose(LARGEST_LEAKAGE, 0.8325546112, rel_tol=1e-10)


@settings(deadline=None)
@given(laws)
def test_definition_and_metric(drawn: list[list[float]]) -> None:
    p, q, r = (normalised(values) for values in drawn)
    found = float(js_divergence(p, q))
    assert found == pytest.approx(literal_js(p.tolist(), q.tolist()), rel=1e-9, abs=1e-15)
    assert 0 <= found <= math.log(2) * (1 + 1e-12)
    assert found == float(js_divergence(q, p)) and float(js_divergence(p, p)) == 0
    assert leakage(p, r) <= leakage(p, q) + leakage(q, r) + 1e-12


def test_close_laws_keep_their_digits() -> None:
    """JS of (1 +- t) / 2 to uniform is t^2 / 8 + O(t^4)."""
    t = 1e-9
    assert close(js_divergence(row(0.5 + t / 2, 0.5 - t / 2), row(0.5, 0.5)), t * t / 8, rel=1e-6)


def test_batches() -> None:
    p, q = torch.rand(3, 4, 5, dtype=torch.float64), torch.rand(4, 5, dtype=torch.float64)
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    found = js_divergence(p, q)
    assert found.shape == (3, 4)
    assert float(found[1, 2]) == pytest.approx(float(js_divergence(p[1, 2], q[2])), rel=1e-15)
    assert total_variation(p, q).shape == (3, 4)


CONDITIONAL, PRIOR, BEFORE = row(0.4, 0.6, 0.6, 0.4).view(2, 2), row(0.5, 0.5), row(0.4, 0.6)


def test_theorem_4_1_fails() -> None:
    """The counterexample: two uploads, two candidates."""
    xi = largest_log_ratio(CONDITIONAL, PRIOR)
    c2, c1 = amplification(xi), leakage(BEFORE @ CONDITIONAL, PRIOR)
    assert close(xi, 0.2231435513, rel=1e-9) and close(c2, 0.28125) and close(c1, 0.0141454374, rel=1e-8)
    for after, true, metric in ((row(0.3625, 0.6375), 0.0194540244, 0.0177439998), (row(0.3, 0.7), 0.0283107326, None)):
        variation = total_variation(BEFORE, after)
        x = c2 * variation
        found = leakage(after @ CONDITIONAL, PRIOR)
        assert close(found, true, rel=1e-8)
        if metric:
            assert close(variation, 0.0375) and close(x, 0.010546875)
            assert close(leakage_metric(c1, c2, variation), metric, rel=1e-8)
            assert close(printed_bound(c1, x), metric, rel=1e-8) and close(printed_bound(c1, x, "eq4"), metric)
            assert c1 / 2 < x < c1 and found > metric
            low, high = leakage_bounds(c1, x)
            assert close(low, 0.0035985624, rel=1e-7) and close(high, 0.0246923124, rel=1e-8)
        else:
            assert close(leakage_metric(c1, c2, variation), 0.0001658748, rel=1e-6)


def test_printed_bound_has_two_forms() -> None:
    x = row(0.2, 0.74, 0.76, 0.99, 1.0, 1.01)
    assert close(printed_bound(1.0, x), 1.8, 1.26, 1.28, 1.97, 2.0, 2.03)
    assert close(printed_bound(1.0, x, "eq4"), 1.8, 1.26, 1.24, 1.01, 1.0, 2.03)


def test_bounds_on_utility_and_cost() -> None:
    assert close(utility_loss_bound(row(0.1, 1.0), 0.5), 0.05, 0.5) and close(efficiency_loss_bound(0.2, 30.0), 6)
    assert close(utility_loss_bound(0.25), 0.25) and close(efficiency_loss_bound(0.25), 0.25)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(2, 5))
def test_beliefs_move_with_uploads(seed: int, uploads: int, candidates: int) -> None:
    """Lemma E.4, and the bounds that follow, on discrete models by the definition."""
    drawn = torch.Generator().manual_seed(seed)
    law = torch.rand(3, uploads, generator=drawn, dtype=torch.float64)
    conditional = torch.rand(uploads, candidates, generator=drawn, dtype=torch.float64) + 0.01
    conditional /= conditional.sum(-1, keepdim=True)
    before, after, mix = law / law.sum(-1, keepdim=True)
    prior = mix @ conditional
    xi = largest_log_ratio(conditional, prior)
    ratios = [abs(math.log(float(conditional[w, d] / prior[d]))) for w in range(uploads) for d in range(candidates)]
    assert float(xi) == pytest.approx(max(ratios), rel=1e-12)
    x = amplification(xi) * total_variation(before, after)
    assert leakage(after @ conditional, before @ conditional) <= x + 1e-12
    low, high = leakage_bounds(leakage(before @ conditional, prior), x)
    assert low - 1e-12 <= leakage(after @ conditional, prior) <= high + 1e-12


def test_impossible_candidates() -> None:
    assert float(largest_log_ratio(row(1, 0).view(1, 2), row(0.5, 0.5))) == math.inf
    assert close(largest_log_ratio(row(0.8, 0.2, 0).view(1, 3), row(0.5, 0.5, 0)), math.log(2.5))
    assert float(amplification(math.inf)) == math.inf


def test_errors() -> None:
    with pytest.raises(ConfigError, match="negative or not finite"):
        js_divergence(row(-0.1, 1.1), row(0.5, 0.5))
    with pytest.raises(ConfigError, match="negative or not finite"):
        leakage(row(math.nan, 1), row(0.5, 0.5))
    with pytest.raises(ConfigError, match=r"sum to 1, found a sum that is off by 0\.1"):
        leakage(row(0.6, 0.5), row(0.5, 0.5))
    with pytest.raises(ConfigError, match="C2 must be positive"):
        leakage_metric(0.1, 0.0, 0.1)
    with pytest.raises(ConfigError, match="C1 must not be negative"):
        leakage_bounds(-0.1, 0.1)
    with pytest.raises(ConfigError, match="total variation must not be negative"):
        utility_loss_bound(row(0.1, -0.1))
    with pytest.raises(ConfigError, match="xi must not be negative"):
        amplification(math.nan)
