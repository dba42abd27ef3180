"""Gradient matching over the weights of an untrained decoder, beside that over pixels with total variation.

Undefended gradients of untrained networks; as many iterations each, labels known. PSNR is after assignment within a
batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from benchmarks.local_steps import Clients, psnr
from benchmarks.measuring import options, prepared, taken
from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.presets import IGScript, UntrainedDecoder
from leakbench.attacks.regularisers import TotalVariation
from leakbench.data.base import ImageDataset
from leakbench.data.embedded import Digits, Photos
from leakbench.models.base import Model, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams


class Case(NamedTuple):
    """Victims of a data set under a model, and how these are called."""

    data: ImageDataset
    model: Model
    name: str


CASES = (
    Case(Digits(size=16), LeNet(initialisation="default", activation="relu"), "LeNet with ReLUs, digits 16x16"),
    Case(Photos(), SimpleConvNet(width=16), "SimpleConvNet 16, photos 32x32"),
)
SMOOTHNESS = (0.01, 0.05, 0.2)
"""Weights of total variation for the search over pixels."""


def victims(case: Case, clients: int, batch: int, device: torch.device) -> Clients:
    """Clients with a batch each, whose labels are known."""
    data = case.data
    network = build_network(case.model, data.shape, data.classes, 0, device)
    samples = data.load("test", range(clients * batch))
    pixels, labels = (tensor.unflatten(0, (clients, batch)).to(device) for tensor in samples)
    images = data.normalise(pixels.flatten(0, 1)).unflatten(0, (clients, batch))
    pairs = zip(images, labels, strict=True)
    gradients = torch.stack([network.gradient(network.parameters, *pair) for pair in pairs])
    ends = torch.tensor([0.0, 1.0], device=device).view(2, 1, 1, 1).expand(2, data.shape[0], 1, 1)
    seen = Observations(network, network.parameters, gradients, (batch, *data.shape))
    return Clients(pixels, seen, Knowledge(labels, data.normalise(ends)))


def main() -> None:
    """Attack all, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--iterations", type=int, default=300)
    arguments = parser.parse_args()
    device = prepared(arguments.threads, arguments.device)
    attacks: dict[str, Attack] = {
        f"`ig_script`, TV {weight:g}": IGScript(
            iterations=arguments.iterations, regularisers=(TotalVariation(weight=weight),)
        )
        for weight in SMOOTHNESS
    }
    attacks["`untrained_decoder`"] = UntrainedDecoder(iterations=arguments.iterations)
    print(f"{device}, {arguments.threads} threads, {arguments.clients} clients, {arguments.iterations} iterations")
    print("| victims | batch | attack | PSNR, dB | seconds |\n|---|---:|---|---:|---:|")
    for case in CASES:
        for batch in arguments.batches:
            clients = victims(case, arguments.clients, batch, device)
            for name, attack in attacks.items():
                streams = Streams([("benchmark", "decoder", row) for row in range(arguments.clients)])
                results: list[Reconstruction] = []

                def run(attack: Attack = attack, results: list[Reconstruction] = results) -> None:
                    results.append(attack.reconstruct(clients.seen, clients.knowledge, streams))  # noqa: B023

                seconds = taken(run, device)
                quality = psnr(results[0].images, clients)
                print(f"| {case.name} | {batch} | {name} | {quality:.1f} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
