"""Fixed-point integers modulo 2^w against Python's integers."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.ring import Ring

WIDTHS = st.sampled_from([32, 64])


def test_small_vectors() -> None:
    ring = Ring(width=32, fraction_bits=2)
    words = ring.encode(np.array([0.0, 1.0, -1.0, 0.3, -0.125, 0.375]), users=3)
    assert words.dtype == np.uint32 and words.tolist() == [0, 4, 2**32 - 4, 1, 0, 2]
    assert ring.decode(words).tolist() == [0.0, 1.0, -1.0, 0.25, 0.0, 0.5]
    clipped = Ring(width=32, fraction_bits=2, clip=0.5).encode(np.array([-9.0, 0.5, 0.25]), users=3)
    assert clipped.astype(np.int32).tolist() == [-2, 2, 1]


@given(
    WIDTHS, st.integers(0, 20), st.lists(st.lists(st.floats(-500, 500), min_size=3, max_size=3), min_size=1, max_size=4)
)
def test_sums_are_those_of_rounded_values(width: Literal[32, 64], bits: int, vectors: list[list[float]]) -> None:
    ring = Ring(width=width, fraction_bits=bits)
    total = ring.encode(np.array(vectors), users=len(vectors)).sum(axis=0, dtype=ring.dtype)
    exact = [
        sum(Fraction(round(Fraction(value) * 2**bits), 2**bits) for value in column)
        for column in zip(*vectors, strict=True)
    ]
    assert [Fraction(value) for value in ring.decode(total)] == exact


@given(WIDTHS, st.data())
def test_addition_is_modulo_a_power_of_two(width: Literal[32, 64], data: st.DataObject) -> None:
    numbers = st.lists(st.integers(0, 2**width - 1), min_size=4, max_size=4)
    left, right = data.draw(numbers), data.draw(numbers)
    ring = Ring(width=width)
    ours = np.array(left, dtype=ring.dtype) + np.array(right, dtype=ring.dtype)
    assert ours.tolist() == [(a + b) % 2**width for a, b in zip(left, right, strict=True)]


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize("users", [2, 3, 50])
def test_the_limit_is_the_last_value_that_cannot_wrap(width: Literal[32, 64], users: int) -> None:
    ring = Ring(width=width, fraction_bits=0)
    limit = ring.largest(users)
    assert users * limit <= 2 ** (width - 1) - 1 < users * (limit + 1)
    nearest = float(limit)  # which for 64 bits is no float64 itself
    below = float(np.nextafter(nearest, 0)) if nearest > limit else nearest
    beyond = float(np.nextafter(below, np.inf)) if width == 64 else float(limit + 1)
    assert int(below) <= limit < int(beyond)
    for sign in (-1, 1):
        total = ring.encode(np.full((users, 1), sign * below), users).sum(axis=0, dtype=ring.dtype)
        assert ring.decode(total).tolist() == [float(sign * users * int(below))]
        with pytest.raises(Infeasible, match=rf"a sum of {users} vectors of {width} bits .* holds values up to"):
            ring.encode(np.array([0.0, sign * beyond]), users)


def test_values_beyond_float64() -> None:
    with pytest.raises(Infeasible, match="overflows"):
        Ring(width=64, fraction_bits=40).encode(np.array([1e308]), 2)
    assert Ring(width=64, fraction_bits=40, clip=1.0).encode(np.array([1e308]), 2).tolist() == [2**40]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(bad: float) -> None:
    for clip in (None, 1.0):
        with pytest.raises(Infeasible, match="not finite"):
            Ring(clip=clip).encode(np.array([0.0, bad]), 2)


def test_bad_parameters() -> None:
    with pytest.raises(ConfigError, match="a ring of 16 bits; there are 32 and 64"):
        Ring(width=16)  # type: ignore[arg-type]
    for bits in (-1, 31):
        with pytest.raises(ConfigError, match=f"{bits} fraction bits of 32; they are 0 to 30"):
            Ring(fraction_bits=bits)
    for clip in (0.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="clip"):
            Ring(clip=clip)
    with pytest.raises(ConfigError, match="a sum of 0 vectors"):
        Ring().encode(np.zeros(3), 0)
