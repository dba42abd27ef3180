"""Reference attackers: what can be said without looking at the gradient, so that "no leakage" has a number."""

from __future__ import annotations

from typing import ClassVar

from leakbench.attacks.base import ATTACKS, Attack, Grant, Knowledge, Observations, Reconstruction
from leakbench.lazy import torch
from leakbench.randomness import Streams


class _Reference(Attack):
    observes: ClassVar[bool] = False

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        never = torch.full((len(observations),), -1, device=observations.gradients.device)
        return Reconstruction(self.guess(observations, knowledge, streams), None, never)

    def guess(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        """Images that do not depend on the gradients, ``[n, B, C, H, W]``."""
        raise NotImplementedError


@ATTACKS.register("mean_image", version=1)
class MeanImage(_Reference):
    """The mean of auxiliary images, for every image."""

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"auxiliary_images"})

    def guess(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        assert knowledge.auxiliary_images is not None
        return knowledge.auxiliary_images.mean(dim=0).expand(len(observations), *observations.batch_shape).clone()


@ATTACKS.register("grey", version=1)
class Grey(_Reference):
    """Mid-grey, 0.5 in [0, 1], for every pixel. Normalisation is affine, so it is the mean of the pixels' bounds."""

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"pixel_range"})

    def guess(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        assert knowledge.pixel_range is not None
        return knowledge.pixel_range.mean(dim=0).expand(len(observations), *observations.batch_shape).clone()


@ATTACKS.register("noise", version=1)
class Noise(_Reference):
    """Standard normal inputs, clamped to valid pixels: where gradient matching starts."""

    @property
    def needs(self) -> frozenset[Grant]:
        return frozenset({"pixel_range"})

    def guess(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> torch.Tensor:
        assert knowledge.pixel_range is not None
        normal = streams.normal(*observations.batch_shape, device=observations.gradients.device)
        return normal.clamp(knowledge.pixel_range[0], knowledge.pixel_range[1])
