"""Theorems as claims without tables: a check draws random cases from a fixed seed and looks for a violation.

A check tests the functions of :mod:`leakbench.theory` as much as the theorem: an error in either makes it fail. Checks
compute in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from leakbench.lazy import torch
from leakbench.report.claims import claim
from leakbench.report.evidence import Evidence
from leakbench.report.findings import Finding

EXACT = 1e-9
"""Relative deviation that two float64 computations of the same number may have."""
DEVIATION = f"{EXACT:g} minus the largest relative deviation"
"""Meaning of the margin of an equality."""
STRICT = 1e-12
"""Relative difference that a strict inequality between float64 numbers has to show."""


@dataclass(frozen=True)
class Checked:
    """Outcome of a check.

    Attributes:
        holds: whether no case violates the statement.
        margin: the smallest slack; negative where violated.
        trials: number of random cases.
        what: the quantity that the margin measures, in words.
    """

    holds: bool
    margin: float
    trials: int
    what: str


Check = Callable[[], Checked]


@dataclass(frozen=True)
class Theorem:
    """Judge of a claim without tables: it runs the check when it is called.

    Attributes:
        check: computes random cases and returns the outcome.
    """

    check: Check

    def __call__(self, _: Evidence) -> Finding:
        """Run the check and turn its outcome into a verdict."""
        outcome = self.check()
        return Finding(
            "reproduced" if outcome.holds else "contradicted",
            effect=outcome.margin,
            meaning=outcome.what,
            note=f"{outcome.trials} random cases",
        )


def theorem_of(paper: str, key: str, statement: str, *, source: str) -> Callable[[Check], Check]:
    """Decorate the check of a theorem, and register the theorem as a claim of the paper.

    Args:
        paper: name of the paper.
        key: short name of the claim within the paper, such as ``T1``.
        statement: one plain sentence.
        source: where the paper says it.

    Raises:
        ConfigError: the paper's key is taken.
    """

    def register(check: Check) -> Check:
        claim(paper, key, statement, source=source)(Theorem(check))
        return check

    return register


def float64(values: object) -> torch.Tensor:
    """Nested lists of numbers as a tensor, of any shape."""
    return torch.as_tensor(values, dtype=torch.float64)


def checked(slacks: list[torch.Tensor], trials: int, what: str) -> Checked:
    """The smallest slack of all tensors, of any shapes; none may be negative, or NaN."""
    margin = float(torch.stack([slack.amin().double() for slack in slacks]).amin())
    return Checked(margin >= 0, margin, trials, what)  # NaN does not hold


def agreement(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Slack of an equality, elementwise: the relative tolerance :data:`EXACT` minus the deviation."""
    return EXACT - (actual / expected - 1).abs()


def required(slack: torch.Tensor) -> torch.Tensor:
    """The slack where it is negative, elementwise; infinite elsewhere, so as not to hide the margin of interest."""
    return torch.where(slack >= 0, torch.inf, slack)
