"""Learned inversion per defense, beside the mean image: what an attacker sees who only runs the defense himself.

``python -m benchmarks.learned_inversion`` prints the mean PSNR over single images of Fashion-MNIST under an untrained
LeNet, learned from 1,500 auxiliary images, and seconds on the threads that torch has.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from benchmarks.adaptive_attacks import attacked

CASES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("none", {}),
    ("sign_sgd", {"scale": "mean_abs"}),
    ("magnitude_pruning", {"fraction": 0.99}),
    ("gaussian_noise", {"scale": 0.1}),
    ("gaussian_noise", {"scale": 0.01}),
    ("qsgd", {"levels": 15}),
)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--victims", type=int, default=32)
    parser.add_argument("--images", type=int, default=1500)
    arguments = parser.parse_args()
    guess, _ = attacked("none", {}, {"name": "mean_image"}, arguments.victims, auxiliary=arguments.images)
    print(f"mean image: {guess:.1f} dB\n\n| defense | parameters | dB | seconds |\n|---|---|---:|---:|")
    ridge = {"name": "ridge_inversion"}
    for defense, parameters in CASES:
        psnr, seconds = attacked(defense, parameters, ridge, arguments.victims, auxiliary=arguments.images)
        named = ", ".join(f"{key} {value}" for key, value in parameters.items())
        print(f"| {defense} | {named} | {psnr:.1f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
