"""Labels that attackers read off the messages of batches, per defense.

``python -m benchmarks.labels`` prints which part of the labels of batches of eight images of Fashion-MNIST is inferred
under an untrained LeNet: by the rule for the last layer's bias (``counts``), and by a discriminant that is learned from
auxiliary images, without and with the mechanism.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.adaptive_attacks import job_of
from leakbench.jobs.runner import Placement, compute

CASES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("none", {}),
    ("gaussian_noise", {"scale": 0.09}),
    ("dp_sgd", {"multiplier": 0.006}),
    ("laplace", {"epsilon": 7, "form": "as_released_normaliser"}),
    ("qsgd", {"levels": 15}),
    ("random_mask", {"probability": 0.65}),
    ("magnitude_pruning", {"fraction": 0.85}),
    ("grad_drop", {"fraction": 0.85}),
    ("grad_drop_residual", {"fraction": 0.995}),
    ("ef_sign_sgd", {"scale": "tensor"}),
    ("power_sgd", {"rank": 1}),
)
"""Settings of the first board, at 4 or at 8 clients."""
BLIND = {"name": "map", "iterations": 1}
LEARNED = BLIND | {"labels": "discriminant"}
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "`counts`": BLIND | {"labels": "counts"},
    "`discriminant`": LEARNED,
    "`discriminant`, mechanism known": {"name": "likelihood", "attack": LEARNED},
}


def accuracy(defense: str, parameters: Mapping[str, Any], attack: Mapping[str, Any], batches: int) -> float:
    """Mean part of the labels of a batch that are inferred; the search itself takes one step."""
    job = job_of(defense, parameters, attack, clients=batches, batch_size=8, victims="distinct", calibration=512)
    (replicate,) = compute(job, Placement("cpu").resolve()).replicates
    values = replicate.metrics["label_accuracy"]
    assert isinstance(values, list), replicate.outcome.reason
    return statistics.mean(value for value in values if value is not None)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--batches", type=int, default=16)
    batches = parser.parse_args().batches
    print(f"| defense | parameters | {' | '.join(COLUMNS)} |")
    print("|---|---|" + "---:|" * len(COLUMNS))
    for defense, parameters in CASES:
        cells = []
        for name, attack in COLUMNS.items():
            known = "mechanism" in name
            cells.append("" if known and defense == "none" else f"{accuracy(defense, parameters, attack, batches):.2f}")
        given = ", ".join(f"`{key}: {value}`" for key, value in parameters.items())
        print(f"| `{defense}` | {given} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
