"""PRECODE's bottleneck against searches that ignore its noise, that leave out layers, and that know or find the noise.

Digits of 16 x 16 under LeNet at its initial weights; the searches are DLG with a line search for the direction of the
gradient. PSNR is after assignment.
"""

from __future__ import annotations

import torch

from benchmarks.local_steps import Clients, psnr
from benchmarks.measuring import options, prepared
from leakbench.attacks.adaptive import DroppedLayers
from leakbench.attacks.base import Attack, Knowledge, Observations
from leakbench.attacks.bottleneck import Bottleneck
from leakbench.attacks.objectives import Cosine
from leakbench.attacks.presets import DLGWolfe
from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.clients import DefendedClients, Examples
from leakbench.defenses.precode import Precode
from leakbench.federated.step import ClientSteps
from leakbench.models.base import build_network
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams


def victims(data: Digits, defense: Defense, clients: int, batch: int, device: torch.device) -> Clients:
    """Clients with a batch each, under a defense."""
    initial = build_network(LeNet(), data.shape, data.classes, 0, device)
    network = defense.extend(initial, data.shape, seed=0)
    samples = data.load("test", range(clients * batch))
    pixels, labels = (tensor.unflatten(0, (clients, batch)).to(device) for tensor in samples)
    images = data.normalise(pixels.flatten(0, 1)).unflatten(0, (clients, batch))
    streams = Streams([("benchmark", "bottleneck", batch, client) for client in range(clients)])
    held = Examples(images, labels)
    given = DefendedClients(defense, streams, held).protect_data(held, streams)
    gradients = ClientSteps(network, network.parameters, *given, streams).gradient
    seen = Observations(network, network.parameters, gradients, (batch, *data.shape))
    ends = torch.tensor([0.0, 1.0], device=device).view(2, 1, 1, 1)
    return Clients(pixels, seen, Knowledge(labels=labels, pixel_range=data.normalise(ends)))


def main() -> None:
    """Attack batches of all sizes, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--iterations", type=int, default=200)
    parser.add_argument("--width", type=int, default=256)
    arguments = parser.parse_args()
    device, data = prepared(arguments.threads, arguments.device), Digits(size=16)
    search = DLGWolfe(iterations=arguments.iterations, objective=Cosine(), labels="known")
    mean = data.normalise(data.load("train", range(500)).values.mean(dim=0, keepdim=True)).to(device)
    print("| batch | clients' model | attack | PSNR, dB |\n|---:|---|---|---:|")
    for size in arguments.sizes:
        streams = Streams([("benchmark", "attack", row) for row in range(arguments.clients)])
        plain = victims(data, NoDefense(), arguments.clients, size, device)
        defended = victims(data, Precode(width=arguments.width), arguments.clients, size, device)
        behind = ".".join(defended.seen.network.names[-1].split(".")[:-2])
        attacks: list[tuple[Clients, str, Attack]] = [
            (plain, "DLG", search),
            (defended, "DLG, without noise", search),
            (defended, "`dropped_layers` around it", DroppedLayers(attack=search, layers=(behind,))),
            (defended, "`bottleneck` around it, `noise: search`", Bottleneck(attack=search, noise="search")),
        ]
        if size == 1:
            attacks.append((defended, "`bottleneck` around it", Bottleneck(attack=search)))
        print(f"| {size} | any | the mean image | {psnr(mean[None].expand_as(plain.pixels), plain):.1f} |", flush=True)
        for clients, name, attack in attacks:
            images = attack.reconstruct(clients.seen, clients.knowledge, streams).images
            model = "LeNet" if clients is plain else "with the bottleneck"
            print(f"| {size} | {model} | {name} | {psnr(images, clients):.1f} |", flush=True)


if __name__ == "__main__":
    main()
