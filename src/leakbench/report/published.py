"""Published verdicts: files in the repository, and the tables on the papers' pages and in README that show them.

``published/<scale>/<paper>/claims.csv`` is what a run of that scale wrote. The tables are made of it and of the claims
as they are registered now: a claim that was reworded since has no verdict until a scale is published again.
"""

from __future__ import annotations

import inspect
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leakbench.errors import ConfigError, RecordError
from leakbench.lazy import pd
from leakbench.paper_folders import paper_folders
from leakbench.planning.mistakes import check_known
from leakbench.records import atomic_write
from leakbench.report.artifacts import artifacts
from leakbench.report.claims import claims_of
from leakbench.report.component_pages import FOLDER, component_pages
from leakbench.report.coverage import PAPER_SCALE
from leakbench.report.findings import MARKS, effect_text, lean_text, marked, tally, threshold_text
from leakbench.report.judging import COLUMNS, claims_path
from leakbench.report.tidy import read_frame

if TYPE_CHECKING:
    from leakbench.planning.project import Project

PUBLISHED = "published"
SCALES = (PAPER_SCALE, "overnight", "laptop", "smoke")
"""Scales whose verdicts may be published, the closest to the papers first: a claim is shown at the first that judged
it."""
README = "README.md"
BEGIN, END = "<!-- Written by `leakbench pages`. -->", "<!-- The end of what `leakbench pages` writes. -->"
_PART = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.DOTALL)
_NOT_JUDGED = "not judged since the claim changed"

Row = Mapping[str, Any]
"""A row of claims.csv, with None for what is missing."""
Published = Mapping[str, tuple[str, Row]]
"""Published claims by their keys: the scale, and the row of claims.csv."""


def published_path(scale: str, paper: str) -> str:
    """Path of a paper's published verdicts, relative to the project's root."""
    return f"{PUBLISHED}/{scale}/{paper}/claims.csv"


def exhibits_path(scale: str, paper: str) -> str:
    """Path of the page of a paper's published figures and tables, relative to the project's root."""
    return f"{PUBLISHED}/{scale}/{paper}/README.md"


def published_files(project: Project, papers: Iterable[str]) -> list[str]:
    """Paths of the verdicts that are published, of these papers at any scale."""
    paths = [published_path(scale, paper) for scale in SCALES for paper in papers]
    return [path for path in paths if (project.root / path).is_file()]


def publish(project: Project, scale: str, papers: Iterable[str]) -> list[str]:
    """Keep the verdicts that a run wrote, and return the files' paths.

    Raises:
        UnknownName: verdicts of this scale are not published.
        RecordError: a run of this scale has not written them, or another version has.
    """
    check_known("scale", scale, SCALES, "--scale")
    paths = {paper: (claims_path(scale, paper), published_path(scale, paper)) for paper in papers if claims_of(paper)}
    for written, _ in paths.values():
        if not (project.root / written).is_file():
            raise RecordError(f"{written} is not there; make it with `snakemake --cores all {written}`")
        if list(read_frame(project.root, written, f"judge {written}", nrows=0).columns) != COLUMNS:
            raise RecordError(f"{written}: made by another version; make it again with `leakbench judge {written}`")
    for written, kept in paths.values():
        (project.root / kept).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(project.root / written, project.root / kept)
    return [kept for _, kept in paths.values()]


def pages(project: Project) -> Iterator[tuple[Path, str]]:
    """Every page that is written, or in part, with its text: verdicts as published, and the components' reference.

    Raises:
        ConfigError: a page does not have exactly one place for its table.
    """
    shown = {name: closest(project, name) for name in project.plan(project.settings.scale).papers if claims_of(name)}
    for name, best in shown.items():
        if page_of(project, name) is not None:
            yield rewritten(paper_folders()[name].page, _paper_table(project, name, best))
    yield rewritten(project.root / README, _overview(project, shown))
    if (project.root / FOLDER).is_dir():
        yield from ((project.root / path, text) for path, text in component_pages().items())


def write_pages(project: Project) -> list[Path]:
    """Write the tables of verdicts and the reference, and return the pages that changed.

    Raises:
        ConfigError: a page does not have exactly one place for its table.
    """
    changed = [
        (path, text) for path, text in pages(project) if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in changed:
        atomic_write(path, text.encode())
    return [path for path, _ in changed]


def closest(project: Project, paper: str) -> Published:
    """Every claim as worded now, at the first of :data:`SCALES` with a verdict on it, else at the first of them."""
    statements = {entry.key: entry.statement for entry in claims_of(paper)}
    shown: dict[str, tuple[str, Row]] = {}
    for scale in SCALES:
        path = project.root / published_path(scale, paper)
        if path.is_file():
            frame = pd.read_csv(path, dtype={"claim": str}).astype(object)
            for row in frame.where(frame.notna(), None).to_dict("records"):
                key = str(row["claim"])
                if statements.get(key) != row["statement"]:
                    continue
                if key not in shown or (shown[key][1]["verdict"] == "not run" and row["verdict"] != "not run"):
                    shown[key] = scale, {str(column): value for column, value in row.items()}
    return shown


def page_of(project: Project, paper: str) -> str | None:
    """Path of a paper's page, relative to the project's root; None where another distribution brings the paper."""
    page, root = paper_folders()[paper].page.resolve(), project.root.resolve()
    return str(page.relative_to(root)) if page.is_relative_to(root) else None


def rewritten(path: Path, table: str) -> tuple[Path, str]:
    """A page, and its text with another table in place of the one that is there.

    Raises:
        ConfigError: it does not have exactly one place for a table.
    """
    text = path.read_text(encoding="utf-8")
    if len(_PART.findall(text)) != 1:
        raise ConfigError(f"{path}: expected one place for a table, the lines '{BEGIN}' and '{END}'")
    return path, _PART.sub(lambda _: f"{BEGIN}\n{table}\n{END}", text)


def _paper_table(project: Project, paper: str, shown: Published) -> str:
    """The claims of a paper with their verdicts, as Markdown."""
    if not shown:
        return "No verdicts are published."
    lines = [
        *(
            f"Scale `{scale}`: {project.plan(scale).description}.{_exhibits(project, scale, paper)}"
            for scale in _scales(shown)
        ),
        "",
        "| claim | statement | verdict | effect, 95 % interval | p | seeds | the paper's own numbers, verdict by them "
        "| scale | coverage |",
        "|---|---|---|---|---:|---:|---|---|---|",
    ]
    for entry in claims_of(paper):
        code = os.path.relpath(_judged_in(entry.find), paper_folders()[paper].page.parent)
        cells = [f"[{entry.key}]({code})", f"{entry.statement} ({entry.source})"]
        known = entry.key in shown
        cells += _judged_cells(*shown[entry.key], entry.printed) if known else [_NOT_JUDGED, *[""] * 6]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def _exhibits(project: Project, scale: str, paper: str) -> str:
    """A sentence that links the page of published figures; empty where there is none."""
    page = project.root / exhibits_path(scale, paper)
    if not page.is_file():
        return ""
    return f" [All figures and tables]({os.path.relpath(page, paper_folders()[paper].page.parent)})."


def _judged_in(judge: Any) -> str:
    """Path of the file with the function that judges a claim, inside its decorators and partial applications."""
    while inner := next(filter(None, (getattr(judge, name, None) for name in ("__wrapped__", "func", "check"))), None):
        judge = inner
    return inspect.getfile(judge)


def _scales(shown: Published) -> list[str]:
    """The scales at which claims are shown, in the order of :data:`SCALES`."""
    there = {scale for scale, _ in shown.values()}
    return [scale for scale in SCALES if scale in there]


def _judged_cells(scale: str, row: Row, printed: str) -> list[str]:
    needed = None if row["seeds_needed"] is None else int(row["seeds_needed"])
    verdict = "; ".join(filter(None, (marked(row), lean_text(row["lean"] or "", needed))))
    effect = effect_text(row["effect"], row["low"], row["high"])
    threshold = threshold_text(row["at_least"], row["at_most"])
    if effect and threshold:
        effect += f" ({threshold})"
    reason = row["note"] if row["verdict"] == "not run" or not row["meaning"] else row["meaning"]
    if row["p"] is None and row["meaning"] and row["note"]:  # a theorem: on how many cases
        reason += f"; {row['note']}"
    return [
        verdict,
        ": ".join(filter(None, (effect, reason))),
        "" if row["p"] is None else p_text(row["p"]),
        "" if row["seeds"] is None else f"{row['seeds']:.0f}",
        ": ".join(filter(None, (printed, row["by_paper"]))),
        scale,
        row["coverage"] or "",
    ]


def p_text(p: float) -> str:
    """A p-value as text.

    >>> p_text(0.01234), p_text(0.00012)
    ('0.012', '< 0.001')
    """
    return "< 0.001" if p < 1e-3 else f"{p:.2g}" if not math.isnan(p) else ""


def _overview(project: Project, published: Mapping[str, Published]) -> str:
    """README's table: what there is of every paper, and how its claims came out."""
    verdicts = list(MARKS)
    lines = [
        f"| paper | figures | tables | claims | {' | '.join(MARKS[each] for each in verdicts)} | scale |",
        "|---|" + "---:|" * (3 + len(verdicts)) + "---|",
    ]
    plan = project.plan(project.settings.scale)
    for name, spec in plan.papers.items():
        kinds = Counter(entry.kind for entry in artifacts() if entry.paper == name)
        claims, shown = claims_of(name), published.get(name, {})
        judged = list(shown.values())
        results, survive = [row["verdict"] for _, row in judged], [row["survives"] for _, row in judged]
        counts = [tally(results, survive, verdict) for verdict in verdicts] if judged else [""] * len(verdicts)
        page, short = page_of(project, name), short_citation(spec.citation)
        cells = [f"[{short}]({page}), *{spec.title}*" if page else f"{short}, *{spec.title}*"]
        cells += map(str, (kinds["figure"], kinds["table"], len(claims), *counts, _by_scale(project, name, judged)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_scale(project: Project, paper: str, judged: Sequence[tuple[str, Row]]) -> str:
    """``overnight 26, smoke 14``, with numbers of claims only where there are several scales, and links to figures."""
    counts = Counter(scale for scale, _ in judged)
    parts = []
    for scale in SCALES:
        path, name = exhibits_path(scale, paper), f"`{scale}`"
        drawn = (project.root / path).is_file()
        if counts[scale] or drawn:
            name = f"[{name}]({path})" if drawn else name
            parts.append(name + (f" {counts[scale]}" if len(counts) > 1 and counts[scale] else ""))
    return ", ".join(parts)


def short_citation(citation: str) -> str:
    """``Chen et al. 2024`` for three authors and a year."""
    authors, _, year = citation.rpartition(", ")
    names = re.split(", | and ", authors)
    return f"{names[0].split()[-1]} et al. {year}" if len(names) > 1 else citation
