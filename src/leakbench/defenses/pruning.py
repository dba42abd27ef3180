"""Magnitude pruning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from leakbench.defenses.base import DEFENSES, Defense
from leakbench.federated.message import Message, SparseMessage
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams


@DEFENSES.register("magnitude_pruning", version=1)
class MagnitudePruning(Defense):
    """Send only the coordinates of largest magnitude (Zhu et al. 2019), with one threshold for all layers."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "masked"},)

    fraction: float = Field(ge=0, le=1, description="part of the coordinates to prune; exactly floor(fraction * d)")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        gradient = steps.gradient
        order = gradient.abs().argsort(dim=-1, stable=True)
        count = int(self.fraction * gradient.shape[-1])
        dropped = torch.zeros_like(gradient, dtype=torch.bool).scatter_(-1, order[:, :count], True)
        return SparseMessage(gradient, ~dropped)
