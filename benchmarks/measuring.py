"""Measuring of benchmarks: seconds, the fastest of several turns, the price of a step, a process for each cell."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from leakbench.libraries.memory import keep_freed_memory


class Goal(NamedTuple):
    """A ratio, and what it should reach.

    Attributes:
        what: both sides of the comparison.
        goal: the ratio, at least; or at most.
        measured: the ratio in this run.
        at_most: whether the goal is an upper bound.
    """

    what: str
    goal: float
    measured: float
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        return self.measured <= self.goal if self.at_most else self.measured >= self.goal


def options(description: str | None, threads: int = 1) -> argparse.ArgumentParser:
    """A command line with ``--device`` and ``--threads``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=threads)
    return parser


def prepared(threads: int, device: str = "cpu") -> torch.device:
    """The device, for measurements in this process as jobs compute: on some threads, with freed memory kept."""
    torch.set_num_threads(threads)
    keep_freed_memory()
    return torch.device(device)


def taken(work: Callable[[], object], device: torch.device) -> float:
    """Seconds: of the process on a CPU, wall-clock on a GPU."""
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    started = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - started


def fastest(works: dict[str, Callable[[], object]], device: torch.device, repeats: int) -> dict[str, float]:
    """The smallest number of seconds that each took, of ``repeats`` turns."""
    turns = [{name: taken(work, device) for name, work in works.items()} for _ in range(repeats)]
    return {name: min(turn[name] for turn in turns) for name in works}


def marginal_costs(
    works: Sequence[Callable[[int], torch.Tensor]], steps: int, turns: int, device: torch.device
) -> list[float]:
    """Milliseconds per step of works that take a number of steps and compute the same; without what starting costs."""
    results = [work(2) for work in works]  # and warms up
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-3, atol=1e-4)
    costs = [float("inf")] * len(works)
    for _ in range(turns):
        for index, work in enumerate(works):
            short, long = (taken(partial(work, count), device) for count in (1, 1 + steps))
            costs[index] = min(costs[index], 1e3 * (long - short) / steps)
    return costs


def row_of(costs: Sequence[float]) -> str:
    """Costs as cells of a table; in brackets, how often the first is as slow as the others."""
    cells = [f"{cost:.1f} ({costs[0] / cost:.2f}x)" for cost in costs[1:]]
    return " | ".join([f"{costs[0]:.1f}", *cells])


def in_a_process(module: str, *words: str, quiet: bool = False) -> dict[str, float]:
    """The last line that ``python -m benchmarks.<module>`` prints, as JSON; a process per cell separates their memory.

    Args:
        module: a benchmark.
        words: of its command line.
        quiet: whether to drop its standard error.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{module}", *words],
        cwd=Path(__file__).parents[1],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if quiet else None,
        text=True,
    )
    numbers: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return numbers
