"""Bits that a client sends in a round, by mechanism, of an update of d coordinates.

They are those of the messages of the mechanisms here, in expectation where they are random (the number of coordinates
of a sparse update). Zhang, Kang et al. (2023) bound costs by the distance of two laws and count none of these.
"""

from __future__ import annotations

import math

FLOAT_BITS = 32
SEED_BITS = 64
"""Size of a seed that stands for a random mask."""


def plain_bits(d: int) -> float:
    """``32 d``: floats, undefended or with noise."""
    return FLOAT_BITS * d


def paillier_bits(d: int, key_bits: int, slots: int) -> float:
    """``2 log2(n) ceil(d / slots)``: each ciphertext is a number modulo ``n^2``.

    Args:
        d: number of coordinates.
        key_bits: of the modulus n.
        slots: values in a plaintext; see :func:`paillier_slots`.
    """
    return 2 * key_bits * math.ceil(d / slots)


def paillier_slots(key_bits: int, clients: int, fraction_bits: int = 32, integer_bits: int = 8) -> int:
    """``floor((log2(n) - 1) / (f + 8 + ceil(log2 K)))``: values in a plaintext, with room for sums of K."""
    return (key_bits - 1) // (fraction_bits + integer_bits + math.ceil(math.log2(clients)))


def sharing_bits(d: int, clients: int, width: int = 64) -> float:
    """``64 d (K - 1) + 64 d``: additive shares to all other clients, and a sum of shares to the server."""
    return width * d * (clients - 1) + width * d


def mask_bits(d: int, bound: float, fraction_bits: int = 32) -> float:
    """``d log2(2 r 2^f)``: a mask on the multiples of ``2^-f`` in ``[-r, r)``, which one client sends to another.

    Args:
        d: number of coordinates.
        bound: r.
        fraction_bits: f.
    """
    return d * math.log2(2 * bound * 2.0**fraction_bits)


def index_bits(d: int) -> int:
    """``ceil(log2 d)``: bits of the index of a coordinate; at least 1."""
    return max(1, math.ceil(math.log2(d)))


def sparse_bits(d: int, keep: float) -> float:
    """``min(rho d (32 + ceil(log2 d)), 32 rho d + 64)``: floats with their indices, or with the seed of the mask.

    >>> sparse_bits(1000, keep=0.1), plain_bits(1000)
    (3264.0, 32000)

    Args:
        d: number of coordinates.
        keep: rho, the part of the coordinates that are kept.
    """
    return min(keep * d * (FLOAT_BITS + index_bits(d)), FLOAT_BITS * keep * d + SEED_BITS)
