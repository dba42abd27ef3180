"""Attack jobs: repeatable, paired, and honest about what did not work."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from leakbench.attacks.adaptive import Adaptive, Masked, Weighted
from leakbench.attacks.analytic import Analytic
from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.cocktail_party import CocktailParty, CocktailPartyAsReleased
from leakbench.attacks.labels import infer_labels
from leakbench.attacks.presets import DLGCDPA, IGOptimalDefense
from leakbench.attacks.reference import Grey, MeanImage, Noise
from leakbench.attacks.robbing import RobbingTheFed
from leakbench.attacks.simulation import Likelihood, Simulated
from leakbench.attacks.spear import Spear
from leakbench.data.embedded import Digits
from leakbench.defenses.base import ClientState, Defense, NoDefense, Round
from leakbench.defenses.channel import NaturalChannel
from leakbench.defenses.mixup import MixUp
from leakbench.defenses.noise import ClippedNoise, GaussianNoise
from leakbench.defenses.optimal import OptimalClippedNoise, OptimalNoise, OptimalPruning, Rounding
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.defenses.quantised import QSGD
from leakbench.defenses.soteria import Soteria
from leakbench.errors import ObservationError
from leakbench.federated.message import DenseMessage, Message, Received, SparseMessage
from leakbench.federated.step import ClientSteps
from leakbench.jobs import subjects
from leakbench.jobs.attack import TRAINED, VICTIM_METRICS, AttackJob
from leakbench.jobs.base import JOB_KINDS, Findings, Job
from leakbench.jobs.runner import Placement, run_job
from leakbench.jobs.subjects import Images
from leakbench.metrics import image
from leakbench.metrics.image import IMAGE_METRICS, PERCEPTUAL
from leakbench.metrics.labels import label_accuracy
from leakbench.randomness import Streams
from leakbench.records import Replicate, Value, read_record

AttackJobs = Callable[..., Job]
ATTACK_METRICS = Images.metrics | VICTIM_METRICS
CPU = torch.device("cpu")
EVERYTHING = ("labels", "pixel_range", "auxiliary_images", "batch_statistics", "noise_variance", "mechanism")


class Brittle(Defense):
    """Works for clients alone."""

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        if type(steps).__name__ == "_Candidates":
            raise KeyError("table")
        return DenseMessage(steps.gradient)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        raise KeyError("table")


class Optional(Defense):
    """Send half of the coordinates, or all; the attacker that suits it depends on which."""

    name: ClassVar[str] = "optional"
    version: ClassVar[int] = 1
    half: bool

    @property
    def adaptive(self) -> tuple[dict[str, Any], ...]:  # type: ignore[override]
        return ({"name": "masked"},) if self.half else ({"name": "likelihood"},)

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        if not self.half:
            return DenseMessage(steps.gradient)
        kept = steps.gradient.abs() > steps.gradient.abs().median(dim=1, keepdim=True).values
        return SparseMessage(steps.gradient, kept)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        return -(received.values - steps.gradient).square().sum(dim=1)


class Poison(Defense):
    """Some clients send something that is not a number."""

    name: ClassVar[str] = "poison"
    version: ClassVar[int] = 1
    clients: tuple[int, ...] = (1,)

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        values = steps.gradient.clone()
        values[list(self.clients), 7] = torch.nan
        return DenseMessage(values)


class PublicMask(Defense):
    """Send half of the coordinates, drawn from the public randomness of the round."""

    name: ClassVar[str] = "public_mask"
    version: ClassVar[int] = 1
    fraction: float = 0.5

    def protect_round(self, steps: ClientSteps, round: Round) -> tuple[Message, ClientState]:
        kept = round.public.uniform(steps.gradient.shape[1]) >= self.fraction
        return DenseMessage(torch.where(kept, steps.gradient, 0.0)), round.state


class Breaks(Attack):
    """Answers with zeros, but for the second of three clients, which it loses."""

    name: ClassVar[str] = "breaks"
    version: ClassVar[int] = 1
    at: int = -1

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        images = torch.zeros(len(observations), *observations.batch_shape)
        diverged_at = torch.full((len(observations),), -1)
        if self.at >= 0:
            images[1], diverged_at[1] = torch.nan, self.at
        return Reconstruction(images, torch.arange(len(observations)) + 0.5, diverged_at, knowledge.labels)


class Blow(Defense):
    """The second client sends values whose squares are infinite."""

    name: ClassVar[str] = "blow"
    version: ClassVar[int] = 1

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return DenseMessage(steps.gradient * torch.tensor([1.0, 1e30, 1.0])[:, None])


class Shorten(Defense):
    """Forgets a coordinate."""

    name: ClassVar[str] = "shorten"
    version: ClassVar[int] = 1

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return DenseMessage(steps.gradient[:, 1:])


class Darken(Defense):
    """Clients train on darker images."""

    name: ClassVar[str] = "darken"
    version: ClassVar[int] = 1
    factor: float = 1.0

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.factor * images, labels


class Spy(Attack):
    """Remembers what it was given."""

    name: ClassVar[str] = "spy"
    version: ClassVar[int] = 1
    given: ClassVar[list[tuple[Observations, Knowledge, Streams]]] = []

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        self.given.append((observations, knowledge, streams))
        images = torch.zeros(len(observations), *observations.batch_shape)
        return Reconstruction(images, None, torch.full((len(observations),), -1))


class Shuffle(Attack):
    """Finds the victims, from the pixels that the test gives it, but not their order."""

    name: ClassVar[str] = "shuffle"
    version: ClassVar[int] = 1
    victims: ClassVar[torch.Tensor]
    broken: int = -1  # the image of every batch that is not a number

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        images = self.victims.flip(1).repeat(len(observations) // len(self.victims), 1, 1, 1, 1)
        if self.broken >= 0:
            images[:, self.broken] = torch.nan
        return Reconstruction(images, None, torch.full((len(observations),), -1))


@pytest.fixture
def seen() -> list[tuple[Observations, Knowledge, Streams]]:
    Spy.given.clear()
    return Spy.given


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def values(replicate: Replicate, metric: str) -> list[float | None]:
    found = replicate.metrics[metric]
    assert isinstance(found, list)
    return found


def close(actual: Value, expected: Value) -> bool:
    """Nulls at the same places, and equal numbers to 1e-5."""
    if isinstance(actual, list) and isinstance(expected, list):
        return len(actual) == len(expected) and all(map(close, actual, expected))
    return actual == expected if actual is None or expected is None else actual == pytest.approx(expected, 1e-5, 1e-5)


def same(first: Replicate, second: Replicate) -> None:
    assert (first.seed, first.setting, first.outcome) == (second.seed, second.setting, second.outcome)
    assert first.reasons == second.reasons and first.privacy == second.privacy
    assert first.metrics.keys() == second.metrics.keys()
    for name, value in first.metrics.items():
        assert close(value, second.metrics[name]), name


def test_two_runs_are_identical(attack_job: AttackJobs) -> None:
    job = attack_job(GaussianNoise, {"scale": 0.01}, seeds=(0, 1))
    first, second = run(job), run(job)
    assert first.replicates == second.replicates
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(tensor, second.tensors[key]) for key, tensor in first.tensors.items())


def test_a_seed_alone_gives_the_same(attack_job: AttackJobs) -> None:
    together = run(attack_job(OptimalPruning, {"fraction": 0.5}, seeds=(0, 1, 2)))
    assert [replicate.seed for replicate in together.replicates] == [0, 1, 2]
    assert values(together.replicates[0], "objective") != values(together.replicates[1], "objective")
    for seed in (2, 0):
        alone = run(attack_job(OptimalPruning, {"fraction": 0.5}, seeds=(seed,)))
        same(alone.replicates[0], together.replicates[seed])
        key = f"seed{seed}/reconstructions"
        torch.testing.assert_close(alone.tensors[key], together.tensors[key], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("defense", "fixed", "name", "sweep"),
    [(OptimalPruning, {}, "fraction", [0.2, 0.9]), (ClippedNoise, {"clip": 0.05}, "scale", [0.0, 0.001, 0.1])],
)
def test_a_setting_alone_gives_the_same(
    attack_job: AttackJobs, defense: type[Defense], fixed: dict[str, Any], name: str, sweep: list[float]
) -> None:
    together = run(attack_job(defense, fixed, {name: sweep}))
    assert [replicate.setting for replicate in together.replicates] == [{name: value} for value in sweep]
    for index, value in enumerate(sweep):
        alone = run(attack_job(defense, fixed | {name: value}))
        (replicate,) = alone.replicates
        same(replicate.model_copy(update={"setting": {name: value}}), together.replicates[index])
        torch.testing.assert_close(
            alone.tensors["seed0/reconstructions"][0],
            together.tensors["seed0/reconstructions"][index],
            rtol=0,
            atol=1e-5,
        )


def test_what_the_attack_is_given(attack_job: AttackJobs, seen: list[tuple[Observations, Knowledge, Streams]]) -> None:
    findings = run(attack_job(GaussianNoise, {}, {"scale": [0.0, 0.5]}, attack=Spy(), first_index=5, seeds=(3,)))
    ((observations, knowledge, streams),) = seen
    digits = Digits(size=8)
    victims, auxiliary = digits.load("test", range(5, 11)), digits.load("train", range(16))
    assert observations.batch_shape == (2, 1, 8, 8) and len(observations) == 6
    inputs, labels = digits.normalise(victims.values).unflatten(0, (3, 2)), victims.labels.unflatten(0, (3, 2))
    for client in range(3):
        gradient = observations.network.gradient(observations.parameters, inputs[client], labels[client])
        torch.testing.assert_close(observations.gradients[client], gradient, rtol=1e-4, atol=1e-6)
        noise = observations.gradients[3 + client] - gradient
        assert float(noise.std()) == pytest.approx(0.5, rel=0.1)
    assert knowledge.labels is not None and knowledge.pixel_range is not None and knowledge.auxiliary_images is not None
    assert torch.equal(knowledge.labels, labels.repeat(2, 1))
    assert torch.equal(knowledge.pixel_range, digits.normalise(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)))
    torch.testing.assert_close(knowledge.auxiliary_images, digits.normalise(auxiliary.values))
    assert streams.keys == [("digits8", 3, "client", client, "attack") for client in range(3)] * 2
    torch.testing.assert_close(findings.tensors["seed3/victims"], victims.values.unflatten(0, (3, 2)))


@pytest.mark.parametrize("users", [1, 2])
def test_public_randomness_is_known(
    users: int, attack_job: AttackJobs, seen: list[tuple[Observations, Knowledge, Streams]]
) -> None:
    """An attacker draws the masks of the clients: users of a mean share one, and others do not."""
    job = attack_job(PublicMask, {}, {"fraction": [0.5, 0.9]}, attack=Spy(), users=users)
    run(job)
    ((observations, _, _),) = seen
    assert observations.public is not None
    draws = observations.public.uniform(observations.network.dimension)
    fractions = torch.tensor([0.5, 0.9]).repeat_interleave(3)[:, None]
    moved = observations.gradients != 0
    assert not bool((moved & (draws < fractions)).any()) and float(moved[:3].float().mean()) > 0.3
    assert not torch.equal(draws[0], draws[1]) and torch.equal(draws[0], draws[3])


@pytest.mark.parametrize("granted", [(), ("labels",), ("auxiliary_images", "pixel_range")])
def test_only_what_is_granted_is_known(
    attack_job: AttackJobs, seen: list[tuple[Observations, Knowledge, Streams]], granted: tuple[str, ...]
) -> None:
    run(attack_job(attack=Spy(), knowledge=granted))
    assert seen[0][1].granted() == set(granted)


def test_metrics_compare_with_the_victims(attack_job: AttackJobs) -> None:
    """The spy says zero, which is the mean pixel of the training images."""
    findings = run(attack_job(attack=Spy()))
    (replicate,) = findings.replicates
    pixels = Digits(size=8).load("test", range(1, 7)).values
    error = (pixels - Digits.mean[0]).square().flatten(1).mean(dim=1)
    assert values(replicate, "mse") == pytest.approx(error.tolist(), rel=1e-5)
    assert values(replicate, "mse_input") == pytest.approx((error / Digits.std[0] ** 2).tolist(), rel=1e-5)
    assert values(replicate, "psnr") == pytest.approx((-10 * error.log10()).tolist(), rel=1e-5)
    assert len(values(replicate, "ssim")) == 6
    assert values(replicate, "alignment") == pytest.approx([1] * 3) and values(replicate, "distortion") == [0] * 3
    assert replicate.metrics["bits"] == 32 * 518  # parameters of the model
    assert set(replicate.metrics) == set(ATTACK_METRICS)
    nulls = {name for name, value in replicate.metrics.items() if value is None}
    perceptual = {prefix + metric for metric in PERCEPTUAL for prefix in ("", "assigned_")}
    assert nulls == {"objective", "label_accuracy", *perceptual} == set(replicate.reasons)
    for metric in PERCEPTUAL:
        assert "not staged" in replicate.reasons[metric] == replicate.reasons[f"assigned_{metric}"]
    assert "no objective" in replicate.reasons["objective"]
    assert "no labels" in replicate.reasons["label_accuracy"]
    assert replicate.outcome.status == "ok"


class TestAssignment:
    """An attack that finds the images in the opposite order."""

    @pytest.fixture(autouse=True)
    def digits(self, monkeypatch: pytest.MonkeyPatch) -> torch.Tensor:
        digits = Digits(size=8)
        pixels: torch.Tensor = digits.load("test", range(1, 7)).values.unflatten(0, (2, 3))
        monkeypatch.setattr(Shuffle, "victims", digits.normalise(pixels), raising=False)
        return pixels

    @pytest.fixture
    def shuffled_job(self, attack_job: AttackJobs) -> AttackJobs:
        return partial(attack_job, clients=2, batch_size=3, attack=Shuffle())

    def test_records_hold_both(self, shuffled_job: AttackJobs, digits: torch.Tensor) -> None:
        job = shuffled_job(GaussianNoise, {}, {"scale": [0.0, 0.5]})
        for replicate in run(job).replicates:
            error = (digits.flip(1) - digits).square().flatten(2).mean(dim=2).flatten()
            assert values(replicate, "mse") == pytest.approx(error.tolist(), abs=1e-6)
            assert values(replicate, "assigned_mse") == pytest.approx([0] * 6, abs=1e-12)
            assert values(replicate, "assigned_mse_input") == pytest.approx([0] * 6, abs=1e-12)
            assert all(value is not None and value > 100 for value in values(replicate, "assigned_psnr"))
            assert values(replicate, "assigned_ssim") == pytest.approx([1] * 6, abs=1e-5)
            assert values(replicate, "ssim") != pytest.approx([1] * 6, abs=0.1)
            assert set(replicate.metrics) == set(job.metrics) == set(ATTACK_METRICS)
        assert job.metrics["assigned_psnr"].unit.endswith("after assignment within the client's batch")

    def test_tensors_keep_the_order_of_the_attack(self, shuffled_job: AttackJobs, digits: torch.Tensor) -> None:
        tensors = run(shuffled_job(GaussianNoise, {}, {"scale": [0.0, 0.5]}, seeds=(4,))).tensors
        assert set(tensors) == {"seed4/victims", "seed4/reconstructions", "seed4/assignment"}
        torch.testing.assert_close(tensors["seed4/reconstructions"], digits.flip(1).repeat(2, 1, 1, 1, 1, 1))
        assert tensors["seed4/assignment"].dtype == torch.int64
        assert tensors["seed4/assignment"].tolist() == [[[2, 1, 0]] * 2] * 2

    def test_values_stand_in_victim_order(self, shuffled_job: AttackJobs) -> None:
        """The first reconstruction of each batch is lost; it is left for the last victim, whose it is."""
        (replicate,) = run(shuffled_job(attack=Shuffle(broken=0))).replicates
        lost = [value is None for value in values(replicate, "mse")]
        assert lost == [True, False, False] * 2 and replicate.reasons["mse"] == "not finite"
        lost = [value is None for value in values(replicate, "assigned_mse")]
        assert lost == [False, False, True] * 2 and replicate.reasons["assigned_mse"] == "not finite"

    @pytest.mark.parametrize(("batch", "times"), [(1, 1), (3, 2)])
    def test_batches_of_one_are_measured_once(
        self, attack_job: AttackJobs, monkeypatch: pytest.MonkeyPatch, batch: int, times: int
    ) -> None:
        measured, measure = [], image.image_metrics

        def counted(*arguments: torch.Tensor) -> dict[str, torch.Tensor | str]:
            measured.append(len(arguments[0]))
            return measure(*arguments)

        monkeypatch.setattr(subjects, "image_metrics", counted)
        monkeypatch.setattr(Shuffle, "victims", Shuffle.victims[:, :batch])
        findings = run(attack_job(attack=Shuffle(), clients=2, batch_size=batch))
        assert measured == [2 * batch] * times
        assert ("seed0/assignment" in findings.tensors) == (batch > 1)
        metrics = findings.replicates[0].metrics
        same = [metrics[name] == metrics[f"assigned_{name}"] for name in IMAGE_METRICS if name not in PERCEPTUAL]
        assert set(same) == {batch == 1}


def test_alignment_distortion_and_bits_of_a_defended_message(attack_job: AttackJobs) -> None:
    findings = run(attack_job(OptimalPruning, {}, {"fraction": [0.0, 1.0]}, attack=Spy()))
    everything, nothing = findings.replicates
    assert values(everything, "alignment") == pytest.approx([1] * 3)
    assert values(nothing, "alignment") == [0] * 3 and nothing.metrics["bits"] == 0
    assert everything.metrics["bits"] == 33 * 518
    assert all(value is not None and value > 0 for value in values(nothing, "distortion"))
    noisy = run(attack_job(GaussianNoise, {"scale": 0.5}, attack=Spy())).replicates[0]
    assert values(noisy, "distortion") == pytest.approx([0.5] * 3, rel=0.1)


def test_the_privacy_statement_is_recorded(attack_job: AttackJobs) -> None:
    findings = run(attack_job(ClippedNoise, {"clip": 0.01}, {"scale": [0.0, 1.0]}, attack=Spy()))
    without, statement = (replicate.privacy for replicate in findings.replicates)
    assert without is not None and without["epsilon"] is None
    assert statement is not None and statement["epsilon"] > 0 and statement["delta"] == 1e-5


def test_a_defense_may_change_the_data(
    attack_job: AttackJobs, seen: list[tuple[Observations, Knowledge, Streams]]
) -> None:
    """The attacker sees the gradient of what clients trained on; it is measured against what they hold."""
    plain = run(attack_job(attack=Spy())).replicates[0]
    changed = run(attack_job(Darken, {}, {"factor": [1.0, 0.5]}, attack=Spy()))
    assert torch.equal(seen[1][0].gradients[:3], seen[0][0].gradients)
    assert not torch.allclose(seen[1][0].gradients[3:], seen[0][0].gradients)
    for replicate in changed.replicates:
        assert replicate.metrics["psnr"] == plain.metrics["psnr"]
    assert values(changed.replicates[1], "alignment") != pytest.approx([1] * 3, rel=1e-3)


def test_labels_may_become_probabilities(attack_job: AttackJobs) -> None:
    """Two weights of mixing, and the attacker that the defense declares."""
    job = attack_job(
        MixUp,
        sweep={"alpha": [0.5, 4.0]},
        attack=Adaptive(attack=DLGCDPA(iterations=3)),
        knowledge=("labels", "mechanism", "pixel_range"),
    )
    findings = run(job)
    assert [replicate.outcome.status for replicate in findings.replicates] == ["ok", "ok"]
    first, second = (values(replicate, "alignment") for replicate in findings.replicates)
    assert first != second


@pytest.mark.parametrize("attack", [MeanImage(), Grey(), Noise()], ids=lambda attack: attack.name)
def test_reference_attackers_say_the_same_under_every_defense(attack_job: AttackJobs, attack: Attack) -> None:
    plain = run(attack_job(attack=attack))
    noisy = run(attack_job(GaussianNoise, {"scale": 9.0}, attack=attack))
    key = "seed0/reconstructions"
    assert torch.equal(plain.tensors[key], noisy.tensors[key])
    assert plain.replicates[0].metrics["psnr"] == noisy.replicates[0].metrics["psnr"]


class TestInfeasible:
    @pytest.mark.parametrize(
        ("attack", "granted", "missing"),
        [
            (IGOptimalDefense(iterations=1), ("auxiliary_images",), "labels, pixel_range"),
            (IGOptimalDefense(iterations=1), ("labels", "auxiliary_images"), "pixel_range"),
            (MeanImage(), ("labels", "pixel_range"), "auxiliary_images"),
            (Grey(), ("labels",), "pixel_range"),
            (Noise(), (), "pixel_range"),
        ],
    )
    def test_what_is_not_granted_is_named_before_anything_is_computed(
        self,
        attack_job: AttackJobs,
        monkeypatch: pytest.MonkeyPatch,
        attack: Attack,
        granted: tuple[str, ...],
        missing: str,
    ) -> None:
        def refuse(*args: object) -> None:
            raise AssertionError("data were read")

        monkeypatch.setattr(Digits, "read", refuse)
        monkeypatch.setattr(Digits, "length", refuse)
        job = attack_job(GaussianNoise, {}, {"scale": [0.1, 0.2]}, attack=attack, knowledge=granted, seeds=(4, 7))
        findings = run(job)
        expected = [(seed, {"scale": scale}) for seed in (4, 7) for scale in (0.1, 0.2)]
        assert [(replicate.seed, replicate.setting) for replicate in findings.replicates] == expected
        for replicate in findings.replicates:
            assert replicate.outcome.status == "infeasible" and replicate.outcome.step is None
            assert f"needs {missing}, which is not granted" in (replicate.outcome.reason or "")
            assert set(replicate.metrics.values()) == {None}
            assert set(replicate.reasons) == set(job.metrics) == set(replicate.metrics)
        assert findings.tensors == {}

    @pytest.mark.parametrize(
        "attack",
        [Analytic(), Spear(), CocktailParty(), CocktailPartyAsReleased(), RobbingTheFed(form="parameters")],
        ids=lambda attack: attack.name,
    )
    def test_a_model_that_the_attack_cannot_read_is_refused_before_it_is_trained(
        self, attack_job: AttackJobs, monkeypatch: pytest.MonkeyPatch, attack: Attack
    ) -> None:
        def refuse(*args: object) -> None:
            raise AssertionError("data were read")

        monkeypatch.setattr(Digits, "read", refuse)
        findings = run(attack_job(attack=attack, batch_size=1, epoch=2, knowledge=("modified_model",)))
        (replicate,) = findings.replicates
        assert replicate.outcome.status == "infeasible"
        assert re.search(f"attack '{attack.name}' .*fully connected.*; ", replicate.outcome.reason or "")

    def test_an_attack_that_cannot_run_on_this_batch_says_so(self, attack_job: AttackJobs) -> None:
        """Two images per client, and the analytic attack is for one."""
        findings = run(attack_job(attack=Analytic()))
        (replicate,) = findings.replicates
        assert replicate.outcome.status == "infeasible"
        assert "holds one; these hold 2" in (replicate.outcome.reason or "")
        assert set(replicate.metrics.values()) == {None} and findings.tensors == {}

    @pytest.mark.parametrize(
        ("defense", "parameters", "attack", "reason"),
        [
            (NoDefense, {}, Masked(attack=IGOptimalDefense()), "the defense marks no coordinates"),
            (GaussianNoise, {"scale": 0.1}, Masked(attack=IGOptimalDefense()), "the defense marks no coordinates"),
            (NoDefense, {}, Weighted(attack=IGOptimalDefense()), "the defense adds no noise of a known variance"),
            (MagnitudePruning, {"fraction": 0.5}, Weighted(attack=IGOptimalDefense()), "the defense adds no noise"),
            (GaussianNoise, {"scale": 0.0}, Weighted(attack=IGOptimalDefense()), "the defense adds no noise of"),
            (
                NaturalChannel,
                {"kappa": 10},
                Likelihood(attack=IGOptimalDefense()),
                "NaturalChannel states no likelihood",
            ),
            (
                NaturalChannel,
                {"kappa": 10},
                Simulated(attack=IGOptimalDefense()),
                "attack 'simulated' runs the mechanism",
            ),
        ],
        ids=lambda value: value.name if isinstance(value, Attack) else None,
    )
    def test_a_wrapper_says_what_it_lacks(
        self, attack_job: AttackJobs, defense: type[Defense], parameters: dict[str, Any], attack: Attack, reason: str
    ) -> None:
        findings = run(attack_job(defense, parameters, attack=attack, knowledge=EVERYTHING, seeds=(0, 1)))
        assert [replicate.seed for replicate in findings.replicates] == [0, 1] and findings.tensors == {}
        for replicate in findings.replicates:
            assert replicate.outcome.status == "infeasible"
            assert (replicate.outcome.reason or "").startswith(reason)

    def test_an_adaptive_attack_needs_what_the_wrappers_of_the_defense_need(self, attack_job: AttackJobs) -> None:
        job = attack_job(OptimalNoise, {"scale": 0.1}, attack=Adaptive(attack=IGOptimalDefense()))
        (replicate,) = run(job).replicates
        assert replicate.outcome.reason == "attack 'attack' needs mechanism, which is not granted"

    @pytest.mark.parametrize("wrapper", [Simulated, Likelihood])
    def test_a_mechanism_that_raises_on_candidates_says_so(self, attack_job: AttackJobs, wrapper: Any) -> None:
        job = attack_job(Brittle, attack=wrapper(attack=IGOptimalDefense(iterations=2)), knowledge=EVERYTHING)
        (replicate,) = run(job).replicates
        assert replicate.outcome.status == "infeasible"
        assert replicate.outcome.reason == "Brittle cannot be run on candidates: KeyError: 'table'"


class TestDiverged:
    def test_the_broken_client_is_marked_and_the_others_are_whole(self, attack_job: AttackJobs) -> None:
        healthy, broken = (run(attack_job(attack=Breaks(at=at))).replicates[0] for at in (-1, 4))
        assert healthy.outcome.status == "ok"
        assert broken.outcome.status == "diverged" and broken.outcome.step == 4
        assert broken.outcome.reason == "1 of 3 trials became non-finite"
        images = ("mse", "mse_input", "psnr", "ssim", "cosine")
        for name in (*images, *(f"assigned_{name}" for name in images)):  # two images per client
            expected: list[float | None] = [*values(healthy, name)]
            expected[2:4] = [None, None]
            assert close(values(broken, name), expected)
            assert broken.reasons[name] == broken.outcome.reason
        for name in ("objective", "alignment", "distortion", "label_accuracy"):
            expected = [*values(healthy, name)]
            expected[1] = None
            assert close(values(broken, name), expected)
            assert broken.reasons[name] == broken.outcome.reason
        assert Replicate.model_validate(broken.model_dump()) == broken  # no NaN anywhere

    def test_a_search_that_overflows_for_one_client(self, attack_job: AttackJobs) -> None:
        """One client's gradient is finite and too large to square."""
        attack = DLGCDPA(iterations=3)
        healthy, broken = (run(attack_job(defense, attack=attack)).replicates[0] for defense in (NoDefense, Blow))
        assert healthy.outcome.status == "ok"
        assert broken.outcome.status == "diverged" and broken.outcome.reason == "1 of 3 trials became non-finite"
        assert [value is None for value in values(broken, "mse")] == [False, False, True, True, False, False]
        assert close(values(broken, "mse")[:2], values(healthy, "mse")[:2])


class TestBrokenObservations:
    @pytest.mark.parametrize(
        ("clients", "said"),
        [
            ((1,), "observation 1 of 3 holds values that are not finite; look at what the defense sends"),
            ((0, 2), "observation 0 of 3 holds values that are not finite, as do 1 others; look at what the defense"),
        ],
    )
    @pytest.mark.parametrize("attack", [IGOptimalDefense(iterations=1), MeanImage()], ids=lambda attack: attack.name)
    def test_a_message_that_is_not_finite_is_an_error(
        self, attack_job: AttackJobs, tmp_path: Path, clients: tuple[int, ...], said: str, attack: Attack
    ) -> None:
        """A defense at fault, and not an outcome of the attack; nothing is written."""
        job = attack_job(Poison, {"clients": clients}, attack=attack)
        with pytest.raises(ObservationError) as caught:
            run_job(job, tmp_path, Placement(device="cpu"))
        assert str(caught.value).startswith(f"{job.path}: {said}")
        assert not (tmp_path / job.path).exists()

    def test_a_message_of_another_size(self, attack_job: AttackJobs, tmp_path: Path) -> None:
        job = attack_job(Shorten)
        with pytest.raises(
            ObservationError, match=r"gradients of shape \[3, 517\]; the model asks for \[3, 518\]"
        ) as caught:
            run_job(job, tmp_path, Placement(device="cpu"))
        assert str(caught.value).startswith(job.path)


class TestLabelAccuracy:
    def test_labels_that_are_known_are_right(self, attack_job: AttackJobs) -> None:
        for replicate in run(attack_job(GaussianNoise, {}, {"scale": [0.0, 0.1]})).replicates:
            assert replicate.metrics["label_accuracy"] == [1, 1, 1]

    def test_labels_that_are_found(self, attack_job: AttackJobs, seen: list[Any]) -> None:
        attack = IGOptimalDefense(iterations=1, labels="repeated")
        job = partial(attack_job, GaussianNoise, {}, {"scale": [0.0, 3.0]}, batch_size=8, clients=8)
        granted = ("pixel_range",)  # the labels are not
        exact, noisy = run(job(attack=attack, knowledge=granted)).replicates
        run(job(attack=Spy()))
        observations, knowledge, _ = seen[0]
        assert knowledge.labels is not None
        found = infer_labels(observations, "repeated")
        for replicate, rows in ((exact, slice(0, 8)), (noisy, slice(8, 16))):
            expected = label_accuracy(found[rows], knowledge.labels[rows], 10)
            assert replicate.metrics["label_accuracy"] == pytest.approx(expected.tolist())
        mean = [sum(float(value or 0) for value in values(each, "label_accuracy")) / 8 for each in (exact, noisy)]
        assert mean[0] > mean[1] and mean[0] < 1

    @pytest.mark.parametrize("attack", [MeanImage(), Grey(), Noise()], ids=lambda attack: attack.name)
    def test_attacks_without_labels_say_so(self, attack_job: AttackJobs, attack: Attack) -> None:
        (replicate,) = run(attack_job(attack=attack)).replicates
        assert replicate.metrics["label_accuracy"] is None
        assert replicate.reasons["label_accuracy"] == "the attack uses no labels"


class TestGrants:
    def test_noise_variance(self, attack_job: AttackJobs, seen: list[tuple[Observations, Knowledge, Streams]]) -> None:
        """Of every setting, in the order of the observations."""
        for granted in (("labels", "noise_variance"), ("labels",)):
            run(attack_job(GaussianNoise, {}, {"scale": [0.0, 0.5]}, attack=Spy(), knowledge=granted))
        variance = seen[0][1].noise_variance
        assert variance is not None and torch.equal(variance[:3], torch.zeros(3, 518))
        torch.testing.assert_close(variance[3:], torch.full((3, 518), 0.25))
        assert seen[1][1].granted() == {"labels"}

    def test_a_defense_without_noise_has_no_variance(
        self, attack_job: AttackJobs, seen: list[tuple[Observations, Knowledge, Streams]]
    ) -> None:
        run(attack_job(MagnitudePruning, {"fraction": 0.5}, attack=Spy(), knowledge=EVERYTHING))
        assert seen[0][1].granted() == {
            "labels",
            "pixel_range",
            "auxiliary_images",
            "mechanism",
        }  # nor has the model BatchNorm

    def test_auxiliary_images_are_no_clients(
        self, attack_job: AttackJobs, seen: list[tuple[Observations, Knowledge, Streams]]
    ) -> None:
        job = attack_job(attack=Spy(), knowledge=("auxiliary_images",), auxiliary=5)
        tensors = run(job).tensors
        auxiliary = seen[0][1].auxiliary_images
        digits = Digits(size=8)
        assert auxiliary is not None and auxiliary.shape == (5, 1, 8, 8)
        torch.testing.assert_close(auxiliary, digits.normalise(digits.load("train", range(5)).values))
        victims = digits.normalise(tensors["seed0/victims"]).flatten(0, 1)
        assert torch.cdist(auxiliary.flatten(1), victims.flatten(1)).min() > 1
        run(attack_job(attack=Spy(), knowledge=("auxiliary_images",), auxiliary=5000))  # all that there are
        images = seen[1][1].auxiliary_images
        assert images is not None and len(images) == digits.length("train")

    def test_marks_travel_and_need_no_grant(
        self, attack_job: AttackJobs, seen: list[tuple[Observations, Knowledge, Streams]]
    ) -> None:
        for defense, parameters in ((MagnitudePruning, {"fraction": 0.5}), (NoDefense, {})):
            run(attack_job(defense, parameters, attack=Spy(), knowledge=()))
        marked = seen[0][0].marked
        assert marked is not None and marked.sum(dim=1).tolist() == [259] * 3
        assert bool(seen[0][0].gradients[marked].eq(0).all())
        assert seen[1][0].marked is None


class TestAdaptive:
    @pytest.mark.parametrize(
        ("defense", "parameters", "by_hand"),
        [
            (Rounding, {"scale": 0.05}, lambda ig: Simulated(attack=ig)),
            (QSGD, {"levels": 15}, lambda ig: Likelihood(attack=ig)),
            (OptimalClippedNoise, {"scale": 0.01, "clip": 0.05}, lambda ig: Likelihood(attack=ig)),
            (Soteria, {"fraction": 0.4}, lambda ig: Likelihood(attack=ig)),
        ],
    )
    def test_is_what_the_defense_declares(
        self,
        attack_job: AttackJobs,
        tmp_path: Path,
        defense: type[Defense],
        parameters: dict[str, Any],
        by_hand: Callable[[Attack], Attack],
    ) -> None:
        ig = IGOptimalDefense(iterations=8)
        job = partial(attack_job, defense, parameters, knowledge=EVERYTHING)
        adaptive = run_job(job(attack=Adaptive(attack=ig)), tmp_path, Placement(device="cpu"))
        declared, naive = run(job(attack=by_hand(ig))), run(job(attack=ig))
        assert adaptive.outcome.status == "ok" and adaptive == read_record(tmp_path / job().path)
        same(adaptive.replicates[0], declared.replicates[0])
        assert adaptive.replicates[0].metrics["mse"] != naive.replicates[0].metrics["mse"]
        attack = adaptive.job["attack"]
        assert attack["parameters"]["attack"]["name"] == "ig_optimal_defense"
        assert attack["against"] == {
            "name": by_hand(ig).name,
            "version": by_hand(ig).version,
            **by_hand(ig).parameters(),
        }
        assert "against" not in job(attack=by_hand(ig)).resolved()["attack"]

    def test_a_setting_without_noise_is_attacked_as_it_is(self, attack_job: AttackJobs) -> None:
        """A sweep may hold a setting without noise to weight by."""
        ig = IGOptimalDefense(iterations=8)
        job = partial(attack_job, OptimalNoise, knowledge=EVERYTHING)
        without, noisy = run(job({}, {"scale": [0.0, 0.05]}, attack=Weighted(attack=ig))).replicates
        assert without.outcome.status == noisy.outcome.status == "ok"
        plain = run(job({"scale": 0.0}, attack=ig)).replicates[0]
        same(without.model_copy(update={"setting": {}}), plain)


def test_attacks_read_every_kind_that_grants_something() -> None:
    """Attack jobs know such kinds by their names alone: one that is renamed would no longer be read."""
    granting = {name: JOB_KINDS.get(name).grants for name in JOB_KINDS if JOB_KINDS.get(name).grants is not None}
    assert granting == TRAINED
    assert set(TRAINED.values()) <= set(AttackJob.model_fields)


def test_every_setting_faces_the_attacker_that_it_declares(attack_job: AttackJobs) -> None:
    search = IGOptimalDefense(iterations=8)
    knowledge = ("labels", "pixel_range", "auxiliary_images", "mechanism")
    together = run(
        attack_job(Optional, {}, {"half": [True, False]}, attack=Adaptive(attack=search), knowledge=knowledge)
    )
    for half, wrapper in ((True, Masked), (False, Likelihood)):
        alone = run(attack_job(Optional, {"half": half}, attack=wrapper(attack=search), knowledge=knowledge))
        of_setting = [each for each in together.replicates if each.setting == {"half": half}]
        assert [each.metrics for each in of_setting] == [each.metrics for each in alone.replicates]
