"""Federated averaging against one literal loop over clients; defenses, divergence, what is recorded."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import codecarbon
import pytest
import torch

from leakbench.data.embedded import Digits
from leakbench.defenses.base import Defense, NoDefense
from leakbench.defenses.dp_sgd import DPSGD
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.optimal import OptimalNoise
from leakbench.errors import ConfigError
from leakbench.federated.message import DenseMessage, Message
from leakbench.federated.step import ClientSteps, TrainedSteps
from leakbench.jobs import federate
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.costs import EnergyMeter, carbon_kg
from leakbench.jobs.federate import (
    CORRELATIONS,
    COSTS,
    CURVES,
    FEDERATE_METRICS,
    UTILITY,
    ClientTraining,
    FederateJob,
    _split,
)
from leakbench.models.base import MODELS, Model, build_network
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.randomness import Streams, stream_seed
from leakbench.records import Replicate

CPU = torch.device("cpu")
CLIENTS, ROUNDS, SIDE = 3, 3, 9
LOCAL = {"steps": 3, "batch_size": 4, "rate": 0.1}
PROTOCOL: dict[str, Any] = {
    "clients": CLIENTS,
    "rounds": ROUNDS,
    "images_per_client": 10,
    "validation": 40,
    "test": (0, 60),
    "local": LOCAL,
}


class HalfFirst(Defense):
    """Client 0 sends half of its update, and the server adds one to the first coordinate."""

    name: ClassVar[str] = "half_first"
    version: ClassVar[int] = 1
    offset: float = 1.0

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        assert isinstance(steps, TrainedSteps)
        assert streams.keys == [(*key, "defense") for key in steps.streams.keys]
        factors = torch.tensor([0.5 if key[3] == 0 else 1.0 for key in steps.streams.keys])
        return DenseMessage(steps.gradient * factors[:, None])

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        update = super().aggregate(message, clients)
        update[:, 0] += self.offset
        return update


class PoisonAt(Defense):
    """A client of seed 1 sends something that is not a number, in one round."""

    name: ClassVar[str] = "poison_at"
    version: ClassVar[int] = 1
    round: int = 1

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        values = steps.gradient.clone()
        for row, key in enumerate(steps.streams.keys):
            if key[1:] == (1, "client", 0, "round", self.round):
                values[row, 3] = torch.nan
        return DenseMessage(values)


class Darken(Defense):
    """Clients train on black images, made so once or at every step."""

    name: ClassVar[str] = "darken"
    version: ClassVar[int] = 1
    once: bool = True

    def protect_dataset(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return (torch.zeros_like(images) if self.once else images), labels

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return (images if self.once else torch.zeros_like(images)), labels


def make(
    defense: type[Defense] = NoDefense,
    sweep: Mapping[str, list[Any]] | None = None,
    *,
    model: type[Model] = SimpleConvNet,
    width: int = 2,
    seeds: tuple[int, ...] = (0,),
    parameters: Mapping[str, Any] | None = None,
    **protocol: Any,
) -> Job:
    return Job(
        scale="test",
        paper="paper",
        experiment="experiment",
        dataset=Variant("digits9", Digits, {"size": SIDE}, {}),
        model=Variant("tiny", model, {"width": width}, {}),
        defense=Variant("defense", defense, parameters or {}, sweep or {}),
        attack=None,
        kind=FederateJob(**{**PROTOCOL, **protocol}),
        part="all",
        seeds=seeds,
    )


def run(job: Job) -> Findings:
    return job.kind.run(job, CPU)


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(module.parameters()).detach().clone()


def literal(
    job: Job,
    seed: int,
    protect: Callable[[int, torch.Tensor], torch.Tensor] = lambda _, update: update,
    after: Callable[[torch.Tensor], torch.Tensor] = lambda update: update,
) -> tuple[torch.nn.Module, list[float], list[float], list[float]]:
    """Loss, validation and test accuracies per round: one module per client, one client after the other."""
    kind, digits = job.kind, Digits(size=SIDE)
    assert isinstance(kind, FederateJob)
    local = kind.local
    samples = digits.load("train", range(digits.length("train")))
    inputs = digits.normalise(samples.values)
    test = digits.load("test", range(*kind.test))  # type: ignore[misc]
    rows, held_out = _split(kind, "digits9", seed, samples.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed("digits9", seed, "initialisation"))
        server = job.model.single().build(digits.shape, 10)
    modules = [job.model.single().build(digits.shape, 10).train() for _ in range(kind.clients)]
    optimisers = [torch.optim.SGD(module.parameters(), lr=local.rate, momentum=local.momentum) for module in modules]
    losses: list[float] = []
    validation: list[float] = []
    accuracies: list[float] = []
    for number in range(kind.rounds):
        updates, total, before = [], 0.0, flat(server)
        for client, module in enumerate(modules):
            module.load_state_dict(server.state_dict())
            if not local.keep_momentum:
                optimisers[client] = torch.optim.SGD(module.parameters(), lr=local.rate, momentum=local.momentum)
            order = Streams([("digits9", seed, "client", client, "round", number, "order", 0)])
            shuffled = rows[client][order.uniform(rows.shape[1])[0].argsort()]
            for batch in shuffled.split(local.batch_size)[: local.steps]:
                optimisers[client].zero_grad()
                loss = torch.nn.functional.cross_entropy(module(inputs[batch]), samples.labels[batch])
                loss.backward()
                optimisers[client].step()
                total += float(loss.detach()) / local.steps / kind.clients
            updates.append(protect(client, (before - flat(module)) / local.rate))
        update = after(torch.stack(updates).mean(dim=0))
        torch.nn.utils.vector_to_parameters(before - local.rate * update, server.parameters())
        for name, buffer in server.named_buffers():
            if "running" in name:
                buffer.copy_(torch.stack([dict(module.named_buffers())[name] for module in modules]).mean(dim=0))
        losses.append(total)
        server.eval()
        with torch.no_grad():
            for images, labels, found in (
                (inputs[held_out], samples.labels[held_out], validation),
                (digits.normalise(test.values), test.labels, accuracies),
            ):
                found.append(float((server(images).argmax(dim=1) == labels).float().mean()))
    return server, losses, validation, accuracies


def assert_equal(replicate: Replicate, found: tuple[torch.nn.Module, list[float], list[float], list[float]]) -> None:
    _, losses, validation, accuracies = found
    assert replicate.metrics["loss_curve"] == pytest.approx(losses, rel=1e-4)
    assert replicate.metrics["validation_curve"] == pytest.approx(validation)
    assert replicate.metrics["accuracy_curve"] == pytest.approx(accuracies)
    assert replicate.metrics["accuracy"] == pytest.approx(accuracies[-1])
    best = validation.index(max(validation))
    assert replicate.metrics["best_round"] == best
    assert replicate.metrics["best_validation_accuracy"] == pytest.approx(validation[best])
    assert replicate.metrics["accuracy_at_best"] == pytest.approx(accuracies[best])


@pytest.mark.parametrize("model", [SimpleConvNet, ConvNet])
@pytest.mark.parametrize(("momentum", "keep"), [(0.0, False), (0.5, False), (0.5, True)])
def test_equals_a_literal_loop_over_clients(model: type[Model], momentum: float, keep: bool) -> None:
    job = make(model=model, seeds=(0, 2), local={**LOCAL, "momentum": momentum, "keep_momentum": keep})
    replicates = run(job).replicates
    for replicate, seed in zip(replicates, (0, 2), strict=True):
        assert replicate.seed == seed and replicate.outcome.status == "ok"
        assert_equal(replicate, literal(job, seed))


def test_momentum_that_is_kept_changes_later_rounds_alone() -> None:
    kept, fresh = (
        run(make(local={**LOCAL, "momentum": 0.5, "keep_momentum": keep})).replicates[0].metrics["loss_curve"]
        for keep in (True, False)
    )
    assert isinstance(kept, list) and isinstance(fresh, list)
    assert kept[0] == fresh[0] and kept[1] != fresh[1]


def test_skewed_clients_equal_the_loop() -> None:
    job = make(alpha=0.1)
    assert_equal(run(job).replicates[0], literal(job, 0))


def test_a_defense_changes_each_clients_update_and_the_server_aggregates() -> None:
    """All settings side by side, each as if it were alone."""
    job = make(HalfFirst, {"offset": [0.0, 1.0]}, seeds=(0, 1), rounds=2)
    replicates = run(job).replicates
    assert [(each.setting["offset"], each.seed) for each in replicates] == [(0.0, 0), (0.0, 1), (1.0, 0), (1.0, 1)]
    for each in replicates:
        first = torch.zeros(1)
        first[0] = float(each.setting["offset"])

        def add(update: torch.Tensor, first: torch.Tensor = first) -> torch.Tensor:
            return torch.cat([update[:1] + first, update[1:]])

        assert_equal(each, literal(job, each.seed, lambda client, update: update * (0.5 if client == 0 else 1.0), add))


def test_losses_of_the_best_round() -> None:
    job = make(rounds=1)
    server, *_ = literal(job, 0)
    digits = Digits(size=SIDE)
    train, test = digits.load("train", range(digits.length("train"))), digits.load("test", range(60))
    assert isinstance(job.kind, FederateJob)
    rows = _split(job.kind, "digits9", 0, train.labels)[0].flatten()

    def loss(images: torch.Tensor, labels: torch.Tensor) -> float:
        return float(torch.nn.functional.cross_entropy(server(digits.normalise(images)), labels).detach())

    expected = [loss(train.values[rows], train.labels[rows]), loss(test.values, test.labels)]
    metrics = run(job).replicates[0].metrics
    assert [metrics["train_loss"], metrics["test_loss"]] == pytest.approx(expected, rel=1e-4)
    assert metrics["generalisation_gap"] == pytest.approx(abs(expected[0] - expected[1]), rel=1e-3)


@pytest.mark.parametrize("once", [True, False])
def test_defenses_of_images(once: bool) -> None:
    """Once before training, or at every step: black images are black images."""
    clean, dark = (run(job).replicates[0] for job in (make(), make(Darken, parameters={"once": once})))
    assert dark.outcome.status == "ok"
    assert dark.metrics["loss_curve"] != clean.metrics["loss_curve"]
    other = run(make(Darken, parameters={"once": not once})).replicates[0]
    assert dark.metrics["loss_curve"] == other.metrics["loss_curve"]


def test_a_diverged_run_disturbs_no_other() -> None:
    poisoned = run(make(PoisonAt, seeds=(0, 1, 2))).replicates
    clean = run(make(seeds=(0, 1, 2))).replicates
    for place in (0, 2):
        for name in (*CURVES, *UTILITY, "bits"):
            assert poisoned[place].metrics[name] == clean[place].metrics[name]
    lost = poisoned[1]
    assert (lost.outcome.status, lost.outcome.step) == ("diverged", 1)
    assert lost.outcome.reason == "training became non-finite in round 1"
    curve, whole = lost.metrics["loss_curve"], clean[1].metrics["loss_curve"]
    assert isinstance(whole, list)
    assert curve == [whole[0], None, None]
    for name in (*CURVES, *UTILITY):
        assert lost.reasons[name] == lost.outcome.reason
    assert [lost.metrics[name] for name in UTILITY] == [None] * len(UTILITY)


def test_local_training_that_diverges() -> None:
    found = run(make(local={**LOCAL, "rate": 1e20}))
    (replicate,) = found.replicates
    assert (replicate.outcome.status, replicate.outcome.step) == ("diverged", 0)
    assert replicate.metrics["bits"] is None  # nothing was sent
    assert set(replicate.reasons) == {
        name
        for name, value in replicate.metrics.items()
        if value is None or None in (value if isinstance(value, list) else [])
    }


@pytest.mark.parametrize("together", [1, 2])
def test_runs_that_do_not_fit_in_memory_together(monkeypatch: pytest.MonkeyPatch, together: int) -> None:
    job = make(GaussianNoise, {"scale": [0.1, 0.2]}, seeds=(0, 1))
    whole = run(job).replicates
    monkeypatch.setattr(FederateJob, "_together", lambda *_: together)
    for one, other in zip(run(job).replicates, whole, strict=True):
        assert (one.seed, one.setting) == (other.seed, other.setting)
        reproducible = [name for name in FEDERATE_METRICS if name not in COSTS]
        assert {name: one.metrics[name] for name in reproducible} == {
            name: other.metrics[name] for name in reproducible
        }


def test_evaluation_every_few_rounds() -> None:
    job = make(rounds=5, evaluate_every=2)
    (replicate,) = run(job).replicates
    (every,) = run(make(rounds=5)).replicates
    for name in ("accuracy_curve", "validation_curve"):
        values, all_values = replicate.metrics[name], every.metrics[name]
        assert isinstance(all_values, list)
        assert values == [None, all_values[1], None, all_values[3], all_values[4]]
        assert replicate.reasons[name] == "evaluated every 2 rounds"
    assert "loss_curve" not in replicate.reasons


def test_what_travels() -> None:
    """BatchNorm's statistics and counters travel as floats."""
    (replicate,) = run(make(model=ConvNet, rounds=1)).replicates
    module = ConvNet(width=2).build((1, SIDE, SIDE), 10)
    elements = sum(value.numel() for value in module.state_dict().values())
    assert replicate.metrics["bits"] == 32 * elements
    assert replicate.metrics["mebi_elements"] == elements / 2**20


@pytest.mark.parametrize(("model", "elements"), [("resnet18", 11_183_582), ("convnet", 735_250)])
def test_elements_of_the_papers_models(model: str, elements: int) -> None:
    """Table IV prints 10.6655 = 11,183,582 / 2^20."""
    architecture = MODELS.get(model)(**({"width": 32} if model == "convnet" else {}))
    assert build_network(architecture, (3, 32, 32), 10, seed=0).state_size == elements


@pytest.mark.parametrize(
    ("defense", "parameters", "reason"),
    [
        (DPSGD, {"multiplier": 1.0}, "not the mean of per-sample gradients"),
        (OptimalNoise, {"scale": 0.1}, "input sensitivity"),
    ],
)
def test_defenses_that_local_training_does_not_suit(
    defense: type[Defense], parameters: dict[str, Any], reason: str
) -> None:
    (replicate,) = run(make(defense, parameters=parameters)).replicates
    assert replicate.outcome.status == "infeasible"
    assert reason in (replicate.outcome.reason or "")


def test_costs_and_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Energy is measured; a run's part of it follows its seconds."""
    meters = []

    class Meter(EnergyMeter):
        def __enter__(self) -> EnergyMeter:
            meters.append(self)
            return super().__enter__()

    monkeypatch.setattr(federate, "EnergyMeter", Meter)
    replicates = run(make(seeds=(0, 1), power_kw=0.5)).replicates
    (meter,) = meters
    assert meter.kwh is not None and meter.kwh > 0
    seconds = []
    for each in replicates:
        parts = [each.metrics[f"{part}_cpu_s"] for part in ("local", "defense", "aggregation")]
        assert all(isinstance(part, float) and part > 0 for part in parts)
        seconds.append(ROUNDS * sum(part for part in parts if isinstance(part, float)))
        assert each.metrics["seconds"] == pytest.approx(seconds[-1])
        assert each.metrics["carbon_formula_kg"] == pytest.approx(carbon_kg(0.5, seconds[-1] / 3600))
        assert each.metrics["carbon_kg"] == pytest.approx(0.475 * float(each.metrics["energy_kwh"]))  # type: ignore[arg-type]
    assert replicates[0].metrics["energy_kwh"] == pytest.approx(meter.kwh * seconds[0] / sum(seconds))


def test_energy_is_that_of_a_processor() -> None:
    """Some watts for a second of work, whatever the machine: counters of microjoules or hours would show."""
    start = time.perf_counter()
    with EnergyMeter() as meter:
        while time.perf_counter() < start + 3:
            sum(range(10_000))
    assert meter.kwh is not None
    assert 0.1 < meter.kwh * 3.6e6 / 3 < 5_000


def test_energy_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """codecarbon swallows its own errors; the record says that the number is missing."""

    def broken(*_: object) -> None:
        raise OSError("no counters")

    monkeypatch.setattr(codecarbon.OfflineEmissionsTracker, "_resolve_output_methods", broken)
    (replicate,) = run(make(rounds=1)).replicates
    assert replicate.metrics["energy_kwh"] is None and replicate.metrics["carbon_kg"] is None
    assert replicate.reasons["carbon_kg"] == "codecarbon measured nothing"


def test_carbon_of_the_paper() -> None:
    assert carbon_kg(0.30, 23 / 60) == pytest.approx(0.054625)


def test_every_metric_is_there_and_costs_say_that_they_vary() -> None:
    for replicate in run(make(alpha=0.5)).replicates:
        assert set(replicate.metrics) == set(FEDERATE_METRICS)
        curves = set(CURVES) - set(CORRELATIONS)  # the digits have ten classes
        assert {name for name, value in replicate.metrics.items() if isinstance(value, list)} == curves
        assert all(len(replicate.metrics[name]) == ROUNDS for name in curves)  # type: ignore[arg-type]
        assert {replicate.reasons[name] for name in CORRELATIONS} == {"of two classes, and there are 10"}
    assert {name for name, info in FEDERATE_METRICS.items() if "not reproducible" in info.unit} == set(COSTS)


def test_federated_averaging_learns() -> None:
    job = make(rounds=8, images_per_client=None, local={"steps": 20, "batch_size": 16, "rate": 0.3}, width=8)
    accuracy = run(job).replicates[0].metrics["accuracy"]
    assert isinstance(accuracy, float) and accuracy > 0.6


def test_protocols_that_the_data_cannot_serve() -> None:
    for protocol in ({"validation": 10**6}, {"images_per_client": 10**4}, {"images_per_client": None, "clients": 5000}):
        with pytest.raises(ConfigError):
            run(make(**protocol))


def test_defaults_are_the_papers() -> None:
    kind = FederateJob()
    assert (kind.clients, kind.rounds, kind.alpha) == (20, 95, None)
    assert kind.local == ClientTraining(steps=100, batch_size=16, rate=0.1, momentum=0, weight_decay=0)
