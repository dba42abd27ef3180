"""Attack jobs: clients compute one defended update, the server reconstructs their images, and we measure how well."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.attacks.base import Grant
from leakbench.data.base import image_dataset
from leakbench.errors import Infeasible
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.pretraining import Diverged, Pretraining, pretrained
from leakbench.jobs.prior import PriorJob
from leakbench.lazy import torch
from leakbench.metrics.assignment import ASSIGNED, ASSIGNED_METRICS, assign, reorder
from leakbench.metrics.image import IMAGE_METRICS
from leakbench.metrics.labels import label_accuracy
from leakbench.models.base import BatchNorm, Statistics
from leakbench.records import MetricInfo, Outcome, Replicate

if TYPE_CHECKING:
    from leakbench.attacks.base import Attack, Knowledge, Reconstruction
    from leakbench.attacks.restoration.prior import Prior
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
ATTACK_METRICS = IMAGE_METRICS | ASSIGNED_METRICS | VICTIM_METRICS


@JOB_KINDS.register("attack", version=3)
class AttackJob(JobKind):
    """Reconstruct the images of clients from the defended update that each sends: by default one gradient.

    The model that they attack is untrained, or was trained without a defense on images of no client.
    """

    uses_attacks: ClassVar[bool] = True

    clients: int = Field(ge=1, description="victim batches per seed")
    batch_size: int = Field(ge=1, description="images per victim batch, B")
    first_index: int = Field(1, ge=0, description="where the victims start in the test split")
    auxiliary: int = Field(512, ge=1, description="training images, of no client, that may be granted")
    knowledge: tuple[Grant, ...] = Field(
        ("labels", "pixel_range", "auxiliary_images"), description="side knowledge that the threat model grants"
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
    target: Literal["images", "batch_mean"] = Field(
        "images",
        description="what reconstructions are compared with: every image, or, by their mean, the mean of the batch",
    )

    @model_validator(mode="after")
    def _whole_local_batches(self) -> AttackJob:
        size = self.local.batch_size
        if size is not None and self.batch_size % size:
            raise ValueError(f"local.batch_size ({size}) must divide batch_size ({self.batch_size})")
        return self

    @model_validator(mode="after")
    def _prior_has_a_source(self) -> AttackJob:
        if "prior" in self.knowledge:
            raise ValueError("knowledge: 'prior' is granted by the field prior, which names where it is trained")
        return self

    def reads(self, attack: Attack | None) -> Mapping[str, str]:
        needed = self.prior is not None and attack is not None and "prior" in attack.needs
        return {PriorJob.name: "prior"} if needed else {}

    def run(self, job: Job, device: torch.device) -> Findings:
        from leakbench.jobs.calibration import CalibrationImages

        assert job.attack is not None
        replicates: list[Replicate] = []
        tensors: dict[str, torch.Tensor] = {}
        try:
            attack = job.attack.single().against(job.defense.component.adaptive)
            missing = sorted(attack.needs - set(self.knowledge) - ({"prior"} if self.prior else set()))
            if missing:
                raise Infeasible(f"attack '{job.attack.label}' needs {', '.join(missing)}, which is not granted")
            images = CalibrationImages(job.dataset.single(), device, self.calibration, self.auxiliary)
            defenses = images.calibrated(job.defense.settings())
            for seed in job.seeds:
                found, reconstructions = self._attack_seed(job, attack, defenses, seed, device)
                replicates += found
                tensors |= reconstructions
        except Infeasible as error:
            return self._infeasible(job, str(error))
        return Findings(ATTACK_METRICS, replicates, tensors)

    def _infeasible(self, job: Job, reason: str) -> Findings:
        outcome = Outcome(status="infeasible", reason=reason)
        return Findings(ATTACK_METRICS, self._without_numbers(job, job.seeds, outcome), {})

    def _without_numbers(self, job: Job, seeds: Iterable[int], outcome: Outcome) -> list[Replicate]:
        return [
            Replicate(
                seed=seed,
                setting=dict(setting),
                outcome=outcome,
                metrics=dict.fromkeys(ATTACK_METRICS),
                reasons=dict.fromkeys(ATTACK_METRICS, outcome.reason or ""),
            )
            for seed, (setting, _) in itertools.product(seeds, job.defense.settings())
        ]

    def _attack_seed(
        self, job: Job, attack: Attack, defenses: list[tuple[Setting, Defense]], seed: int, device: torch.device
    ) -> tuple[list[Replicate], dict[str, torch.Tensor]]:
        """All settings of the defense at once: they are only more observations of the same model."""
        from leakbench.attacks.base import Observations
        from leakbench.defenses.base import Schedule
        from leakbench.federated.step import ClientSteps
        from leakbench.jobs.victims import gather_victims

        dataset = image_dataset(job.dataset.single(), "jobs of kind 'attack'")
        victims = gather_victims(
            dataset,
            job.dataset.label,
            job.model.single(),
            seed,
            clients=self.clients,
            batch_size=self.batch_size,
            first_index=self.first_index,
            device=device,
        )
        try:
            trained = pretrained(
                victims.network, dataset, job.dataset.label, seed, self.epoch, self.pretraining, device
            )
        except Diverged as error:
            return self._without_numbers(job, [seed], Outcome(status="diverged", reason=str(error))), {}
        network = trained.in_mode(self.batch_norm)
        victims = replace(victims, network=network, parameters=network.parameters)
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
                return defended, defense.protect_update(defended, streams)

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
                image_noise += covariances * self.clients if len(covariances) == 1 else covariances
            statistics.append(defended.batch_statistics if "batch_statistics" in self.knowledge else {})
        views = [message.view() for message in messages]
        observations = Observations(
            network,
            victims.parameters,
            torch.cat(views),
            (self.batch_size, *dataset.shape),
            self.local,
            marked=_stacked([message.marked for message in messages]),
            repeats=torch.cat(repeats) if repeats else None,
        )
        observations.check()
        trials = victims.streams.child("attack").repeat(len(settings))
        variance = _stacked([message.noise_variance for message in messages])
        knowledge = self._knowledge(job, victims, statistics, variance, image_noise)
        if "prior" in attack.needs:
            knowledge = replace(knowledge, prior=self._prior(job, device))
        reconstruction = attack.reconstruct(observations, knowledge, trials)
        if self.target == "batch_mean":
            victims = replace(victims, pixels=_means(victims.pixels), inputs=_means(victims.inputs))
            reconstruction = replace(reconstruction, images=_means(reconstruction.images))
        pixels = dataset.denormalise(reconstruction.images).unflatten(0, (len(settings), -1))
        order = assign(pixels.flatten(0, 1), victims.pixels.repeat(len(settings), 1, 1, 1, 1))
        replicates = [
            self._measure(victims, dataset, seed, setting, reconstruction, order, index, steps.gradient, views[index])
            for index, setting in enumerate(settings)
        ]
        for replicate, message, statement in zip(replicates, messages, privacy, strict=True):
            replicate.metrics["bits"] = float(message.bits)
            replicate.privacy = statement.as_dict()
        tensors = {f"seed{seed}/victims": victims.pixels, f"seed{seed}/reconstructions": pixels.clamp(0, 1)}
        if order.shape[1] > 1:
            tensors[f"seed{seed}/assignment"] = order.unflatten(0, (len(settings), -1))
        return replicates, tensors

    def _prior(self, job: Job, device: torch.device) -> Prior:
        """The networks that the job of kind ``prior`` has trained.

        Raises:
            Infeasible: their training diverged.
        """
        from leakbench.attacks.restoration.prior import Prior

        kind, dataset = job.uses[PriorJob.name].kind, image_dataset(job.dataset.single(), "restoration networks")
        assert isinstance(kind, PriorJob)
        if not job.kept[PriorJob.name]:
            raise Infeasible(f"the networks of experiment '{self.prior}' have no weights: their training diverged")
        return Prior.of(kind.networks, job.kept[PriorJob.name], dataset.shape, dataset.classes, device)

    def _knowledge(
        self,
        job: Job,
        victims: Victims,
        statistics: list[Statistics],
        variance: torch.Tensor | None,
        image_noise: list[torch.Tensor],
    ) -> Knowledge:
        """What is granted, for every setting; ``statistics`` are those of each setting's batches."""
        from leakbench.attacks.base import Knowledge

        dataset, device = image_dataset(job.dataset.single(), "attackers"), victims.inputs.device
        granted = set(self.knowledge)
        bounds = torch.tensor([0.0, 1.0], device=device).view(2, 1, 1, 1).expand(2, dataset.channels, 1, 1)
        auxiliary = None
        if "auxiliary_images" in granted:
            samples = dataset.load("train", range(min(self.auxiliary, dataset.length("train"))))
            auxiliary = dataset.normalise(samples.values.to(device))
        return Knowledge(
            labels=victims.labels.repeat(len(statistics), 1) if "labels" in granted else None,
            pixel_range=dataset.normalise(bounds) if "pixel_range" in granted else None,
            auxiliary_images=auxiliary,
            batch_statistics={name: torch.cat([each[name] for each in statistics]) for name in statistics[0]} or None,
            noise_variance=variance if "noise_variance" in granted else None,
            data_noise=image_noise or None,
        )

    def _measure(
        self,
        victims: Victims,
        dataset: Dataset,
        seed: int,
        setting: Setting,
        reconstruction: Reconstruction,
        order: torch.Tensor,
        index: int,
        gradient: torch.Tensor,
        view: torch.Tensor,
    ) -> Replicate:
        """The metrics of one setting; a diverged trial's values are null, with the reason."""
        from leakbench.metrics.image import image_metrics

        n, batch = victims.pixels.shape[:2]
        rows = slice(index * n, (index + 1) * n)

        def compare(images: torch.Tensor) -> dict[str, torch.Tensor | str]:
            inputs = images.flatten(0, 1)
            return image_metrics(
                dataset.denormalise(inputs), victims.pixels.flatten(0, 1), inputs, victims.inputs.flatten(0, 1)
            )

        images = reconstruction.images[rows]
        values = compare(images)
        moved = not torch.equal(order[rows], torch.arange(batch, device=order.device).expand(n, -1))
        assigned = compare(reorder(images, order[rows])) if moved else values
        values |= {ASSIGNED + name: value for name, value in assigned.items()}
        values |= {
            "objective": "the attack has no objective"
            if reconstruction.objective is None
            else reconstruction.objective[rows],
            "alignment": (gradient * view).sum(dim=1) / gradient.square().sum(dim=1),
            "distortion": (view - gradient).square().mean(dim=1).sqrt(),
        }
        if reconstruction.labels is None:
            values["label_accuracy"] = "the attack uses no labels"
        else:
            values["label_accuracy"] = label_accuracy(reconstruction.labels[rows], victims.labels, dataset.classes)
        diverged_at = reconstruction.diverged_at[rows]
        diverged = diverged_at >= 0
        replicate = Replicate(seed=seed, setting=dict(setting), metrics={})
        if bool(diverged.any()):
            step = int(diverged_at[diverged].min())
            reason = f"{int(diverged.sum())} of {n} trials became non-finite"
            replicate.outcome = Outcome(status="diverged", reason=reason, step=step)
        for name, value in values.items():
            if isinstance(value, str):
                replicate.metrics[name], replicate.reasons[name] = None, value
                continue
            lost = diverged.repeat_interleave(batch) if len(value) == n * batch else diverged
            keep = (value.isfinite() & ~lost).tolist()
            replicate.metrics[name] = [
                number if kept else None for number, kept in zip(value.tolist(), keep, strict=True)
            ]
            if not all(keep):
                replicate.reasons[name] = replicate.outcome.reason or "not finite"
        return replicate


def _means(images: torch.Tensor) -> torch.Tensor:
    """The mean of every batch, ``[n, B, C, H, W] -> [n, 1, C, H, W]``."""
    return images.mean(dim=1, keepdim=True)


def _stacked(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    """What messages say of their coordinates, ``[n, d]``; nothing (zero, False) where one says nothing, None if all."""
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    nothing = torch.zeros_like(known)
    return torch.cat([nothing if part is None else part for part in parts])
