"""Strength of attacks on the undefended gradient of an untrained model, beside attackers that never look at it.

Prints a table, and draws the best, median and worst victims beside their reconstructions. A slow test holds the bounds.
``--published`` instead runs the protocols of papers on their data sets, and prints their numbers beside ours.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from leakbench.attacks.base import ATTACKS
from leakbench.data.base import DATASETS
from leakbench.defenses.base import NoDefense
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.runner import Placement, compute
from leakbench.models.base import MODELS
from leakbench.report.gallery import gallery

VICTIMS = 16
EXACT = 1e-3
"""A mean squared error of pixels in [0, 1] below which an image counts as recovered."""


@dataclass(frozen=True)
class Case:
    """One attack on single-image victims, and what it must reach: of the victims, a share recovered; a median PSNR."""

    attack: str
    parameters: Mapping[str, Any]
    model: str
    dataset: str
    size: int = 0
    share: float = 0.0
    psnr: float = 0.0
    architecture: Mapping[str, Any] = field(default_factory=dict)
    inputs: str = "normalised"

    @property
    def name(self) -> str:
        """For tables and files."""
        return f"{self.attack}-{self.model}-{self.dataset}"

    @property
    def described(self) -> str:
        """The model, and what of it is not the default."""
        return ", ".join([self.model, *(f"{key} {value}" for key, value in self.architecture.items())])

    @property
    def data(self) -> str:
        """The victims."""
        return f"{self.dataset} {self.size}x{self.size}"

    @property
    def images(self) -> dict[str, Any]:
        """Parameters of the data set; a staged one has a size of its own."""
        given = {"size": self.size} if self.size else {}
        return given if self.inputs == "normalised" else {**given, "inputs": self.inputs}


CASES = (
    Case("dlg_wolfe", {"iterations": 600}, "lenet", "digits", 28, share=0.5),
    Case("dlg_wolfe", {"iterations": 2400}, "lenet", "photos", 32, share=0.5),
    Case("ig_script", {"iterations": 1000}, "lenet", "photos", 32, psnr=20, architecture={"initialisation": "default"}),
    Case("ig_breaching", {"iterations": 400}, "simpleconvnet", "photos", 32, psnr=20),
)
WEAKER = (
    Case("dlg", {"iterations": 600}, "lenet", "digits", 28),
    Case("dlg", {"iterations": 2400}, "lenet", "photos", 32),
    Case("ig_script", {"iterations": 1000}, "lenet", "photos", 32),
    Case("ig_script", {"iterations": 1000}, "simpleconvnet", "photos", 32),
)
"""For comparison: no line search; a net whose wide initialisation saturates its sigmoids; little total variation."""
REFERENCES = ("mean_image", "grey", "noise")


@dataclass(frozen=True)
class Published:
    """A case with a paper's protocol: models, victims of each, and the mean of a metric that the paper prints."""

    case: Case
    models: int
    victims: int
    metric: str
    printed: str


LABELS: Mapping[str, Any] = {"iterations": 6000, "stop_below": 1e-6}
SMOOTH: Mapping[str, Any] = {"iterations": 4800, "regularisers": [{"kind": "total_variation", "weight": 1e-2}]}
PUBLISHED = (
    Published(Case("dlg", LABELS, "lenet", "mnist", inputs="pixels"), 100, 1, "label_accuracy", "0.899"),
    Published(Case("idlg", LABELS, "lenet", "mnist", inputs="pixels"), 100, 1, "label_accuracy", "1.000"),
    Published(Case("ig_script", SMOOTH, "lenet", "cifar10"), 10, 10, "psnr", "18.00"),
)
"""Zhao et al. 2020, Table 1, with the settings of the released code; Geiping et al. 2020, Table 1, untrained LeNet."""


def findings(
    case: Case,
    attack: str,
    parameters: Mapping[str, Any],
    placement: Placement,
    victims: int = VICTIMS,
    models: int = 1,
) -> Findings:
    """Attack the undefended gradients of clients with one image each; several models have images of their own."""
    job = Job(
        scale="benchmark",
        paper="attacks",
        experiment="strength",
        dataset=Variant(case.dataset, DATASETS.get(case.dataset), case.images, {}),
        model=Variant(case.model, MODELS.get(case.model), case.architecture, {}),
        defense=Variant("none", NoDefense, {}, {}),
        attack=Variant(attack, ATTACKS.get(attack), parameters, {}),
        kind=AttackJob(clients=victims, batch_size=1, victims="same" if models == 1 else "distinct"),
        part="all",
        seeds=tuple(range(models)),
    )
    return compute(job, placement.resolve())


def per_victim(result: Findings, metric: str) -> list[float]:
    """A metric of every victim, under all models."""
    numbers: list[float] = []
    for replicate in result.replicates:
        values = replicate.metrics[metric]
        assert isinstance(values, list)
        numbers += [float("nan") if value is None else value for value in values]
    return numbers


def recovered(result: Findings) -> float:
    """The part of the victims whose image is recovered."""
    errors = per_victim(result, "mse")
    return sum(mse < EXACT for mse in errors) / len(errors)


def published(placement: Placement) -> None:
    """Print a paper's number and ours for every protocol of :data:`PUBLISHED`."""
    ours = ("mean", "deviation", "median PSNR, dB", "recovered", "mean image, dB", "seconds")
    columns = ("attack", "data", "models, victims of each", "metric", "published", *ours)
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for each in PUBLISHED:
        case = each.case
        started = time.perf_counter()
        result = findings(case, case.attack, case.parameters, placement, each.victims, each.models)
        seconds = time.perf_counter() - started
        blind = findings(case, "mean_image", {}, placement, each.victims, each.models)
        values = per_victim(result, each.metric)
        print(
            f"| `{case.attack}` | {case.dataset} | {each.models}, {each.victims} | {each.metric} | {each.printed} "
            f"| {statistics.mean(values):.3f} | {statistics.stdev(values):.3f} "
            f"| {statistics.median(per_victim(result, 'psnr')):.1f} | {recovered(result):.0%} "
            f"| {statistics.mean(per_victim(blind, 'psnr')):.1f} | {seconds:.0f} |",
            flush=True,
        )


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pictures", type=Path, help="folder for a picture per case")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--published", action="store_true", help="run the protocols of papers, on real data, instead")
    arguments = parser.parse_args()
    placement = Placement(arguments.device, arguments.threads)
    if arguments.published:
        published(placement)
        return
    columns = (
        "attack",
        "iterations",
        "model",
        "data",
        "median PSNR, dB",
        "recovered",
        "mean, grey, noise, dB",
        "seconds",
    )
    print("| " + " | ".join(columns) + " |")
    print("|---" * 8 + "|")
    for case in (*CASES, *WEAKER):
        started = time.perf_counter()
        result = findings(case, case.attack, case.parameters, placement)
        seconds = time.perf_counter() - started
        blind = [findings(case, name, {}, placement) for name in REFERENCES]
        floors = ", ".join(f"{statistics.median(per_victim(each, 'psnr')):.1f}" for each in blind)
        psnr = per_victim(result, "psnr")
        print(
            f"| `{case.attack}` | {case.parameters['iterations']:,} | {case.described} | {case.data} "
            f"| {statistics.median(psnr):.1f} | {recovered(result):.0%} | {floors} | {seconds:.0f} |",
            flush=True,
        )
        if arguments.pictures and case in CASES:
            arguments.pictures.mkdir(parents=True, exist_ok=True)
            images = {
                name: each.tensors["seed0/reconstructions"].flatten(0, 2)
                for name, each in {case.attack: result, "mean_image": blind[0]}.items()
            }
            title = f"{case.attack} on {case.model}, {case.parameters['iterations']:,} iterations"
            figure = gallery(result.tensors["seed0/victims"].flatten(0, 1), images, torch.tensor(psnr), title=title)
            figure.savefig(arguments.pictures / f"{case.name}.png", bbox_inches="tight")


if __name__ == "__main__":
    main()
