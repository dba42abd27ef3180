"""The leaderboard's sweeps go from weak to strong, which the choice of settings takes for granted."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest

import leakbench.leaderboard
from leakbench.planning.project import Project
from leakbench.publishing.archives import read_archives
from leakbench.records import digest

LEADERBOARD = Path(leakbench.leaderboard.__file__).parent
PROJECT = Project(Path(__file__).resolve().parents[2])
STRONGER = {"scale", "multiplier", "fraction", "probability", "beta"}
"""Parameters of which more protects more."""
WEAKER = {"epsilon", "levels", "bits", "p", "kappa", "energy", "rank"}
"""Parameters of which less does."""


def test_what_is_published_is_what_is_planned_so_far(tmp_path: Path) -> None:
    """With the overlay that the page names there is nothing to compute: every job has a published record of its own."""
    shutil.copytree(PROJECT.root / "config", tmp_path / "config")
    overlay = tmp_path / "config" / "papers" / "leaderboard.yaml"
    overlay.parent.mkdir(exist_ok=True)
    shutil.copy(LEADERBOARD / "so_far.yaml", overlay)
    planned = Project(tmp_path).plan("laptop").jobs_of("leaderboard")
    records = {
        path: digest(record.job)
        for archive in read_archives(PROJECT, "laptop", ["leaderboard"])
        for path, record in archive.records.items()
    }
    assert {path: job.digest for path, job in planned.items()} == {path: records.get(path) for path in planned}
    assert {path.split("/")[3] for path in planned} >= {"single", "training"}


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
