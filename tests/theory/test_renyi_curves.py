"""Curves over orders: their best order against a dense grid, composition, conversion."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.errors import ConfigError, Infeasible
from leakbench.theory.dp_capacity import Conversion
from leakbench.theory.renyi_curves import (
    RenyiCurve,
    converted,
    linear_curve,
    pole_curve,
    repaired_curve,
)

CURVES = st.one_of(
    st.builds(lambda slope: linear_curve("linear", 10.0**slope), st.floats(-8, 2)),
    st.builds(
        lambda pole, mean, spread, part: pole_curve(
            "pole", 1 + 10.0**pole, 10.0**mean, spread, None if part > 1 else 1 + part * 10.0**pole
        ),
        st.floats(-2, 5), st.floats(-4, 2), st.floats(0, 2), st.floats(0.01, 3),
    ),
    st.builds(
        lambda slope, change, weight: repaired_curve("repaired", 10.0**slope, 10.0**change, weight),
        st.floats(-8, 2), st.floats(-6, -0.001), st.sampled_from([0.25, 0.5]),
    ),
)  # fmt: skip


def on_a_grid(curve: RenyiCurve, delta: float, rounds: float, conversion: Conversion) -> float:
    """The least epsilon over many orders, one by one."""
    end = min(math.log(1e12), math.log(curve.limit - 1) - 1e-9)
    orders = 1 + np.exp(np.linspace(min(-14, end - 14), end, 4000))
    return min(converted(rounds * curve.epsilon(float(a)), float(a), delta, conversion) for a in orders)


def test_conversion() -> None:
    assert converted(0.5, 8, 1e-4) == pytest.approx(1.81576291, rel=1e-8)
    assert converted(0.5, 8, 1e-4, "improved") == pytest.approx(1.38516844, rel=1e-8)
    assert converted(0.0, 100.0, 0.5, "improved") == 0.0


@settings(max_examples=40, deadline=None)
@given(CURVES, st.floats(-10, -0.5), st.sampled_from([1, 100]), st.sampled_from(["classical", "improved"]))
def test_best_order(curve: RenyiCurve, exponent: float, rounds: int, conversion: Conversion) -> None:
    delta = 10.0**exponent
    found, expected = curve.guarantee(delta, rounds, conversion), on_a_grid(curve, delta, rounds, conversion)
    assert found.delta == delta and 1 < found.order <= curve.limit
    assert expected * (1 - 1e-3) - 1e-9 <= found.epsilon <= expected * (1 + 1e-9) + 1e-12
    if found.order < curve.limit:
        at = converted(rounds * curve.epsilon(found.order), found.order, delta, conversion)
        assert found.epsilon == pytest.approx(at, rel=1e-12)


def test_closed_forms() -> None:
    """``c a + L / (a - 1)`` is least at ``c + 2 sqrt(c L)``; with a pole, what partial fractions say."""
    slope, weight = 200 / (1200**2 * 2.5), math.log(1e4)
    found = linear_curve("linear", slope).guarantee(1e-4)
    assert found.epsilon == pytest.approx(slope + 2 * math.sqrt(slope * weight), rel=1e-12)
    assert found.order == pytest.approx(1 + math.sqrt(weight / slope), rel=1e-12)
    pole, mean, spread = 50.0, 0.16, 1.0
    far, near = pole * (mean + spread / 49), spread / 49 + weight
    least = (math.sqrt(far) + math.sqrt(near)) ** 2 / 49 - mean
    assert pole_curve("pole", pole, mean, spread).guarantee(1e-4).epsilon == pytest.approx(least, rel=1e-12)


def test_end_of_the_orders() -> None:
    """A bound that is proved for few orders only is taken at their end."""
    short = pole_curve("short", 1000.0, 0.05, 1.0, 15.0)
    found = short.guarantee(1e-4)
    assert found.order == 15.0 and found.epsilon > pole_curve("long", 1000.0, 0.05, 1.0).guarantee(1e-4).epsilon
    assert short.guarantee(1e-4, conversion="improved").order == pytest.approx(15, rel=1e-6)


def test_rounds_compose() -> None:
    curve = repaired_curve("repaired", 1e-4, 1e-3, 0.25)
    ten = curve.guarantee(1e-5, 10)
    assert ten.epsilon == pytest.approx(10 * curve.epsilon(ten.order) - math.log(1e-5) / (ten.order - 1), rel=1e-12)
    assert curve.guarantee(1e-5).epsilon < ten.epsilon < 10 * curve.guarantee(1e-5).epsilon


def test_errors() -> None:
    curve = pole_curve("Theorem 2", 50.0, 0.16, 1.0)
    for order in (1.0, 0.0, 50.0, 60.0, math.nan):
        with pytest.raises(ConfigError, match=r"Theorem 2 holds for orders alpha in \(1, 50\)"):
            curve.epsilon(order)
    with pytest.raises(ConfigError, match=r"\(1, inf\)"):
        linear_curve("linear", 1.0).epsilon(math.inf)
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(ConfigError, match="delta must lie"):
            curve.guarantee(delta)
        with pytest.raises(ConfigError, match="delta must lie"):
            converted(1.0, 2.0, delta)
    with pytest.raises(ConfigError, match="rounds"):
        curve.guarantee(0.1, 0)
    for divergence, order in ((-1.0, 2.0), (math.inf, 2.0), (1.0, 1.0)):
        with pytest.raises(ConfigError, match="the order must exceed 1"):
            converted(divergence, order, 0.1)
    with pytest.raises(Infeasible, match=r"alpha must lie in \(1, 0.9\)"):
        pole_curve("Theorem 4", 0.9, 0.1, 1.0)
    with pytest.raises(Infeasible, match=r"r = 1\.5"):
        repaired_curve("repaired", 1.0, 1.5, 0.5)
