"""Cost of calibrating a data-space channel and of drawing its noise, beside one epoch of training.

Every case runs in a process of its own, on random images of a steep spectrum, so that its peak of memory is its own:
what the process holds at most while it calibrates, beyond what it held before (the images among it). One epoch is plain
SGD of LeNet on the same images, as one would write it by hand. Times are wall-clock, and of all threads together.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from benchmarks.measuring import Goal, fastest
from leakbench.data.covariance import moments_of
from leakbench.defenses.base import DEFENSES
from leakbench.federated.client_data import ClientData
from leakbench.models.base import build_network
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams

CHANNELS: dict[str, dict[str, str]] = {
    "natural_channel": {},
    "white_channel": {},
    "personalized_channel": {},
    "personalized_channel, bound": {"solution": "bound"},
}
CASES = ("covariance", *CHANNELS, "epoch")


def images_of(count: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """``[count, C, H, W]``: white noise, smoothed in place until its spectrum is as steep as that of photographs."""
    images = torch.randn(count, *shape, generator=torch.Generator().manual_seed(0))
    for part in images.split(1024):
        smooth = torch.nn.functional.avg_pool2d(part, 7, stride=1, padding=3)
        part.mul_(0.02).add_(smooth, alpha=3.0)
    return images


def peak() -> int:
    """Largest resident size of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident() -> int:
    """Resident size of this process now, in bytes (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def timed(work: Callable[[], object]) -> str:
    """Wall and processor seconds of one call, as cells of a table."""
    wall, processor = time.perf_counter(), time.process_time()
    work()
    return f"{time.perf_counter() - wall:.1f} | {time.process_time() - processor:.1f}"


def epoch(images: torch.Tensor, batch: int = 64) -> None:
    """One epoch of plain SGD on LeNet."""
    network = build_network(LeNet(), tuple(images.shape[1:]), 10, 0)
    module = network.trainable_module()
    optimiser = torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9)
    labels = torch.arange(len(images)) % 10
    order = torch.randperm(len(images))
    for rows in order.split(batch):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(images[rows]), labels[rows]).backward()
        optimiser.step()


def run_case(case: str, count: int, shape: tuple[int, int, int]) -> None:
    """Measure one case and print its row."""
    images = images_of(count, shape)
    assert moments_of(images[:64, :, :4, :4]).rank  # libraries are loaded
    before, draw = resident(), " | "
    if case == "epoch":
        calibration = timed(lambda: epoch(images))
    elif case == "covariance":
        calibration = timed(lambda: moments_of(images))
    else:
        channel = DEFENSES.get(case.split(",")[0])(**{"kappa": 300, **CHANNELS[case]})
        ready = []
        calibration = timed(lambda: ready.append(channel.calibrate(ClientData(images[None]))))
    extra = (peak() - before) / 2**20
    if case in CHANNELS:
        streams = Streams([("benchmark",)])
        labels = torch.zeros(1, count, dtype=torch.int64)
        draw = timed(lambda: ready[0].protect_dataset(images[None], labels, streams))
    print(f"| {case} | {calibration} | {extra:.0f} | {draw} |", flush=True)


def goals() -> Iterator[Goal]:
    """White noise of photographs' size, over an epoch; both take time in proportion to the images."""
    torch.set_num_threads(1)
    images = images_of(6_000, (3, 32, 32))
    ready = DEFENSES.get("white_channel")(**{"kappa": 300}).calibrate(ClientData(images[None]))
    labels, streams = torch.zeros(1, len(images), dtype=torch.int64), Streams([("benchmark",)])
    works: dict[str, Callable[[], object]] = {
        "noise": lambda: ready.protect_dataset(images[None], labels, streams),
        "epoch": lambda: epoch(images),
    }
    seconds = fastest(works, torch.device("cpu"), 2)
    yield Goal("drawing white noise, over an epoch of LeNet", 0.05, seconds["noise"] / seconds["epoch"], at_most=True)


def main() -> None:
    """Run every case in a fresh process and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--shape", type=int, nargs=3, default=(3, 32, 32))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--case", choices=CASES, help="this one alone, in this process")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.case:
        run_case(arguments.case, arguments.images, tuple(arguments.shape))
        return
    print("| case | wall, s | processor, s | extra MiB | drawing the noise: wall, s | processor, s |")
    print("|---|---|---|---|---|---|", flush=True)
    for case in CASES:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.channel_calibration", *sys.argv[1:], "--case", case], check=True
        )


if __name__ == "__main__":
    main()
