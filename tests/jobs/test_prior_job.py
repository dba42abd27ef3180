"""Networks of the attacker: trained on auxiliary images alone, repeatable, and handed to attacks as records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from leakbench.attacks.base import Attack
from leakbench.attacks.bits import Averaged
from leakbench.attacks.post_processing import PostProcessed
from leakbench.attacks.presets import ROG
from leakbench.attacks.restoration.prior import Restoration
from leakbench.data.base import Samples, Split
from leakbench.data.embedded import Digits
from leakbench.defenses.noise import GaussianNoise
from leakbench.errors import ConfigError, DataChanged, RecordError
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.prior import PriorJob
from leakbench.jobs.runner import Placement, run_job, with_kept
from leakbench.records import read_record, read_tensors, write_record

NETWORKS = Restoration(factor=2, channels=(4, 8), unfolding_channels=(4, 8), iterations=2, blocks=1, hidden=4)
CPU = torch.device("cpu")
ONE = Placement("cpu")
INSIDE = ROG.model_validate({"iterations": 3, "unknown": {"kind": "upsampled", "factor": 2}})
POST = PostProcessed(attack=INSIDE)


def prior_job(attack_job: Callable[..., Job], **protocol: Any) -> Job:
    given = {"images": 40, "held_out": 6, "steps": 40, "batch_size": 8, "rate": 3e-3, "networks": NETWORKS}
    return replace(attack_job(), kind=PriorJob.model_validate(given | protocol), attack=None, experiment="networks")


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def values(findings: Findings, name: str) -> list[float]:
    found = findings.replicates[0].metrics[name]
    assert isinstance(found, list)
    return [value for value in found if value is not None]


class TestTraining:
    def test_lowers_every_loss(self, attack_job: Callable[..., Job]) -> None:
        found = run(prior_job(attack_job))
        for name in ("generator_loss", "unfolding_loss", "denoiser_loss"):
            losses = values(found, name)
            assert len(losses) == 40
            assert sum(losses[-5:]) < 0.7 * sum(losses[:5]), name
        assert len(values(found, "psnr_before")) == len(values(found, "psnr_after")) == 6

    def test_is_repeatable_to_the_last_bit(self, attack_job: Callable[..., Job]) -> None:
        one, two, longer = (run(prior_job(attack_job, steps=steps)) for steps in (5, 5, 6))
        assert one.replicates == two.replicates
        assert one.tensors.keys() == two.tensors.keys()
        assert all(torch.equal(tensor, two.tensors[name]) for name, tensor in one.tensors.items())
        assert any(not torch.equal(tensor, longer.tensors[name]) for name, tensor in one.tensors.items())

    def test_sees_no_image_of_a_client(self, attack_job: Callable[..., Job]) -> None:
        asked: list[tuple[Split, int]] = []

        class Watched(Digits):
            def read(self, split: Split, rows: list[int]) -> Samples:
                asked.extend((split, row) for row in rows)
                return super().read(split, rows)

        job = replace(prior_job(attack_job, steps=1), dataset=Variant("digits8", Watched, {"size": 8}, {}))
        run(job)
        assert sorted(set(asked)) == [("train", row) for row in range(46)]

    def test_more_images_than_there_are(self, attack_job: Callable[..., Job]) -> None:
        with pytest.raises(ConfigError, match=r"1400 are more than the train split of 'digits' has \(1297\)"):
            run(prior_job(attack_job, images=1300, held_out=100))

    def test_divergence_is_an_outcome(self, attack_job: Callable[..., Job]) -> None:
        found = run(prior_job(attack_job, rate=1e30, steps=4))
        (replicate,) = found.replicates
        assert replicate.outcome.status == "diverged" and replicate.outcome.step is not None
        assert not found.tensors and replicate.metrics["psnr_after"] is None
        assert {"psnr_before", "psnr_after", "unfolding_loss"} <= set(replicate.reasons)


def refining(attack_job: Callable[..., Job], trained: Job, attack: Attack | None = None, **protocol: Any) -> Job:
    job = attack_job(attack=attack or POST, clients=2, prior="networks", **protocol)
    return replace(job, uses=dict.fromkeys(job.kind.reads(attack or POST), trained))


class TestRecordsOfOtherJobs:
    def test_the_attack_gets_the_weights(self, attack_job: Callable[..., Job], tmp_path: Path) -> None:
        trained = prior_job(attack_job)
        job = refining(attack_job, trained)
        with pytest.raises(RecordError, match=f"{trained.path}: missing, and {job.path} uses it"):
            run_job(job, tmp_path, ONE)
        run_job(trained, tmp_path, ONE)
        kept = with_kept(job, tmp_path).kept["prior"]
        record = read_record(tmp_path / trained.path)
        assert record.tensors is not None
        assert (
            kept.keys()
            == read_tensors(tmp_path / trained.path, record.tensors).keys()
            >= {
                "denoiser.last.bias",
                "unfolding.prior.head.weight",
            }
        )
        plain = refining(attack_job, trained, INSIDE)
        assert not plain.uses
        images = []
        for each in (job, replace(plain, experiment="plain")):
            written = run_job(each, tmp_path, ONE).tensors
            assert written is not None
            images.append(read_tensors(tmp_path / each.path, written)["seed0/reconstructions"])
        refined, rough = images
        assert refined.shape == rough.shape and not torch.allclose(refined, rough, atol=0.05)

        other = refining(attack_job, prior_job(attack_job, steps=7))
        with pytest.raises(RecordError, match="made by another configuration"):
            run_job(other, tmp_path, ONE)

    def test_of_other_data(self, attack_job: Callable[..., Job], tmp_path: Path) -> None:
        trained = prior_job(attack_job, steps=1)
        record = run_job(trained, tmp_path, ONE)
        provenance = record.provenance.model_copy(update={"data": "0123456789abcdef"})
        write_record(tmp_path / trained.path, record.model_copy(update={"provenance": provenance}))
        with pytest.raises(DataChanged, match=f"^{trained.path}: made from other files of data set 'digits'"):
            with_kept(refining(attack_job, trained), tmp_path)

    def test_identity_follows(self, attack_job: Callable[..., Job]) -> None:
        one, two = (refining(attack_job, prior_job(attack_job, steps=steps)) for steps in (5, 6))
        assert one.digest != two.digest
        assert one.resolved()["uses"]["prior"]["digest"] == one.uses["prior"].digest
        assert "uses" not in attack_job().resolved()

    def test_networks_that_diverged(self, attack_job: Callable[..., Job]) -> None:
        job = replace(refining(attack_job, prior_job(attack_job)), kept={"prior": {}})
        (replicate,) = run(job).replicates
        assert replicate.outcome.status == "infeasible" and "diverged" in (replicate.outcome.reason or "")

    def test_not_granted(self, attack_job: Callable[..., Job]) -> None:
        (replicate,) = run(attack_job(attack=PostProcessed(attack=ROG()))).replicates
        assert replicate.outcome.status == "infeasible" and "needs prior" in (replicate.outcome.reason or "")
        with pytest.raises(ValidationError, match="granted by the field prior"):
            AttackJob(clients=1, batch_size=1, knowledge=("prior",))


def test_several_messages(attack_job: Callable[..., Job]) -> None:
    """Each with noise of its own; the first is the one that single messages are."""
    job = attack_job(GaussianNoise, {"scale": 0.3})
    seen: list[Any] = []

    class Watching(Averaged):
        def reconstruct(self, observations: Any, *others: Any) -> Any:
            seen.append(observations)
            return super().reconstruct(observations, *others)

    watching: Variant[Attack] = Variant(
        "attack", Watching, {"attack": ROG.model_validate({"iterations": 1, "unknown": {"kind": "pixels"}})}, {}
    )
    for messages in (16, 1):
        each = replace(job, attack=watching, kind=job.kind.model_copy(update={"messages": messages}))
        run(each)
    many, single = seen
    assert many.repeats.shape == (3, 16, many.network.dimension) and single.repeats is None
    assert torch.equal(many.repeats[:, 0], many.gradients) and torch.equal(many.gradients, single.gradients)
    assert float(many.repeats.std(dim=1).min()) > 0
