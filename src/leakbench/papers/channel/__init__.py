"""Tan et al. (2024), *Defending Against Data Reconstruction Attacks in Federated Learning* by information theory."""

from __future__ import annotations

PAPER = "channel"
