"""Overhead of a small job: started by itself, without and with compiled bytecode, and forked warm.

    python -m benchmarks.start_up

One training job of the scale smoke, in a copy of the configuration; wall-clock seconds, rounds of all ways in turn.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from leakbench.workflow.caller import RUN

ROOT = Path(__file__).resolve().parents[1]
RECORD = "results/smoke/optimal_defense/pruning/digits16/small/gp/train/all.json"


def main() -> None:
    """Print the median of every way, and its ratio to the warm one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen(["sleep", "3600"]) as run:
        for part in ("config", "workflow"):
            shutil.copytree(ROOT / part, Path(folder, part))
        nowhere = str(Path(folder, "no-bytecode"))
        ways = {
            "by itself, sources compiled anew": {
                "PYTHONPYCACHEPREFIX": nowhere,
                "PYTHONDONTWRITEBYTECODE": "1",
                RUN: "",
            },
            "by itself": {RUN: ""},
            "forked warm": {RUN: str(run.pid)},
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        try:
            for number in range(-2, rounds):  # the second forked job finds the libraries imported
                for way, environment in ways.items():
                    started = time.perf_counter()
                    subprocess.run(
                        [sys.executable, "-m", "leakbench", "run", RECORD],
                        cwd=folder,
                        env=os.environ | environment,
                        check=True,
                        capture_output=True,
                    )
                    if number >= 0:
                        seconds[way].append(time.perf_counter() - started)
        finally:
            run.kill()
    warm = statistics.median(seconds["forked warm"])
    for way, values in seconds.items():
        print(f"{way:35} {statistics.median(values):6.2f} s  {statistics.median(values) / warm:5.1f}x")


if __name__ == "__main__":
    main()
