"""Shamir's sharing: any t shares give the secret, t - 1 give nothing."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.secret_sharing import PRIME, combine, share, weights_at_zero

SECRETS = st.binary(min_size=32, max_size=32)


def entropy(seed: int = 0) -> random.Random:
    return random.Random(seed)


def test_the_field_is_the_smallest_that_holds_every_secret() -> None:
    """By Fermat's test, which no composite below passes, and which four bases pass here."""
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7))
    assert not any(pow(3, number - 1, number) == 1 for number in range(2**256, PRIME))


def test_any_three_of_five() -> None:
    secret = bytes(range(32))
    shares = share(secret, 3, [1, 2, 3, 4, 9], entropy().randbytes)
    assert len(set(shares)) == 5
    held = dict(zip([1, 2, 3, 4, 9], shares, strict=True))
    for points in itertools.permutations(held, 3):
        assert combine({point: held[point] for point in points}, 3) == secret
    assert combine(held, 3) == combine(held, 3, weights_at_zero([1, 2, 3])) == secret
    with pytest.raises(Infeasible, match=r"2 share\(s\) of a secret that takes 3"):
        combine({point: held[point] for point in (1, 9)}, 3)


def test_a_polynomial_by_hand() -> None:
    """With coefficients 5 and 7, the share at x is 2 + 7 x + 5 x^2."""
    drawn = iter([(5).to_bytes(49), (7).to_bytes(49)])
    shares = share((2).to_bytes(32), 3, [1, 2, 10], lambda _: next(drawn))
    assert shares == [14, 36, 572]


@settings(max_examples=30, deadline=None)
@given(SECRETS, SECRETS, st.integers(2, 6), st.integers(0, 2**32))
def test_fewer_shares_fit_every_secret(secret: bytes, other: bytes, threshold: int, seed: int) -> None:
    """One more share can be chosen so that t - 1 of them give any other secret: they say nothing of the true one."""
    points = list(range(1, threshold + 1))
    shares = dict(zip(points, share(secret, threshold, points, entropy(seed).randbytes), strict=True))
    assert combine(shares, threshold) == secret
    weights = weights_at_zero(points)
    rest = sum(weight * shares[point] for weight, point in zip(weights[:-1], points[:-1], strict=True))
    shares[points[-1]] = (int.from_bytes(other) - rest) * pow(weights[-1], -1, PRIME) % PRIME
    assert combine(shares, threshold) == other


def test_an_altered_share_gives_no_secret_of_ours() -> None:
    points, secret = [1, 2], bytes([1] * 32)
    shares = dict(zip(points, share(secret, 2, points, entropy().randbytes), strict=True))
    shares[1] ^= 1
    assert combine(shares, 2) != secret
    with pytest.raises(Infeasible, match="not of one secret"):
        combine({1: PRIME - 1, 2: PRIME - 1}, 2)


@pytest.mark.parametrize(
    ("secret", "threshold", "points", "message"),
    [
        (bytes(31), 2, [1, 2], "a secret of 31 bytes; secrets have 32"),
        (bytes(32), 3, [1, 2], "threshold 3 of 2 shares; it is from 1 to 2"),
        (bytes(32), 0, [1, 2], "threshold 0"),
        (bytes(32), 2, [1, 1], "distinct"),
        (bytes(32), 2, [0, 1], "the secret lies at zero"),
    ],
)
def test_bad_input(secret: bytes, threshold: int, points: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        share(secret, threshold, points, entropy().randbytes)
    with pytest.raises(ConfigError, match="not distinct"):
        weights_at_zero([3, 3])
