"""Attack jobs: clients compute one defended step, the server reconstructs their images, and we measure how well."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from leakbench.attacks.base import Grant
from leakbench.errors import Infeasible
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.lazy import torch
from leakbench.metrics.image import IMAGE_METRICS
from leakbench.records import MetricInfo, Outcome, Replicate

if TYPE_CHECKING:
    from leakbench.attacks.base import Attack, Knowledge, Reconstruction
    from leakbench.data.base import Dataset
    from leakbench.jobs.victims import Victims

VICTIM_METRICS = {
    "objective": MetricInfo(unit="the attack's own objective", direction="lower", axis="victim"),
    "alignment": MetricInfo(unit="<g, y> / <g, g>, gradient g, decoded message y", direction="higher", axis="victim"),
    "distortion": MetricInfo(unit="root mean square of y - g", direction="lower", axis="victim"),
    "bits": MetricInfo(unit="bits on the wire per client and step", direction="lower"),
}


@JOB_KINDS.register("attack", version=1)
class AttackJob(JobKind):
    """Reconstruct the images of clients from one defended gradient step on an untrained model."""

    uses_attacks: ClassVar[bool] = True

    clients: int = Field(ge=1, description="victim batches per seed")
    batch_size: int = Field(ge=1, description="images per victim batch, B")
    first_index: int = Field(1, ge=0, description="where the victims start in the test split")
    auxiliary: int = Field(512, ge=1, description="training images, of no client, behind the mean image")
    knowledge: tuple[Grant, ...] = Field(
        ("labels", "pixel_range", "mean_image"), description="side knowledge that the threat model grants"
    )

    def run(self, job: Job, device: torch.device) -> Findings:
        assert job.attack is not None
        attack = job.attack.single()
        missing = sorted(attack.needs - set(self.knowledge))
        if missing:
            return self._infeasible(
                job, f"attack '{job.attack.label}' needs {', '.join(missing)}, which is not granted"
            )
        replicates: list[Replicate] = []
        tensors: dict[str, torch.Tensor] = {}
        for seed in job.seeds:
            try:
                found, reconstructions = self._attack_seed(job, attack, seed, device)
            except Infeasible as error:
                return self._infeasible(job, str(error))
            replicates += found
            tensors |= reconstructions
        return Findings(IMAGE_METRICS | VICTIM_METRICS, replicates, tensors)

    def _infeasible(self, job: Job, reason: str) -> Findings:
        metrics = IMAGE_METRICS | VICTIM_METRICS
        replicates = [
            Replicate(
                seed=seed,
                setting=dict(setting),
                outcome=Outcome(status="infeasible", reason=reason),
                metrics=dict.fromkeys(metrics),
                reasons=dict.fromkeys(metrics, reason),
            )
            for seed, (setting, _) in itertools.product(job.seeds, job.defense.settings())
        ]
        return Findings(metrics, replicates, {})

    def _attack_seed(
        self, job: Job, attack: Attack, seed: int, device: torch.device
    ) -> tuple[list[Replicate], dict[str, torch.Tensor]]:
        """All settings of the defense at once: they are only more observations of the same model."""
        from leakbench.attacks.base import Observations
        from leakbench.defenses.base import Schedule
        from leakbench.federated.step import ClientSteps
        from leakbench.jobs.victims import gather_victims

        dataset = job.dataset.single()
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
        steps = ClientSteps(victims.network, victims.parameters, victims.inputs, victims.labels, victims.streams)
        settings: list[Setting] = []
        views, bits, privacy = [], [], []
        for setting, defense in job.defense.settings():
            streams = victims.streams.child("defense")
            images, labels = defense.protect_data(victims.inputs, victims.labels, streams)
            changed = images is not victims.inputs or labels is not victims.labels
            defended = (
                ClientSteps(victims.network, victims.parameters, images, labels, victims.streams) if changed else steps
            )
            message = defense.protect_update(defended, streams)
            settings.append(setting)
            views.append(message.view())
            bits.append(message.bits)
            privacy.append(defense.privacy(Schedule(dimension=victims.network.dimension)))
        observations = Observations(
            victims.network, victims.parameters, torch.cat(views), (self.batch_size, *dataset.shape)
        )
        trials = victims.streams.child("attack").repeat(len(settings))
        knowledge = self._knowledge(dataset, victims, len(settings))
        reconstruction = attack.reconstruct(observations, knowledge, trials)
        replicates = [
            self._measure(victims, dataset, seed, setting, reconstruction, index, steps.gradient, views[index])
            for index, setting in enumerate(settings)
        ]
        for replicate, size, statement in zip(replicates, bits, privacy, strict=True):
            replicate.metrics["bits"] = float(size)
            replicate.privacy = statement.as_dict()
        pixels = dataset.denormalise(reconstruction.images).clamp(0, 1).unflatten(0, (len(settings), -1))
        return replicates, {f"seed{seed}/victims": victims.pixels, f"seed{seed}/reconstructions": pixels}

    def _knowledge(self, dataset: Dataset, victims: Victims, settings: int) -> Knowledge:
        from leakbench.attacks.base import Knowledge

        device = victims.inputs.device
        granted = set(self.knowledge)
        bounds = torch.tensor([0.0, 1.0], device=device).view(2, 1, 1, 1).expand(2, dataset.channels, 1, 1)
        mean = None
        if "mean_image" in granted:
            auxiliary = dataset.load("train", range(min(self.auxiliary, dataset.length("train"))))
            mean = dataset.normalise(auxiliary.images.to(device)).mean(dim=0)
        return Knowledge(
            labels=victims.labels.repeat(settings, 1) if "labels" in granted else None,
            pixel_range=dataset.normalise(bounds) if "pixel_range" in granted else None,
            mean_image=mean,
        )

    def _measure(
        self,
        victims: Victims,
        dataset: Dataset,
        seed: int,
        setting: Setting,
        reconstruction: Reconstruction,
        index: int,
        gradient: torch.Tensor,
        view: torch.Tensor,
    ) -> Replicate:
        """The metrics of one setting; a diverged trial's values are null, with the reason."""
        from leakbench.metrics.image import image_metrics

        n, batch = victims.labels.shape
        rows = slice(index * n, (index + 1) * n)
        images = reconstruction.images[rows].flatten(0, 1)
        values = image_metrics(
            dataset.denormalise(images), victims.pixels.flatten(0, 1), images, victims.inputs.flatten(0, 1)
        )
        values |= {
            "objective": "the attack has no objective"
            if reconstruction.objective is None
            else reconstruction.objective[rows],
            "alignment": (gradient * view).sum(dim=1) / gradient.square().sum(dim=1),
            "distortion": (view - gradient).square().mean(dim=1).sqrt(),
        }
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
