"""Claims judged on tables that are made so that the verdict is known."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from leakbench.report.claims import claims_of
from leakbench.report.findings import Finding

Tables = dict[str, pd.DataFrame]
Case = tuple[Callable[[], Tables], Callable[[], Tables]]
"""Tables that reproduce a claim, and tables that contradict it."""


def judge(paper: str, key: str, tables: Tables) -> Finding:
    """The verdict of these tables on a claim."""
    (claim,) = (entry for entry in claims_of(paper) if entry.key == key)
    return claim.judge(tables)
