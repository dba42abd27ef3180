"""Jobs with defenses that act on images: attacks on what they release, and calibration alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from tests.jobs.conftest import _make_job

from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.one_image import OneImage
from leakbench.attacks.presets import DLGCDPA
from leakbench.attacks.reference import MeanImage
from leakbench.data.covariance import moments_of
from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.channel import EigenCompression, NaturalChannel, PersonalizedChannel, WhiteChannel
from leakbench.federated.client_data import ClientData
from leakbench.jobs.base import Findings, Job
from leakbench.papers.channel.jobs.calibrate import CALIBRATE_METRICS, VISITS, CalibrateJob, least_error
from leakbench.randomness import Streams
from leakbench.theory.capacity import accumulated_capacity, natural_variance
from leakbench.theory.reconstruction_bound import gaussian_error

AttackJobs = Callable[..., Job]
CPU = torch.device("cpu")
GRANTED = ("labels", "pixel_range", "auxiliary_images", "data_noise")


class Watch(Attack):
    """Remembers what it saw; every reconstruction is black."""

    name: ClassVar[str] = "watch"
    version: ClassVar[int] = 1
    seen: ClassVar[list[tuple[Observations, Knowledge]]] = []

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        self.seen.append((observations, knowledge))
        images = torch.zeros(len(observations), *observations.batch_shape)
        return Reconstruction(images, None, torch.full((len(observations),), -1), knowledge.labels)


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def calibrate_job(defense: type[Defense], parameters: dict[str, Any], sweep: Any = None, **protocol: Any) -> Job:
    return _make_job(CalibrateJob(**protocol), defense, parameters, sweep, None, (0,))


class TestAttackJobs:
    def test_gradients_are_those_of_noisy_images_and_errors_those_against_clean_ones(
        self, attack_job: AttackJobs
    ) -> None:
        Watch.seen.clear()
        data = Digits(size=8)
        job = attack_job(NaturalChannel, {}, {"kappa": [5.0, 500.0]}, attack=Watch(), knowledge=GRANTED)
        noisy, nearly_clean = run(job).replicates
        clean = run(attack_job(attack=Watch())).replicates[0]
        assert noisy.metrics["mse"] == nearly_clean.metrics["mse"] == clean.metrics["mse"]
        (defended, knowledge), (undefended, _) = Watch.seen
        rows = defended.gradients.view(2, 3, -1)
        far, near = (float((row - undefended.gradients).norm()) for row in rows)
        assert far > 100 * near > 0
        distortion = noisy.metrics["distortion"]
        assert isinstance(distortion, list) and all(value is not None and value > 0 for value in distortion)
        # Calibrated on training images that are not the auxiliary ones, once for all clients of a setting.
        assert knowledge.data_noise is not None and len(knowledge.data_noise) == 6
        assert len({id(noise) for noise in knowledge.data_noise}) == 2
        images = data.normalise(data.load("train", range(16, 1297)).values)
        sigma = natural_variance(moments_of(images).eigenvalues, 5.0)
        torch.testing.assert_close(knowledge.data_noise[0], sigma.expand(64), rtol=1e-6, atol=0)
        assert noisy.privacy is not None and noisy.privacy["capacity"] == pytest.approx(5.0)

    def test_fewer_calibration_images(self, attack_job: AttackJobs) -> None:
        Watch.seen.clear()
        run(attack_job(NaturalChannel, {"kappa": 5.0}, attack=Watch(), knowledge=GRANTED, calibration=50))
        data = Digits(size=8)
        sigma = natural_variance(moments_of(data.normalise(data.load("train", range(16, 66)).values)).eigenvalues, 5.0)
        noise = Watch.seen[0][1].data_noise
        assert noise is not None
        torch.testing.assert_close(noise[0], sigma.expand(64), rtol=1e-6, atol=0)

    def test_the_noise_is_told_to_those_alone_who_are_granted_it(self, attack_job: AttackJobs) -> None:
        Watch.seen.clear()
        run(attack_job(WhiteChannel, {"kappa": 5.0}, attack=Watch()))
        run(attack_job(NoDefense, attack=Watch(), knowledge=GRANTED))
        assert [knowledge.data_noise for _, knowledge in Watch.seen] == [None, None]


class TestBatchMean:
    def test_reference_attacker_is_compared_with_the_mean_of_each_batch(self, attack_job: AttackJobs) -> None:
        found = run(attack_job(attack=MeanImage(), target="batch_mean"))
        data = Digits(size=8)
        pixels = data.load("test", range(1, 7)).values.view(3, 2, 1, 8, 8).mean(dim=1)
        guess = data.load("train", range(16)).values.mean(dim=0)
        literal = (guess - pixels).square().mean(dim=(1, 2, 3)).tolist()
        assert found.replicates[0].metrics["mse"] == pytest.approx(literal, rel=1e-4)
        assert found.tensors["seed0/victims"].shape == (3, 1, 1, 8, 8)

    def test_it_may_be_compared_with_the_mean_of_the_data_set(self, attack_job: AttackJobs) -> None:
        found = run(attack_job(attack=MeanImage(), target="dataset_mean"))
        data = Digits(size=8)
        every = data.load("train", range(data.length("train"))).values
        guess = every[:16].mean(dim=0)
        literal = float((guess - every.double().mean(dim=0)).square().mean())
        assert found.replicates[0].metrics["mse"] == pytest.approx([literal] * 3, rel=1e-4)

    def test_one_image_sees_soft_labels_and_one_place(self, attack_job: AttackJobs) -> None:
        Watch.seen.clear()
        (replicate,) = run(attack_job(attack=OneImage(attack=Watch()), target="batch_mean")).replicates
        observations, knowledge = Watch.seen[0]
        assert observations.batch_shape == (1, 1, 8, 8)
        labels = Digits(size=8).load("test", range(1, 7)).labels.view(3, 2)
        literal = torch.zeros(3, 1, 10)
        for client in range(3):
            for label in labels[client].tolist():
                literal[client, 0, label] += 0.5
        assert knowledge.labels is not None
        torch.testing.assert_close(knowledge.labels, literal)
        assert replicate.metrics["label_accuracy"] == [1.0, 1.0, 1.0]

    def test_of_one_image_it_is_the_attack_itself(self, attack_job: AttackJobs) -> None:
        inside = DLGCDPA(iterations=8)
        ones, plain = (
            run(attack_job(attack=attack, batch_size=1, target=target)).replicates[0].metrics["mse"]
            for attack, target in ((OneImage(attack=inside), "batch_mean"), (inside, "images"))
        )
        assert ones == pytest.approx(plain, rel=1e-2)

    def test_several_local_steps_are_infeasible(self, attack_job: AttackJobs) -> None:
        local = {"steps": 2, "rate": 0.1}
        (replicate,) = run(attack_job(attack=OneImage(attack=Watch()), local=local)).replicates
        assert replicate.outcome.status == "infeasible"


class TestCalibrateJobs:
    def test_a_channel(self) -> None:
        job = calibrate_job(NaturalChannel, {}, {"kappa": [5.0, 50.0]}, images=300)
        data = Digits(size=8)
        moments = moments_of(data.normalise(data.load("train", range(300)).values))
        for replicate, kappa in zip(run(job).replicates, (5.0, 50.0), strict=True):
            metrics = replicate.metrics
            assert metrics.keys() == CALIBRATE_METRICS.keys()
            sigma = float(natural_variance(moments.eigenvalues, kappa))
            expected = {"kappa": kappa, "capacity": kappa, "sigma": sigma, "noise_variance": sigma, "images": 300}
            expected |= {"pixel_noise_variance": sigma * 0.324**2, "log_factor": -2 * kappa / 64}
            assert {name: metrics[name] for name in expected} == pytest.approx(expected)
            assert metrics["eigenvalues"] == pytest.approx(moments.eigenvalues[:32].tolist())
            pixels = (moments.eigenvalues[:32] * (2 * 0.324) ** 2).tolist()
            assert metrics["pixel_eigenvalues"] == pytest.approx(pixels, rel=1e-6, abs=1e-9)
            assert metrics["direction_noise"] == pytest.approx([sigma] * 32)
            literal = [float(accumulated_capacity(moments.eigenvalues, sigma, float(v), "fresh")) for v in VISITS]
            assert metrics["fresh_capacity"] == pytest.approx(literal)
            assert replicate.reasons.keys() == {name for name, value in metrics.items() if value is None}

    @pytest.mark.parametrize("kind", [NaturalChannel, WhiteChannel, PersonalizedChannel])
    def test_least_error_by_the_general_formula(self, kind: type[NaturalChannel]) -> None:
        data = Digits(size=8)
        images = data.normalise(data.load("train", range(300)).values)
        ready = kind(kappa=20.0).calibrate(ClientData(images[None]))
        assert isinstance(ready, NaturalChannel | WhiteChannel | PersonalizedChannel)
        moments, noise = moments_of(images), ready.data_noise[0].covariance
        full = noise.diag() if noise.dim() == 1 else noise
        assert least_error(moments, noise) == pytest.approx(float(gaussian_error(moments.covariance, full)), rel=1e-5)

    def test_a_matrix_that_does_not_share_the_directions(self) -> None:
        data = Digits(size=8)
        moments = moments_of(data.normalise(data.load("train", range(300)).values))
        noise = torch.diag(torch.linspace(0.1, 3, 64, dtype=torch.float64))
        literal = float(gaussian_error(moments.covariance, noise))
        assert least_error(moments, noise) == pytest.approx(literal, rel=1e-9)

    def test_compression_and_no_defense_say_why_they_have_no_capacity(self) -> None:
        (removed,) = run(calibrate_job(EigenCompression, {"direction": 1})).replicates
        eigenvalues = removed.metrics["eigenvalues"]
        assert isinstance(eigenvalues, list) and eigenvalues[1] is not None
        assert removed.metrics["mmse"] == pytest.approx(eigenvalues[1] / 64)
        assert removed.metrics["capacity"] is None and "infinite" in removed.reasons["capacity"]
        (none,) = run(calibrate_job(NoDefense, {})).replicates
        assert none.metrics["capacity"] is None and none.metrics["trace"] == removed.metrics["trace"]

    def test_pictures(self) -> None:
        job = calibrate_job(NaturalChannel, {}, {"kappa": [5.0, 50.0]}, pictures=40)
        found = run(job)
        clean, noisy = found.tensors["seed0/clean"], found.tensors["seed0/protected"]
        torch.testing.assert_close(clean, Digits(size=8).load("test", range(1, 41)).values)
        for row, replicate in zip(noisy, found.replicates, strict=True):
            variance = replicate.metrics["pixel_noise_variance"]
            assert isinstance(variance, float)
            error = float((row - clean).square().mean())
            assert math.isclose(error, variance, rel_tol=0.1)
