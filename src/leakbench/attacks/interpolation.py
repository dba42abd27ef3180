"""Upsampling as products with matrices, its least-squares inverse, and bicubic downsampling as a convolution."""

from __future__ import annotations

from typing import Literal

from leakbench.lazy import torch

Interpolation = Literal["bicubic", "bilinear", "nearest"]


def upsample(images: torch.Tensor, side: tuple[int, int], interpolation: Interpolation = "bicubic") -> torch.Tensor:
    """``torch.nn.functional.interpolate`` to ``side = (H, W)``, ``[..., h, w] -> [..., H, W]``.

    Interpolation is linear and separable: two products with matrices, whose derivatives add in a fixed order, unlike
    those of torch's own function on a GPU.
    """
    rows, columns = upsampling((images.shape[-2], images.shape[-1]), side, interpolation, images)
    resized: torch.Tensor = rows @ images @ columns.T
    return resized


def upsampling(
    small: tuple[int, int], side: tuple[int, int], interpolation: Interpolation, like: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The matrices of :func:`upsample`, ``[H, h]`` and ``[W, w]``, in the precision and on the device of ``like``."""
    rows, columns = (
        _upsampling(before, after, interpolation).to(like) for before, after in zip(small, side, strict=True)
    )
    return rows, columns


def _upsampling(before: int, after: int, interpolation: Interpolation) -> torch.Tensor:
    """The matrix that upsamples a line, float64 ``[after, before]``: what interpolation makes of unit vectors."""
    lines = torch.eye(before, dtype=torch.float64)[:, None]
    if interpolation == "nearest":
        return torch.nn.functional.interpolate(lines, after, mode="nearest")[:, 0].T
    images = lines[:, :, None]  # bicubic interpolation takes two axes; one of a single pixel stays as it is
    return torch.nn.functional.interpolate(images, (1, after), mode=interpolation)[:, 0, 0].T


def downfit(images: torch.Tensor, factor: int, interpolation: Interpolation = "bicubic") -> torch.Tensor:
    """The smaller images that :func:`upsample` brings nearest (least squares) to ``images``, ``[..., H, W]``."""
    rows, columns = (
        torch.linalg.pinv(_upsampling(side // factor, side, interpolation)).to(images) for side in images.shape[-2:]
    )
    fitted: torch.Tensor = rows @ images @ columns.T
    return fitted


def downsample(images: torch.Tensor, factor: int) -> torch.Tensor:
    """Bicubic downsampling with antialiasing, ``[n, C, H, W] -> [n, C, H / factor, W / factor]``."""
    size = (images.shape[-2] // factor, images.shape[-1] // factor)
    return torch.nn.functional.interpolate(images, size, mode="bicubic", antialias=True)


def bicubic_kernel(factor: int) -> tuple[torch.Tensor, int]:
    """The kernel of :func:`downsample` away from borders, of one axis: weights ``[4 factor]``, and where they begin.

    Pixel ``i`` of the result is ``sum_j weights[j] image[factor i + first + j]`` (Keys 1981, with ``a = -1/2``).
    """
    first = -(3 * factor // 2)
    places = torch.arange(4 * factor, dtype=torch.float64) + first
    distance = ((places - (factor - 1) / 2) / factor).abs()
    near = 1.5 * distance**3 - 2.5 * distance**2 + 1
    far = -0.5 * distance**3 + 2.5 * distance**2 - 4 * distance + 2
    weights = torch.where(distance <= 1, near, torch.where(distance < 2, far, 0.0))
    return weights / weights.sum(), first
