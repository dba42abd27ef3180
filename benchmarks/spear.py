"""SPEAR's batches that come back exactly, by the size of the batch: how many, and in how many seconds.

CIFAR-10, staged, or the photographs inside scikit-learn; a fully connected network with one hidden layer of ReLUs, at
its initial weights; a batch is exact where every image is within a thousandth of a true one.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from benchmarks.measuring import options, prepared
from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.spear import Spear
from leakbench.data.base import DATASETS, ImageDataset
from leakbench.models.base import build_network
from leakbench.models.linear import MLP
from leakbench.randomness import Streams

EXACT = 1e-3
"""Largest error of a pixel, in normalised inputs."""


def measured(arguments: argparse.Namespace, batch: int) -> tuple[int, list[float]]:
    """Attack batches of one size, one after the other: how many came back exactly, and the seconds of each."""
    device = prepared(arguments.threads, arguments.device)
    data = DATASETS.get(arguments.data)()
    assert isinstance(data, ImageDataset)
    network = build_network(MLP(width=arguments.width), data.shape, data.classes, 0, device)
    samples = data.load("test", range(batch * arguments.batches))
    images = data.normalise(samples.values).unflatten(0, (arguments.batches, batch)).to(device)
    labels = samples.labels.unflatten(0, (arguments.batches, batch)).to(device)
    exact, seconds = 0, []
    for row, truth in enumerate(images):
        gradient = network.gradient(network.parameters, truth, labels[row])
        seen = Observations(network, network.parameters, gradient[None], (batch, *data.shape))
        started = time.perf_counter()
        result = (
            Spear(draws=arguments.draws)
            .reconstruct(seen, Knowledge(), Streams([("benchmark", "spear", row)]))
            .images[0]
        )
        seconds.append(time.perf_counter() - started)
        exact += bool(torch.cdist(truth.flatten(1), result.flatten(1), p=torch.inf).amin(dim=1).max() < EXACT)
    return exact, seconds


def main() -> None:
    """Measure all sizes, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--data", default="cifar10", help="name of a data set")
    parser.add_argument("--width", type=int, default=200, help="hidden units")
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--draws", type=int, default=10_000_000, help="most draws of rows per batch")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4, 8, 12, 16])
    arguments = parser.parse_args()
    print(f"{arguments.device}, {arguments.threads} threads, {arguments.data}, width {arguments.width}")
    print("| batch | exact | seconds, median | largest |\n|---:|---:|---:|---:|")
    for size in arguments.sizes:
        exact, seconds = measured(arguments, size)
        print(
            f"| {size} | {exact} of {arguments.batches} | {statistics.median(seconds):.2f} | {max(seconds):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
