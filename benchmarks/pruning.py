"""Selecting the smallest entries for pruning: numpy's partition against torch's k-th value, in one run.

(a) is the path of a GPU, (b) that of a CPU: ``Tensors.smallest`` takes one or the other. They must choose the same
entries. Seconds are of the process, the smallest of some turns.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from benchmarks.measuring import fastest, options, prepared
from leakbench.federated.tensors import _smallest, _smallest_on_cpu
from leakbench.randomness import generator


def gradients(clients: int, size: int, zeros: float) -> torch.Tensor:
    """Magnitudes of normal entries ``[clients, size]``, a part of them zero, as absent words leave embeddings'."""
    draw = generator("benchmark", "pruning")
    values = torch.randn(clients, size, generator=draw).abs()
    return values.where(torch.rand(clients, size, generator=draw) >= zeros, 0)


def main() -> None:
    """Measure both on gradients of clients and print a table."""
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    device = prepared(arguments.threads)
    print("| clients | entries | zeros | pruned | (a) torch, ms | (b) numpy, ms | (a) / (b) |")
    print("|---" * 7 + "|")
    for clients, size, zeros in [(180, 15_826, 0.0), (20, 150_826, 0.0), (96, 100_000, 0.9)]:
        values = gradients(clients, size, zeros)
        for fraction in (0.5, 0.95):
            count = int(fraction * size)
            assert torch.equal(_smallest(values, count), _smallest_on_cpu(values, count))
            works: dict[str, Callable[[], object]] = {
                "torch": partial(_smallest, values, count),
                "numpy": partial(_smallest_on_cpu, values, count),
            }
            costs = fastest(works, device, arguments.repeats)
            print(
                f"| {clients} | {size:,} | {zeros:.0%} | {fraction:.0%} | {costs['torch'] * 1000:.1f} "
                f"| {costs['numpy'] * 1000:.1f} | {costs['torch'] / costs['numpy']:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
