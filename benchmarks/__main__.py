"""``python -m benchmarks``: every goal of speed, what this run measured, and whether that reaches it; in minutes.

The scripts beside it have the tables behind the ratios.
"""

from __future__ import annotations

import argparse
import time

from benchmarks import (
    adaptive_attacks,
    attack_engine,
    channel_calibration,
    federated_round,
    private_runs,
    soteria,
    training_runs,
)

SCRIPTS = (
    attack_engine,
    adaptive_attacks,
    soteria,
    private_runs,
    training_runs,
    federated_round,
    channel_calibration,
)


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    started = time.perf_counter()
    print("| ratio | goal | measured | |\n|---|---:|---:|---|")
    for script in SCRIPTS:
        for goal in script.goals():
            bound = "at most" if goal.at_most else "at least"
            verdict = "" if goal.met else "missed"
            print(f"| {goal.what} | {bound} {goal.goal:g} | {goal.measured:.2f} | {verdict} |", flush=True)
    print(f"\n{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
