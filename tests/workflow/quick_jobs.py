"""A plug-in that replaces what jobs compute, and nothing else, by numbers that follow from the job and the seed.

The tests here are about what runs when. Paths, digests, records, tables, figures and Snakemake are the real ones; a job
takes half a second instead of ten, since few of them import torch. Each kind of job states its metrics, its settings
and the lengths of its lists; here are the few values beside, without which gates, figures or claims show nothing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from leakbench.data.text import pack
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind
from leakbench.jobs.runner import Placement
from leakbench.lazy import torch
from leakbench.records import MetricInfo, Outcome, Replicate, Value
from leakbench.report.artifacts import Tables
from leakbench.report.claims import Claim
from leakbench.report.findings import Finding

PARAMETERS = 2410.0
PIXELS = 256.0
NO_LPIPS = "the weights are not <staged>"
DIVERGED = "training became non-finite at step 1"

Adapt = Callable[[Job, Replicate], None]
"""Changes a replicate of a job, whose metrics are random, in place."""


def findings(job: Job, adapted: Mapping[str, Adapt] | None = None) -> Findings:
    """What a job of any kind might find, the same in every process.

    Args:
        job: of any kind.
        adapted: by kind of job, numbers that a test asks for.
    """
    replicates = [
        each.model_copy(update={"setting": {**each.setting, **setting}})
        for setting, combination in job.combinations()
        for each in _replicates(combination, ADAPTED | dict(adapted or {}))
    ]
    keep = None if job.kinds else KEPT.get(job.kind.name)
    return Findings(replicates, keep(job) if keep else {})


def _replicates(job: Job, adapted: Mapping[str, Adapt]) -> Iterator[Replicate]:
    metrics, lengths = job.metrics, job.kind.lengths_of(job)
    for seed in job.seeds:
        for setting in job.kind.settings_of(job):
            draw = random.Random(f"{job.digest}/{seed}/{sorted(setting.items())}")
            values = {name: _value(name, info, lengths, draw) for name, info in metrics.items()}
            replicate = Replicate(seed=seed, setting=dict(setting), metrics=values)
            if job.kind.name in adapted:
                adapted[job.kind.name](job, replicate)
            yield replicate


def _value(name: str, info: MetricInfo, lengths: Mapping[str, int], draw: random.Random) -> Value:
    """Between a half and one, or half of the parameters and all of them."""
    scale = PARAMETERS if info.unit.startswith("parameters") else 1.0
    if info.axis is None:
        return scale * draw.uniform(0.5, 1.0)
    return [scale * draw.uniform(0.5, 1.0) for _ in range(lengths.get(name, lengths.get(info.axis, 0)))]


def without(replicate: Replicate, reason: str, *names: str) -> None:
    """Make metrics of a replicate null."""
    replicate.metrics |= dict.fromkeys(names)
    replicate.reasons |= dict.fromkeys(names, reason)


def _attacked(job: Job, replicate: Replicate) -> None:
    """Every gate of the configuration is passed; LPIPS has no weights."""
    assert job.attack is not None
    blind = not job.attack.component.observes
    for name, passing in {"psnr": 20.0, "assigned_psnr": 20.0, "rouge1": 60.0}.items():
        if isinstance(values := replicate.metrics.get(name), list):
            replicate.metrics[name] = [(0.0 if blind else passing) + (value or 0.0) for value in values]
    without(replicate, NO_LPIPS, *(name for name in replicate.metrics if "lpips" in name))


def _trained(job: Job, replicate: Replicate) -> None:
    """Seed 1 diverges under the label ``dpsgd``, in its strongest setting."""
    kind: Any = job.kind
    strongest = list(job.kind.settings_of(job))[-1]
    if job.defense.label == "dpsgd" and replicate.seed == 1 and replicate.setting == strongest:
        replicate.outcome = Outcome(status="diverged", reason=DIVERGED, step=1)
        without(replicate, DIVERGED, "loss_curve", "final_loss", "accuracy")
    elif kind.evaluation is None:
        without(replicate, "the protocol names no evaluation images", "accuracy")


def _counted(job: Job, replicate: Replicate) -> None:
    replicate.metrics = {name: float(count) for name, count in job.parameter_counts().items()}


def _calibrated(job: Job, replicate: Replicate) -> None:
    """Images of 256 pixels of unit variance."""
    capacity: Any = replicate.metrics["capacity"]
    replicate.metrics |= {"log_factor": None if capacity is None else -2 * capacity / PIXELS, "trace": PIXELS}


def _measured(job: Job, replicate: Replicate) -> None:
    replicate.metrics["dimension"] = PARAMETERS


ADAPTED: dict[str, Adapt] = {
    "attack": _attacked,
    "train": _trained,
    "inventory": _counted,
    "calibrate": _calibrated,
    "spectrum": _measured,
}


def _uniform(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def _images(job: Job, seed: int, settings: int) -> dict[str, torch.Tensor]:
    kind: Any = job.kind
    shape = (kind.clients, kind.batch_size, *job.dataset.single().shape)
    victims, reconstructions = _uniform(seed, *shape), _uniform(seed + 1000, settings, *shape)
    return {f"seed{seed}/victims": victims, f"seed{seed}/reconstructions": reconstructions}


def _of_attack(job: Job) -> dict[str, torch.Tensor]:
    """All sentences, and images of the experiments whose pictures are drawn, each batch turned around."""
    kind: Any = job.kind
    kept, settings = dict[str, torch.Tensor](), job.defense.count
    for seed in job.seeds:
        if job.dataset.component.unit == "sentences":
            sentences = [[f"[CLS] {number} words. [SEP]"] * kind.batch_size for number in range(kind.clients)]
            kept[f"seed{seed}/victims"] = pack(sentences)
            kept[f"seed{seed}/reconstructions"] = pack(sentences).expand(settings, -1, -1, -1)
        elif "pictures" in job.experiment:
            kept |= _images(job, seed, settings)
            turned = torch.arange(kind.batch_size).flip(0)
            kept[f"seed{seed}/assignment"] = turned.expand(settings, kind.clients, -1)
    return kept


def _of_leakage(job: Job) -> dict[str, torch.Tensor]:
    """Images, which attempts recovered some, and what constants are."""
    kind: Any = job.kind
    kept, every = dict[str, torch.Tensor](), job.defense.count * len(kind.tests)
    for seed in job.seeds:
        kept |= _images(job, seed, every)
        if kind.keep_attempts:
            attempts = _uniform(seed, every, kind.clients, kind.models, kind.attempts, kind.batch_size)
            kept[f"seed{seed}/recovered"] = (attempts < 0.5).byte()
            kept[f"seed{seed}/null_recovered"] = torch.zeros_like(attempts).byte()
        if job.defense.count == 1:
            kept[f"seed{seed}/null"] = 0 * _uniform(seed, kind.clients, kind.batch_size)
    return kept


def _of_fisher(job: Job) -> dict[str, torch.Tensor]:
    """Ten coordinates of every tensor, and a first one that is zero."""
    kind: Any = job.kind
    kept: dict[str, torch.Tensor] = {}
    for place, name in enumerate(job.parameter_counts() if kind.coordinates else ()):
        gradient, sensitivity = _uniform(place, 11) - 0.5, _uniform(place + 1000, 11)
        gradient[0] = 0.0
        parts = {"gradient": gradient, "sensitivity": sensitivity, "variance0": sensitivity / (1 + gradient.abs())}
        kept |= {f"seed0/{part}/{name}": values for part, values in parts.items()}
    return kept


def _of_calibrate(job: Job) -> dict[str, torch.Tensor]:
    kind: Any = job.kind
    shape = (kind.pictures, *job.dataset.single().shape)
    if not kind.pictures:
        return {}
    return {"seed0/clean": _uniform(0, *shape), "seed0/protected": _uniform(1, job.defense.count, *shape)}


KEPT: dict[str, Callable[[Job], dict[str, torch.Tensor]]] = {
    "attack": _of_attack,
    "leakage": _of_leakage,
    "fisher": _of_fisher,
    "calibrate": _of_calibrate,
}
"""The tensors of a job, by its kind."""


def _run(_: JobKind, job: Job, device: object) -> Findings:
    return findings(job)


if __name__.startswith("leakbench_plugin_"):  # a test that imports this file wants its functions alone
    for _name in JOB_KINDS:
        JOB_KINDS.get(_name).run = _run  # type: ignore[method-assign, assignment]
    _judge = Claim.judge
    _CHECKED = Finding("reproduced", effect=0.25, meaning="slack")  # theorems are checked by computing, with torch

    def _judge_quickly(self: Claim, tables: Tables) -> Finding:
        return _judge(self, tables) if self.experiments else _CHECKED

    Claim.judge = _judge_quickly  # type: ignore[method-assign]

    def _resolved(_: Placement, *, on_gpu: bool = True) -> Any:
        return SimpleNamespace(type="cpu")

    Placement.resolve = _resolved  # type: ignore[method-assign, assignment]
