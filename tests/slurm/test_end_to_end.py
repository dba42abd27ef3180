"""`snakemake --profile slurm` on a real SLURM: one figure of the smoke scale, with a job cancelled on the way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
FIGURE = "figures/smoke/optimal_defense/fig04.png"
GPU_RULES = ("rule_attack", "rule_train")
# Two cores are what this must run on, and jobs are short: few at a time, and looked at often.
FITTED = ["--jobs", "3", "--slurm-init-seconds-before-status-checks", "8", "--latency-wait", "20"]
TIME_LIMIT = 900  # seconds

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


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


def cancel_first(cluster: Cluster, workflow: subprocess.Popen[bytes]) -> str:
    """Cancel the first job that runs on a GPU; its id."""
    end = time.monotonic() + 120
    while time.monotonic() < end and workflow.poll() is None:
        for number, job in cluster.jobs().items():
            if job["JobState"] == "RUNNING" and job["Comment"].startswith(GPU_RULES):
                cluster.run("scancel", number)
                return number
        time.sleep(0.5)
    return "none"


@pytest.fixture(scope="module")
def run(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("checkout")
    copy_of_checkout(folder)
    command = [sys.executable, "-m", "snakemake", "--profile", "slurm", *FITTED, FIGURE]
    environment = cluster.environment | {"PYTHONPATH": str(folder / "src")}
    log = folder / "run.log"
    with log.open("wb") as output:
        workflow = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output)
        try:
            cancelled = cancel_first(cluster, workflow)
            workflow.wait(TIME_LIMIT)
        finally:
            workflow.kill()
            workflow.wait()
    return Run(folder, workflow.returncode, log.read_text(errors="replace"), cancelled, cluster.jobs())


def test_the_run_succeeds(run: Run) -> None:
    assert run.returncode == 0, run.output
    assert (run.folder / FIGURE).read_bytes().startswith(b"\x89PNG")


def test_every_record_came_from_a_slurm_job_that_asked_for_a_gpu(run: Run) -> None:
    records = run.records
    assert len(records) >= 3, run.output
    for path, record in records.items():
        job = run.jobs[record["provenance"]["slurm_job_id"]]
        assert job["JobState"] == "COMPLETED", (path, job)
        assert job["Comment"].startswith(GPU_RULES), (path, job)


def test_gpu_jobs_and_no_others_asked_for_a_gpu(run: Run) -> None:
    kinds = set()
    for job in run.jobs.values():
        on_gpu = job["Comment"].startswith(GPU_RULES)
        kinds.add(on_gpu)
        assert job.get("TresPerJob") == ("gres:gpu:1" if on_gpu else None), job
        assert job["NodeList"] in (("gpu1", "gpu2") if on_gpu else ("gpu1", "gpu2", "cpu1")), job
    assert kinds == {True, False}, run.output


def test_tables_and_figures_shared_a_job(run: Run) -> None:
    others = [job["Comment"] for job in run.jobs.values() if not job["Comment"].startswith(GPU_RULES)]
    assert others == ["rule_artifacts_draw_merge"]


def test_the_cancelled_job_was_noticed_and_submitted_again_with_more(run: Run) -> None:
    cancelled = run.jobs[run.cancelled]
    assert cancelled["JobState"] == "CANCELLED"
    (again,) = (
        job
        for number, job in run.jobs.items()
        if job["Comment"] == cancelled["Comment"] and number != run.cancelled
    )
    assert again["JobState"] == "COMPLETED"
    assert memory(again) == 2 * memory(cancelled)
    assert minutes(again) == 2 * minutes(cancelled)


def memory(job: dict[str, str]) -> int:
    """MB that a job asked for: the controller writes 8000M, or 15.62G for 16000."""
    text = dict(part.split("=") for part in job["TRES"].split(","))["mem"]
    return round(float(text[:-1]) * {"M": 1, "G": 1024}[text[-1]], -1).__int__()


def minutes(job: dict[str, str]) -> int:
    """Time limit of a job, which the controller writes as [days-]hours:minutes:seconds."""
    days, _, clock = job["TimeLimit"].rpartition("-")
    hours, mins, _ = clock.split(":")
    return int(days or 0) * 1440 + int(hours) * 60 + int(mins)
