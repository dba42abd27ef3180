"""Bounds of gates."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from leakbench.gates import GateSpec

numbers = st.floats(-1e6, 1e6)


@given(bound=numbers, quality=numbers)
def test_a_bound_is_reached_or_not(bound: float, quality: float) -> None:
    lower, upper = GateSpec(metric="psnr", at_least=bound), GateSpec(metric="mse", at_most=bound)
    assert lower.passes(bound) and upper.passes(bound)
    assert lower.passes(quality) == (quality >= bound)
    assert upper.passes(quality) == (quality <= bound)
    assert not lower.passes(math.nan) and not upper.passes(math.nan)


def test_bounds_in_words() -> None:
    assert GateSpec(metric="psnr", at_least=18).bound == ">= 18"
    assert GateSpec(metric="mse", at_most=0.0).bound == "<= 0"
    assert GateSpec(metric="mse", at_most=0.05).bound == "<= 0.05"


@pytest.mark.parametrize("bounds", [{}, {"at_least": 1.0, "at_most": 2.0}, {"at_least": math.inf}])
def test_bounds_that_are_none(bounds: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        GateSpec(metric="psnr", **bounds)
