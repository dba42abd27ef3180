"""AlexNet and VGG16 without BatchNorm on real images: do they train, at torch's initialisation and at He's?

Narrow models, the first 5,000 images of CIFAR-10, batches of 64, SGD as in the channel paper's grid.
"""

from __future__ import annotations

import argparse
import itertools

import torch

from leakbench.data.base import DATASETS, image_dataset
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.models.alexnet_vgg import VGG16, AlexNet, Initialisation
from leakbench.models.base import build_network
from leakbench.randomness import Streams

INITIALISATIONS: tuple[Initialisation, ...] = ("default", "he")
MODELS = ((AlexNet, 8), (VGG16, 4))


def main() -> None:
    """Print a table: a row per model and initialisation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dataset = image_dataset(DATASETS.get("cifar10")(), "this benchmark")
    (members, labels), (others, truth) = dataset.load("train", range(5000)), dataset.load("test", range(2000))
    members, others = dataset.normalise(members), dataset.normalise(others)
    training = Training(steps=arguments.steps, batch_size=64, rate=0.01)
    print("| model | initialisation | test accuracy, by seed | loss of the last 20 batches, by seed |")
    print("|---|---|---|---|", flush=True)
    for (cls, width), initialisation in itertools.product(MODELS, INITIALISATIONS):
        accuracies, losses = [], []
        for seed in range(arguments.seeds):
            model = cls(width=width, initialisation=initialisation)
            network = build_network(model, dataset.shape, dataset.classes, seed)
            start, streams = Start(network, network.parameters), Streams([("s", seed)])
            runs = train_runs(start, TrainingSet(members, labels), streams, training, quiet=True)
            accuracies.append(f"{float(runs.models.accuracy(others, truth)):.2f}")
            losses.append(f"{float(runs.curves[0, -20:].mean()):.2f}")
        words = " | ".join(", ".join(numbers) for numbers in (accuracies, losses))
        print(f"| {cls.__name__}, width {width} | {initialisation} | {words} |", flush=True)


if __name__ == "__main__":
    main()
