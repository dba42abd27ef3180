"""Strengths by what they cost: the settings on either side of an allowed loss, and no others, are attacked."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from leakbench.attacks.base import ATTACKS
from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.data.embedded import Digits
from leakbench.defenses.base import NoDefense
from leakbench.defenses.noise import GaussianNoise
from leakbench.errors import RecordError
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Job, JobKind, Variant
from leakbench.jobs.runner import Placement, run_job
from leakbench.jobs.strengths import bracketing
from leakbench.jobs.train import TrainJob
from leakbench.models.lenet import LeNet
from leakbench.records import Replicate

CPU = Placement(device="cpu")
TRAINING: dict[str, Any] = {
    "seeds": 2,
    "clients": 2,
    "batch_size": 1,
    "images_per_client": 4,
    "steps": 2,
    "rate": 0.01,
    "evaluation": (0, 40),
}
ATTACK = Variant(
    "fast",
    GradientMatching,
    {"objective": {"kind": "cosine"}, "optimiser": {"kind": "adam", "rate": 0.1}, "iterations": 1},
    {},
)


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([0.0, 0.01, 0.05, 0.3], [1, 2]),
        ([0.05, 0.01, 0.05], [1, 2]),
        ([0.01, 0.05, 0.01, 0.05], [2, 3]),
        ([0.1, 0.3], [0]),
        ([0.3, 0.1, 0.2], [1]),
        ([math.nan, math.inf, 0.3], [2]),
        ([0.0, 0.0], [1]),
        ([0.0, math.inf], [0, 1]),
        ([0.0, math.nan], [0, 1]),
        ([math.nan], [0]),
    ],
)
def test_settings_on_either_side(losses: list[float], expected: list[int]) -> None:
    assert bracketing(losses, 0.02) == expected


def job(experiment: str, kind: JobKind, noise: list[float] | None, **more: Any) -> Job:
    defense: Variant[Any] = (
        Variant("none", NoDefense, {}, {}) if noise is None else Variant("noise", GaussianNoise, {}, {"scale": noise})
    )
    return Job(
        scale="smoke",
        paper="example",
        experiment=experiment,
        dataset=Variant("digits8", Digits, {"size": 8}, {}),
        model=Variant("lenet", LeNet, {"width": 2}, {}),
        defense=defense,
        kind=kind,
        part="all",
        seeds=tuple(range(kind.seeds)),
        **{"attack": None, **more},
    )


def number(replicate: Replicate, metric: str) -> float:
    value = replicate.metrics[metric]
    assert isinstance(value, float)
    return value


NOISE = [1e-6, 1e-5, 1e3]
BARE = job("bare", TrainJob(**TRAINING), None)
COSTS = job("costs", TrainJob(**TRAINING, undefended="bare"), NOISE, uses={"train": BARE})


def attack(allowed: float, **more: Any) -> Job:
    protocol = AttackJob(seeds=2, clients=1, batch_size=1, utility="costs", allowed=allowed, **more)
    return job("attacked", protocol, NOISE, attack=ATTACK, uses={"train": COSTS})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("trained")
    for each in (BARE, COSTS):
        run_job(each, root, CPU)
    return root


def test_the_loss_is_that_against_the_same_seed(trained: Path) -> None:
    bare, costs = (run_job(each, trained, CPU) for each in (BARE, COSTS))
    before = {each.seed: number(each, "accuracy") for each in bare.replicates}
    assert len(costs.replicates) == 6
    for each in costs.replicates:
        assert number(each, "accuracy_lost") == pytest.approx(before[each.seed] - number(each, "accuracy"))
    assert "accuracy_lost" not in bare.replicates[0].metrics


def test_those_alone_are_attacked(trained: Path) -> None:
    """The hardly noisy settings lose nothing, the noise of 1000 everything."""
    record = run_job(attack(allowed=0.0), trained, CPU)
    costs = run_job(COSTS, trained, CPU)
    losses = [
        sum(number(each, "accuracy_lost") for each in costs.replicates if each.setting["scale"] == scale) / 2
        for scale in NOISE
    ]
    expected = [NOISE[place] for place in bracketing(losses, 0.0)]
    assert {each.setting["scale"] for each in record.replicates} == set(expected)
    everything = run_job(attack(allowed=1.0), trained, CPU)
    assert {each.setting["scale"] for each in everything.replicates} == {NOISE[-1]}


def test_what_is_attacked_is_attacked_as_among_all(trained: Path) -> None:
    whole = run_job(job("all", AttackJob(seeds=2, clients=1, batch_size=1), NOISE, attack=ATTACK), trained, CPU)
    chosen = run_job(attack(allowed=1.0), trained, CPU)
    for each in chosen.replicates:
        (other,) = (one for one in whole.replicates if (one.seed, one.setting) == (each.seed, each.setting))
        assert other.metrics == each.metrics


def test_a_line_up(trained: Path) -> None:
    record = run_job(attack(allowed=1.0, line_up=20), trained, CPU)
    for each in record.replicates:
        picked = each.metrics["identified"]
        assert isinstance(picked, list) and set(picked) <= {0.0, 1.0}
    assert "identified" in record.metrics


def test_without_the_record_of_training(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"costs/.*missing, and results/.* uses it"):
        run_job(attack(allowed=0.0), tmp_path, CPU)


def test_protocols_that_say_half() -> None:
    with pytest.raises(ValidationError, match="go together"):
        AttackJob(clients=1, batch_size=1, utility="costs")
    with pytest.raises(ValidationError, match="line_up: means"):
        AttackJob(clients=1, batch_size=1, line_up=5, target="batch_mean")
    with pytest.raises(ValidationError, match="set evaluation"):
        TrainJob(**{**TRAINING, "evaluation": None}, undefended="bare")


def test_the_budget_is_recorded_as_a_number(trained: Path) -> None:
    record = run_job(attack(allowed=1.0, budget=True), trained, CPU)
    assert {number(each, "evaluations") for each in record.replicates} == {1.0}
    assert {number(each, "auxiliary") for each in record.replicates} == {0.0}  # which this attack does not read


def test_auxiliary_samples_are_counted_where_an_attack_may_read_them() -> None:
    ridge = ATTACKS.get("ridge_inversion").model_validate({"images": 100})
    plain = ATTACKS.get("grey").model_validate({})
    assert (ridge.auxiliary(512), ridge.auxiliary(50), plain.auxiliary(512)) == (100, 50, 0)
    tuned = ATTACKS.get("tuned").model_validate({"attack": {"name": "ig_channel"}})
    assert tuned.auxiliary(512) == 512


def test_training_that_diverged_has_no_loss_of_accuracy(trained: Path) -> None:
    """A run keeps the last finite parameters, whose accuracy says nothing."""
    costs = job("costs", TrainJob(**TRAINING, undefended="bare"), [3e38], uses={"train": BARE})
    for each in run_job(costs, trained, CPU).replicates:
        assert each.outcome.status == "diverged"
        assert each.metrics["accuracy_lost"] is None and each.reasons["accuracy_lost"] == each.outcome.reason


def test_sweeps_of_both_trainings_are_the_same() -> None:
    swept = replace(COSTS, kinds=Variant("train", TrainJob, {**TRAINING, "undefended": "bare"}, {"clients": [2, 4]}))
    assert BARE.kind.mismatch(BARE, COSTS) == "" and "sweeps" in BARE.kind.mismatch(BARE, swept)
