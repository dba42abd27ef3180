"""Written-out passes against ``torch.func``: value and derivative of a cosine distance of gradients by the images.

``python -m benchmarks.second_order`` prints evaluations of victims per second of processor time on one thread, both
ways in turns, and their ratio. Models of their ``own`` differ from victim to victim, as those of several seeds do.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from benchmarks.measuring import fastest
from leakbench.attacks.objectives import Cosine
from leakbench.libraries.memory import keep_freed_memory
from leakbench.models.base import MODELS, Network
from leakbench.models.second_order import SecondOrder

Gradient = Callable[..., torch.Tensor]


class Case(NamedTuple):
    """Victims with a batch of images each, and a model."""

    model: str
    width: int
    shape: tuple[int, int, int]
    victims: int
    batch: int
    stacked: bool = False


CASES = (
    *(Case("lenet", 12, (3, 32, 32), victims, batch) for victims, batch in ((32, 1), (8, 4), (8, 16), (2, 16))),
    Case("lenet", 12, (1, 16, 16), 24, 1, stacked=True),
    *(Case("simpleconvnet", 32, (1, 28, 28), victims, batch) for victims, batch in ((32, 1), (8, 4), (8, 16), (2, 16))),
    Case("simpleconvnet", 24, (1, 16, 16), 24, 4),
    Case("lenet5", 6, (3, 32, 32), 16, 4),
    Case("convnet", 8, (3, 16, 16), 4, 2),
    Case("convnet", 64, (3, 32, 32), 1, 2),
)
REPEATS, TURNS = 5, 4


def evaluated(case: Case, network: Network, gradient_of: Gradient) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """A function that evaluates all victims."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(case.victims, case.batch, *case.shape, generator=draw)
    labels = torch.randint(10, (case.victims, case.batch), generator=draw)
    targets = 0.01 * torch.randn(case.victims, network.dimension, generator=draw)
    parameters = network.parameters
    if case.stacked:
        parameters = parameters + 0.01 * torch.randn(case.victims, network.dimension, generator=draw)

    def cost(images: torch.Tensor, labels: torch.Tensor, target: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
        return Cosine()(gradient_of(model, images, labels), target, None, network.sizes)

    evaluate = torch.func.vmap(torch.func.grad_and_value(cost), in_dims=(0, 0, 0, 0 if case.stacked else None))
    return partial(evaluate, images, labels, targets, parameters)


def repeated(way: Callable[[], object]) -> None:
    """Call it :data:`REPEATS` times."""
    for _ in range(REPEATS):
        way()


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()  # it takes nothing, and says so
    torch.set_num_threads(1)
    keep_freed_memory()
    print(
        "| model | images | victims | batch | models | torch.func, /s | written out, /s | ratio | largest difference |"
    )
    print("|---|---|---:|---:|---|---:|---:|---:|---:|")
    for case in CASES:
        torch.manual_seed(0)
        network = Network(MODELS.get(case.model)(width=case.width).build(case.shape, 10))
        passes = SecondOrder.of(network)
        assert passes is not None
        ways = [evaluated(case, network, gradient_of) for gradient_of in (network.gradient, passes.gradient)]
        theirs, ours = (way()[0] for way in ways)
        difference = float((ours - theirs).abs().max() / theirs.abs().max())
        works: dict[str, Callable[[], object]] = {str(place): partial(repeated, way) for place, way in enumerate(ways)}
        slow, fast = (REPEATS * case.victims / each for each in fastest(works, torch.device("cpu"), TURNS).values())
        models = "own" if case.stacked else "shared"
        print(
            f"| {case.model} {case.width} | {'x'.join(map(str, case.shape))} | {case.victims} | {case.batch} "
            f"| {models} | {slow:,.0f} | {fast:,.0f} | {fast / slow:.2f}x | {difference:.0e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
