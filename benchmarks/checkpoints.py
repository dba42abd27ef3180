"""Cost of saving the state of a long loop: seconds by size, their share of a long job, and of steps between saves.

python -m benchmarks.checkpoints
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from leakbench.attacks.optimisers import LBFGS, Adam
from leakbench.numerics.stateful import named
from leakbench.running.checkpoint import CHECKPOINT_S, EVERY, State, loop, opened

TRIALS, IMAGE = 64, 3 * 32 * 32


def states() -> dict[str, State]:
    """States as jobs have them, by description."""
    points = torch.randn(TRIALS, IMAGE)
    by_description: dict[str, State] = {}
    for name, optimiser in (("Adam", Adam(rate=0.1)), ("L-BFGS, 100 pairs", LBFGS(line_search="strong_wolfe"))):
        descent = optimiser.start(points, 1000, None)
        for _ in range(3):
            descent.tell(torch.rand(TRIALS), torch.randn(TRIALS, IMAGE), torch.ones(TRIALS, dtype=torch.bool))
        by_description[f"{TRIALS} images of 3x32x32, {name}"] = {"held": points, **named("descent", descent.state())}
    models = torch.randn(10, 2_904_970)
    by_description["10 runs of ConvNet 64 with momentum"] = {"current": models, "velocity": models.clone()}
    by_description["one ResNet-18 of 43.9 million parameters with Adam"] = {
        name: torch.randn(43_934_912) for name in ("current", "first", "second")
    }
    return by_description


def ticks(folder: Path | None, state: State, every: float, steps: int) -> list[float]:
    """Seconds of every step of a loop that does nothing else; outside of a job without a folder."""
    os.environ[EVERY] = str(every)
    seconds = []

    def run() -> None:
        with loop("nothing", steps, quiet=True, ends=False) as walk:
            for _ in walk.steps:
                started = time.perf_counter()
                walk.tick(lambda: state)
                seconds.append(time.perf_counter() - started)

    if folder is None:
        run()
    else:
        with opened(folder, lambda: {"job": "benchmark"}):
            run()
    return seconds


def main() -> None:
    """Print a row for each state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--folder", help="where to save (default: a temporary folder)")
    arguments = parser.parse_args()
    print(f"| state | MB | seconds of a save | of {CHECKPOINT_S:.0f} s |\n|---|---|---|---|")
    for name, state in states().items():
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            seconds = statistics.median(ticks(Path(folder), state, 0.0, arguments.saves))
        size = sum(tensor.nbytes for tensor in state.values()) / 1e6
        print(f"| {name} | {size:.0f} | {seconds:.2g} | {seconds / CHECKPOINT_S:.2%} |")
    small = {"value": torch.zeros(1)}
    with tempfile.TemporaryDirectory() as folder:
        inside = statistics.median(ticks(Path(folder), small, 1e9, 10_000))
    outside = statistics.median(ticks(None, small, 1e9, 10_000))
    print(f"\nA step that saves nothing: {1e6 * inside:.1f} us in a job, {1e6 * outside:.1f} us outside of one.")


if __name__ == "__main__":
    main()
