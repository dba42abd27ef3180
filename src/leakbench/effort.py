"""How much there is to compute, counted from a plan: what measured seconds are in proportion to (docs/costs.md)."""

from __future__ import annotations

from typing import Literal, NamedTuple

FORWARD = 1 / 3
"""A pass of a sample through a model without its derivative, as a part of one with it."""


Unit = Literal["passes", "parameters", "multiply-adds"]
"""What is counted: samples that pass through a model, forward and backward; additions of vectors of the size of its
parameters; or what a processor does."""


class Effort(NamedTuple):
    """Work, and what of it has to wait.

    Attributes:
        passes: samples that pass through the model, or what else its :data:`Unit` says.
        steps: computations of which each waits for the one before, whatever is computed side by side.
    """

    passes: float
    steps: float

    def plus(self, other: Effort) -> Effort:
        """One after the other."""
        return Effort(self.passes + other.passes, self.steps + other.steps)

    def times(self, count: float) -> Effort:
        """So often, one after the other."""
        return Effort(self.passes * count, self.steps * count)

    def beside(self, count: float) -> Effort:
        """So often, side by side."""
        return Effort(self.passes * count, self.steps)
