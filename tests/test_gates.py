"""Margins of gates."""

from __future__ import annotations

import math

import pytest
from pydantic import ValidationError

from leakbench.gates import GateSpec


def test_the_reference_is_the_mean_image_unless_another_is_named() -> None:
    assert GateSpec(metric="psnr", margin=3.0).reference == "mean_image"
    assert GateSpec(metric="rouge1", margin=20.0, reference="frequent_words").reference == "frequent_words"


@pytest.mark.parametrize("margin", [0.0, -3.0, math.inf, math.nan])
def test_margins_that_are_none(margin: float) -> None:
    with pytest.raises(ValidationError):
        GateSpec(metric="psnr", margin=margin)
