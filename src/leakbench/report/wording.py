"""Numbers, settings and repeated sentences as text: for tables, captions and notes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

NONE = "–"
"""Cell of a table for which there is no number."""

OF_SEEDS = "95 % t-intervals over seeds; of two seeds, their range"
INTERVALS = f"Intervals: {OF_SEEDS}."
"""End of captions."""


def rounded(value: float, form: str = ".3g", missing: str = NONE) -> str:
    """A number in a format; ``missing`` for NaN.

    >>> rounded(0.12345), rounded(float("nan"))
    ('0.123', '–')
    """
    return missing if math.isnan(value) else f"{value:{form}}"


def numbers(values: Iterable[float]) -> str:
    """Comma-separated numbers for messages.

    >>> numbers([0.5, 1, 1e-6])
    '0.5, 1, 1e-06'
    """
    return ", ".join(f"{value:g}" for value in values)


def plain(value: object) -> str:
    """A value of a parameter; floats with six significant digits.

    >>> plain(32.0), plain("as_printed")
    ('32', 'as_printed')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def exact(value: object) -> str:
    """A value of a parameter; floats with as few digits as determine them.

    >>> exact(0.5), exact(0.123456789)
    ('0.5', '0.123456789')
    """
    short = plain(value)
    return short if not isinstance(value, float) or float(short) == value else str(value)


def setting_in_words(setting: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    """Parameters with their values, without missing ones.

    >>> setting_in_words({"form": "corrected", "scale": 0.01, "probes": float("nan"), "per": None})
    'form corrected, scale 0.01'
    """
    known = {key: value for key, value in dict(setting).items() if value is not None and value == value}
    return ", ".join(f"{key} {plain(value)}" for key, value in known.items())
