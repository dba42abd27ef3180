"""A client's local training: from images to the update that it sends."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from leakbench.errors import ConfigError
from leakbench.lazy import torch
from leakbench.models.base import Network, Statistics


class LocalTraining(BaseModel):
    """Plain SGD on the client's images: one gradient (the default), or the FedAvg update of several steps."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    steps: int = Field(1, ge=1, description="local SGD steps")
    rate: float = Field(1.0, gt=0, description="local learning rate; of no effect on a single step")
    batch_size: int | None = Field(
        None, ge=1, description="images per step, taken in order, over and over; all of them by default"
    )

    def is_gradient(self, images: int) -> bool:
        """Whether the update on so many images is their gradient: one step on all of them."""
        return self.steps == 1 and self.batch_size in (None, images)

    def samples(self, images: int) -> int:
        """Number of samples that pass through the model for the update of a client with so many images."""
        return self.steps * (self.batch_size or images)

    def update(
        self,
        network: Network,
        parameters: torch.Tensor,
        images: torch.Tensor,
        labels: torch.Tensor,
        statistics: Statistics | None = None,
    ) -> torch.Tensor:
        """``(parameters before - parameters after) / rate``, ``[d]``: the gradient itself for a single step.

        Differentiable in everything, so that an attacker can unroll it.

        Args:
            network: the architecture.
            parameters: ``[d]``.
            images: ``[B, C, H, W]``.
            labels: ``[B]``, or probabilities ``[B, classes]``.
            statistics: normalising statistics of BatchNorm; by default the network's.

        Raises:
            ConfigError: the images are not whole batches.
        """
        if self.is_gradient(len(images)):
            return network.gradient(parameters, images, labels, statistics)
        size = self.batch_size or len(images)
        if len(images) % size:
            raise ConfigError(f"local.batch_size ({size}) must divide the client's number of images ({len(images)})")
        moved = parameters
        for step in range(self.steps):
            first = step * size % len(images)
            part = slice(first, first + size)
            moved = moved - self.rate * network.gradient(moved, images[part], labels[part], statistics)
        return (parameters - moved) / self.rate


ONE_STEP = LocalTraining()
