"""Names that the paper's figures share."""

from __future__ import annotations

from functools import partial

from leakbench.papers.channel import PAPER
from leakbench.report.artifacts import artifact
from leakbench.report.labels import reads
from leakbench.report.reference import printed_numbers

figure = partial(artifact, PAPER, "figure")
table = partial(artifact, PAPER, "table")
printed = partial(printed_numbers, PAPER)

UNDEFENDED = "undefended_release"
"""Experiment of the undefended released models."""
CHANNELS = {"natural-all": "natural", "white-all": "white", "personalized-all": "personalized"}
"""Labels of the channels on the common grid of capacities."""
CALIBRATED = reads("calibration", defenses=CHANNELS)
ARCHITECTURES = ("lenet5", "alexnet", "vgg16", "resnet10")
"""The paper's models."""
