"""A normal law of the images of every class, from auxiliary ones: what a Bayesian attacker expects before any message.

The images of a class have its mean; their covariance is half that of the class's auxiliary images, half that of all,
each about the mean of its own class; and every pixel has a small variance of its own, since images differ in more
directions than there are examples. The law of several possible classes is that of the mixture's parts on average.
"""

from __future__ import annotations

from typing import NamedTuple

from leakbench.lazy import torch

SHARED = 0.5
"""Part of the covariance that is of the images of all classes: a class has few examples."""
SHRINKAGE = 3.0
"""Images of the mean of all classes that count in the mean of each."""


class ImageLaw(NamedTuple):
    """Normal laws of ``K`` classes of images with ``P`` inputs, from ``N`` examples.

    An image is ``means[k] + (z * spreads[k]) @ examples + floor * u`` with standard normal ``z [N]`` and ``u [P]``.

    Attributes:
        means: ``[K, P]``.
        examples: their deviations from the means of their classes, ``[N, P]``.
        spreads: ``[K, N]``.
        floor: standard deviation that every input has of its own, ``[]``.
    """

    means: torch.Tensor
    examples: torch.Tensor
    spreads: torch.Tensor
    floor: torch.Tensor

    @classmethod
    def of(cls, images: torch.Tensor, labels: torch.Tensor, classes: int, floor: float) -> ImageLaw:
        """The law of auxiliary images ``[N, C, H, W]``, whose labels ``[N]`` are below ``classes``.

        Args:
            images: network inputs.
            labels: their classes; one without images has the mean and the covariance of all.
            classes: their number, ``K``.
            floor: variance that every input has of its own, as a part of the mean variance.
        """
        flat = images.flatten(1)
        member = torch.nn.functional.one_hot(labels, classes).to(flat)
        counts, overall = member.sum(dim=0)[:, None], flat.mean(dim=0)
        means = (member.T @ flat + SHRINKAGE * overall) / (counts + SHRINKAGE)
        examples = flat - means[labels]
        shared = torch.where(counts > 0, SHARED, 1.0)
        weights = shared / len(flat) + (1 - shared) * member.T / counts.clamp(min=1)
        least = floor * examples.square().mean()
        return cls(means, examples, weights.sqrt(), least.sqrt())

    def expected(self, labels: torch.Tensor | None, images: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Means ``[n, B, P]`` and spreads ``[n, B, N]`` of the images of batches.

        Args:
            labels: ``[n, B]``, or probabilities ``[n, B, K]``; None where any class is as probable.
            images: in a batch, ``B``.
        """
        classes = len(self.means)
        if labels is None:
            probabilities = self.means.new_full((1, images, classes), 1 / classes)
        elif labels.is_floating_point():
            probabilities = labels.to(self.means)
        else:
            probabilities = torch.nn.functional.one_hot(labels, classes).to(self.means)
        return probabilities @ self.means, (probabilities @ self.spreads.square()).sqrt()

    def images(self, latents: torch.Tensor, means: torch.Tensor, spreads: torch.Tensor) -> torch.Tensor:
        """Flat images ``[..., P]`` from latents ``[..., N + P]``, their means ``[..., P]`` and spreads ``[..., N]``."""
        of_examples, of_inputs = latents.split([len(self.examples), self.means.shape[1]], dim=-1)
        images: torch.Tensor = means + (of_examples * spreads) @ self.examples + self.floor * of_inputs
        return images

    def latents(self, images: torch.Tensor, means: torch.Tensor, spreads: torch.Tensor) -> torch.Tensor:
        """The shortest latents ``[..., N + P]`` of flat images ``[..., P]``, which are also the most probable."""
        deviation = images - means
        weighted = spreads[..., None] * self.examples
        inner = weighted @ weighted.mT / self.floor.square()
        inner.diagonal(dim1=-2, dim2=-1).add_(1)
        along = (weighted @ deviation[..., None]) / self.floor.square()
        of_examples = torch.linalg.solve(inner, along)[..., 0]
        of_inputs = (deviation - (of_examples * spreads) @ self.examples) / self.floor
        return torch.cat([of_examples, of_inputs], dim=-1)
