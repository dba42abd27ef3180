"""Training by DP-SGD against plain training, in one run.

(a) is ``train_runs`` with the gradients of batches, (b) with those of single samples under DP-SGD, whose bound is so
large and whose noise so small that both compute the same. Milliseconds of the process per step of one run, marginal,
from trainings of two lengths in turns; the smallest of each counts. In brackets, (a) over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.measuring import Goal, marginal_costs, options, prepared, row_of
from leakbench.defenses.dp_sgd import DPSGD, PrivateRuns
from leakbench.federated.gradients import Gradients, SampleGradients, batch_gradients
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.models.base import MODELS, build_network
from leakbench.randomness import Streams

DEFAULT_CASES = [
    "lenet5:6:1x16x16:6:32",
    "lenet5:6:1x32x32:1:64",
    "lenet5:6:3x32x32:4:64",
    "lenet:12:1x16x16:6:32",
    "simplecnn:6:3x32x32:1:64",
    "simpleconvnet:32:1x28x28:1:64",
    "dp_cnn:16:1x28x28:1:64",
    "alexnet:8:3x32x32:1:64",
    "vgg16:4:3x32x32:1:64",
]


def main() -> None:
    """Measure every case and print a table."""
    parser = options(__doc__)
    parser.add_argument("--steps", type=int, default=8, help="steps that are measured")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=DEFAULT_CASES, help="model:width:shape:runs:batch")
    arguments = parser.parse_args()
    device = prepared(arguments.threads, arguments.device)
    print(f"{device}, {arguments.threads} threads; ms per step of all runs, (a) over it in brackets")
    print("| model | images | runs | (a) plain | (b) DP-SGD |")
    print("|---|---|---|---|---|")
    for case in arguments.cases:
        model, width, shape, runs, batch = case.split(":")
        row = row_of(costs(case, arguments.steps, arguments.turns, device))
        print(f"| {model} {width} | {batch} of {shape} | {runs} | {row} |", flush=True)


def goals() -> Iterator[Goal]:
    """DP-SGD over plain training."""
    device = prepared(1)
    for case in ("lenet5:6:3x32x32:4:64", "lenet:12:1x16x16:6:32"):
        plain, private = costs(case, 8, 3, device)
        yield Goal(f"a step of DP-SGD, {case}, over plain training", 2.5, private / plain, at_most=True)


def costs(case: str, steps: int, turns: int, device: torch.device) -> list[float]:
    """Milliseconds of a step, plain and private."""
    model, width, shape, *numbers = case.split(":")
    runs, batch = map(int, numbers)
    sides = tuple(int(side) for side in shape.split("x"))
    network = build_network(MODELS.get(model)(width=int(width)), sides, 10, 0, device)
    draw = torch.Generator().manual_seed(0)
    images = torch.randn((steps + 1) * batch, *sides, generator=draw).to(device)
    labels = torch.randint(10, (len(images),), generator=draw).to(device)
    streams = Streams([("benchmark", run) for run in range(runs)])

    def trained(gradients: Gradients) -> Callable[[int], torch.Tensor]:
        @torch.no_grad()
        def work(steps: int) -> torch.Tensor:
            training = Training(steps=steps, batch_size=batch)
            start, data = Start(network, network.parameters), TrainingSet(images, labels)
            return train_runs(start, data, streams, training, gradients=gradients, quiet=True).models.parameters

        return work

    private = PrivateRuns([DPSGD(clip=1e6, multiplier=0.0)] * runs)
    works = [trained(batch_gradients(network, device)), trained(SampleGradients(private))]
    return marginal_costs(works, steps, turns, device)


if __name__ == "__main__":
    main()
