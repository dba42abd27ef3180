"""Attacks on updates of several local steps: what they reach, and what they cost.

Clients with a few images each take a step per image, in an order that they draw anew in every epoch, on LeNet with
ReLUs at its initial weights. Labels are read off the update. PSNR is after assignment within a client's images.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.measuring import options, prepared, taken
from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.presets import IGScript
from leakbench.attacks.regularisers import TotalVariation
from leakbench.attacks.surrogate import Surrogate
from leakbench.attacks.unordered import Unordered
from leakbench.data.base import DATASETS, ImageDataset
from leakbench.data.embedded import Digits
from leakbench.federated.local import LocalTraining
from leakbench.metrics.assignment import assign, reorder
from leakbench.models.base import Network, build_network
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams, generator


class Clients(NamedTuple):
    """Victims: pixels ``[n, B, C, H, W]``, what the server sees of them, and what the attacker knows."""

    pixels: torch.Tensor
    seen: Observations
    knowledge: Knowledge


def update(
    network: Network, images: torch.Tensor, labels: torch.Tensor, local: LocalTraining, seed: int
) -> torch.Tensor:
    """The update of a client with images ``[B, C, H, W]``, in a new order every epoch."""
    draw, now = generator("orders", seed), network.parameters
    for _ in range(local.steps // len(images)):
        for place in torch.randperm(len(images), generator=draw).split(1):
            now = now - local.rate * network.gradient(now, images[place], labels[place])
    return (network.parameters - now) / local.rate


def victims(arguments: argparse.Namespace, data: ImageDataset, steps: int, device: torch.device) -> Clients:
    """The clients, after so many local steps."""
    network = build_network(LeNet(initialisation="default", activation="relu"), data.shape, data.classes, 0, device)
    clients, held = arguments.clients, arguments.images
    samples = data.load("test", range(clients * held))
    pixels, labels = (tensor.unflatten(0, (clients, held)).to(device) for tensor in samples)
    images = data.normalise(pixels.flatten(0, 1)).unflatten(0, (clients, held))
    local = LocalTraining(steps=steps, rate=arguments.rate, batch_size=1)
    updates = torch.stack(
        [update(network, *pair, local, row) for row, pair in enumerate(zip(images, labels, strict=True))]
    )
    seen = Observations(network, network.parameters, updates, (held, *data.shape), local)
    ends = torch.tensor([0.0, 1.0], device=device).view(2, 1, 1, 1).expand(2, data.shape[0], 1, 1)
    return Clients(pixels, seen, Knowledge(pixel_range=data.normalise(ends)))


def psnr(inputs: torch.Tensor, clients: Clients) -> float:
    """Mean PSNR in dB of network inputs, after assignment."""
    assert clients.knowledge.pixel_range is not None
    low, high = clients.knowledge.pixel_range
    pixels = ((inputs - low) / (high - low)).clamp(0, 1)
    error = (reorder(pixels, assign(pixels, clients.pixels)) - clients.pixels).square().mean(dim=(2, 3, 4))
    return float((-10 * error.log10()).mean())


def attacks(iterations: int) -> dict[str, Attack]:
    """The attackers, with as many evaluations each."""
    smooth = (TotalVariation(weight=0.01),)
    return {
        "`surrogate`": Surrogate(iterations=iterations, labels="interpolated"),
        "the same at the model before (`between: 0, between_rate: 0`)": Surrogate(
            iterations=iterations, labels="interpolated", between=0, between_rate=0
        ),
        "steps repeated in one order (`ig_script`, TV 0.01)": IGScript(
            iterations=iterations, labels="interpolated", regularisers=smooth
        ),
        "`unordered`": Unordered(iterations=iterations),
        "`unordered`, 4 restarts": Unordered(iterations=iterations, restarts=4),
    }


def main() -> None:
    """Attack all, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--data", default="digits", help="name of a data set; digits are of 16x16")
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--images", type=int, default=5, help="of each client")
    parser.add_argument("--rate", type=float, default=0.05, help="of the clients' steps")
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--steps", type=int, nargs="+", default=[5, 20], help="whole epochs")
    arguments = parser.parse_args()
    device = prepared(arguments.threads, arguments.device)
    data = Digits(size=16) if arguments.data == "digits" else DATASETS.get(arguments.data)()
    assert isinstance(data, ImageDataset)
    print(f"{device}, {arguments.threads} threads, {data.name}, {arguments.iterations} iterations")
    print("| local steps | attack | PSNR, dB | seconds |\n|---:|---|---:|---:|")
    for steps in arguments.steps:
        clients = victims(arguments, data, steps, device)
        mean = data.normalise(data.load("train", range(1000)).values.mean(dim=0, keepdim=True)).to(device)
        print(f"| {steps} | the mean image | {psnr(mean[None].expand_as(clients.pixels), clients):.1f} | |")
        for name, attack in attacks(arguments.iterations).items():
            streams = Streams([("benchmark", "local steps", row) for row in range(arguments.clients)])
            results: list[Reconstruction] = []
            run = partial(attack.reconstruct, clients.seen, clients.knowledge, streams)
            seconds = taken(lambda run=run, results=results: results.append(run()), device)  # type: ignore[misc]
            print(f"| {steps} | {name} | {psnr(results[0].images, clients):.1f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
