"""Zhang et al. (2024), *Differentially Private Federated Learning without Noise Addition: When is it Possible?*"""

from __future__ import annotations

PAPER = "secagg_dp"
