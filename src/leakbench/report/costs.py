"""What jobs are expected to take."""

from __future__ import annotations

import csv
from pathlib import Path


def planned_seconds(root: Path, scale: str) -> dict[str, float]:
    """Expected seconds of every job of a scale, by record; empty if they were never estimated."""
    path = root / "results" / scale / "costs.csv"
    if not path.is_file():
        return {}
    with path.open(newline="") as file:
        return {row["record"]: float(row["seconds"]) for row in csv.DictReader(file)}
