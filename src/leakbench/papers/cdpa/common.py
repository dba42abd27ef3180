"""Words that the paper's figures share."""

from __future__ import annotations

from functools import partial
from importlib.resources import files

from leakbench.lazy import pd
from leakbench.papers.cdpa import PAPER
from leakbench.report.artifacts import artifact

figure = partial(artifact, PAPER, "figure")
table = partial(artifact, PAPER, "table")


def printed(name: str) -> pd.DataFrame:
    """The paper's own numbers, from ``reference/<name>.csv``."""
    with (files(__package__) / "reference" / f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)
