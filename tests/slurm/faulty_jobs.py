"""A plug-in that makes jobs go wrong once, as ``faults.json`` in the checkout says: record -> what happens to it.

``killed``, ``hangs`` (until something ends it), ``memory`` (takes 900 MB and hangs) and ``fails`` (always).
It is loaded after ``quick_jobs.py``, which says what jobs find.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind


def _goes_wrong(job: Job) -> None:
    file = Path("faults.json")
    fault = json.loads(file.read_text()).get(job.path) if file.is_file() else None
    if fault == "fails":
        raise OSError("the disk is gone")
    tried = Path("tried", job.digest)
    if fault is None or tried.exists():
        return
    tried.parent.mkdir(exist_ok=True)
    tried.write_text(os.environ.get("SLURM_JOB_ID", ""))
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    taken = bytearray(os.urandom(1) * 900_000_000) if fault == "memory" else None
    while True:
        time.sleep(0.1)
    del taken


def _wrap(kind: type[JobKind]) -> None:
    runs = kind.run

    def run(self: JobKind, job: Job, device: object) -> Findings:
        _goes_wrong(job)
        return runs(self, job, device)  # type: ignore[arg-type]

    kind.run = run  # type: ignore[method-assign, assignment]


for _name in JOB_KINDS:
    _wrap(JOB_KINDS.get(_name))
