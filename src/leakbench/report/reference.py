"""Numbers that papers print, from the CSV files in their ``reference`` folders."""

from __future__ import annotations

from leakbench.lazy import pd
from leakbench.paper_folders import paper_folders


def printed_numbers(paper: str, name: str) -> pd.DataFrame:
    """The paper's numbers in ``reference/<name>.csv``."""
    return pd.read_csv(paper_folders()[paper].reference / f"{name}.csv", encoding="utf-8")
