"""The amount of computation, counted from a plan; measured seconds are proportional to it (docs/costs.md)."""

from __future__ import annotations

from typing import Literal, NamedTuple

FORWARD = 1 / 3
"""A pass of a sample through a model without its derivative, as a part of one with it."""


Unit = Literal["passes", "parameters", "multiply-adds"]
"""The unit of effort: samples that pass through a model, forward and backward; additions of vectors of the size of its
parameters; or a processor's multiply-adds."""


class Effort(NamedTuple):
    """Work, and how much of it is sequential.

    Attributes:
        passes: samples that pass through the model, or another :data:`Unit`.
        steps: sequential steps.
    """

    passes: float
    steps: float

    def plus(self, other: Effort) -> Effort:
        """Both, one after the other."""
        return Effort(self.passes + other.passes, self.steps + other.steps)

    def times(self, count: float) -> Effort:
        """Repeated ``count`` times in sequence."""
        return Effort(self.passes * count, self.steps * count)

    def less(self, other: Effort) -> Effort:
        """Without a part of it."""
        return Effort(self.passes - other.passes, self.steps - other.steps)

    def beside(self, count: float) -> Effort:
        """Repeated ``count`` times in parallel."""
        return Effort(self.passes * count, self.steps)
