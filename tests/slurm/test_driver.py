"""Snakemake in a SLURM job of its own, from the script of docs/slurm.md, sends jobs to the same SLURM."""

from __future__ import annotations

import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.workflow.conftest import new_checkout

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
RECORD = "results/tiny/optimal_defense/cifar_predictors/digits16/small/op-70/fisher/all.json"
TIME_LIMIT = 400  # seconds

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.xdist_group("slurm")]


def test_snakemake_in_a_job_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    (script,) = re.findall(r"^```bash\n(.*?)^```", (ROOT / "docs" / "slurm.md").read_text(), re.M | re.S)
    command = ".venv/bin/snakemake --profile slurm"
    assert command in script
    new_checkout(tmp_path)
    shutil.copytree(ROOT / "slurm", tmp_path / "slurm")
    options = f"--config scale=tiny --slurm-init-seconds-before-status-checks 5 --latency-wait 20 {RECORD}"
    # The same script; only where Snakemake lies, and what it makes, is of this test.
    changed = script.replace(command, f"{sys.executable} -m snakemake --profile slurm {options}")
    (tmp_path / "driver.sh").write_text(changed)

    said = cluster.run(
        "env", f"PYTHONPATH={ROOT / 'src'}", "sbatch", "--chdir", str(tmp_path), str(tmp_path / "driver.sh")
    )
    driver = said.split()[-1]
    end = time.monotonic() + TIME_LIMIT
    while cluster.jobs()[driver]["JobState"] in ("PENDING", "RUNNING", "COMPLETING") and time.monotonic() < end:
        time.sleep(1)
    job = cluster.jobs()[driver]
    assert job["JobState"] == "COMPLETED", (tmp_path / f"slurm-{driver}.out").read_text()
    made_by = json.loads((tmp_path / RECORD).read_text())["provenance"]["slurm_job_id"]
    assert made_by != driver
    assert cluster.jobs()[made_by]["TresPerJob"] == "gres:gpu:1"
