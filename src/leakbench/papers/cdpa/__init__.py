"""Deng et al. (2024), *Leakage-Resilient and Carbon-Neutral Aggregation*: bits of updates, flipped and voted on."""

from __future__ import annotations

PAPER = "cdpa"
