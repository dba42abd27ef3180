"""Gradient matching: the batched engine against a loop as public implementations write it, in one run.

Every cell is measured in a process of its own: (a) attacks victims one after the other with ``torch.autograd.grad`` and
``torch.optim``, at the C library's defaults; (b) is the engine, as jobs run it. Both do the same work on single-image
victims of one untrained model. Speeds are marginal, from runs of two lengths, so that starting costs neither.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.measuring import in_a_process, options
from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.engine import evaluation
from leakbench.attacks.gradient_matching import Search
from leakbench.attacks.presets import DLG, IGScript
from leakbench.jobs.runner import Placement
from leakbench.models.base import MODELS, Network, build_network
from leakbench.numerics.footprint import footprint
from leakbench.randomness import Streams

SHAPE, CLASSES = (3, 32, 32), 10
MODELS_BY_NAME = {
    "LeNet": ("lenet", {}),
    "SimpleConvNet 32": ("simpleconvnet", {}),
    "ConvNet 16": ("convnet", {"width": 16}),
    "ConvNet 32": ("convnet", {"width": 32}),
    "ConvNet 64": ("convnet", {"width": 64}),
    "ResNet18": ("resnet18", {}),
}
ONE_BY_ONE = ("ConvNet 64", "ResNet18")
"""On a CPU the engine evaluates their victims one by one, so more of them are not measured there."""
CASES = (("ig", tuple(MODELS_BY_NAME)), ("dlg", ("LeNet", "SimpleConvNet 32")))
PRESETS: dict[str, type[DLG] | type[IGScript]] = {"ig": IGScript, "dlg": DLG}
SECONDS = 3.0
"""Approximate seconds of measuring a cell."""


@dataclass(frozen=True)
class Problem:
    """Single-image victims who all hold the same image: the work is that of different ones."""

    network: Network
    module: torch.nn.Module
    target: torch.Tensor
    label: torch.Tensor
    device: torch.device

    @classmethod
    def of(cls, model: str, device: torch.device) -> Problem:
        """A victim of a freshly initialised model."""
        name, parameters = MODELS_BY_NAME[model]
        network = build_network(MODELS.get(name)(**parameters), SHAPE, CLASSES, 0, device)
        image = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(0)).to(device)
        label = torch.tensor([3], device=device)
        target = network.gradient(network.parameters, image, label)
        return cls(network, network.trainable_module().eval(), target, label, device)


def peer_ig(problem: Problem, iterations: int) -> None:
    """One victim: cosine, TV, signed Adam, box, as one would write it by hand."""
    module, parameters = problem.module, list(problem.module.parameters())
    targets = [
        part.view_as(parameter)
        for part, parameter in zip(problem.target.split(problem.network.sizes), parameters, strict=True)
    ]
    image = torch.randn(1, *SHAPE, device=problem.device).requires_grad_()
    optimiser = torch.optim.Adam([image], lr=0.1)
    low, high = torch.full_like(image, -2.0), torch.full_like(image, 2.0)
    for _ in range(iterations):
        optimiser.zero_grad()
        module.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(image), problem.label)
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        inner = torch.zeros((), device=problem.device)
        squares = [inner, inner]
        for g, t in zip(gradient, targets, strict=True):
            inner = inner + (g * t).sum()
            squares = [squares[0] + g.pow(2).sum(), squares[1] + t.pow(2).sum()]
        objective = 1 - inner / squares[0].sqrt() / squares[1].sqrt()
        horizontal = (image[..., 1:] - image[..., :-1]).abs().mean()
        vertical = (image[..., 1:, :] - image[..., :-1, :]).abs().mean()
        (objective + 1e-4 * (horizontal + vertical)).backward()
        assert image.grad is not None
        image.grad.sign_()
        optimiser.step()
        with torch.no_grad():
            image.data = torch.max(torch.min(image, high), low)


def peer_dlg(problem: Problem, iterations: int) -> None:
    """One victim: squared differences, torch's L-BFGS, labels optimised with the image."""
    module, parameters = problem.module, list(problem.module.parameters())
    targets = [
        part.view_as(parameter)
        for part, parameter in zip(problem.target.split(problem.network.sizes), parameters, strict=True)
    ]
    image = torch.randn(1, *SHAPE, device=problem.device).requires_grad_()
    scores = torch.randn(1, CLASSES, device=problem.device).requires_grad_()
    optimiser = torch.optim.LBFGS([image, scores], lr=1, max_iter=iterations, tolerance_change=0, tolerance_grad=0)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(image), scores.softmax(dim=-1))
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        difference = torch.zeros((), device=problem.device)
        for g, t in zip(gradient, targets, strict=True):
            difference = difference + ((g - t) ** 2).sum()
        difference.backward()
        return difference

    optimiser.step(closure)


PEERS = {"ig": peer_ig, "dlg": peer_dlg}


def engine(attack: str, problem: Problem, victims: int, iterations: int) -> None:
    """All victims at once."""
    observations, knowledge, streams = scene(problem, victims)
    PRESETS[attack](iterations=iterations).reconstruct(observations, knowledge, streams)


def scene(problem: Problem, victims: int) -> tuple[Observations, Knowledge, Streams]:
    """Observations, knowledge and random streams for the engine."""
    observations = Observations(
        problem.network, problem.network.parameters, problem.target.expand(victims, -1), (1, *SHAPE)
    )
    box = torch.tensor([-2.0, 2.0], device=problem.device).view(2, 1, 1, 1).expand(2, 3, 1, 1)
    knowledge = Knowledge(labels=problem.label.expand(victims, 1), pixel_range=box)
    return observations, knowledge, Streams([("benchmark", victim) for victim in range(victims)])


def marginal(work: Callable[[int], None], device: torch.device) -> float:
    """Seconds per iteration of ``work(iterations)``, without what it costs to start."""

    def seconds(iterations: int) -> float:
        started = time.perf_counter()
        work(iterations)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    work(1)
    short = seconds(1)  # two evaluations: the last one is of the result
    more = max(2, min(400, math.ceil(2 * SECONDS / short)))
    return (seconds(1 + more) - min(short, seconds(1))) / more


def cell(arguments: argparse.Namespace) -> dict[str, float]:
    """Measure one cell, in this process."""
    device = torch.device(arguments.device)
    torch.set_num_threads(arguments.threads)
    if arguments.who == "engine":
        placement = Placement(arguments.device, arguments.threads, arguments.tf32, arguments.compile)
        device = placement.resolve()
    problem = Problem.of(arguments.model, device)
    if arguments.who == "peer":
        peer = PEERS[arguments.attack]
        dispatches = footprint(lambda: peer(problem, 2)).dispatches - footprint(lambda: peer(problem, 1)).dispatches
        per_iteration = marginal(lambda iterations: peer(problem, iterations), device)
        rate = 1 / per_iteration
    else:
        observations, knowledge, streams = scene(problem, arguments.victims)
        search = Search(PRESETS[arguments.attack](iterations=1), observations, knowledge)
        rows = torch.arange(min(2, arguments.victims), device=device)
        evaluate = evaluation(search.cost(), vectorised=arguments.victims > 1)
        points, data = search.starts(streams)[rows], search.trial_data(rows)
        dispatches = footprint(lambda: evaluate(points, data)).dispatches
        per_iteration = marginal(
            lambda iterations: engine(arguments.attack, problem, arguments.victims, iterations), device
        )
        rate = arguments.victims / per_iteration
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device)
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"rate": rate, "peak": peak / 2**30, "dispatches": dispatches, "parameters": problem.network.dimension}


def measure(arguments: argparse.Namespace, **options: object) -> dict[str, float]:
    """Measure one cell, in a process of its own."""
    given = {"device": arguments.device, "threads": arguments.threads, **options}
    words = [word for key, value in given.items() for word in (f"--{key}", str(value))]
    flags = [f"--{name}" for name in ("tf32", "compile") if getattr(arguments, name)]
    return in_a_process("attack_engine", *words, *flags, quiet=True)


def main() -> None:
    """Measure all cells and print a table."""
    parser = options(__doc__, torch.get_num_threads())
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 8, 32, 128], help="numbers of victims")
    parser.add_argument("--models", nargs="+", default=list(MODELS_BY_NAME), choices=list(MODELS_BY_NAME))
    parser.add_argument("--attacks", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    parser.add_argument("--tf32", action="store_true", help="let a GPU's products round to TF32")
    parser.add_argument("--compile", action="store_true", help="evaluate through torch.compile")
    parser.add_argument("--who", choices=["peer", "engine"], help="measure one cell in this process")
    parser.add_argument("--attack", choices=list(PRESETS))
    parser.add_argument("--model", choices=list(MODELS_BY_NAME))
    parser.add_argument("--victims", type=int)
    arguments = parser.parse_args()
    if arguments.who:
        print(json.dumps(cell(arguments)))
        return
    print(f"{arguments.device}, {arguments.threads} threads; victim-iterations per second, (b) over (a) in brackets")
    counts = arguments.counts
    print(
        "| attack | model | parameters | (a) loop | "
        + " | ".join(f"(b) {count}" for count in counts)
        + " | operators per iteration, (a) / (b) | peak GiB, (a) / (b) |"
    )
    print("|---" * (6 + len(counts)) + "|")
    for attack, models in CASES:
        for model in models:
            if attack not in arguments.attacks or model not in arguments.models:
                continue
            peer = measure(arguments, who="peer", attack=attack, model=model)
            few = arguments.device == "cpu" and model in ONE_BY_ONE
            cells = [
                measure(arguments, who="engine", attack=attack, model=model, victims=count)
                for count in counts
                if count <= 32 or not few
            ]
            rates = " | ".join(
                [f"{cell['rate']:.3g} ({cell['rate'] / peer['rate']:.1f}x)" for cell in cells]
                + ["as before"] * (len(counts) - len(cells))
            )
            last = cells[-1]
            print(
                f"| {attack.upper()} | {model} | {peer['parameters']:,.0f} | {peer['rate']:.3g} | {rates} "
                f"| {peer['dispatches']:.0f} / {last['dispatches']:.0f} | {peer['peak']:.2f} / {last['peak']:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
