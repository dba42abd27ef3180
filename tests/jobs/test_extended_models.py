"""Jobs under a defense that changes the model: each setting trains and attacks a model of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from leakbench.attacks.adaptive import Adaptive
from leakbench.attacks.presets import DLGWolfe, IGOptimalDefense
from leakbench.attacks.robbing import RobbingTheFed
from leakbench.data.embedded import Digits
from leakbench.defenses.precode import Precode
from leakbench.federated.local import LocalTraining
from leakbench.jobs.attack import AttackJob, _of_all_settings
from leakbench.jobs.base import JOB_KINDS, Job, Variant
from leakbench.jobs.overhead import OverheadJob
from leakbench.jobs.pretraining import Pretraining
from leakbench.jobs.runner import compute
from leakbench.models.lenet import LeNet
from leakbench.records import Replicate

CPU = torch.device("cpu")
SWEEP = {"width": [3, 7]}
Jobs = Callable[..., Job]


def replicates(job: Job) -> list[Replicate]:
    return compute(job, CPU).replicates


def numbers(found: list[Replicate]) -> list[tuple[Any, ...]]:
    return sorted((each.seed, str(each.metrics)) for each in found)


def test_each_setting_of_a_sweep_is_attacked_on_a_model_of_its_own(attack_job: Jobs) -> None:
    protocol = {"seeds": (0, 1), "clients": 1, "batch_size": 1, "attack": IGOptimalDefense(iterations=2)}
    together = replicates(attack_job(Precode, {}, SWEEP, **protocol))
    apart = [each for width in SWEEP["width"] for each in replicates(attack_job(Precode, {"width": width}, **protocol))]
    assert numbers(together) == numbers(apart)
    assert {each.setting["width"]: each.metrics["bits"] for each in together}.keys() == {3, 7}
    assert len({each.metrics["bits"] for each in together}) == 2
    assert all(each.outcome.status == "ok" for each in together)


def test_reconstructions_of_all_settings_are_kept(attack_job: Jobs) -> None:
    protocol = {"seeds": (0, 1), "clients": 1, "batch_size": 1, "attack": IGOptimalDefense(iterations=2)}
    together = compute(attack_job(Precode, {}, SWEEP, **protocol), CPU).tensors
    apart = [compute(attack_job(Precode, {"width": width}, **protocol), CPU).tensors for width in SWEEP["width"]]
    for seed in (0, 1):
        name = f"seed{seed}/reconstructions"
        assert torch.equal(together[name], torch.cat([tensors[name] for tensors in apart]))


def test_a_model_that_diverged_leaves_the_others_their_places(attack_job: Jobs) -> None:
    given = {"reconstructions": torch.ones(2, 1, 1, 3), "victims": torch.zeros(1, 1, 3)}
    joined = _of_all_settings([(1, {}), (2, given)])["reconstructions"]
    assert joined[0].isnan().all() and torch.equal(joined[1:], given["reconstructions"])
    pretraining = Pretraining(samples=20, batch_size=8, rate=1e30)
    job = attack_job(Precode, {}, SWEEP, seeds=(0, 1), clients=1, epoch=2, pretraining=pretraining)
    found = replicates(job)
    assert [(each.seed, each.setting["width"]) for each in found] == [(0, 3), (1, 3), (0, 7), (1, 7)]
    assert {each.outcome.status for each in found} == {"diverged"}


@pytest.mark.parametrize(
    "protocol",
    [
        {"epoch": 1, "pretraining": Pretraining(samples=64)},
        {"rounds": 2, "rounds_apart": 1, "pretraining": Pretraining(samples=64), "batch_size": 1},
        {"local": LocalTraining(steps=2, rate=0.1, batch_size=1)},
        {"users": 2},
        {"messages": 2},
    ],
    ids=["trained", "rounds", "local", "sum", "messages"],
)
def test_every_protocol_meets_the_adaptive_attacker(attack_job: Jobs, protocol: dict[str, Any]) -> None:
    attack = Adaptive(attack=IGOptimalDefense(iterations=3))
    (found,) = replicates(attack_job(Precode, {"width": 4}, attack=attack, clients=2, **{"batch_size": 2, **protocol}))
    assert found.outcome.status == "ok" and found.metrics["psnr"]


def test_pretraining_trains_the_bottleneck(attack_job: Jobs) -> None:
    """The deviations of codes have no gradient but that of noise and of the divergence: they train with these alone."""
    protocol = {"epoch": 1, "pretraining": Pretraining(samples=64), "clients": 1, "batch_size": 1}
    found = [replicates(attack_job(Precode, {"width": 4, "beta": beta}, **protocol)) for beta in (0.0, 1.0)]
    assert numbers(found[0]) != numbers(found[1])


def test_a_malicious_server_puts_its_layer_in_front(attack_job: Jobs) -> None:
    job = attack_job(
        Precode,
        {"width": 4},
        attack=RobbingTheFed(bins=64),
        knowledge=("pixel_range", "auxiliary_images", "modified_model"),
    )
    (found,) = replicates(job)
    assert found.outcome.status == "ok"
    values = found.metrics["assigned_psnr"]
    assert isinstance(values, list) and max(value or 0 for value in values) > 40  # the noise is behind the layer


def test_each_setting_of_a_sweep_trains_a_model_of_its_own(train_job: Jobs) -> None:
    together = replicates(train_job(Precode, {}, SWEEP, seeds=(0, 1), evaluation=(100, 120)))
    apart = [
        each
        for width in SWEEP["width"]
        for each in replicates(train_job(Precode, {"width": width}, seeds=(0, 1), evaluation=(100, 120)))
    ]
    assert numbers(together) == numbers(apart)
    assert all(isinstance(each.metrics["accuracy"], float) for each in together)


def test_training_with_other_noise_is_another_training(train_job: Jobs) -> None:
    curves = [
        replicates(train_job(Precode, {"width": 4}, seeds=(seed,)))[0].metrics["loss_curve"] for seed in (0, 0, 1)
    ]
    assert curves[0] == curves[1] != curves[2]


def test_noise_per_tensor_is_of_given_models(train_job: Jobs) -> None:
    (found,) = replicates(train_job(Precode, noise_per_tensor=True))
    assert found.outcome.status == "infeasible" and "other tensors" in str(found.outcome.reason)


def test_overhead_is_timed_on_the_model_that_is_trained(train_job: Jobs) -> None:
    kind = OverheadJob(clients=2, batch_size=1, images_per_client=2, repetitions=1)
    found = replicates(replace(train_job(Precode, {}, SWEEP), kind=kind))
    assert [each.outcome.status for each in found] == ["ok", "ok"]
    assert all(float(each.metrics["bits_ratio"]) > 1 for each in found)  # type: ignore[arg-type]


def test_jobs_that_train_the_given_model_refuse_before_anything_is_computed(
    fisher_job: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = fisher_job(Precode, {}, SWEEP)
    monkeypatch.setattr(type(job.kind), "run", lambda *_: pytest.fail("it ran"))
    found = replicates(job)
    assert [each.setting["width"] for each in found] == [3, 7]
    for each in found:
        assert each.outcome.status == "infeasible"
        assert each.outcome.reason == (
            "'precode' changes the model that clients train, and jobs of kind 'fisher' train a given one"
        )


def test_which_kinds_of_job_extend_models() -> None:
    kinds = [JOB_KINDS.get(name) for name in JOB_KINDS]
    own = {kind.name for kind in kinds if "model" in kind.faces and not {*kind.__mro__[1:]} & {*kinds}}
    assert own == {"attack", "train", "overhead"}


def digits_under(attack: Any, seeds: int = 1) -> float:
    """Mean PSNR of an attack on digits under an untrained LeNet, in dB."""
    kind = AttackJob(clients=2, batch_size=1, victims="distinct", auxiliary=16)
    job = Job(
        scale="test",
        paper="paper",
        experiment="experiment",
        dataset=Variant("digits16", Digits, {"size": 16}, {}),
        model=Variant("lenet", LeNet, {}, {}),
        defense=Variant("precode", Precode, {"width": 64}, {}),
        attack=Variant("attack", type(attack), dict(attack), {}),
        kind=kind,
        part="all",
        seeds=tuple(range(seeds)),
    )
    values = [value or 0.0 for each in replicates(job) for value in each.metrics["psnr"]]  # type: ignore[union-attr]
    return sum(values) / len(values)


def test_the_bottleneck_stops_an_attacker_who_ignores_it_and_no_other() -> None:
    search = DLGWolfe.model_validate({"iterations": 70, "objective": {"kind": "cosine"}})
    plain, adaptive = digits_under(search), digits_under(Adaptive(attack=search))
    assert plain < 10 < 20 < adaptive
