"""Input sensitivities: directions side by side in forward mode against a loop of double reverse mode, in one run.

(a) goes through clients and probes one after the other, and takes a directional derivative of the gradient by reverse
mode over reverse mode, as ``torch.autograd.functional.jvp`` and public implementations of the paper do. (b) is
``ClientSteps.sensitivity``. Both are given the same probes, and must agree. Costs are in gradients of the same batches,
measured beside them: the smallest time of some repetitions, in which all of them take turns. On a CPU it is the time
of the process, which does not count waiting for other ones. Peaks are of the tensors that one client's estimate holds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch

from benchmarks.measuring import fastest, in_a_process, options, taken
from leakbench.federated.sensitivity import random_directions
from leakbench.federated.step import ClientSteps
from leakbench.jobs.runner import Placement
from leakbench.models.base import MODELS, build_network
from leakbench.numerics.footprint import footprint
from leakbench.randomness import Streams, generator

CASES = {
    "SimpleConvNet 32": ("simpleconvnet", {}, (1, 28, 28), 16),
    "ConvNet 16": ("convnet", {"width": 16}, (3, 32, 32), 2),
    "ConvNet 64": ("convnet", {"width": 64}, (3, 32, 32), 2),
}
"""Model, its parameters, shape of the images, images per client."""


def scene(case: str, clients: int, device: torch.device) -> ClientSteps:
    """Clients with an untrained model and noise for images."""
    name, parameters, shape, batch = CASES[case]
    network = build_network(MODELS.get(name)(**parameters), shape, 10, 0, device)
    draw = generator("benchmark", "sensitivities")
    images = torch.randn(clients, batch, *shape, generator=draw).to(device)
    labels = torch.randint(0, 10, (clients, batch), generator=draw).to(device)
    streams = Streams([("benchmark", client) for client in range(clients)])
    return ClientSteps(network, network.parameters, images, labels, streams)


def again(steps: ClientSteps) -> ClientSteps:
    """The same clients, who have computed nothing yet."""
    return ClientSteps(steps.network, steps.parameters, steps.images, steps.labels, steps.streams)


def peer(steps: ClientSteps, probes: int) -> torch.Tensor:
    """One client and one probe after the other, by double reverse mode."""
    directions = random_directions(steps.streams, probes, steps.images.shape[1:]).to(steps.images.device)
    squares = torch.zeros(len(steps), steps.network.dimension, device=steps.images.device)
    for client in range(len(steps)):
        for direction in directions[client]:
            parameters = steps.parameters.clone().requires_grad_()
            images = steps.images[client].clone().requires_grad_()
            loss = steps.network.loss(parameters, images, steps.labels[client])
            (gradient,) = torch.autograd.grad(loss, parameters, create_graph=True)
            dual = torch.zeros_like(gradient, requires_grad=True)
            (transposed,) = torch.autograd.grad(gradient, images, dual, create_graph=True)
            (derivative,) = torch.autograd.grad(transposed, dual, direction)
            squares[client] += derivative.square() / probes
    return squares


def gradients(steps: ClientSteps) -> None:
    """The gradient of one client after the other."""
    for images, labels in zip(steps.images, steps.labels, strict=True):
        steps.network.gradient(steps.parameters, images, labels)


def cell(arguments: argparse.Namespace) -> dict[str, float]:
    """Measure one model, in this process."""
    device = Placement(arguments.device, arguments.threads).resolve()
    steps, one = scene(arguments.model, arguments.clients, device), scene(arguments.model, 1, device)
    probes: int = arguments.probes
    theirs, ours = peer(one, probes), again(one).sensitivity(probes)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(theirs.mean()))
    works: dict[str, Callable[[], object]] = {
        "gradient": lambda: gradients(steps),
        "peer": lambda: peer(steps, probes),
        "ours": lambda: again(steps).sensitivity(probes),
    }
    seconds = fastest(works, device, arguments.repeats)
    result = {
        "parameters": steps.network.dimension,
        "gradient": seconds["gradient"] / len(steps),
        "peer": seconds["peer"] / seconds["gradient"],
        "ours": seconds["ours"] / seconds["gradient"],
        "peer_bytes": footprint(lambda: peer(one, probes)).bytes,
        "ours_bytes": footprint(lambda: again(one).sensitivity(probes)).bytes,
    }
    if arguments.model in arguments.exact:
        seconds_exact = taken(lambda: again(one).exact_sensitivity, device)
        result["exact"] = seconds_exact / result["gradient"]
    return result


def main() -> None:
    """Measure all models, each in a process of its own, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--probes", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument(
        "--exact", nargs="+", default=[], choices=list(CASES), help="exact sensitivities too; the ConvNets take minutes"
    )
    parser.add_argument("--model", choices=list(CASES), help="measure one model in this process")
    arguments = parser.parse_args()
    if arguments.model:
        print(json.dumps(cell(arguments)))
        return
    print(f"{arguments.device}, {arguments.threads} threads, {arguments.clients} clients, {arguments.probes} probes")
    print(
        "| model | parameters | images per client | one gradient, ms | (a) double reverse, gradients "
        "| (b) forward, gradients | (a) / (b) | peak MiB, (a) / (b) | exact, gradients |"
    )
    print("|---" * 9 + "|")
    numbers = ("threads", "clients", "probes", "repeats")
    words = ["--device", arguments.device, *(f"--{name}={getattr(arguments, name)}" for name in numbers)]
    for model in arguments.models:
        exactly = ["--exact", model] if model in arguments.exact else []
        costs = in_a_process("sensitivities", *words, "--model", model, *exactly)
        exact = f"{costs['exact']:,.0f}" if "exact" in costs else ""
        print(
            f"| {model} | {costs['parameters']:,} | {CASES[model][3]} | {1e3 * costs['gradient']:.1f} "
            f"| {costs['peer']:.1f} | {costs['ours']:.1f} | {costs['peer'] / costs['ours']:.1f} "
            f"| {costs['peer_bytes'] / 2**20:.0f} / {costs['ours_bytes'] / 2**20:.0f} | {exact} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
