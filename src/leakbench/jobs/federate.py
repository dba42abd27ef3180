"""Federated averaging jobs: many clients that train locally, what a defense costs them in accuracy, bits and time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from pydantic import Field

from leakbench.defenses.base import Defense, Schedule
from leakbench.defenses.clients import DefendedClients, Examples, calibrated
from leakbench.effort import FORWARD, Effort
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.federated.gradients import StackedGradients
from leakbench.federated.local import LocalTraining
from leakbench.federated.message import FLOAT_BITS, mebi_elements
from leakbench.federated.partition import dirichlet_partition, iid_partition
from leakbench.federated.step import TrainedSteps
from leakbench.federated.training import Start, Training, TrainingRuns, TrainingSet, train_runs
from leakbench.federated.updates import Hook, Part, Runs, run_updates
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.costs import CARBON_INTENSITY, EnergyMeter, Times, carbon_kg
from leakbench.jobs.subjects import check_defense, check_vocabulary
from leakbench.jobs.victims import initial_network
from leakbench.lazy import torch
from leakbench.models.base import Network, Statistics
from leakbench.models.stacked import StackedNetworks
from leakbench.numerics.stateful import Stateful
from leakbench.randomness import Streams, generator, stream_seed
from leakbench.records import MetricInfo, Outcome, Replicate, Value
from leakbench.running.checkpoint import State, packed, unpacked

MEMORY_BUDGET = 4 * 2**30
"""Memory of the clients' models that train side by side, in bytes; on a GPU, ``GPU_PART`` of its memory. Only
speed depends on it."""

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
    """The local training of a client in a round."""

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

    In the gradient's place a defense sees the update over the local learning rate, and the server subtracts the rate
    times the aggregate (McMahan et al. 2017 where there is no defense). Running statistics of BatchNorm are averaged as
    floats and are not defended. A round passes over a client's images in a new order, from the start.

    Clients hold equal numbers of images of the train split, some of which are held out for validation; the test split
    judges. Local training is SGD with momentum, Adam or AdamW, whose moments a round starts anew; dropout is off. All
    settings of the defense and all seeds are trained side by side, as far as memory goes.
    """

    memory_mb: ClassVar[int] = 16000
    minutes: ClassVar[int] = 240
    metrics: ClassVar[Mapping[str, MetricInfo]] = FEDERATE_METRICS

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

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"round": self.rounds}

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
            return Findings(_infeasible(job, runs, error))
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
                    replicates += _infeasible(job, some, error)
        return Findings(replicates)

    def _together(self, network: Network, device: torch.device) -> int:
        """Runs whose clients fit in memory side by side: some eight vectors of the size of the parameters each."""
        # Total memory, since what is free may change: an attempt that goes on has to have the same runs side by side.
        memory = GPU_PART * torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else MEMORY_BUDGET
        return max(1, int(memory / (4 * 8 * network.dimension * self.clients)))

    def evaluated(self) -> list[int]:
        """The rounds after which the model is evaluated."""
        return sorted({*range(self.evaluate_every - 1, self.rounds, self.evaluate_every), self.rounds - 1})


class _Judgement(NamedTuple):
    accuracy: float
    loss: float
    mcc: float | None


class _Data(NamedTuple):
    """Network inputs and labels; clients and validation of a seed by their rows in the train split."""

    train: Examples
    test: Examples
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
    train, judges = (Examples(dataset.normalise(values).to(device), labels.to(device)) for values, labels in loaded)
    parts = {seed: _split(kind, job.dataset.label, seed, loaded[0].labels) for seed in job.seeds}
    clients = {seed: rows for seed, (rows, _) in parts.items()}
    validation = {seed: held_out for seed, (_, held_out) in parts.items()}
    return _Data(train, judges, clients, validation, dataset.classes)


def _split(kind: FederateJob, label: str, seed: int, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the clients, ``[clients, n]``, and of the validation data, ``[v]``."""
    order = torch.randperm(len(labels), generator=generator(label, seed, "validation"))
    held_out, rest = order[: kind.validation], order[kind.validation :]
    size = kind.images_per_client or len(rest) // kind.clients
    if size < 1:
        raise ConfigError(
            f"clients: {len(rest)} images, beside {kind.validation} for validation, do not suffice for {kind.clients} "
            "clients; lower clients or validation"
        )
    seed_of_parts = stream_seed(label, seed, "partition")
    if kind.alpha is None:
        places = iid_partition(len(rest), kind.clients, size, seed_of_parts)
    else:
        places = dirichlet_partition(labels[rest], kind.clients, size, kind.alpha, seed_of_parts)
    return rest[places], held_out


def _network(job: Job, seed: int, device: torch.device) -> Network:
    return initial_network(job.dataset.single(), job.dataset.label, job.model.single(), seed, device)


class _Run(NamedTuple):
    """One setting and seed.

    Attributes:
        setting: swept parameters of the defense.
        seed: of the repetition.
        clients: the clients, under the defense of this setting.
        costs: of their rounds.
    """

    setting: Setting
    seed: int
    clients: DefendedClients
    costs: _Costs


class _Costs:
    """Seconds of a run, and the bits of the largest message of a client."""

    def __init__(self) -> None:
        self.times, self.bits = Times(), 0

    def add_share(self, times: Times, runs: int) -> None:
        """Add an equal share of the seconds that ``runs`` took together."""
        for together, total in ((times.wall, self.times.wall), (times.cpu, self.times.cpu)):
            for part, seconds in together.items():
                total[part] = total.get(part, 0.0) + seconds / runs

    def state(self) -> dict[str, torch.Tensor]:
        """Both, as bytes."""
        return {"costs": packed([self.times.wall, self.times.cpu, self.bits])}

    def restore(self, saved: State) -> None:
        """Return to the costs of a state."""
        wall, cpu, self.bits = unpacked(saved["costs"])
        self.times = Times(wall, cpu)


class _LocalTraining(Stateful):
    """The local steps of all clients of all runs, in which defenses may change the images of every batch.

    Attributes:
        velocity: momentum that clients carry from round to round, ``[runs * clients, d]``; None where they do not.
    """

    def __init__(self, kind: FederateJob, network: Network, data: TrainingSet, members: Sequence[_Run]) -> None:
        self.kind, self.network, self.data, self.members = kind, network, data, members
        device = data.images.device
        stacked = StackedNetworks.of(network) if device.type == "cpu" else None
        self.gradients = StackedGradients(stacked) if stacked else None
        changing = any(run.clients.defense.overrides("protect_data") for run in members)
        self.transform = self._transform if changing else None
        self.velocity = None
        if kind.local.keep_momentum:
            self.velocity = torch.zeros(len(members) * kind.clients, network.dimension, device=device)

    def train(self, runs: Runs, streams: Streams) -> TrainingRuns:
        """Every client after its local steps from its server's model."""
        each = self.kind.clients
        statistics = {name: values.repeat_interleave(each, dim=0) for name, values in runs.statistics.items()}
        trained = train_runs(
            Start(self.network, runs.parameters.repeat_interleave(each, dim=0), statistics, self.velocity),
            self.data,
            streams,
            self.kind.local,
            transform=self.transform,
            gradients=self.gradients,
            quiet=True,
        )
        if self.velocity is not None:
            self.velocity = trained.velocity
        return trained

    def _transform(self, images: torch.Tensor, labels: torch.Tensor, _: torch.Tensor, streams: Streams) -> torch.Tensor:
        parts = []
        for index, run in enumerate(self.members):
            part = _clients_of(index, self.kind)
            batch = Examples(images[part], labels[part])
            changed = run.clients.protect_data(batch, Streams(streams.keys[part]).child("defense"))
            if not torch.equal(changed.labels, batch.labels):
                name = run.clients.defense.name
                raise Infeasible(f"'{name}' changes labels at every step, which local training does not")
            parts.append(changed.inputs)
        return torch.cat(parts)


class _Evaluation(Hook):
    """Evaluate the models after some of the rounds, and keep the best on the validation data.

    Attributes:
        curves: by metric ``[runs, rounds]``, float64; NaN where there is no value.
        best_round: ``[runs]``, -1 before the first evaluation.
        best_validation: accuracy in the best round, ``[runs]``, float64.
        best: parameters after it, ``[runs, d]``.
        best_statistics: of BatchNorm after it, each ``[runs, channels]``.
    """

    borrowed = frozenset({"runs"})

    def __init__(self, rounds: Sequence[int], network: Network, runs: Runs, seeds: Sequence[int], data: _Data) -> None:
        self.rounds, self.network, self.runs = frozenset(rounds), network.in_mode("eval"), runs
        self.seeds, self.data = seeds, data
        curve = torch.full((len(runs), max(rounds) + 1), torch.nan, dtype=torch.float64)
        self.curves = {name: curve.clone() for name in CURVES if name != "loss_curve"}
        self.best_round = torch.full((len(runs),), -1)
        self.best_validation = torch.full((len(runs),), -1.0, dtype=torch.float64)
        self.best = runs.parameters.clone()
        self.best_statistics = {name: values.clone() for name, values in runs.statistics.items()}

    def after(self, step: int) -> None:
        if step in self.rounds:
            for run in self.runs.alive.nonzero()[:, 0].tolist():
                self._evaluate(run, step)

    def _evaluate(self, run: int, number: int) -> None:
        parameters, statistics = self.runs.parameters[run], _row(self.runs.statistics, run)
        held_out = self.data.train.at(self.data.validation[self.seeds[run]])
        validation, test = (self._judged(parameters, statistics, each) for each in (held_out, self.data.test))
        curves = {
            "validation_curve": validation.accuracy,
            "validation_mcc_curve": validation.mcc,
            "accuracy_curve": test.accuracy,
            "mcc_curve": test.mcc,
        }
        for name, value in curves.items():
            self.curves[name][run, number] = math.nan if value is None else value
        if validation.accuracy > float(self.best_validation[run]):
            self.best_validation[run], self.best_round[run] = validation.accuracy, number
            self.best[run] = parameters
            for name, values in statistics.items():
                self.best_statistics[name][run] = values

    def _judged(self, parameters: torch.Tensor, statistics: Statistics, samples: Examples) -> _Judgement:
        """A model, ``[d]`` with BatchNorm statistics ``[channels]``, on ``n`` samples."""
        from sklearn.metrics import matthews_corrcoef

        parameters = parameters.clone()  # kernels for single images round by the alignment of a row
        loss, predicted = 0.0, []
        pairs = zip(samples.inputs.split(EVALUATED_TOGETHER), samples.labels.split(EVALUATED_TOGETHER), strict=True)
        for inputs, labels in pairs:
            logits = self.network.logits(parameters, inputs, statistics)
            predicted.append(logits.argmax(dim=1))
            loss += float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum"))
        classes, count = torch.cat(predicted), len(samples.labels)
        mcc = None
        if self.data.classes == 2:
            mcc = float(matthews_corrcoef(samples.labels.cpu(), classes.cpu()))
        return _Judgement(float((classes == samples.labels).sum()) / count, loss / count, mcc)

    def utility(self, run: int) -> dict[str, Value]:
        """Metrics of a run after its last and after its best round; null where they are not finite."""
        best, statistics = self.best[run], _row(self.best_statistics, run)
        test = self._judged(best, statistics, self.data.test)
        held = self.data.train.at(self.data.clients[self.seeds[run]].flatten())
        train_loss = self._judged(best, statistics, held).loss
        metrics = {
            "accuracy": float(self.curves["accuracy_curve"][run, -1]),
            "best_round": float(self.best_round[run]),
            "best_validation_accuracy": float(self.best_validation[run]),
            "accuracy_at_best": test.accuracy,
            "mcc": float(self.curves["mcc_curve"][run, -1]),
            "mcc_at_best": math.nan if test.mcc is None else test.mcc,
            "train_loss": train_loss,
            "test_loss": test.loss,
            "generalisation_gap": abs(train_loss - test.loss),
        }
        return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


class _Federation:
    """Several runs, side by side; row ``i * clients + c`` of every tensor of clients is client ``c`` of run ``i``."""

    def __init__(
        self,
        kind: FederateJob,
        label: str,
        runs: Sequence[tuple[Setting, Defense, int]],
        networks: dict[int, Network],
        data: _Data,
    ) -> None:
        starts = [networks[seed] for *_, seed in runs]
        self.kind, self.device, self.classes = kind, data.train.inputs.device, data.classes
        self.network = starts[0].in_mode("train")
        self.streams = Streams([(label, seed, "client", c) for *_, seed in runs for c in range(kind.clients)])
        statistics = {
            name: torch.stack([network.running_statistics[name] for network in starts])
            for name in self.network.running_statistics
        }
        self.runs = Runs(torch.stack([network.parameters for network in starts]), kind.rounds, statistics)
        self.members, held = self._members(runs, data)
        self.local = _LocalTraining(kind, self.network, held, self.members)
        seeds = [run.seed for run in self.members]
        self.evaluation = _Evaluation(kind.evaluated(), self.network, self.runs, seeds, data)
        self.energy = EnergyMeter()

    def _members(self, runs: Sequence[tuple[Setting, Defense, int]], data: _Data) -> tuple[list[_Run], TrainingSet]:
        """Every run with its defended clients, and their training data.

        All clients share the images of the train split, and know their rows; where a defense changes data sets, every
        client gets a copy of its images instead.
        """
        rows = torch.cat([data.clients[seed] for *_, seed in runs])
        members, changed = [], {}
        for index, (setting, defense, seed) in enumerate(runs):
            part = _clients_of(index, self.kind)
            streams = Streams(self.streams.keys[part])
            if defense.overrides("calibrate", "protect_dataset"):
                held = data.train.at(rows[part])
                defense = calibrated(defense, ClientData(held.inputs, self.classes))
                protected = DefendedClients(defense, streams, held).samples
                assert protected is not None
                if protected.inputs is not held.inputs or protected.labels is not held.labels:
                    changed[index] = protected
            clients = DefendedClients(defense, streams, per_server=self.kind.clients)
            members.append(_Run(setting, seed, clients, _Costs()))
        if not changed:
            return members, TrainingSet(*data.train, rows)
        every = data.train.at(rows)
        for index, protected in changed.items():
            part = _clients_of(index, self.kind)
            every.inputs[part], every.labels[part] = protected
        return members, TrainingSet(*every)

    def replicates(self) -> list[Replicate]:
        """Train and evaluate all runs."""
        parts: dict[str, Part] = {"runs": self.runs, "local": self.local, "energy": self.energy}
        for number, run in enumerate(self.members):
            parts |= {f"clients{number}": run.clients, f"costs{number}": run.costs}
        with self.energy:
            run_updates("rounds", self.kind.rounds, self.update, parts, [self.evaluation])
        seconds = [run.costs.times.computing(self.device) for run in self.members]
        energy = [None if self.energy.kwh is None else self.energy.kwh * each / sum(seconds) for each in seconds]
        return [self._replicate(index, kwh) for index, kwh in enumerate(energy)]

    def update(self, number: int) -> None:
        """A round: all clients train and send, and the server of each run aggregates and moves its model."""
        streams, together = self.streams.child("round", number), Times()
        with together.of("local", self.device):
            trained = self.local.train(self.runs, streams)
        steps = self._steps(trained, streams)
        finite = ~(trained.diverged_at >= 0).unflatten(0, (len(self.runs), -1)).any(dim=1)
        going = (self.runs.alive & finite).tolist()
        moved = self.runs.parameters.clone()
        for index, run in enumerate(self.members):
            run.costs.add_share(together, len(self.runs))
            if going[index]:
                part = _clients_of(index, self.kind)
                update = self._aggregated(run, steps.rows(part.start, part.stop))
                moved[index] = self.runs.parameters[index] - self.kind.local.rate * update
        loss = steps.loss.unflatten(0, (len(self.runs), -1)).mean(dim=1)
        averages = {
            name: values.unflatten(0, (len(self.runs), -1)).mean(dim=1)
            for name, values in trained.models.statistics.items()
        }
        self.runs.advance(number, moved, loss, finite & moved.isfinite().all(dim=1), averages)

    def _aggregated(self, run: _Run, steps: TrainedSteps) -> torch.Tensor:
        """The server's update, ``[d]``."""
        with run.costs.times.of("defense", self.device):
            message = run.clients.send(steps, steps.streams.child("defense"))
        with run.costs.times.of("aggregation", self.device):
            update = run.clients.aggregate(message)[0]
        run.costs.bits = max(run.costs.bits, message.bits)
        return update

    def _steps(self, trained: TrainingRuns, streams: Streams) -> TrainedSteps:
        """The clients' updates, with the first batch of the round."""
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

    def _replicate(self, index: int, kwh: float | None) -> Replicate:
        """The metrics of a run, and the reasons of those that are null."""
        run, diverged_at = self.members[index], int(self.runs.diverged_at[index])
        curves = {name: _nullable(self.evaluation.curves[name][index]) for name in CURVES if name != "loss_curve"}
        curves["loss_curve"] = _nullable(self.runs.losses[index])
        metrics: dict[str, Value] = dict.fromkeys(FEDERATE_METRICS) | curves
        if self.classes != 2:
            metrics |= dict.fromkeys(CORRELATIONS)
        outcome, reasons = Outcome(), dict[str, str]()
        if diverged_at < 0:
            metrics |= self.evaluation.utility(index)
            sparse = f"evaluated every {self.kind.evaluate_every} rounds"
            reasons = {name: sparse for name in CURVES if None in curves[name]}
            if self.classes != 2:
                reasons |= dict.fromkeys(CORRELATIONS, f"of two classes, and there are {self.classes}")
        else:
            reason = f"training became non-finite in round {diverged_at}"
            outcome = Outcome(status="diverged", reason=reason, step=diverged_at)
            reasons = dict.fromkeys((*CURVES, *UTILITY), reason)
        metrics |= self._costs(run.costs, kwh)
        for name, value in metrics.items():
            if value is None and name not in reasons:
                unmeasured = name in ("energy_kwh", "carbon_kg")
                reasons[name] = self.energy.reason if unmeasured else outcome.reason or "not finite"
        statement = run.clients.defense.privacy(Schedule(self.network.dimension, rounds=self.kind.rounds))
        return Replicate(
            seed=run.seed,
            setting=dict(run.setting),
            outcome=outcome,
            metrics=metrics,
            reasons=reasons,
            privacy=statement.as_dict(),
        )

    def _costs(self, costs: _Costs, kwh: float | None) -> dict[str, Value]:
        """Seconds, energy, carbon, and the sizes of messages, if there were any."""
        rounds, seconds = self.kind.rounds, costs.times.computing(self.device)
        metrics: dict[str, Value] = {}
        for part in PARTS:
            metrics[f"{part}_wall_s"] = costs.times.wall.get(part, 0.0) / rounds
            metrics[f"{part}_cpu_s"] = costs.times.cpu.get(part, 0.0) / rounds
        metrics["seconds"] = seconds
        metrics["energy_kwh"] = kwh
        metrics["carbon_kg"] = None if kwh is None else kwh * CARBON_INTENSITY
        metrics["carbon_formula_kg"] = carbon_kg(self.kind.power_kw, seconds / 3600)
        if costs.bits:
            bits = costs.bits + FLOAT_BITS * (self.network.state_size - self.network.dimension)
            metrics |= {"bits": float(bits), "mebi_elements": mebi_elements(bits)}
        return metrics


def _clients_of(run: int, kind: FederateJob) -> slice:
    """The rows of a run's clients among those of all runs."""
    return slice(run * kind.clients, (run + 1) * kind.clients)


def _row(statistics: Statistics, run: int) -> Statistics:
    """The BatchNorm statistics of one run."""
    return {name: values[run] for name, values in statistics.items()}


def _nullable(values: torch.Tensor) -> list[float | None]:
    """Numbers ``[n]``; None for NaN."""
    return [None if math.isnan(value) else value for value in values.tolist()]


def _infeasible(job: Job, runs: Sequence[tuple[Setting, Defense, int]], error: Infeasible) -> list[Replicate]:
    """Replicates of runs that cannot be trained, in their order."""
    outcome = Outcome(status="infeasible", reason=str(error))
    return [
        lost for setting, _, seed in runs for lost in job.without_numbers(outcome, seeds=[seed], settings=[setting])
    ]
