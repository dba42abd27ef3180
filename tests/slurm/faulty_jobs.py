"""A plug-in that makes jobs go wrong once, as ``faults.json`` in the checkout says: record -> what happens to it.

``killed``; ``hangs``, until something ends it; ``third``, which hangs where two records beside it are finished;
``memory``, which takes 900 MB and hangs; ``waits``, for a file ``released``; ``fails``, always; ``long``, which takes a
hundred steps in ten seconds, notes them in ``steps.txt``, and goes on from its checkpoint when it is started again.
Whatever runs is noted in ``ran.txt``, with the SLURM job and the parent process. It is loaded after ``quick_jobs.py``,
which says what jobs find.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind
from leakbench.running import checkpoint


def _goes_wrong(job: Job) -> None:
    slurm_job = os.environ.get("SLURM_JOB_ID", "")
    with Path("ran.txt").open("a") as file:
        file.write(f"{job.path} {slurm_job} {os.getppid()}\n")
    faults = Path("faults.json")
    fault = json.loads(faults.read_text()).get(job.path) if faults.is_file() else None
    if fault == "fails":
        raise OSError("the disk is gone")
    if fault == "long":
        _take_steps()
        return
    if fault == "third" and len(list(Path(job.path).parents[2].glob("*/train/*.json"))) != 2:
        return
    tried = Path("tried", Path(job.path).with_suffix(""))
    if fault is None or tried.exists():
        return
    tried.parent.mkdir(parents=True, exist_ok=True)
    tried.write_text(slurm_job)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    taken = bytearray(os.urandom(1) * 900_000_000) if fault == "memory" else bytearray()
    while not (fault == "waits" and Path("released").exists()):
        time.sleep(0.1)
    del taken


def _take_steps() -> None:
    import torch

    with checkpoint.loop("step", 100) as loop:
        for step in loop.steps:
            with Path("steps.txt").open("a") as file:
                file.write(f"{os.environ.get('SLURM_JOB_ID', '')} {os.getpid()} {step}\n")
            time.sleep(0.1)
            loop.tick(lambda: {"done": torch.ones(1)})


def _wrap(kind: type[JobKind]) -> None:
    runs = kind.run

    def run(self: JobKind, job: Job, device: object) -> Findings:
        _goes_wrong(job)
        return runs(self, job, device)  # type: ignore[arg-type]

    kind.run = run  # type: ignore[method-assign]


if __name__.startswith("leakbench_plugin_"):
    for _name in JOB_KINDS:
        _wrap(JOB_KINDS.get(_name))
