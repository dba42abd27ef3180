"""Networks that know what images look like, behind any attack (Yue et al. 2023)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS, Grant, Knowledge, Observations, Reconstruction
from leakbench.attacks.unknowns import Upsampled
from leakbench.errors import Infeasible
from leakbench.randomness import Streams


@ATTACKS.register("post_processed", version=1)
class PostProcessed(Wrapper):
    """The reconstruction after two networks: the mean of a generator's image and a super-resolved one.

    Both see the small image that bicubic upsampling brings nearest to the reconstruction: behind ``rog``, exactly its
    latent. A job of kind ``prior`` trains the networks on auxiliary images; the authors' own were trained on others.
    """

    adds: ClassVar[frozenset[Grant]] = frozenset({"prior", "pixel_range"})
    adapts: ClassVar[bool] = False

    generator: float = Field(
        0.5, ge=0, le=1, description="part of the generator's image; the rest is super-resolution's"
    )

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        assert knowledge.prior is not None and knowledge.pixel_range is not None
        raw = self.attack.reconstruct(observations, knowledge, streams)
        if raw.labels is None:
            raise Infeasible(f"attack '{self.attack.name}' finds no labels, which the generator asks for")
        low, high = knowledge.pixel_range
        small = Upsampled(factor=knowledge.prior.restoration.factor).fit(raw.images, knowledge.pixel_range)
        pixels = knowledge.prior.restore(small.flatten(0, 1), raw.labels.flatten(), self.generator)
        images = (low + (high - low) * pixels).view_as(raw.images)
        return replace(raw, images=images.to(raw.images))
