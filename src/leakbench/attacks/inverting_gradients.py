"""Inverting Gradients (Geiping, Bauermeister, Dröge and Moeller 2020)."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from leakbench.attacks.base import ATTACKS, Attack, Grant, Knowledge, Observations, Reconstruction
from leakbench.attacks.engine import MEMORY_BUDGET, StepSchedule, cosine_distance, match_gradients, total_variation
from leakbench.lazy import torch
from leakbench.randomness import Streams


@ATTACKS.register("inverting_gradients", version=1)
class InvertingGradients(Attack):
    """Cosine matching of gradients by signed Adam with total variation, from Gaussian starts, inside valid pixels.

    Of several restarts, each observation keeps the one with the lowest objective of its own.
    """

    needs: ClassVar[frozenset[Grant]] = frozenset({"labels", "pixel_range"})

    iterations: int = Field(ge=1, description="optimiser steps")
    rate: float = Field(0.1, gt=0, description="first step size, in network inputs")
    total_variation: float = Field(ge=0, description="weight of the total variation")
    signed: bool = Field(True, description="feed Adam the sign of the gradient")
    restarts: int = Field(1, ge=1, description="starting points per observation")

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        assert knowledge.labels is not None and knowledge.pixel_range is not None
        network, parameters = observations.network, observations.parameters

        def cost(images: torch.Tensor, target: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            gradient = network.gradient(parameters, images, labels)
            return cosine_distance(gradient, target) + self.total_variation * total_variation(images)

        n, shape = len(observations), observations.batch_shape
        starts = streams.child("start").normal(self.restarts, *shape, device=observations.gradients.device)
        matched = match_gradients(
            cost,
            starts.flatten(0, 1),
            observations.gradients.repeat_interleave(self.restarts, dim=0),
            knowledge.labels.repeat_interleave(self.restarts, dim=0),
            StepSchedule(self.rate, self.iterations),
            signed=self.signed,
            box=knowledge.pixel_range,
            chunk=network.rows_within(MEMORY_BUDGET, shape),
        )
        objective = matched.objective.view(n, self.restarts)
        survived = matched.diverged_at.view(n, self.restarts) < 0
        best = torch.where(survived, objective, torch.inf).argmin(dim=1) + self.restarts * torch.arange(
            n, device=objective.device
        )
        return Reconstruction(matched.images[best], matched.objective[best], matched.diverged_at[best])
