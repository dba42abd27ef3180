"""Federated averaging jobs: many clients that train locally, what a defense costs them in accuracy, bits and time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from pydantic import Field

from leakbench.effort import FORWARD, Effort
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.training import Training
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.costs import CARBON_INTENSITY, EnergyMeter, Times, carbon_kg
from leakbench.jobs.subjects import check_defense, check_vocabulary
from leakbench.lazy import torch
from leakbench.numerics.stateful import named, part_of
from leakbench.records import MetricInfo, Outcome, Replicate, Value
from leakbench.running.checkpoint import State, loop, packed, unpacked

if TYPE_CHECKING:
    from leakbench.defenses.base import Defense
    from leakbench.federated.step import TrainedSteps
    from leakbench.federated.training import TrainingRuns, Transform
    from leakbench.models.base import Network, Statistics
    from leakbench.randomness import Streams

MEMORY_BUDGET = 4 * 2**30
"""Memory of the clients' models that train side by side, in bytes; on a GPU, ``GPU_PART`` of what is free. Only speed
depends on it."""

GPU_PART = 0.4

EVALUATED_TOGETHER = 2000
"""Images whose logits exist at a time."""

PARTS = {
    "local": "local training of all clients, an equal share of what runs side by side",
    "defense": "the defense of all clients",
    "aggregation": "aggregation on the server",
}
CURVES = {
    "loss_curve": MetricInfo(unit="nats, mean over clients and local steps", direction="lower", axis="round"),
    "accuracy_curve": MetricInfo(unit="part of the test images", direction="higher", axis="round"),
    "validation_curve": MetricInfo(unit="part of the validation images", direction="higher", axis="round"),
    "mcc_curve": MetricInfo(unit="Matthews correlation coefficient on the test data", direction="higher", axis="round"),
    "validation_mcc_curve": MetricInfo(
        unit="Matthews correlation coefficient on the validation data", direction="higher", axis="round"
    ),
}
UTILITY = {
    "accuracy": MetricInfo(unit="part of the test images, after the last round", direction="higher"),
    "best_round": MetricInfo(unit="round of the best validation accuracy, the first one being 0", direction="none"),
    "best_validation_accuracy": MetricInfo(unit="part of the validation images, in the best round", direction="higher"),
    "accuracy_at_best": MetricInfo(unit="part of the test images, after the best round", direction="higher"),
    "mcc": MetricInfo(
        unit="Matthews correlation coefficient on the test data, after the last round", direction="higher"
    ),
    "mcc_at_best": MetricInfo(
        unit="Matthews correlation coefficient on the test data, after the best round", direction="higher"
    ),
    "train_loss": MetricInfo(unit="nats, mean over all clients' images, after the best round", direction="lower"),
    "test_loss": MetricInfo(unit="nats, mean over the test images, after the best round", direction="lower"),
    "generalisation_gap": MetricInfo(unit="nats, |train loss - test loss| after the best round", direction="lower"),
}
SIZES = {
    "bits": MetricInfo(unit="bits on the wire per client and round, with buffers as floats", direction="lower"),
    "mebi_elements": MetricInfo(unit="2^20 elements of 32 bits per client and round", direction="lower"),
}
COSTS = {
    f"{part}_{clock}_s": MetricInfo(
        unit=f"seconds of {words} time per round, not reproducible: {what}", direction="lower"
    )
    for part, what in PARTS.items()
    for clock, words in {"wall": "wall", "cpu": "processor"}.items()
} | {
    "seconds": MetricInfo(
        unit="seconds of these parts in all rounds, not reproducible: processor time on a CPU, wall time on a GPU",
        direction="lower",
    ),
    "energy_kwh": MetricInfo(unit="kWh measured by codecarbon in all rounds, not reproducible", direction="lower"),
    "carbon_kg": MetricInfo(
        unit=f"kg CO2 of this energy at {CARBON_INTENSITY} kg/kWh, not reproducible", direction="lower"
    ),
    "carbon_formula_kg": MetricInfo(
        unit=f"kg CO2: power x the metric seconds x {CARBON_INTENSITY} kg/kWh, not reproducible", direction="lower"
    ),
}
FEDERATE_METRICS = CURVES | UTILITY | SIZES | COSTS
CORRELATIONS = ("mcc_curve", "validation_mcc_curve", "mcc", "mcc_at_best")
"""Metrics of data with two classes; zero where all predictions, or all labels, are the same."""


class ClientTraining(Training):
    """What a client does in a round."""

    steps: int = Field(100, ge=1, description="local steps per round")
    batch_size: int = Field(16, ge=1, description="images per step; the last step of an epoch takes what is left")
    rate: float = Field(0.1, gt=0, description="learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(0.0, ge=0, description="times the parameters, added to the gradient")
    keep_momentum: bool = Field(
        False, description="a client's momentum goes on in the next round instead of starting at zero"
    )


@JOB_KINDS.register("federate", version=2)
class FederateJob(JobKind):
    """Federated averaging: in each round all clients train locally, each defends its update, the server aggregates.

    What a defense sees in the gradient's place is the update over the local learning rate, and the server subtracts the
    rate times what it aggregates (McMahan et al. 2017 where there is no defense). Running statistics of BatchNorm are
    averaged as floats and are not defended. A round passes over a client's images in a new order, from the start.

    Clients hold equal numbers of images of the train split, some of which are held out for validation; the test split
    judges. Local training is SGD with momentum, Adam or AdamW, whose moments a round starts anew; dropout is off. All
    settings of the defense and all seeds are trained side by side, as far as memory goes.
    """

    memory_mb: ClassVar[int] = 16000
    minutes: ClassVar[int] = 240

    clients: int = Field(20, ge=1, description="clients, all of which take part in every round")
    rounds: int = Field(95, ge=1, description="rounds")
    local: ClientTraining = ClientTraining()
    alpha: float | None = Field(
        None, gt=0, description="concentration of the Dirichlet law of the clients' labels; i.i.d. clients by default"
    )
    images_per_client: int | None = Field(
        None, ge=1, description="images that a client holds; by default an equal share of what validation leaves"
    )
    validation: int = Field(10000, ge=1, description="images of the train split that are held out for validation")
    test: tuple[int, int] | None = Field(None, description="test images: from, to (exclusive); all by default")
    evaluate_every: int = Field(1, ge=1, description="rounds between evaluations; the last round is always evaluated")
    power_kw: float = Field(0.3, gt=0, description="power of the machine, for the paper's formula of carbon")

    def effort(self, job: Job) -> Effort:
        dataset = job.dataset.single()
        start, stop = self.test or (0, dataset.expected("test"))
        runs = len(job.seeds) * job.defense.count
        trained = Effort(self.local.batch_size, 1).times(self.local.steps).beside(self.clients * runs)
        judged = Effort(FORWARD * (self.validation + stop - start), 1).times(runs)
        defended = Effort(0, 1).times(runs)
        return trained.plus(defended).times(self.rounds).plus(judged.times(len(self.evaluated())))

    def volume(self, job: Job) -> float:
        return float(len(job.seeds) * job.defense.count * self.rounds)

    def run(self, job: Job, device: torch.device) -> Findings:
        settings = list(job.defense.settings())
        runs = [(setting, defense, seed) for setting, defense in settings for seed in job.seeds]
        check_vocabulary(job.dataset.single(), job.model.single())
        try:
            for _, defense in settings:
                check_defense(job.dataset.single(), defense)
        except Infeasible as error:
            lost = [_infeasible(setting, seed, str(error)) for setting, _, seed in runs]
            return Findings(FEDERATE_METRICS, lost, {})
        data = _load(self, job, device)
        replicates: list[Replicate] = []
        with torch.no_grad():
            networks = {seed: _network(job, seed, device) for seed in job.seeds}
            together = self._together(networks[job.seeds[0]], device)
            for first in range(0, len(runs), together):
                some = runs[first : first + together]
                try:
                    replicates += _Federation(self, job.dataset.label, some, networks, data).replicates()
                except Infeasible as error:
                    replicates += [_infeasible(setting, seed, str(error)) for setting, _, seed in some]
        return Findings(FEDERATE_METRICS, replicates, {})

    def _together(self, network: Network, device: torch.device) -> int:
        """Runs whose clients fit in memory side by side: some eight vectors of the size of the parameters each."""
        free = GPU_PART * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else MEMORY_BUDGET
        return max(1, int(free / (4 * 8 * network.dimension * self.clients)))

    def evaluated(self) -> list[int]:
        """The rounds after which the model is evaluated."""
        return sorted({*range(self.evaluate_every - 1, self.rounds, self.evaluate_every), self.rounds - 1})


class _Samples(NamedTuple):
    """Network inputs, of images or token ids, and labels."""

    values: torch.Tensor
    labels: torch.Tensor


class _Judgement(NamedTuple):
    accuracy: float
    loss: float
    mcc: float | None


class _Data(NamedTuple):
    """Network inputs and labels; clients and validation of a seed by their rows in the train split."""

    train: _Samples
    test: _Samples
    clients: dict[int, torch.Tensor]
    validation: dict[int, torch.Tensor]
    classes: int


def _load(kind: FederateJob, job: Job, device: torch.device) -> _Data:
    dataset = job.dataset.single()
    count = dataset.length("train")
    test = range(*kind.test) if kind.test else range(dataset.length("test"))
    if kind.validation >= count:
        raise ConfigError(
            f"validation: {kind.validation} images leave none of the train split ({count}) to the clients"
        )
    loaded = [dataset.load("train", range(count)), dataset.load("test", test)]
    train, judges = (_Samples(dataset.normalise(values).to(device), labels.to(device)) for values, labels in loaded)
    parts = {seed: _split(kind, job.dataset.label, seed, loaded[0].labels) for seed in job.seeds}
    clients = {seed: own for seed, (own, _) in parts.items()}
    validation = {seed: held_out for seed, (_, held_out) in parts.items()}
    return _Data(train, judges, clients, validation, dataset.classes)


def _split(kind: FederateJob, label: str, seed: int, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the clients, ``[clients, n]``, and of validation, ``[v]``."""
    from leakbench.federated.partition import dirichlet_partition, iid_partition
    from leakbench.randomness import generator, stream_seed

    order = torch.randperm(len(labels), generator=generator(label, seed, "validation"))
    held_out, rest = order[: kind.validation], order[kind.validation :]
    size = kind.images_per_client or len(rest) // kind.clients
    if size < 1:
        raise ConfigError(f"clients: {len(rest)} images do not suffice for {kind.clients} clients")
    seed_of_parts = stream_seed(label, seed, "partition")
    if kind.alpha is None:
        places = iid_partition(len(rest), kind.clients, size, seed_of_parts)
    else:
        places = dirichlet_partition(labels[rest], kind.clients, size, kind.alpha, seed_of_parts)
    return rest[places], held_out


def _network(job: Job, seed: int, device: torch.device) -> Network:
    from leakbench.models.base import build_network
    from leakbench.randomness import stream_seed

    dataset, start = job.dataset.single(), stream_seed(job.dataset.label, seed, "initialisation")
    return build_network(job.model.single(), dataset.shape, dataset.classes, start, device)


@dataclass
class _Run:
    """One setting and seed: what it found out so far."""

    setting: Setting
    defense: Defense
    seed: int
    curves: dict[str, list[float | None]]
    times: Times = field(default_factory=Times)
    bits: int = 0
    diverged_at: int | None = None
    best_round: int = -1
    best_validation: float = -1.0


SAID = ("curves", "bits", "diverged_at", "best_round", "best_validation")
"""What a run has found out, besides times."""


class _Federation:
    """Several runs, side by side. Row ``i * clients + c`` of every tensor of clients is client ``c`` of run ``i``."""

    def __init__(
        self,
        kind: FederateJob,
        label: str,
        runs: Sequence[tuple[Setting, Defense, int]],
        networks: dict[int, Network],
        data: _Data,
    ) -> None:
        from leakbench.models.stacked import StackedNetworks
        from leakbench.randomness import Streams

        self.kind, self.data, self.device = kind, data, data.train.values.device
        self.network = networks[runs[0][2]].in_mode("train")
        self.runs = [
            _Run(setting, defense, seed, {name: [None] * kind.rounds for name in CURVES})
            for setting, defense, seed in runs
        ]
        self.parameters = torch.stack([networks[run.seed].parameters for run in self.runs])
        self.statistics: Statistics = {
            name: torch.stack([networks[run.seed].running_statistics[name] for run in self.runs])
            for name in self.network.running_statistics
        }
        self.best = self.parameters.clone()
        self.best_statistics = {name: values.clone() for name, values in self.statistics.items()}
        self.velocity = None
        if kind.local.keep_momentum:
            self.velocity = torch.zeros_like(self.parameters).repeat_interleave(kind.clients, dim=0)
        self.streams = Streams([(label, run.seed, "client", c) for run in self.runs for c in range(kind.clients)])
        self.rows = torch.cat([data.clients[run.seed] for run in self.runs])
        self.stacked = StackedNetworks.of(self.network) if self.device.type == "cpu" else None
        self.energy = EnergyMeter()
        self._protect_datasets()

    def _protect_datasets(self) -> None:
        """Calibrate the defenses, and let them change the clients' images, if that is what they do.

        Then every client has images of its own; else all share those of the train split, and know their rows.
        """
        from leakbench.defenses.base import Defense
        from leakbench.federated.client_data import ClientData
        from leakbench.randomness import Streams

        parts = []
        for index, run in enumerate(self.runs):
            own = type(run.defense)
            if own.calibrate is Defense.calibrate and own.protect_dataset is Defense.protect_dataset:
                continue
            part = self._clients_of(index)
            images, labels = (values[self.rows[part]] for values in self.data.train)
            run.defense = run.defense.calibrate(ClientData(images))
            changed, told = run.defense.protect_dataset(images, labels, Streams(self.streams.keys[part]).child("data"))
            if changed is not images or told is not labels:
                parts.append((part, changed, told))
        self.images, self.labels, self.own_rows = *self.data.train, self.rows
        if parts:
            self.images, self.labels = (values[self.rows] for values in self.data.train)
            self.own_rows = torch.arange(self.rows.shape[1]).expand_as(self.rows)
            for part, changed, told in parts:
                self.images[part], self.labels[part] = changed, told

    def _clients_of(self, run: int) -> slice:
        return slice(run * self.kind.clients, (run + 1) * self.kind.clients)

    def replicates(self) -> list[Replicate]:
        """Train, and say what came out."""
        evaluated = set(self.kind.evaluated())
        with self.energy, loop("rounds", self.kind.rounds) as rounds:
            if rounds.saved:
                self._restore(rounds.saved)
            for number in rounds.steps:
                self._round(number)
                if number in evaluated:
                    self._evaluate(number)
                rounds.tick(self._state)
        return self._findings()

    def _state(self) -> dict[str, torch.Tensor]:
        found = {"parameters": self.parameters, "best": self.best}
        found |= named("statistics", self.statistics) | named("best_statistics", self.best_statistics)
        found |= {} if self.velocity is None else {"velocity": self.velocity}
        said = [[getattr(run, name) for name in SAID] for run in self.runs]
        times = [[run.times.wall, run.times.cpu] for run in self.runs]
        return found | {"said": packed([said, times, self.energy.so_far()])}

    def _restore(self, saved: State) -> None:
        self.parameters, self.best = (saved[name].to(self.device) for name in ("parameters", "best"))
        for name, values in (("statistics", self.statistics), ("best_statistics", self.best_statistics)):
            values |= {key: tensor.to(self.device) for key, tensor in part_of(saved, name).items()}
        if self.velocity is not None:
            self.velocity.copy_(saved["velocity"])
        said, times, self.energy.earlier = unpacked(saved["said"])
        for run, values_of_run, (wall, cpu) in zip(self.runs, said, times, strict=True):
            for name, value in zip(SAID, values_of_run, strict=True):
                setattr(run, name, value)
            run.times = Times(wall, cpu)

    def _round(self, number: int) -> None:
        """Local training, defense, aggregation."""
        streams, local = self.streams.child("round", number), Times()
        with local.of("local", self.device):
            trained = self._trained(streams)
        steps = self._steps(trained, streams)
        diverged = (trained.diverged_at >= 0).unflatten(0, (len(self.runs), -1)).any(dim=1)
        loss = steps.loss.unflatten(0, (len(self.runs), -1)).mean(dim=1)
        averages = {
            name: values.unflatten(0, (len(self.runs), -1)).mean(dim=1)
            for name, values in trained.models.statistics.items()
        }
        for index, run in enumerate(self.runs):
            for clock, total in ((local.wall, run.times.wall), (local.cpu, run.times.cpu)):
                total["local"] = total.get("local", 0.0) + clock["local"] / len(self.runs)
            if run.diverged_at is not None:
                continue
            part = self._clients_of(index)
            if not bool(diverged[index]):
                update = self._aggregated(run, steps.rows(part.start, part.stop))
                moved = self.parameters[index] - self.kind.local.rate * update
            if bool(diverged[index]) or not bool(moved.isfinite().all()):
                run.diverged_at = number
                continue
            self.parameters[index] = moved
            run.curves["loss_curve"][number] = float(loss[index])
            for name, values in averages.items():
                self.statistics[name][index] = values[index]

    def _aggregated(self, run: _Run, steps: TrainedSteps) -> torch.Tensor:
        """What the server makes of the clients' messages, ``[d]``."""
        with run.times.of("defense", self.device):
            message = run.defense.protect_update(steps, steps.streams.child("defense"))
        with run.times.of("aggregation", self.device):
            update = run.defense.aggregate(message, self.kind.clients)[0]
        run.bits = max(run.bits, message.bits)
        return update

    def _trained(self, streams: Streams) -> TrainingRuns:
        """Every client after its local steps, from its server's model."""
        from leakbench.federated.gradients import StackedGradients
        from leakbench.federated.training import Start, TrainingSet, train_runs

        clients = self.kind.clients
        statistics = {name: values.repeat_interleave(clients, dim=0) for name, values in self.statistics.items()}
        trained = train_runs(
            Start(self.network, self.parameters.repeat_interleave(clients, dim=0), statistics, self.velocity),
            TrainingSet(self.images, self.labels, self.own_rows),
            streams,
            self.kind.local,
            transform=self._transform(),
            gradients=StackedGradients(self.stacked) if self.stacked else None,
            quiet=True,
        )
        if self.velocity is not None:
            self.velocity = trained.velocity
        return trained

    def _transform(self) -> Transform | None:
        """What the defenses do to the images of every local step; None where they do nothing."""
        from leakbench.defenses.base import Defense
        from leakbench.randomness import Streams

        if all(type(run.defense).protect_data is Defense.protect_data for run in self.runs):
            return None

        def transform(images: torch.Tensor, labels: torch.Tensor, _: torch.Tensor, streams: Streams) -> torch.Tensor:
            parts = []
            for index, run in enumerate(self.runs):
                part = self._clients_of(index)
                own = Streams(streams.keys[part]).child("defense")
                changed, told = run.defense.protect_data(images[part], labels[part], own)
                if not torch.equal(told, labels[part]):
                    raise Infeasible(
                        f"'{run.defense.name}' changes labels at every step, which local training does not"
                    )
                parts.append(changed)
            return torch.cat(parts)

        return transform

    def _steps(self, trained: TrainingRuns, streams: Streams) -> TrainedSteps:
        """The clients' updates, with the first batch of the round."""
        from leakbench.federated.local import LocalTraining
        from leakbench.federated.step import TrainedSteps

        local = self.kind.local
        assert trained.models.initial is not None and trained.first_batch is not None
        images, labels = trained.first_batch
        return TrainedSteps(
            self.network,
            trained.models.initial,
            images,
            labels,
            streams,
            LocalTraining(steps=local.steps, rate=local.rate, batch_size=local.batch_size),
            trained=trained.models.parameters,
            loss=trained.curves.mean(dim=1),
        )

    def _evaluate(self, number: int) -> None:
        for index, run in enumerate(self.runs):
            if run.diverged_at is not None:
                continue
            own = self.data.validation[run.seed]
            validation = self._judge(index, _Samples(*(values[own] for values in self.data.train)))
            test = self._judge(index, self.data.test)
            run.curves["validation_curve"][number] = validation.accuracy
            run.curves["validation_mcc_curve"][number] = validation.mcc
            run.curves["accuracy_curve"][number] = test.accuracy
            run.curves["mcc_curve"][number] = test.mcc
            if validation.accuracy > run.best_validation:
                run.best_validation, run.best_round = validation.accuracy, number
                self.best[index] = self.parameters[index]
                for name, values in self.statistics.items():
                    self.best_statistics[name][index] = values[index]

    def _judge(self, index: int, samples: _Samples, *, best: bool = False) -> _Judgement:
        """A run's model, that of its best round or that of now."""
        from sklearn.metrics import matthews_corrcoef

        parameters, statistics = (self.best, self.best_statistics) if best else (self.parameters, self.statistics)
        network = self.network.in_mode("eval")
        mine = parameters[index].clone()  # kernels for single images round by how a row happens to be aligned
        own = {name: values[index] for name, values in statistics.items()}
        loss, predicted = 0.0, []
        pairs = zip(samples.values.split(EVALUATED_TOGETHER), samples.labels.split(EVALUATED_TOGETHER), strict=True)
        for values, labels in pairs:
            logits = network.logits(mine, values, own)
            predicted.append(logits.argmax(dim=1))
            loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
        found, count = torch.cat(predicted), len(samples.labels)
        mcc = None
        if self.data.classes == 2:
            mcc = float(matthews_corrcoef(samples.labels.cpu(), found.cpu()))
        return _Judgement(float((found == samples.labels).sum()) / count, loss / count, mcc)

    def _findings(self) -> list[Replicate]:
        from leakbench.defenses.base import Schedule

        seconds = [run.times.computing(self.device) for run in self.runs]
        replicates = []
        for index, (run, own) in enumerate(zip(self.runs, seconds, strict=True)):
            metrics: dict[str, Value] = dict.fromkeys(FEDERATE_METRICS)
            metrics |= {name: list(curve) for name, curve in run.curves.items()}
            if self.data.classes != 2:
                metrics |= dict.fromkeys(CORRELATIONS)
            outcome, reasons = Outcome(), {}
            if run.diverged_at is None:
                metrics |= self._utility(index, run)
                reasons = {
                    name: f"evaluated every {self.kind.evaluate_every} rounds"
                    for name in CURVES
                    if None in run.curves[name]
                }
                if self.data.classes != 2:
                    reasons |= dict.fromkeys(CORRELATIONS, f"of two classes, and there are {self.data.classes}")
            else:
                reason = f"training became non-finite in round {run.diverged_at}"
                outcome = Outcome(status="diverged", reason=reason, step=run.diverged_at)
                reasons = dict.fromkeys((*CURVES, *UTILITY), reason)
            metrics |= self._costs(run, None if self.energy.kwh is None else self.energy.kwh * own / sum(seconds))
            if run.bits:
                bits = run.bits + 32 * (self.network.state_size - self.network.dimension)
                metrics |= {"bits": float(bits), "mebi_elements": bits / 32 / 2**20}
            reasons |= {
                name: self.energy.reason if name in ("energy_kwh", "carbon_kg") else outcome.reason or "not finite"
                for name, value in metrics.items()
                if value is None and name not in reasons
            }
            statement = run.defense.privacy(Schedule(self.network.dimension, rounds=self.kind.rounds))
            replicates.append(
                Replicate(
                    seed=run.seed,
                    setting=dict(run.setting),
                    outcome=outcome,
                    metrics=metrics,
                    reasons=reasons,
                    privacy=statement.as_dict(),
                )
            )
        return replicates

    def _utility(self, index: int, run: _Run) -> dict[str, Value]:
        clients = self.data.clients[run.seed].flatten()
        held = _Samples(*(values[clients] for values in self.data.train))
        test = self._judge(index, self.data.test, best=True)
        train_loss = self._judge(index, held, best=True).loss
        found: dict[str, float | None] = {
            "accuracy": run.curves["accuracy_curve"][-1],
            "best_round": float(run.best_round),
            "best_validation_accuracy": run.best_validation,
            "accuracy_at_best": test.accuracy,
            "mcc": run.curves["mcc_curve"][-1],
            "mcc_at_best": test.mcc,
            "train_loss": train_loss,
            "test_loss": test.loss,
            "generalisation_gap": abs(train_loss - test.loss),
        }
        return {name: value if value is not None and math.isfinite(value) else None for name, value in found.items()}

    def _costs(self, run: _Run, kwh: float | None) -> dict[str, Value]:
        rounds = self.kind.rounds
        found: dict[str, Value] = {}
        for part in PARTS:
            found[f"{part}_wall_s"] = run.times.wall.get(part, 0.0) / rounds
            found[f"{part}_cpu_s"] = run.times.cpu.get(part, 0.0) / rounds
        found["seconds"] = seconds = run.times.computing(self.device)
        found["energy_kwh"] = kwh
        found["carbon_kg"] = None if kwh is None else kwh * CARBON_INTENSITY
        found["carbon_formula_kg"] = carbon_kg(self.kind.power_kw, seconds / 3600)
        return found


def _infeasible(setting: Setting, seed: int, reason: str) -> Replicate:
    return Replicate(
        seed=seed,
        setting=dict(setting),
        outcome=Outcome(status="infeasible", reason=reason),
        metrics=dict.fromkeys(FEDERATE_METRICS),
        reasons=dict.fromkeys(FEDERATE_METRICS, reason),
    )
