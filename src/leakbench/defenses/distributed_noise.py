"""DP-SGD whose noise is what all users of a secure aggregation add together.

Each user's noise is too little for a guarantee of its own; the server sees the sum alone. Source: Zhang et al. (2024),
Table 1, rows 1 and 3.
"""

from __future__ import annotations

from pydantic import Field

from leakbench.defenses.base import DEFENSES
from leakbench.defenses.dp_sgd import ClippedGradients
from leakbench.defenses.noise import add_noise
from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams


@DEFENSES.register("distributed_noise", version=1)
class DistributedNoise(ClippedGradients):
    """The mean of a user's clipped gradients with noise of a given variance: a share of the noise of the sum.

    On a batch of B it is ``dp_sgd`` with the multiplier ``B sigma / S``; here the noise does not depend on B.
    """

    variance: float = Field(
        gt=0, allow_inf_nan=False, description="of each user's noise in every coordinate of its mean gradient, sigma^2"
    )

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        mean = self.bounded_mean(steps)
        return add_noise(mean, torch.full_like(mean, self.variance), streams)
