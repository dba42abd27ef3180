"""Training jobs: federated training under a defense, and what it costs in utility."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.effort import FORWARD, Effort
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.secure_training import SecureAggregation
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.sums import only_sums
from leakbench.lazy import torch
from leakbench.models.base import BatchNorm
from leakbench.numerics.adam import Adam
from leakbench.records import MetricInfo, Outcome, Replicate

if TYPE_CHECKING:
    from leakbench.attacks.base import Attack
    from leakbench.defenses.base import Defense
    from leakbench.jobs.victims import Victims
    from leakbench.models.base import Network
    from leakbench.models.layered import LayeredNetwork
    from leakbench.randomness import Streams

TRAINING_METRICS = {
    "loss_curve": MetricInfo(unit="nats, mean over clients before the step", direction="lower", axis="step"),
    "final_loss": MetricInfo(unit="nats, mean over the training images after the last step", direction="lower"),
    "accuracy": MetricInfo(unit="part of the evaluation images", direction="higher"),
    "bits": MetricInfo(unit="bits on the wire per client and step", direction="lower"),
}

NOISE_VARIANCE = {
    "noise_variance": MetricInfo(unit="sigma^2 of one user's noise, per coordinate of its mean", direction="lower")
}

NOISE_PER_TENSOR = MetricInfo(unit="mean standard deviation of the noise in a tensor", direction="none", axis="step")


def noise_metric(tensor: str) -> str:
    """The metric of the noise in a parameter tensor."""
    return f"noise_std/{tensor}"


@dataclass
class Trained:
    """What several training runs, side by side, ended with.

    Attributes:
        parameters: ``[runs, d]``.
        curves: loss before each step, ``[runs, steps]``; NaN from the step at which a run diverged.
        diverged_at: that step, ``[runs]``, -1 where it never came.
        bits: of one client's largest message, per setting.
        noise: mean standard deviation of the noise in each parameter tensor, ``[runs, steps, tensors]``; NaN where the
            defense states none; None unless asked for.
        failed: the runs whose secure aggregation failed, with the step and the reason.
    """

    parameters: torch.Tensor
    curves: torch.Tensor
    diverged_at: torch.Tensor
    bits: list[int]
    noise: torch.Tensor | None
    failed: dict[int, tuple[int, str]]


@JOB_KINDS.register("train", version=1)
class TrainJob(JobKind):
    """Train a model from scratch with equal-sized clients, every one of which defends every step.

    All settings of the defense and all seeds are trained side by side: runs are ordered by setting, then seed.
    """

    added: ClassVar[tuple[str, ...]] = ("split", "sampling", "secure_aggregation", "by_layer", "constants")

    clients: int = Field(ge=1, description="clients per round")
    batch_size: int = Field(ge=1, description="images per client and step, B")
    images_per_client: int = Field(ge=1, description="size of a client's data; a multiple of batch_size, if shuffled")
    split: Literal["test", "train"] = Field(
        "test",
        description="which split the clients' images are of: of the test split those from first_index on, of the train "
        "split as many drawn at random, anew for each seed",
    )
    first_index: int = Field(1, ge=0, description="where the clients' images start in the test split")
    steps: int = Field(ge=1, description="server updates")
    optimiser: Literal["adam", "sgd"] = Field("adam", description="the server's optimiser")
    rate: float = Field(gt=0, description="learning rate")
    evaluation: tuple[int, int] | None = Field(None, description="test images to evaluate on: from, to (exclusive)")
    batch_norm: BatchNorm = Field("eval", description="what the clients' BatchNorm layers normalise with")
    noise_per_tensor: bool = Field(False, description="measure the noise in every parameter tensor at every step")
    sampling: Literal["shuffled", "independent", "all"] = Field(
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
        if secure is not None and secure.threshold > self.clients:
            raise ValueError(
                f"secure_aggregation.threshold ({secure.threshold}) must be at most clients ({self.clients})"
            )
        return self

    def reads(self, attack: Attack | None) -> Mapping[str, str]:
        return {"leakage": "constants"} if self.constants else {}

    def effort(self, job: Job) -> Effort:
        start, stop = self.evaluation or (0, 0)
        judged = Effort(FORWARD * (self.clients * self.images_per_client + stop - start), 1)
        step = Effort(self.clients * self.batch_size, 1).beside(len(job.seeds)).times(job.defense.count)
        return step.times(self.steps).plus(judged.times(len(job.seeds) * job.defense.count))

    def volume(self, job: Job) -> float:
        return float(len(job.seeds) * job.defense.count * self.steps)

    def run(self, job: Job, device: torch.device) -> Findings:
        from leakbench.jobs.victims import gather_victims

        settings, replicates = self._tuned(job)
        if not settings:
            return Findings(TRAINING_METRICS, replicates, {})
        starts = [
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
            ).in_mode(self.batch_norm)
            for seed in job.seeds
        ]
        names = starts[0].network.names
        statements = [self._stated(defense, starts[0].network) for _, defense in settings]
        with torch.no_grad():
            trained = self._train(job, [defense for _, defense in settings], starts)
            final_loss = self._final_loss(trained, starts)
            accuracy = self._accuracy(job, trained, starts[0])
        for index, (setting, _) in enumerate(settings):
            for offset, seed in enumerate(job.seeds):
                run = index * len(job.seeds) + offset
                metrics = {
                    "loss_curve": trained.curves[run].tolist(),
                    "final_loss": final_loss[run],
                    "accuracy": accuracy[run],
                    "bits": float(trained.bits[index]),
                }
                statement, level = statements[index]
                if level is not None:
                    metrics["noise_variance"] = level
                diverged_at, failed = int(trained.diverged_at[run]), trained.failed.get(run)
                if diverged_at < 0 and failed is None and not math.isfinite(final_loss[run]):
                    diverged_at = self.steps  # the last update was one too many
                outcome = Outcome()
                if diverged_at >= 0:
                    reason = f"training became non-finite at step {diverged_at}"
                    outcome = Outcome(status="diverged", reason=reason, step=diverged_at)
                elif failed is not None:
                    outcome = Outcome(status="infeasible", reason=f"step {failed[0]}: {failed[1]}", step=failed[0])
                replicate = self._replicate(seed, dict(setting), metrics, outcome)
                replicate.privacy = statement
                if trained.noise is not None:
                    _add_noise_curves(replicate, names, trained.noise[run])
                replicates.append(replicate)
        noise_metrics = dict.fromkeys(map(noise_metric, names if self.noise_per_tensor else ()), NOISE_PER_TENSOR)
        levels = NOISE_VARIANCE if any(level is not None for _, level in statements) else {}
        return Findings(TRAINING_METRICS | levels | noise_metrics, replicates, {})

    def _tuned(self, job: Job) -> tuple[list[tuple[Setting, Defense]], list[Replicate]]:
        """The settings of the defense, tuned if they are to be, and replicates of those that no parameter meets."""
        settings: list[tuple[Setting, Defense]] = []
        replicates = []
        for setting, defense in job.defense.settings():
            try:
                settings.append((setting, defense.tune(job.kept)))
            except Infeasible as error:
                outcome = Outcome(status="infeasible", reason=str(error))
                replicates += [
                    Replicate(
                        seed=seed,
                        setting=dict(setting),
                        outcome=outcome,
                        metrics=dict.fromkeys(TRAINING_METRICS),
                        reasons=dict.fromkeys(TRAINING_METRICS, str(error)),
                    )
                    for seed in job.seeds
                ]
        return settings, replicates

    def _stated(self, defense: Defense, network: Network) -> tuple[dict[str, Any] | None, float | None]:
        """What a mechanism whose noise users add together guarantees for this training, and its ``sigma^2``.

        Raises:
            ConfigError: its noise is calibrated for another training.
            Infeasible: no noise has the epsilon that is asked for.
        """
        from leakbench.defenses.aggregate import SummedUsers
        from leakbench.defenses.base import Schedule

        if not isinstance(defense, SummedUsers):
            return None, None
        level = defense.noise_level
        statement = defense.privacy(Schedule(network.dimension, rounds=self.steps, clients=self.clients))
        if defense.epsilon is not None and statement.epsilon is None:
            raise ConfigError(f"'{defense.name}' with epsilon {defense.epsilon:g}: {statement.basis}")
        return statement.as_dict(), level

    def _train(self, job: Job, defenses: list[Defense], starts: list[Victims]) -> Trained:
        from leakbench.federated.client_data import ClientData
        from leakbench.federated.layered_steps import LayeredSteps
        from leakbench.federated.step import ClientSteps
        from leakbench.numerics.stateful import named, part_of
        from leakbench.randomness import Streams
        from leakbench.running.checkpoint import loop, packed, unpacked

        keys = [(job.dataset.label, seed, "client", client) for seed in job.seeds for client in range(self.clients)]
        images = torch.cat([start.inputs for start in starts])
        labels = torch.cat([start.labels for start in starts])
        data = ClientData(images)
        if self.secure_aggregation is not None:
            only_sums(defenses)
        defenses = [defense.calibrate(data) for defense in defenses]
        datasets = [defense.protect_dataset(images, labels, Streams(keys).child("data")) for defense in defenses]
        network, device = starts[0].network, starts[0].inputs.device
        layered = self._layered(network)
        rows, runs = len(starts) * self.clients, len(starts) * len(defenses)
        parameters = torch.stack([start.parameters for start in starts]).repeat(len(defenses), 1)
        adam = Adam(parameters) if self.optimiser == "adam" else None
        curves = torch.full((runs, self.steps), torch.nan, device=device)
        diverged_at = torch.full((runs,), -1, device=device)
        bits = [0] * len(defenses)
        noise = torch.full((runs, self.steps, len(network.names)), torch.nan) if self.noise_per_tensor else None
        failed: dict[int, tuple[int, str]] = {}

        def state() -> dict[str, torch.Tensor]:
            found = {"parameters": parameters, "curves": curves, "diverged_at": diverged_at}
            found |= named("adam", adam.state()) if adam else {}
            found |= {} if noise is None else {"noise": noise}
            return found | {"said": packed([bits, list(failed.items())])}

        with loop("training", self.steps) as rounds:
            if rounds.saved:
                parameters, diverged_at = (rounds.saved[name].to(device) for name in ("parameters", "diverged_at"))
                curves.copy_(rounds.saved["curves"])
                if adam:
                    adam.restore(part_of(rounds.saved, "adam"))
                if noise is not None:
                    noise.copy_(rounds.saved["noise"])
                bits, said = unpacked(rounds.saved["said"])
                failed = {run: (step, reason) for run, (step, reason) in said}
            for step, (chosen, streams) in enumerate(self._batches(keys, device, rounds.done), rounds.done):
                protected = [
                    defense.protect_data(every[chosen], each[chosen], streams.child("defense"))
                    for defense, (every, each) in zip(defenses, datasets, strict=True)
                ]
                if layered is None:
                    steps = ClientSteps(
                        network,
                        parameters.repeat_interleave(self.clients, dim=0),
                        torch.cat([images for images, _ in protected]),
                        torch.cat([labels for _, labels in protected]),
                        streams.repeat(len(defenses)),
                    )
                updates, losses = [], []
                for index, defense in enumerate(defenses):
                    if layered is None:
                        own = steps.rows(index * rows, (index + 1) * rows)
                    else:
                        models = parameters[index * len(starts) : (index + 1) * len(starts)]
                        own = LayeredSteps(network, layered, models, *protected[index], streams)
                    message = defense.protect_update(own, streams.child("defense"))
                    if self.secure_aggregation is None:
                        updates.append(defense.aggregate(message, self.clients))
                        bits[index] = max(bits[index], message.bits)
                    else:
                        over = {run for run in range(runs) if diverged_at[run] >= 0} | set(failed)
                        sent, first = message.view(), index * len(starts)
                        update, size, reasons = self._secure_update(
                            self.secure_aggregation, sent, streams, {run - first for run in over}
                        )
                        updates.append(update)
                        bits[index] = max(bits[index], size)
                        failed |= {first + run: (step, reason) for run, reason in reasons.items()}
                    if noise is not None and message.noise_variance is not None:
                        own_runs = slice(index * len(starts), (index + 1) * len(starts))
                        noise[own_runs, step] = self._noise_per_tensor(network, message.noise_variance)
                    if layered is not None:
                        losses.append(own.loss)
                update = torch.cat(updates)
                loss = torch.cat(losses) if losses else steps.loss
                loss = loss.unflatten(0, (runs, self.clients)).mean(dim=1)
                finite = loss.isfinite() & update.isfinite().all(dim=1)
                stopped = torch.zeros_like(finite)
                stopped[list(failed)] = True
                diverged_at = torch.where((diverged_at < 0) & ~finite & ~stopped, step, diverged_at)
                alive = (diverged_at < 0) & ~stopped
                curves[:, step] = torch.where(alive, loss, torch.nan)
                direction = adam.direction(update) if adam else update
                parameters = torch.where(alive[:, None], parameters - self.rate * direction, parameters)
                rounds.tick(state)
        return Trained(parameters, curves, diverged_at, bits, noise, failed)

    def _layered(self, network: Network) -> LayeredNetwork | None:
        """The network taken apart, if it is to be.

        Raises:
            Infeasible: it cannot be.
        """
        if not self.by_layer:
            return None
        from leakbench.models.layered import LayeredNetwork

        layered = LayeredNetwork.of(network)
        if layered is None:
            raise Infeasible("by_layer is for sequences of linear layers and convolutions; this model is none")
        return layered

    def _secure_update(
        self, secure: SecureAggregation, sent: torch.Tensor, streams: Streams, over: Collection[int]
    ) -> tuple[torch.Tensor, int, dict[int, str]]:
        """The server's updates from what it decodes, ``[runs, d]``, a message's bits, and which runs failed, and why.

        Args:
            secure: the parameters.
            sent: what the clients would send in the clear, ``[runs * clients, d]``.
            streams: of the step, one per row.
            over: the runs that have ended; nothing is computed for them.
        """
        runs = sent.unflatten(0, (-1, self.clients))
        dropped = secure.dropped(streams).unflatten(0, (-1, self.clients))
        update, bits, reasons = torch.zeros_like(runs[:, 0]), 0, dict[int, str]()
        for run, values in enumerate(runs):
            if run in over:
                continue
            if not bool(values.isfinite().all()):  # which no client's software would encode: the run diverged
                update[run] = torch.nan
                continue
            try:
                update[run], size = secure.mean(values, dropped[run].nonzero()[:, 0].tolist())
                bits = max(bits, size)
            except Infeasible as error:
                reasons[run] = str(error)
        return update, bits, reasons

    def _noise_per_tensor(self, network: Network, variance: torch.Tensor) -> torch.Tensor:
        """Standard deviations averaged over tensors and clients: ``[runs * clients, d]`` to ``[runs, tensors]``."""
        parts = variance.sqrt().split(network.sizes, dim=1)
        means = torch.stack([part.mean(dim=1) for part in parts], dim=1)
        of_runs: torch.Tensor = means.unflatten(0, (-1, self.clients)).mean(dim=1).cpu()
        return of_runs

    def _batches(
        self, keys: Sequence[tuple[str | int, ...]], device: torch.device, begin: int = 0
    ) -> Iterator[tuple[tuple[torch.Tensor | slice, torch.Tensor | slice], Streams]]:
        """From step ``begin`` on, rows and columns of every step's images among all of them, and its streams."""
        from leakbench.randomness import Streams

        if self.sampling == "all":
            for step in range(begin, self.steps):
                yield (slice(None), slice(None)), Streams(keys).child("step", step)
            return

        row = torch.arange(len(keys), device=device)[:, None]
        batches_per_epoch = self.images_per_client // self.batch_size
        for step in range(begin, self.steps):
            epoch, batch = divmod(step, batches_per_epoch)
            if self.sampling == "independent":
                order, batch = Streams(keys).child("batch", step).uniform(self.images_per_client).argsort(dim=1), 0
                order = order.to(device)
            elif batch == 0 or step == begin:
                shuffle = Streams(keys).child("order", epoch).uniform(self.images_per_client, device=device)
                order = shuffle.argsort(dim=1)
            chosen = order[:, batch * self.batch_size : (batch + 1) * self.batch_size]
            yield (row, chosen), Streams(keys).child("step", step)

    def _final_loss(self, trained: Trained, starts: Sequence[Victims]) -> list[float]:
        """Undefended loss on all training images of its seed, one value per run."""
        return [
            float(own.network.loss(parameters, own.inputs.flatten(0, 1), own.labels.flatten(0, 1)))
            for parameters, own in zip(trained.parameters, itertools.cycle(starts))
        ]

    def _accuracy(self, job: Job, trained: Trained, victims: Victims) -> list[float | None]:
        """Accuracy on the evaluation images, one value per run; None where the protocol names no such images."""
        if self.evaluation is None:
            return [None] * len(trained.parameters)
        dataset, device = job.dataset.single(), victims.inputs.device
        samples = dataset.load("test", range(*self.evaluation))
        images, labels = dataset.normalise(samples.values.to(device)), samples.labels.to(device)
        return [
            float((victims.network.logits(parameters, images).argmax(dim=1) == labels).float().mean())
            for parameters in trained.parameters
        ]

    def _replicate(
        self, seed: int, setting: dict[str, float | int | str | bool], metrics: dict[str, Any], outcome: Outcome
    ) -> Replicate:
        """A run's metrics; what a run that ended early no longer has is null, with the reason."""
        reasons: dict[str, str] = {}
        if outcome.step is not None and outcome.reason is not None:
            metrics["loss_curve"][outcome.step :] = [None] * (self.steps - outcome.step)
            metrics |= {"final_loss": None, "accuracy": None}
            lost = ("loss_curve", "final_loss", "accuracy") if outcome.step < self.steps else ("final_loss", "accuracy")
            reasons = dict.fromkeys(lost, outcome.reason)
        elif metrics["accuracy"] is None:
            reasons["accuracy"] = "the protocol names no evaluation images"
        return Replicate(seed=seed, setting=setting, outcome=outcome, metrics=metrics, reasons=reasons)


def _add_noise_curves(replicate: Replicate, names: Sequence[str], noise: torch.Tensor) -> None:
    """The noise in each tensor, ``[steps, tensors]``; null after a run diverged, and where no noise is stated."""
    for name, curve in zip(map(noise_metric, names), noise.T.tolist(), strict=True):
        if math.isnan(curve[0]):
            replicate.metrics[name], replicate.reasons[name] = None, "the defense states no noise"
            continue
        step = replicate.outcome.step
        kept = curve if step is None else curve[:step] + [None] * (len(curve) - step)
        values = [value if value is None or math.isfinite(value) else None for value in kept]
        replicate.metrics[name] = values
        if None in values:
            replicate.reasons[name] = replicate.outcome.reason or "not finite"
