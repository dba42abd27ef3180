"""Overhead of a SLURM job beside the cells in it, alone and shared; and one run on one, two and three nodes.

    python -m benchmarks.cluster

Starts the one-host SLURM of tests/slurm. (a) runs training jobs of the scale smoke, each in a SLURM job and then all in
one; what is neither queue nor computing is overhead. (b) runs jobs that sleep, two at a time per node, since the nodes
of one host share its cores.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from leakbench.planning.project import Project

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

ROOT = Path(__file__).resolve().parents[1]
QUICK = ["--quiet", "all", "--jobs", "12", "--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "20"]
SLEEPS = '''"""Training jobs that sleep."""

import time

from leakbench.jobs.train import TrainJob

computes = TrainJob.run


def run(kind, job, device):
    time.sleep({seconds})
    return computes(kind, job, device)


TrainJob.run = run
'''


def checkout(folder: Path) -> Path:
    """The configuration and the workflow in an empty folder."""
    for name in ("config", "workflow", "profiles", "slurm"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "Snakefile", folder)
    return folder


def training_jobs(count: int) -> list[str]:
    """Records of small training jobs of the scale smoke."""
    jobs = Project(ROOT).plan("smoke").jobs.values()
    return [job.path for job in jobs if job.kind.name == "train" and job.path.count("/optimal_defense/")][:count]


def make(cluster: Cluster, folder: Path, records: list[str], *options: str) -> list[tuple[float, float]]:
    """Run Snakemake; start and end of every SLURM job, in seconds since 1970."""
    before = set(cluster.jobs())
    command = [sys.executable, "-m", "snakemake", "--profile", "slurm", "--config", "scale=smoke", *QUICK, *options]
    environment = cluster.environment | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*command, *records], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    jobs = [job for number, job in cluster.jobs().items() if number not in before]
    return [(when(job["StartTime"]), when(job["EndTime"])) for job in jobs]


def when(text: str) -> float:
    """A time of the controller's, in seconds since 1970."""
    return datetime.datetime.fromisoformat(text).timestamp()


def computed(folder: Path, records: list[str]) -> float:
    """Seconds that the jobs computed."""
    return sum(float(json.loads((folder / record).read_text())["cost"]["wall_s"]) for record in records)


def overhead(cluster: Cluster, cells: int, scratch: Path) -> None:
    """(a): print the overhead of a cell."""
    records, replicates = training_jobs(cells), []
    print(
        "| | SLURM jobs | seconds in them, per cell | computing, per cell | overhead per cell |\n|---|---|---|---|---|"
    )
    for way in ("each in a SLURM job", "all in one"):
        folder = checkout(scratch / way.replace(" ", "-"))
        if way == "all in one":
            costs = folder / "results" / "smoke" / "costs.csv"
            costs.parent.mkdir(parents=True)
            with costs.open("w", newline="") as file:
                csv.writer(file).writerows([("record", "seconds"), *((record, 5) for record in records)])
        spans = make(cluster, folder, records, "--jobs", "1")  # one at a time: on one host more would share its cores
        spent, work = sum(end - start for start, end in spans) / cells, computed(folder, records) / cells
        print(f"| {way} | {len(spans)} | {spent:.1f} | {work:.1f} | {spent - work:.1f} |", flush=True)
        replicates.append([json.loads((folder / record).read_text())["replicates"] for record in records])
    assert replicates[0] == replicates[1], "cells that share a job have other numbers"


def scaling(cluster: Cluster, nodes: tuple[str, ...], cells: int, seconds: float, scratch: Path) -> None:
    """(b): print the time from the first start to the last end."""
    records, alone = training_jobs(cells), 0.0
    print("| nodes | SLURM jobs | seconds | speed |\n|---|---|---|---|")
    for count in range(1, len(nodes) + 1):
        folder = checkout(scratch / f"nodes{count}")
        (folder / "sleeps.py").write_text(SLEEPS.format(seconds=seconds))
        for file, old, new in (
            ("config/config.yaml", "plugins: []", "plugins: [sleeps.py]"),
            ("slurm/config.yaml", "  merge:\n    turn: 1", "  train: {mem_mb: 32000}\n  merge:\n    turn: 1"),
        ):
            text = (folder / file).read_text()
            assert old in text
            (folder / file).write_text(text.replace(old, new, 1))
        for place, node in enumerate(nodes):
            state = ["State=resume"] if place < count else ["State=drain", "Reason=benchmark"]
            if place >= count or "DRAIN" in cluster.run("scontrol", "show", "node", node):
                cluster.run("scontrol", "update", f"NodeName={node}", *state)
        spans = make(cluster, folder, records)
        took = max(end for _, end in spans) - min(start for start, _ in spans)
        alone = alone or took
        print(f"| {count} | {len(spans)} | {took:.0f} | {alone / took:.1f}x |", flush=True)


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=8)
    parser.add_argument("--sleepers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=15.0, help="that a sleeper sleeps")
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from tests.slurm.cluster import NODES, Cluster, why_not

    reason = why_not()
    if reason is not None:
        print(f"cluster.py: {reason}", file=sys.stderr)
        return 2
    with Cluster(time_limit=3600) as cluster, tempfile.TemporaryDirectory() as scratch:
        overhead(cluster, arguments.cells, Path(scratch))
        scaling(cluster, NODES, arguments.sleepers, arguments.seconds, Path(scratch))
    return 0


if __name__ == "__main__":
    sys.exit(main())
