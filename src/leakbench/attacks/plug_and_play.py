"""Plug-and-play priors: a denoiser, trained on auxiliary images, says what images look like."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Self

from pydantic import Field, model_validator

from leakbench.attacks.base import Knowledge
from leakbench.attacks.parts import Part
from leakbench.lazy import torch

TRAINED_ON = (0.02, 0.7)
"""Levels of the noise that the denoiser is trained on, in ranges of a pixel."""


class Denoising(Part):
    """A denoiser as the prior.

    Half-quadratic splitting (Zhang et al., TPAMI 2021, *Plug-and-Play Image Restoration with Deep Denoiser Prior*; the
    idea is that of Venkatakrishnan et al. 2013): a reconstruction is denoised as if it had white noise of some level;
    then it is matched to the data again, by images that deviate from the denoised ones by noise of that level; and so
    on, from high levels to low ones.
    """

    levels: int = Field(10, ge=2, description="levels of noise, in geometric progression")
    highest: float = Field(0.2, le=TRAINED_ON[1], description="first level: standard deviation, in ranges of a pixel")
    lowest: float = Field(0.02, ge=TRAINED_ON[0], description="last level")
    evaluations: int = Field(30, ge=1, description="of a search's gradient, at each level but the last")
    last: int | None = Field(
        None, ge=1, description="evaluations at the last level; by default as many as the search has"
    )
    weight: float = Field(1.0, gt=0, description="factor of what deviations from the denoised images cost")
    training: int = Field(2000, ge=1, description="steps in which the denoiser is trained")

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError("lowest: levels fall, so choose it below highest")
        return self

    def stages(self, knowledge: Knowledge) -> Iterator[Stage]:
        """The levels, by a denoiser that the auxiliary images train."""
        from leakbench.attacks.restoration.denoiser import trained_denoiser

        auxiliary, bounds = knowledge.auxiliary_images, knowledge.pixel_range
        assert auxiliary is not None and bounds is not None
        denoiser = trained_denoiser(auxiliary, bounds, TRAINED_ON, self.training)
        ratio = (self.lowest / self.highest) ** (1 / (self.levels - 1))

        def denoised(images: torch.Tensor, deviation: float) -> torch.Tensor:
            flat = images.flatten(0, 1).to(auxiliary)
            clean: torch.Tensor = denoiser(flat, flat.new_full((len(flat),), deviation))
            return clean.view_as(images).to(images)

        for level in range(self.levels):
            deviation = denoiser.span * self.highest * ratio**level
            last = level == self.levels - 1
            yield Stage(partial(denoised, deviation=deviation), deviation / math.sqrt(self.weight), last)


class Stage(NamedTuple):
    """A level of noise.

    Attributes:
        denoised: from images ``[n, B, C, H, W]`` to what they are without noise of that level.
        deviation: standard deviation of images from the denoised ones that is expected then.
        last: whether no other level follows.
    """

    denoised: Callable[[torch.Tensor], torch.Tensor]
    deviation: float
    last: bool
