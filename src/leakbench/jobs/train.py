"""Training jobs: federated training under a defense, and its cost in utility."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.defenses.aggregate import SummedUsers
from leakbench.defenses.base import ActsOn, Defense, Schedule
from leakbench.defenses.clients import DefendedClients, Examples, calibrated
from leakbench.effort import FORWARD, Effort
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.batches import ClientBatches, Sampling
from leakbench.federated.client_data import ClientData
from leakbench.federated.layered_steps import LayeredSteps
from leakbench.federated.message import Message
from leakbench.federated.secure_training import SecureAggregation
from leakbench.federated.step import ClientSteps
from leakbench.federated.updates import Part, Runs, finite_rows, run_updates
from leakbench.jobs.base import EVERYTHING, JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.strengths import LOST
from leakbench.jobs.subjects import check_defense, check_vocabulary
from leakbench.jobs.sums import only_sums
from leakbench.jobs.victims import OfSeeds, Victims, gather_victims
from leakbench.lazy import torch
from leakbench.models.base import BatchNorm, Network
from leakbench.models.layered import LayeredNetwork
from leakbench.numerics.adam import Adam
from leakbench.numerics.sgd import SGD
from leakbench.numerics.stateful import Stateful
from leakbench.randomness import Streams
from leakbench.records import MetricInfo, Outcome, Replicate
from leakbench.running.checkpoint import State, packed, unpacked

if TYPE_CHECKING:
    from leakbench.attacks.base import Attack

CURVE = "loss_curve"
TRAINING_METRICS = {
    CURVE: MetricInfo(unit="nats, mean over clients before the step", direction="lower", axis="step"),
    "final_loss": MetricInfo(unit="nats, mean over the training images after the last step", direction="lower"),
    "accuracy": MetricInfo(unit="part of the evaluation images", direction="higher"),
    "bits": MetricInfo(unit="bits on the wire per client and step", direction="lower"),
}

NOISE_VARIANCE = {
    "noise_variance": MetricInfo(unit="sigma^2 of one user's noise, per coordinate of its mean", direction="lower")
}

LOST_ACCURACY = MetricInfo(unit="part of the evaluation images, undefended minus defended", direction="lower")

NOISE_PER_TENSOR = MetricInfo(unit="mean standard deviation of the noise in a tensor", direction="none", axis="step")


def noise_metric(tensor: str) -> str:
    """The metric of the noise in a parameter tensor."""
    return f"noise_std/{tensor}"


@JOB_KINDS.register("train", version=1)
class TrainJob(JobKind):
    """Train a model from scratch with equal-sized clients, all of which defend every step.

    All settings of the defense and all seeds are trained side by side: runs are ordered by setting, then seed.
    """

    of_cells: ClassVar[bool] = True
    faces: ClassVar[frozenset[ActsOn]] = EVERYTHING
    added: ClassVar[tuple[str, ...]] = (
        "split",
        "sampling",
        "secure_aggregation",
        "by_layer",
        "constants",
        "undefended",
        "decay",
        "victims",
        "curve",
    )

    clients: int = Field(ge=1, description="clients per round")
    batch_size: int = Field(ge=1, description="images per client and step, B")
    images_per_client: int = Field(ge=1, description="size of a client's data; a multiple of batch_size, if shuffled")
    split: Literal["test", "train"] = Field(
        "test",
        description="which split the clients' images are of: of the test split those from first_index on, of the train "
        "split as many drawn at random, anew for each seed",
    )
    first_index: int = Field(1, ge=0, description="where the clients' images start in the test split")
    victims: OfSeeds = Field(
        "same",
        description="same: all seeds train on the same images of the test split; distinct: each on the next ones, "
        "which are those that a job 'attack' with as many images attacks",
    )
    steps: int = Field(ge=1, description="server updates")
    optimiser: Literal["adam", "sgd"] = Field("adam", description="the server's optimiser")
    rate: float = Field(gt=0, description="learning rate")
    decay: Literal["none", "cosine"] = Field(
        "none", description="of the learning rate: half a cosine, from rate at the first step to 0 after the last"
    )
    evaluation: tuple[int, int] | None = Field(None, description="test images to evaluate on: from, to (exclusive)")
    batch_norm: BatchNorm = Field("eval", description="what the clients' BatchNorm layers normalise with")
    curve: bool = Field(True, description="record the loss before every step")
    noise_per_tensor: bool = Field(False, description="measure the noise in every parameter tensor at every step")
    sampling: Sampling = Field(
        "shuffled",
        description="how a client takes its batches: one after the other of data that it reshuffles each epoch, "
        "drawn without replacement at each step, independently of all other steps, or all that it holds at each step",
    )
    by_layer: bool = Field(
        False,
        description="compute the gradients of records layer by layer: faster, and different in the last digits; for "
        "linear layers and convolutions",
    )
    secure_aggregation: SecureAggregation | None = Field(
        None, description="how the server gets the sum of the clients' messages alone; by default it sees all of them"
    )

    constants: str | None = Field(
        None,
        description="experiment of the same paper whose job 'leakage' estimated the constants of leakage on this data "
        "set, by which defenses that are tuned to a budget are tuned",
    )

    undefended: str | None = Field(
        None,
        description="experiment of the same paper whose job 'train' is the same without a defense; the accuracy lost "
        "against its runs of the same seeds is recorded then",
    )

    @model_validator(mode="after")
    def _lost_accuracy_is_measured(self) -> TrainJob:
        if self.undefended and self.evaluation is None:
            raise ValueError("undefended: without evaluation images no accuracy is known; set evaluation")
        return self

    @model_validator(mode="after")
    def _seeds_count_off_the_test_split(self) -> TrainJob:
        if self.split == "train" and self.victims == "distinct":
            raise ValueError("victims: of the train split each seed draws its own already; leave it at 'same'")
        return self

    @model_validator(mode="after")
    def _whole_batches(self) -> TrainJob:
        each, batch = self.images_per_client, self.batch_size
        if self.sampling == "shuffled" and each % batch:
            raise ValueError(f"images_per_client ({each}) must be a multiple of batch_size ({batch})")
        if batch > each:
            raise ValueError(f"batch_size ({batch}) must be at most images_per_client ({each})")
        if self.sampling == "all" and batch != each:
            raise ValueError(f"sampling all images takes a batch_size ({batch}) of images_per_client ({each})")
        return self

    @model_validator(mode="after")
    def _enough_clients(self) -> TrainJob:
        secure = self.secure_aggregation
        if secure is not None:
            try:
                secure.threshold_of(self.clients)
            except ConfigError as error:
                raise ValueError(f"secure_aggregation: {error}") from error
        return self

    def noise_variance(self, steps: ClientSteps, message: Message) -> torch.Tensor | None:
        """Variances behind ``noise_per_tensor``, ``[n, d]``, of all clients or some of each run; None without noise."""
        return message.noise_variance

    def reads(self, attack: Attack | None) -> Mapping[str, str]:
        compared = {self.name: "undefended"} if self.undefended else {}
        return compared | ({"leakage": "constants"} if self.constants else {})

    def mismatch(self, source: Job, reader: Job) -> str:
        if reader.kind.name != self.name:
            return ""
        theirs, ours = (
            {**job.kind.model_dump(), "undefended": None, "sweeps": dict(job.kinds.sweep) if job.kinds else {}}
            for job in (source, reader)
        )
        differing = sorted(name for name in theirs if theirs[name] != ours[name])
        return f"trains by another protocol: {', '.join(differing)}" if differing else ""

    def metrics_of(self, job: Job) -> Mapping[str, MetricInfo]:
        levels = NOISE_VARIANCE if issubclass(job.defense.component, SummedUsers) else {}
        tensors = job.parameter_counts() if self.noise_per_tensor else ()
        lost = {LOST: LOST_ACCURACY} if self.undefended else {}
        known = {name: info for name, info in TRAINING_METRICS.items() if self.curve or name != CURVE}
        return known | lost | levels | dict.fromkeys(map(noise_metric, tensors), NOISE_PER_TENSOR)

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"step": self.steps}

    def effort(self, job: Job) -> Effort:
        start, stop = self.evaluation or (0, 0)
        judged = Effort(FORWARD * (self.clients * self.images_per_client + stop - start), 1)
        defense = next(job.defense.settings())[1]
        each = self.batch_size + defense.passes(self.batch_size)
        step = Effort(self.clients * each, 1).beside(len(job.seeds)).times(job.defense.count)
        return step.times(self.steps).plus(judged.times(len(job.seeds) * job.defense.count))

    def volume(self, job: Job) -> float:
        return float(len(job.seeds) * job.defense.count * self.steps)

    def rate_at(self, step: int) -> float:
        """The learning rate of a step, from 0 on."""
        if self.decay == "none":
            return self.rate
        return self.rate * (1 + math.cos(math.pi * step / self.steps)) / 2

    def run(self, job: Job, device: torch.device) -> Findings:
        check_vocabulary(job.dataset.single(), job.model.single())
        self._check_evaluation(job)
        settings, replicates = self._tuned(job)
        if not settings:
            return Findings(replicates)
        for together in job.of_one_model(settings):
            replicates += self._trained(job, together, device)
        return Findings(replicates)

    def _check_evaluation(self, job: Job) -> None:
        """Find out before training whether the samples that judge it exist.

        Raises:
            ConfigError: the test split has fewer.
        """
        if self.evaluation is None:
            return
        dataset, stop = job.dataset.single(), self.evaluation[1]
        if stop > (count := dataset.length("test")):
            raise ConfigError(
                f"evaluation: it ends at {stop}, and the test split of '{job.dataset.label}' has {count} {dataset.unit}"
            )

    def _trained(self, job: Job, settings: Sequence[tuple[Setting, Defense]], device: torch.device) -> list[Replicate]:
        """Train settings of the defense under which clients hold one model, side by side, and judge them."""
        starts = [
            start.under(settings[0][1], job.dataset.label, seed)
            for start, seed in zip(self._starts(job, device), job.seeds, strict=True)
        ]
        network, replicates = starts[0].network, list[Replicate]()
        guarantees = [self._guarantee(defense, network) for _, defense in settings]
        with torch.no_grad():
            classes = job.dataset.single().classes
            rounds = self._train([defense for _, defense in settings], starts, classes)
            final_loss = self._final_loss(rounds.runs, starts)
            accuracy = self._accuracy(job, rounds.runs, starts[0])
        for run, ((place, (setting, _)), seed) in enumerate(itertools.product(enumerate(settings), job.seeds)):
            metrics = {
                CURVE: rounds.runs.losses[run].tolist(),
                "final_loss": final_loss[run],
                "accuracy": accuracy[run],
                "bits": float(rounds.server.bits[place]),
            }
            if self.undefended:
                metrics[LOST] = self._lost(job, seed, accuracy[run])
            replicate = self._replicate(seed, setting, metrics, self._outcome(rounds, run, final_loss[run]))
            guarantees[place].add_to(replicate)
            if rounds.noise is not None:
                _add_noise_curves(replicate, network.names, rounds.noise.levels[run])
            replicates.append(replicate)
        return replicates

    def _starts(self, job: Job, device: torch.device) -> list[Victims]:
        """The clients of every seed, with the initial model."""
        return [
            gather_victims(
                job.dataset.single(),
                job.dataset.label,
                job.model.single(),
                seed,
                clients=self.clients,
                batch_size=self.images_per_client,
                first_index=self.first_index,
                device=device,
                split=self.split,
                of_seeds=self.victims,
            ).in_mode(self.batch_norm)
            for seed in job.seeds
        ]

    def _train(self, defenses: Sequence[Defense], starts: Sequence[Victims], classes: int) -> _Rounds:
        """All rounds of all settings and seeds."""
        rounds = _Rounds(self, defenses, starts, classes)
        run_updates("training", self.steps, rounds.update, rounds.parts())
        return rounds

    def _outcome(self, rounds: _Rounds, run: int, final_loss: float) -> Outcome:
        """The outcome of a run, with the step at which it ended early."""
        diverged_at, failed = int(rounds.runs.diverged_at[run]), rounds.server.failed.get(run)
        if failed is not None:
            step, reason = failed
            return Outcome(status="infeasible", reason=f"step {step}: {reason}", step=step)
        if diverged_at < 0 and not math.isfinite(final_loss):
            diverged_at = self.steps  # by the last update
        if diverged_at < 0:
            return Outcome()
        return Outcome(status="diverged", reason=f"training became non-finite at step {diverged_at}", step=diverged_at)

    def _tuned(self, job: Job) -> tuple[list[tuple[Setting, Defense]], list[Replicate]]:
        """The settings of the defense, tuned where that applies, and replicates of the infeasible ones."""
        settings: list[tuple[Setting, Defense]] = []
        replicates = []
        for setting, defense in job.defense.settings():
            try:
                check_defense(job.dataset.single(), defense)
                if self.noise_per_tensor and defense.overrides("extend"):
                    raise Infeasible(f"noise_per_tensor: '{defense.name}' makes a model with other tensors")
                settings.append((setting, defense.tune(job.kept)))
            except Infeasible as error:
                outcome = Outcome(status="infeasible", reason=str(error))
                replicates += job.without_numbers(outcome, settings=[setting])
        return settings, replicates

    def _guarantee(self, defense: Defense, network: Network) -> _Guarantee:
        """The guarantee of distributed noise for this training.

        Raises:
            ConfigError: its noise is calibrated for another training.
            Infeasible: no noise has the requested epsilon.
        """
        if not isinstance(defense, SummedUsers):
            return _Guarantee()
        level = defense.noise_level
        statement = defense.privacy(self._schedule(network.dimension))
        if defense.epsilon is not None and statement.epsilon is None:
            raise ConfigError(f"'{defense.name}' with epsilon {defense.epsilon:g}: {statement.basis}")
        return _Guarantee(statement.as_dict(), level)

    def _schedule(self, dimension: int) -> Schedule:
        """The releases of a client's data in this training."""
        secure = self.secure_aggregation
        return Schedule(
            dimension,
            rounds=self.steps,
            clients=self.clients if secure is None else secure.honest(self.clients),
            records=self.images_per_client,
            batch=self.batch_size,
            sampling=self.sampling,
            clipped=secure is not None and secure.clip is not None,
            places=None if secure is None else secure.fraction_bits,
        )

    def _final_loss(self, runs: Runs, starts: Sequence[Victims]) -> list[float]:
        """Undefended loss on all training images of its seed, one value per run."""
        return [
            float(start.network.loss(parameters, start.inputs.flatten(0, 1), start.labels.flatten(0, 1)))
            for parameters, start in zip(runs.parameters, itertools.cycle(starts))
        ]

    def _lost(self, job: Job, seed: int, accuracy: float | None) -> float | None:
        """Accuracy of undefended training of this seed by this protocol, minus that under the defense."""
        for replicate in job.records[self.name].replicates:
            same = all(getattr(self, name) == value for name, value in replicate.setting.items())
            before = replicate.metrics["accuracy"]
            if replicate.seed == seed and same and isinstance(before, float) and accuracy is not None:
                return before - accuracy
        return None

    def _accuracy(self, job: Job, runs: Runs, victims: Victims) -> list[float | None]:
        """Accuracy on the evaluation images, one value per run; None where the protocol names no such images."""
        if self.evaluation is None:
            return [None] * len(runs)
        dataset, device = job.dataset.single(), victims.inputs.device
        samples = dataset.load("test", range(*self.evaluation))
        images, labels = dataset.normalise(samples.values.to(device)), samples.labels.to(device)
        return [
            float((victims.network.logits(parameters, images).argmax(dim=1) == labels).float().mean())
            for parameters in runs.parameters
        ]

    def _replicate(self, seed: int, setting: Setting, metrics: dict[str, Any], outcome: Outcome) -> Replicate:
        """A run's metrics; those missing because it ended early are null, with the reason."""
        reasons: dict[str, str] = {}
        if outcome.step is not None and outcome.reason is not None:
            metrics[CURVE][outcome.step :] = [None] * (self.steps - outcome.step)
            ended = [name for name in ("final_loss", "accuracy", LOST) if name in metrics]
            metrics |= dict.fromkeys(ended)
            reasons = dict.fromkeys([CURVE, *ended] if outcome.step < self.steps else ended, outcome.reason)
        elif metrics["accuracy"] is None:
            reasons["accuracy"] = "the protocol names no evaluation images"
        elif metrics.get(LOST, 0.0) is None:
            reasons[LOST] = "training without a defense has no accuracy for this seed"
        if not self.curve:
            del metrics[CURVE]
            reasons.pop(CURVE, None)
        return Replicate(seed=seed, setting=dict(setting), outcome=outcome, metrics=metrics, reasons=reasons)


class _Rounds:
    """The training of several settings of a defense and several seeds, side by side: ordered by setting, then seed.

    Attributes:
        runs: the models.
        server: the servers of all runs.
        noise: of every parameter tensor; None unless the protocol asks for it.
    """

    def __init__(self, kind: TrainJob, defenses: Sequence[Defense], starts: Sequence[Victims], classes: int) -> None:
        samples = Examples(torch.cat([start.inputs for start in starts]), torch.cat([start.labels for start in starts]))
        device = samples.inputs.device
        if kind.secure_aggregation is not None:
            only_sums(defenses)
        self.kind, self.network = kind, starts[0].network
        self.streams = Streams([key for start in starts for key in start.streams.keys])
        if any(defense.overrides("calibrate") for defense in defenses):
            data = ClientData(samples.inputs, classes)
            defenses = [calibrated(defense, data) for defense in defenses]
        self.clients = [
            DefendedClients(defense, self.streams, samples, per_server=kind.clients) for defense in defenses
        ]
        parameters = torch.stack([start.parameters for start in starts]).repeat(len(defenses), 1)
        self.runs = Runs(parameters, kind.steps)
        self.of_settings = [slice(i * len(starts), (i + 1) * len(starts)) for i in range(len(defenses))]
        self.optimiser = Adam(parameters) if kind.optimiser == "adam" else SGD()
        self.batches = ClientBatches(self.streams, kind.images_per_client, kind.batch_size, kind.sampling, device)
        self.layered = _layered(self.network) if kind.by_layer else None
        self.server = _Server(len(defenses), kind.secure_aggregation)
        self.noise = _NoisePerTensor(self.network, len(parameters), kind.steps) if kind.noise_per_tensor else None

    def parts(self) -> dict[str, Part]:
        """The state of training."""
        parts: dict[str, Part] = {"runs": self.runs, "optimiser": self.optimiser, "server": self.server}
        if self.noise is not None:
            parts["noise"] = self.noise
        return parts | {f"clients{number}": clients for number, clients in enumerate(self.clients)}

    def update(self, step: int) -> None:
        """A round: all clients send, servers aggregate, and every run takes a step."""
        streams = self.streams.child("step", step)
        chosen = self.batches.at(step)
        batches = [clients.protect_data(clients.take(chosen), streams.child("defense")) for clients in self.clients]
        updates, losses = [], []
        for setting, steps in enumerate(self._computed(batches, streams)):
            updates.append(self._sent(step, setting, steps, streams))
            losses.append(steps.loss)
        update = torch.cat(updates)
        loss = torch.cat(losses).unflatten(0, (len(self.runs), self.kind.clients)).mean(dim=1)
        moved = self.runs.parameters - self.kind.rate_at(step) * self.optimiser.direction(update)
        self.runs.advance(step, moved, loss, finite_rows(loss, update))

    def _computed(self, batches: Sequence[Examples], streams: Streams) -> Iterator[ClientSteps]:
        """The local computation of all clients of each setting."""
        if self.layered is not None:
            for rows, batch in zip(self.of_settings, batches, strict=True):
                yield LayeredSteps(self.network, self.layered, self.runs.parameters[rows], *batch, streams)
            return
        steps = ClientSteps(
            self.network,
            self.runs.parameters.repeat_interleave(self.kind.clients, dim=0),
            torch.cat([batch.inputs for batch in batches]),
            torch.cat([batch.labels for batch in batches]),
            streams.repeat(len(batches)),
        )
        clients = len(streams)
        for setting in range(len(batches)):
            yield steps.rows(setting * clients, (setting + 1) * clients)

    def _sent(self, step: int, setting: int, steps: ClientSteps, streams: Streams) -> torch.Tensor:
        """The updates of a setting's servers from its clients' messages, ``[seeds, d]``."""
        clients, rows = self.clients[setting], self.of_settings[setting]
        message = clients.send(steps, streams.child("defense"))
        if self.noise is not None and (variance := self.kind.noise_variance(steps, message)) is not None:
            self.noise.add(rows, step, variance)
        if self.server.secure is None:
            return self.server.aggregated(setting, clients, message)
        return self.server.decoded(step, setting, message, streams, self.runs, rows)


class _Server(Stateful):
    """The servers of all runs, which see every message, or with secure aggregation the sum alone.

    Attributes:
        bits: of the largest message of a client, per setting.
        failed: runs whose secure aggregation failed, with the step and the reason.
    """

    def __init__(self, settings: int, secure: SecureAggregation | None) -> None:
        self.secure = secure
        self.bits = torch.zeros(settings, dtype=torch.int64)
        self.failed: dict[int, tuple[int, str]] = {}

    def aggregated(self, setting: int, clients: DefendedClients, message: Message) -> torch.Tensor:
        """The updates from all messages, ``[seeds, d]``."""
        self._note(setting, message.bits)
        return clients.aggregate(message)

    def decoded(
        self, step: int, setting: int, message: Message, streams: Streams, runs: Runs, rows: slice
    ) -> torch.Tensor:
        """The updates from the sums of messages, ``[seeds, d]``; runs for which the protocol fails are stopped."""
        assert self.secure is not None
        decoded = self.secure.updates(message.view(), streams, runs.alive[rows])
        self._note(setting, decoded.bits)
        for place, reason in decoded.failed.items():
            run = rows.start + place
            runs.stopped[run], self.failed[run] = True, (step, reason)
        return decoded.values

    def _note(self, setting: int, bits: int) -> None:
        self.bits[setting] = max(int(self.bits[setting]), bits)

    def state(self) -> dict[str, torch.Tensor]:
        return super().state() | {"failed": packed(list(self.failed.items()))}

    def restore(self, saved: State) -> None:
        super().restore(saved)
        self.failed = {run: (step, reason) for run, (step, reason) in unpacked(saved["failed"])}


class _NoisePerTensor(Stateful):
    """The noise in every parameter tensor.

    Attributes:
        levels: mean standard deviation of the noise, ``[runs, steps, tensors]``; NaN where a defense states none.
    """

    def __init__(self, network: Network, runs: int, steps: int) -> None:
        self.levels = torch.full((runs, steps, len(network.names)), torch.nan)
        self._sizes = network.sizes

    def add(self, runs: slice, step: int, variance: torch.Tensor) -> None:
        """Average the standard deviations of all clients of some runs, ``[runs * clients, d]``, over tensors."""
        parts = variance.sqrt().split(self._sizes, dim=1)
        means = torch.stack([part.mean(dim=1) for part in parts], dim=1)
        self.levels[runs, step] = means.unflatten(0, (runs.stop - runs.start, -1)).mean(dim=1).cpu()


@dataclass(frozen=True)
class _Guarantee:
    """The guarantee of a mechanism with distributed noise; empty for other mechanisms.

    Attributes:
        privacy: its statement.
        noise_variance: ``sigma^2`` of a user.
    """

    privacy: dict[str, Any] | None = None
    noise_variance: float | None = None

    def add_to(self, replicate: Replicate) -> None:
        """Put it into the replicate of a run."""
        replicate.privacy = self.privacy
        if self.noise_variance is not None:
            replicate.metrics["noise_variance"] = self.noise_variance


def _layered(network: Network) -> LayeredNetwork:
    """The network taken apart.

    Raises:
        Infeasible: it is more than a sequence of layers.
    """
    layered = LayeredNetwork.of(network)
    if layered is None:
        raise Infeasible("by_layer is for sequences of linear layers and convolutions; this model is none")
    return layered


def _add_noise_curves(replicate: Replicate, names: Sequence[str], noise: torch.Tensor) -> None:
    """The noise in each tensor, ``[steps, tensors]``; null after a run diverged, and where no noise is stated."""
    for name, curve in zip(map(noise_metric, names), noise.T.tolist(), strict=True):
        if math.isnan(curve[0]):
            replicate.metrics[name], replicate.reasons[name] = None, "the defense states no noise"
            continue
        step = replicate.outcome.step
        curve = curve if step is None else curve[:step] + [None] * (len(curve) - step)
        values = [value if value is None or math.isfinite(value) else None for value in curve]
        replicate.metrics[name] = values
        if None in values:
            replicate.reasons[name] = replicate.outcome.reason or "not finite"
