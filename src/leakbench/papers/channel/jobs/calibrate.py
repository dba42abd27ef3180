"""Calibrate jobs: effect of mechanisms that act on images on a data set, from its covariance alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from leakbench.data.base import ImageDataset, image_dataset
from leakbench.data.covariance import Moments
from leakbench.defenses.base import ActsOn, Defense
from leakbench.defenses.channel import DataChannel, EigenCompression
from leakbench.defenses.clients import DefendedClients, Examples
from leakbench.effort import Effort, Unit
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind
from leakbench.jobs.calibration import CalibrationImages
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.records import MetricInfo, Replicate, Value
from leakbench.theory.reconstruction_bound import (
    diagonal_error,
    error_bound,
    gaussian_error,
    gaussian_log_entropy_power,
    information_factor,
)

DIRECTIONS = 32
"""Number of the largest eigenvalues that are recorded."""
VISITS = tuple(2**power for power in range(15))
"""Numbers of visits of training to an image, up to 16,384."""

CALIBRATE_METRICS = {
    "images": MetricInfo(unit="images that the covariance was estimated from", direction="none"),
    "rank": MetricInfo(unit="directions in which images differ", direction="none"),
    "trace": MetricInfo(unit="squared normalised input, total variance of an image", direction="none"),
    "eigenvalues": MetricInfo(unit="squared normalised input, the largest first", direction="none", axis="direction"),
    "pixel_eigenvalues": MetricInfo(
        unit="squared pixel value, pixels in [-1, 1], the largest first", direction="none", axis="direction"
    ),
    "kappa": MetricInfo(unit="nats asked for, per image and draw", direction="none"),
    "capacity": MetricInfo(unit="nats, per image and draw", direction="lower"),
    "sigma": MetricInfo(unit="squared normalised input; white: noise over data", direction="none"),
    "noise_variance": MetricInfo(unit="squared normalised input, mean over pixels", direction="none"),
    "pixel_noise_variance": MetricInfo(
        unit="squared pixel value, pixels in [0, 1], mean over pixels", direction="none"
    ),
    "direction_noise": MetricInfo(
        unit="squared normalised input, noise along the eigen-directions", direction="none", axis="direction"
    ),
    "mmse": MetricInfo(unit="squared normalised input, least error for normal images", direction="higher"),
    "fresh_capacity": MetricInfo(
        unit="nats of 1, 2, 4, ... draws of the noise together, per image", direction="lower", axis="visits"
    ),
    "log_factor": MetricInfo(unit="ln exp(-2 C / d), factor of Theorem 1", direction="higher"),
    "log_bound": MetricInfo(unit="ln squared normalised input, Theorem 1 for normal images", direction="higher"),
}
OF_IMAGES = ("images", "rank", "trace", "eigenvalues", "pixel_eigenvalues")
"""Metrics that no defense changes."""


@JOB_KINDS.register("calibrate", version=1)
class CalibrateJob(JobKind):
    """Covariance of the training images, and the noise and the capacity of every setting of a defense on images.

    Nothing is trained and nothing attacked. One client holds all the images.
    """

    minutes: ClassVar[int] = 30
    on_gpu: ClassVar[bool] = False
    metrics: ClassVar[Mapping[str, MetricInfo]] = CALIBRATE_METRICS
    unit: ClassVar[Unit] = "multiply-adds"
    faces: ClassVar[frozenset[ActsOn]] = frozenset({"data"})

    seeds: int = Field(1, ge=1, le=1, description="one: only the pictures are random")
    images: int | None = Field(None, ge=2, description="training images that count; null: all")
    pictures: int = Field(0, ge=0, description="test images to keep, clean and as every setting changes them")
    first_index: int = Field(1, ge=0, description="where the pictures start in the test split")

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"direction": DIRECTIONS, "visits": len(VISITS)}

    def effort(self, job: Job) -> Effort:
        """The covariance of the images, and the decompositions of matrices of its size."""
        dataset = job.dataset.single()
        images, inputs = self.images or dataset.expected("train"), math.prod(dataset.shape)
        decomposed = Effort(5 * inputs**3, 1).times(1 + job.defense.count)
        return decomposed.plus(Effort(images * inputs**2, 1)).times(len(job.seeds))

    def run(self, job: Job, device: torch.device) -> Findings:
        dataset = image_dataset(job.dataset.single(), "jobs of kind 'calibrate'")
        images = CalibrationImages(dataset, device, self.images)
        (moments,) = images.data.moments
        shared = _of_images(moments, dataset)
        replicates, shown = [], []
        (seed,) = job.seeds
        for setting, plain in job.defense.settings():
            ((_, defense),) = images.calibrated([(setting, plain)])
            values, reasons = _of_defense(defense, moments, dataset)
            replicates.append(Replicate(seed=seed, setting=dict(setting), metrics=shared | values, reasons=reasons))
            if self.pictures:
                shown.append(self._pictures(defense, job, device))
        tensors: dict[str, torch.Tensor] = {}
        if shown:
            clean = dataset.load("test", range(self.first_index, self.first_index + self.pictures)).values
            tensors = {f"seed{seed}/clean": clean, f"seed{seed}/protected": torch.stack(shown)}
        return Findings(replicates, tensors)

    def _pictures(self, defense: Defense, job: Job, device: torch.device) -> torch.Tensor:
        """Some test images as one client of the defense holds them: pixels, not clipped, ``[k, C, H, W]``."""
        dataset = image_dataset(job.dataset.single(), "jobs of kind 'calibrate'")
        samples = dataset.load("test", range(self.first_index, self.first_index + self.pictures))
        inputs, labels = dataset.normalise(samples.values.to(device))[None], samples.labels.to(device)[None]
        streams = Streams([(job.dataset.label, job.seeds[0], "client", 0)])
        client = DefendedClients(defense, streams, Examples(inputs, labels))
        return dataset.denormalise(client.protect_data(client.samples, streams.child("defense")).inputs[0]).cpu()


def _of_images(moments: Moments, dataset: ImageDataset) -> dict[str, Value]:
    """Metrics of the images: their covariance and its spectrum."""
    per_pixel = _deviations(moments, dataset)
    pixels = torch.linalg.eigvalsh(4 * per_pixel[:, None] * moments.covariance * per_pixel).flip(0)
    return {
        "images": float(moments.count),
        "rank": float(moments.rank),
        "trace": float(moments.covariance.trace()),
        "eigenvalues": moments.eigenvalues[:DIRECTIONS].tolist(),
        "pixel_eigenvalues": pixels[:DIRECTIONS].clamp(min=0).tolist(),
    }


def _deviations(moments: Moments, dataset: ImageDataset) -> torch.Tensor:
    """Factors from normalised inputs to pixels in [0, 1] (but for a shift), ``[d]``."""
    std = torch.tensor(dataset.std, dtype=torch.float64, device=moments.covariance.device)
    return std.repeat_interleave(dataset.size**2)


def _of_defense(defense: Defense, moments: Moments, dataset: ImageDataset) -> tuple[dict[str, Value], dict[str, str]]:
    """Metrics of a calibrated defense on these images, and reasons of those that are missing."""
    values: dict[str, Value] = {}
    if isinstance(defense, DataChannel):
        values = _of_channel(defense, moments, dataset)
        reason = "minus infinity: normal images that do not differ in some direction have no density"
    elif isinstance(defense, EigenCompression):
        (removed,) = defense.removed
        values = {"mmse": removed.eigenvalue / len(removed.direction)}
        reason = "infinite capacity: the other directions are released without noise"
    else:
        reason = "the defense does not change images"
    missing = {name: reason for name in CALIBRATE_METRICS if name not in OF_IMAGES and values.get(name) is None}
    return values | dict.fromkeys(missing), missing


def _of_channel(defense: DataChannel, moments: Moments, dataset: ImageDataset) -> dict[str, Value]:
    (noise,) = defense.data_noise
    report, covariance = noise.report, noise.covariance
    variances = covariance if covariance.dim() == 1 else covariance.diagonal()
    directions = moments.eigenvectors[:, :DIRECTIONS]
    noisy = covariance[:, None] * directions if covariance.dim() == 1 else covariance @ directions
    power = gaussian_log_entropy_power(moments.eigenvalues)
    bound = error_bound(power, report.capacity, report.dimension).log
    return {
        "kappa": report.kappa,
        "capacity": report.capacity,
        "sigma": report.scale,
        "noise_variance": report.mean_variance,
        "pixel_noise_variance": float((variances * _deviations(moments, dataset).square()).mean()),
        "direction_noise": (directions * noisy).sum(dim=0).tolist(),
        "fresh_capacity": [noise.capacity(visits) for visits in VISITS],
        "mmse": least_error(moments, covariance),
        "log_factor": float(information_factor(report.capacity, report.dimension).log),
        "log_bound": float(bound) if bool(bound.isfinite()) else None,
    }


def least_error(moments: Moments, noise: torch.Tensor) -> float:
    """Mean squared error per pixel of the best estimate of normal images under noise, by the cheapest formula.

    Args:
        moments: of the clean images, with ``d`` pixels.
        noise: covariance, variances ``[d]`` above zero or a matrix ``[d, d]``.
    """
    if noise.dim() == 1:
        if bool((noise == noise[0]).all()):
            return float(diagonal_error(moments.eigenvalues, noise[:1]))
        root = torch.linalg.cholesky(moments.covariance + noise.diag())
        explained = torch.linalg.solve_triangular(root, moments.covariance, upper=False)
        # tr[Sigma (Sigma + N)^-1 N] = sum_i (Sigma - Sigma (Sigma + N)^-1 Sigma)_ii, with Sigma (..)^-1 Sigma = E^T E.
        return float((moments.covariance.diagonal() - explained.square().sum(dim=0)).mean())
    vectors = moments.eigenvectors
    along = vectors.T @ noise @ vectors
    variances = along.diagonal().clamp(min=0)
    # The root of the noise is float32; what it leaves beside the diagonal is nothing.
    if bool((along - along.diag().diag()).abs().max() <= 1e-5 * variances.max()):
        return float(diagonal_error(moments.eigenvalues, variances))
    return float(gaussian_error(moments.covariance, noise))
