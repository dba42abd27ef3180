"""Seeds attacked together, a model per row, against one seed after the other: ``python -m benchmarks.stacked_seeds``.

Every seed has a model of its own and one client; a row is a client under one setting of a defense.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks.sentences import Scene
from leakbench.attacks.base import Attack, Knowledge, Observations
from leakbench.attacks.presets import IGOptimalDefense
from leakbench.federated.step import ClientSteps
from leakbench.jobs.stacked import joint_knowledge, side_by_side
from leakbench.models.base import Model, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams

CASES: list[tuple[str, Model, tuple[int, int, int], int]] = [
    ("LeNet", LeNet(), (1, 16, 16), 1),
    ("LeNet", LeNet(), (3, 32, 32), 1),
    ("SimpleConvNet 24", SimpleConvNet(width=24), (1, 16, 16), 4),
    ("SimpleConvNet 32", SimpleConvNet(width=32), (3, 32, 32), 1),
]
CLASSES = 10


def seconds(computation: Callable[[], object]) -> float:
    """Processor time of a computation."""
    start = time.process_time()
    computation()
    return time.process_time() - start


def measure(model: Model, shape: tuple[int, int, int], batch: int, rows: int, seeds: int, iterations: int) -> float:
    """Time of one seed after the other over that of all together."""
    attack = IGOptimalDefense(iterations=iterations)
    low_high = torch.tensor([-1.0, 1.0])[:, None, None, None].expand(2, shape[0], 1, 1)
    generator = torch.Generator().manual_seed(0)
    observations, knowledge, streams = [], [], []
    for seed in range(seeds):
        network = build_network(model, shape, CLASSES, seed)
        images = torch.rand(rows, batch, *shape, generator=generator)
        labels = torch.randint(CLASSES, (rows, batch), generator=generator)
        streams.append(Streams([("benchmark", seed, row) for row in range(rows)]))
        steps = ClientSteps(network, network.parameters, images, labels, streams[-1])
        observations.append(Observations(network, network.parameters, steps.gradient, (batch, *shape)))
        knowledge.append(Knowledge(labels=labels, pixel_range=low_high))
    return ratio(attack, observations, knowledge, streams)


def measure_sentences(rows: int, seeds: int, iterations: int) -> float:
    """The same for a search for sentences, whose word embeddings differ between seeds."""
    scenes = [Scene(64, 400, rows, seed) for seed in range(seeds)]
    attack = scenes[0].attack.model_copy(update={"iterations": iterations})
    streams = [Streams([("benchmark", seed, row) for row in range(rows)]) for seed in range(seeds)]
    return ratio(attack, [each.observations for each in scenes], [each.knowledge for each in scenes], streams)


def ratio(
    attack: Attack, observations: Sequence[Observations], knowledge: Sequence[Knowledge], streams: Sequence[Streams]
) -> float:
    """Time of one seed after the other over that of all together."""
    together = Streams([key for each in streams for key in each.keys])
    one_by_one = seconds(
        lambda: [attack.reconstruct(*each) for each in zip(observations, knowledge, streams, strict=True)]
    )
    return one_by_one / seconds(
        lambda: attack.reconstruct(side_by_side(observations), joint_knowledge(knowledge), together)
    )


def main() -> None:
    """Print a table of ratios."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=30)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 4, 8])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| model | images per client | {' | '.join(f'{rows} rows per seed' for rows in arguments.rows)} |")
    print("|---|---|" + "---:|" * len(arguments.rows))
    for name, model, shape, batch in CASES:
        ratios = [measure(model, shape, batch, rows, arguments.seeds, arguments.iterations) for rows in arguments.rows]
        size = "x".join(map(str, shape))
        print(f"| {name} | {batch} of {size} | {' | '.join(f'{each:.1f}x' for each in ratios)} |", flush=True)
    ratios = [measure_sentences(rows, arguments.seeds, arguments.iterations) for rows in arguments.rows]
    print(f"| BERT 64 | 1 of 12 tokens | {' | '.join(f'{each:.1f}x' for each in ratios)} |", flush=True)


if __name__ == "__main__":
    main()
