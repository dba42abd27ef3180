"""MixUp against searches for mixed images with mixed labels, and against what takes them apart.

Digits of 16 x 16 under LeNet at its initial weights; the searches are DLG with a line search. PSNR is after assignment.
"""

from __future__ import annotations

import torch

from benchmarks.local_steps import Clients, psnr
from benchmarks.measuring import options, prepared
from leakbench.attacks.base import Attack, Knowledge, Observations
from leakbench.attacks.presets import DLGWolfe
from leakbench.attacks.unmixed import Unmixed
from leakbench.data.embedded import Digits
from leakbench.defenses.clients import DefendedClients, Examples, calibrated
from leakbench.defenses.mixup import MixUp
from leakbench.federated.client_data import ClientData
from leakbench.federated.step import ClientSteps
from leakbench.models.base import build_network
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams

HALF_MIXED = 0.25
"""Weight of the lighter image from which on images are told as mixed."""


def victims(data: Digits, clients: int, batch: int, device: torch.device) -> tuple[Clients, torch.Tensor]:
    """Clients with a mixed batch each, and the weight of their lighter images."""
    network = build_network(LeNet(), data.shape, data.classes, 0, device)
    samples = data.load("test", range(clients * batch))
    pixels, labels = (tensor.unflatten(0, (clients, batch)).to(device) for tensor in samples)
    images = data.normalise(pixels.flatten(0, 1)).unflatten(0, (clients, batch))
    streams = Streams([("benchmark", "mixup", batch, client) for client in range(clients)])
    defense = calibrated(MixUp(), ClientData(images, data.classes))
    held = Examples(images, labels)
    mixed = DefendedClients(defense, streams, held).protect_data(held, streams)
    gradients = ClientSteps(network, network.parameters, *mixed, streams).gradient
    seen = Observations(network, network.parameters, gradients, (batch, *data.shape))
    ends = torch.tensor([0.0, 1.0], device=device).view(2, 1, 1, 1)
    lighter = 1 - mixed.labels.amax(dim=2).amin(dim=1)
    return Clients(pixels, seen, Knowledge(labels=labels, pixel_range=data.normalise(ends))), lighter


def main() -> None:
    """Attack batches of all sizes, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--restarts", type=int, default=4)
    arguments = parser.parse_args()
    device, data = prepared(arguments.threads, arguments.device), Digits(size=16)
    search = DLGWolfe(iterations=arguments.iterations, restarts=arguments.restarts)
    attacks: dict[str, Attack] = {
        "images with the labels granted": search.model_copy(update={"labels": "known"}),
        "mixtures with their labels": search,
        "`unmixed` around that": Unmixed(attack=search),
    }
    mean = data.normalise(data.load("train", range(500)).values.mean(dim=0, keepdim=True)).to(device)
    print("| batch | attack | PSNR, dB | of clients with a lighter weight of 1/4 or more |\n|---:|---|---:|---:|")
    for size in arguments.sizes:
        clients, lighter = victims(data, arguments.clients, size, device)
        streams = Streams([("benchmark", "attack", row) for row in range(arguments.clients)])
        results = {"the mean image": mean[None].expand_as(clients.pixels)}
        for name, attack in attacks.items():
            results[name] = attack.reconstruct(clients.seen, clients.knowledge, streams).images
        for name, images in results.items():
            mixed = (lighter >= HALF_MIXED).nonzero().flatten().tolist()
            some = Clients(clients.pixels[mixed], clients.seen, clients.knowledge)
            print(f"| {size} | {name} | {psnr(images, clients):.1f} | {psnr(images[mixed], some):.1f} ({len(mixed)}) |")


if __name__ == "__main__":
    main()
