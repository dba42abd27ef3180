"""Soteria's scores: one batched Jacobian against a loop of backward passes, in one run.

(a) runs forward once and backward once per feature, through the network's parameters too, as public implementations
do, for the first features alone; (b) is ``FeatureJacobian``, for all of them. Both must agree. The layers that the
suite's protocols prune, or the last. Times are of the process on a CPU, wall-clock on a GPU, per feature of an image:
the smallest of some turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import torch

from benchmarks.measuring import Goal, fastest, in_a_process, options
from leakbench.federated.features import FeatureJacobian
from leakbench.jobs.runner import Placement
from leakbench.libraries.memory import keep_freed_memory
from leakbench.models.base import MODELS, Network, build_network
from leakbench.numerics.footprint import footprint
from leakbench.randomness import generator

DEFAULT_CASES = [
    "lenet:12:-1:1x16x16:8",
    "lenet:12:-1:3x32x32:8",
    "simplecnn:6:0:3x32x32:8",
    "convnet:8:-1:3x32x32:1",
    "convnet:16:-1:3x32x32:1",
]


def peer(network: Network, images: torch.Tensor, layer: str, features: int) -> torch.Tensor:
    """``||d r_f / dX||`` of the first features, one backward pass after the other."""
    inputs = images.clone().requires_grad_()
    parameters = network.parameters.clone().requires_grad_()
    read = network.features(parameters, inputs, layer)
    norms = []
    for feature in range(features):
        cotangent = torch.zeros_like(read)
        cotangent[:, feature] = 1
        read.backward(cotangent, retain_graph=True)
        assert inputs.grad is not None
        norms.append(inputs.grad.flatten(1).norm(dim=1))
        inputs.grad = parameters.grad = None
    return torch.stack(norms, dim=1)


def cell(arguments: argparse.Namespace) -> dict[str, float]:
    """Measure one case, in this process."""
    device = Placement(arguments.device, arguments.threads).resolve()
    keep_freed_memory()
    model, width, place, shape, count = arguments.case.split(":")
    sides = tuple(int(side) for side in shape.split("x"))
    network = build_network(MODELS.get(model)(width=int(width)), sides, 10, 0, device)
    images = torch.randn(int(count), 1, *sides, generator=generator("benchmark", "soteria")).to(device)
    layer, some = list(network.linear_layers)[int(place)], arguments.features
    jacobian = FeatureJacobian(network, network.parameters, images)
    theirs, ours = peer(network, images[0], layer, some), jacobian.sensitivity(layer).norms
    torch.testing.assert_close(ours[0, :, :some], theirs, rtol=1e-4, atol=1e-5 * float(theirs.mean()))
    seconds = fastest(
        {"peer": lambda: peer(network, images[0], layer, some), "ours": lambda: jacobian.sensitivity(layer)},
        device,
        arguments.repeats,
    )
    return {
        "features": ours.shape[2],
        "peer": 1e3 * seconds["peer"] / some,
        "ours": 1e3 * seconds["ours"] / ours.numel(),
        "peer_bytes": footprint(lambda: peer(network, images[0], layer, 2)).bytes,
        "ours_bytes": footprint(lambda: jacobian.sensitivity(layer)).bytes,
    }


def main() -> None:
    """Measure all cases, each in a process of its own, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--features", type=int, default=32, help="of how many features (a) takes its time")
    parser.add_argument("--cases", nargs="+", default=DEFAULT_CASES, help="model:width:place of the layer:shape:images")
    parser.add_argument("--case", help="measure one case in this process")
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(cell(arguments)))
        return
    print(f"{arguments.device}, {arguments.threads} threads")
    print("| model | images | features | (a) loop, ms each | (b) batched, ms each | (a) / (b) | peak MiB, (a) / (b) |")
    print("|---" * 7 + "|")
    words = [f"--{name}={getattr(arguments, name)}" for name in ("device", "threads", "repeats", "features")]
    for case in arguments.cases:
        costs = in_a_process("soteria", *words, f"--case={case}")
        model, width, _, shape, count = case.split(":")
        print(
            f"| {model} {width} | {count} of {shape} | {costs['features']:,} | {costs['peer']:.2f} "
            f"| {costs['ours']:.4f} | {costs['peer'] / costs['ours']:.1f} "
            f"| {costs['peer_bytes'] / 2**20:.0f} / {costs['ours_bytes'] / 2**20:.0f} |",
            flush=True,
        )


def goals() -> Iterator[Goal]:
    """All cases but the largest, which takes a minute."""
    for case in DEFAULT_CASES[:-1]:
        costs = in_a_process("soteria", "--device=cpu", "--threads=1", f"--case={case}")
        yield Goal(f"Soteria's scores, {case}: a loop of backward passes, over ours", 10, costs["peer"] / costs["ours"])


if __name__ == "__main__":
    main()
