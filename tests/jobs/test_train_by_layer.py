"""Training of users whose noise adds up: layer by layer, on all records, of the train split, at a given epsilon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.distributed_noise import DistributedNoise
from leakbench.defenses.dp_sgd import DPSGD
from leakbench.defenses.water_filling import WaterFilling
from leakbench.errors import ConfigError, Infeasible
from leakbench.jobs.base import Findings, Job
from leakbench.jobs.train import TrainJob
from leakbench.jobs.victims import Victims, gather_victims
from leakbench.models.convnets import SimpleConvNet
from leakbench.papers.secagg_dp.jobs.round_timing import ROUND_METHODS, ROUND_TIMING_METRICS, RoundTimingJob

TrainJobs = Callable[..., Job]
CPU = torch.device("cpu")
ASKED = {"clip": 1, "users": 2, "records": 4, "rounds": 5, "delta": 1e-4}


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def losses(findings: Findings) -> list[Any]:
    return [replicate.metrics["loss_curve"] for replicate in findings.replicates]


class TestByLayer:
    @pytest.mark.parametrize(
        ("defense", "parameters", "sweep"),
        [
            (NoDefense, {}, {}),
            (DistributedNoise, {"clip": 1}, {"variance": [0.01, 0.1]}),
            (WaterFilling, {"clip": 1, "batch": 2}, {"variance": [0.01, 1.0]}),
            (DPSGD, {"clip": 1, "multiplier": 0.1}, {}),
        ],
    )
    def test_trains_as_client_by_client(
        self, train_job: TrainJobs, defense: type[Defense], parameters: Mapping[str, Any], sweep: Mapping[str, Any]
    ) -> None:
        protocol = {"seeds": (0, 1), "batch_size": 4, "sampling": "all", "optimiser": "sgd", "rate": 0.1}
        found = [run(train_job(defense, parameters, sweep, by_layer=way, **protocol)) for way in (False, True)]
        for theirs, ours in zip(*map(losses, found), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4)
        final = [[one.metrics["final_loss"] for one in each.replicates] for each in found]
        assert final[1] == pytest.approx(final[0], rel=1e-4)

    def test_random_batches(self, train_job: TrainJobs) -> None:
        found = [run(train_job(sampling="independent", by_layer=way)) for way in (False, True)]
        assert losses(found[1])[0] == pytest.approx(losses(found[0])[0], rel=1e-4)

    def test_another_network_is_infeasible(self, train_job: TrainJobs, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("leakbench.models.layered.LayeredNetwork.of", lambda _: None)
        with pytest.raises(Infeasible, match="sequences of linear layers and convolutions"):
            run(train_job(by_layer=True))


class TestData:
    def test_all_records_at_every_step(self, train_job: TrainJobs) -> None:
        found = [run(train_job(sampling=sampling, batch_size=4)) for sampling in ("all", "shuffled")]
        assert losses(found[0])[0] == pytest.approx(losses(found[1])[0], abs=1e-5)
        with pytest.raises(ValidationError, match=r"takes a batch_size \(2\) of images_per_client \(4\)"):
            TrainJob(clients=1, batch_size=2, images_per_client=4, steps=1, rate=0.1, sampling="all")

    def gather(self, seed: int, clients: int = 3) -> Victims:
        return gather_victims(
            Digits(size=8),
            "digits8",
            SimpleConvNet(width=2),
            seed,
            clients=clients,
            batch_size=4,
            first_index=0,
            device=CPU,
            split="train",
        )

    def test_the_train_split_is_dealt_out_anew_for_each_seed(self) -> None:
        one, again, other = self.gather(0), self.gather(0), self.gather(1)
        assert one.values.shape == (3, 4, 1, 8, 8)
        assert torch.equal(one.values, again.values) and not torch.equal(one.values, other.values)
        held = Digits(size=8).load("train", range(1297)).values.flatten(1)
        near = torch.cdist(one.values.flatten(0, 1).flatten(1), held)
        assert bool((near.min(dim=1).values < 1e-6).all())
        with pytest.raises(ConfigError, match="images each need"):
            self.gather(0, clients=1000)

    def test_each_seed_ends_with_the_loss_on_its_own_records(self, train_job: TrainJobs) -> None:
        both = run(train_job(split="train", seeds=(0, 1))).replicates
        alone = [run(train_job(split="train", seeds=(seed,))).replicates[0] for seed in (0, 1)]
        for ours, theirs in zip(both, alone, strict=True):
            assert ours.metrics["final_loss"] == pytest.approx(theirs.metrics["final_loss"], rel=1e-5)


class TestEpsilon:
    def test_the_record_says_noise_and_guarantee(self, train_job: TrainJobs) -> None:
        job = train_job(DistributedNoise, ASKED, {"epsilon": [5.0, 50.0]}, batch_size=4, sampling="all")
        findings = run(job)
        assert "noise_variance" in job.metrics
        for replicate in findings.replicates:
            epsilon = replicate.setting["epsilon"]
            level = DistributedNoise(**ASKED, epsilon=epsilon).noise_level
            assert replicate.metrics["noise_variance"] == level
            assert replicate.privacy is not None
            assert replicate.privacy["epsilon"] == pytest.approx(epsilon) and replicate.privacy["delta"] == 1e-4

    def test_other_defenses_say_nothing_more(self, train_job: TrainJobs) -> None:
        (replicate,) = run(train_job()).replicates
        assert "noise_variance" not in {*train_job().metrics, *replicate.metrics} and replicate.privacy is None

    @pytest.mark.parametrize(
        ("change", "message"),
        [({"rounds": 6}, "calibrated for 6"), ({"users": 3}, "told of 3 users, and a sum may hold no more than 2")],
    )
    def test_noise_of_another_training_is_refused(
        self, train_job: TrainJobs, change: dict[str, int], message: str
    ) -> None:
        job = train_job(DistributedNoise, ASKED | {"epsilon": 5.0} | change, batch_size=4, sampling="all")
        with pytest.raises(ConfigError, match=message):
            run(job)

    @pytest.mark.parametrize(
        ("told", "protocol", "message"),
        [
            ({"records": 8000}, {}, "told of 8000 records per user, and clients hold 4; set records to 4"),
            ({}, {"sampling": "shuffled"}, "here they are shuffled; set the job's sampling to independent"),
            (
                {"users": 8},
                {"clients": 8, "secure_aggregation": {"dropout": 0.2}},
                "told of 8 users, and a sum may hold no more than 5 who do not collude",
            ),
            (
                {"users": 8},
                {"clients": 8, "secure_aggregation": {"early": 0.2, "colluders": 2}},
                "no more than 3 who do not collude with the server; set users to 3 at most",
            ),
            ({}, {"secure_aggregation": {"clip": 1.0}}, "set no secure_aggregation.clip"),
        ],
    )
    def test_a_guarantee_that_does_not_hold_is_refused(
        self, train_job: TrainJobs, told: dict[str, Any], protocol: dict[str, Any], message: str
    ) -> None:
        """Records that no client holds, batches that are not drawn independently, noise of users who left."""
        asked = ASKED | {"epsilon": 2.0, "batch": 2}
        run(train_job(DistributedNoise, asked, batch_size=2, sampling="independent"))
        drawn = {"batch_size": 2, "sampling": "independent"} | protocol
        job = train_job(DistributedNoise, asked | told, **drawn)
        with pytest.raises(ConfigError, match=message):
            run(job)
        given = {"variance": 1.0, "clip": 1, "users": 2, "records": 4, "batch": 2} | told
        (replicate,) = run(train_job(DistributedNoise, given, **drawn)).replicates
        assert replicate.privacy is not None and replicate.privacy["epsilon"] is None
        assert message in replicate.privacy["basis"]

    def test_noise_for_the_least_survivors(self, train_job: TrainJobs) -> None:
        secure = {"dropout": 0.1, "early": 0.05, "colluders": 2}
        job = train_job(
            DistributedNoise,
            ASKED | {"epsilon": 5.0, "users": 3},
            **{"clients": 8, "batch_size": 4, "sampling": "all", "secure_aggregation": secure},
        )
        (replicate,) = run(job).replicates
        assert replicate.privacy is not None and replicate.privacy["epsilon"] == pytest.approx(5)

    def test_a_target_that_no_noise_reaches_is_infeasible(self, train_job: TrainJobs) -> None:
        job = train_job(DistributedNoise, ASKED | {"epsilon": 1e-300}, batch_size=4, sampling="all")
        with pytest.raises(Infeasible, match="no variance"):
            run(job)


class TestRoundTiming:
    KIND = RoundTimingJob(clients=2, images_per_client=6, batch_size=3, rounds=5, epsilon=20, repetitions=3)

    def test_every_mechanism_in_every_repetition(self, train_job: TrainJobs) -> None:
        job = replace(train_job(), kind=self.KIND)
        findings = run(job)
        assert job.metrics == ROUND_TIMING_METRICS
        assert [replicate.setting["method"] for replicate in findings.replicates] == list(ROUND_METHODS)
        for replicate in findings.replicates:
            for metric in ("round_wall_s", "round_cpu_s"):
                seconds = replicate.metrics[metric]
                assert isinstance(seconds, list) and len(seconds) == 3 and min(map(float, filter(None, seconds))) > 0

    def test_mechanisms_have_equal_epsilon(self) -> None:
        from leakbench.defenses.base import Schedule

        found = self.KIND.mechanisms()
        assert [(one.name, one.row[0]) for one in found.values()] == [
            ("distributed_noise", "sgd"),
            ("distributed_noise", "gd"),
            ("water_filling", "gaussian_filled"),
        ]
        for defense in found.values():
            taken: dict[str, Any] = {"batch": 3, "sampling": "independent"}
            taken = taken if defense.row[0] == "sgd" else {"batch": 6, "sampling": "all"}
            schedule = Schedule(10, rounds=5, clients=2, records=6, **taken)
            assert defense.privacy(schedule).epsilon == pytest.approx(20)

    def test_a_batch_is_part_of_the_records(self) -> None:
        with pytest.raises(ValidationError, match=r"batch_size \(32\) must be at most images_per_client \(6\)"):
            RoundTimingJob(images_per_client=6)
