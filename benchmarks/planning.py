"""What it costs to start: the command line, planning the full scale, and finding nothing to do.

Prints wall and CPU seconds of fresh processes, the best of a few, and beside them an empty Python process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

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


def measure(command: list[str], repeats: int) -> tuple[float, float]:
    """Least wall and CPU seconds of a command."""
    walls, cpus = [], []
    for _ in range(repeats):
        before, started = os.times(), time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        walls.append(time.perf_counter() - started)
        after = os.times()
        cpus.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(walls), min(cpus)


def main() -> None:
    """Measure every command and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    print("| command | wall, s | CPU, s |")
    print("|---|---|---|")
    for name, command in COMMANDS.items():
        wall, cpu = measure(command, repeats)
        print(f"| `{name}` | {wall:.2f} | {cpu:.2f} |", flush=True)


if __name__ == "__main__":
    main()
