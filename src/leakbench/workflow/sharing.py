"""Small cells that share a SLURM job: which, how many, and their time limits.

A SLURM job costs a place in the queue and a quarter of a minute before it computes. So cells that take seconds come in
groups, which a profile packs (``group-components``) so that a full one computes for five to ten minutes. ``leakbench
cost`` estimates how long a cell takes; without an estimate every cell is a SLURM job of its own.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from leakbench.report.costs import planned_seconds
from leakbench.running import work

if TYPE_CHECKING:
    from leakbench.jobs.base import Job


@dataclass(frozen=True)
class CellSize:
    """Cells of about the same duration.

    Attributes:
        members: how many share a SLURM job; the profile's ``group-components`` repeat it.
        below_s: upper bound of the expected seconds of such a cell.
        minutes: that each adds to the time limit of the first attempt: six times that bound.
    """

    members: int
    below_s: float
    minutes: int

    def group(self, on_gpu: bool) -> str:
        """The name of the groups of such cells. Cells that compute on a CPU share no job with those that need a GPU."""
        return f"{'gpu' if on_gpu else 'cpu'}{self.members}"


SIZES = (CellSize(32, 20.0, 2), CellSize(8, 75.0, 8), CellSize(3, 300.0, 30))
GROWTH = 4
"""Factor by which every attempt gets more minutes, up to those that the kind of job declares."""


def size_of(root: Path, job: Job) -> CellSize | None:
    """The size of a cell that shares a SLURM job; None for one that runs alone.

    Cells run alone if they are not estimated or take long; if they read other records, so that no group waits for
    another; and if an earlier attempt failed, since they might take the others with them. Restoring the copy of a
    finished record takes a second.

    Args:
        root: the root of the project.
        job: the cell.
    """
    if job.uses:
        return None
    if work.is_kept(root, job.path, job.digest):
        return SIZES[0]
    seconds = _estimated(root, Path(job.path).parts[1]).get(job.path)
    if seconds is None or work.state_of(root, job.path) is not None:
        return None
    return next((size for size in SIZES if seconds < size.below_s), None)


def minutes(size: CellSize | None, declared: int, attempt: int) -> int:
    """Minutes of a cell: its time limit, or its part of the limit of the job that it shares.

    Args:
        size: of the cell; None: it runs alone.
        declared: minutes of a first attempt at this kind of job, when it runs alone.
        attempt: 1, 2, ...
    """
    alone = declared * attempt
    return alone if size is None else min(alone, size.minutes * GROWTH ** (attempt - 1))


@cache
def _estimated(root: Path, scale: str) -> dict[str, float]:
    seconds = planned_seconds(root, scale)
    if not seconds:
        print(
            "leakbench: nobody has estimated what cells take, so that each is a SLURM job of its own; "
            f"`leakbench cost --scale {scale}` lets small ones share one (docs/slurm.md)",
            file=sys.stderr,
        )
    return seconds
