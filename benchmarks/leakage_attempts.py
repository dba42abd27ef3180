"""Many attempts of DLG: all models, clients and attempts in one search, against a loop over attempts.

The loop is how public code runs it: ``torch.optim.LBFGS`` on one batch, derivatives by ``torch.autograd.grad`` with
``create_graph``; it may use both cores. The search runs as jobs do: one thread, and one process per core. Both make the
same number of evaluations per attempt.

    python -m benchmarks.leakage_attempts
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import torch
from torch.nn.functional import cross_entropy

from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.presets import DLGWolfe
from leakbench.data.embedded import Digits
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, build_network
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams

MODELS, CLIENTS, CORES = 4, 4, 2


def uploads(images_each: int) -> tuple[list[Network], torch.Tensor, torch.Tensor]:
    """Models, and the clients' batches ``[K, S, ...]``."""
    dataset = Digits()
    samples = dataset.load("train", range(CLIENTS * images_each))
    networks = [build_network(LeNet(), dataset.shape, dataset.classes, seed) for seed in range(MODELS)]
    shape = (CLIENTS, images_each)
    return networks, dataset.normalise(samples.values).unflatten(0, shape), samples.labels.unflatten(0, shape)


def batched(images_each: int, attempts: int, iterations: int) -> None:
    """All models, clients and attempts in one search, on one thread."""
    torch.set_num_threads(1)
    networks, images, labels = uploads(images_each)
    keys = [
        (model, attempt, client) for model in range(MODELS) for attempt in range(attempts) for client in range(CLIENTS)
    ]
    parameters = torch.stack([network.parameters for network in networks]).repeat_interleave(CLIENTS * attempts, dim=0)
    every = images.repeat(MODELS * attempts, 1, 1, 1, 1), labels.repeat(MODELS * attempts, 1)
    steps = ClientSteps(networks[0], parameters, *every, Streams(keys))
    observations = Observations(networks[0], parameters, steps.gradient, tuple(images.shape[1:]))
    DLGWolfe(iterations=iterations).reconstruct(observations, Knowledge(), Streams(keys))


def one_by_one(images_each: int, iterations: int, threads: int) -> None:
    """One attempt on every client at every model after the other, as in public code."""
    torch.set_num_threads(threads)
    networks, images, labels = uploads(images_each)
    for network in networks:
        module = network.trainable_module()
        weights = list(module.parameters())
        for truth, classes in zip(images, labels, strict=True):
            target = [part.detach() for part in torch.autograd.grad(cross_entropy(module(truth), classes), weights)]
            _attempt(module, weights, target, truth.shape, iterations)


def _attempt(
    module: torch.nn.Module,
    weights: list[torch.nn.Parameter],
    target: list[torch.Tensor],
    shape: torch.Size,
    iterations: int,
) -> None:
    dummy = torch.randn(shape, requires_grad=True)
    scores = torch.randn(shape[0], 10, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [dummy, scores],
        lr=1,
        max_iter=iterations,
        max_eval=iterations,
        history_size=100,
        line_search_fn="strong_wolfe",
        tolerance_change=0.0,
    )

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = cross_entropy(module(dummy), scores.softmax(dim=-1))
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        distance = torch.stack([(a - b).square().sum() for a, b in zip(gradients, target, strict=True)]).sum()
        distance.backward()
        return distance

    optimiser.step(closure)


def main() -> None:
    """A row per batch size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attempts", type=int, default=8, help="per client and model, in each process")
    parser.add_argument("--iterations", type=int, default=100)
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    print("Seconds of wall time per attempt; the ratio is to the faster loop.\n")
    print("| images of a batch | a loop, one thread | a loop, two threads | batched, two processes | ratio |")
    print("|---|---|---|---|---|")
    for images_each in (1, 2, 4):
        with ProcessPoolExecutor(CORES, context) as pool:
            for _ in pool.map(batched, [images_each] * CORES, [1] * CORES, [2] * CORES):
                pass  # imports and first calls
            started = time.perf_counter()
            together = pool.map(
                batched, [images_each] * CORES, [arguments.attempts] * CORES, [arguments.iterations] * CORES
            )
            list(together)
            fast = (time.perf_counter() - started) / (CORES * MODELS * CLIENTS * arguments.attempts)
            pool.submit(one_by_one, images_each, 2, 1).result()
            slow = []
            for threads in (1, CORES):
                started = time.perf_counter()
                pool.submit(one_by_one, images_each, arguments.iterations, threads).result()
                slow.append((time.perf_counter() - started) / (MODELS * CLIENTS))
        columns = " | ".join(f"{seconds:.3f}" for seconds in (*slow, fast))
        print(f"| {images_each} | {columns} | {min(slow) / fast:.1f}x |", flush=True)


if __name__ == "__main__":
    main()
