"""Distributed DP-SGD: the users of a secure aggregation add shares of the noise.

A single share is too small for a guarantee; the server sees the sum alone. Source: Zhang et al. (2024), Table 1, rows 1
and 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.defenses.aggregate import SummedUsers
from leakbench.defenses.base import DEFENSES, PrivacyStatement, Schedule
from leakbench.defenses.noise import add_noise
from leakbench.errors import Infeasible
from leakbench.federated.message import DenseMessage, Law, Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.theory.aggregate_dp import Mechanism

LEAST_SCALE = 4
"""Least standard deviation of discrete noise, in steps of its grid."""


@DEFENSES.register("distributed_noise", version=2)
class DistributedNoise(SummedUsers):
    """The mean of a user's clipped gradients, with its share of the sum's noise.

    On a batch of B it is ``dp_sgd`` with the multiplier ``B sigma / C``; here the noise does not depend on B.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    variance: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="of each user's noise in every coordinate of its mean gradient, sigma^2; or give epsilon",
    )

    batch: int | None = Field(
        None, ge=1, description="records of a step, B, drawn without replacement; None: all D; for the guarantee alone"
    )

    noise: Literal["normal", "discrete"] = Field(
        "normal",
        description="normal: continuous, in float32; discrete: the discrete Gaussian, on gradients in fixed point, so "
        "that the guarantee is of the very numbers that are summed",
    )
    places: int = Field(16, ge=1, le=22, description="fractional bits of a discrete mean gradient")

    @model_validator(mode="after")
    def _proved_for_discrete_noise(self) -> DistributedNoise:
        if self.noise == "discrete" and self.accounting == "tight":
            raise ValueError("accounting tight is of continuous noise; with discrete noise take composition or renyi")
        return self

    @model_validator(mode="after")
    def _part_of_all(self) -> DistributedNoise:
        if self.batch is not None and self.records is not None and self.batch > self.records:
            raise ValueError(f"batch ({self.batch}) must be at most records ({self.records})")
        return self

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        self._check_records(steps.images.shape[1], self.records if self.batch is None else self.batch)
        if self.noise == "discrete":
            return self._discrete(steps, streams)
        mean = self.bounded_mean(steps)
        return add_noise(mean, torch.full_like(mean, self.noise_level), streams)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Log-likelihood ``[n]`` under the user's share of the noise; discrete noise is normal, to all digits."""
        return self.log_density(received, steps, self.noise_level)

    def _discrete(self, steps: ClientSteps, streams: Streams) -> Message:
        """The mean gradient and its noise as multiples of ``2^-p``: sums of integers, exact in float64.

        The gradient of each record over B is clipped in float64 and rounded towards zero, so that no norm grows. For
        noise of scale ``s`` in units of the grid, the sum of N such has the Rényi divergence of normal noise, and ``10
        sum_k exp(-2 pi^2 s^2 k / (k + 1))`` more per coordinate (Kairouz, Liu and Steinke 2021, Proposition 14): below
        1e-60 for ``s`` of 4, of which no accounting here can tell.

        Raises:
            Infeasible: the grid is too coarse for the noise, or too fine for float32.
        """
        level, grid, taken = self.noise_level, 2.0**self.places, steps.images.shape[1]
        scale = math.sqrt(level) * grid
        if scale < LEAST_SCALE:
            raise Infeasible(
                f"discrete noise of {scale:.3g} steps of 2^-{self.places}; take {LEAST_SCALE}: more places"
            )
        sums = []
        for _, gradients in steps.sample_gradients():
            exact = gradients.double()
            norms = torch.linalg.vector_norm(exact, dim=2, keepdim=True)
            factors = (self.clip / norms).clamp(max=1.0) * (1 - 2.0**-40)  # above the rounding of norms
            sums.append((exact * factors * (grid / taken)).trunc().sum(dim=1))
        total = torch.cat(sums)
        noise = streams.discrete_normal(scale, total.shape[1]).to(total.device)
        largest = float((total + noise).abs().nan_to_num(0.0).max())
        if largest >= 2**24:
            raise Infeasible(
                f"a coordinate of {largest / grid:.3g} on 2^-{self.places} is none in float32: fewer places"
            )
        mean = (total / grid).float()
        law = Law(mean, torch.ones_like(mean, dtype=torch.bool), torch.full_like(mean, level))
        return DenseMessage(((total + noise) / grid).float(), law=law)

    @property
    def _noise(self) -> str:
        return super()._noise if self.noise == "normal" else f"noise is discrete, on multiples of 2^-{self.places}"

    @property
    def row(self) -> tuple[Mechanism, int | None]:
        whole = self.batch is None or self.batch == self.records
        return "gd" if whole else "sgd", self.batch

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """Table 1, row 1 (amplified by the sampling of batches), or row 3 where a step takes all records."""
        coarse = schedule.places is not None and schedule.places < self.places
        if self.noise == "discrete" and coarse:
            return PrivacyStatement(
                None,
                None,
                f"not stated: discrete noise has {self.places} fractional bits, and messages are rounded to "
                f"{schedule.places}; set secure_aggregation.fraction_bits to {self.places}",
            )
        return self.stated(schedule)
