"""Deng et al. (2024), *Leakage-Resilient and Carbon-Neutral Aggregation*: flipped bits, voted on."""

from __future__ import annotations

PAPER = "cdpa"
