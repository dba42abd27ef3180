"""Jobs of kind leakage: what counts as recovered, and what is made of the counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError

from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.presets import DLGWolfe
from leakbench.attacks.reference import MeanImage
from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.tuned import Tuned, UploadConstants
from leakbench.errors import ConfigError
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.models.base import Model
from leakbench.models.lenet import LeNet
from leakbench.models.linear import MLP
from leakbench.papers.tfl_meta.jobs import attempts
from leakbench.papers.tfl_meta.jobs.leakage import PRIORS, LeakageJob, leakage_metric_name
from leakbench.papers.tfl_meta.theory.leakage_estimation import constants, null_prior
from leakbench.randomness import Streams

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {
    "clients": 3,
    "images_per_client": 20,
    "batch_size": 2,
    "models": 2,
    "attempts": 4,
    "steps": 2,
    "rate": 0.1,
    "law_batches": 5,
    "resamples": 20,
}


class Oracle(Attack):
    """Knows the images, and returns them in another order in some attempts: those that the test names."""

    name: ClassVar[str] = "oracle"
    version: ClassVar[int] = 1
    images: ClassVar[torch.Tensor]  # network inputs [K, S, ...]
    right: ClassVar[torch.Tensor]  # [M, T, K, S]
    lost: ClassVar[torch.Tensor | None] = None
    clients: ClassVar[int] = 3
    seen: ClassVar[list[Observations]] = []

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        self.seen.append(observations)
        n, size = len(observations), observations.batch_shape[0]
        right = self.right[:, :, : self.clients, :size].flatten(0, 2)
        right = right.repeat(-(-n // len(right)), 1)[:n]  # the same for every setting of the defense
        truth = self.images[: self.clients, :size].repeat(n // self.clients, 1, 1, 1, 1)
        grey = torch.full_like(truth, 0.37)
        images = torch.where(right[:, :, None, None, None], truth, grey).flip(1)
        lost = torch.full((n,), -1) if self.lost is None else torch.where(self.lost.flatten()[:n], 3, -1)
        return Reconstruction(images, None, lost)


def job_of(
    attack: type[Attack] = Oracle,
    defense: type[Defense] = NoDefense,
    sweep: dict[str, list[Any]] | None = None,
    *,
    parameters: dict[str, Any] | None = None,
    attacking: dict[str, Any] | None = None,
    seeds: tuple[int, ...] = (0,),
    model: type[Model] = MLP,
    **protocol: Any,
) -> Job:
    return Job(
        scale="test",
        paper="test",
        experiment="test",
        dataset=Variant("digits", Digits, {"size": 8}, {}),
        model=Variant("model", model, {"width": 4 if model is MLP else 12}, {}),
        defense=Variant("defense", defense, parameters or {}, sweep or {}),
        attack=Variant("attack", attack, attacking or {}, {}),
        kind=LeakageJob(**{**SMALL, **protocol}),
        part="all",
        seeds=seeds,
    )


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


@pytest.fixture
def truth() -> torch.Tensor:
    """What the clients of seed 0 hold; the oracle is told, and starts by knowing everything."""
    Oracle.seen, Oracle.lost, Oracle.clients = [], None, 3
    Oracle.right = torch.ones(2, 4, 3, 2, dtype=torch.bool)
    Oracle.images = torch.zeros(3, 2, 1, 8, 8)
    found = run(job_of())
    images = found.tensors["seed0/victims"]
    Oracle.images, Oracle.seen = Digits(size=8).normalise(images), []
    return images


class TestCounts:
    def test_everything(self, truth: torch.Tensor) -> None:
        (replicate,) = run(job_of()).replicates
        assert replicate.metrics["recovery"] == [1, 1, 1]
        assert replicate.metrics["null_recovery"] == [0, 0, 0]
        assert min(replicate.metrics["psnr"]) > 60  # type: ignore[type-var, arg-type, operator]
        low = replicate.metrics["recovery_low"]
        assert isinstance(low, list) and low[0] == pytest.approx(16 / (16 + 1.959964**2))

    def test_some(self, truth: torch.Tensor) -> None:
        Oracle.right = torch.zeros(2, 4, 3, 2, dtype=torch.bool)
        Oracle.right[0, :3, 0, 0] = True
        Oracle.right[1, 0, 1] = True
        found = run(job_of(keep_attempts=True))
        (replicate,) = found.replicates
        assert replicate.metrics["recovery"] == [3 / 16, 2 / 16, 0]
        kept = found.tensors["seed0/recovered"]
        assert kept.shape == (1, 3, 2, 4, 2)
        assert torch.equal(kept[0].bool(), Oracle.right.movedim(2, 0))
        assert found.tensors["seed0/null_recovered"].shape == kept.shape

    def test_what_diverged_recovers_nothing(self, truth: torch.Tensor) -> None:
        Oracle.lost = torch.zeros(2, 4, 3, dtype=torch.bool)
        Oracle.lost[0, :2, 1] = True
        (replicate,) = run(job_of()).replicates
        assert replicate.metrics["recovery"] == [1, 12 / 16, 1]
        assert replicate.metrics["diverged"] == 2

    def test_a_threshold_is_a_setting(self, truth: torch.Tensor) -> None:
        found = run(job_of(thresholds=(25.0, 1000.0)))
        assert [replicate.setting for replicate in found.replicates] == [{"threshold": 25.0}, {"threshold": 1000.0}]
        assert found.replicates[1].metrics["recovery"] == [0, 0, 0]
        assert len(found.tensors["seed0/reconstructions"]) == 2

    def test_structural_similarity_is_another_test(self, truth: torch.Tensor) -> None:
        """A brighter image has its structure, and few decibels."""
        Oracle.images = Digits(size=8).normalise((truth * 0.8 + 0.15).clamp(0, 1))
        by_psnr, by_ssim = run(job_of(ssim_thresholds=(0.6,))).replicates
        assert by_psnr.setting == {"threshold": 25.0} and by_psnr.metrics["recovery"] == [0, 0, 0]
        assert by_ssim.setting == {"threshold": 0.6, "similarity": "ssim"} and by_ssim.metrics["recovery"] == [1, 1, 1]
        assert min(by_psnr.metrics["ssim"]) > 0.6  # type: ignore[type-var, arg-type, operator]

    def test_the_null_attack_is_on_another_clients_upload(self, truth: torch.Tensor) -> None:
        """A client's data, found in the upload of the next client; the other way round it is another client's prior."""
        nothing = torch.full_like(Oracle.images, 0.37)
        for client, source, expected in ((1, 0, [1, 0, 0]), (2, 1, [0, 1, 0]), (0, 1, [0, 0, 0]), (0, 2, [0, 0, 1])):
            shown = nothing.clone()
            shown[client] = Digits(size=8).normalise(truth)[source]
            Oracle.images = shown
            (replicate,) = run(job_of()).replicates
            assert replicate.metrics["recovery"] == [0, 0, 0]
            assert replicate.metrics["null_recovery"] == expected, (client, source)

    def test_the_null_attack_is_the_prior_of_the_data_it_finds(self, truth: torch.Tensor) -> None:
        """Client 0's second image alone comes of client 1's upload, in some attempts; one of these diverges."""
        Oracle.images = torch.full_like(Oracle.images, 0.37)
        Oracle.images[1] = Digits(size=8).normalise(truth)[0]
        Oracle.right = torch.zeros_like(Oracle.right)
        Oracle.right[0, :3, 1, 1] = True
        Oracle.lost = torch.zeros(2, 4, 3, dtype=torch.bool)
        Oracle.lost[0, 0, 1] = True  # the upload of client 1, so that client 0's null attack fails
        found = run(job_of())
        assert found.replicates[0].metrics["null_recovery"] == [2 / 16, 0, 0]
        assert found.tensors["seed0/null"].tolist() == [[0, 2], [0, 0], [0, 0]]


class TestConstants:
    def test_they_are_those_of_the_counts(self, truth: torch.Tensor) -> None:
        Oracle.right = torch.rand(2, 4, 3, 2, generator=torch.Generator().manual_seed(1)) < 0.5
        found = run(job_of(smoothing=(0.5, 1.0)))
        (replicate,) = found.replicates
        hits = Oracle.right.movedim(2, 0).sum(dim=2).double()
        counts = torch.cat([hits, 8 - hits.sum(dim=-1, keepdim=True)], dim=-1)
        for alpha in (0.5, 1.0):
            expected = constants(counts, 4, null_prior(torch.zeros(3, 2), 8), alpha)
            suffix = None if alpha == 0.5 else alpha
            assert replicate.metrics[leakage_metric_name("leakage", "null", suffix)] == expected.c1.tolist()
            assert replicate.metrics[leakage_metric_name("xi", "null", suffix)] == expected.xi.tolist()
        kept = UploadConstants.of(found.tensors)
        assert kept.c1 == pytest.approx(sum(replicate.metrics["leakage/null"]) / 3)  # type: ignore[arg-type]
        assert kept.sigma.shape == (3, 64 * 4 + 4 + 40 + 10) and kept.delta.shape == (3,)

    def test_they_are_those_of_fewer_attempts(self, truth: torch.Tensor) -> None:
        """Of the first models and attempts, as a job that makes no others; the oracle answers both alike."""
        Oracle.right = torch.rand(2, 4, 3, 2, generator=torch.Generator().manual_seed(2)) < 0.5
        parts = ((1, 3), (2, 4))
        whole = run(job_of(fewer=parts, smoothing=(0.5, 0.001)))
        right = Oracle.right
        for models, times in parts:
            Oracle.right = right[:models, :times]
            alone = run(job_of(models=models, attempts=times, smoothing=(0.5, 0.001)))
            end = f"/n{models * times}"
            names = [
                "recovery",
                "null_recovery",
                *(f"{name}/{prior}" for name in ("leakage", "xi") for prior in PRIORS),
            ]
            names += [f"{name}/null/0.001" for name in ("leakage", "xi")]
            for name in names:
                assert whole.replicates[0].metrics[name + end] == alone.replicates[0].metrics[name], name
            for name in ("c1", "xi"):
                torch.testing.assert_close(whole.tensors[f"seed0/{name}{end}"], alone.tensors[f"seed0/{name}"])
            few = UploadConstants.of(whole.tensors, models * times)
            assert few.c1 == UploadConstants.of(alone.tensors).c1 and few.xi == UploadConstants.of(alone.tensors).xi

    def test_the_upper_end_of_a_null_rate(self, truth: torch.Tensor) -> None:
        """Of 8 attempts without a success, 1 - 0.05^(1/8); of a null attack that always succeeds, nothing is missed."""
        (replicate,) = run(job_of()).replicates
        rate = 1 - 0.05 ** (1 / 8)
        prior = torch.tensor([rate / 2, rate / 2, 1 - rate], dtype=torch.float64)
        expected = constants(torch.tensor([[4.0, 4.0, 0.0]] * 2), 4, prior)
        assert replicate.metrics["leakage/null_upper"] == pytest.approx([float(expected.c1)] * 3)
        assert replicate.metrics["xi/null_upper"] == pytest.approx([float(expected.xi)] * 3)
        assert replicate.metrics["xi/null_upper"][0] < replicate.metrics["xi/null"][0]  # type: ignore[index, operator]
        Oracle.images = Oracle.images.roll(1, dims=0)
        (replicate,) = run(job_of()).replicates
        assert replicate.metrics["null_recovery"] == [1, 1, 1]
        assert (
            replicate.metrics["xi/null_upper"] == [None] * 3
            and "the prior excludes" in replicate.reasons["xi/null_upper"]
        )

    def test_leakage_of_a_failed_attack(self, truth: torch.Tensor) -> None:
        (perfect,) = run(job_of(smoothing=(0.5, 0.001))).replicates
        Oracle.right = torch.zeros_like(Oracle.right)
        (failed,) = run(job_of(smoothing=(0.5, 0.001))).replicates
        for end in ("null", "null/0.001", "uniform", "population"):
            assert (
                perfect.metrics[f"failed/{end}"]
                == failed.metrics[f"leakage/{end}"]
                != perfect.metrics[f"leakage/{end}"]
            )

    def test_classes(self, truth: torch.Tensor) -> None:
        """As printed the estimates sum to S over the number of classes, where all is recovered."""
        (replicate,) = run(job_of(batch_size=1)).replicates
        assert replicate.metrics["classes_sum"] == [1, 1, 1]
        assert replicate.metrics["classes"] == pytest.approx(_all())

    def test_under_a_uniform_prior_failure_leaks_more(self, truth: torch.Tensor) -> None:
        (perfect,) = run(job_of()).replicates
        Oracle.right = torch.zeros_like(Oracle.right)
        (failed,) = run(job_of()).replicates
        uniform = [replicate.metrics["leakage/uniform"] for replicate in (perfect, failed)]
        null = [replicate.metrics["leakage/null"] for replicate in (perfect, failed)]
        assert uniform[1] > uniform[0] and null[0] > null[1]  # type: ignore[operator]


def _all() -> list[float]:
    """Leakage of a client whose one class is always recovered, unsmoothed."""
    from leakbench.theory.leakage_surrogate import leakage as distance

    prior = null_prior(torch.zeros(1, 1), 8)
    return [float(distance(torch.tensor([1.0, 0.0]), prior[0]))] * 3


class TestUploads:
    def test_models_share_a_search(self, truth: torch.Tensor) -> None:
        run(job_of())
        (seen,) = Oracle.seen
        assert len(seen) == 2 * 4 * 3 and seen.parameters.shape == seen.gradients.shape
        assert len(seen.parameters.unique(dim=0)) == 2

    def test_blocks_do_not_matter(self, truth: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
        together = run(job_of())
        monkeypatch.setattr(attempts, "ROWS", 1)
        apart = run(job_of())
        assert len(Oracle.seen) == 3 and Oracle.seen[1].parameters.dim() == 1
        assert together.replicates == apart.replicates

    def test_every_attempt_draws_noise_of_its_own(self, truth: torch.Tensor) -> None:
        run(job_of(defense=GaussianNoise, sweep={"scale": [0.1, 0.2]}))
        (seen,) = Oracle.seen  # all settings in one search
        one, two = seen.gradients.chunk(2)
        undefended = one - (two - one)  # the same draws, twice as large
        rows = undefended.unflatten(0, (2, 4, 3))
        torch.testing.assert_close(rows[:, :1].expand_as(rows), rows, atol=1e-6, rtol=1e-4)
        assert len((two - one).unique(dim=0)) == 24

    def test_models_are_trained(self, truth: torch.Tensor) -> None:
        run(job_of(steps=0))
        run(job_of(steps=3))
        before, after = (seen.parameters for seen in Oracle.seen)
        assert not torch.equal(before, after)


class TestOtherConstants:
    def test_the_prior_is_theirs(self, truth: torch.Tensor) -> None:
        found = run(job_of())
        tensors = found.tensors | {"seed0/null": torch.full((3, 2), 4.0), "seed0/null_trials": torch.tensor(8)}
        job = job_of(constants="test")
        (replicate,) = run(replace(job, uses={"leakage": job_of()}, kept={"leakage": tensors})).replicates
        counts = torch.tensor([[4.0, 4.0, 0.0]] * 2).expand(3, 2, 3)
        expected = constants(counts, 4, null_prior(torch.full((3, 2), 4.0), 8))
        assert replicate.metrics["leakage/null"] == expected.c1.tolist()

    @pytest.mark.parametrize(
        ("protocol", "message"), [({"batch_size": 1}, "has batch_size 2, and this one 1"), ({}, "has no seed 1")]
    )
    def test_they_are_of_the_same_clients(self, truth: torch.Tensor, protocol: dict[str, Any], message: str) -> None:
        found = run(job_of())
        job = job_of(constants="test", seeds=(0,) if protocol else (1,), **protocol)
        with pytest.raises(ConfigError, match=message):
            run(replace(job, uses={"leakage": job_of()}, kept={"leakage": found.tensors}))

    def test_a_budget_that_cannot_be_met_leaves_the_others(self, truth: torch.Tensor) -> None:
        found = run(job_of())
        job = job_of(
            defense=Tuned,
            parameters={"mechanism": "secret_sharing", "form": "as_printed"},
            sweep={"budget": [1.0, 2.0]},
            constants="test",
            clients=2,
        )
        Oracle.clients = 2
        kept = {"leakage": {name: tensor[:2] for name, tensor in found.tensors.items() if tensor.dim()}}
        kept["leakage"]["seed0/null_trials"] = torch.tensor(8)
        met, unmet = run(replace(job, uses={"leakage": job_of(clients=2)}, kept=kept)).replicates
        assert met.outcome.status == "ok" and 0 < met.metrics["tau"] < 1  # type: ignore[operator]
        assert unmet.outcome.status == "infeasible" and "epsilon is 2 C1 or more" in str(unmet.outcome.reason)
        assert set(met.metrics) == set(unmet.metrics) == set(job.metrics)

    def test_without_constants_there_is_no_tuning(self, truth: torch.Tensor) -> None:
        with pytest.raises(ConfigError, match="tuned by the constants of leakage"):
            run(job_of(defense=Tuned, parameters={"mechanism": "compression", "budget": 1.0}))


def test_a_search_recovers_single_images() -> None:
    job = job_of(DLGWolfe, attacking={"iterations": 60}, model=LeNet, batch_size=1, models=1, attempts=2)
    (replicate,) = run(job).replicates
    recovery = replicate.metrics["recovery"]
    assert isinstance(recovery, list) and sum(value or 0 for value in recovery) / 3 > 0.5


def test_the_same_again() -> None:
    job = job_of(DLGWolfe, attacking={"iterations": 5}, models=2, attempts=2)
    assert run(job).replicates == run(job).replicates


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ({"attempts": 0}, "greater than or equal to 1"),
        ({"clients": 1}, "greater than or equal to 2"),
        ({"thresholds": ()}, "one or more values, each once"),
        ({"smoothing": (1.0, 1.0)}, "one or more values, each once"),
        ({"fewer": ((3, 1),)}, r"fewer: at most models \(2\) and attempts \(4\)"),
        ({"batch_size": 30}, r"batch_size: at most images_per_client \(20\), got 30"),
        ({"fewer": ((1, 2), (2, 1))}, "fewer: models times attempts has to differ; 2 is there twice"),
        ({"fewer": ((1, 1),), "constants": "other"}, "the prior is that of the constants"),
        ({"ssim_thresholds": (25.0,)}, "one of them is a threshold of PSNR, too"),
        ({"knowledge": ("prior",)}, "prior: allowed are labels, pixel_range"),
    ],
)
def test_bad_protocols(protocol: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LeakageJob(**{**SMALL, **protocol})


def test_what_an_attack_needs_is_granted(truth: torch.Tensor) -> None:
    (replicate,) = run(job_of(DLGWolfe, attacking={"labels": "known"})).replicates
    assert replicate.outcome.status == "infeasible"
    assert replicate.outcome.reason == "attack 'attack' needs labels, which is not granted"


def test_a_blind_guess_faces_the_same_victims(truth: torch.Tensor) -> None:
    """The mean of test images, at any number of models and attempts."""
    found = run(job_of(MeanImage, models=1, attempts=1, steps=0))
    torch.testing.assert_close(found.tensors["seed0/victims"], truth)
    digits = Digits(size=8)
    mean = digits.load("test", range(min(attempts.AUXILIARY, digits.length("test")))).values.mean(dim=0)
    torch.testing.assert_close(found.tensors["seed0/reconstructions"][0], mean.expand_as(truth))
    (one,), (several,) = found.replicates, run(job_of(MeanImage)).replicates
    assert one.metrics["psnr"] == pytest.approx(several.metrics["psnr"])
