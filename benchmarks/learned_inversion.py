"""Learned inversion per defense, beside the mean image: what an attacker sees who only runs the defense himself.

``python -m benchmarks.learned_inversion`` prints the mean PSNR over single images of Fashion-MNIST under an untrained
LeNet, learned from 1,500 auxiliary images, and seconds on the threads that torch has.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from typing import Any

from leakbench.attacks.base import ATTACKS
from leakbench.data.base import DATASETS
from leakbench.defenses.base import DEFENSES
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Job, Variant
from leakbench.jobs.runner import Placement, compute
from leakbench.models.base import MODELS

CASES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("none", {}),
    ("sign_sgd", {"scale": "mean_abs"}),
    ("magnitude_pruning", {"fraction": 0.99}),
    ("gaussian_noise", {"scale": 0.1}),
    ("gaussian_noise", {"scale": 0.01}),
    ("qsgd", {"levels": 15}),
)


def attacked(
    defense: str, parameters: Mapping[str, Any], attack: str, victims: int, images: int
) -> tuple[float, float]:
    """Mean PSNR over the victims, in dB, and seconds."""
    job = Job(
        scale="benchmark",
        paper="attacks",
        experiment="learned",
        dataset=Variant("fashion", DATASETS.get("fashion_mnist"), {}, {}),
        model=Variant("lenet", MODELS.get("lenet"), {}, {}),
        defense=Variant(defense, DEFENSES.get(defense), parameters, {}),
        attack=Variant(attack, ATTACKS.get(attack), {}, {}),
        kind=AttackJob(
            clients=victims,
            batch_size=1,
            auxiliary=images,
            knowledge=("labels", "pixel_range", "auxiliary_images", "mechanism"),
        ),
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
    parser.add_argument("--images", type=int, default=1500)
    arguments = parser.parse_args()
    guess, _ = attacked("none", {}, "mean_image", arguments.victims, arguments.images)
    print(f"mean image: {guess:.1f} dB\n\n| defense | parameters | dB | seconds |\n|---|---|---:|---:|")
    for defense, parameters in CASES:
        psnr, seconds = attacked(defense, parameters, "ridge_inversion", arguments.victims, arguments.images)
        named = ", ".join(f"{key} {value}" for key, value in parameters.items())
        print(f"| {defense} | {named} | {psnr:.1f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
