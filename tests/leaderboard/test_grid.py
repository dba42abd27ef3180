"""The leaderboard's sweeps go from weak to strong, which the choice of settings takes for granted."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from leakbench.planning.project import Project

PROJECT = Project(Path(__file__).resolve().parents[2])
STRONGER = {"scale", "multiplier", "fraction", "probability", "beta"}
"""Parameters of which more protects more."""
WEAKER = {"epsilon", "levels", "bits", "p", "kappa", "energy", "rank"}
"""Parameters of which less does."""


@pytest.mark.parametrize("scale", ["smoke", "laptop", "full"])
def test_sweeps_go_from_weak_to_strong(scale: str) -> None:
    swept = {
        (job.defense.label, name): values
        for job in PROJECT.plan(scale).jobs_of("leaderboard").values()
        for name, values in job.defense.sweep.items()
    }
    assert len(swept) > 15 and {name for _, name in swept} <= STRONGER | WEAKER
    for (label, name), values in swept.items():
        rises = all(first < second for first, second in pairwise(values))
        falls = all(first > second for first, second in pairwise(values))
        assert rises if name in STRONGER else falls, f"{label}: {name} goes from strong to weak"
