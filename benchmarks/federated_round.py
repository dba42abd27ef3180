"""A round of federated averaging: all clients' local steps, by hand and by ``train_runs``, in one run.

(a) is what one would write by hand: a module and a ``torch.optim.SGD`` per client, one client after the other. (b), (c)
and (d) are ``train_runs``: clients one by one, all by vmap, and all by ``StackedNetworks``, where it takes the model.
All do the same work: batches of 16 images of 3x32x32, SGD with momentum 0.5. Costs are marginal, from rounds of two
lengths, in turns; the smallest of each counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from benchmarks.measuring import Goal, marginal_costs, options, prepared, row_of
from leakbench.federated.gradients import BatchGradients, Gradients, StackedGradients
from leakbench.federated.training import Start, Training, TrainingSet, train_runs
from leakbench.models.base import MODELS, Network, build_network
from leakbench.models.stacked import StackedNetworks
from leakbench.randomness import Streams

SHAPE, CLASSES, IMAGES, BATCH = (3, 32, 32), 10, 320, 16
DEFAULT_MODELS = ["simplecnn", "lenet5", "simpleconvnet:32"]


def main() -> None:
    """Measure every model and print a table."""
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--steps", type=int, default=5, help="local steps that are measured")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=DEFAULT_MODELS, help="name, or name:width")
    arguments = parser.parse_args()
    device = prepared(arguments.threads, arguments.device)
    print(f"{device}, {arguments.threads} threads, {arguments.clients} clients; ms per local step of all, (a) over it")
    print("| model | parameters | (a) modules | (b) one by one | (c) vmap | (d) stacked |")
    print("|---|---|---|---|---|---|")
    for name in arguments.models:
        network = network_of(name, device)
        measured = costs(network, arguments.clients, arguments.steps, arguments.turns, device)
        row = row_of(measured) + " | none" * (4 - len(measured))
        print(f"| {name} | {network.dimension:,} | {row} |", flush=True)


def goals() -> Iterator[Goal]:
    """A round of the small CNN's clients."""
    device = prepared(1)
    modules, *_, stacked = costs(network_of("simplecnn", device), 20, 5, 3, device)
    yield Goal("a step of 20 SimpleCNN clients: modules one by one, over stacked", 3.0, modules / stacked)


def network_of(name: str, device: torch.device) -> Network:
    """A registered model, or the small CNN of Deng et al. (2024): 9,422 parameters."""
    if name == "simplecnn":
        nn = torch.nn
        features = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
        classifier = [nn.Flatten(), nn.Linear(150, 50), nn.ReLU(), nn.Linear(50, 10)]
        torch.manual_seed(0)
        return Network(nn.Sequential(*features, *classifier), device)
    model, _, width = name.partition(":")
    return build_network(MODELS.get(model)(**({"width": int(width)} if width else {})), SHAPE, CLASSES, 0, device)


def costs(network: Network, clients: int, steps: int, turns: int, device: torch.device) -> list[float]:
    """Milliseconds of a local step of all clients, one per way; the last is missing where a model cannot be stacked."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(clients, IMAGES, *SHAPE, generator=draw).to(device)
    labels = torch.randint(CLASSES, (clients, IMAGES), generator=draw).to(device)
    streams = Streams([("benchmark", client) for client in range(clients)])
    copies = [network.trainable_module() for _ in range(clients)]

    def modules(steps: int) -> torch.Tensor:
        orders = streams.child("order", 0).uniform(IMAGES).argsort(dim=1, stable=True).to(device)
        for copy, order, pixels, targets in zip(copies, orders, images, labels, strict=True):
            torch.nn.utils.vector_to_parameters(network.parameters.clone(), copy.parameters())
            optimiser = torch.optim.SGD(copy.parameters(), lr=0.01, momentum=0.5)
            for rows in order.split(BATCH)[:steps]:
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(copy(pixels[rows]), targets[rows]).backward()
                optimiser.step()
        return torch.stack([torch.nn.utils.parameters_to_vector(copy.parameters()).detach() for copy in copies])

    def ours(gradients: Gradients) -> Callable[[int], torch.Tensor]:
        @torch.no_grad()
        def work(steps: int) -> torch.Tensor:
            training = Training(steps=steps, batch_size=BATCH, momentum=0.5, weight_decay=0.0)
            start, data = Start(network, network.parameters), TrainingSet(images, labels)
            return train_runs(start, data, streams, training, gradients=gradients, quiet=True).models.parameters

        return work

    stacked = StackedNetworks.of(network)
    works = [modules, ours(BatchGradients(1)), ours(BatchGradients(clients))]
    works += [ours(StackedGradients(stacked))] if stacked else []
    steps = min(steps, IMAGES // BATCH - 1)
    return marginal_costs(works, steps, turns, device)


if __name__ == "__main__":
    main()
