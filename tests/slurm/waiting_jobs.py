"""A plug-in that makes jobs wait after their second step, while there is a file ``wait``, until they are told to end.

Each leaves an empty file in ``waiting/``, named by its SLURM job.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from leakbench.running import checkpoint

_after_step = checkpoint._Job.after_step


def _wait(self: checkpoint._Job, loop: checkpoint.Loop, state: Callable[[], checkpoint.State]) -> None:
    if loop.done == 2 and Path("wait").exists():
        Path("waiting", os.environ["SLURM_JOB_ID"]).touch()
        while self._signal is None:
            time.sleep(0.01)
    _after_step(self, loop, state)


if __name__.startswith("leakbench_plugin_"):
    checkpoint._Job.after_step = _wait  # type: ignore[method-assign]
