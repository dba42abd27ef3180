"""A plug-in that replaces what jobs compute, and nothing else, by numbers that follow from the job and the seed.

The tests here are about what runs when. Paths, digests, records, tables, figures and Snakemake are the real ones; a job
takes half a second instead of ten, since it does not import torch.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Iterator
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

from leakbench.jobs.attack import ATTACK_METRICS, AttackJob
from leakbench.jobs.base import Findings, Job, JobKind
from leakbench.jobs.fisher import FISHER_METRICS, FisherJob
from leakbench.jobs.inventory import InventoryJob
from leakbench.jobs.runner import Placement
from leakbench.jobs.train import NOISE_PER_TENSOR, TRAINING_METRICS, TrainJob, noise_metric
from leakbench.records import MetricInfo, Outcome, Replicate
from leakbench.report.artifacts import Tables
from leakbench.report.claims import Claim, Finding

NO_LPIPS = "the weights are not <staged>"
DIVERGED = "training became non-finite at step 1"
with (files("leakbench.papers.optimal_defense") / "reference" / "table01.csv").open() as file:
    TENSORS = {row["tensor"]: float(row["paper"]) for row in csv.DictReader(file)}


def findings(job: Job) -> Findings:
    """What a job of any kind might find, the same in every process."""
    if isinstance(job.kind, AttackJob):
        return Findings(ATTACK_METRICS, list(_attacks(job, job.kind)), {})
    if isinstance(job.kind, TrainJob):
        noise = [noise_metric(name) for name in TENSORS if job.kind.noise_per_tensor]
        metrics = TRAINING_METRICS | dict.fromkeys(noise, NOISE_PER_TENSOR)
        return Findings(metrics, list(_training(job, job.kind, noise)), {})
    if isinstance(job.kind, FisherJob):
        return Findings(FISHER_METRICS, list(_fisher(job, job.kind)), {})
    counts = TENSORS
    metrics = {name: MetricInfo(unit="parameters", direction="none") for name in counts}
    return Findings(metrics, [Replicate(seed=0, metrics=dict(counts))], {})


def _cells(job: Job) -> Iterator[tuple[int, dict[str, Any], random.Random]]:
    """Seeds and settings, with a generator of their own."""
    for seed in job.seeds:
        for setting, _ in job.defense.settings():
            yield seed, dict(setting), random.Random(f"{job.digest}/{seed}/{sorted(setting.items())}")


def _attacks(job: Job, kind: AttackJob) -> Iterator[Replicate]:
    for seed, setting, draw in _cells(job):
        strength = sum(map(float, setting.values()))
        lengths = {"image": kind.clients * kind.batch_size, "victim": kind.clients}
        metrics: dict[str, Any] = {
            name: [strength + draw.random() for _ in range(lengths[info.axis])] if info.axis in lengths else 32.0
            for name, info in ATTACK_METRICS.items()
        }
        unstaged = ("lpips", "assigned_lpips")
        metrics["psnr"] = [20.0 + value for value in metrics["psnr"]]  # passes every gate of the configuration
        metrics |= dict.fromkeys(unstaged)
        yield Replicate(seed=seed, setting=setting, metrics=metrics, reasons=dict.fromkeys(unstaged, NO_LPIPS))


def _fisher(job: Job, kind: FisherJob) -> Iterator[Replicate]:
    for seed, setting, draw in _cells(job):
        metrics: dict[str, Any] = {name: [draw.random() for _ in range(kind.clients)] for name in FISHER_METRICS}
        yield Replicate(seed=seed, setting=setting, metrics=metrics)


def _training(job: Job, kind: TrainJob, noise: list[str]) -> Iterator[Replicate]:
    """Seed 1 diverges under the label ``dpsgd``, in its strongest setting."""
    settings = [setting for setting, _ in job.defense.settings()]
    for seed, setting, draw in _cells(job):
        curve: list[float | None] = [2.3 / (1 + step) + draw.random() / 10 for step in range(kind.steps)]
        metrics: dict[str, Any] = {"loss_curve": curve, "final_loss": draw.random(), "accuracy": None, "bits": 32.0}
        metrics |= {name: [draw.random() for _ in range(kind.steps)] for name in noise}
        reasons = {"accuracy": "the protocol names no evaluation images"}
        outcome = Outcome()
        if job.defense.label == "dpsgd" and seed == 1 and setting == settings[-1]:
            outcome = Outcome(status="diverged", reason=DIVERGED, step=1)
            metrics |= {"loss_curve": [curve[0], *[None] * (kind.steps - 1)], "final_loss": None}
            reasons = dict.fromkeys(("loss_curve", "final_loss", "accuracy"), DIVERGED)
        yield Replicate(seed=seed, setting=setting, outcome=outcome, metrics=metrics, reasons=reasons)


def _run(_: JobKind, job: Job, device: object) -> Findings:
    return findings(job)


if __name__.startswith("leakbench_plugin_"):  # a test that imports this file wants its functions alone
    for kind_of_job in (AttackJob, TrainJob, FisherJob, InventoryJob):
        kind_of_job.run = _run  # type: ignore[method-assign, assignment]
    _judge = Claim.judge
    _CHECKED = Finding("reproduced", effect=0.25, meaning="slack")  # theorems are checked by computing, with torch

    def _judge_quickly(self: Claim, tables: Tables) -> Finding:
        return _judge(self, tables) if self.experiments else _CHECKED

    Claim.judge = _judge_quickly  # type: ignore[method-assign]
    Placement.resolve = lambda _: SimpleNamespace(type="cpu")  # type: ignore[method-assign, assignment, return-value]
