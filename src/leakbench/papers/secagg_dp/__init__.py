"""*Differentially Private Federated Learning without Noise Addition: When is it Possible?*, Zhang et al. (2024)."""

from __future__ import annotations

PAPER = "secagg_dp"
