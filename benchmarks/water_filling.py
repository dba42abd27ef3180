"""Water-filling noise of one user: from the Gram matrix of its records against a dense eigendecomposition, in one run.

(a) forms the covariance of K x K, decomposes it, and draws noise along its eigenvectors, as the paper describes;
(b) is ``update_spectrum`` and ``added_noise``. Where (a) fits, the noise of both must have the same covariance. Times
are of the process on a CPU, wall-clock on a GPU, the smallest of some turns; on a CPU (b) has its wall-clock time
too. Peaks are of the tensors that are made, beside the gradients. Each size runs in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch

from benchmarks.measuring import fastest, in_a_process, options
from leakbench.jobs.runner import Placement
from leakbench.numerics.footprint import footprint
from leakbench.randomness import generator
from leakbench.theory.water_filling import added_noise, update_spectrum

BATCH = 32


def gradients(size: int, records: int, device: torch.device) -> torch.Tensor:
    """Gradients of norm ten with a common part, as columns ``[K, D]``."""
    draw = generator("benchmark", "water_filling")
    columns = torch.randn(size, records, generator=draw) + torch.randn(size, 1, generator=draw)
    scaled: torch.Tensor = 10 * columns / columns.norm(dim=0)
    return scaled.to(device)


def dense(columns: torch.Tensor, variance: float, normal: torch.Tensor) -> torch.Tensor:
    """Noise along the eigenvectors of the covariance, by its definition."""
    covariance = columns.double() @ columns.mT.double() / (BATCH * columns.shape[1])
    values, vectors = torch.linalg.eigh(covariance)
    noise: torch.Tensor = (normal.double() * (variance - values).clamp(min=0).sqrt()) @ vectors.mT
    return noise


def lean(columns: torch.Tensor, variance: float, normal: torch.Tensor) -> torch.Tensor:
    """The noise that the mechanism draws."""
    return added_noise(update_spectrum(columns, BATCH), variance, normal)


def cell(arguments: argparse.Namespace) -> dict[str, float]:
    """Measure one size, in this process."""
    device = Placement(arguments.device, arguments.threads).resolve()
    columns = gradients(arguments.size, arguments.records, device)
    floor = arguments.variance
    normal = torch.randn(1, arguments.size, generator=generator("benchmark", "normal")).to(device)
    works: dict[str, Callable[[], object]] = {"ours": lambda: lean(columns, floor, normal)}
    started = time.perf_counter()
    lean(columns, floor, normal)[0, 0].item()  # waits for a GPU
    result = {
        "clock": time.perf_counter() - started,
        "ours_bytes": footprint(lambda: lean(columns, floor, normal)).bytes,
    }
    if arguments.size <= arguments.dense_up_to:
        unit = torch.eye(arguments.size, device=device)
        theirs, ours = dense(columns, floor, unit), lean(columns, floor, unit).double()
        torch.testing.assert_close(ours.mT @ ours, theirs.mT @ theirs, rtol=0, atol=1e-5 * floor)
        works["peer"] = lambda: dense(columns, floor, normal)
        result["peer_bytes"] = footprint(lambda: dense(columns, floor, normal)).bytes
    return result | fastest(works, device, arguments.repeats)


def main() -> None:
    """Measure all sizes and print a table."""
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--records", type=int, default=256)
    parser.add_argument("--variance", type=float, default=0.05)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 2_000, 7_850, 120_000])
    parser.add_argument("--dense-up-to", type=int, default=2_000, help="largest size of (a)")
    parser.add_argument("--size", type=int, help="measure one size in this process")
    arguments = parser.parse_args()
    if arguments.size:
        print(json.dumps(cell(arguments)))
        return
    print(f"{arguments.device}, {arguments.threads} threads, {arguments.records} records")
    print("| coordinates | (a) dense, s | (b) Gram matrix, s | (a) / (b) | (b) wall-clock, s | peak MiB, (a) / (b) |")
    print("|---" * 6 + "|")
    numbers = ("device", "threads", "repeats", "records", "variance")
    words = [f"--{name}={getattr(arguments, name)}" for name in numbers]
    words.append(f"--dense-up-to={arguments.dense_up_to}")
    for size in arguments.sizes:
        costs = in_a_process("water_filling", *words, f"--size={size}")
        peer, ratio, peak = "", "", ""
        if "peer" in costs:
            peer, ratio = f"{costs['peer']:.2f}", f"{costs['peer'] / costs['ours']:.0f}"
            peak = f"{costs['peer_bytes'] / 2**20:.0f} / "
        print(
            f"| {size:,} | {peer} | {costs['ours']:.3f} | {ratio} | {costs['clock']:.3f} "
            f"| {peak}{costs['ours_bytes'] / 2**20:.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
