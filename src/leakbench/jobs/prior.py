"""Prior jobs: networks that restore low-resolution, noisy images, trained for attackers on auxiliary images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from leakbench.attacks.interpolation import downsample, upsample
from leakbench.attacks.restoration.prior import Prior, Restoration, restored
from leakbench.data.base import Dataset, Samples, image_dataset
from leakbench.effort import FORWARD, Effort, Unit
from leakbench.errors import ConfigError
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.modules import SPANS, train
from leakbench.lazy import torch
from leakbench.metrics.image import psnr
from leakbench.randomness import generator, seeded, stream_seed
from leakbench.records import MetricInfo, Outcome, Replicate, Value

if TYPE_CHECKING:
    from leakbench.attacks.base import Grant

LOSSES = ("generator", "unfolding", "denoiser")
PRIOR_METRICS = {
    f"{name}_loss": MetricInfo(
        unit=f"mean absolute error of pixels, one mean per 1/{SPANS} of training", direction="lower", axis="step"
    )
    for name in LOSSES
} | {
    "psnr_before": MetricInfo(
        unit="dB, bicubic upsampling of low-resolution, noisy held-out images", direction="higher", axis="image"
    ),
    "psnr_after": MetricInfo(unit="dB, the same after the networks", direction="higher", axis="image"),
}


@JOB_KINDS.register("prior", version=1)
class PriorJob(JobKind):
    """Train the networks of the attack ``post_processed`` on auxiliary images, and keep their weights.

    Their inputs are simulated: auxiliary images, downsampled, with noise of a random size. They see no image of a
    client, and no reconstruction. All three networks minimise the mean absolute error, the generator and
    super-resolution that of the image, the denoiser that of the small one. (The released networks were trained on other
    images, and against discriminators.) Model and defense play no part.
    """

    minutes: ClassVar[int] = 120
    unit: ClassVar[Unit] = "multiply-adds"
    metrics: ClassVar[Mapping[str, MetricInfo]] = PRIOR_METRICS
    grants: ClassVar[Grant | None] = "prior"

    seeds: int = Field(1, ge=1, le=1, description="one: attackers train once")
    images: int = Field(512, ge=2, description="auxiliary images to train on: the first of the train split")
    held_out: int = Field(32, ge=1, description="images after those, on which the networks are tried")
    networks: Restoration = Field(Restoration(), description="their sizes")
    noise: float = Field(0.1, ge=0, description="largest standard deviation of the noise, of pixels in [0, 1]")
    steps: int = Field(20_000, ge=1, description="steps of Adam")
    batch_size: int = Field(16, ge=2, description="images per step, drawn anew in every epoch")
    rate: float = Field(1e-4, gt=0, description="step size of Adam, which falls to a tenth along a cosine")

    def granted(
        self, kept: Mapping[str, torch.Tensor], dataset: Dataset, rows: Sequence[tuple[int, int]], device: torch.device
    ) -> Prior:
        images = image_dataset(dataset, "restoration networks")
        return Prior.of(self.networks, kept, images.shape, images.classes, device)

    def settings_of(self, job: Job) -> Iterator[Setting]:
        yield {}

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"step": min(SPANS, self.steps), "image": self.held_out}

    def effort(self, job: Job) -> Effort:
        pixels = math.prod(job.dataset.single().shape[1:])
        trained = Effort(self.batch_size, 1).times(self.steps).plus(Effort(FORWARD * self.held_out, 1))
        return Effort(3 * trained.passes * self.networks.multiply_adds(pixels), trained.steps)

    def run(self, job: Job, device: torch.device) -> Findings:
        dataset = image_dataset(job.dataset.single(), "jobs of kind 'prior'")
        (seed,) = job.seeds
        available, asked = dataset.length("train"), self.images + self.held_out
        if asked > available:
            raise ConfigError(
                f"images and held_out: {asked} are more than the train split of '{dataset.name}' has ({available})"
            )
        networks = self._untrained(job, dataset.shape, dataset.classes, seed).to(device)
        losses, diverged = self._train(networks, dataset.load("train", range(self.images)), job, seed, device)
        metrics: dict[str, Value] = {f"{name}_loss": curve for name, curve in zip(LOSSES, losses, strict=True)}
        if diverged is not None:
            reason = "training became non-finite"
            metrics |= dict.fromkeys(("psnr_before", "psnr_after"))
            reasons = {name: reason for name, value in metrics.items() if not isinstance(value, list) or None in value}
            outcome = Outcome(status="diverged", reason=reason, step=diverged)
            return Findings([Replicate(seed=seed, outcome=outcome, metrics=metrics, reasons=reasons)])
        held_out = dataset.load("train", range(self.images, asked))
        metrics |= self._try(networks.eval(), held_out, job, seed, device)
        return Findings([Replicate(seed=seed, metrics=metrics)], dict(networks.state_dict()))

    def _untrained(self, job: Job, shape: tuple[int, int, int], classes: int, seed: int) -> torch.nn.ModuleDict:
        with seeded(stream_seed(job.dataset.label, seed, "prior", "initialisation")):
            return self.networks.build(shape, classes)

    def _train(
        self, networks: torch.nn.ModuleDict, samples: Samples, job: Job, seed: int, device: torch.device
    ) -> tuple[list[list[float | None]], int | None]:
        """Mean losses of every network per span, and the step at which a loss became non-finite."""
        draws = generator(job.dataset.label, seed, "prior", "training")
        images, labels = samples.values.to(device), samples.labels.to(device)
        small = downsample(images, self.networks.factor)

        def losses(rows: torch.Tensor) -> torch.Tensor:
            noisy = self._noisy(small[rows], draws)
            generated, unfolded, denoised = restored(self.networks, networks, noisy, labels[rows])
            pairs = ((generated, images[rows]), (unfolded, images[rows]), (denoised, small[rows]))
            return torch.stack([(ours - theirs).abs().mean() for ours, theirs in pairs])

        return train(
            "training networks",
            networks,
            torch.optim.Adam(networks.parameters(), lr=self.rate),
            losses,
            samples=len(images),
            batch_size=self.batch_size,
            steps=self.steps,
            draws=draws,
            device=device,
        )

    def _noisy(self, small: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
        """Normal noise; its standard deviation is uniform, one per image."""
        deviation = self.noise * torch.rand(len(small), 1, 1, 1, generator=draws)
        return small + (deviation * torch.randn(small.shape, generator=draws)).to(small)

    def _try(
        self, networks: torch.nn.ModuleDict, samples: Samples, job: Job, seed: int, device: torch.device
    ) -> dict[str, Value]:
        images, labels = samples.values.to(device), samples.labels.to(device)
        draws = generator(job.dataset.label, seed, "prior", "held out")
        noisy = self._noisy(downsample(images, self.networks.factor), draws)
        plain = upsample(noisy, (images.shape[-2], images.shape[-1]))
        after = Prior(self.networks, networks).restore(noisy, labels, 0.5)
        estimates = {"psnr_before": plain, "psnr_after": after}
        return {name: psnr(estimate.clamp(0, 1), images).tolist() for name, estimate in estimates.items()}
