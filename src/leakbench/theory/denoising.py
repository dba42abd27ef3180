"""The linear estimate of least mean squared error of clean images from noisy ones, for known covariances of both.

It is that of Wiener (1949), *Extrapolation, Interpolation, and Smoothing of Stationary Time Series*, for vectors.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from leakbench.lazy import torch


def posterior_mean(
    images: torch.Tensor, mean: torch.Tensor, covariance: torch.Tensor, noise: torch.Tensor
) -> torch.Tensor:
    """``mu + Sigma (Sigma + Sigma_noise)^-1 (x - mu)``: the mean of ``D`` given ``D + noise = x``, if both are normal.

    For any distribution of this mean and covariance it is the linear estimate of least mean squared error (Wiener). The
    inverse is the pseudo-inverse: directions without any variance keep the mean.

    >>> noisy, mean, covariance = torch.tensor([[2.0, 2.0]]), torch.zeros(2), torch.eye(2)
    >>> posterior_mean(noisy, mean, covariance, noise=torch.tensor([1.0, 3.0]))
    tensor([[1.0000, 0.5000]])

    Args:
        images: noisy, ``[..., d]``.
        mean: of the clean images, ``[d]``.
        covariance: of the clean images, ``[d, d]``.
        noise: covariance of the noise, ``[d]`` if it is diagonal, else ``[d, d]``.

    Returns:
        ``[..., d]``, in the type of ``images``; computed in float64.
    """
    sigma, added = covariance.double(), noise.to(covariance.device, torch.float64)
    total = sigma + (added.diag() if added.dim() == 1 else added)
    gain = torch.linalg.pinv(total, hermitian=True) @ sigma  # transposed: images are rows
    estimate: torch.Tensor = mean + (images.double() - mean) @ gain
    return estimate.to(images.dtype)


class WhitePrior(NamedTuple):
    """The same for images whose deviations from their mean are white, of any variance: the noise by its spectrum.

    >>> prior = WhitePrior.of(noise=torch.tensor([1.0, 3.0]))
    >>> prior.posterior_mean(torch.tensor([[2.0, 2.0]]), mean=torch.zeros(1, 2), variance=1.0)
    tensor([[1.0000, 0.5000]])

    Attributes:
        values: eigenvalues of the noise's covariance, ``[d]``.
        vectors: its eigenvectors, in columns ``[d, d]``; None where it is diagonal.
    """

    values: torch.Tensor
    vectors: torch.Tensor | None

    @classmethod
    def of(cls, noise: torch.Tensor) -> Self:
        """The spectrum of a covariance, ``[d]`` if it is diagonal, else ``[d, d]``; in float64."""
        return cls(noise.double(), None) if noise.dim() == 1 else cls(*torch.linalg.eigh(noise.double()))

    def posterior_mean(self, images: torch.Tensor, mean: torch.Tensor, variance: float) -> torch.Tensor:
        """``mu + v (v I + Sigma_noise)^-1 (x - mu)`` for noisy images ``[..., d]`` with means of their own."""
        deviation, gain = images.double() - mean, variance / (variance + self.values.clamp(min=0))
        estimate = deviation * gain if self.vectors is None else (deviation @ self.vectors * gain) @ self.vectors.T
        return (mean + estimate).to(images.dtype)
