"""Gradient matching: the batched engine against a loop as public implementations write it, in one run.

Every cell is measured in a process of its own: (a) attacks victims one after the other with ``torch.autograd.grad`` and
``torch.optim``, at the C library's defaults; (b) is the engine, as jobs run it. Both do the same work on victims with
the same batch, of one untrained model. Speeds are marginal, from runs of two lengths, so that starting costs neither;
on a CPU they are of processor time.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.measuring import Goal, in_a_process, options, taken
from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.engine import evaluation
from leakbench.attacks.gradient_matching import Search
from leakbench.attacks.presets import DLG, IGScript
from leakbench.jobs.runner import Placement
from leakbench.models.base import MODELS, Network, build_network
from leakbench.numerics.footprint import footprint
from leakbench.randomness import Streams

CLASSES = 10
MODELS_BY_NAME: dict[str, tuple[str, dict[str, int], tuple[int, int, int]]] = {
    "LeNet": ("lenet", {}, (3, 32, 32)),
    "SimpleConvNet 32": ("simpleconvnet", {}, (1, 28, 28)),
    "ConvNet 16": ("convnet", {"width": 16}, (3, 32, 32)),
    "ConvNet 64": ("convnet", {"width": 64}, (3, 32, 32)),
    "ResNet18": ("resnet18", {}, (3, 32, 32)),
}
"""Models with their parameters and the shape of their images."""
CASES: tuple[tuple[str, str, int, tuple[int, ...]], ...] = (
    *(("ig", model, 1, (1, 2, 32, 128)) for model in ("LeNet", "SimpleConvNet 32")),
    *(("ig", model, batch, (1, 2, 8)) for model in ("LeNet", "SimpleConvNet 32") for batch in (4, 16)),
    *(("ig", model, 1, (1, 2, 8)) for model in ("ConvNet 16", "ConvNet 64", "ResNet18")),
    *(("dlg", model, 1, (1, 2, 32, 128)) for model in ("LeNet", "SimpleConvNet 32")),
)
"""Attack, model, images in a batch, and numbers of victims."""
GOALS = (
    *(
        ("LeNet", batch, victims, goal)
        for batch, victims, goal in ((1, 32, 6.0), (4, 8, 3.0), (16, 8, 2.0), (16, 2, 1))
    ),
    *(("SimpleConvNet 32", batch, victims, goal) for batch, victims, goal in ((1, 32, 3.5), (4, 8, 1.9), (16, 8, 1.3))),
)
"""Ratios that the engine should reach over the loop, under Inverting Gradients: model, batch, victims, ratio."""
PRESETS: dict[str, type[DLG] | type[IGScript]] = {"ig": IGScript, "dlg": DLG}
SECONDS = 2.0
"""Approximate seconds of measuring a cell."""


@dataclass(frozen=True)
class Problem:
    """Victims who all hold the same batch: the work is that of different ones."""

    network: Network
    module: torch.nn.Module
    target: torch.Tensor
    labels: torch.Tensor
    batch_shape: tuple[int, ...]
    device: torch.device

    @classmethod
    def of(cls, model: str, batch: int, device: torch.device) -> Problem:
        """A victim of a freshly initialised model."""
        name, parameters, shape = MODELS_BY_NAME[model]
        network = build_network(MODELS.get(name)(**parameters), shape, CLASSES, 0, device)
        images = torch.randn(batch, *shape, generator=torch.Generator().manual_seed(0)).to(device)
        labels = torch.arange(3, 3 + batch, device=device) % CLASSES
        target = network.gradient(network.parameters, images, labels)
        return cls(network, network.trainable_module().eval(), target, labels, (batch, *shape), device)


def peer_ig(problem: Problem, iterations: int) -> None:
    """One victim: cosine, TV, signed Adam, box, as one would write it by hand."""
    module, parameters = problem.module, list(problem.module.parameters())
    targets = [
        part.view_as(parameter)
        for part, parameter in zip(problem.target.split(problem.network.sizes), parameters, strict=True)
    ]
    images = torch.randn(problem.batch_shape, device=problem.device).requires_grad_()
    optimiser = torch.optim.Adam([images], lr=0.1)
    low, high = torch.full_like(images, -2.0), torch.full_like(images, 2.0)
    for _ in range(iterations):
        optimiser.zero_grad()
        module.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(images), problem.labels)
        gradient = torch.autograd.grad(loss, parameters, create_graph=True)
        inner = torch.zeros((), device=problem.device)
        squares = [inner, inner]
        for g, t in zip(gradient, targets, strict=True):
            inner = inner + (g * t).sum()
            squares = [squares[0] + g.pow(2).sum(), squares[1] + t.pow(2).sum()]
        objective = 1 - inner / squares[0].sqrt() / squares[1].sqrt()
        horizontal = (images[..., 1:] - images[..., :-1]).abs().mean()
        vertical = (images[..., 1:, :] - images[..., :-1, :]).abs().mean()
        (objective + 1e-4 * (horizontal + vertical)).backward()
        assert images.grad is not None
        images.grad.sign_()
        optimiser.step()
        with torch.no_grad():
            images.data = torch.max(torch.min(images, high), low)


def peer_dlg(problem: Problem, iterations: int) -> None:
    """One victim: squared differences, torch's L-BFGS, labels optimised with the image."""
    module, parameters = problem.module, list(problem.module.parameters())
    targets = [
        part.view_as(parameter)
        for part, parameter in zip(problem.target.split(problem.network.sizes), parameters, strict=True)
    ]
    images = torch.randn(problem.batch_shape, device=problem.device).requires_grad_()
    scores = torch.randn(problem.batch_shape[0], CLASSES, device=problem.device).requires_grad_()
    optimiser = torch.optim.LBFGS([images, scores], lr=1, max_iter=iterations, tolerance_change=0, tolerance_grad=0)

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(images), scores.softmax(dim=-1))
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
        problem.network, problem.network.parameters, problem.target.expand(victims, -1), problem.batch_shape
    )
    box = torch.tensor([-2.0, 2.0], device=problem.device).view(2, 1, 1, 1).expand(2, problem.batch_shape[1], 1, 1)
    knowledge = Knowledge(labels=problem.labels.expand(victims, -1), pixel_range=box)
    return observations, knowledge, Streams([("benchmark", victim) for victim in range(victims)])


def marginal(work: Callable[[int], None], device: torch.device) -> float:
    """Seconds per iteration of ``work(iterations)``, without what it costs to start."""

    def seconds(iterations: int) -> float:
        return taken(partial(work, iterations), device)

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
    problem = Problem.of(arguments.model, arguments.batch, device)
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
    parser = options(__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS_BY_NAME), choices=list(MODELS_BY_NAME))
    parser.add_argument("--attacks", nargs="+", default=list(PRESETS), choices=list(PRESETS))
    parser.add_argument("--tf32", action="store_true", help="let a GPU's products round to TF32")
    parser.add_argument("--compile", action="store_true", help="evaluate through torch.compile")
    parser.add_argument("--who", choices=["peer", "engine"], help="measure one cell in this process")
    parser.add_argument("--attack", choices=list(PRESETS))
    parser.add_argument("--model", choices=list(MODELS_BY_NAME))
    parser.add_argument("--victims", type=int)
    parser.add_argument("--batch", type=int)
    arguments = parser.parse_args()
    if arguments.who:
        print(json.dumps(cell(arguments)))
        return
    print(f"{arguments.device}, {arguments.threads} threads; victim-iterations per second")
    print(
        "| attack | model | batch | (a) loop | (b) engine: victims, rate, over (a) | operators, (a) / (b) | peak GiB |"
    )
    print("|---|---|---:|---:|---|---|---|")
    for attack, model, batch, counts in CASES:
        if attack not in arguments.attacks or model not in arguments.models:
            continue
        victim = {"attack": attack, "model": model, "batch": batch}
        peer = measure(arguments, who="peer", **victim)
        cells = [measure(arguments, who="engine", victims=count, **victim) for count in counts]
        rates = "; ".join(
            f"{count}: {cell['rate']:.3g} ({cell['rate'] / peer['rate']:.1f}x)"
            for count, cell in zip(counts, cells, strict=True)
        )
        last = cells[-1]
        print(
            f"| {attack.upper()} | {model} | {batch} | {peer['rate']:.3g} | {rates} "
            f"| {peer['dispatches']:.0f} / {last['dispatches']:.0f} | {peer['peak']:.2f} / {last['peak']:.2f} |",
            flush=True,
        )


def goals() -> Iterator[Goal]:
    """The engine over the loop, on one thread."""
    arguments = argparse.Namespace(device="cpu", threads=1, tf32=False, compile=False)
    for model, batch, victims, goal in GOALS:
        victim = {"attack": "ig", "model": model, "batch": batch}
        loop = measure(arguments, who="peer", **victim)
        engine = measure(arguments, who="engine", victims=victims, **victim)
        what = f"Inverting Gradients, {model}, {victims} victims with batches of {batch}: victim-steps, over a loop"
        yield Goal(what, goal, engine["rate"] / loop["rate"])


if __name__ == "__main__":
    main()
