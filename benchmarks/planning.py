"""Cost of starting: the command line, planning the full scale, and plans of other sizes.

Prints wall and CPU seconds of fresh processes, the best of a few, and their largest resident set; beside them an empty
Python process. Plans of N jobs are those of the main paper, one job per seed.

    python -m benchmarks.planning
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from leakbench.planning.project import Project

ROOT = Path(__file__).parents[1]
SNAKEMAKE = [sys.executable, "-m", "snakemake", "--cores", "2", "--quiet", "all"]
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "leakbench --help": [sys.executable, "-m", "leakbench", "--help"],
    "leakbench list artifacts": [sys.executable, "-m", "leakbench", "list", "artifacts", "--json"],
    "snakemake --version": [sys.executable, "-m", "snakemake", "--version"],
    "snakemake -n, smoke": [*SNAKEMAKE, "-n", "--config", "scale=smoke"],
    "snakemake -n, full": [*SNAKEMAKE, "-n", "--config", "scale=full"],
}
PAPER = "optimal_defense"


def measure(command: list[str], repeats: int, folder: Path = ROOT) -> tuple[float, float, float]:
    """Least wall and CPU seconds of a command, and its memory in MiB."""
    walls, cpus, memory = [], [], 0.0
    for _ in range(repeats):
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        walls.append(time.perf_counter() - started)
        if status:
            raise RuntimeError(f"{' '.join(command)}: exit status {os.waitstatus_to_exitcode(status)}")
        cpus.append(usage.ru_utime + usage.ru_stime)
        memory = usage.ru_maxrss / 1024
    return min(walls), min(cpus), memory


def copy_workflow(folder: Path) -> None:
    """Make a checkout in ``folder``, but for the package."""
    for name in ("Snakefile", "workflow", "config", "profiles"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, folder / name)


def planned(folder: Path, seeds: int) -> int:
    """Give a checkout the scale ``many``, with a job per seed; returns the number of its jobs."""
    each = {"seeds": seeds, "split_seeds": True}
    grids = {
        experiment: {"jobs": dict.fromkeys(kinds, each)}
        for experiment, kinds in {"undefended": ("attack", "train"), "noise": ("attack", "train")}.items()
    }
    scale = {"description": "many jobs", "papers": {PAPER: {"experiments": grids}}}
    (folder / "config" / "scales" / "many.yaml").write_text(yaml.safe_dump(scale))
    return len(Project(folder, {"papers": [PAPER]}).plan("many").jobs)


def main() -> None:
    """Measure every command and every size, and print a table of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, nargs="*", default=[500, 2000, 8000], help="sizes of plans, about")
    arguments = parser.parse_args()
    print("| command | wall, s | CPU, s | memory, MiB |")
    print("|---|---|---|---|")
    for name, command in COMMANDS.items():
        wall, cpu, memory = measure(command, arguments.repeats)
        print(f"| `{name}` | {wall:.2f} | {cpu:.2f} | {memory:.0f} |", flush=True)
    print("\n| jobs of `snakemake -n` | wall, s | CPU, s | memory, MiB | CPU per job, ms |")
    print("|---|---|---|---|---|")
    for size in arguments.jobs:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            copy_workflow(folder)
            least = planned(folder, 1)
            per_seed = planned(folder, 2) - least
            jobs = planned(folder, 1 + (size - least) // per_seed)
            command = [*SNAKEMAKE, "-n", "--config", "scale=many", f"papers=[{PAPER}]"]
            wall, cpu, memory = measure(command, arguments.repeats, folder)
        print(f"| {jobs:,} | {wall:.2f} | {cpu:.2f} | {memory:.0f} | {1000 * cpu / jobs:.1f} |", flush=True)


if __name__ == "__main__":
    main()
