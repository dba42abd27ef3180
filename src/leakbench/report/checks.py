"""Theorems as claims without tables: a check draws random cases from a fixed seed and looks for a violation.

A check that holds is evidence for the functions of :mod:`leakbench.theory` as much as for the theorem: a wrong one of
either makes it fail. Checks compute in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

from leakbench.lazy import torch

EXACT = 1e-9
"""Relative deviation that two float64 computations of the same number may have."""


@dataclass(frozen=True)
class Checked:
    """What a check found.

    Attributes:
        holds: whether no case violates the statement.
        margin: the smallest slack found; negative where violated.
        trials: number of random cases.
        what: what the margin measures, in words.
    """

    holds: bool
    margin: float
    trials: int
    what: str


def checked(slacks: list[torch.Tensor], trials: int, what: str) -> Checked:
    """The smallest slack of all tensors, of any shapes; none may be negative, or NaN."""
    margin = float(torch.stack([slack.amin().double() for slack in slacks]).amin())
    return Checked(margin >= 0, margin, trials, what)  # NaN does not hold


def agreement(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Slack of an equality of numbers, elementwise: what is left of the relative tolerance :data:`EXACT`."""
    return EXACT - (actual / expected - 1).abs()


def required(slack: torch.Tensor) -> torch.Tensor:
    """A slack, elementwise, that matters where it is negative, and does not hide the margin of interest elsewhere."""
    return torch.where(slack >= 0, torch.inf, slack)
