"""Attackers of defenses that send fixed-point integers with some bits flipped (Deng et al. 2024)."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from pydantic import Field, model_validator

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS, Knowledge, Observations, Reconstruction, each_round
from leakbench.attacks.gradient_matching import GradientMatching, Search
from leakbench.attacks.objectives import L1, Objective
from leakbench.attacks.optimisers import Adam, Optimiser
from leakbench.effort import Effort
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.randomness import Streams


@ATTACKS.register("cleared_bits", version=2)
class ClearedBits(Wrapper):
    """Set the flipped bits of every received word to zero: without a loss where honest values never reach them.

    The attacker knows the encoding, which the server needs to decode anything: which coordinates are words and in what
    unit, and that a word is a sign and a magnitude, of the value times ``10^decimals``. With the paper's two bits,
    values below 0.4096 units come back exactly. A message without words stays as it is.
    """

    decimals: int = Field(4, ge=0, description="decimal places that words hold, z")
    width: int = Field(16, ge=2, le=32, description="bits per word, b; the first one is the sign")
    positions: tuple[int, ...] = Field(
        (2, 3), min_length=1, description="flipped bits, counted from the left; 0 is the sign, which stays"
    )

    @model_validator(mode="after")
    def _inside_the_magnitude(self) -> ClearedBits:
        if not all(1 <= position < self.width for position in self.positions):
            raise ValueError(f"positions: from 1 to {self.width - 1}; a sign that is cleared says nothing")
        return self

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        gradients, coded = observations.gradients, observations.coded
        if coded is None:
            return observations
        unit = observations.unit.double() / 10**self.decimals
        scaled = (gradients.double() / unit).round()
        magnitude = scaled.abs().clamp(max=2 ** (self.width - 1) - 1).long()
        cleared = magnitude & ~sum(1 << (self.width - 1 - position) for position in set(self.positions))
        values = (scaled.sign() * cleared * unit).to(gradients)
        return replace(observations, gradients=torch.where(coded > 0, values, gradients))


@ATTACKS.register("averaged", version=1)
class Averaged(Wrapper):
    """One gradient out of several messages of the same client about the same images and model.

    What a defense draws afresh for every message averages out; bits that are flipped seldom, the median and the mode
    remove altogether.
    """

    statistic: Literal["mean", "median", "mode"] = Field(
        "median", description="per coordinate; of an even number of messages, median is the lower of the middle two"
    )

    def improve(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Observations:
        if observations.repeats is None:
            raise Infeasible("every client sends one message; the protocol's field messages says how many")
        if self.statistic == "mean":
            gradients = observations.repeats.mean(dim=1)
        elif self.statistic == "median":
            gradients = observations.repeats.median(dim=1).values
        else:
            gradients = observations.repeats.mode(dim=1).values
        return replace(observations, gradients=gradients)


@ATTACKS.register("robust", version=1)
class Robust(Wrapper):
    """Find out which coordinates are wrong: match them all in L1, ignore those that stay far off, and search again.

    Needs to know of the defense that it changes few coordinates, by how much at least (``residual``) and in which unit.
    The attack inside, which is gradient matching, begins at the images of the first search, which is like it but for
    objective, optimiser and iterations.
    """

    residual: float = Field(
        0.2,
        gt=0,
        description="difference from the observed gradient at which a coordinate counts as wrong, in the unit in which "
        "the coordinate was sent",
    )
    objective: Objective = Field(L1(), description="of the first search")
    optimiser: Optimiser = Field(Adam(rate=0.05, decay="cosine"), description="of the first search")
    iterations: int = Field(1500, ge=1, description="of the first search")

    @model_validator(mode="after")
    def _around_gradient_matching(self) -> Robust:
        if not isinstance(self.attack, GradientMatching):
            raise ValueError(f"attack: '{self.attack.name}' is no gradient matching; wrap 'robust' instead")
        return self

    def effort(self, samples: int) -> Effort:
        return Effort(self.iterations * samples, self.iterations).plus(self.attack.effort(samples))

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        assert isinstance(self.attack, GradientMatching)
        first = self.attack.model_copy(
            update={"objective": self.objective, "optimiser": self.optimiser, "iterations": self.iterations}
        )
        estimate = first.reconstruct(observations, knowledge, streams)

        def trusting(seen: Observations, known: Knowledge) -> Observations:
            residual = Search(first, seen, known).residuals(estimate)
            trusted = (residual.abs() < self.residual * seen.unit).to(seen.gradients)
            return replace(seen, weights=trusted if seen.weights is None else trusted * seen.weights)

        begun, *later = (trusting(*each) for each in each_round(observations, knowledge))
        begun = replace(begun, start=estimate.images, later=tuple(later))
        return self.attack.reconstruct(begun, knowledge, streams)
