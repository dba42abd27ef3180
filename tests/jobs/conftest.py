"""Jobs that take a fraction of a second."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from leakbench.attacks.base import Attack
from leakbench.attacks.presets import IGOptimalDefense
from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Job, JobKind, Variant
from leakbench.jobs.fisher import FisherJob
from leakbench.jobs.train import TrainJob
from leakbench.models.convnets import SimpleConvNet


def _make_job(
    kind: JobKind,
    defense: type[Defense],
    parameters: Mapping[str, Any] | None,
    sweep: Mapping[str, list[Any]] | None,
    attack: Attack | None,
    seeds: tuple[int, ...],
) -> Job:
    return Job(
        scale="test",
        paper="paper",
        experiment="experiment",
        dataset=Variant("digits8", Digits, {"size": 8}, {}),
        model=Variant("tiny", SimpleConvNet, {"width": 4}, {}),
        defense=Variant("defense", defense, parameters or {}, sweep or {}),
        attack=Variant("attack", type(attack), dict(attack), {}) if attack else None,
        kind=kind,
        part="all",
        seeds=seeds,
    )


@pytest.fixture
def attack_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Job]:
    """``attack_job(defense, parameters, sweep, attack=..., seeds=..., **protocol)``; three clients of two digits."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))  # no weights for LPIPS

    def make(
        defense: type[Defense] = NoDefense,
        parameters: Mapping[str, Any] | None = None,
        sweep: Mapping[str, list[Any]] | None = None,
        *,
        attack: Attack | None = None,
        seeds: tuple[int, ...] = (0,),
        **protocol: Any,
    ) -> Job:
        kind = AttackJob(**{"clients": 3, "batch_size": 2, "auxiliary": 16, **protocol})
        attack = attack or IGOptimalDefense(iterations=8)
        return _make_job(kind, defense, parameters, sweep, attack, seeds)

    return make


@pytest.fixture
def fisher_job() -> Callable[..., Job]:
    """``fisher_job(defense, parameters, sweep, seeds=..., **protocol)``; three clients of two digits."""

    def make(
        defense: type[Defense] = NoDefense,
        parameters: Mapping[str, Any] | None = None,
        sweep: Mapping[str, list[Any]] | None = None,
        *,
        seeds: tuple[int, ...] = (0,),
        **protocol: Any,
    ) -> Job:
        kind = FisherJob(**{"clients": 3, "batch_size": 2, **protocol})
        return _make_job(kind, defense, parameters, sweep, None, seeds)

    return make


@pytest.fixture
def train_job() -> Callable[..., Job]:
    """``train_job(defense, parameters, sweep, seeds=..., **protocol)``; two clients of four digits, five steps."""

    def make(
        defense: type[Defense] = NoDefense,
        parameters: Mapping[str, Any] | None = None,
        sweep: Mapping[str, list[Any]] | None = None,
        *,
        seeds: tuple[int, ...] = (0,),
        **protocol: Any,
    ) -> Job:
        defaults = {"clients": 2, "batch_size": 2, "images_per_client": 4, "steps": 5, "rate": 1e-2}
        return _make_job(TrainJob(**{**defaults, **protocol}), defense, parameters, sweep, None, seeds)

    return make
