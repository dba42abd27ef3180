"""The checks of a paper's theorems, by the keys of their claims."""

from __future__ import annotations

from leakbench.report.checks import Check, Theorem
from leakbench.report.claims import claims_of


def checks_of(paper: str) -> dict[str, Check]:
    """Checks by key, in the order of the claims."""
    return {entry.key: entry.find.check for entry in claims_of(paper) if isinstance(entry.find, Theorem)}
