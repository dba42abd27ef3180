"""Words and settings that the paper's artifacts and checks share."""

from __future__ import annotations

from functools import partial

from leakbench.papers.tfl_meta import PAPER
from leakbench.report.artifacts import artifact
from leakbench.theory.protection_parameters import Mechanism

figure = partial(artifact, PAPER, "figure")
table = partial(artifact, PAPER, "table")

NAMES: dict[Mechanism, str] = {
    "paillier": "Paillier",
    "secret_sharing": "secret sharing",
    "randomization": "Gaussian noise",
    "compression": "compression",
}

SIZE, DELTA, DEVIATION = 2410, 0.5, 0.0077
"""m, delta and sigma_i of all coordinates where none is measured: of gradients of a small network."""

THRESHOLD = 25.0
"""Similarity in dB above which a datum counts as recovered, where one number is needed."""
UNPROTECTED = "constants"
"""The experiment that estimates the constants of leakage."""
FINE = 0.001
"""The smoothing alpha of measured leakage: it hardly matters, even where attempts are few."""
