"""Communication cost of a message, in the units that papers print."""

from __future__ import annotations

FLOAT_BITS = 32


def megabits(bits: float) -> float:
    """Millions of bits."""
    return bits / 1e6


def mebi_elements(bits: float) -> float:
    """Units of ``2^20`` 32-bit floats: what the tables of Deng et al. (2024) call "Mb".

    It is neither megabits nor megabytes: ResNet18 with its BatchNorm statistics, 11,183,582 numbers, is 10.6655, and
    the same in 16 bits half of it.
    """
    return bits / FLOAT_BITS / 2**20
