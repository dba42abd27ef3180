"""The claims of a paper judged by its tidy tables, and the files with the verdicts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from leakbench.errors import ConfigError, UnknownName
from leakbench.lazy import pd
from leakbench.records import atomic_write
from leakbench.report.artifacts import FIGURES, escaped
from leakbench.report.claims import Claim, claims_of
from leakbench.report.compared import places_of
from leakbench.report.coverage import PAPER_SCALE, coverage
from leakbench.report.findings import SURVIVES, Finding, finite, survives
from leakbench.report.labels import left_out
from leakbench.report.statistics import holm
from leakbench.report.tidy import existing, read_frame, table_path

if TYPE_CHECKING:
    from leakbench.planning.project import Project

_NUMBERS = ["effect", "low", "high", "at_least", "at_most", "p", "p_holm"]
COLUMNS = [
    "claim",
    "statement",
    "source",
    "printed",
    "by_paper",
    "verdict",
    "survives",
    *_NUMBERS,
    "seeds",
    "lean",
    "seeds_needed",
    "coverage",
    "meaning",
    "note",
]
"""Columns of claims.csv."""

FORMATS = ("csv", "md", "tex")
SMOKE_WARNING = "Smoke scale: small models and embedded data; verdicts say little about the paper."


def claims_path(scale: str, paper: str, extension: str = "csv") -> str:
    """Path of the verdicts on a paper's claims, relative to the project's root."""
    return f"{FIGURES}/{scale}/{paper}/claims.{extension}"


def claims_paths(scale: str, paper: str) -> list[str]:
    """Paths of all files with the verdicts on a paper's claims."""
    return [claims_path(scale, paper, extension) for extension in FORMATS]


def claims_inputs(project: Project, scale: str, paper: str) -> list[str]:
    """The tidy tables that a paper's claims read.

    Raises:
        UnknownName: a claim reads a label that the paper's grid does not have.
    """
    plan = project.plan(scale)
    for entry in claims_of(paper):
        entry.check(plan)
    names = dict.fromkeys(name for entry in claims_of(paper) for name in entry.experiments)
    return [table_path(scale, paper, name) for name in names if not plan.leaves_out(paper, name)]


def judged(project: Project, scale: str, paper: str) -> Iterator[tuple[Claim, Finding]]:
    """Every claim of a paper with its verdict, from the tidy tables that exist.

    Raises:
        UnknownName: a claim reads a label that the paper's grid does not have.
    """
    claims_inputs(project, scale, paper)  # mistakes surface before anything is judged
    plan, whole = project.plan(scale), project.plan(PAPER_SCALE)
    tables: dict[str, pd.DataFrame] = {}
    for entry in claims_of(paper):
        if absent := [name for name in entry.experiments if plan.leaves_out(paper, name)]:
            yield entry, Finding("not run", note=f"the scale leaves out {', '.join(absent)}")
            continue
        paths = {name: table_path(scale, paper, name) for name in entry.experiments}
        missing = [path for path in paths.values() if not (project.root / path).is_file()]
        if missing:
            yield entry, Finding("not run", note=f"make the tables with `snakemake --cores all {' '.join(missing)}`")
            continue
        for name in paths.keys() - tables.keys():
            tables[name] = read_frame(project.root, paths[name], f"merge {paths[name]}")
        finding = entry.judge_beside(tables, places_of(project.compared))
        if finding.verdict == "not run":
            reasons = [finding.note, *left_out(plan, paper, entry.reads)]
            finding = replace(finding, note="; ".join(filter(None, reasons)))
        yield entry, replace(finding, coverage=coverage(plan, whole, paper, entry.experiments))


def verdict_rows(results: Iterable[tuple[Claim, Finding]]) -> list[dict[str, Any]]:
    """A row of claims.csv per claim of one paper, in JSON types.

    ``p_holm`` is ``p`` after Holm's correction over those of the paper's claims that have one, and a verdict
    ``survives`` it where that is 5 % at most. Verdicts are those of each claim alone.
    """
    results = list(results)
    adjusted = holm([math.nan if finding.p is None else finding.p for _, finding in results])
    rows = [
        {
            "claim": entry.key,
            "statement": entry.statement,
            "source": entry.source,
            "printed": entry.printed,
            "by_paper": entry.by_paper,
            **asdict(finding),
            "p_holm": finite(p_holm),
            "survives": survives(finding.verdict, p_holm),
        }
        for (entry, finding), p_holm in zip(results, adjusted, strict=True)
    ]
    return [{column: row[column] for column in COLUMNS} for row in rows]


def judge(project: Project, path: str) -> None:
    """Judge a paper's claims and write the verdicts in all formats.

    Args:
        project: whose tidy tables are read.
        path: ``figures/<scale>/<paper>/claims.<format>``.

    Raises:
        ConfigError: the path is not that of a paper's claims.
        RecordError: a tidy table is missing; the message says which command makes it.
    """
    target = PurePosixPath(path)
    if len(target.parts) != 4 or target.parts[0] != FIGURES or target.stem != "claims":
        raise ConfigError(f"{path}: expected {FIGURES}/<scale>/<paper>/claims.<{'|'.join(FORMATS)}>")
    _, scale, paper, _ = target.parts
    if target.suffix[1:] not in FORMATS:
        raise UnknownName("format", target.suffix[1:], FORMATS, path)
    plan = project.plan(scale, where=path)
    if paper not in plan.papers:
        raise UnknownName("paper", paper, plan.papers, path)
    for table in claims_inputs(project, scale, paper):
        existing(project.root, table, f"merge {table}")
    frame = pd.DataFrame(verdict_rows(judged(project, scale, paper)), columns=COLUMNS)
    spec = plan.papers[paper]
    caption = f"Claims of {spec.title} ({spec.citation}). {plan.caption}"
    if scale == "smoke":
        caption += f" {SMOKE_WARNING}"
    for extension, content in _formats(frame, caption).items():
        atomic_write(project.root / claims_path(scale, paper, extension), content.encode())


def _formats(frame: pd.DataFrame, caption: str) -> dict[str, str]:
    """The verdicts as CSV, where numbers keep all their digits, and as tables to read."""
    shown = frame.astype(object)
    for column in ("seeds", "seeds_needed"):
        shown[column] = ["" if math.isnan(count) else f"{count:.0f}" for count in frame[column].astype(float)]
    shown["survives"] = [SURVIVES if survives else "" for survives in frame["survives"]]
    for column in _NUMBERS:
        shown[column] = ["" if math.isnan(value) else f"{value:.3g}" for value in frame[column].astype(float)]
    latex = shown.to_latex(
        index=False,
        caption=escaped(caption),
        escape=True,  # the cells alone
        longtable=True,
        column_format="lp{5cm}p{2cm}p{3cm}lllrrrrrrrrlrp{3cm}p{3cm}p{5cm}",
    )
    markdown = shown.to_markdown(index=False, disable_numparse=True)
    return {"csv": frame.to_csv(index=False), "md": f"{markdown}\n\n{caption}\n", "tex": latex}
