"""Accuracy of `leakbench cost`: for an experiment without records, and for another scale.

python -m benchmarks.cost_model --known smoke --asked laptop
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from pathlib import Path
from statistics import median

from leakbench.planning.project import find_root
from leakbench.report.cost_model import CostModel, Measured
from leakbench.report.costs import SPEEDUP, earlier_costs, measured

Pair = tuple[Measured, float, float, float]
"""Measured cost of a job, and the estimate with its interval, in seconds."""


def compared(known: list[Measured], asked: list[Measured]) -> list[Pair]:
    """Estimates of one set of jobs from another, of the kinds that both have."""
    model, pairs = CostModel(known, SPEEDUP), []
    for each in asked:
        estimate = model.estimate(each.size, each.device)
        if estimate is not None:
            pairs.append((each, estimate.seconds, estimate.low, estimate.high))
    return pairs


def left_out(measured: list[Measured]) -> list[Pair]:
    """Estimates of every experiment's jobs from those of all others."""
    pairs = []
    for experiment in dict.fromkeys(each.experiment for each in measured):
        others = [each for each in measured if each.experiment != experiment]
        pairs += compared(others, [each for each in measured if each.experiment == experiment])
    return pairs


def table(title: str, pairs: list[Pair]) -> None:
    """By kind of job, how well its cost is estimated.

    How many jobs, the median of measured over estimated seconds and of the factor between them, how often the interval
    holds what was measured, and both sums.
    """
    print(f"\n{title}\n")
    print("| kind | jobs | measured / estimated | off by | in the interval | seconds measured | estimated |")
    print("|---|---|---|---|---|---|---|")
    groups: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        groups[pair[0].size.kind].append(pair)
    groups["all"] = pairs
    for kind, part in groups.items():
        ratios = [each.seconds / estimate for each, estimate, _, _ in part]
        off = math.exp(median(abs(math.log(ratio)) for ratio in ratios))
        inside = sum(low <= each.seconds <= high for each, _, low, high in part) / len(part)
        sums = sum(each.seconds for each, *_ in part), sum(estimate for _, estimate, _, _ in part)
        seconds = " | ".join(f"{total:.0f}" for total in sums)
        print(f"| {kind} | {len(part)} | {median(ratios):.2f} | {off:.2f} | {inside:.0%} | {seconds} |")


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--root", type=Path, help="the folder whose results are read (default: this checkout)")
    parser.add_argument("--known", default="smoke", help="scale that is known (default: smoke)")
    parser.add_argument("--asked", default="laptop", help="scale that is foretold (default: laptop)")
    arguments = parser.parse_args()
    earlier, _ = earlier_costs(arguments.root or find_root())
    scales: dict[str, list[Measured]] = defaultdict(list)
    for each, cost in zip(earlier, measured(earlier), strict=True):
        scales[each.job.scale].append(cost)
    table(f"{arguments.known}, every experiment from all others", left_out(scales[arguments.known]))
    if scales[arguments.asked]:
        table(f"{arguments.asked} from {arguments.known}", compared(scales[arguments.known], scales[arguments.asked]))


if __name__ == "__main__":
    main()
