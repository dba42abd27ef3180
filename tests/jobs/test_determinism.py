"""The same job gives the same numbers, exactly, however its work is grouped.

Every kind of job runs as a whole and in pieces, each seed and each setting in a job of its own; once with memory for
everything side by side, and once with so little that almost nothing is.
"""

from __future__ import annotations

import itertools
import re
import sys
from typing import Any

import pytest
import torch
from tests.jobs.stated import check_stated
from tests.test_fingerprints import PARAMETERS, FixedText

from leakbench.attacks.base import Attack
from leakbench.attacks.presets import DLGWolfe, IGScript
from leakbench.data.base import Dataset
from leakbench.data.embedded import Digits
from leakbench.defenses.noise import GaussianNoise
from leakbench.jobs.base import JOB_KINDS, Job, JobKind, Variant
from leakbench.jobs.runner import compute
from leakbench.models.base import Model
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.linear import MLP

pytestmark = pytest.mark.slow

BUDGET = re.compile(r"_?(\w*BUDGET|WIDE|ROWS|CHUNK|\w+_TOGETHER)$")
"""How modules name what limits the work done side by side on a CPU: bytes, or rows."""

SCALES = [0.0, 0.1]
OF_ONE_SEED = ("calibrate", "inventory", "prior", "language_model")
ATTACKS: tuple[type[Attack], ...] = (IGScript, DLGWolfe)
CASES = [
    pytest.param(kind, attack, id=f"{name}-{attack.name if kind.uses_attacks else index}")
    for name in JOB_KINDS
    for index, given in enumerate(PARAMETERS.get(f"job/{name}", [{}]))
    for kind in (JOB_KINDS.get(name)(**given),)
    for attack in ATTACKS[: 2 if kind.uses_attacks and index == 0 else 1]
]


def job_of(kind: JobKind, attack: type[Attack], scales: list[float], seeds: tuple[int, ...]) -> Job:
    images: Variant[Dataset] = Variant("digits", Digits, {"size": 8}, {})
    texts: Variant[Dataset] = Variant("text", FixedText, {}, {})
    convolutional: Variant[Model] = Variant("convolutional", SimpleConvNet, {"width": 4}, {})
    on_features: Variant[Model] = Variant("on_features", MLP, {"width": 6}, {})
    return Job(
        scale="none",
        paper="none",
        experiment="none",
        dataset=texts if kind.name == "language_model" else images,
        model=on_features if kind.name == "spectrum" else convolutional,
        defense=Variant("noise", GaussianNoise, {}, {"scale": scales}),
        attack=Variant("attack", attack, {"iterations": 5}, {}) if kind.uses_attacks else None,
        kind=kind,
        part="all",
        seeds=seeds,
    )


def numbers_of(job: Job) -> dict[tuple[Any, ...], Any]:
    """Metrics by seed and setting, but for seconds."""
    findings = compute(job, torch.device("cpu"))
    check_stated(job, findings)
    return {
        (replicate.seed, *sorted(replicate.setting.items())): {
            name: value for name, value in replicate.metrics.items() if "not reproducible" not in job.metrics[name].unit
        }
        for replicate in findings.replicates
    }


@pytest.fixture(params=["all the memory", "little memory"])
def _memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [
        (module, constant, value)
        for name, module in list(sys.modules.items())
        if name.startswith("leakbench.")
        for constant, value in list(vars(module).items())
        if BUDGET.match(constant) and isinstance(value, int)
    ]
    assert len(limits) > 10
    if request.param == "little memory":
        for module, constant, value in limits:
            monkeypatch.setattr(module, constant, max(1, value // 4_000))


@pytest.mark.usefixtures("_memory")
@pytest.mark.parametrize(("kind", "attack"), CASES)
def test_a_job_is_the_sum_of_its_pieces(
    kind: JobKind, attack: type[Attack], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))  # no weights for LPIPS
    seeds = (0,) if kind.name in OF_ONE_SEED else (0, 1)
    whole = numbers_of(job_of(kind, attack, SCALES, seeds))
    pieces: dict[Any, Any] = {}
    for seed, scale in itertools.product(seeds, SCALES):
        pieces |= numbers_of(job_of(kind, attack, [scale], (seed,)))
    assert pieces == whole
