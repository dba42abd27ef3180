"""SLURM preempts jobs: it cancels them, at once or after a grace time, or requeues them; the records are the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.slurm.sites import ROOT, TIME_LIMIT, Site, new_site

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

PAPER = "results/tiny/optimal_defense"
TRAINING = f"{PAPER}/pruning_training/digits16/small"
AT_ONCE = f"{TRAINING}/gp-90/train/all.json"
WITH_GRACE = f"{TRAINING}/gp-80/train/all.json"
REQUEUED = f"{TRAINING}/op-80/train/all.json"
RECORDS = (AT_ONCE, WITH_GRACE, REQUEUED)
PARTITION = "{'gp-80': 'grace', 'op-80': 'requeue'}.get(wildcards.defense, 'main')"

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.xdist_group("slurm")]


@dataclass(frozen=True)
class Preempted:
    """A checkout after a run whose jobs were preempted."""

    site: Site
    returncode: int
    waited: set[str]  # numbers of the jobs that did


def preempt(cluster: Cluster, folder: Path) -> Preempted:
    """Make three records; as soon as their jobs wait, let another job take all nodes with GPUs."""
    site = new_site(cluster, folder, "halved.py", "waiting_jobs.py")
    waiting, wait = site.root / "waiting", site.root / "wait"
    waiting.mkdir()
    wait.touch()
    run = site.start("--set-resources", f"train:slurm_partition={PARTITION}", "--", *RECORDS)

    def all_wait() -> bool:
        return len(list(waiting.iterdir())) == len(RECORDS)

    try:
        _until(run, all_wait)
        wait.unlink()
        quiet = ["--output=/dev/null", "--wrap=true"]
        cluster.run("sbatch", "--partition=urgent", "--nodelist=gpu1,gpu2", "--nodes=2", "--exclusive", *quiet)
        _until(run, lambda: site.hurry(len(RECORDS)))
        status = run.wait(TIME_LIMIT)
    finally:
        site.stop()
    return Preempted(site, status, {path.name for path in waiting.iterdir()})


def _until(run: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    """Ask twice a second until the condition holds, the run ends, or the time is over."""
    end = time.monotonic() + TIME_LIMIT
    while not condition() and run.poll() is None and time.monotonic() < end:
        time.sleep(0.5)


RUNS = {"preempt": preempt}


def test_preempted_jobs_go_on_to_the_same_records(runs: dict[str, Future[Any]]) -> None:
    preempted: Preempted = runs["preempt"].result()
    site = preempted.site
    assert preempted.returncode == 0, site.said()
    jobs = site.jobs()
    made_by = {record: site.record(record)["provenance"]["slurm_job_id"] for record in RECORDS}
    assert {*made_by.values()} == preempted.waited  # the same jobs, none of them submitted again
    said = [line for line in site.said().splitlines() if "preempted" in line]
    again = "leakbench: SLURM job {} was preempted ({}); it waits in the queue again"
    expected = {again.format(made_by[AT_ONCE], "PREEMPTED"), again.format(made_by[WITH_GRACE], "FAILED")}
    assert set(said) == expected  # SLURM does the same for the third
    for record, number in made_by.items():
        assert (jobs[number]["Restarts"], jobs[number]["JobState"]) == ("1", "COMPLETED")
        log = Path("logs", *Path(record).parts[1:]).with_suffix(".log")
        assert "going on after 2 of 3 steps" in (site.root / log).read_text()

    resumed = site.checkout.results()
    for record in made_by:  # once more, and nothing interrupts it
        (site.root / record).unlink()
        command = [sys.executable, "-m", "leakbench", "run", record]
        subprocess.run(command, cwd=site.root, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)
    assert site.checkout.results() == resumed
