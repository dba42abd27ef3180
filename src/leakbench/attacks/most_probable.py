"""The most probable images given a message: under a normal law of images, or with a denoiser as the prior."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from pydantic import Field, model_validator

from leakbench.attacks.base import ATTACKS, Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.attacks.objectives import Objective, Profile
from leakbench.attacks.optimisers import LBFGS, Optimiser
from leakbench.attacks.plug_and_play import Denoising
from leakbench.attacks.unknowns import NormalImages, Unknown
from leakbench.effort import Effort
from leakbench.randomness import Streams


@ATTACKS.register("map", version=2)
class MAP(GradientMatching):
    """The most probable images given the message, under a Gaussian prior of the images of their class.

    The Bayes-optimal attack of Balunovic et al. (2022) with this prior; it and all numbers are ours.
    Both sides are in nats, so that no weight has to be chosen: the message is the gradient under normal noise of
    unknown size, or has the likelihood that the defense states (``adaptive``). The law's latents make the search well
    conditioned: from the mean, a quasi-Newton method needs few steps.
    """

    added: ClassVar[tuple[str, ...]] = ("denoising",)

    objective: Objective = Profile()
    optimiser: Optimiser = LBFGS(
        rate=1.0, history=50, line_search="strong_wolfe", tolerance_gradient=1e-9, tolerance_change=0.0
    )
    iterations: int = Field(150, ge=1, description="evaluations of the objective's gradient per restart")
    unknown: Unknown = NormalImages()
    denoising: Denoising | None = Field(
        None, description="the search goes on with a denoiser as its prior; by default it does not"
    )

    @model_validator(mode="after")
    def _begins_with_a_law(self) -> MAP:
        if self.denoising is not None and not self.unknown.expects:
            raise ValueError("denoising: it begins with what a law of images expects; keep unknown: normal")
        return self

    def effort(self, samples: int) -> Effort:
        first = super().effort(samples)
        if (denoising := self.denoising) is None:
            return first
        evaluations = (denoising.levels - 1) * denoising.evaluations + (denoising.last or self.iterations)
        return first.plus(Effort(samples, 1).times(evaluations))

    def without_prior(self) -> GradientMatching:
        return super().without_prior().model_copy(update={"denoising": None})

    @property
    def of_noisy_images(self) -> Attack | None:
        inside = super().of_noisy_images
        return None if inside is None else inside.model_copy(update={"denoising": None})

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        denoising, unknown = self.denoising, self.unknown
        if denoising is None:
            return super().reconstruct(observations, knowledge, streams)
        assert isinstance(unknown, NormalImages)
        settled, knowledge = self.settled(observations, knowledge)
        plain: Attack = settled.model_copy(update={"denoising": None})
        anew, reconstruction = replace(observations, start=None), plain.reconstruct(observations, knowledge, streams)
        for stage in denoising.stages(knowledge):
            near = unknown.near(stage.denoised(reconstruction.images), stage.deviation)
            iterations = (denoising.last or self.iterations) if stage.last else denoising.evaluations
            search = plain.model_copy(update={"unknown": near, "iterations": iterations})
            reconstruction = search.reconstruct(anew, knowledge, streams)
        return reconstruction
