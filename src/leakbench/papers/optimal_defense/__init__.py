"""Chen, Gürsoy and Lei (2024), *Optimal Defenses Against Gradient Reconstruction Attacks*."""

from __future__ import annotations

PAPER = "optimal_defense"
