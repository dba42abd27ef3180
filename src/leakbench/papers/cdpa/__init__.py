"""Deng et al. (2024), *Leakage-Resilient and Carbon-Neutral Aggregation*: quantised updates with flipped bits."""

from __future__ import annotations

PAPER = "cdpa"
