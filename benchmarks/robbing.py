"""Robbing the Fed: images that come back exactly, by bins and batch, beside the formula; and what defenses leave.

CIFAR-10, staged, or the photographs inside scikit-learn; a network at its initial weights behind the added layer, with
quantiles of 512 training images; an image is exact where its PSNR is above 60 dB. Defenses face batches of eight.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import torch

from benchmarks.measuring import options, prepared
from leakbench.attacks.base import Knowledge, observed
from leakbench.attacks.robbing import RobbingTheFed, expected_alone
from leakbench.data.base import DATASETS, ImageDataset
from leakbench.defenses.base import DEFENSES
from leakbench.defenses.clients import DefendedClients, Examples
from leakbench.federated.local import ONE_STEP
from leakbench.federated.step import ClientSteps
from leakbench.metrics.assignment import assign, reorder
from leakbench.metrics.image import psnr
from leakbench.metrics.visibility import VISIBILITY, visibility
from leakbench.models.base import Network, build_network
from leakbench.models.lenet import LeNet
from leakbench.models.linear import MLP
from leakbench.randomness import Streams

EXACT = 60.0
"""Least PSNR of an exact image, in dB."""
DEFENSES_TRIED: list[tuple[str, dict[str, Any]]] = [
    ("none", {}),
    ("gaussian_noise", {"scale": 0.001}),
    ("gaussian_noise", {"scale": 0.01}),
    ("gaussian_noise", {"scale": 0.1}),
    ("dp_sgd", {"multiplier": 0.001}),
    ("dp_sgd", {"multiplier": 0.01}),
    ("magnitude_pruning", {"fraction": 0.5}),
    ("magnitude_pruning", {"fraction": 0.95}),
    ("random_mask", {"probability": 0.5}),
    ("random_mask", {"probability": 0.95}),
    ("soteria", {"fraction": 0.6}),
    ("sign_sgd", {"scale": "mean_abs"}),
    ("qsgd", {"levels": 127}),
    ("sdq", {"bits": 4}),
    ("cdpa", {"variant": "as_printed", "layers": "last", "encodes": "gradient", "p": 0.9}),
]


class Server:
    """A server that attacks clients with consecutive test images.

    Args:
        data: the images.
        attack: the attack.
        network: the honest model.
        batch: images of each message, or of each sum.
        clients: messages.
    """

    def __init__(self, data: ImageDataset, attack: RobbingTheFed, network: Network, batch: int, clients: int) -> None:
        self.data, self.attack, self.shape = data, attack, (batch, *data.shape)
        auxiliary = data.normalise(data.load("train", range(512)).values).to(network.device)
        self.knowledge = Knowledge(auxiliary_images=auxiliary, pixel_range=data.pixel_range(network.device))
        self.agreed = network.dimension
        self.network = attack.prepare(network, self.shape, self.knowledge)
        samples = data.load("test", range(batch * clients))
        self.values = samples.values.unflatten(0, (clients, batch)).to(network.device)
        self.labels = samples.labels.unflatten(0, (clients, batch)).to(network.device)

    def measured(self, name: str = "none", parameters: dict[str, Any] | None = None) -> tuple[torch.Tensor, float]:
        """PSNR of every image under a defense, and the attack's seconds per message."""
        streams = Streams([("benchmark", "robbing", row) for row in range(len(self.values))])
        examples = Examples(self.data.normalise(self.values), self.labels)
        clients = DefendedClients(DEFENSES.get(name)(**(parameters or {})), streams, examples)
        network = self.network
        message = clients.step(lambda batch: ClientSteps(network, network.parameters, *batch, streams), streams).message
        seen = observed(network, network.parameters, [message], self.shape, ONE_STEP)
        started = time.perf_counter()
        images = self.attack.reconstruct(seen, self.knowledge, streams).images
        seconds = (time.perf_counter() - started) / len(images)
        pixels = self.data.denormalise(images)
        pixels = reorder(pixels, assign(pixels, self.values)).flatten(0, 1).clamp(0, 1)
        return psnr(pixels, self.values.flatten(0, 1)), seconds


def main() -> None:
    """Measure sizes, then defenses, and print two tables."""
    parser = options(__doc__)
    parser.add_argument("--data", default="cifar10", help="name of a data set")
    parser.add_argument("--images", type=int, default=256, help="test images per line")
    parser.add_argument("--bins", type=int, nargs="+", default=[64, 128, 512])
    parser.add_argument("--batches", type=int, nargs="+", default=[8, 32, 64], help="of one message, or of a sum")
    arguments = parser.parse_args()
    device = prepared(arguments.threads, arguments.device)
    data = DATASETS.get(arguments.data)()
    assert isinstance(data, ImageDataset)
    print(f"{arguments.device}, {arguments.threads} threads, {arguments.data}")
    print("| form | bins | images together | exact | alone, expected | mean PSNR, dB | seconds per message |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for bins in arguments.bins:
        for batch in arguments.batches:
            line(data, arguments, device, RobbingTheFed(bins=bins), batch)
    line(data, arguments, device, RobbingTheFed(form="parameters"), arguments.batches[0])
    defended(data, arguments, device)


def line(
    data: ImageDataset, arguments: argparse.Namespace, device: torch.device, attack: RobbingTheFed, batch: int
) -> None:
    """Print how many images one size gives."""
    model = MLP(width=attack.bins) if attack.form == "parameters" else LeNet()
    network = build_network(model, data.shape, data.classes, 0, device)
    decibels, seconds = Server(data, attack, network, batch, max(1, arguments.images // batch)).measured()
    print(
        f"| {attack.form} | {attack.bins} | {batch} | {float((decibels > EXACT).float().mean()):.1%} | "
        f"{expected_alone(attack.bins, batch):.1%} | {decibels.mean():.1f} | {seconds:.2f} |",
        flush=True,
    )


def defended(data: ImageDataset, arguments: argparse.Namespace, device: torch.device) -> None:
    """Print what defenses leave, and how visible the model is."""
    network = build_network(LeNet(), data.shape, data.classes, 0, device)
    server = Server(data, RobbingTheFed(), network, 8, max(1, arguments.images // 8))
    mean = data.denormalise(server.knowledge.auxiliary_images.mean(dim=0))  # type: ignore[union-attr]
    blind = psnr(mean.expand_as(server.values.flatten(0, 1)), server.values.flatten(0, 1)).mean()
    print(f"\n128 bins, batches of 8; the mean image is at {blind:.1f} dB")
    print("| defense | parameters | mean PSNR, dB | exact |\n|---|---|---:|---:|")
    for name, parameters in DEFENSES_TRIED:
        decibels, _ = server.measured(name, parameters)
        given = ", ".join(f"{key} {value}" for key, value in parameters.items())
        exact = float((decibels > EXACT).float().mean())
        print(f"| {name} | {given} | {decibels.mean():.1f} | {exact:.0%} |", flush=True)
    print("\n| model | " + " | ".join(VISIBILITY) + " |\n|---|---:|---:|---:|---:|")
    for label, each in (("honest", network), ("sent", server.network)):
        signs = visibility(each.unflatten(each.parameters), server.agreed)
        print(f"| {label} | " + " | ".join(f"{sign:.2f}" for sign in signs.values()) + " |")


if __name__ == "__main__":
    main()
