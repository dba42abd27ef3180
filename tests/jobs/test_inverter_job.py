"""Networks that make images of messages: trained on auxiliary images alone, and handed to the attacks of their cell."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from leakbench.attacks.base import Attack
from leakbench.attacks.learned import LearnedInversion
from leakbench.data.base import Samples, Split
from leakbench.data.embedded import Digits
from leakbench.defenses.noise import GaussianNoise
from leakbench.errors import ConfigError
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.inverter import InverterJob
from leakbench.jobs.runner import Placement, run_job, with_kept
from leakbench.models.base import Model
from leakbench.models.convnets import SimpleConvNet
from leakbench.records import read_record, read_tensors

CPU = torch.device("cpu")
ONE = Placement("cpu")
SWEEP = {"scale": [0.0, 0.3]}
GRANTED = ("pixel_range", "mechanism")


def inverter_job(attack_job: Callable[..., Job], seeds: tuple[int, ...] = (0, 1), **protocol: Any) -> Job:
    given = {"auxiliary": 60, "held_out": 12, "epochs": 30, "widths": (32,), "batch_size": 16, "rate": 3e-3}
    job = attack_job(GaussianNoise, sweep=SWEEP, seeds=seeds)
    return replace(job, kind=InverterJob.model_validate(given | protocol), attack=None, experiment="inverters")


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def values(findings: Findings, name: str, replicate: int = 0) -> list[float]:
    found = findings.replicates[replicate].metrics[name]
    assert isinstance(found, list)
    return [value for value in found if value is not None]


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers)


def attacking(attack_job: Callable[..., Job], trained: Job, seeds: tuple[int, ...] = (0, 1), **protocol: Any) -> Job:
    given = {"clients": 4, "batch_size": 1, "auxiliary": 60, "knowledge": GRANTED, "inverter": "inverters"}
    attack: Attack = LearnedInversion()
    job = attack_job(GaussianNoise, sweep=SWEEP, seeds=seeds, attack=attack, **{**given, **protocol})
    return replace(job, uses=dict.fromkeys(job.kind.reads(attack), trained))


class TestTraining:
    def test_images_come_out_of_messages(self, attack_job: Callable[..., Job]) -> None:
        found = run(inverter_job(attack_job))
        assert [(each.seed, each.setting["scale"]) for each in found.replicates] == [(0, 0), (0, 0.3), (1, 0), (1, 0.3)]
        for replicate in (0, 2):  # without noise
            losses = values(found, "loss", replicate)
            assert len(losses) == 30 and losses[-1] < 0.5 * losses[0]
            assert mean(values(found, "psnr_held_out", replicate)) > 1 + mean(
                values(found, "psnr_mean_image", replicate)
            )
        assert mean(values(found, "psnr_held_out", 1)) < mean(values(found, "psnr_held_out", 0))
        assert len(values(found, "psnr_held_out")) == 12

    def test_keeps_the_epoch_of_the_least_held_out_error(self, attack_job: Callable[..., Job]) -> None:
        found = run(inverter_job(attack_job, (0,), rate=0.03, epochs=25))
        for place, replicate in enumerate(found.replicates):
            losses = values(found, "held_out_loss", place)
            best = min(range(len(losses)), key=losses.__getitem__)
            assert replicate.metrics["epoch"] == best + 1
            errors = [10 ** (-decibels / 10) for decibels in values(found, "psnr_held_out", place)]
            assert mean(errors) == pytest.approx(losses[best], rel=1e-3)

    def test_is_repeatable_to_the_last_bit(self, attack_job: Callable[..., Job]) -> None:
        one, two, longer = (run(inverter_job(attack_job, epochs=epochs)) for epochs in (3, 3, 4))
        assert one.replicates == two.replicates
        assert one.tensors.keys() == two.tensors.keys() >= {"seed1/setting0.layers.0.weight", "seed0/setting1.centre"}
        assert all(torch.equal(tensor, two.tensors[name]) for name, tensor in one.tensors.items())
        assert any(not torch.equal(tensor, longer.tensors[name]) for name, tensor in one.tensors.items())

    def test_noise_is_drawn_anew_where_it_is_asked_for(self, attack_job: Callable[..., Job]) -> None:
        fresh, fixed = (run(inverter_job(attack_job, (0,), epochs=3, fresh=fresh)) for fresh in (True, False))
        assert values(fresh, "loss", 0) == values(fixed, "loss", 0)  # there is none
        ours, theirs = values(fresh, "loss", 1), values(fixed, "loss", 1)
        assert ours[0] == theirs[0] and ours[1] != theirs[1]

    def test_sees_no_image_of_a_client(self, attack_job: Callable[..., Job]) -> None:
        asked: list[tuple[Split, int]] = []

        class Watched(Digits):
            def read(self, split: Split, rows: list[int]) -> Samples:
                asked.extend((split, row) for row in rows)
                return super().read(split, rows)

        job = inverter_job(attack_job, (0,), epochs=1)
        run(replace(job, dataset=Variant("digits8", Watched, {"size": 8}, {})))
        assert sorted(set(asked)) == [("train", row) for row in range(60)]

    def test_divergence_is_an_outcome(self, attack_job: Callable[..., Job]) -> None:
        found = run(inverter_job(attack_job, (0,), rate=1e37, epochs=4, widths=(32, 32, 32)))
        assert {each.outcome.status for each in found.replicates} == {"diverged"} and not found.tensors
        assert found.replicates[0].metrics["epoch"] is None and found.replicates[0].outcome.step is not None
        assert {"epoch", "psnr_held_out", "loss"} <= set(found.replicates[0].reasons)

    def test_too_few_images(self, attack_job: Callable[..., Job]) -> None:
        with pytest.raises(ConfigError, match=r"1300 is more than the train split of 'digits' has \(1297\)"):
            run(inverter_job(attack_job, auxiliary=1300))
        with pytest.raises(ValidationError, match="held_out: 59 of 60 images leave fewer than two"):
            inverter_job(attack_job, held_out=59)


def test_effort_by_hand(attack_job: Callable[..., Job]) -> None:
    """Training passes 48 images forward and backward in every epoch, and 12 held out forward alone."""
    job = inverter_job(attack_job, (0, 1, 2), epochs=5)
    inputs, outputs = sum(job.parameter_counts().values()), math.prod(job.dataset.single().shape)
    layers = inputs * 32 + 32 * outputs
    assert job.effort.passes == pytest.approx(3 * 2 * 5 * layers * (3 * 48 + 12))  # 3 seeds, 2 settings
    assert job.effort.steps == 3 * 2 * 5 * 3  # batches of 16


class TestAttacks:
    def test_each_client_gets_the_network_of_its_seed_and_setting(
        self, attack_job: Callable[..., Job], tmp_path: Path
    ) -> None:
        trained = inverter_job(attack_job)
        run_job(trained, tmp_path, ONE)
        job = attacking(attack_job, trained)
        record = run_job(job, tmp_path, ONE)
        assert [each.outcome.status for each in record.replicates] == ["ok"] * 4
        assert record.tensors is not None
        shown = read_tensors(tmp_path / job.path, record.tensors)
        kept = with_kept(job, tmp_path).kept["inverter"]
        for place, setting in enumerate(SWEEP["scale"]):
            alone = replace(trained, defense=replace(trained.defense, sweep={"scale": [setting]}), seeds=(1,))
            run_job(alone, tmp_path, ONE)
            one = attacking(attack_job, alone, (1,))
            one = replace(one, defense=alone.defense, experiment=f"alone{place}")
            written = run_job(one, tmp_path, ONE).tensors
            assert written is not None
            images = read_tensors(tmp_path / one.path, written)["seed1/reconstructions"]
            assert torch.equal(images[0], shown["seed1/reconstructions"][place])
        assert not torch.equal(kept["seed0/setting0.layers.0.weight"], kept["seed1/setting0.layers.0.weight"])

    def test_it_beats_the_mean_image(self, attack_job: Callable[..., Job], tmp_path: Path) -> None:
        trained = inverter_job(attack_job, (0,), auxiliary=400, held_out=40, epochs=40)
        run_job(trained, tmp_path, ONE)
        job = attacking(attack_job, trained, (0,), auxiliary=400, clients=16)
        run_job(job, tmp_path, ONE)
        found = read_record(tmp_path / job.path).replicates[0].metrics["psnr"]
        training = read_record(tmp_path / trained.path).replicates[0].metrics["psnr_mean_image"]
        assert isinstance(found, list) and isinstance(training, list)
        assert mean([each for each in found if each]) > 2 + mean([each for each in training if each])

    def test_identity_follows(self, attack_job: Callable[..., Job]) -> None:
        one, two = (attacking(attack_job, inverter_job(attack_job, epochs=epochs)) for epochs in (5, 6))
        assert one.digest != two.digest
        assert one.resolved()["uses"]["inverter"]["digest"] == one.uses["inverter"].digest

    @pytest.mark.parametrize("kept", [{}, {"seed0/setting0.centre": torch.zeros(1, 1)}])
    def test_networks_that_diverged(self, attack_job: Callable[..., Job], kept: dict[str, torch.Tensor]) -> None:
        job = attacking(attack_job, inverter_job(attack_job), (1,))
        (replicate, _) = run(replace(job, kept={"inverter": kept})).replicates
        assert replicate.outcome.status == "infeasible" and "diverged" in (replicate.outcome.reason or "")

    def test_several_images(self, attack_job: Callable[..., Job], tmp_path: Path) -> None:
        trained = inverter_job(attack_job, (0,), epochs=1)
        run_job(trained, tmp_path, ONE)
        record = run_job(attacking(attack_job, trained, (0,), batch_size=2), tmp_path, ONE)
        assert record.replicates[0].outcome.status == "infeasible"
        assert "these clients hold 2 each" in (record.replicates[0].outcome.reason or "")

    def test_not_granted(self, attack_job: Callable[..., Job]) -> None:
        (replicate,) = run(attack_job(attack=LearnedInversion(), knowledge=GRANTED)).replicates
        assert replicate.outcome.status == "infeasible" and "needs inverter" in (replicate.outcome.reason or "")
        with pytest.raises(ValidationError, match="granted by the field inverter"):
            AttackJob(clients=1, batch_size=1, knowledge=("inverter",))


class TestMismatches:
    def complaint(self, attack_job: Callable[..., Job], source: Job, **protocol: Any) -> str:
        return source.kind.mismatch(source, attacking(attack_job, source, **protocol))

    def test_the_same_cell(self, attack_job: Callable[..., Job]) -> None:
        assert not self.complaint(attack_job, inverter_job(attack_job))
        assert not self.complaint(attack_job, inverter_job(attack_job), seeds=(1,))

    def test_others(self, attack_job: Callable[..., Job]) -> None:
        source = inverter_job(attack_job, (0,))
        model: Variant[Model] = Variant("wide", SimpleConvNet, {"width": 8}, {})
        assert "for model 'wide'" in self.complaint(attack_job, replace(source, model=model))
        defense = replace(source.defense, label="noise")
        assert "for defense 'noise'" in self.complaint(attack_job, replace(source, defense=defense))
        assert "the attack has [1], too" in self.complaint(attack_job, source)
        assert "epoch: 0, and the attack has 1" in self.complaint(attack_job, source, seeds=(0,), epoch=1)
        assert "auxiliary: 60, and the attack has 61" in self.complaint(attack_job, source, seeds=(0,), auxiliary=61)
