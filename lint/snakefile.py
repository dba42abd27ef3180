"""Snakemake's own lint, where a waived check has to say why: ``python lint/snakefile.py`` from the repository root.

``snakemake --lint`` fails on any lint, and has no way to waive one.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import NamedTuple

from snakemake.api import SnakemakeApi
from snakemake.settings.types import OutputSettings, Quietness, ResourceSettings

WAIVED = {
    "Specify a conda environment or container for each rule.": (
        "All rules share one environment, which pip pins in envs/; a fresh machine needs neither conda nor containers."
    ),
    "Shell command directly uses variable flow from outside of the rule": (
        "{flow.command} is how to start leakbench: an interpreter, and the overrides of this run. As a parameter it "
        "would compute everything again when the environment moves; what an override changes is in params.job."
    ),
}
"""Titles of waived checks, with the reasons."""


class Finding(NamedTuple):
    """One lint of one rule or file."""

    place: str
    title: str
    body: str


def findings(snakefile: Path) -> list[Finding]:
    """All lints of a workflow by Snakemake."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), SnakemakeApi(OutputSettings(quiet={Quietness.ALL})) as api:
        api.workflow(resource_settings=ResourceSettings(), snakefile=snakefile).lint(json=True)
    report = json.loads(printed.getvalue())
    return [
        Finding(" ".join(str(part) for part in entry["for"].values()), lint["title"], lint["body"])
        for entry in (*report["snakefiles"], *report["rules"])
        for lint in entry["lints"]
    ]


def main() -> int:
    """Print the lints that are not waived, and the waivers that nothing needs; returns the exit status."""
    lints = findings(Path("Snakefile").resolve())
    faults = [f"{one.place}: {one.title}: {one.body}" for one in lints if one.title not in WAIVED]
    needless = WAIVED.keys() - {one.title for one in lints}
    faults += [f"nothing needs the waiver '{title}'; remove it" for title in sorted(needless)]
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
