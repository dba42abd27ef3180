"""What an attack job varies besides defense and attack: BatchNorm, local training, the epoch; and protocol sweeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError

from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.data.base import Dataset
from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense
from leakbench.defenses.noise import GaussianNoise
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.pretraining import Pretraining, pretrained
from leakbench.jobs.runner import Placement, compute, run_job
from leakbench.models.base import BatchNorm, Model, build_network
from leakbench.models.convnets import ConvNet
from leakbench.randomness import Streams, stream_seed
from leakbench.records import Replicate, read_record, read_tensors

Jobs = Callable[..., Job]
CPU = torch.device("cpu")
DIGITS = Digits(size=9)
SHORT = {"samples": 16, "batch_size": 8, "rate": 0.05}


class Watcher(Attack):
    """Remembers what it was given, and answers with the size of the update as every pixel."""

    name: ClassVar[str] = "watcher"
    version: ClassVar[int] = 1
    given: ClassVar[list[tuple[Observations, Knowledge]]] = []

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        self.given.append((observations, knowledge))
        size = observations.gradients.norm(dim=1)
        images = size.view(-1, 1, 1, 1, 1).expand(-1, *observations.batch_shape).clone()
        return Reconstruction(images, size, torch.full((len(observations),), -1))


class Shift(Defense):
    """Clients train on brighter images."""

    name: ClassVar[str] = "shift"
    version: ClassVar[int] = 1
    by: float

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return images + self.by, labels


class PerSample(Defense):
    """Sends the mean of per-sample gradients."""

    name: ClassVar[str] = "per_sample"
    version: ClassVar[int] = 1

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return DenseMessage(steps.per_sample_gradient.mean(dim=1))


class Refuses(Attack):
    name: ClassVar[str] = "refuses"
    version: ClassVar[int] = 1

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        raise Infeasible("this attack knows batches of one image alone")


@pytest.fixture
def seen() -> list[tuple[Observations, Knowledge]]:
    Watcher.given.clear()
    return Watcher.given


@pytest.fixture
def normalised_job(attack_job: Jobs) -> Jobs:
    """As ``attack_job``, with digits of nine pixels, a model that has BatchNorm and the watching attack."""

    def make(*arguments: Any, attack: Attack | None = None, **protocol: Any) -> Job:
        job = attack_job(*arguments, attack=attack or Watcher(), **{"pretraining": SHORT, **protocol})
        dataset: Variant[Dataset] = Variant("digits9", Digits, {"size": 9}, {})
        model: Variant[Model] = Variant("bn", ConvNet, {"width": 2}, {})
        return replace(job, dataset=dataset, model=model)

    return make


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def swept(job: Job, **sweep: list[Any]) -> Job:
    """The job with protocol fields swept, as the configuration would make it."""
    fixed = {key: value for key, value in dict(job.kind).items() if key not in sweep}
    kinds = Variant(job.kind.name, type(job.kind), fixed, sweep)
    return replace(job, kind=next(iter(kinds.settings()))[1], kinds=kinds)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    samples = DIGITS.load("test", range(1, 7))
    return DIGITS.normalise(samples.values).unflatten(0, (3, 2)), samples.labels.unflatten(0, (3, 2))


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("epoch", [0, 2])
def test_the_clients_model(
    normalised_job: Jobs, seen: list[tuple[Observations, Knowledge]], mode: BatchNorm, epoch: int
) -> None:
    local = LocalTraining(steps=2, rate=0.1, batch_size=1)
    (replicate,) = run(normalised_job(batch_norm=mode, epoch=epoch, local=local)).replicates
    ((observations, _),) = seen
    assert observations.network.batch_norm == mode and observations.local == local
    initial = build_network(ConvNet(width=2), DIGITS.shape, 10, stream_seed("digits9", 0, "initialisation"))
    network = pretrained(initial, DIGITS, "digits9", 0, epoch, Pretraining(**SHORT), CPU).in_mode(mode)
    assert torch.equal(observations.parameters, network.parameters)
    for update, images, labels in zip(observations.gradients, *inputs(), strict=True):
        expected = local.update(network, network.parameters, images, labels)
        torch.testing.assert_close(update, expected, rtol=1e-3, atol=1e-5)
    assert replicate.metrics["alignment"] == pytest.approx([1] * 3)


def test_the_defaults_are_spelled_out(normalised_job: Jobs, seen: list[tuple[Observations, Knowledge]]) -> None:
    """One gradient of the untrained model, BatchNorm in evaluation."""
    run(normalised_job())
    spelled = normalised_job(
        batch_norm="eval", local={"steps": 1, "rate": 1.0, "batch_size": None}, epoch=0, pretraining=SHORT
    )
    assert spelled.digest == normalised_job().digest
    run(spelled)
    assert torch.equal(seen[0][0].gradients, seen[1][0].gradients)
    protocol = normalised_job().resolved()["kind"]["protocol"]
    assert protocol["local"] == {"steps": 1, "rate": 1.0, "batch_size": None}
    assert (protocol["epoch"], protocol["batch_norm"]) == (0, "eval")


class TestBatchStatistics:
    def test_are_those_of_what_clients_train_on(
        self, normalised_job: Jobs, seen: list[tuple[Observations, Knowledge]]
    ) -> None:
        granted = ("labels", "batch_statistics")
        run(normalised_job(Shift, {}, {"by": [0.0, 0.5]}, batch_norm="train", knowledge=granted))
        ((observations, knowledge),) = seen
        assert knowledge.granted() == set(granted) and knowledge.batch_statistics is not None
        batches = torch.cat([inputs()[0] + shift for shift in (0.0, 0.5)])
        for row, images in enumerate(batches):
            expected = observations.network.batch_statistics(observations.parameters, images)
            assert expected.keys() == knowledge.batch_statistics.keys()
            for name, values in expected.items():
                assert knowledge.batch_statistics[name].shape == (6, *values.shape)
                torch.testing.assert_close(knowledge.batch_statistics[name][row], values, rtol=1e-4, atol=1e-5)

    def test_only_when_granted(self, normalised_job: Jobs, seen: list[tuple[Observations, Knowledge]]) -> None:
        run(normalised_job(batch_norm="train"))
        assert seen[0][1].granted() == {"labels", "pixel_range", "auxiliary_images"}

    def test_a_model_without_batch_norm_has_none(
        self, attack_job: Jobs, seen: list[tuple[Observations, Knowledge]]
    ) -> None:
        run(attack_job(attack=Watcher(), knowledge=("labels", "batch_statistics")))
        assert seen[0][1].granted() == {"labels"}


class TestOutcomes:
    @pytest.mark.parametrize(
        ("defense", "attack", "reason"),
        [
            (PerSample, Watcher(), "per-sample gradients exist for one local step"),
            (GaussianNoise, Refuses(), "this attack knows batches of one image alone"),
        ],
    )
    def test_infeasible(self, normalised_job: Jobs, defense: type[Defense], attack: Attack, reason: str) -> None:
        parameters = {"scale": 0.1} if defense is GaussianNoise else {}
        job = normalised_job(defense, parameters, attack=attack, local={"steps": 2}, seeds=(0, 1))
        findings = run(job)
        assert [replicate.seed for replicate in findings.replicates] == [0, 1] and findings.tensors == {}
        for replicate in findings.replicates:
            assert replicate.outcome.status == "infeasible" and (replicate.outcome.reason or "").startswith(reason)
            assert set(replicate.metrics.values()) == {None} and set(replicate.reasons) == set(job.metrics)

    def test_pretraining_that_diverges(self, normalised_job: Jobs) -> None:
        job = normalised_job(
            GaussianNoise, {}, {"scale": [0.1, 0.2]}, seeds=(0, 1), epoch=2, pretraining=SHORT | {"rate": 1e30}
        )
        findings = run(job)
        assert [(replicate.seed, replicate.setting["scale"]) for replicate in findings.replicates] == [
            (seed, scale) for seed in (0, 1) for scale in (0.1, 0.2)
        ]
        for replicate in findings.replicates:
            assert replicate.outcome.status == "diverged"
            assert replicate.outcome.reason == "pretraining became non-finite in epoch 1"
            assert set(replicate.metrics.values()) == {None} and set(replicate.reasons) == set(job.metrics)
            assert Replicate.model_validate(replicate.model_dump()) == replicate

    def test_local_batches_divide_the_batch(self) -> None:
        with pytest.raises(ValidationError, match=r"local.batch_size \(3\) must divide batch_size \(4\)"):
            AttackJob(clients=1, batch_size=4, local={"batch_size": 3})


class TestSweeps:
    def test_one_replicate_per_combination(self, normalised_job: Jobs, tmp_path: Path) -> None:
        job = swept(
            normalised_job(GaussianNoise, {}, {"scale": [0.0, 0.1]}, seeds=(0, 1)),
            epoch=[0, 1],
            batch_norm=["eval", "train"],
        )
        record = run_job(job, tmp_path, Placement(device="cpu"))
        assert record == read_record(tmp_path / job.path) and record.job == job.resolved()
        found = [(replicate.seed, replicate.setting) for replicate in record.replicates]
        assert found == [
            (seed, {"scale": scale, "epoch": epoch, "batch_norm": mode})
            for epoch in (0, 1)
            for mode in ("eval", "train")
            for seed in (0, 1)
            for scale in (0.0, 0.1)
        ]
        assert len({str(replicate.metrics["objective"]) for replicate in record.replicates}) == len(found)
        assert record.tensors is not None
        tensors = read_tensors(tmp_path / job.path, record.tensors)
        assert len(tensors) == 2 * 2 * 2 * 3  # victims, reconstructions, assignment
        alone = run(normalised_job(GaussianNoise, {"scale": 0.1}, seeds=(1,), epoch=1, batch_norm="train"))
        together = record.replicates[found.index((1, {"scale": 0.1, "epoch": 1, "batch_norm": "train"}))]
        assert together.metrics["objective"] == pytest.approx(alone.replicates[0].metrics["objective"], rel=1e-4)
        torch.testing.assert_close(
            tensors["epoch=1/batch_norm=train/seed1/reconstructions"][1],
            alone.tensors["seed1/reconstructions"][0],
            rtol=1e-4,
            atol=1e-4,
        )

    def test_identity(self, normalised_job: Jobs) -> None:
        plain = normalised_job()
        assert plain.resolved()["kind"].keys() == {"name", "version", "protocol"}
        job = swept(plain, epoch=[0, 3])
        kind = job.resolved()["kind"]
        assert kind["sweep"] == {"epoch": [0, 3]} and "epoch" not in kind["protocol"]
        assert kind["protocol"] | {"epoch": 0} == plain.resolved()["kind"]["protocol"]
        combinations = list(job.combinations())
        assert [setting for setting, _ in combinations] == [{"epoch": 0}, {"epoch": 3}]
        assert combinations[0][1].digest == plain.digest
        assert len({job.digest, *(combination.digest for _, combination in combinations)}) == 3

    def test_nothing_swept_is_the_job_itself(self, train_job: Jobs) -> None:
        job = train_job(seeds=(0, 1))
        ((setting, only),) = job.combinations()
        assert setting == {} and only is job
        assert compute(job, CPU) == job.kind.run(job, CPU)

    def test_any_kind_of_job(self, train_job: Jobs) -> None:
        findings = compute(swept(train_job(), steps=[1, 3], optimiser=["adam", "sgd"]), CPU)
        assert [(replicate.setting, len(values(replicate))) for replicate in findings.replicates] == [
            ({"steps": steps, "optimiser": optimiser}, steps) for steps in (1, 3) for optimiser in ("adam", "sgd")
        ]


def values(replicate: Replicate) -> list[float | None]:
    curve = replicate.metrics["loss_curve"]
    assert isinstance(curve, list)
    return curve
