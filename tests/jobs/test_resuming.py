"""Jobs that are killed after every few steps end with the numbers of a job that nobody killed, bit for bit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from tests.jobs.test_federate_job import make as federate_job
from tests.jobs.test_inverter_job import inverter_job
from tests.jobs.test_language_model_job import language_job
from tests.jobs.test_prior_job import prior_job
from tests.jobs.test_release import release_job
from tests.jobs.test_text_attack_job import MATCHING, MakeJob, text_job
from tests.papers.secagg_dp.test_spectrum_job import job as spectrum_job
from tests.papers.tfl_meta.test_leakage_job import job_of as leakage_job

from leakbench.attacks import engine
from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.attacks.presets import DLGWolfe
from leakbench.attacks.sentences import SentenceMatching
from leakbench.defenses.base import ClientState, Defense, Round
from leakbench.defenses.channel import WhiteChannel
from leakbench.defenses.clients import DefendedClients
from leakbench.defenses.dp_sgd import DPSGD
from leakbench.defenses.error_feedback import EFSignSGD, GradDropWithResidual
from leakbench.defenses.noise import GaussianNoise
from leakbench.federated import gradients
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps
from leakbench.jobs import runner
from leakbench.jobs.base import Job
from leakbench.jobs.federate import FederateJob
from leakbench.jobs.pretraining import Pretraining
from leakbench.jobs.release import ReleaseJob
from leakbench.jobs.runner import Placement, run_job
from leakbench.models.convnets import ConvNet
from leakbench.models.lenet import LeNet
from leakbench.models.resnet import ResNet10
from leakbench.records import Record, read_tensors
from leakbench.running.checkpoint import EVERY, Loop, _Job

__all__ = ["text_job"]  # a fixture

Jobs = Callable[..., Job]
CPU = Placement(device="cpu")
MEASURED = {"local_wall_s", "local_cpu_s", "defense_wall_s", "defense_cpu_s", "aggregation_wall_s", "aggregation_cpu_s"}
MEASURED |= {"seconds", "energy_kwh", "carbon_kg", "carbon_formula_kg"}


@pytest.fixture(autouse=True)
def _disk_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of checkpoints need not reach the disk: the process lives on."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


class Killed(BaseException):
    """What a SIGKILL would be, in one process."""


def killed_every(steps: int, work: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, int]:
    """What comes out when each attempt is killed after so many steps of loops, and how many attempts were."""
    monkeypatch.setenv(EVERY, "0")
    after_step, left = _Job.after_step, 0

    def killing(self: _Job, loop: Loop, state: Any) -> None:
        nonlocal left
        after_step(self, loop, state)
        left -= 1
        if left == 0:
            raise Killed

    monkeypatch.setattr(_Job, "after_step", killing)
    for attempt in range(200):
        left = steps
        try:
            return work(), attempt
        except Killed:
            continue
    raise AssertionError("it never ends")


def numbers(record: Record) -> list[dict[str, Any]]:
    """The replicates, without what is measured."""
    found = [replicate.model_dump() for replicate in record.replicates]
    for replicate in found:
        replicate["metrics"] = {name: value for name, value in replicate["metrics"].items() if name not in MEASURED}
    return found


def check(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, attempts: int) -> None:
    """A job that was killed so often made the record of one that was not, and left nothing else."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    expected = run_job(job, whole, CPU)
    with monkeypatch.context() as patched:
        found, killed = killed_every(every, lambda: run_job(job, broken, CPU), patched)
    assert killed >= attempts
    assert numbers(found) == numbers(expected)
    assert (found.tensors is None) == (expected.tensors is None)
    if found.tensors and expected.tensors:
        ours, theirs = (
            read_tensors(root / job.path, each) for root, each in ((broken, found.tensors), (whole, expected.tensors))
        )
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert not (broken / "work").exists()


ADAM = {"kind": "adam", "rate": 0.1, "signed": True}
DESCENTS: dict[str, dict[str, Any]] = {
    "adam": {"optimiser": ADAM, "iterations": 9, "keep": "best", "restarts": 2},
    "stopping": {"optimiser": ADAM, "iterations": 9, "stop_below": 0.9},
    "lbfgs": {"optimiser": {"kind": "lbfgs", "history": 3}, "iterations": 9},
    "line_search": {"optimiser": {"kind": "lbfgs", "history": 3, "line_search": "strong_wolfe"}, "iterations": 17},
}


@pytest.mark.parametrize("kind", DESCENTS)
def test_descents(kind: str, attack_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = GradientMatching.model_validate(DESCENTS[kind] | {"objective": {"kind": "cosine"}})
    job = attack_job(GaussianNoise, {"scale": 1e-3}, attack=attack, clients=2, knowledge=("labels", "pixel_range"))
    check(job, tmp_path, monkeypatch, every=2, attempts=4)


def test_chunks(attack_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some trials after the others; a chunk that did not fit is halved, and stays so when the job goes on."""
    monkeypatch.setattr(engine, "chunk_size", lambda *_: 4)
    evaluation, seen = engine.evaluation, []

    def small(cost: engine.Cost, *, vectorised: bool) -> engine.Evaluation:
        evaluate = evaluation(cost, vectorised=vectorised)

        def limited(points: torch.Tensor, data: engine.TrialData) -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(len(points))
            if len(points) > 2:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
            return evaluate(points, data)

        return limited

    monkeypatch.setattr(engine, "evaluation", small)
    attack = GradientMatching.model_validate(DESCENTS["adam"] | {"objective": {"kind": "cosine"}, "iterations": 4})
    check(attack_job(attack=attack, clients=3), tmp_path, monkeypatch, every=1, attempts=12)
    assert seen.count(4) == 2, "once in each of the two runs"


def test_sentences_in_other_orders(text_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = SentenceMatching(**MATCHING, starts=3, reordering={"fluency": 0.0, "every": 2, "candidates": 4})
    check(text_job(attack, clients=2), tmp_path, monkeypatch, every=3, attempts=2)


@pytest.mark.parametrize(
    "protocol",
    [
        {"optimiser": "adam", "sampling": "shuffled"},
        {"optimiser": "sgd", "sampling": "independent", "noise_per_tensor": True},
        {"secure_aggregation": {"threshold": 2, "dropout": 0.4}, "clients": 3, "steps": 4},
        {"rate": 1e30},
    ],
)
def test_rounds_of_train(
    protocol: dict[str, Any], train_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = train_job(GaussianNoise, {}, {"scale": [0.01, 0.1]}, seeds=(0, 1), **protocol)
    check(job, tmp_path, monkeypatch, every=1, attempts=4)


class Debt(Defense):
    """Send what exceeds a threshold, and in a later round the rest."""

    name: ClassVar[str] = "debt"
    version: ClassVar[int] = 1
    threshold: float = 0.01

    def initial_state(self, steps: ClientSteps) -> ClientState:
        return {"owed": torch.zeros_like(steps.gradient)}

    def protect_round(self, steps: ClientSteps, round: Round) -> tuple[Message, ClientState]:
        due = steps.gradient + round.state["owed"]
        sent = torch.where(due.abs() > self.threshold, due, 0.0)
        return DenseMessage(sent), {"owed": due - sent}


def test_clients_with_a_state(train_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a client owes is a part of every checkpoint of training."""
    job = train_job(Debt, {}, {"threshold": [0.01, 0.1]}, seeds=(0, 1))
    check(job, tmp_path, monkeypatch, every=1, attempts=4)


@pytest.mark.parametrize(
    ("defense", "sweep"),
    [(GradDropWithResidual, {"fraction": [0.5, 0.9]}), (EFSignSGD, {"scale": ["update", "tensor"]})],
)
def test_error_feedback(
    defense: type[Defense], sweep: dict[str, Any], train_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = train_job(defense, {}, sweep, seeds=(0, 1))
    check(job, tmp_path, monkeypatch, every=1, attempts=4)
    with monkeypatch.context() as forgetful:
        forgetful.setattr(DefendedClients, "restore", lambda *_: None)
        with pytest.raises(AssertionError):
            check(replace(job, experiment="forgotten"), tmp_path, monkeypatch, every=1, attempts=4)


def test_clients_with_a_state_that_train_locally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = federate_job(Debt, {"threshold": [0.01, 0.1]}, local={"steps": 3, "batch_size": 4, "rate": 0.1})
    check(job, tmp_path, monkeypatch, every=5, attempts=2)


@pytest.mark.parametrize("keep_momentum", [False, True])
def test_rounds_of_federate(keep_momentum: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed among the local steps of a round, and between rounds; BatchNorm's statistics among the state."""
    local = {"steps": 3, "batch_size": 4, "rate": 0.1, "momentum": 0.9, "keep_momentum": keep_momentum}
    job = federate_job(GaussianNoise, parameters={"scale": 0.01}, model=ConvNet, local=local, evaluate_every=1)
    check(job, tmp_path, monkeypatch, every=5, attempts=2)


@pytest.mark.parametrize("kind", ["momentum", "adam", "private", "batch_norm", "shadows"])
def test_release(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: dict[str, Callable[[], Job]] = {
        "momentum": lambda: release_job(WhiteChannel, {}, {"kappa": [2.0, 3.0]}, pictures=True),
        "adam": lambda: release_job(optimiser="adam", rate=1e-3),
        "private": lambda: release_job(DPSGD, {"clip": 1.0, "multiplier": 0.5}),
        "batch_norm": lambda: release_job(model=ResNet10, steps=3),
        "shadows": lambda: release_job(membership=[{"name": "lira", "shadows": 2}], steps=3),
    }
    check(jobs[kind](), tmp_path, monkeypatch, every=2, attempts=2)


def test_networks_of_attackers(attack_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(prior_job(attack_job, steps=9), tmp_path, monkeypatch, every=2, attempts=4)


def test_language_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(language_job(steps=9), tmp_path, monkeypatch, every=2, attempts=4)


def test_spectra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(spectrum_job(), tmp_path, monkeypatch, every=2, attempts=2)


def test_attempts_at_trained_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed while the models are trained, and in the search after it."""
    attacking = {"iterations": 3}
    job = leakage_job(DLGWolfe, GaussianNoise, {"scale": [0.01, 0.1]}, attacking=attacking, model=LeNet, steps=3)
    check(job, tmp_path, monkeypatch, every=2, attempts=4)


@pytest.mark.parametrize("optimiser", ["sgd", "adamw"])
def test_pretraining(optimiser: Any, attack_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = GradientMatching.model_validate({"objective": {"kind": "cosine"}, "optimiser": ADAM, "iterations": 1})
    pretraining = Pretraining(samples=20, batch_size=8, rate=0.01, optimiser=optimiser)
    job = attack_job(attack=attack, clients=1, epoch=2, pretraining=pretraining)
    check(job, tmp_path, monkeypatch, every=1, attempts=6)


def test_models_of_rounds(attack_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attack = GradientMatching.model_validate({"objective": {"kind": "cosine"}, "optimiser": ADAM, "iterations": 1})
    protocol = {"clients": 1, "epoch": 1, "pretraining": Pretraining(samples=20, batch_size=8)}
    job = attack_job(attack=attack, rounds=3, rounds_apart=2, **protocol)
    check(job, tmp_path, monkeypatch, every=1, attempts=6)


def test_pretraining_that_diverged(attack_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the last step and the look at what it led to."""
    pretraining = Pretraining(samples=20, batch_size=8, rate=1e30)
    job = attack_job(clients=1, epoch=2, pretraining=pretraining)
    check(job, tmp_path, monkeypatch, every=1, attempts=3)


def test_inverters(attack_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before and after their rate falls."""
    check(inverter_job(attack_job, (0,), epochs=9), tmp_path, monkeypatch, every=2, attempts=8)


@pytest.mark.parametrize("kind", [FederateJob, ReleaseJob])
def test_what_is_free_on_a_gpu_does_not_count(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    network = SimpleNamespace(dimension=1000)
    data = SimpleNamespace(members=SimpleNamespace(images=torch.zeros(10)))
    sizes = set()
    for free in (2**28, 2**29):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _, free=free: (free, 2**30))
        rest = (data,) if kind is ReleaseJob else ()
        sizes.add(kind._together(SimpleNamespace(clients=4), network, *rest, torch.device("cuda")))
    assert len(sizes) == 1


def test_the_memory_of_a_gpu_may_be_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs whose gradients were computed together stay so: it decides the last digits."""
    sizes = iter([2, *[1] * 100])
    whole = tmp_path / "whole"
    job = release_job(WhiteChannel, {}, {"kappa": [2.0, 3.0]})
    with monkeypatch.context() as patched:
        patched.setattr(gradients, "runs_within", lambda *_: 2)
        expected = run_job(job, whole, CPU)
    monkeypatch.setattr(gradients, "runs_within", lambda *_: next(sizes))
    found, killed = killed_every(3, lambda: run_job(job, tmp_path / "broken", CPU), monkeypatch)
    assert killed >= 2 and numbers(found) == numbers(expected)


def test_seconds_of_all_attempts_are_counted(train_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = _Job.after_step

    def slow(self: _Job, loop: Loop, state: Any) -> None:
        time.sleep(0.05)
        step(self, loop, state)

    monkeypatch.setattr(_Job, "after_step", slow)
    found, killed = killed_every(1, lambda: run_job(train_job(steps=6), tmp_path, CPU), monkeypatch)
    assert killed == 6 and found.cost.wall_s >= 6 * 0.05


@pytest.mark.parametrize("other", ["job", "threads", "torch", "device", "sources"])
def test_a_checkpoint_of_another_job_or_machine_is_discarded(
    other: str, train_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(EVERY, "0")
    after_step = _Job.after_step

    def kill(self: _Job, loop: Loop, state: Any) -> None:
        after_step(self, loop, state)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(_Job, "after_step", kill)
        with pytest.raises(Killed):
            run_job(train_job(), tmp_path, CPU)

    job, placement = train_job(), CPU
    if other == "job":
        job = train_job(rate=2e-2)
    elif other == "threads":
        placement = Placement(device="cpu", threads=2)
    elif other == "torch":
        monkeypatch.setattr(runner, "version", lambda _: "0.1")
    elif other == "device":
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS")
    else:
        monkeypatch.setattr(runner, "_sources", lambda: "0123")
    try:
        found = run_job(job, tmp_path / "other", placement)
        capsys.readouterr()
        again = run_job(job, tmp_path, placement)
    finally:
        torch.set_num_threads(1)
    said = capsys.readouterr().err
    assert f"a checkpoint with {other} " in said and said.count("discarded") == 1 and "going on" not in said
    assert numbers(again) == numbers(found)
