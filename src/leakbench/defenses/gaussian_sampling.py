"""Gaussian sampling: a client's update weights all of its per-record gradients with normal weights.

The randomness takes the place of a random batch's: under secure aggregation the other clients' weights are noise on a
client's update. Source: Zhang et al. (2024), Assumption 2, eqs. 16 to 18.
"""

from __future__ import annotations

import math
from typing import ClassVar

from pydantic import Field

from leakbench.defenses.aggregate import AllRecords
from leakbench.defenses.base import DEFENSES, PrivacyStatement, Schedule
from leakbench.federated.message import DenseMessage, Law, Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.theory.aggregate_dp import Mechanism


@DEFENSES.register("gaussian_sampling", version=2)
class GaussianSampling(AllRecords):
    """GSGD (Zhang et al. 2024): weights ``1 / D + xi / sqrt(B D)`` on all D clipped gradients, xi standard normal."""

    needs_noise: ClassVar[bool] = False

    variance: float | None = Field(
        0.0, ge=0, allow_inf_nan=False, description="of each client's additional isotropic noise, sigma^2; 0: none"
    )

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        records = self.all_records(steps.images.shape[1])
        spread = 1 / math.sqrt(self.batch * records)
        weights = 1 / records + spread * streams.normal(records, device=steps.images.device)
        means, sampled, variances = [], [], []
        for part, gradients in steps.sample_gradients():
            factors = self.factors(torch.linalg.vector_norm(gradients, dim=2))
            both = torch.stack([factors / records, factors * weights[part]], dim=1)
            mean, update = (both @ gradients).unbind(dim=1)
            means.append(mean)
            sampled.append(update)
            variances.append(torch.einsum("nb,nbd->nd", (spread * factors).square(), gradients.square()))
        level = self.noise_level
        mean, variance = torch.cat(means), torch.cat(variances) + level
        values = torch.cat(sampled)
        if level:
            normal = streams.child("isotropic").normal(values.shape[1], device=values.device)
            values += math.sqrt(level) * normal
        passing = torch.ones_like(mean, dtype=torch.bool)
        return DenseMessage(values, law=Law(mean, passing, variance, independent=False))

    @property
    def row(self) -> tuple[Mechanism, int | None]:
        return "gaussian", self.batch

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        if self.variance or self.epsilon is not None:
            return self.stated(schedule)
        return PrivacyStatement(
            None,
            None,
            "no guarantee that holds for all data: the covariance of the sampling is that of a client's own gradients, "
            "and singular where they are fewer than coordinates (Zhang et al. 2024, Theorem 1)",
        )
