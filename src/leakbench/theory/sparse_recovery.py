"""The discrete cosine transform, and the recovery of vectors that are sparse in it from few measurements.

The transform is the orthonormal DCT-II, by one FFT of the same length (Makhoul 1980). Recovery is the LASSO by FISTA
(Beck and Teboulle 2009).
"""

from __future__ import annotations

import math

from leakbench.lazy import torch


def dct(values: torch.Tensor) -> torch.Tensor:
    """Orthonormal DCT-II along the last axis, ``[..., N] -> [..., N]``: the norm stays."""
    size = values.shape[-1]
    folded = torch.cat([values[..., ::2], values[..., 1::2].flip(-1)], dim=-1)
    turned: torch.Tensor = torch.fft.fft(folded, dim=-1) * _quarter_turns(size, values)
    return turned.real * _scales(size, values)


def idct(coefficients: torch.Tensor) -> torch.Tensor:
    """The inverse of :func:`dct`, ``[..., N] -> [..., N]``."""
    size = coefficients.shape[-1]
    real = coefficients / _scales(size, coefficients)
    # The imaginary part before dct() dropped it: minus the coefficients backwards, from N - k to k.
    imaginary = torch.cat([torch.zeros_like(real[..., :1]), -real[..., 1:].flip(-1)], dim=-1)
    folded = torch.fft.ifft(torch.complex(real, imaginary) / _quarter_turns(size, coefficients), dim=-1).real
    values = torch.empty_like(coefficients)
    half = (size + 1) // 2
    values[..., ::2] = folded[..., :half]
    values[..., 1::2] = folded[..., half:].flip(-1)
    return values


def _quarter_turns(size: int, like: torch.Tensor) -> torch.Tensor:
    """``exp(-i pi k / 2 N)``, ``[N]``."""
    angle = -math.pi / (2 * size) * torch.arange(size, device=like.device, dtype=like.dtype)
    return torch.polar(torch.ones_like(angle), angle)


def _scales(size: int, like: torch.Tensor) -> torch.Tensor:
    scales = torch.full((size,), math.sqrt(2 / size), device=like.device, dtype=like.dtype)
    scales[0] = math.sqrt(1 / size)
    return scales


def fista(matrix: torch.Tensor, measurements: torch.Tensor, weight: torch.Tensor, iterations: int) -> torch.Tensor:
    """``argmin_s 1/2 ||A s - y||^2 + w ||s||_1``, approximately, of many problems that share ``A``.

    Args:
        matrix: ``A``, ``[n, m, N]``.
        measurements: ``y``, ``[n, k, m]``: ``k`` problems for each matrix.
        weight: ``w >= 0``, ``[n, k]``.
        iterations: steps of FISTA; the excess of the objective falls with their square.

    Returns:
        ``s``, ``[n, k, N]``.
    """
    largest = torch.linalg.matrix_norm(matrix, ord=2).square().clamp(min=torch.finfo(matrix.dtype).tiny)[:, None, None]
    threshold = weight[..., None] / largest
    estimate = torch.zeros(*measurements.shape[:2], matrix.shape[2], device=matrix.device, dtype=matrix.dtype)
    ahead, momentum = estimate, 1.0
    for _ in range(iterations):
        residual = ahead @ matrix.mT - measurements
        moved = ahead - residual @ matrix / largest
        before, estimate = estimate, moved.sign() * (moved.abs() - threshold).clamp(min=0)
        following = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        ahead, momentum = estimate + (momentum - 1) / following * (estimate - before), following
    return estimate
