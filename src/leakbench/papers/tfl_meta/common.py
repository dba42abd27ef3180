"""Words and settings that the paper's artifacts and checks share."""

from __future__ import annotations

from functools import partial

from leakbench.papers.tfl_meta import PAPER
from leakbench.report.artifacts import artifact

figure = partial(artifact, PAPER, "figure")
table = partial(artifact, PAPER, "table")

NONE = "–"
"""Of a table: there is none."""
