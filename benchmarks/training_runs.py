"""Training several runs of one architecture: side by side under vmap against one after the other, in one run.

(a) is what one would write by hand: a module and a ``torch.optim.SGD`` per run. (b) and (c) are ``train_runs``, which
computes the gradients of one run, or of all of them, in one call, (d) is ``train_runs`` with the gradients that jobs
take. All do the same work: shared images, batches of 64.
Costs are marginal, from runs of two lengths, in turns; the smallest of each counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.measuring import Goal, marginal_costs, options, prepared, row_of
from leakbench.federated.gradients import BatchGradients, Gradients, batch_gradients
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.models.base import MODELS, Network, build_network
from leakbench.randomness import Streams

SHAPE, CLASSES, IMAGES = (3, 32, 32), 10, 640
DEFAULT_MODELS = ["lenet5", "resnet10:8"]


def main() -> None:
    """Measure every model and print a table."""
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=8, help="steps that are measured")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=DEFAULT_MODELS, help="name, or name:width")
    arguments = parser.parse_args()
    device = prepared(arguments.threads, arguments.device)
    print(f"{device}, {arguments.threads} threads, {arguments.runs} runs; ms per step of all, (a) over it in brackets")
    print("| model | parameters | (a) modules | (b) one by one | (c) vmap | (d) as jobs |")
    print("|---|---|---|---|---|---|")
    for name in arguments.models:
        network = network_of(name, device)
        row = row_of(costs(network, arguments.runs, arguments.steps, arguments.turns, device))
        print(f"| {name} | {network.dimension:,} | {row} |", flush=True)


def goals() -> Iterator[Goal]:
    """Training of LeNet-5 as jobs do it."""
    device = prepared(1)
    modules, *_, ours = costs(network_of("lenet5", device), 8, 5, 3, device)
    yield Goal("a step of LeNet-5, 8 runs with 64 images of 3x32x32: modules, over train_runs", 1.8, modules / ours)


def network_of(name: str, device: torch.device) -> Network:
    """A registered model, as name or name:width."""
    model, _, width = name.partition(":")
    architecture = MODELS.get(model)(**({"width": int(width)} if width else {}))
    return build_network(architecture, SHAPE, CLASSES, 0, device)


def costs(network: Network, runs: int, steps: int, turns: int, device: torch.device) -> list[float]:
    """Milliseconds of a step of all runs, one per way."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(IMAGES, *SHAPE, generator=draw).to(device)
    labels = torch.randint(CLASSES, (IMAGES,), generator=draw).to(device)
    streams = Streams([("benchmark", run) for run in range(runs)])

    def modules(steps: int) -> torch.Tensor:
        copies = [network.trainable_module() for _ in range(runs)]
        optimisers = [torch.optim.SGD(copy.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4) for copy in copies]
        orders = streams.child("order", 0).uniform(IMAGES).argsort(dim=1, stable=True).to(device)
        for step in range(steps):
            for copy, optimiser, order in zip(copies, optimisers, orders, strict=True):
                rows = order[64 * step : 64 * (step + 1)]
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(copy(images[rows]), labels[rows]).backward()
                optimiser.step()
        return torch.stack([torch.nn.utils.parameters_to_vector(copy.parameters()).detach() for copy in copies])

    def ours(gradients: Gradients) -> Callable[[int], torch.Tensor]:
        @torch.no_grad()
        def work(steps: int) -> torch.Tensor:
            training = Training(steps=steps)
            start, data = Start(network, network.parameters), TrainingSet(images, labels)
            return train_runs(start, data, streams, training, gradients=gradients, quiet=True).models.parameters

        return work

    works = [modules, ours(BatchGradients(1)), ours(BatchGradients(runs)), ours(batch_gradients(network, device))]
    steps = min(steps, IMAGES // 64 - 1)
    return marginal_costs(works, steps, turns, device)


if __name__ == "__main__":
    main()
