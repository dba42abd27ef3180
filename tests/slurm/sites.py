"""A checkout on the one-host SLURM, and its runs with the profile."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.workflow.conftest import Checkout, new_checkout

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

ROOT = Path(__file__).resolve().parents[2]
FITTED = ["--config", "scale=tiny", "--jobs", "6", "--slurm-init-seconds-before-status-checks", "2"]
LATENCY_S = 30
TIME_LIMIT = 1200  # seconds; a slow machine needs several times what a quick one does


@dataclass
class Site:
    """A checkout on the cluster, and its runs."""

    cluster: Cluster
    checkout: Checkout
    runs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.checkout.root

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start Snakemake with the profile; its output goes to run<number>.log."""
        command = [sys.executable, "-m", "snakemake", "--profile", "slurm", *FITTED, *arguments]
        path = os.pathsep.join([str(self.root / "bin"), self.cluster.environment["PATH"]])
        environment = self.cluster.environment | {"PATH": path, "PYTHONPATH": str(ROOT / "src")}
        environment["LEAKBENCH_CHECKPOINT_S"] = "1"
        with (self.root / f"run{len(self.runs)}.log").open("wb") as output:
            run = subprocess.Popen(command, cwd=self.root, env=environment, stdout=output, stderr=output)
        self.runs.append(run)
        return run

    def said(self, number: int = -1) -> str:
        """What a run printed."""
        return (self.root / f"run{range(len(self.runs))[number]}.log").read_text(errors="replace")

    def finish(self) -> int:
        """Wait for the newest run."""
        return self.runs[-1].wait(TIME_LIMIT)

    def stop(self) -> None:
        for run in self.runs:
            if run.poll() is None:
                run.send_signal(signal.SIGINT)
                run.wait(60)

    def expects(self, records: Iterable[str], seconds: float) -> None:
        """Write what `leakbench cost` would have estimated."""
        file = self.root / "results" / "tiny" / "costs.csv"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", newline="") as opened:
            rows = csv.writer(opened)
            rows.writerows([("record", "seconds"), *((record, seconds) for record in records)])

    def goes_wrong(self, faults: dict[str, str]) -> None:
        (self.root / "faults.json").write_text(json.dumps(faults))

    def attempted(self, record: str) -> str | None:
        """The SLURM job in which a job went wrong, once it did."""
        tried = (self.root / "tried" / record).with_suffix("")
        return tried.read_text() if tried.exists() else None

    def ran(self) -> dict[str, list[tuple[str, str]]]:
        """Per record, the SLURM job and the parent process of every attempt that computed."""
        found: dict[str, list[tuple[str, str]]] = {}
        for line in (self.root / "ran.txt").read_text().splitlines():
            record, job, parent = line.split(" ")
            found.setdefault(record, []).append((job, parent))
        return found

    def steps(self) -> list[tuple[str, str, int]]:
        """The SLURM job, the process and the number of every step of the long job."""
        file = self.root / "steps.txt"
        words = [line.split(" ") for line in file.read_text().splitlines()] if file.exists() else []
        return [(job, process, int(step)) for job, process, step in words]

    def record(self, path: str) -> Any:
        return json.loads((self.root / path).read_text())

    def jobs(self) -> dict[str, dict[str, str]]:
        """This checkout's SLURM jobs."""
        return self.cluster.jobs(self.root)

    def hurry(self, jobs: int) -> bool:
        """Start jobs that SLURM has queued again and lets wait for two minutes; whether so many have left the queue."""
        restarted = [job for job in self.jobs().values() if job.get("Restarts") == "1"]
        for job in restarted:
            if job["JobState"] == "PENDING" and job["Reason"] == "BeginTime":
                self.cluster.run("scontrol", "update", f"JobId={job['JobId']}", "StartTime=now")
        return len(restarted) == jobs and all(job["JobState"] != "PENDING" for job in restarted)


def new_site(cluster: Cluster, root: Path, *plugins: str) -> Site:
    """A checkout with plug-ins, files that are in its root already or lie beside this one."""
    checkout = new_checkout(root)
    shutil.copytree(ROOT / "slurm", root / "slurm")
    for plugin in plugins:
        if not (root / plugin).exists():
            shutil.copy(ROOT / "tests" / "slurm" / plugin, root)
    checkout.edit("config/config.yaml", lambda config: config.update(plugins=list(plugins)))
    checkout.replace("slurm/config.yaml", "latency-wait: 90", f"latency-wait: {LATENCY_S}")
    return Site(cluster, checkout)
