"""Zhang, Kang et al. (2023), *A Meta-learning Framework for Tuning Parameters of Protection Mechanisms*."""

from __future__ import annotations

PAPER = "tfl_meta"
