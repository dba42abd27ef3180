"""Cocktail Party on batches behind a fully connected first layer: with the negentropy, and as released without it.

A fully connected network with one hidden layer of ReLUs, at its initial weights. PSNR is after assignment.
"""

from __future__ import annotations

from functools import partial

import torch

from benchmarks.local_steps import Clients, psnr
from benchmarks.measuring import options, prepared, taken
from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.cocktail_party import CocktailParty, CocktailPartyAsReleased
from leakbench.data.base import DATASETS, ImageDataset
from leakbench.models.base import build_network
from leakbench.models.linear import MLP
from leakbench.randomness import Streams


def victims(data: ImageDataset, width: int, clients: int, batch: int, device: torch.device) -> Clients:
    """Clients with a batch each."""
    network = build_network(MLP(width=width), data.shape, data.classes, 0, device)
    samples = data.load("test", range(clients * batch))
    pixels, labels = (tensor.unflatten(0, (clients, batch)).to(device) for tensor in samples)
    images = data.normalise(pixels.flatten(0, 1)).unflatten(0, (clients, batch))
    pairs = zip(images, labels, strict=True)
    gradients = torch.stack([network.gradient(network.parameters, *pair) for pair in pairs])
    ends = torch.tensor([0.0, 1.0], device=device).view(2, 1, 1, 1).expand(2, data.shape[0], 1, 1)
    seen = Observations(network, network.parameters, gradients, (batch, *data.shape))
    return Clients(pixels, seen, Knowledge(pixel_range=data.normalise(ends)))


def main() -> None:
    """Attack batches of all sizes, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--data", default="cifar10", help="name of a data set")
    parser.add_argument("--width", type=int, default=256, help="hidden units")
    parser.add_argument("--clients", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--released", type=int, default=25_000, help="iterations of the authors' settings")
    arguments = parser.parse_args()
    device = prepared(arguments.threads, arguments.device)
    data = DATASETS.get(arguments.data)()
    assert isinstance(data, ImageDataset)
    attacks: dict[str, Attack] = {
        "`cocktail_party`": CocktailParty(iterations=arguments.iterations),
        "the same, `form: as_released`": CocktailParty(iterations=arguments.iterations, form="as_released"),
        "`cocktail_party_as_released`": CocktailPartyAsReleased(iterations=arguments.released),
    }
    print(f"{device}, {arguments.threads} threads, {data.name}, width {arguments.width}, {arguments.clients} clients")
    print("| batch | attack | PSNR, dB | seconds a batch |\n|---:|---|---:|---:|")
    for size in arguments.sizes:
        clients = victims(data, arguments.width, arguments.clients, size, device)
        mean = data.normalise(data.load("train", range(1000)).values.mean(dim=0, keepdim=True)).to(device)
        print(f"| {size} | the mean image | {psnr(mean[None].expand_as(clients.pixels), clients):.1f} | |")
        for name, attack in attacks.items():
            streams = Streams([("benchmark", "cocktail", row) for row in range(arguments.clients)])
            results: list[Reconstruction] = []
            run = partial(attack.reconstruct, clients.seen, clients.knowledge, streams)
            seconds = taken(lambda run=run, results=results: results.append(run()), device)  # type: ignore[misc]
            quality = psnr(results[0].images, clients)
            print(f"| {size} | {name} | {quality:.1f} | {seconds / arguments.clients:.0f} |", flush=True)


if __name__ == "__main__":
    main()
