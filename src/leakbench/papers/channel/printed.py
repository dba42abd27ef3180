"""The paper's printed numbers in the places of records: Table 2.

Its other numbers are eigenvalues (Fig. 8), counts of parameters (Table 2) and a grid of noise. E12 and E13 compare ours
with the first two, and to compare these with themselves would say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from leakbench.papers.channel.common import printed
from leakbench.report.artifacts import Tables
from leakbench.report.reference import Printed, tidy_table


def tables() -> Tables:
    """Tidy tables by experiment, of what the paper prints."""
    return {"cost": tidy_table(_table_2())}


def _table_2() -> Iterator[Printed]:
    """Overheads in wall time on a GPU, and the seconds that the channel adds; means over the paper's runs."""
    metrics = {"channel": "overhead_once", "opacus": "overhead"}
    plain: dict[str, float] = {}
    for row in printed("table02").to_dict("records"):
        cell, setting = ("cifar10", row["architecture"]), {"method": row["method"]}
        if row["method"] in metrics:
            yield Printed(cell, "none", metrics[row["method"]], row["overhead"], setting=setting)
        else:
            plain[row["architecture"]] = float(row["seconds"])
            yield Printed(cell, "none", "parameters", row["parameters"], setting=setting)
        if row["method"] == "channel":
            added = float(row["seconds"]) - plain[row["architecture"]]
            yield Printed(cell, "none", "once_wall_s", added, setting=setting)
