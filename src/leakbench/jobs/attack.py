"""Attack jobs: clients compute one defended update, the server reconstructs their samples, and we measure how well."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.attacks.base import Grant
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.federated.message import gains, stacked
from leakbench.federated.secure_training import SecureAggregation
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.pretraining import Diverged, Pretraining, pretrained
from leakbench.jobs.subjects import Subject, check_defense, subject_of
from leakbench.jobs.sums import averaged, of_so_many, only_sums, together
from leakbench.lazy import torch
from leakbench.metrics.image import IMAGE_METRICS
from leakbench.metrics.labels import label_accuracy
from leakbench.metrics.text import TEXT_METRICS
from leakbench.models.base import BatchNorm, Statistics
from leakbench.records import MetricInfo, Outcome, Replicate

if TYPE_CHECKING:
    from leakbench.attacks.base import Attack, Knowledge, Reconstruction
    from leakbench.data.base import Dataset
    from leakbench.defenses.base import Defense
    from leakbench.federated.message import Message
    from leakbench.federated.step import ClientSteps
    from leakbench.jobs.victims import Victims
    from leakbench.randomness import Streams

VICTIM_METRICS = {
    "objective": MetricInfo(unit="the attack's own objective", direction="lower", axis="victim"),
    "alignment": MetricInfo(unit="<g, y> / <g, g>, gradient g, decoded message y", direction="higher", axis="victim"),
    "distortion": MetricInfo(unit="root mean square of y - g", direction="lower", axis="victim"),
    "label_accuracy": MetricInfo(unit="part of the labels that are right", direction="higher", axis="victim"),
    "bits": MetricInfo(unit="bits on the wire per client and step", direction="lower"),
}
"""Of attack jobs, beside those of reconstructed images or sentences."""


TRAINED: dict[str, Grant] = {"prior": "prior", "language_model": "language_model"}
"""Kinds of job that train what attackers may know: what is granted, and the field that names where it is trained."""


@JOB_KINDS.register("attack", version=3)
class AttackJob(JobKind):
    """Reconstruct the samples of clients, images or sentences, from the defended update that each sends.

    By default that is one gradient. The model that they attack is untrained, or was trained without a defense on
    samples of no client. Where secure aggregation sums several users, a client stands for all of them: the server sees
    the mean of their updates, each defended by its user, and reconstructs the samples of all.
    """

    minutes: ClassVar[int] = 120
    uses_attacks: ClassVar[bool] = True
    gated_metrics: ClassVar[Mapping[str, MetricInfo]] = IMAGE_METRICS | TEXT_METRICS | VICTIM_METRICS
    added: ClassVar[tuple[str, ...]] = ("users", "secure_aggregation")

    clients: int = Field(ge=1, description="victim batches per seed")
    batch_size: int = Field(ge=1, description="samples per victim batch, B")
    first_index: int = Field(1, ge=0, description="where the victims start in the test split")
    auxiliary: int = Field(512, ge=1, description="training samples, of no client, that may be granted")
    knowledge: tuple[Grant, ...] = Field(
        ("labels", "pixel_range", "auxiliary_images", "auxiliary_sentences"),
        description="side knowledge that the threat model grants; some is of images alone, some of sentences",
    )
    batch_norm: BatchNorm = Field("eval", description="what the clients' BatchNorm layers normalise with")
    local: LocalTraining = Field(ONE_STEP, description="the clients' local training: one gradient, or FedAvg")
    epoch: int = Field(0, ge=0, description="how many epochs the model was trained, undefended, before the attack")
    pretraining: Pretraining = Field(Pretraining(), description="how it was trained")
    calibration: int | None = Field(
        5000,
        ge=2,
        description="training images, none of them auxiliary, that calibrate a defense which looks at its clients' "
        "data; null: all of them",
    )
    messages: int = Field(
        1,
        ge=1,
        description="messages of each client about the same images and model, with fresh randomness of the defense; "
        "attacks see the first, 'averaged' all of them",
    )
    prior: str | None = Field(
        None,
        description="experiment of the same paper whose job 'prior' trained networks that are granted on this data set",
    )
    language_model: str | None = Field(
        None,
        description="experiment of the same paper whose job 'language_model' trained a model that is granted on this "
        "data set of sentences",
    )
    target: Literal["images", "batch_mean"] = Field(
        "images",
        description="what reconstructions are compared with: every image, or, by their mean, the mean of the batch",
    )

    users: int = Field(
        1,
        ge=1,
        description="users whose updates secure aggregation averages before the server sees them, each with batch_size "
        "samples; clients counts such means",
    )
    secure_aggregation: SecureAggregation | None = Field(
        None,
        description="the protocol by which the server gets the sum of two or more users, all of whom stay; by default "
        "it is computed in the clear",
    )

    @model_validator(mode="after")
    def _nobody_drops_out(self) -> AttackJob:
        if self.secure_aggregation is not None and self.secure_aggregation.dropout:
            raise ValueError("secure_aggregation.dropout: no user drops out here, since all are reconstructed")
        return self

    @model_validator(mode="after")
    def _whole_local_batches(self) -> AttackJob:
        size = self.local.batch_size
        if size is not None and self.batch_size % size:
            raise ValueError(f"local.batch_size ({size}) must divide batch_size ({self.batch_size})")
        return self

    @model_validator(mode="after")
    def _what_is_trained_has_a_source(self) -> AttackJob:
        for name in TRAINED.values():
            if name in self.knowledge:
                raise ValueError(f"knowledge: '{name}' is granted by the field {name}, which names where it is trained")
        return self

    @classmethod
    def folder(cls, attack: str) -> str:
        return attack

    def reads(self, attack: Attack | None) -> Mapping[str, str]:
        if attack is None:
            return {}
        return {kind: name for kind, name in TRAINED.items() if getattr(self, name) and name in attack.needs}

    def effort(self, job: Job) -> Effort:
        seen = self.local.samples(self.batch_size * self.users)
        updates = Effort(seen, self.local.steps).times(self.messages)
        attacked = job.attack_effort(seen)
        one = updates.plus(Effort(attacked.passes, attacked.steps * self.local.steps))
        trained = self.pretraining.effort(job.dataset.single(), self.epoch)
        return trained.plus(one.beside(job.defense.count * self.clients)).times(len(job.seeds))

    def volume(self, job: Job) -> float:
        samples = self.clients * self.users * self.batch_size
        return len(job.seeds) * job.defense.count * float(samples * math.prod(job.dataset.single().shape))

    def run(self, job: Job, device: torch.device) -> Findings:
        from leakbench.jobs.calibration import CalibrationImages

        assert job.attack is not None
        dataset = job.dataset.single()
        subject = subject_of(dataset, job.model.single())
        metrics = subject.metrics | VICTIM_METRICS
        replicates: list[Replicate] = []
        tensors: dict[str, torch.Tensor] = {}
        try:
            attack = job.attack.single().against(job.defense.component.adaptive)
            self._check(job.attack.label, attack, dataset)
            for _, defense in job.defense.settings():
                check_defense(dataset, defense)
            if self.users > 1:
                self._check_sum(job.attack.label, attack, [defense for _, defense in job.defense.settings()])
            images = CalibrationImages(dataset, device, self.calibration, self.auxiliary)
            defenses = images.calibrated(job.defense.settings())
            for seed in job.seeds:
                found, reconstructions = self._attack_seed(job, subject, attack, defenses, seed, device)
                replicates += found
                tensors |= reconstructions
        except Infeasible as error:
            outcome = Outcome(status="infeasible", reason=str(error))
            return Findings(metrics, _without_numbers(job, metrics, job.seeds, outcome), {})
        return Findings(metrics, replicates, tensors)

    def _check(self, label: str, attack: Attack, dataset: Dataset) -> None:
        """Whether an attack can run on these samples, and knows what it needs.

        Raises:
            Infeasible: it cannot.
        """
        if attack.reconstructs != dataset.unit:
            raise Infeasible(
                f"attack '{label}' reconstructs {attack.reconstructs}; data set '{dataset.name}' holds {dataset.unit}"
            )
        if self.target == "batch_mean" and dataset.unit != "images":
            raise Infeasible(f"target 'batch_mean': there is no mean of {dataset.unit}")
        granted = {*self.knowledge, *(name for name in TRAINED.values() if getattr(self, name))}
        missing = sorted(attack.needs - granted)
        if missing:
            raise Infeasible(f"attack '{label}' needs {', '.join(missing)}, which is not granted")

    def _check_sum(self, label: str, attack: Attack, defenses: list[Defense]) -> None:
        """Whether the mean of several users' updates is that of one batch, and a server can get it.

        Raises:
            Infeasible: it is not, or cannot.
        """
        only_sums(defenses)
        of_so_many(defenses, self.users)
        if not self.local.is_gradient(self.batch_size):
            raise Infeasible("a mean of several users' local training is the update of no single batch")
        if self.batch_norm == "train":
            raise Infeasible("users' BatchNorm layers normalise with a batch each, and their mean has several")
        if "batch_statistics" in attack.needs:
            raise Infeasible(f"attack '{label}' knows the statistics of one batch; a mean has a batch of every user")

    def _attack_seed(
        self,
        job: Job,
        subject: Subject,
        attack: Attack,
        defenses: list[tuple[Setting, Defense]],
        seed: int,
        device: torch.device,
    ) -> tuple[list[Replicate], dict[str, torch.Tensor]]:
        """All settings of the defense at once: they are only more observations of the same model."""
        from leakbench.attacks.base import Observations
        from leakbench.defenses.base import Schedule
        from leakbench.federated.step import ClientSteps
        from leakbench.jobs.victims import gather_victims

        victims = gather_victims(
            subject.dataset,
            job.dataset.label,
            job.model.single(),
            seed,
            clients=self.clients * self.users,
            batch_size=self.batch_size,
            first_index=self.first_index,
            device=device,
        )
        try:
            trained = pretrained(
                victims.network, subject.dataset, job.dataset.label, seed, self.epoch, self.pretraining, device
            )
        except Diverged as error:
            outcome = Outcome(status="diverged", reason=str(error))
            return _without_numbers(job, subject.metrics | VICTIM_METRICS, [seed], outcome), {}
        network = trained.in_mode(self.batch_norm)
        parameters = network.parameters
        inputs = subject.inputs(network, parameters, victims.values)
        victims = replace(victims, network=network, parameters=parameters, inputs=inputs)
        steps = ClientSteps(network, victims.parameters, victims.inputs, victims.labels, victims.streams, self.local)
        settings: list[Setting] = []
        messages: list[Message] = []
        privacy, statistics = [], []
        image_noise: list[torch.Tensor] = []
        repeats: list[torch.Tensor] = []
        for setting, defense in defenses:
            stored = defense.protect_dataset(victims.inputs, victims.labels, victims.streams.child("data"))

            def send(
                streams: Streams,
                defense: Defense = defense,
                stored: tuple[torch.Tensor, torch.Tensor] = stored,
            ) -> tuple[ClientSteps, Message]:
                images, labels = defense.protect_data(*stored, streams)
                changed = images is not victims.inputs or labels is not victims.labels
                defended = (
                    ClientSteps(network, victims.parameters, images, labels, victims.streams, self.local)
                    if changed
                    else steps
                )
                message = defense.protect_update(defended, streams)
                return defended, averaged(message, self.users, self.secure_aggregation)

            defended, message = send(victims.streams.child("defense"))
            if self.messages > 1:
                others = [
                    send(victims.streams.child("defense", number))[1].view() for number in range(1, self.messages)
                ]
                repeats.append(torch.stack([message.view(), *others], dim=1))
            settings.append(setting)
            messages.append(message)
            privacy.append(defense.privacy(Schedule(dimension=network.dimension)))
            if "data_noise" in self.knowledge:
                covariances = defense.image_noise()
                # One object where clients share it: attackers group by it.
                if len(covariances) > 1 and self.users > 1:
                    raise Infeasible("users' images have noise of different covariances, and attackers know one")
                image_noise += covariances * self.clients if len(covariances) == 1 else covariances
            of_batches = "batch_statistics" in self.knowledge and self.users == 1
            statistics.append(defended.batch_statistics if of_batches else {})
        victims, gradient = together(victims, self.users), steps.gradient
        if self.users > 1:
            gradient = gradient.unflatten(0, (-1, self.users)).mean(dim=1)
        views = [message.view() for message in messages]
        observations = Observations(
            network,
            victims.parameters,
            torch.cat(views),
            tuple(victims.inputs.shape[1:]),
            self.local,
            marked=stacked([message.marked for message in messages]),
            gain=gains(messages, views),
            repeats=torch.cat(repeats) if repeats else None,
        )
        observations.check()
        trials = victims.streams.child("attack").repeat(len(settings))
        variance = stacked([message.noise_variance for message in messages])
        given = subject.knowledge(victims, self.knowledge, self.auxiliary)
        knowledge = self._knowledge(given, victims, statistics, variance, image_noise)
        trained_for: dict[str, Any] = {TRAINED[kind]: self._trained(kind, job, device) for kind in job.uses}
        knowledge = replace(knowledge, **trained_for)
        reconstruction = attack.reconstruct(observations, knowledge, trials)
        if self.target == "batch_mean":
            victims = replace(victims, values=_means(victims.values), inputs=_means(victims.inputs))
            reconstruction = replace(reconstruction, images=_means(reconstruction.images))
        replicates, compared = [], []
        for index, (setting, view) in enumerate(zip(settings, views, strict=True)):
            rows = reconstruction.rows(index * self.clients, (index + 1) * self.clients)
            compared.append(subject.compare(victims, rows))
            values = compared[-1].values | self._of_victims(victims, rows, gradient, view)
            replicates.append(_replicate(seed, setting, values, rows.diverged_at))
        for replicate, message, statement in zip(replicates, messages, privacy, strict=True):
            replicate.metrics["bits"] = float(message.bits)
            replicate.privacy = statement.as_dict()
        tensors = {
            f"seed{seed}/victims": subject.shown(victims),
            f"seed{seed}/reconstructions": _beside([each.shown for each in compared]),
        }
        order = torch.stack([each.order for each in compared])
        if order.shape[2] > 1:
            tensors[f"seed{seed}/assignment"] = order
        return replicates, tensors

    def _trained(self, kind: str, job: Job, device: torch.device) -> Any:
        """What a job of another kind has trained for attackers.

        Raises:
            Infeasible: its training diverged.
        """
        weights = job.kept[kind]
        if not weights:
            where = getattr(self, TRAINED[kind])
            raise Infeasible(f"the networks of experiment '{where}' have no weights: their training diverged")
        return job.uses[kind].kind.granted(weights, job.dataset.single(), device)

    def _knowledge(
        self,
        given: dict[str, Any],
        victims: Victims,
        statistics: list[Statistics],
        variance: torch.Tensor | None,
        image_noise: list[torch.Tensor],
    ) -> Knowledge:
        """What is granted, for every setting.

        Args:
            given: what is of the samples, for one setting.
            victims: of one setting.
            statistics: of each setting's batches.
            variance: of the noise on gradients, ``[settings * n, d]``; None where there is none.
            image_noise: covariance of the noise on every client's images, for all settings; empty where there is none.
        """
        from leakbench.attacks.base import Knowledge

        granted, settings = set(self.knowledge), len(statistics)
        knowledge = Knowledge(
            labels=victims.labels.repeat(settings, 1) if "labels" in granted else None,
            batch_statistics={name: torch.cat([each[name] for each in statistics]) for name in statistics[0]} or None,
            noise_variance=variance if "noise_variance" in granted else None,
            data_noise=image_noise or None,
            **given,
        )
        if knowledge.words is None or knowledge.inputs is None:
            return knowledge
        return replace(knowledge, words=knowledge.words.repeat(settings), inputs=knowledge.inputs.repeat(settings))

    def _of_victims(
        self, victims: Victims, reconstruction: Reconstruction, gradient: torch.Tensor, view: torch.Tensor
    ) -> dict[str, torch.Tensor | str]:
        """The metrics of one setting that have one value per client, ``[n]``, or the reason why there is none."""
        values: dict[str, torch.Tensor | str] = {
            "objective": "the attack has no objective",
            "alignment": (gradient * view).sum(dim=1) / gradient.square().sum(dim=1),
            "distortion": (view - gradient).square().mean(dim=1).sqrt(),
        }
        if reconstruction.objective is not None:
            values["objective"] = reconstruction.objective
        values["label_accuracy"] = "the attack uses no labels"
        if reconstruction.labels is not None:
            classes = victims.network.head.outputs
            values["label_accuracy"] = label_accuracy(reconstruction.labels, victims.labels, classes)
        return values


def _replicate(
    seed: int, setting: Setting, values: Mapping[str, torch.Tensor | str], diverged_at: torch.Tensor
) -> Replicate:
    """The metrics of one setting; a diverged trial's values are null, with the reason.

    Args:
        seed: of the repetition.
        setting: values of the swept parameters.
        values: per metric one value per client ``[n]`` or per sample ``[n * B]``, or the reason why there is none.
        diverged_at: ``[n]``.
    """
    diverged, n = diverged_at >= 0, len(diverged_at)
    replicate = Replicate(seed=seed, setting=dict(setting), metrics={})
    if bool(diverged.any()):
        step = int(diverged_at[diverged].min())
        reason = f"{int(diverged.sum())} of {n} trials became non-finite"
        replicate.outcome = Outcome(status="diverged", reason=reason, step=step)
    for name, value in values.items():
        if isinstance(value, str):
            replicate.metrics[name], replicate.reasons[name] = None, value
            continue
        lost = diverged.repeat_interleave(len(value) // n).to(value.device)
        keep = (value.isfinite() & ~lost).tolist()
        replicate.metrics[name] = [number if kept else None for number, kept in zip(value.tolist(), keep, strict=True)]
        if not all(keep):
            replicate.reasons[name] = replicate.outcome.reason or "not finite"
    return replicate


def _without_numbers(
    job: Job, metrics: Mapping[str, MetricInfo], seeds: Iterable[int], outcome: Outcome
) -> list[Replicate]:
    return [
        Replicate(
            seed=seed,
            setting=dict(setting),
            outcome=outcome,
            metrics=dict.fromkeys(metrics),
            reasons=dict.fromkeys(metrics, outcome.reason or ""),
        )
        for seed, (setting, _) in itertools.product(seeds, job.defense.settings())
    ]


def _beside(parts: list[torch.Tensor]) -> torch.Tensor:
    """What is shown of every setting, ``[settings, n, B, ...]``; shorter sentences are padded with zeros."""
    widest = max(part.shape[-1] for part in parts)
    return torch.stack([torch.nn.functional.pad(part, (0, widest - part.shape[-1])) for part in parts])


def _means(images: torch.Tensor) -> torch.Tensor:
    """The mean of every batch, ``[n, B, C, H, W] -> [n, 1, C, H, W]``."""
    return images.mean(dim=1, keepdim=True)
