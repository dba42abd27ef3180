"""Attack jobs of several rounds: what clients send under successive models, and what an attacker makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from leakbench.attacks.adaptive import Weighted
from leakbench.attacks.analytic import Analytic
from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.bits import Averaged
from leakbench.attacks.presets import IGOptimalDefense
from leakbench.attacks.simulation import Simulated
from leakbench.data.embedded import Digits
from leakbench.defenses.base import ClientState, Defense, NoDefense, PrivacyStatement, Round, Schedule
from leakbench.defenses.channel import NaturalChannel
from leakbench.defenses.noise import ClippedNoise, GaussianNoise
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.pretraining import Pretraining, trajectory
from leakbench.models.base import Model
from leakbench.models.convnets import ConvNet
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams
from leakbench.records import Replicate

AttackJobs = Callable[..., Job]
CPU = torch.device("cpu")
SCHEDULE = Pretraining(samples=64, batch_size=8, rate=0.1)
TRAINED = {"epoch": 1, "pretraining": SCHEDULE}


class Spy(Attack):
    """Remembers what it was given."""

    name: ClassVar[str] = "spy"
    version: ClassVar[int] = 1
    given: ClassVar[list[tuple[Observations, Knowledge]]] = []

    @property
    def several_models(self) -> bool:
        return True

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        self.given[:] = [(observations, knowledge)]
        images = torch.zeros(len(observations), *observations.batch_shape)
        return Reconstruction(images, None, torch.full((len(observations),), -1))


class Counting(Defense):
    """Carries a number of rounds, which scales what is sent."""

    name: ClassVar[str] = "counting"
    version: ClassVar[int] = 1

    def initial_state(self, steps: ClientSteps) -> ClientState:
        return {"rounds": torch.ones(len(steps))}

    def protect_round(self, steps: ClientSteps, round: Round) -> tuple[Message, ClientState]:
        return DenseMessage(steps.gradient * round.state["rounds"][:, None]), {"rounds": round.state["rounds"] + 1}

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement(epsilon=float(schedule.rounds), delta=0.0, basis="counted")


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def watched(job: Job) -> tuple[Observations, Knowledge]:
    run(job)
    (given,) = Spy.given
    return given


def job_of(model: type[Model], width: int, defense: Defense, attack: Attack, **protocol: Any) -> Job:
    given = {"clients": 6, "batch_size": 1, "auxiliary": 16, **protocol}
    return Job(
        scale="test",
        paper="paper",
        experiment="experiment",
        dataset=Variant("digits8", Digits, {"size": 9 if model is ConvNet else 8}, {}),
        model=Variant("model", model, {"width": width}, {}),
        defense=Variant("defense", type(defense), dict(defense), {}),
        attack=Variant("attack", type(attack), dict(attack), {}),
        kind=AttackJob(**given),
        part="all",
        seeds=(0, 1),
    )


def test_models_are_states_of_one_training(attack_job: AttackJobs) -> None:
    """Every round: the gradients of the same images at the model that trained for some more steps."""
    protocol: dict[str, Any] = {"rounds": 3, "rounds_apart": 4, **TRAINED}
    observations, knowledge = watched(attack_job(attack=Spy(), **protocol))
    first, _ = watched(attack_job(attack=Spy(), **TRAINED))
    assert torch.equal(observations.gradients, first.gradients) and len(observations.later) == 2
    assert first.later == () and knowledge.of_later is not None and len(knowledge.of_later) == 2
    digits = Digits(size=8)
    samples = digits.load("test", range(1, 7))
    inputs, labels = digits.normalise(samples.values).unflatten(0, (3, 2)), samples.labels.unflatten(0, (3, 2))
    untrained, _ = watched(attack_job(attack=Spy()))
    states = trajectory(untrained.network, digits, "digits8", 0, 1, SCHEDULE, CPU, states=3, apart=4)
    for seen, state in zip((observations, *observations.later), states, strict=True):
        assert torch.equal(seen.parameters[0], state.parameters)
        for client in range(3):
            gradient = state.gradient(state.parameters, inputs[client], labels[client])
            torch.testing.assert_close(seen.gradients[client], gradient, rtol=1e-4, atol=1e-6)


def test_noise_is_fresh_and_state_goes_on(attack_job: AttackJobs) -> None:
    protocol: dict[str, Any] = {"rounds": 3, "attack": Spy(), "rounds_apart": 2}
    noisy, _ = watched(attack_job(GaussianNoise, {"scale": 0.5}, messages=2, **protocol))
    clean, _ = watched(attack_job(**protocol))
    noise = []
    for seen, exact in zip((noisy, *noisy.later), (clean, *clean.later), strict=True):
        assert seen.repeats is not None and seen.repeats.shape[1] == 2
        noise += list((seen.repeats - exact.gradients[:, None]).unbind(dim=1))
    draws = torch.stack(noise).flatten(1)
    assert draws.std(dim=1).tolist() == pytest.approx([0.5] * 6, rel=0.1)
    assert float(draws.corrcoef().fill_diagonal_(0).abs().max()) < 0.15
    counted, _ = watched(attack_job(Counting, **protocol))
    for number, (seen, exact) in enumerate(zip((counted, *counted.later), (clean, *clean.later), strict=True), 1):
        torch.testing.assert_close(seen.gradients, number * exact.gradients)
    (replicate,) = run(attack_job(Counting, **protocol)).replicates
    assert replicate.privacy is not None and replicate.privacy["epsilon"] == 3


def test_noise_that_is_drawn_once_stays(attack_job: AttackJobs) -> None:
    """Clients of a channel hold noisy images, the same ones in every round."""
    protocol: dict[str, Any] = {"attack": Spy(), "rounds": 2}
    seen, _ = watched(attack_job(NaturalChannel, {"kappa": 5}, **protocol))
    untrained = Pretraining(rate=1e-12)  # so that models hardly differ
    still, _ = watched(attack_job(NaturalChannel, {"kappa": 5}, pretraining=untrained, **protocol))
    torch.testing.assert_close(still.later[0].gradients, still.gradients, rtol=1e-3, atol=1e-5)
    assert not torch.allclose(seen.later[0].gradients, seen.gradients, rtol=1e-2, atol=1e-3)


def test_what_is_known_of_every_round(attack_job: AttackJobs) -> None:
    granted = ("labels", "noise_variance")
    _, known = watched(attack_job(GaussianNoise, {"scale": 0.5}, attack=Spy(), rounds=2, knowledge=granted))
    assert known.granted() == set(granted) and known.of_later is not None
    for variance in (known.noise_variance, known.of_later[0].noise_variance):
        assert variance is not None and variance.unique().tolist() == [0.25]
    _, without = watched(attack_job(GaussianNoise, {"scale": 0.5}, attack=Spy(), rounds=2, knowledge=("labels",)))
    assert without.of_later is not None and without.of_later[0].noise_variance is None


def test_means_of_users(attack_job: AttackJobs) -> None:
    protocol: dict[str, Any] = {"attack": Spy(), "rounds": 2, "batch_size": 1}
    summed, _ = watched(attack_job(clients=2, users=3, **protocol))
    alone, _ = watched(attack_job(clients=6, **protocol))
    for mean, each in ((summed, alone), (summed.later[0], alone.later[0])):
        torch.testing.assert_close(
            mean.gradients, each.gradients.unflatten(0, (2, 3)).mean(dim=1), rtol=1e-4, atol=1e-6
        )


def test_running_statistics_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds whose BatchNorm layers trained between rounds are not stacked; every round has its own statistics."""
    job = job_of(ConvNet, 2, NoDefense(), Spy(), rounds=2, pretraining=SCHEDULE)
    observations, _ = watched(job)
    assert observations.parameters.dim() == 1
    first, second = (each.network.running_statistics for each in (observations, observations.later[0]))
    assert all(not torch.equal(first[name], second[name]) for name in first) and first
    found = run(job_of(ConvNet, 2, NoDefense(), IGOptimalDefense(iterations=3), rounds=2)).replicates
    assert [replicate.outcome.status for replicate in found] == ["ok", "ok"]


@pytest.mark.parametrize("attack", [IGOptimalDefense(iterations=8), Simulated(attack=IGOptimalDefense(iterations=4))])
def test_a_seed_alone_gives_the_same(attack_job: AttackJobs, attack: Attack) -> None:
    protocol: dict[str, Any] = {"rounds": 2, "attack": attack, "knowledge": ("labels", "pixel_range", "mechanism")}
    together = run(attack_job(MagnitudePruning, {"fraction": 0.5}, seeds=(0, 1), **protocol))
    alone = run(attack_job(MagnitudePruning, {"fraction": 0.5}, seeds=(1,), **protocol))
    key = "seed1/reconstructions"
    torch.testing.assert_close(alone.tensors[key], together.tensors[key], rtol=0, atol=1e-4)


def test_effort_counts_rounds(attack_job: AttackJobs) -> None:
    """Updates of all rounds, the steps between their models, and a search that matches each."""
    one, three = (attack_job(rounds=rounds, rounds_apart=5).effort.passes for rounds in (1, 3))
    between = 2 * 5 * Pretraining().batch_size
    assert three - between == 3 * one
    first = attack_job(attack=Analytic(), batch_size=1)
    several = attack_job(attack=Analytic(), batch_size=1, rounds=3, rounds_apart=5)
    assert several.effort.passes - first.effort.passes == between + 2 * 3  # the updates of three clients alone


def test_attackers_that_know_one_round_look_at_the_first(attack_job: AttackJobs) -> None:
    one, two = (run(attack_job(attack=Analytic(), batch_size=1, rounds=rounds)) for rounds in (1, 2))
    assert one.replicates == two.replicates


def test_by_default_there_is_one_round() -> None:
    plain, said = AttackJob(clients=3, batch_size=2), AttackJob(clients=3, batch_size=2, rounds=1, rounds_apart=10)
    assert plain.parameters() == said.parameters() and "rounds" not in plain.parameters()
    assert AttackJob(clients=3, batch_size=2, rounds=2).parameters()["rounds"] == 2


def errors(findings: Findings) -> list[float]:
    def mean(replicate: Replicate) -> float:
        values = replicate.metrics["mse"]
        assert isinstance(values, list)
        return sum(float(value or 0) for value in values) / len(values)

    return [mean(replicate) for replicate in findings.replicates]


SEARCH = IGOptimalDefense(iterations=80)


@pytest.mark.slow
def test_two_rounds_tell_more_than_one_under_noise() -> None:
    """As a second message of the same model does, which averaging takes in."""
    noise = GaussianNoise(scale=0.02)
    one = errors(run(job_of(LeNet, 4, noise, SEARCH)))
    two = errors(run(job_of(LeNet, 4, noise, SEARCH, rounds=2)))
    same = errors(run(job_of(LeNet, 4, noise, Averaged(attack=SEARCH, statistic="mean"), messages=2)))
    for error, later, again in zip(one, two, same, strict=True):
        assert later < 0.85 * error and again < 0.85 * error


@pytest.mark.slow
def test_other_models_tell_what_a_repeated_message_does_not() -> None:
    """A pruned gradient is the same in every message of one model, and another one under the next model."""
    pruned, protocol = MagnitudePruning(fraction=0.97), {"pretraining": Pretraining(rate=0.05)}
    one = errors(run(job_of(LeNet, 4, pruned, SEARCH, **protocol)))
    same = errors(run(job_of(LeNet, 4, pruned, Averaged(attack=SEARCH, statistic="mean"), messages=2, **protocol)))
    four = errors(run(job_of(LeNet, 4, pruned, SEARCH, rounds=4, rounds_apart=50, **protocol)))
    assert same == pytest.approx(one, rel=1e-3)
    assert sum(four) < 0.9 * sum(one)


def test_weights_of_every_round(attack_job: AttackJobs) -> None:
    protocol: dict[str, Any] = {"rounds": 2, "knowledge": ("labels", "pixel_range", "noise_variance")}
    attack = Weighted(attack=IGOptimalDefense(iterations=3))
    (replicate,) = run(attack_job(ClippedNoise, {"clip": 1.0, "scale": 0.1}, attack=attack, **protocol)).replicates
    assert replicate.outcome.status == "ok"


def test_gradients_of_all_rounds_are_counted(attack_job: AttackJobs) -> None:
    protocol: dict[str, Any] = {"attack": IGOptimalDefense(iterations=3), "budget": True, "batch_size": 1}
    jobs = (attack_job(**protocol), attack_job(**protocol, rounds=3))
    once, thrice = (run(job).replicates[0].metrics["evaluations"] for job in jobs)
    assert isinstance(once, float) and thrice == 3 * once
