"""`snakemake --profile slurm` on a real SLURM: one figure of the smoke scale, with a job cancelled on the way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
FIGURE = "figures/smoke/optimal_defense/fig08.png"
GPU_RULES = ("rule_attack", "rule_train")
# Two cores are what this must run on, and jobs are short: few at a time, and looked at often.
FITTED = ["--jobs", "3", "--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "20"]
TIME_LIMIT = 1200  # seconds

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.xdist_group("slurm")]


@dataclass(frozen=True)
class Run:
    """A finished run of the workflow."""

    folder: Path
    returncode: int
    output: str
    cancelled: str  # the id of the job that was cancelled
    jobs: dict[str, dict[str, str]]  # job id -> what the controller says about it

    @property
    def records(self) -> dict[str, Any]:
        found = (self.folder / "results" / "smoke").rglob("*.json")
        return {str(path.relative_to(self.folder)): json.loads(path.read_text()) for path in found}


def copy_of_checkout(folder: Path) -> None:
    """Copy what belongs to the project, as it stands: no results, no caches, no environment."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def cancel_first(cluster: Cluster, folder: Path, workflow: subprocess.Popen[bytes]) -> str:
    """Cancel the first job that runs on a GPU; its id."""
    end = time.monotonic() + 300
    while time.monotonic() < end and workflow.poll() is None:
        for number, job in cluster.jobs(folder).items():
            if job["JobState"] == "RUNNING" and job["Comment"].startswith(GPU_RULES):
                cluster.run("scancel", number)
                return number
        time.sleep(0.5)
    return "none"


def run_workflow(cluster: Cluster, folder: Path) -> Run:
    """Make the figure from nothing, in a copy of the checkout."""
    copy_of_checkout(folder)
    command = [sys.executable, "-m", "snakemake", "--profile", "slurm", *FITTED, FIGURE]
    environment = cluster.environment | {"PYTHONPATH": str(folder / "src")}
    log = folder / "run.log"
    with log.open("wb") as output:
        workflow = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        try:
            cancelled = cancel_first(cluster, folder, workflow)
            workflow.wait(TIME_LIMIT)
        finally:
            workflow.kill()
            workflow.wait()
    return Run(folder, workflow.returncode, log.read_text(errors="replace"), cancelled, cluster.jobs(folder))


RUNS = {"figure": run_workflow}


def test_one_figure_with_a_job_cancelled_on_the_way(runs: dict[str, Future[Any]], subtests: pytest.Subtests) -> None:
    run: Run = runs["figure"].result()
    assert run.returncode == 0, run.output
    assert (run.folder / FIGURE).read_bytes().startswith(b"\x89PNG")
    gpu_jobs = {number: job for number, job in run.jobs.items() if job["Comment"].startswith(GPU_RULES)}
    cpu_jobs = {number: job for number, job in run.jobs.items() if number not in gpu_jobs}

    with subtests.test("every record came from a SLURM job"):
        assert len(run.records) >= 3
        for path, record in run.records.items():
            job = run.jobs[record["provenance"]["slurm_job_id"]]
            assert job["JobState"] == "COMPLETED", path
            assert job["Comment"].startswith(GPU_RULES), path

    with subtests.test("GPU jobs asked for a GPU and ran where there is one"):
        assert len(gpu_jobs) == len(run.records) + 1  # one of them twice: it was cancelled
        for job in gpu_jobs.values():
            assert job["TresPerJob"] == "gres:gpu:1"
            assert job["NodeList"] in ("gpu1", "gpu2")

    with subtests.test("tables and the figure were one job, without a GPU"):
        (job,) = cpu_jobs.values()
        assert job["Comment"] == "rule_artifacts_draw_merge"
        assert "TresPerJob" not in job

    with subtests.test("the cancelled job was noticed, and submitted again with more"):
        cancelled = gpu_jobs.pop(run.cancelled)
        assert cancelled["JobState"] == "CANCELLED"
        (again,) = (job for job in gpu_jobs.values() if job["Comment"] == cancelled["Comment"])
        assert again["JobState"] == "COMPLETED"
        assert memory(again) == pytest.approx(2 * memory(cancelled), rel=0.01)
        assert minutes(again) == 2 * minutes(cancelled)


def memory(job: dict[str, str]) -> float:
    """MB that a job asked for, which the controller writes as 20000M or, rounded, as 62.50G."""
    text = dict(part.split("=") for part in job["TRES"].split(","))["mem"]
    return float(text[:-1]) * {"M": 1, "G": 1024}[text[-1]]


def minutes(job: dict[str, str]) -> int:
    """Time limit of a job, which the controller writes as [days-]hours:minutes:seconds."""
    days, _, clock = job["TimeLimit"].rpartition("-")
    hours, mins, _ = clock.split(":")
    return int(days or 0) * 1440 + int(hours) * 60 + int(mins)
