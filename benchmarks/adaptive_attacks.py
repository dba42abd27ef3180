"""Plain and adaptive attacks on the same messages, per defense: what an attacker gains who runs the defense himself.

``python -m benchmarks.adaptive_attacks`` prints the mean PSNR over single images of Fashion-MNIST under an untrained
LeNet, by the plain attack and by the defense's own adaptive one, at a few weights of total variation (with ``--tuned``
also at the weight that the attacker chooses for himself), the gain of the best adaptive one over the best plain one,
the cost of an adaptive iteration over that of a plain one, and what both find with a law of images (``map``). ``top-k
signs`` is a mechanism that exists here alone: a stranger's.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.measuring import Goal
from leakbench.attacks.base import ATTACKS
from leakbench.data.base import DATASETS
from leakbench.defenses.base import DEFENSES, Defense
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Job, Variant
from leakbench.jobs.runner import Placement, compute
from leakbench.lazy import torch
from leakbench.models.base import MODELS
from leakbench.randomness import Streams

WEIGHTS = (1e-3, 1e-2, 1e-1)
"""Weights of total variation."""
KNOWN = ("labels", "pixel_range", "auxiliary_images", "noise_variance", "mechanism")
LEVELS: tuple[tuple[str, str, tuple[float, ...], Mapping[str, Any]], ...] = (
    ("gaussian_noise", "scale", (1e-4, 1e-3, 1e-2, 0.1), {}),
    ("clipped_noise", "scale", (1e-4, 1e-3, 1e-2, 0.1), {"clip": 1.0}),
    ("optimal_clipped_noise", "scale", (1e-4, 1e-3, 1e-2, 0.1), {"clip": 1.0}),
    ("laplace", "epsilon", (1, 4, 16, 64), {"form": "as_released_normaliser"}),
    ("dp_sgd", "multiplier", (1e-4, 1e-3, 1e-2, 0.1), {}),
    ("dp_psac", "multiplier", (1e-4, 1e-3, 1e-2, 0.1), {}),
    ("magnitude_pruning", "fraction", (0.5, 0.8, 0.95, 0.99), {}),
    ("optimal_pruning", "fraction", (0.5, 0.8, 0.95, 0.99), {}),
    ("grad_drop", "fraction", (0.5, 0.8, 0.95, 0.99), {}),
    ("random_mask", "probability", (0.5, 0.8, 0.95, 0.99), {}),
    ("qsgd", "levels", (127, 15, 3, 1), {}),
    ("sdq", "bits", (8, 4, 2, 1), {}),
    ("jopeq", "epsilon", (1, 4, 16, 64), {"mechanism": "scalar"}),
    ("cdpa", "p", (0.99, 0.95, 0.9, 0.8), {"layers": "last", "encodes": "gradient"}),
)
"""The leaderboard's settings of defenses that state a likelihood: a parameter, its values, and the others."""
CASES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("none", {}),
    ("top_k_signs", {}),
    ("sign_sgd", {"scale": "mean_abs"}),
    ("clipped_noise", {"scale": 0.01, "clip": 0.1}),
    *((name, {key: value, **others}) for name, key, values, others in LEVELS for value in values),
)


DEAREST: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("cdpa", {"p": 0.95, "layers": "last", "encodes": "gradient"}),
    ("optimal_clipped_noise", {"scale": 1e-3, "clip": 1.0}),
    ("qsgd", {"levels": 15}),
    ("jopeq", {"epsilon": 4, "mechanism": "scalar"}),
)


@DEFENSES.register("top_k_signs", version=1)
class TopKSigns(Defense):
    """Send the signs of the largest tenth of all coordinates, times their mean magnitude."""

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        largest = steps.gradient.abs().topk(steps.gradient.shape[1] // 10, dim=1)
        signs = steps.gradient.gather(1, largest.indices).sign() * largest.values.mean(dim=1, keepdim=True)
        return DenseMessage(torch.zeros_like(steps.gradient).scatter(1, largest.indices, signs))


def job_of(defense: str, parameters: Mapping[str, Any], attack: Mapping[str, Any], **protocol: Any) -> Job:
    """An attack under an untrained LeNet; ``protocol`` has the fields of :class:`AttackJob`."""
    given = dict(attack)
    return Job(
        scale="benchmark",
        paper="attacks",
        experiment="adaptive",
        dataset=Variant("fashion", DATASETS.get("fashion_mnist"), {}, {}),
        model=Variant("lenet", MODELS.get("lenet"), {}, {}),
        defense=Variant(defense, DEFENSES.get(defense), parameters, {}),
        attack=Variant("attack", ATTACKS.get(given.pop("name")), given, {}),
        kind=AttackJob(knowledge=KNOWN, **protocol),
        part="all",
        seeds=(0,),
    )


def attacked(
    defense: str, parameters: Mapping[str, Any], attack: Mapping[str, Any], victims: int, **protocol: Any
) -> tuple[float, float]:
    """Mean PSNR over the victims, in dB, and processor seconds. ``protocol`` has other fields of the attack job."""
    job = job_of(defense, parameters, attack, clients=victims, batch_size=1, **protocol)
    started = time.process_time()
    (replicate,) = compute(job, Placement("cpu").resolve()).replicates
    values = replicate.metrics["psnr"]
    assert isinstance(values, list), replicate.outcome.reason
    return statistics.mean(value for value in values if value is not None), time.process_time() - started


def goals() -> Iterator[Goal]:
    """An iteration that knows the defense over a plain one, of those whose likelihood or simulation costs most."""
    smooth = [{"kind": "total_variation", "weight": 0.01}]
    torch.set_num_threads(1)
    for defense, parameters in DEAREST:
        costs: dict[tuple[str, int], list[float]] = defaultdict(list)
        for _ in range(3):
            for iterations in (10, 110):  # their difference leaves out how a job starts
                plain = {"name": "ig_optimal_defense", "iterations": iterations, "regularisers": smooth}
                for attack in (plain, {"name": "adaptive", "attack": plain}):
                    took = attacked(defense, parameters, attack, 32)[1]
                    costs[str(attack["name"]), iterations].append(took)
        adaptive, ignorant = (
            min(costs[name, 110]) - min(costs[name, 10]) for name in ("adaptive", "ig_optimal_defense")
        )
        ratio = adaptive / ignorant
        yield Goal(f"attacking {defense}: an adaptive iteration, over a plain one", 2.0, ratio, at_most=True)


def tuned(attack: dict[str, Any]) -> dict[str, Any]:
    """The attack, whose weight is the last one, at a hundredth, a tenth or all of it."""
    return {"name": "tuned", "attack": attack, "priors": [0.01, 0.1, 1]}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--victims", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--defenses", nargs="*", help="names; all by default")
    parser.add_argument("--weights", nargs="*", type=float, default=WEIGHTS, help="of total variation")
    parser.add_argument("--tuned", action="store_true", help="at the weight of the attacker's choice, too: slow")
    arguments = parser.parse_args()
    forms = ("plain", "adaptive")
    columns = [f"{name}, TV {weight:g}" for weight in arguments.weights for name in forms]
    columns += [f"{name}, tuned" for name in forms] if arguments.tuned else []
    print("| defense | parameters | " + " | ".join(columns) + " | gain | cost | map, plain | map, adaptive |")
    print("|---|---|" + "---:|" * (len(columns) + 4))
    for defense, parameters in CASES:
        if arguments.defenses and defense not in arguments.defenses:
            continue
        cells, best, seconds = [], [-math.inf, -math.inf], [0.0, 0.0]
        for weight in arguments.weights:
            smooth = [{"kind": "total_variation", "weight": weight}]
            plain = {"name": "ig_optimal_defense", "iterations": arguments.iterations, "regularisers": smooth}
            for place, attack in enumerate((plain, {"name": "adaptive", "attack": plain})):
                psnr, took = attacked(defense, parameters, attack, arguments.victims)
                cells.append(f"{psnr:.1f}")
                best[place] = max(best[place], psnr)
                seconds[place] += took
        chosen = [tuned(attack) for attack in (plain, {"name": "adaptive", "attack": plain}) if arguments.tuned]
        cells += [f"{attacked(defense, parameters, attack, arguments.victims)[0]:.1f}" for attack in chosen]
        named = ", ".join(f"{key} {value}" for key, value in parameters.items())
        lawful: tuple[dict[str, Any], ...] = ({"name": "map"}, {"name": "adaptive", "attack": {"name": "map"}})
        by_law = [f"{attacked(defense, parameters, attack, arguments.victims)[0]:.1f}" for attack in lawful]
        shown = (
            f"{' | '.join(cells)} | {best[1] - best[0]:+.1f} | {seconds[1] / seconds[0]:.1f}x | {' | '.join(by_law)}"
        )
        print(f"| {defense} | {named} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
