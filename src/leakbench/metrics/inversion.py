"""Metrics of model inversion: similarity to the classes' mean images (Tan et al. 2024)."""

from __future__ import annotations

from leakbench.lazy import torch
from leakbench.metrics.image import psnr, ssim
from leakbench.records import MetricInfo

INVERSION_METRICS = {
    "mse": MetricInfo(unit="squared network input", direction="lower"),
    "psnr": MetricInfo(unit="dB, of the inputs' range", direction="higher"),
    "ssim": MetricInfo(unit="1 (11x11 Gaussian window, of the inputs' range)", direction="higher"),
    "cosine": MetricInfo(unit="1 (cosine of network inputs)", direction="higher"),
}


def class_centres(images: torch.Tensor, labels: torch.Tensor, classes: int) -> torch.Tensor:
    """Mean image of every class, ``[classes, C, H, W]``; NaN where a class has no image.

    Args:
        images: ``[n, C, H, W]``.
        labels: ``[n]``.
        classes: number of classes.
    """
    one_hot = torch.nn.functional.one_hot(labels, classes).to(images.dtype)
    means: torch.Tensor = ((one_hot.T @ images.flatten(1)) / one_hot.sum(dim=0)[:, None]).unflatten(1, images.shape[1:])
    return means


def inversion_metrics(images: torch.Tensor, centres: torch.Tensor, data_range: float = 2.0) -> dict[str, torch.Tensor]:
    """Every metric of ``INVERSION_METRICS``, the median over classes of each run: ``[runs]``.

    Inputs are compared as they are: neither clamped nor mapped to pixels.

    Args:
        images: the attacker's estimates, ``[runs, k, C, H, W]``.
        centres: the classes' mean images, ``[k, C, H, W]``, or each run's own, ``[runs, k, C, H, W]``.
        data_range: of the inputs; 2 for those in [-1, 1].
    """
    estimate, truth = (tensor.flatten(0, 1) for tensor in (images, centres.expand_as(images)))
    values = {
        "mse": (estimate - truth).square().flatten(1).mean(dim=1),
        "psnr": psnr(estimate, truth, data_range),
        "ssim": ssim(estimate, truth, data_range),
        "cosine": torch.nn.functional.cosine_similarity(estimate.flatten(1), truth.flatten(1)),
    }
    return {name: value.unflatten(0, images.shape[:2]).quantile(0.5, dim=1) for name, value in values.items()}
