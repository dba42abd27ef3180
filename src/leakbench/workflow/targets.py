"""Targets on Snakemake's command line: a misspelt one is refused before anything else, in a sentence."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from leakbench.errors import ConfigError
from leakbench.planning.mistakes import check_known
from leakbench.planning.project import PARTS, Project
from leakbench.records import RESULTS
from leakbench.report.artifacts import FIGURES, FORMATS, artifact_of, artifacts_at
from leakbench.report.judging import claims_paths
from leakbench.report.scorecard import scorecard_path
from leakbench.report.tidy import merged_paths, table_path

ALL = "all"
"""The rule that makes everything of a scale: the only one without wildcards."""


def asked_for() -> list[str]:
    """Targets on the command line of this process, which is Snakemake's; its own parser reads them."""
    if "snakemake" not in Path(sys.argv[0]).as_posix():
        return []  # a program that uses Snakemake as a library
    from snakemake.cli import get_argument_parser

    targets: list[str] = get_argument_parser().parse_known_args(sys.argv[1:])[0].targets
    return targets


def check_targets(project: Project, targets: Iterable[str]) -> None:
    """Refuse targets that no rule makes.

    Args:
        project: the project.
        targets: files relative to the root of the project, or rules.

    Raises:
        ConfigError: a target is misspelt, is a folder, or belongs to what its scale leaves out; the message says what
            there is.
    """
    for target in targets:
        if target != ALL:
            _check(project, target)


def _check(project: Project, target: str) -> None:
    parts = PurePosixPath(target).parts
    if len(parts) < 2 or parts[0] not in (FIGURES, RESULTS):
        raise ConfigError(
            f"unknown target '{target}'. Expected {FIGURES}/<scale>/<paper>/<figure or table>.<format>, "
            f"{RESULTS}/<scale>/scorecard.html, a record below {RESULTS}/<scale>, or {ALL}."
        )
    scale, depth = parts[1], len(parts)
    plan = project.plan(scale, where=target)
    if target == scorecard_path(scale):
        return
    if depth > 2:
        check_known("paper", parts[2], list(plan.papers), target)
    if parts[0] == FIGURES and depth == 4:
        if target not in claims_paths(scale, parts[2]):
            artifact_of(target).check_made(plan)
        return
    if depth > 3 and parts[0] == RESULTS:
        check_known("experiment", parts[3], list(plan.papers[parts[2]].experiments), target)
    if depth == 1 + len(PARTS):
        project.job(target)
    elif depth != 5 or target not in merged_paths(scale, *parts[2:4]):
        raise ConfigError(f"{target} is no file that is made: {_instead(project, parts)}")


def _instead(project: Project, parts: tuple[str, ...]) -> str:
    """Advice to who asks for a folder."""
    if len(parts) == 2:
        return f"for all of a scale, say --config scale={parts[1]} instead"
    if len(parts) == 3:
        entry = next(each for each in artifacts_at(project.plan(parts[1])) if each.paper == parts[2])
        file = entry.path(parts[1], FORMATS[entry.kind][0])
        return f"name a file such as {file}; for all of a paper, say --config papers='[{parts[2]}]' instead"
    if parts[0] == FIGURES:
        return "figures and tables lie beside each other; partial and bare ones are made by `leakbench draw`"
    return f"of an experiment there are {table_path(*parts[1:4])} and records"
