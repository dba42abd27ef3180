"""Attack jobs whose server may send a model of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.presets import IGOptimalDefense
from leakbench.attacks.robbing import RobbingTheFed, expected_alone
from leakbench.defenses.base import DEFENSES, Defense
from leakbench.federated.secure_training import SecureAggregation
from leakbench.jobs.base import Findings, Job
from leakbench.metrics.visibility import VISIBILITY
from leakbench.models.base import Network
from leakbench.randomness import Streams

Jobs = Callable[..., Job]
CPU = torch.device("cpu")
MALICIOUS = ("pixel_range", "auxiliary_images", "modified_model")


class Scaling(Attack):
    """Sends the model with halved parameters, and remembers what it was given."""

    name: ClassVar[str] = "scaling"
    version: ClassVar[int] = 1
    given: ClassVar[list[tuple[Network, tuple[int, ...], Knowledge]]] = []
    seen: ClassVar[list[Observations]] = []

    def prepare(self, network: Network, batch_shape: tuple[int, ...], knowledge: Knowledge) -> Network:
        self.given.append((network, batch_shape, knowledge))
        module = network.trainable_module()
        for parameter in module.parameters():
            parameter.data /= 2
        return Network(module, network.device, network.batch_norm)

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        self.seen.append(observations)
        images = torch.zeros(len(observations), *observations.batch_shape)
        return Reconstruction(images, None, torch.full((len(observations),), -1))


@pytest.fixture
def scaling() -> Scaling:
    Scaling.given.clear()
    Scaling.seen.clear()
    return Scaling()


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def mean_of(findings: Findings, metric: str) -> float:
    values: list[float] = []
    for replicate in findings.replicates:
        numbers = replicate.metrics[metric]
        assert isinstance(numbers, list)
        values += [number for number in numbers if number is not None]
    assert len(values) == 6 * len(findings.replicates)
    return sum(values) / len(values)


def test_it_is_a_grant(attack_job: Jobs, scaling: Scaling, monkeypatch: pytest.MonkeyPatch) -> None:
    def computed(*_: Any, **__: Any) -> None:
        pytest.fail("something is computed")

    monkeypatch.setattr("leakbench.jobs.scene.gather_victims", computed)
    for attack, label in ((RobbingTheFed(), "attack"), (scaling, "attack")):
        (replicate,) = run(attack_job(attack=attack)).replicates
        assert replicate.outcome.status == "infeasible"
        assert replicate.outcome.reason == f"attack '{label}' needs modified_model, which is not granted"


def test_clients_compute_on_the_model_that_is_sent(attack_job: Jobs, scaling: Scaling) -> None:
    run(attack_job(attack=scaling, knowledge=("labels", "pixel_range", "auxiliary_images", "modified_model")))
    ((honest, shape, knowledge),) = scaling.given
    (seen,) = scaling.seen
    assert shape == (2, 1, 8, 8) == seen.batch_shape
    assert torch.equal(seen.parameters, honest.parameters / 2)
    assert knowledge.granted() == {"pixel_range", "auxiliary_images"}  # no truth, though labels are granted later
    # The gradient is that of the halved model on the same images.
    job = attack_job(attack=IGOptimalDefense(iterations=1))
    findings = run(job)
    images, labels = findings.tensors["seed0/victims"], torch.tensor([[1, 2], [3, 4], [5, 6]])
    inputs = job.dataset.single().normalise(images)
    for row in range(3):
        expected = honest.gradient(honest.parameters / 2, inputs[row], labels[row])
        torch.testing.assert_close(seen.gradients[row], expected, rtol=1e-4, atol=1e-6)


def test_every_round_has_a_model_of_its_own(attack_job: Jobs, scaling: Scaling) -> None:
    run(attack_job(attack=scaling, knowledge=MALICIOUS, rounds=2))
    (first, _, _), (second, _, _) = scaling.given
    (seen,) = scaling.seen
    assert not torch.equal(first.parameters, second.parameters)
    for honest, of_round in ((first, seen), (second, seen.later[0])):
        assert torch.equal(of_round.parameters, honest.parameters / 2)


def test_passive_attacks_are_as_before_and_show_what_honest_models_look_like(attack_job: Jobs) -> None:
    plain = run(attack_job(knowledge=(*MALICIOUS[:2], "labels")))
    granted = run(attack_job(knowledge=(*MALICIOUS, "labels")))
    for one, other in zip(plain.replicates, granted.replicates, strict=True):
        assert {name: other.metrics[name] for name in one.metrics} == one.metrics
        assert other.metrics.keys() - one.metrics.keys() == VISIBILITY.keys()
        assert other.metrics["added_parameters"] == 0.0
    assert attack_job(knowledge=MALICIOUS).metrics.keys() - attack_job().metrics.keys() == VISIBILITY.keys()


def test_images_are_found_and_the_change_is_visible(attack_job: Jobs) -> None:
    findings = run(attack_job(attack=RobbingTheFed(), knowledge=MALICIOUS, seeds=(0, 1)))
    for replicate in findings.replicates:
        assert replicate.metrics["parallel_units"] == pytest.approx(1)
        assert replicate.metrics["stable_rank"] == pytest.approx(1)
        added = replicate.metrics["added_parameters"]
        assert isinstance(added, float) and added > 1
    assert mean_of(findings, "assigned_psnr") > 60


@pytest.mark.parametrize("secure", [None, SecureAggregation(width=64, fraction_bits=48)])
def test_sums_of_users(attack_job: Jobs, secure: SecureAggregation | None) -> None:
    """Most images of many users are exact, whether a protocol adds them up or not."""
    attack = RobbingTheFed(bins=256)
    findings = run(
        attack_job(attack=attack, knowledge=MALICIOUS, clients=2, users=8, batch_size=2, secure_aggregation=secure)
    )
    (replicate,) = findings.replicates
    values = replicate.metrics["assigned_psnr"]
    assert isinstance(values, list) and len(values) == 32
    exact = sum(value is not None and value > 45 for value in values) / 32
    assert exact > expected_alone(256, 16) - 0.15


UNDER_DEFENSES: list[tuple[str, dict[str, Any], float]] = [
    ("gaussian_noise", {"scale": 1e-3}, 20),
    ("clipped_noise", {"clip": 1.0, "scale": 1e-3}, 20),
    ("optimal_clipped_noise", {"clip": 1.0, "scale": 1e-3}, 17),
    ("laplace", {"form": "as_released_normaliser", "epsilon": 64}, 12),
    ("dp_sgd", {"multiplier": 1e-4}, 30),
    ("dp_psac", {"multiplier": 1e-4}, 30),
    ("magnitude_pruning", {"fraction": 0.5}, 12),
    ("optimal_pruning", {"fraction": 0.5}, 9),
    ("grad_drop", {"fraction": 0.5}, 12),
    ("random_mask", {"probability": 0.5}, 30),
    ("soteria", {"fraction": 0.6}, 60),
    ("sign_sgd", {"scale": "mean_abs"}, 6),
    ("qsgd", {"levels": 127}, 12),
    ("sdq", {"bits": 8}, 25),
    ("jopeq", {"mechanism": "scalar", "epsilon": 64}, 12),
    ("cdpa", {"variant": "as_printed", "layers": "last", "encodes": "gradient", "p": 0.9}, 60),
    ("cafl", {"epsilon": 1, "form": "as_printed", "fraction": 1.0}, 9),
    ("natural_channel", {"noise": "fresh", "kappa": 160}, 12),
]


@pytest.mark.parametrize(("defense", "parameters", "least"), UNDER_DEFENSES, ids=lambda value: str(value))
def test_under_defenses(attack_job: Jobs, defense: str, parameters: dict[str, Any], least: float) -> None:
    """Nothing crashes, all numbers are finite, and what leaks leaks."""
    kind: type[Defense] = DEFENSES.get(defense)
    findings = run(attack_job(kind, parameters, attack=RobbingTheFed(bins=64), knowledge=MALICIOUS))
    (replicate,) = findings.replicates
    assert replicate.outcome.status == "ok", replicate.outcome
    assert mean_of(findings, "assigned_psnr") > least
