"""Sparse updates: pruned by magnitude, the whole or each of its tensors, or at random."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule, least_squares_scale
from leakbench.defenses.densities import kept_or_below
from leakbench.defenses.marginals import Marginals
from leakbench.federated.message import Message, Received, SparseMessage
from leakbench.federated.step import ClientSteps
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.theory.protection_bits import SEED_BITS, index_bits


class Sparse(Defense):
    """Mechanisms that send some of the coordinates, and zeros for the others."""

    @property
    def gain(self) -> float:
        """Factor of the coordinates that are sent."""
        return 1.0

    def fitted_scale(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """By least squares over what was sent, ``[n, 1]``."""
        values = received.values
        kept = received.once("kept", lambda: (values != 0).to(values.dtype))
        return least_squares_scale(values, self.gain * steps.gradient, kept)


SOFTNESS = 0.01
"""Width, in logarithms of magnitudes, in which it is uncertain whether a candidate's coordinate is pruned."""


def marginals_of_largest(
    gradient: torch.Tensor,
    tensors: Tensors,
    fraction: float,
    size: torch.Tensor | None = None,
    softness: float = SOFTNESS,
) -> Marginals:
    """Coordinates of candidates ``[n, d]`` of which those with the largest magnitudes of each group are sent.

    Args:
        gradient: of the candidates.
        tensors: the groups.
        fraction: the part that is not sent.
        size: what is compared instead of magnitudes, ``[n, d]``.
        softness: width, in logarithms of sizes, in which it is uncertain whether a coordinate is sent.
    """
    size = (gradient.abs() if size is None else size).detach()
    pruned = tensors.smallest(size, fraction)
    least = tensors.spread(tensors.reduce(torch.where(pruned, torch.inf, size), lambda part: part.amin(dim=1)))
    tiny = torch.finfo(size.dtype).tiny
    chance = torch.sigmoid((size.clamp(min=tiny).log() - least.clamp(min=tiny).log()) / softness)
    return Marginals(gradient, chance=chance)


@DEFENSES.register("magnitude_pruning", version=1)
class MagnitudePruning(Sparse):
    """Send only the coordinates of largest magnitude (Zhu et al. 2019), with one threshold for all layers."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    fraction: float = Field(ge=0, le=1, description="part of the coordinates to prune; exactly floor(fraction * d)")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        everything = Tensors([steps.gradient.shape[1]])
        return SparseMessage(steps.gradient, ~everything.smallest(steps.gradient.abs(), self.fraction))

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Kept coordinates are exact, and pruned ones no larger than the smallest of them, ``[n]``."""
        return kept_or_below(received, steps.gradient, Tensors([steps.gradient.shape[1]]))

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        return marginals_of_largest(steps.gradient, Tensors([steps.gradient.shape[1]]), self.fraction)


@DEFENSES.register("grad_drop", version=1)
class GradDrop(Sparse):
    """Send only the coordinates of largest magnitude of every tensor (Aji and Heafield 2017).

    Of equal magnitudes those that come first are dropped. ``as_released`` is the reading of the code of Deng et al.
    (2024): sent is what exceeds the k-th largest magnitude of its tensor, where k is the number that ``exact`` keeps;
    so k - 1 coordinates, or fewer under ties.

    Nothing that is dropped is accumulated, as in that code. Aji and Heafield add it to the next step's gradient, which
    is ``grad_drop_residual``: the same for an attack on the first step, and another method in training.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    fraction: float = Field(
        ge=0, le=1, description="part of every tensor's coordinates to drop; exactly floor(fraction * size)"
    )
    form: Literal["exact", "as_released"] = Field("exact", description="what is kept at the threshold; see the class")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        magnitude, tensors = steps.gradient.abs(), Tensors(steps.network.sizes)
        kept = ~tensors.smallest(magnitude, self.fraction)
        if self.form == "as_released":
            # The smallest of the k kept ones is the k-th largest; where nothing is kept, nothing exceeds infinity.
            smallest = tensors.reduce(torch.where(kept, magnitude, torch.inf), lambda part: part.amin(dim=1))
            kept = magnitude > tensors.spread(smallest)
        return SparseMessage(steps.gradient, kept)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Kept coordinates are exact, and dropped ones no larger than the smallest kept of their tensor, ``[n]``."""
        return kept_or_below(received, steps.gradient, Tensors(steps.network.sizes))

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        return marginals_of_largest(steps.gradient, Tensors(steps.network.sizes), self.fraction)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("what is sent is exact, and what is not depends on the data")


@DEFENSES.register("random_mask", version=1)
class RandomMask(Sparse):
    """Drop every coordinate with a given probability, whatever its size, and send the others.

    As Balunovic et al. (2022) released it, and eq. 13 of Zhang, Kang et al. (2023), where ``1 - probability`` is rho:
    what is left is sent as it is, so the update is too small on average, by the factor ``1 - probability``. With
    ``rescale`` it is divided by that (eq. 85), and right on average. Draws have 24 bits, so that probabilities are
    rounded up to multiples of 2^-24.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)
    added: ClassVar[tuple[str, ...]] = ("rescale", "positions")

    probability: float = Field(ge=0, le=1, description="of dropping a coordinate, each independently")
    rescale: bool = Field(False, description="divide what is left by 1 - probability")
    positions: Literal["sent", "seed"] = Field(
        "sent",
        description="how the server learns what is left: by a bitmap or indices, or by indices or the mask's seed of "
        "64 bits; whichever is shorter",
    )

    @model_validator(mode="after")
    def _something_left(self) -> RandomMask:
        if self.rescale and self.probability == 1:
            raise ValueError("rescale divides by 1 - probability, which is 0")
        return self

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        d = steps.gradient.shape[1]
        kept = streams.uniform(d, device=steps.gradient.device) >= self.probability
        values = self.gain * steps.gradient if self.rescale else steps.gradient
        positions = None if self.positions == "sent" else min(int(kept.sum(dim=1).max()) * index_bits(d), SEED_BITS)
        return SparseMessage(values, kept, positions, self.gain)

    @property
    def gain(self) -> float:
        return 1 / (1 - self.probability) if self.rescale else 1.0

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Kept coordinates are exact, and nothing is known of the others, ``[n]``."""
        return kept_or_below(received, self.gain * steps.gradient, None)

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        gradient = self.gain * steps.gradient
        return Marginals(gradient, chance=torch.full_like(gradient[:1, :1], 1 - self.probability).expand_as(gradient))

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("what is sent is exact")
