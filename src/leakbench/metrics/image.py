"""Image metrics, one value per image, most of them from torchmetrics, LPIPS from the package of its authors.

Reconstructions are clamped to [0, 1] before they are compared with the victims, except for ``mse_input``, which is the
papers' error in normalised network inputs.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from pathlib import Path
from typing import NamedTuple

from leakbench.lazy import torch
from leakbench.libraries.torchvision_compat import import_torchvision
from leakbench.records import MetricInfo

IMAGE_METRICS = {
    "mse": MetricInfo(unit="squared pixel value, pixels in [0, 1]", direction="lower", axis="image"),
    "mse_input": MetricInfo(unit="squared normalised input", direction="lower", axis="image"),
    "psnr": MetricInfo(unit="dB, pixels in [0, 1]", direction="higher", axis="image"),
    "ssim": MetricInfo(unit="1 (11x11 Gaussian window)", direction="higher", axis="image"),
    "ssim_global": MetricInfo(
        unit="1 (one window, the whole image; 0.8 Y + 0.1 Cr + 0.1 Cb)", direction="higher", axis="image"
    ),
    "cosine": MetricInfo(unit="1 (cosine of pixel vectors)", direction="higher", axis="image"),
    "lpips": MetricInfo(unit="1 (AlexNet)", direction="lower", axis="image"),
    "lpips_vgg": MetricInfo(unit="1 (VGG16)", direction="lower", axis="image"),
}

IDENTIFIED = {
    "identified": MetricInfo(unit="1 where the image is picked out of a line-up", direction="higher", axis="image")
}

# The exact error is infinitely many decibels; JSON and means want a number. Float32 images differ by 1e-7 at least.
MAX_PSNR = 140.0

_YCRCB = ((0.299, 0.587, 0.114), (0.5, -0.418688, -0.081312), (-0.168736, -0.331264, 0.5))
"""ITU-R BT.601: rows Y, Cr, Cb of red, green and blue. The middle of Cr and Cb is at 128/255."""

_YCRCB_WEIGHTS = (0.8, 0.1, 0.1)


class PerceptualNetwork(NamedTuple):
    """A network behind LPIPS.

    Attributes:
        name: of the ``lpips`` package.
        title: in words.
        weights: torchvision's file name of its ImageNet weights; it holds the first digits of the file's SHA-256.
    """

    name: str
    title: str
    weights: str

    @property
    def path(self) -> Path:
        """Path at which torch looks for the weights (``TORCH_HOME`` moves it)."""
        home = os.environ.get("TORCH_HOME") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "torch")
        return Path(home, "hub", "checkpoints", self.weights).expanduser()


PERCEPTUAL = {
    "lpips": PerceptualNetwork("alex", "AlexNet", "alexnet-owt-7be5be79.pth"),
    "lpips_vgg": PerceptualNetwork("vgg", "VGG16", "vgg16-397923af.pth"),
}
"""Metric, by whose name its weights are staged -> network."""

LPIPS_SIDE = 32
"""Side of the smallest images, in pixels, that AlexNet takes; VGG16 would take half of it."""


def identified(estimate: torch.Tensor, truth: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Whether the truth is nearer to the estimate than every other image of a line-up is, by squared error.

    >>> truth, others = torch.tensor([[0.2], [0.4]]), torch.tensor([[0.9], [0.0]])
    >>> identified(torch.tensor([[0.3], [0.7]]), truth, others)
    tensor([1., 0.])

    Args:
        estimate: pixels, ``[n, ...]``.
        truth: ``[n, ...]``.
        others: ``[m, ...]``; one that equals the truth is no rival.

    Returns:
        1 or 0, ``[n]``.
    """
    error = (estimate - truth).flatten(1).square().sum(dim=1)
    rivals = torch.cdist(estimate.flatten(1), others.flatten(1).to(estimate)).square()
    exactly = "donot_use_mm_for_euclid_dist"
    same = torch.cdist(truth.flatten(1), others.flatten(1).to(truth), compute_mode=exactly) == 0
    return (error < rivals.masked_fill(same, torch.inf).amin(dim=1)).to(estimate.dtype)


def psnr(estimate: torch.Tensor, truth: torch.Tensor, data_range: float = 1.0) -> torch.Tensor:
    """Peak signal-to-noise ratio, dB, ``[n, C, H, W] -> [n]``, at most ``MAX_PSNR``.

    >>> psnr(torch.full((1, 3, 8, 8), 0.6), torch.full((1, 3, 8, 8), 0.5)).round(decimals=3)
    tensor([20.])

    ``data_range``: of the images; 1 for pixels in [0, 1].
    """
    import_torchvision()
    from torchmetrics.functional.image import peak_signal_noise_ratio

    value = peak_signal_noise_ratio(estimate, truth, data_range=data_range, reduction="none", dim=(1, 2, 3))
    return value.clamp(max=MAX_PSNR)


def ssim(estimate: torch.Tensor, truth: torch.Tensor, data_range: float = 1.0) -> torch.Tensor:
    """Structural similarity, ``[n, C, H, W] -> [n]`` (Wang et al. 2004); borders are mirrored.

    >>> images = torch.linspace(0, 1, 256).view(1, 1, 16, 16)
    >>> ssim(images, images), ssim(1 - images, images) < 0
    (tensor([1.]), tensor([True]))

    ``data_range``: of the images; 1 for pixels in [0, 1].
    """
    import_torchvision()
    from torchmetrics.functional.image import structural_similarity_index_measure

    value = structural_similarity_index_measure(estimate, truth, data_range=data_range, reduction="none")
    assert isinstance(value, torch.Tensor)
    return value.reshape(-1)


def ssim_global(estimate: torch.Tensor, truth: torch.Tensor, data_range: float = 1.0) -> torch.Tensor:
    """Structural similarity with the whole image as one window, ``[n, C, H, W] -> [n]``, in [-1, 1].

    The SSIM of the code that Deng et al. (2024) build on: for an RGB image ``0.8 Y + 0.1 Cr + 0.1 Cb`` of the channels'
    indices, for any other number of channels their mean. It depends on means, variances and one covariance, and not on
    the places of pixels: not comparable with :func:`ssim`.

    >>> images = torch.linspace(0, 1, 256).view(1, 1, 16, 16)
    >>> ssim_global(images, images), ssim_global(images, 1 - images).round(decimals=2)
    (tensor([1.]), tensor([-0.9900]))

    ``data_range``: of the images; 1 for pixels in [0, 1].
    """
    channels = truth.shape[1]
    x, y = (image.double().flatten(2) for image in (estimate, truth))
    weights = x.new_full((channels,), 1 / channels)
    if channels == 3:
        weights, matrix = x.new_tensor(_YCRCB_WEIGHTS), x.new_tensor(_YCRCB)
        middle = data_range * x.new_tensor([0.0, 128 / 255, 128 / 255])[:, None]
        x, y = matrix @ x + middle, matrix @ y + middle
    mean_x, mean_y = x.mean(dim=2), y.mean(dim=2)
    variance_x, variance_y = x.var(dim=2, correction=0), y.var(dim=2, correction=0)
    covariance = (x * y).mean(dim=2) - mean_x * mean_y
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    luminance = (2 * mean_x * mean_y + c1) / (mean_x.square() + mean_y.square() + c1)
    structure = (2 * covariance + c2) / (variance_x + variance_y + c2)
    return ((luminance * structure) @ weights).to(truth.dtype)


@cache
def _lpips_network(name: str) -> torch.nn.Module:
    """The authors' network, version 0.1: trained on ImageNet, with layers fitted to people's judgements."""
    import_torchvision()
    import lpips as authors

    with warnings.catch_warnings():
        # It asks torchvision for weights by a word that torchvision calls outdated.
        warnings.filterwarnings("ignore", "The parameter 'pretrained'|Arguments other than a weight enum", UserWarning)
        network: torch.nn.Module = authors.LPIPS(net=name, verbose=False)
    return network


def lpips(estimate: torch.Tensor, truth: torch.Tensor, metric: str = "lpips") -> torch.Tensor | str:
    """Learned perceptual distance (Zhang et al. 2018), ``[n, C, H, W] -> [n]``; grey images become RGB.

    Returns a reason instead when the metric does not exist: its weights are not staged, or the images are too small.

    Args:
        estimate: pixels in [0, 1].
        truth: pixels in [0, 1].
        metric: of ``PERCEPTUAL``: by AlexNet, or by VGG16.
    """
    network = PERCEPTUAL[metric]
    if not network.path.is_file():
        return (
            f"{network.title} weights are not staged ({network.weights}); run `leakbench stage {metric}` where there "
            "is a network"
        )
    if min(truth.shape[-2:]) < LPIPS_SIDE:
        least = f"{LPIPS_SIDE}x{LPIPS_SIDE}"
        return f"images of {truth.shape[-2]}x{truth.shape[-1]} are too small for {network.title}; {least} is the least"
    rgb = (image.expand(-1, 3, -1, -1) for image in (estimate, truth))
    with torch.no_grad():
        distance: torch.Tensor = _lpips_network(network.name).to(truth.device)(*rgb, normalize=True)
    return distance.reshape(-1)


def image_metrics(
    estimate: torch.Tensor, truth: torch.Tensor, estimate_input: torch.Tensor, truth_input: torch.Tensor
) -> dict[str, torch.Tensor | str]:
    """Every metric of ``IMAGE_METRICS``: one value per image, ``[n]``, or the reason why there is none.

    >>> truth, estimate = torch.full((2, 1, 16, 16), 0.5), torch.full((2, 1, 16, 16), 0.6)
    >>> metrics = image_metrics(estimate, truth, 2 * estimate - 1, 2 * truth - 1)
    >>> metrics["mse"].round(decimals=4), metrics["mse_input"].round(decimals=4)
    (tensor([0.0100, 0.0100]), tensor([0.0400, 0.0400]))

    Args:
        estimate: reconstructions as pixels, ``[n, C, H, W]``; clamped to [0, 1] here.
        truth: victims as pixels in [0, 1].
        estimate_input: reconstructions as network inputs, as the attacker left them.
        truth_input: victims as network inputs.
    """
    estimate = estimate.clamp(0, 1)
    return {
        "mse": (estimate - truth).square().flatten(1).mean(dim=1),
        "mse_input": (estimate_input - truth_input).square().flatten(1).mean(dim=1),
        "psnr": psnr(estimate, truth),
        "ssim": ssim(estimate, truth),
        "ssim_global": ssim_global(estimate, truth),
        "cosine": torch.nn.functional.cosine_similarity(estimate.flatten(1), truth.flatten(1)),
        **{metric: lpips(estimate, truth, metric) for metric in PERCEPTUAL},
    }
