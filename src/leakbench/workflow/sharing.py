"""Small cells share a SLURM job: which of them, how many, and how much time they ask for.

A SLURM job costs a place in the queue and a quarter of a minute before it computes. So cells that take seconds come in
groups, which a profile packs (``group-components``) so that a full one computes for five to ten minutes. How long a
cell takes is what ``leakbench cost`` estimated; without an estimate every cell has a SLURM job of its own.
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
class Size:
    """Cells of about the same duration.

    Attributes:
        members: how many share a SLURM job; the profile's ``group-components`` repeat it.
        below_s: the expected seconds of such a cell are less.
        minutes: what each adds to the time limit of the first attempt: six times that.
    """

    members: int
    below_s: float
    minutes: int

    def group(self, on_gpu: bool) -> str:
        """The name of the groups of such cells. Cells that compute on a CPU share no job with those that need a GPU."""
        return f"{'gpu' if on_gpu else 'cpu'}{self.members}"


SIZES = (Size(32, 20.0, 2), Size(8, 75.0, 8), Size(3, 300.0, 30))
GROWTH = 4
"""An attempt gets this many times the minutes of the one before, up to what the kind of job declares."""


def size_of(root: Path, job: Job) -> Size | None:
    """The size of a cell that shares a SLURM job, if it does.

    Alone runs what nobody has estimated or what takes long; what other records must be there for, so that no group
    waits for another; and a cell that was started before and did not end well, since it might take the others with it.
    A finished record that waits to be put back in its place takes a second.

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


def minutes(size: Size | None, declared: int, attempt: int) -> int:
    """The time limit of a cell, or what it adds to the limit of the job that it shares.

    Args:
        size: of the cell; None: it runs alone.
        declared: minutes of a first attempt at this kind of job, when it runs alone.
        attempt: 1, 2, ...
    """
    alone = declared * attempt
    return alone if size is None else min(alone, size.minutes * GROWTH ** (attempt - 1))


@cache
def _estimated(root: Path, scale: str) -> dict[str, float]:
    found = planned_seconds(root, scale)
    if not found:
        print(
            "leakbench: nobody has estimated what cells take, so that each is a SLURM job of its own; "
            f"`leakbench cost --scale {scale}` lets small ones share one (docs/slurm.md)",
            file=sys.stderr,
        )
    return found
