"""Attack jobs on sums: several users' updates, averaged before the server sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import fmean
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError

from leakbench.attacks.adaptive import Masked, Weighted
from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.attacks.most_probable import MAP
from leakbench.attacks.presets import IGOptimalDefense
from leakbench.attacks.simulation import Likelihood
from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense
from leakbench.defenses.cdpa import CDPA
from leakbench.defenses.distributed_noise import DistributedNoise
from leakbench.defenses.gaussian_sampling import GaussianSampling
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.pruning import MagnitudePruning, RandomMask
from leakbench.federated.local import LocalTraining
from leakbench.federated.secure_training import SecureAggregation
from leakbench.federated.step import ClientSteps
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.runner import compute
from leakbench.models.base import build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.linear import MLP
from leakbench.randomness import Streams, stream_seed

Jobs = Callable[..., Job]
CPU = torch.device("cpu")
CLIENTS, USERS, BATCH = 3, 4, 2
BATCH_NORM: dict[str, Any] = {
    "iterations": 1,
    "objective": {"kind": "l2"},
    "optimiser": {"kind": "adam", "rate": 0.1},
    "batch_norm": "known",
}
SIGMOIDS = {"width": 40, "activation": "sigmoid"}
SECURE = SecureAggregation(width=64, fraction_bits=40)


class Onlooker(Attack):
    """Remembers what it was given, and answers with the truth, in the order that it is told."""

    name: ClassVar[str] = "onlooker"
    version: ClassVar[int] = 1
    given: ClassVar[list[tuple[Observations, Knowledge, Streams]]] = []
    truth: ClassVar[torch.Tensor]

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        self.given.append((observations, knowledge, streams))
        return Reconstruction(self.truth, None, torch.full((len(observations),), -1), knowledge.labels)


@pytest.fixture
def onlooker() -> Onlooker:
    Onlooker.given.clear()
    samples = Digits(size=8).load("test", range(1, 1 + CLIENTS * USERS * BATCH))
    Onlooker.truth = Digits(size=8).normalise(samples.values).unflatten(0, (CLIENTS, USERS * BATCH))
    return Onlooker()


def users_steps() -> ClientSteps:
    """All users of all clients, by hand."""
    digits = Digits(size=8)
    samples = digits.load("test", range(1, 1 + CLIENTS * USERS * BATCH))
    seed = stream_seed("digits8", 0, "initialisation")
    network = build_network(SimpleConvNet(width=4), digits.shape, digits.classes, seed)
    images = digits.normalise(samples.values).unflatten(0, (CLIENTS * USERS, BATCH))
    streams = Streams([("digits8", 0, "client", user) for user in range(CLIENTS * USERS)])
    return ClientSteps(network, network.parameters, images, samples.labels.unflatten(0, (-1, BATCH)), streams)


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def means(values: torch.Tensor) -> torch.Tensor:
    return torch.stack([values[place : place + USERS].mean(dim=0) for place in range(0, CLIENTS * USERS, USERS)])


def test_the_server_sees_the_gradient_of_all_samples(attack_job: Jobs, onlooker: Onlooker) -> None:
    findings = run(attack_job(attack=onlooker, users=USERS))
    ((observations, knowledge, _),) = onlooker.given
    steps = users_steps()
    whole = ClientSteps(
        steps.network,
        steps.parameters,
        steps.images.unflatten(0, (CLIENTS, USERS)).flatten(1, 2),
        steps.labels.unflatten(0, (CLIENTS, USERS)).flatten(1, 2),
        Streams([()] * CLIENTS),
    )
    assert torch.allclose(observations.gradients, whole.gradient, atol=1e-6)
    assert observations.batch_shape == (USERS * BATCH, 1, 8, 8)
    assert knowledge.labels is not None and knowledge.labels.equal(whole.labels)
    (replicate,) = findings.replicates
    assert isinstance(replicate.metrics["alignment"], list)
    assert replicate.metrics["alignment"] == pytest.approx([1.0] * CLIENTS, abs=1e-5)
    assert isinstance(replicate.metrics["psnr"], list) and len(replicate.metrics["psnr"]) == CLIENTS * USERS * BATCH
    assert replicate.metrics["label_accuracy"] == [1.0] * CLIENTS
    assert findings.tensors["seed0/victims"].shape == (CLIENTS, USERS * BATCH, 1, 8, 8)


def test_reconstructions_are_matched_across_users(attack_job: Jobs, onlooker: Onlooker) -> None:
    Onlooker.truth = Onlooker.truth.flip(1)
    findings = run(attack_job(attack=onlooker, users=USERS))
    assert findings.tensors["seed0/assignment"].tolist() == [[list(range(USERS * BATCH))[::-1]] * CLIENTS]
    (replicate,) = findings.replicates
    assigned, plain = replicate.metrics["assigned_mse"], replicate.metrics["mse"]
    assert isinstance(assigned, list) and isinstance(plain, list)
    assert max(value for value in assigned if value is not None) < 1e-9 < min(value for value in plain if value)


def test_every_user_draws_noise_of_its_own(attack_job: Jobs, onlooker: Onlooker) -> None:
    granted = ("labels", "pixel_range", "noise_variance")
    run(attack_job(GaussianNoise, {"scale": 0.5}, attack=onlooker, users=USERS, knowledge=granted))
    ((observations, knowledge, _),) = onlooker.given
    steps = users_steps()
    message = GaussianNoise(scale=0.5).protect_update(steps, steps.streams.child("defense"))
    assert torch.allclose(observations.gradients, means(message.view()), atol=1e-6)
    assert knowledge.noise_variance is not None
    assert torch.allclose(knowledge.noise_variance, torch.full_like(knowledge.noise_variance, 0.25 / USERS))
    measured = (observations.gradients - means(steps.gradient)).var()
    assert float(measured) == pytest.approx(0.25 / USERS, rel=0.1)


def test_noise_that_differs_between_users_averages(attack_job: Jobs, onlooker: Onlooker) -> None:
    granted = ("labels", "pixel_range", "noise_variance")
    parameters = {"batch": 1, "clip": 0.5}
    run(attack_job(GaussianSampling, parameters, attack=onlooker, users=USERS, knowledge=granted))
    ((_, knowledge, _),) = onlooker.given
    steps = users_steps()
    variance = GaussianSampling(**parameters).protect_update(steps, steps.streams.child("defense")).noise_variance
    assert variance is not None and knowledge.noise_variance is not None
    assert not torch.allclose(variance[0], variance[1])
    assert torch.allclose(knowledge.noise_variance, means(variance) / USERS)


def test_repeated_messages_are_means_too(attack_job: Jobs, onlooker: Onlooker) -> None:
    run(attack_job(GaussianNoise, {"scale": 0.5}, attack=onlooker, users=USERS, messages=3))
    ((observations, _, _),) = onlooker.given
    assert observations.repeats is not None and observations.repeats.shape[:2] == (CLIENTS, 3)
    assert observations.repeats[:, 0].equal(observations.gradients)
    steps = users_steps()
    noisy = GaussianNoise(scale=0.5).protect_update(steps, steps.streams.child("defense", 2)).view()
    assert torch.allclose(observations.repeats[:, 2], means(noisy), atol=1e-6)


def test_attackers_draw_as_they_do_without_a_sum(attack_job: Jobs, onlooker: Onlooker) -> None:
    run(attack_job(attack=onlooker, users=USERS))
    ((_, _, streams),) = onlooker.given
    assert streams.keys == [("digits8", 0, "client", client, "attack") for client in range(CLIENTS)]


@pytest.mark.parametrize("defense", [MagnitudePruning(fraction=0.5), GaussianNoise(scale=0.1)])
def test_the_protocol_gives_the_same_sum(attack_job: Jobs, onlooker: Onlooker, defense: Defense) -> None:
    for secure in (None, SECURE):
        run(
            attack_job(type(defense), dict(defense), attack=onlooker, users=USERS, secure_aggregation=secure),
        )
    (plain, *_), (decoded, *_) = onlooker.given
    assert not plain.gradients.equal(decoded.gradients)
    assert torch.allclose(plain.gradients, decoded.gradients, atol=1e-6)
    assert plain.marked is decoded.marked is None


def test_fixed_point_is_seen(attack_job: Jobs, onlooker: Onlooker) -> None:
    coarse = SecureAggregation(fraction_bits=4)
    findings = run(attack_job(attack=onlooker, users=USERS, secure_aggregation=coarse))
    ((observations, *_),) = onlooker.given
    steps = observations.gradients * USERS * 2**4
    assert torch.allclose(steps, steps.round(), atol=1e-4) and bool(steps.any())
    bits = findings.replicates[0].metrics["bits"]
    assert isinstance(bits, float) and bits > 32 * observations.network.dimension


def test_bits_of_a_clear_sum_are_those_that_a_user_sends(attack_job: Jobs) -> None:
    sparse = {"fraction": 0.9}
    alone, summed = (
        run(attack_job(MagnitudePruning, sparse, **users)).replicates[0].metrics["bits"]
        for users in ({}, {"users": USERS})
    )
    assert alone == summed


def test_one_user_is_what_it_was(attack_job: Jobs) -> None:
    jobs = [attack_job(), attack_job(users=1), attack_job(users=1, secure_aggregation=None)]
    assert len({job.digest for job in jobs}) == 1
    assert "users" not in jobs[0].resolved()["kind"]["protocol"]
    assert attack_job(users=2).resolved()["kind"]["protocol"]["users"] == 2
    assert attack_job(users=2).digest != jobs[0].digest
    alone, again = run(jobs[0]), run(attack_job(secure_aggregation=SECURE))
    assert alone.replicates == again.replicates  # one user is no sum


def test_users_are_swept(attack_job: Jobs) -> None:
    job = attack_job(attack=IGOptimalDefense(iterations=2), clients=1, batch_size=1)
    fixed = {key: value for key, value in dict(job.kind).items() if key != "users"}
    kinds = Variant(job.kind.name, type(job.kind), fixed, {"users": [1, 3]})
    findings = compute(replace(job, kind=next(iter(kinds.settings()))[1], kinds=kinds), CPU)
    assert [replicate.setting for replicate in findings.replicates] == [{"users": 1}, {"users": 3}]
    assert findings.tensors["users=3/seed0/victims"].shape[1] == 3


def test_matching_inverts_a_sum(attack_job: Jobs) -> None:
    search = {"objective": {"kind": "l2"}, "optimiser": {"kind": "lbfgs", "rate": 1.0, "line_search": "strong_wolfe"}}
    attack = GradientMatching(**search, iterations=200)
    job = replace(attack_job(attack=attack, clients=1, batch_size=1, users=2), model=Variant("mlp", MLP, SIGMOIDS, {}))
    (replicate,) = run(job).replicates
    found = replicate.metrics["assigned_psnr"]
    assert isinstance(found, list) and min(value or 0 for value in found) > 25


def test_who_runs_the_mechanism_of_every_user_sees_more_in_their_mean(attack_job: Jobs) -> None:
    """Half of each user's coordinates are dropped at random: no zero shows which."""

    def leaked(wrapped: bool) -> float:
        plain = MAP(iterations=150)
        attack = Likelihood(attack=plain) if wrapped else plain
        knowledge = ("labels", "pixel_range", "auxiliary_images", "mechanism")
        protocol = {"clients": 4, "batch_size": 1, "users": 2, "knowledge": knowledge, "auxiliary": 200}
        job = attack_job(RandomMask, {"probability": 0.5}, attack=attack, **protocol)
        (replicate,) = run(replace(job, model=Variant("mlp", MLP, SIGMOIDS, {}))).replicates
        found = replicate.metrics["assigned_psnr"]
        assert isinstance(found, list)
        return fmean(value or 0.0 for value in found)

    assert leaked(wrapped=True) > leaked(wrapped=False) + 1


@pytest.mark.parametrize(
    ("defense", "protocol", "reason"),
    [
        (CDPA(), {}, "aggregates messages in a way of its own"),
        (DistributedNoise(variance=0.1, users=3), {}, "is told of 3 users, and the protocol sums 4"),
        (None, {"local": LocalTraining(steps=2, rate=0.1)}, "local training is the update of no single batch"),
        (None, {"batch_norm": "train"}, "normalise with a batch each"),
        (
            None,
            {"attack": GradientMatching(**BATCH_NORM), "knowledge": ("labels", "batch_statistics")},
            "knows the statistics of one batch",
        ),
        (MagnitudePruning(fraction=0.5), {"attack": Masked(attack={"name": "tag"})}, "marks no coordinates"),
        (
            None,
            {"attack": Weighted(attack={"name": "tag"}), "knowledge": ("labels", "noise_variance")},
            "no noise of a known variance",
        ),
    ],
)
def test_what_makes_no_sense_in_a_sum(
    attack_job: Jobs, defense: Defense | None, protocol: dict[str, Any], reason: str
) -> None:
    kinds: tuple[Any, ...] = () if defense is None else (type(defense), dict(defense))
    findings = run(attack_job(*kinds, users=USERS, **protocol))
    (replicate,) = findings.replicates
    assert replicate.outcome.status == "infeasible"
    assert reason in (replicate.outcome.reason or "")


def test_nobody_drops_out() -> None:
    with pytest.raises(ValidationError, match="no user drops out"):
        AttackJob(clients=1, batch_size=1, users=4, secure_aggregation=SecureAggregation(early=0.1))


def test_the_threshold_fits_the_users() -> None:
    with pytest.raises(ValidationError, match="threshold 2 of 4 users; it is more than half of them, from 3 to 4"):
        AttackJob(clients=1, batch_size=1, users=4, secure_aggregation=SecureAggregation(threshold=2))


def test_a_guarantee_is_of_the_records_that_users_hold(attack_job: Jobs) -> None:
    told = {"variance": 1.0, "users": USERS, "records": BATCH}
    (ours,) = run(attack_job(DistributedNoise, told, users=USERS)).replicates
    assert ours.privacy is not None and ours.privacy["epsilon"] is not None
    (more,) = run(attack_job(DistributedNoise, told | {"records": 1200, "batch": BATCH}, users=USERS)).replicates
    assert more.privacy is not None and "set records to 2" in more.privacy["basis"]
    secure = SecureAggregation(colluders=1)
    (fewer,) = run(attack_job(DistributedNoise, told, users=USERS, secure_aggregation=secure)).replicates
    assert fewer.privacy is not None and "set users to 3 at most" in fewer.privacy["basis"]
