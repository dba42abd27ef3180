"""Words that the paper's figures share."""

from __future__ import annotations

from functools import partial

from leakbench.papers.channel import PAPER
from leakbench.report.artifacts import artifact

figure = partial(artifact, PAPER, "figure")
table = partial(artifact, PAPER, "table")

INTERVALS = "Intervals: 95 % t-intervals over seeds; of two seeds, their range."
