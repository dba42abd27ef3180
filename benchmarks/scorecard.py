"""Cost of the scorecard of many records: seconds, memory and the size of the page.

It copies the tables and pictures of a scale that is complete, repeats the rows of the tables of provenance, gates,
adaptive attacks and missing numbers until there are so many records, and writes the page in a process of its own. The
best of a few.

    python -m benchmarks.scorecard --scale smoke --records 5000
"""

from __future__ import annotations

import argparse
import math
import shutil
import sys
import tempfile
from pathlib import Path

import pandas as pd

from benchmarks.planning import measure

ROOT = Path(__file__).parents[1]
NAMES = ("provenance.csv", "gates.csv", "missing.csv", "adaptive.csv")


def copied(root: Path, scale: str, folder: Path, records: int) -> int:
    """Make a checkout with as many records in its tables; returns how many it has."""
    shutil.copytree(root / "config", folder / "config")
    shutil.copytree(root / "published", folder / "published")
    shutil.copytree(root / "figures" / scale, folder / "figures" / scale)
    tables = {path: pd.read_csv(path) for name in NAMES for path in (root / "results" / scale).rglob(name)}
    there = sum(len(frame) for path, frame in tables.items() if path.name == "provenance.csv")
    if not there:
        raise SystemExit(f"{root}: no provenance.csv below results/{scale}; run `make replicate SCALE={scale}` first")
    times = math.ceil(records / there)
    for path, frame in tables.items():
        to = folder / path.relative_to(root)
        to.parent.mkdir(parents=True, exist_ok=True)
        pd.concat([frame] * times).to_csv(to, index=False)
    return times * there


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="a checkout with a complete scale (default: this one)")
    parser.add_argument("--scale", default="smoke")
    parser.add_argument("--records", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        records = copied(arguments.root, arguments.scale, folder, arguments.records)
        page = f"results/{arguments.scale}/scorecard.html"
        command = [sys.executable, "-m", "leakbench", "scorecard", page]
        wall, cpu, memory = measure(command, arguments.repeats, folder)
        size = (folder / page).stat().st_size / 1e6
    print(f"{records} records: {wall:.1f} s, {cpu:.1f} s of processors, {memory:.0f} MiB; a page of {size:.2f} MB")


if __name__ == "__main__":
    main()
