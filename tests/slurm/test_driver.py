"""Snakemake in a SLURM job of its own, from the script of docs/slurm.md, sends jobs to the same SLURM."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.workflow.conftest import new_checkout

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
RECORD = "results/tiny/optimal_defense/cifar_predictors/digits16/small/op-70/fisher/all.json"
TIME_LIMIT = 900  # seconds

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.xdist_group("slurm")]


@dataclass(frozen=True)
class Driven:
    """The script after it ended."""

    jobs: dict[str, dict[str, str]]  # job id -> what the controller says about it
    driver: str  # the id of the script's own job
    made_by: str  # the id of the job that made the record


def drive(cluster: Cluster, folder: Path) -> Driven:
    """Submit the script, with a record to make, and wait for its end."""
    (script,) = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs" / "slurm.md").read_text(), re.M | re.S)
    command = ".venv/bin/snakemake --profile slurm"
    assert command in script
    new_checkout(folder)
    shutil.copytree(ROOT / "slurm", folder / "slurm")
    options = f"--config scale=tiny --slurm-init-seconds-before-status-checks 2 --latency-wait 20 {RECORD}"
    # The same script; only where Snakemake lies, and what it makes, is of this test.
    changed = script.replace(command, f"{sys.executable} -m snakemake --profile slurm {options}")
    (folder / "driver.sh").write_text(changed)

    said = cluster.run("env", f"PYTHONPATH={ROOT / 'src'}", "sbatch", "--chdir", str(folder), str(folder / "driver.sh"))
    driver = said.split()[-1]
    end = time.monotonic() + TIME_LIMIT
    while cluster.jobs()[driver]["JobState"] in ("PENDING", "RUNNING", "COMPLETING") and time.monotonic() < end:
        time.sleep(1)
    jobs = cluster.jobs()
    assert jobs[driver]["JobState"] == "COMPLETED", (folder / f"slurm-{driver}.out").read_text()
    return Driven(jobs, driver, json.loads((folder / RECORD).read_text())["provenance"]["slurm_job_id"])


RUNS = {"driven": drive}


def test_snakemake_in_a_job_of_its_own(runs: dict[str, Future[Any]]) -> None:
    driven: Driven = runs["driven"].result()
    assert driven.made_by != driven.driver
    assert driven.jobs[driven.made_by]["TresPerJob"] == "gres:gpu:1"
