"""Words that the paper's figures share."""

from __future__ import annotations

from functools import partial
from importlib.resources import files

from leakbench.lazy import pd
from leakbench.papers.channel import PAPER
from leakbench.report.artifacts import artifact
from leakbench.report.labels import reads

figure = partial(artifact, PAPER, "figure")
table = partial(artifact, PAPER, "table")

INTERVALS = "Intervals: 95 % t-intervals over seeds; of two seeds, their range."

UNDEFENDED = "undefended_release"
"""Experiment of the undefended released models."""
CHANNELS = {"natural-all": "natural", "white-all": "white", "personalized-all": "personalized"}
"""Labels of the channels on the common grid of capacities."""
CALIBRATED = reads("calibration", defenses=CHANNELS)
ARCHITECTURES = ("lenet5", "alexnet", "vgg16", "resnet10")
"""The paper's models."""


def printed(name: str) -> pd.DataFrame:
    """The paper's own numbers, from ``reference/<name>.csv``."""
    with (files(__package__) / "reference" / f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)
