"""Sensitivity to the images of the features that a fully connected layer reads: rows of a Jacobian, batched.

Public implementations of Soteria (Sun et al. 2021) differentiate one feature after the other, hundreds to thousands of
backward passes. Here the network runs forward once, and the backward passes of many features are one: within the
windows that they see where :mod:`leakbench.models.windows` takes the network apart, else of whole maps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.windows import FeatureWindows

MEMORY_BUDGET = 2**30
"""Working memory of the backward passes side by side, in bytes. Only speed depends on it."""

CPU_BUDGET = 64 * 2**20
"""The same on a CPU: what its caches hold."""

WINDOWS = 4
"""Backward passes within windows that take the memory of one of whole maps, roughly."""


@dataclass(frozen=True)
class FeatureSensitivity:
    """Features of ``n`` clients and the norms of their derivatives.

    Attributes:
        features: ``r``, ``[n, B, F]``.
        norms: ``||d r_bf / dX||`` over all pixels of the client's batch, ``[n, B, F]``.
    """

    features: torch.Tensor
    norms: torch.Tensor


@dataclass(frozen=True)
class FeatureJacobian:
    """``d r / d X`` of each of ``n`` clients.

    Attributes:
        network: the model's architecture.
        parameters: ``[d]`` when all clients hold the same model, else ``[n, d]``.
        images: network inputs, ``[n, B, C, H, W]``.
    """

    network: Network
    parameters: torch.Tensor
    images: torch.Tensor

    def sensitivity(self, layer: str) -> FeatureSensitivity:
        """The features that ``layer`` reads, and the norms of their derivatives by the client's images.

        Where samples do not interact, one backward pass serves a feature in all images at once: those of consecutive
        clients that hold the same model.

        Raises:
            ConfigError: as :meth:`Network.features`.
        """
        windows = FeatureWindows.of(self.network, layer)
        if self.network.couples_samples:
            models, counts = self.parameters.expand(len(self.images), -1), [1] * len(self.images)
        elif self.parameters.dim() == 1:
            models, counts = self.parameters[None], [len(self.images)]
        else:
            models, sizes = self.parameters.unique_consecutive(dim=0, return_counts=True)
            counts = sizes.tolist()
        parts = []
        for parameters, images in zip(models, self.images.split(counts), strict=True):
            batch = images.flatten(0, 1)
            if windows is None:
                pair = self._of_batch(parameters, batch, layer)
            else:
                pair = windows.sensitivity(parameters, batch, WINDOWS * self._side_by_side((1, *batch.shape[1:])))
            parts.append([values.unflatten(0, images.shape[:2]) for values in pair])
        return FeatureSensitivity(*map(torch.cat, zip(*parts, strict=True)))

    def _of_batch(
        self, parameters: torch.Tensor, images: torch.Tensor, layer: str
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Features and norms of one batch, both ``[B, F]``."""

        def read(inputs: torch.Tensor) -> torch.Tensor:
            return self.network.features(parameters, inputs, layer)

        features, pull_back = torch.func.vjp(read, images)[:2]
        batch, size = features.shape
        together = self._side_by_side(images.shape)

        def norms_of_feature(cotangent: torch.Tensor) -> torch.Tensor:
            """Norms of a feature's derivative in every image, by that image alone."""
            (derivative,) = pull_back(cotangent.expand(batch, -1))
            squares: torch.Tensor = derivative.square().flatten(1).sum(dim=1)
            return squares.sqrt()

        def norm_in_batch(cotangent: torch.Tensor) -> torch.Tensor:
            """Norm of the derivative of one feature of one image by the whole batch."""
            (derivative,) = pull_back(cotangent.view(batch, size))
            norm: torch.Tensor = derivative.square().sum().sqrt()
            return norm

        if self.network.couples_samples:
            unit = torch.eye(batch * size, device=features.device, dtype=features.dtype)
            norms = torch.func.vmap(norm_in_batch, chunk_size=together)(unit)
            return features, norms.view(batch, size)
        unit = torch.eye(size, device=features.device, dtype=features.dtype)
        norms = torch.func.vmap(norms_of_feature, chunk_size=together)(unit)
        return features, norms.T

    def _side_by_side(self, shape: tuple[int, ...]) -> int:
        """Number of backward passes at a time: each holds some two hundred floats per pixel of the batch."""
        budget = CPU_BUDGET if self.images.device.type == "cpu" else MEMORY_BUDGET
        return max(1, budget // (4 * 200 * math.prod(shape)))
