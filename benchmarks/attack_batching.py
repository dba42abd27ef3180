"""A batched attack against a loop of single attacks, by the same code, in one run.

Both do the same work: Inverting Gradients on single-image victims of one untrained model. The loop attacks one victim
after the other, as public implementations do; the batch attacks all at once. Prints a line per model.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import torch

from leakbench.attacks import inverting_gradients
from leakbench.attacks.base import Knowledge, Observations
from leakbench.data.base import DATASETS
from leakbench.jobs.runner import Placement
from leakbench.jobs.victims import Victims, gather_victims
from leakbench.models.base import MODELS
from leakbench.randomness import Streams

CASES = (
    ("simpleconvnet", {"width": 24}, "digits", {"size": 16}),
    ("simpleconvnet", {"width": 32}, "digits", {"size": 28}),
    ("convnet", {"width": 16}, "photos", {"size": 32}),
    ("convnet", {"width": 64}, "photos", {"size": 32}),
)


def attack(victims: Victims, gradients: torch.Tensor, pixel_range: torch.Tensor, rows: slice, iterations: int) -> None:
    """Reconstruct some of the victims from their gradients, ``[victims, d]``."""
    observations = Observations(victims.network, victims.parameters, gradients[rows], (1, *victims.inputs.shape[2:]))
    knowledge = Knowledge(labels=victims.labels[rows], pixel_range=pixel_range)
    method = inverting_gradients.InvertingGradients(iterations=iterations, rate=0.2, total_variation=1e-6)
    method.reconstruct(observations, knowledge, Streams(victims.streams.keys[rows]))


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call, after waiting for the device."""
    started = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - started


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--victims", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=20, help="per attack; the ratio hardly depends on it")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    device = Placement(arguments.device, arguments.threads).resolve()
    victims_count, iterations = arguments.victims, arguments.iterations
    print(f"{device}, {arguments.threads} threads, {victims_count} single-image victims, {iterations} iterations")
    print("| model | parameters | loop, victim-iterations/s | batch, victim-iterations/s | ratio | peak memory, GiB |")
    print("|---|---|---|---|---|---|")
    for model_name, model_parameters, dataset_name, dataset_parameters in CASES:
        model = MODELS.get(model_name)(**model_parameters)
        dataset = DATASETS.get(dataset_name)(**dataset_parameters)
        victims = gather_victims(
            dataset, dataset_name, model, 0, clients=victims_count, batch_size=1, first_index=1, device=device
        )
        pixels = torch.tensor([0.0, 1.0], device=device).view(2, 1, 1, 1).expand(2, dataset.channels, 1, 1)
        pixel_range = dataset.normalise(pixels)
        gradients = torch.func.vmap(victims.network.gradient, in_dims=(None, 0, 0))(
            victims.parameters, victims.inputs, victims.labels
        )
        single = partial(attack, victims, gradients, pixel_range)
        single(slice(0, 2), 2)  # warm up

        def loop(single: Callable[[slice, int], None] = single) -> None:
            # No room for two trials: else the engine runs a lone trial beside a copy of itself, for equal rounding.
            with patch.object(inverting_gradients, "MEMORY_BUDGET", 1):
                for row in range(victims_count):
                    single(slice(row, row + 1), iterations)

        looped = seconds(loop, device)
        batched = seconds(partial(single, slice(0, victims_count), iterations), device)
        work = victims_count * iterations
        if device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(device)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        name = f"{model_name}, width {model.width}, {dataset.size}x{dataset.size}"
        print(
            f"| {name} | {victims.network.dimension:,} | {work / looped:.0f} | {work / batched:.0f} "
            f"| {looped / batched:.1f} | {peak / 2**30:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
