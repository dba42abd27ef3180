"""The three defenses of Chen, Gürsoy and Lei (2024): noise, clipped noise and pruning by input sensitivity.

Each adapts to the client's own gradient and its estimated sensitivities (the paper's local form, Algorithm 1). The
covariance and the pruned set depend on the data and clipped entries get no noise, so none of them is differentially
private.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule
from leakbench.defenses.noise import add_noise, add_noise_clipped
from leakbench.federated.message import Message, SparseMessage
from leakbench.federated.sensitivity import Probes
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.randomness import Streams
from leakbench.theory.optimal_noise import Form, ScaleMode, pruned, scale_variance, variance_ratio


class _Sensitive(Defense):
    """Parameters that the three share, and the ratio of sensitivity to magnitude."""

    form: Form = Field("corrected", description="which reading of the formulas; see the paper's page.md")
    per: Literal["coordinate", "tensor"] = Field(
        "coordinate", description="one ratio per coordinate, or per parameter tensor (an option of the released code)"
    )
    probes: int = Field(10, ge=1, description="random directions per sensitivity estimate, k")
    probe_kind: Probes = Field("gaussian", description="distribution of the directions")

    def ratio(self, steps: ClientSteps, released_floor: float = 1e-8) -> torch.Tensor:
        sensitivity, gradient = steps.sensitivity(self.probes, self.probe_kind), steps.gradient
        if self.per == "tensor":  # of the norms of the tensor's sensitivities and of its gradient
            sensitivity = _total_per_tensor(sensitivity, steps.network)
            gradient = _total_per_tensor(gradient.square(), steps.network).sqrt()
        return variance_ratio(sensitivity, gradient, self.form, released_floor)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement(None, None, "no guarantee: what is sent, and how noisy it is, depends on the data")


def _total_per_tensor(values: torch.Tensor, network: Network) -> torch.Tensor:
    """Every entry of ``[n, d]`` replaced by the sum over its parameter tensor."""
    tensor = torch.arange(len(network.sizes)).repeat_interleave(torch.tensor(network.sizes)).to(values.device)
    totals = values.new_zeros(len(values), len(network.sizes)).index_add(1, tensor, values)
    return totals[:, tensor]


@DEFENSES.register("optimal_noise", version=1)
class OptimalNoise(_Sensitive):
    """Gaussian noise with variance proportional to sensitivity over magnitude (Theorem 2, eq. 8)."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "weighted"},)

    scale: float = Field(ge=0, description="size of the noise, in the sense of scale_mode")
    scale_mode: ScaleMode = Field("rms", description="what scale means")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        variance = scale_variance(self.ratio(steps), steps.gradient, self.scale, self.scale_mode)
        return add_noise(steps.gradient, variance, streams)


@DEFENSES.register("optimal_clipped_noise", version=1)
class OptimalClippedNoise(OptimalNoise):
    """Elementwise clipping, then optimal noise on the coordinates that were not clipped (Theorem 3, eq. 13)."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "weighted"}, {"name": "masked"})

    clip: float = Field(1.0, gt=0, description="bound on the absolute value of every coordinate, P")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        magnitude = steps.gradient.abs()
        # At the bound itself the clipped gradient no longer depends on the input; the released code compares strictly.
        clipped = magnitude > self.clip if self.form == "as_released" else magnitude >= self.clip
        ratio = torch.where(clipped, 0.0, self.ratio(steps, released_floor=1e-6))
        variance = scale_variance(ratio, steps.gradient, self.scale, self.scale_mode)
        return add_noise_clipped(steps.gradient, self.clip, clipped, variance, streams)


@DEFENSES.register("optimal_pruning", version=1)
class OptimalPruning(_Sensitive):
    """Prune the coordinates with the largest ratio of sensitivity to magnitude (Theorem 4, eq. 17)."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "masked"},)

    fraction: float = Field(ge=0, le=1, description="part of the coordinates to prune; exactly floor(fraction * d)")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return SparseMessage(steps.gradient, ~pruned(self.ratio(steps), self.fraction, self.form))
