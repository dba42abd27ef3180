"""Water-filling of the users of a round of Fig. 5a: eigenpairs above the floor, or whole decompositions.

(a) multiplies the inputs of all records anew and decomposes the Gram matrix whole; (b) keeps the inputs' products,
which do not change from round to round, and takes the eigenpairs above the floor alone, as the mechanism does. Both
must send the same updates. The linear model was trained without noise on these users' records of MNIST for some
rounds; the floor is that of an epsilon by Theorem 4 and the paper's accounting.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from unittest.mock import patch

import torch

from benchmarks.measuring import fastest, options
from leakbench.data.staged import Mnist
from leakbench.defenses import water_filling
from leakbench.defenses.water_filling import WaterFilling
from leakbench.federated.layered_steps import LayeredSteps
from leakbench.jobs.victims import Victims, gather_victims
from leakbench.models.layered import LayeredNetwork
from leakbench.models.linear import Linear
from leakbench.numerics.eigenpairs import pairs_above

USERS, RATE = 50, 0.3
Pairs = Callable[[torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]


def users(count: int) -> Victims:
    """The users that are timed, of the 50 that there are."""
    cpu = torch.device("cpu")
    model = Linear(start="zero")
    return gather_victims(
        Mnist(), "mnist", model, 0, clients=count, batch_size=1200, first_index=0, device=cpu, split="train"
    )


def step(victims: Victims, parameters: torch.Tensor, layered: LayeredNetwork) -> LayeredSteps:
    """The users' step."""
    return LayeredSteps(
        victims.network, layered, parameters[None], victims.inputs, victims.labels, victims.streams.child("timed")
    )


def taken_apart(victims: Victims) -> LayeredNetwork:
    """The network, which has kept nothing yet."""
    layered = LayeredNetwork.of(victims.network)
    assert layered is not None
    return layered


def main() -> None:
    """Measure some floors and rounds, and print a table."""
    parser = options(__doc__)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--users", type=int, default=4, help="users that are timed; the table has seconds of 50")
    parser.add_argument("--rounds", type=int, nargs="+", default=[0, 60])
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 16.0])
    arguments: argparse.Namespace = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    victims, device = users(arguments.users), torch.device("cpu")
    print(f"{arguments.threads} thread(s), {arguments.users} users timed, seconds of {USERS}")
    print(
        "| rounds trained | epsilon | sigma^2 | most above the floor | (a), s | (b), s | (a) / (b) | clipped mean, s |"
    )
    print("|---" * 8 + "|")
    parameters, layered = victims.parameters.clone(), taken_apart(victims)
    for number in range(max(arguments.rounds) + 1):
        if number in arguments.rounds:
            for epsilon in arguments.epsilons:
                print(row(victims, parameters, layered, epsilon, number, device, arguments.repeats), flush=True)
        parameters = parameters - RATE * step(victims, parameters, layered).gradient.mean(dim=0)


def row(
    victims: Victims,
    parameters: torch.Tensor,
    layered: LayeredNetwork,
    epsilon: float,
    number: int,
    device: torch.device,
    repeats: int,
) -> str:
    """One line of the table."""
    defense = WaterFilling(
        clip=10, batch=32, users=USERS, records=1200, rounds=100, delta=1e-4, epsilon=epsilon, accounting="composition"
    )
    level, streams, above = defense.noise_level, victims.streams.child("noise"), [0]

    def sent(layers: LayeredNetwork, pairs: Pairs) -> torch.Tensor:
        with patch.object(water_filling, "pairs_above", pairs):
            return defense.protect_update(step(victims, parameters, layers), streams.child("draw")).view()

    def counted(matrix: torch.Tensor, floor: float) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = pairs_above(matrix, floor)
        above.append(len(values))
        return values, vectors

    def decomposed(matrix: torch.Tensor, _: float) -> tuple[torch.Tensor, torch.Tensor]:
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors

    def whole() -> torch.Tensor:
        return sent(taken_apart(victims), decomposed)

    torch.testing.assert_close(sent(layered, counted), whole(), rtol=1e-4, atol=1e-4 * level**0.5)
    costs = fastest(
        {
            "whole": whole,
            "ours": lambda: sent(layered, pairs_above),
            "mean": lambda: defense.bounded_mean(step(victims, parameters, layered)),
        },
        device,
        repeats,
    )
    whole_s, ours_s, mean_s = (costs[name] * USERS / len(victims.labels) for name in ("whole", "ours", "mean"))
    return (
        f"| {number} | {epsilon:g} | {level:.3g} | {max(above)} | {whole_s:.1f} | {ours_s:.2f} "
        f"| {whole_s / ours_s:.0f} | {mean_s:.2f} |"
    )


if __name__ == "__main__":
    main()
