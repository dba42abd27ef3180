"""Distributed DP-SGD: the users of a secure aggregation add shares of the noise.

A single share is too small for a guarantee; the server sees the sum alone. Source: Zhang et al. (2024), Table 1, rows 1
and 3.
"""

from __future__ import annotations

from pydantic import Field, model_validator

from leakbench.defenses.aggregate import SummedUsers
from leakbench.defenses.base import DEFENSES, PrivacyStatement, Schedule
from leakbench.defenses.noise import add_noise
from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.theory.aggregate_dp import Mechanism


@DEFENSES.register("distributed_noise", version=1)
class DistributedNoise(SummedUsers):
    """The mean of a user's clipped gradients, with its share of the sum's noise.

    On a batch of B it is ``dp_sgd`` with the multiplier ``B sigma / S``; here the noise does not depend on B.
    """

    variance: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="of each user's noise in every coordinate of its mean gradient, sigma^2; or give epsilon",
    )

    batch: int | None = Field(
        None, ge=1, description="records of a step, B, drawn without replacement; None: all D; for the guarantee alone"
    )

    @model_validator(mode="after")
    def _part_of_all(self) -> DistributedNoise:
        if self.batch is not None and self.records is not None and self.batch > self.records:
            raise ValueError(f"batch ({self.batch}) must be at most records ({self.records})")
        return self

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        self._check_records(steps.images.shape[1], self.records if self.batch is None else self.batch)
        mean = self.bounded_mean(steps)
        return add_noise(mean, torch.full_like(mean, self.noise_level), streams)

    @property
    def row(self) -> tuple[Mechanism, int | None]:
        whole = self.batch is None or self.batch == self.records
        return "gd" if whole else "sgd", self.batch

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """Table 1, row 1 (amplified by the sampling of batches), or row 3 where a step takes all records."""
        return self.stated(schedule)
