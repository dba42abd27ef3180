"""Jobs of kind membership: who is in which sum, what the server sees of it, and how well it tells."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
import torch
from pydantic import ValidationError

from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.cdpa import CDPA
from leakbench.defenses.channel import WhiteChannel
from leakbench.defenses.distributed_noise import DistributedNoise
from leakbench.defenses.dp_sgd import DPPSAC
from leakbench.defenses.gaussian_sampling import GaussianSampling
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.water_filling import WaterFilling
from leakbench.errors import ConfigError
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs import membership
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.membership import MEMBERSHIP_METRICS, SCORES, MembershipJob
from leakbench.jobs.pretraining import Pretraining
from leakbench.models.base import Model
from leakbench.models.lenet import LeNet
from leakbench.models.linear import Linear
from leakbench.randomness import Streams
from leakbench.records import Replicate
from leakbench.theory.aggregate_dp import Aggregation, information_bound, round_guarantee
from leakbench.theory.membership_bound import auc_bound
from leakbench.theory.noise_calibration import total_epsilon

CPU = torch.device("cpu")
SMALL: dict[str, Any] = {"users": (1, 2, 4), "records": 4, "trials": 2, "auxiliary": 16, "pool": 60}


class Watcher(Defense):
    """Sends the gradient, and remembers the steps."""

    name: ClassVar[str] = "watcher"
    version: ClassVar[int] = 1
    seen: ClassVar[list[tuple[ClientSteps, torch.Tensor]]] = []

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        self.seen.append((steps, streams.uniform(1)))
        return DenseMessage(steps.gradient)


def job_of(
    defense: type[Defense] = NoDefense,
    parameters: Mapping[str, Any] | None = None,
    sweep: Mapping[str, list[Any]] | None = None,
    *,
    seeds: tuple[int, ...] = (0,),
    model: Model | None = None,
    **protocol: Any,
) -> Job:
    model = model or Linear()
    return Job(
        scale="test",
        paper="paper",
        experiment="experiment",
        dataset=Variant("digits8", Digits, {"size": 8}, {}),
        model=Variant("model", type(model), dict(model), {}),
        defense=Variant("defense", defense, parameters or {}, sweep or {}),
        attack=None,
        kind=MembershipJob(**{**SMALL, **protocol}),
        part="all",
        seeds=seeds,
    )


def run(*arguments: Any, **protocol: Any) -> Findings:
    job = job_of(*arguments, **protocol)
    return job.kind.run(job, CPU)


def by_users(replicates: list[Replicate], metric: str, **setting: Any) -> dict[Any, Any]:
    return {
        each.setting["users"]: each.metrics[metric]
        for each in replicates
        if all(each.setting[key] == value for key, value in setting.items())
    }


@pytest.fixture
def steps_seen() -> list[tuple[ClientSteps, torch.Tensor]]:
    Watcher.seen.clear()
    return Watcher.seen


@pytest.mark.parametrize("model", [Linear(), LeNet()])
def test_a_small_sum_shows_its_records_and_a_large_one_less(model: Model) -> None:
    strong = {"users": (1, 2, 8, 32), "records": 8, "trials": 20, "auxiliary": 512, "pool": None}
    replicates = run(model=model, **strong).replicates
    found, plain = by_users(replicates, "auc/likelihood"), by_users(replicates, "auc/cosine")
    assert found[1] > 0.97 and found[2] > 0.93
    assert found[1] > found[2] > found[8] > found[32] > 0.55
    assert all(found[users] > plain[users] for users in found)


def test_noise_brings_it_to_chance() -> None:
    levels = {"variance": [1e-6, 1e3]}
    for defense, parameters in ((DistributedNoise, {}), (WaterFilling, {"batch": 4})):
        protocol = {"users": (1, 4), "records": 8, "trials": 20, "auxiliary": 256, "pool": 600}
        replicates = run(defense, {"clip": 5.0, **parameters}, levels, **protocol).replicates
        for users in (1, 4):
            low, high = (by_users(replicates, f"auc_{end}/likelihood", variance=1e3)[users] for end in ("low", "high"))
            assert low < 0.5 < high
            assert by_users(replicates, "auc_low/likelihood", variance=1e-6)[users] > 0.6


def test_sampling_alone_does_not_hide_records() -> None:
    protocol = {"users": (1, 4), "records": 8, "trials": 20, "auxiliary": 256, "pool": 600}
    found = by_users(run(GaussianSampling, {"batch": 4, "clip": 100.0}, **protocol).replicates, "auc_low/likelihood")
    assert found[1] > 0.75 and found[4] > 0.6


def test_who_is_in_which_sum(steps_seen: list[tuple[ClientSteps, torch.Tensor]]) -> None:
    for seeds, users in (((0, 1), (1, 2, 4)), ((0,), (3,))):
        run(Watcher, seeds=seeds, users=users)
    (first, _), (second, _), (other_seed, _), _, (fewer, _), _ = steps_seen
    images = first.images.flatten(0, 1).flatten(1)
    assert first.images.shape[:2] == (4, 4)
    assert len(images.unique(dim=0)) == 16  # users share no record
    others = other_seed.images.flatten(0, 1).flatten(1)
    same = (images[:, None] == others).all(dim=2)
    assert int(same.sum()) < 8, "each seed draws records anew, of a train split of 1,297"
    assert not other_seed.parameters.equal(first.parameters)
    assert fewer.images.equal(first.images[:3])
    assert not second.images.equal(first.images)
    draws = [draw for _, draw in steps_seen]
    assert len(torch.cat(draws[:4]).unique()) == 16 and draws[4].equal(draws[0][:3])


def test_gradients_are_those_of_the_users_records(steps_seen: list[tuple[ClientSteps, torch.Tensor]]) -> None:
    run(Watcher, batch=3)
    (known, _), _ = steps_seen
    assert known.images.shape[:2] == (4, 3)
    plain = ClientSteps(known.network, known.parameters, known.images, known.labels, known.streams)
    assert torch.allclose(known.gradient, plain.gradient, atol=1e-6)
    assert torch.allclose(known.loss, plain.loss, atol=1e-6)
    assert torch.allclose(known.per_sample_gradient, plain.per_sample_gradient, atol=1e-6)


def test_scores_are_of_means_over_the_first_users(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[int, torch.Tensor] = {}
    asked: list[torch.Tensor] = []
    true = membership._Judge.scores

    def scores(self: Any, means: torch.Tensor, defense: Any, mechanism: Any, users: int) -> torch.Tensor:
        seen[users] = means
        found = true(self, means, defense, mechanism, users)
        gradients = self._population.gradients[self._rows]
        inner = torch.einsum("tcd,td->tc", gradients, means)
        assert torch.allclose(found[0].float(), inner, atol=1e-5)
        lengths = gradients.norm(dim=2) * means.norm(dim=1, keepdim=True)
        assert torch.allclose(found[1].float(), inner / lengths, atol=1e-5)
        asked.append(self._rows)
        return found

    monkeypatch.setattr(membership._Judge, "scores", scores)
    Watcher.seen.clear()
    run(Watcher)
    for trial, (steps, _) in enumerate(Watcher.seen):
        for users in (1, 2, 4):
            assert torch.allclose(seen[users][trial], steps.gradient[:users].mean(dim=0), atol=1e-6)
    rows = asked[0]
    assert rows.shape == (2, 8) and int(rows.min()) >= 16  # the server's own are not asked about
    assert all(len(set(trial.tolist())) == 8 for trial in rows)


def test_clipped_gradients_are_what_is_looked_for() -> None:
    """At a tiny clip all gradients have one length, so that inner product and cosine agree within a trial."""
    replicates = run(DistributedNoise, {"clip": 1e-3, "variance": 1e-20}, trials=1, candidates=4).replicates
    for metric in ("auc", "auc_low", "auc_high"):
        assert by_users(replicates, f"{metric}/inner") == by_users(replicates, f"{metric}/cosine")


def test_settings_with_other_factors_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    factors: list[torch.Tensor] = []
    true = membership._Judge._clipped

    def clipped(self: Any, defense: Defense) -> Any:
        found = true(self, defense)
        factors.append(found[0])
        return found

    monkeypatch.setattr(membership._Judge, "_clipped", clipped)
    run(DPPSAC, {"clip": 1e-3, "multiplier": 1.0}, {"r": [0.01, 1.0]}, trials=1, candidates=4)
    assert len({tuple(each.tolist()) for each in factors}) == 2


def test_only_what_is_drawn_leaves_a_trace() -> None:
    protocol = {"records": 8, "batch": 2, "trials": 30, "auxiliary": 256, "pool": 300, "users": (1,)}
    (replicate,) = run(**protocol).replicates
    drawn, every = replicate.metrics["auc_drawn/likelihood"], replicate.metrics["auc/likelihood"]
    assert isinstance(drawn, float) and isinstance(every, float)
    assert drawn > 0.97
    assert every == pytest.approx(drawn / 4 + 0.5 * 3 / 4, abs=0.1)  # a quarter is drawn
    (whole,) = run(**protocol | {"batch": 8}).replicates
    assert whole.metrics["auc_drawn/inner"] == whole.metrics["auc/inner"]


def test_what_is_stated() -> None:
    findings = run(DistributedNoise, {"clip": 2.0, "variance": 4.0}, delta=1e-3)
    assert set(findings.replicates[0].metrics) == set(MEMBERSHIP_METRICS)
    epsilons = by_users(findings.replicates, "epsilon")
    assert epsilons[1] is None
    for users in (2, 4):
        expected = total_epsilon(Aggregation(users, 4, 4, 2.0), 4.0, 1, 1e-3, "gd")
        assert epsilons[users] == pytest.approx(expected)
        assert by_users(findings.replicates, "auc_bound")[users] == pytest.approx(auc_bound(epsilons[users], 1e-3))
    (one, two, _) = findings.replicates
    assert "of the update of one user" in one.reasons["epsilon"]
    assert one.metrics["information_bound"] is None and "eq. 9" in one.reasons["information_bound"]
    assert two.metrics["information_bound"] == pytest.approx(information_bound(2, 4, 650))
    assert two.metrics["dimension"] == 650 and two.privacy is not None and two.privacy["delta"] == 1e-3


def test_the_guarantee_of_batches_is_amplified() -> None:
    noise = {"clip": 2.0, "variance": 4.0}
    whole, part = (by_users(run(DistributedNoise, noise | more).replicates, "epsilon") for more in ({}, {"batch": 2}))
    expected = round_guarantee(Aggregation(4, 4, 2, 2.0), 4.0, 1e-5, "sgd").epsilon
    assert part[4] == pytest.approx(expected, rel=0.05) and part[4] != whole[4]


def test_gradients_of_few_records_leave_the_span_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(by_users(run().replicates, "leaving").values()) == {1.0}
    monkeypatch.setattr(membership, "SPAN_LIMIT", 8)
    replicates = run().replicates
    assert by_users(replicates, "leaving") == {1: 1.0, 2: 1.0, 4: None}
    assert "more than 8 records" in replicates[-1].reasons["leaving"]


def test_settings_and_seeds() -> None:
    findings = run(GaussianNoise, sweep={"scale": [0.0, 0.1]}, seeds=(0, 3))
    found = [(each.seed, each.setting) for each in findings.replicates]
    expected = [{"scale": scale, "users": users} for scale in (0.0, 0.1) for users in (1, 2, 4)]
    assert found == [(seed, setting) for seed in (0, 3) for setting in expected]
    again = run(GaussianNoise, sweep={"scale": [0.0, 0.1]}, seeds=(0, 3))
    assert again.replicates == findings.replicates
    alone = run(GaussianNoise, sweep={"scale": [0.1]}, seeds=(3,), users=(1, 4))
    assert [each.metrics for each in alone.replicates] == [findings.replicates[place].metrics for place in (9, 11)]
    for name in SCORES:
        assert all(0 <= by_users(alone.replicates, f"tpr/{name}")[users] <= 1 for users in (1, 4))


def test_a_trained_model(steps_seen: list[tuple[ClientSteps, torch.Tensor]]) -> None:
    training = Pretraining(samples=32, batch_size=8, rate=0.1)
    run(Watcher, epoch=2, pretraining=training)
    run(Watcher)
    trained, untrained = steps_seen[0][0], steps_seen[2][0]
    assert not trained.parameters.equal(untrained.parameters)
    before = Digits(size=8).normalise(Digits(size=8).load("train", range(32)).values).flatten(1)
    distances = torch.cdist(trained.images.flatten(0, 1).flatten(1), before)
    assert float(distances.min()) > 1e-3  # users hold none of the records that it was trained on


def test_training_that_diverges() -> None:
    training = Pretraining(samples=32, batch_size=8, rate=1e38)
    replicates = run(epoch=2, pretraining=training).replicates
    assert len(replicates) == 3
    for replicate in replicates:
        assert replicate.outcome.status == "diverged" and set(replicate.metrics.values()) == {None}


@pytest.mark.parametrize(
    ("defense", "parameters", "reason"),
    [
        (CDPA, {}, "aggregates messages in a way of its own"),
        (WhiteChannel, {"kappa": 5}, "acts on images"),
        (DistributedNoise, {"variance": 1.0, "users": 4}, "is told of 4 users; the protocol says"),
        (DistributedNoise, {"variance": 1.0, "batch": 9}, "takes batches of 9, and a user has 4 records"),
        (GaussianSampling, {"batch": 9}, "B is at most D"),
        (GaussianSampling, {"batch": 2, "records": 7}, "is told of 7 records"),
    ],
)
def test_infeasible(defense: type[Defense], parameters: dict[str, Any], reason: str) -> None:
    replicates = run(defense, parameters).replicates
    assert [each.setting for each in replicates] == [{"users": users} for users in (1, 2, 4)]
    for replicate in replicates:
        assert replicate.outcome.status == "infeasible" and reason in (replicate.outcome.reason or "")
        assert set(replicate.metrics) == set(MEMBERSHIP_METRICS) == set(replicate.reasons)


def test_too_few_records() -> None:
    for protocol in ({"pool": 10}, {"pool": 5000}, {"pool": None, "auxiliary": 1290}):
        with pytest.raises(ConfigError, match="membership takes"):
            run(**protocol)


@pytest.mark.parametrize(
    ("protocol", "message"),
    [
        ({"users": (2, 2)}, "each once"),
        ({"users": (0,)}, "1 or more"),
        ({"batch": 5}, "batch \\(5\\) must be at most records"),
        ({"candidates": 5}, "candidates \\(5\\) must be at most records"),
        ({"trials": 1, "candidates": 1}, "no ROC curve"),
        ({"epoch": 1}, "say how many"),
    ],
)
def test_protocols_that_make_no_sense(protocol: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MembershipJob(**{**SMALL, **protocol})


def test_one_drawn_member_has_no_curve() -> None:
    (replicate,) = run(users=(2,), batch=1, trials=1).replicates
    assert replicate.metrics["auc_drawn/inner"] is None and "fewer than two" in replicate.reasons["auc_drawn/inner"]
    assert isinstance(replicate.metrics["auc/inner"], float) and math.isfinite(replicate.metrics["auc/inner"])
