"""Shamir's secret sharing: any ``t`` of ``n`` holders recover a secret, and fewer learn nothing of it.

The secret is the value at zero of a random polynomial of degree ``t - 1`` over a prime field, a holder's share its
value at the holder's point. Source: Shamir (1979), "How to share a secret".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from leakbench.errors import ConfigError, Infeasible

SECRET_BYTES = 32
PRIME = 2**256 + 297
"""The field: the smallest prime that every secret of 32 bytes is below."""
SHARE_BYTES = 33
Entropy = Callable[[int], bytes]
"""Returns a number of random bytes, as ``os.urandom`` does."""


def share(secret: bytes, threshold: int, points: Sequence[int], entropy: Entropy) -> list[int]:
    """One share per point, each in ``[0, PRIME)``.

    Args:
        secret: 32 bytes.
        threshold: number of shares that recover it, t; at least 1 and at most the number of points.
        points: the holders', distinct and from 1 on.
        entropy: source of the polynomial.

    Raises:
        ConfigError: another length of the secret, a threshold out of range, points that are not distinct or below 1.
    """
    if len(secret) != SECRET_BYTES:
        raise ConfigError(f"a secret of {len(secret)} bytes; secrets have {SECRET_BYTES}")
    if not 1 <= threshold <= len(points):
        raise ConfigError(f"threshold {threshold} of {len(points)} shares; it is from 1 to {len(points)}")
    if len(set(points)) != len(points) or not all(0 < point < PRIME for point in points):
        raise ConfigError(f"points {list(points)}; they are distinct and from 1 on, since the secret lies at zero")
    # 16 bytes more than the prime's: the remainder is uniform up to 2^-128.
    drawn = [int.from_bytes(entropy(SECRET_BYTES + 17)) % PRIME for _ in range(threshold - 1)]
    shares = []
    for point in points:
        value = 0
        for coefficient in drawn:  # Horner's rule, from the highest power down
            value = (value + coefficient) * point % PRIME
        shares.append((value + int.from_bytes(secret)) % PRIME)
    return shares


def weights_at_zero(points: Sequence[int]) -> list[int]:
    """Lagrange weights of shares at distinct points; the same for every secret.

    Raises:
        ConfigError: points that are not distinct.
    """
    if len(set(points)) != len(points):
        raise ConfigError(f"points {list(points)} are not distinct")
    weights = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above, below = above * other % PRIME, below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def combine(shares: Mapping[int, int], threshold: int, weights: Sequence[int] | None = None) -> bytes:
    """The secret behind at least ``threshold`` shares, by point; the first ``threshold`` of them are used.

    Args:
        shares: by the point of their holder.
        threshold: with which the secret was shared.
        weights: :func:`weights_at_zero` of those first points, if already computed.

    Raises:
        Infeasible: too few shares, or shares of no secret of 32 bytes (altered, or of another threshold).
    """
    if len(shares) < threshold:
        raise Infeasible(f"{len(shares)} share(s) of a secret that takes {threshold}")
    used = list(shares.items())[:threshold]
    weights = weights_at_zero([point for point, _ in used]) if weights is None else weights
    value = sum(weight * share for weight, (_, share) in zip(weights, used, strict=True)) % PRIME
    if value >= 2 ** (8 * SECRET_BYTES):
        raise Infeasible("these shares are not of one secret")
    return value.to_bytes(SECRET_BYTES)
