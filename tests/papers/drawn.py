"""What tests of a paper's figures share: synthetic tidy tables, drawing from them, and statistics by another hand."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from scipy import stats
from tests.report.synthetic import ROOT, tidy_tables
from tests.workflow.quick_jobs import Adapt

from leakbench.planning.project import Project
from leakbench.report.artifacts import artifact_of
from leakbench.report.plots import Drawing

Tables = dict[str, pd.DataFrame]


@cache
def _tables(paper: str, adapted: frozenset[tuple[str, Adapt]]) -> Tables:
    return tidy_tables(Project(ROOT, {"papers": [paper]}).plan("smoke"), paper, dict(adapted))


def smoke_tables(paper: str = "optimal_defense", **adapted: Adapt) -> Tables:
    """Synthetic tidy tables of the smoke scale, with numbers of some kinds of job adapted; a copy."""
    return {name: frame.copy() for name, frame in _tables(paper, frozenset(adapted.items())).items()}


def with_seeds(tables: Tables, count: int = 12) -> Tables:
    """The rows of seed 0 under as many seeds: what they say is certain enough to be judged."""
    first = {name: frame[frame["seed"] == 0] for name, frame in tables.items()}
    return {
        name: pd.concat([frame.assign(seed=seed) for seed in range(count)], ignore_index=True)
        for name, frame in first.items()
    }


def make(name: str, tables: Tables, *kept: Any, paper: str = "optimal_defense") -> Any:
    """What an artifact is made of these tables."""
    entry = artifact_of(f"figures/smoke/{paper}/{name}.csv")
    return entry.make({experiment: tables[experiment] for experiment in entry.experiments}, *kept)


def draw(name: str, tables: Tables, *kept: Any, paper: str = "optimal_defense") -> Drawing:
    """A figure, laid out."""
    drawing = make(name, tables, *kept, paper=paper)
    assert isinstance(drawing, Drawing)
    drawing.figure.canvas.draw()
    return drawing


def interval(per_seed: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % t-interval, from scipy; of two seeds their range."""
    kept = [value for value in per_seed if not math.isnan(value)]
    if len(kept) == 2:
        return float(np.mean(kept)), min(kept), max(kept)
    low, high = stats.t.interval(0.95, len(kept) - 1, loc=np.mean(kept), scale=stats.sem(kept))
    return float(np.mean(kept)), float(low), float(high)


def per_seed(frame: pd.DataFrame, **equal: Any) -> list[float]:
    """The mean over images of every seed, without the project's own statistics."""
    for column, value in equal.items():
        frame = frame[frame[column] == value]
    return [float(rows["value"].mean()) for _, rows in frame.groupby("seed")]


def series(numbers: pd.DataFrame, name: str, **equal: Any) -> pd.DataFrame:
    """The numbers of one series."""
    chosen = numbers["series"] == name
    for column, value in equal.items():
        chosen &= numbers[column] == value
    return numbers[chosen]


def clouds(ax: Axes) -> dict[str, PathCollection]:
    """The scattered points of axes by their label; not those that explain sizes."""
    return {
        str(cloud.get_label()): cloud
        for cloud in ax.collections
        if isinstance(cloud, PathCollection) and len(np.asarray(cloud.get_offsets()))
    }
