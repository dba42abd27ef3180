"""Words and settings that the paper's artifacts and checks share."""

from __future__ import annotations

from functools import partial

from leakbench.papers.secagg_dp import PAPER
from leakbench.report.artifacts import artifact
from leakbench.theory.aggregate_dp import Aggregation

figure = partial(artifact, PAPER, "figure")
table = partial(artifact, PAPER, "table")

MNIST = Aggregation(users=50, records=1200, batch=32, clip=10.0)
"""Fig. 5: 60,000 images among 50 users; the paper does not print D."""
ROUNDS, DELTA = 100, 1e-4
"""T, if an epoch is a round, and delta of all rounds."""
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Epsilons of all rounds; the paper's grid is not printed."""
LINEAR = 7850
"""K of the linear model on MNIST."""
