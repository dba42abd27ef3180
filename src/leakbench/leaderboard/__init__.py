"""No paper, but one protocol for the defenses of all five: what they protect at an equal loss of accuracy."""

from __future__ import annotations

PAPER = "leaderboard"
