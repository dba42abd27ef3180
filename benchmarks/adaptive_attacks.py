"""Plain and adaptive attacks on the same messages, per defense: what an attacker gains who runs the defense himself.

``python -m benchmarks.adaptive_attacks`` prints the mean PSNR over single images of Fashion-MNIST under an untrained
LeNet, by the plain attack and by the defense's own adaptive one, at two weights of total variation, and the cost of an
adaptive iteration over that of a plain one. ``top-k signs`` is a mechanism that exists here alone: a stranger's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

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

WEIGHTS = (1e-2, 1e-1)
"""Weights of total variation."""
KNOWN = ("labels", "pixel_range", "auxiliary_images", "noise_variance", "mechanism")
CASES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("none", {}),
    ("qsgd", {"levels": 15}),
    ("sign_sgd", {"scale": "mean_abs"}),
    ("top_k_signs", {}),
    ("magnitude_pruning", {"fraction": 0.95}),
    ("magnitude_pruning", {"fraction": 0.99}),
    ("clipped_noise", {"scale": 0.01, "clip": 0.1}),
    ("gaussian_noise", {"scale": 0.01}),
    ("laplace", {"epsilon": 16, "form": "as_released_normaliser"}),
    ("laplace", {"epsilon": 64, "form": "as_released_normaliser"}),
    ("random_mask", {"probability": 0.95}),
    ("dp_sgd", {"multiplier": 0.01}),
    *(("sdq", {"bits": bits}) for bits in (8, 4, 2, 1)),
    *(("jopeq", {"mechanism": "scalar", "epsilon": epsilon}) for epsilon in (1, 4, 16, 64)),
    *(("cdpa", {"p": p, "layers": "last", "encodes": "gradient"}) for p in (0.99, 0.95, 0.9, 0.8)),
)


@DEFENSES.register("top_k_signs", version=1)
class TopKSigns(Defense):
    """Send the signs of the largest tenth of all coordinates, times their mean magnitude."""

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        largest = steps.gradient.abs().topk(steps.gradient.shape[1] // 10, dim=1)
        signs = steps.gradient.gather(1, largest.indices).sign() * largest.values.mean(dim=1, keepdim=True)
        return DenseMessage(torch.zeros_like(steps.gradient).scatter(1, largest.indices, signs))


def attacked(defense: str, parameters: Mapping[str, Any], attack: dict[str, Any], victims: int) -> tuple[float, float]:
    """Mean PSNR over the victims, in dB, and seconds."""
    given = dict(attack)
    job = Job(
        scale="benchmark",
        paper="attacks",
        experiment="adaptive",
        dataset=Variant("fashion", DATASETS.get("fashion_mnist"), {}, {}),
        model=Variant("lenet", MODELS.get("lenet"), {}, {}),
        defense=Variant(defense, DEFENSES.get(defense), parameters, {}),
        attack=Variant("attack", ATTACKS.get(given.pop("name")), given, {}),
        kind=AttackJob(clients=victims, batch_size=1, knowledge=KNOWN),
        part="all",
        seeds=(0,),
    )
    started = time.perf_counter()
    (replicate,) = compute(job, Placement("cpu").resolve()).replicates
    values = replicate.metrics["psnr"]
    assert isinstance(values, list), replicate.outcome.reason
    return statistics.mean(value for value in values if value is not None), time.perf_counter() - started


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--victims", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=300)
    arguments = parser.parse_args()
    columns = [f"{name}, TV {weight:g}" for weight in WEIGHTS for name in ("plain", "adaptive")]
    print("| defense | parameters | " + " | ".join(columns) + " | cost |")
    print("|---|---|" + "---:|" * (len(columns) + 1))
    for defense, parameters in CASES:
        cells, seconds = [], [0.0, 0.0]
        for weight in WEIGHTS:
            smooth = [{"kind": "total_variation", "weight": weight}]
            plain = {"name": "ig_optimal_defense", "iterations": arguments.iterations, "regularisers": smooth}
            for place, attack in enumerate((plain, {"name": "adaptive", "attack": plain})):
                psnr, took = attacked(defense, parameters, attack, arguments.victims)
                cells.append(f"{psnr:.1f}")
                seconds[place] += took
        named = ", ".join(f"{key} {value}" for key, value in parameters.items())
        print(f"| {defense} | {named} | " + " | ".join(cells) + f" | {seconds[1] / seconds[0]:.1f}x |", flush=True)


if __name__ == "__main__":
    main()
