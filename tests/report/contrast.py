"""The contrast of two colours, as the Web Content Accessibility Guidelines define it."""

from __future__ import annotations

from collections.abc import Sequence


def contrast(one: Sequence[int], other: Sequence[int]) -> float:
    """Contrast of two colours, from 1 to 21; channels are from 0 to 255."""
    darker, lighter = sorted((_luminance(one), _luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(channels: Sequence[int]) -> float:
    red, green, blue = (_linear(channel / 255) for channel in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(value: float) -> float:
    return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
