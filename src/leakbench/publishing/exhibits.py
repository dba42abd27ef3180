"""Pages of published figures and tables, one per paper and scale, beside the records that they show.

``published/<scale>/<paper>/README.md`` has every artifact of the scale with its caption; the pictures lie beside it.
The scorecard is ``published/<scale>/scorecard.html``. All of it is made from what a run drew: ``leakbench publish
--figures`` computes nothing.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from leakbench.errors import RecordError
from leakbench.paper_folders import paper_folders
from leakbench.planning.scales import PAPERS
from leakbench.publishing.archives import archive_folder, read_sums
from leakbench.records import atomic_write
from leakbench.report.artifacts import Artifact, artifacts_at
from leakbench.report.claims import claims_of
from leakbench.report.published import exhibits_path, page_of, short_citation
from leakbench.report.scorecard import scorecard
from leakbench.report.style import without_caption
from leakbench.report.tidy import existing

if TYPE_CHECKING:
    from leakbench.planning.project import Project

PICTURE = ".webp"
SCORECARD = "scorecard.html"
_LINK_OUT = re.compile(r'<a href="(?!#)[^"]*">(.*?)</a>', re.DOTALL)


def write_exhibits(project: Project, scale: str, papers: Iterable[str]) -> list[Path]:
    """Write the pages of some papers with their pictures, and return the paths of the files.

    Pictures that a page showed before, and no longer shows, go.

    Raises:
        ConfigError: no records of this scale are published.
        RecordError: a figure or table is missing, or older than the numbers that it is drawn from.
    """
    folder, plan = archive_folder(project, scale), project.plan(scale)
    sums, written = read_sums(folder), []
    for paper in papers:
        entries = sorted((each for each in artifacts_at(plan) if each.paper == paper), key=lambda each: each.order)
        files = {entry: _drawn(project, scale, entry) for entry in entries}
        pictures = {
            folder / paper / f"{entry.name}{PICTURE}": file for entry, file in files.items() if _is_figure(entry)
        }
        for path, file in pictures.items():
            atomic_write(path, packed(file))
        for old in {*(folder / paper).glob(f"*{PICTURE}")} - {*pictures}:
            old.unlink()
        page = project.root / exhibits_path(scale, paper)
        atomic_write(page, _page(project, scale, paper, files, records_digest(sums, paper)).encode())
        written += [page, *pictures]
    return written


def write_published_scorecard(project: Project, scale: str) -> Path:
    """Write a scale's scorecard to the published results, without links to files of the run, and return its path.

    Raises:
        RecordError: a paper has published figures and is not configured, or something that the page shows is missing.
    """
    folder, plan = archive_folder(project, scale), project.plan(scale)
    papers = {path.split("/")[0] for path in read_sums(folder)}
    if absent := {paper for paper in papers if (project.root / exhibits_path(scale, paper)).is_file()} - {*plan.papers}:
        raise RecordError(
            f"{folder / SCORECARD}: shows all that is published; add to `papers`: {', '.join(sorted(absent))}"
        )
    atomic_write(folder / SCORECARD, _LINK_OUT.sub(r"\1", scorecard(project, scale)).encode())
    return folder / SCORECARD


def outdated_pages(project: Project, scale: str, papers: Iterable[str]) -> dict[str, str]:
    """Pages of other records than those published beside them, and the command that writes each again."""
    sums, outdated = read_sums(archive_folder(project, scale)), {}
    for paper in papers:
        page = project.root / exhibits_path(scale, paper)
        if page.is_file() and _origin(records_digest(sums, paper)) not in page.read_text(encoding="utf-8"):
            outdated[exhibits_path(scale, paper)] = f"leakbench publish --figures --scale {scale} --paper {paper}"
    return outdated


def records_digest(sums: Mapping[str, str], paper: str) -> str:
    """Short digest of a paper's archives, from the digests of a scale's files."""
    lines = sorted(f"{digest}  {path}\n" for path, digest in sums.items() if path.split("/")[0] == paper)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def packed(file: Path) -> bytes:
    """A drawn figure above its caption as WebP, without loss."""
    buffer = io.BytesIO()
    without_caption(file)[0].save(buffer, format="WEBP", lossless=True, method=6)
    return buffer.getvalue()


def _origin(digest: str) -> str:
    return f"<!-- Written by `leakbench publish --figures` from records {digest}. -->"


def _is_figure(entry: Artifact) -> bool:
    return entry.kind == "figure"


def _drawn(project: Project, scale: str, entry: Artifact) -> Path:
    """The file of an artifact that a page shows, no older than its numbers."""
    path = entry.path(scale, "png" if _is_figure(entry) else "md")
    file = existing(project.root, path, f"draw {path}")
    of = [project.root / table for table in entry.inputs(scale)]
    if any(table.is_file() and table.stat().st_mtime > file.stat().st_mtime for table in of):
        raise RecordError(f"{path}: older than the numbers that it shows; make it again with `leakbench draw {path}`")
    return file


def _page(project: Project, scale: str, paper: str, files: Mapping[Artifact, Path], digest: str) -> str:
    plan = project.plan(scale)
    spec = plan.papers[paper]
    here = archive_folder(project, scale) / paper
    about = page_of(project, paper)
    its_page = "its page" if about is None else f"[its page]({os.path.relpath(project.root / about, here)})"
    there = "Claims, and what deviates from the paper, are" if claims_of(paper) else "What it measures, and how, is"
    parts = [
        _origin(digest),
        f"# {short_citation(spec.citation)}: figures and tables at `{scale}`",
        f"{spec.citation}, *{spec.title}*. Scale `{scale}`: {plan.description}. {there} on "
        f"{its_page}. To draw all of it again from the records in this folder:",
        f"```console\nleakbench adopt {scale} --paper {paper}\n{_overlay(project, paper)}"
        f'snakemake --cores all --config scale={scale} "papers=[{paper}]"\n```',
    ]
    scaled = f" {plan.caption}"  # at the top of the page
    for entry, file in files.items():
        parts.append(f"## {entry.kind.capitalize()} {entry.number}: {entry.title}")
        if _is_figure(entry):
            parts += [
                f"![{entry.title}]({entry.name}{PICTURE})",
                _escaped(without_caption(file)[1].replace(scaled, "")),
            ]
        else:
            table, _, caption = file.read_text(encoding="utf-8").strip().partition("\n\n")
            parts += [_escaped(caption.replace(scaled, "")), re.sub(r"(?=\[[A-Z])", r"\\", table)]  # [PAD] is no link
    return "\n\n".join([*parts, ""])


def _overlay(project: Project, paper: str) -> str:
    """The command that leaves out what is not published yet, where the paper has an overlay for that."""
    overlay, root = paper_folders()[paper].so_far.resolve(), project.root.resolve()
    if not overlay.is_file() or not overlay.is_relative_to(root):
        return ""
    return f"mkdir -p {PAPERS} && cp {overlay.relative_to(root)} {PAPERS}/{paper}.yaml\n"


def _escaped(caption: str) -> str:
    r"""Plain text as Markdown.

    >>> print(_escaped("G*_1 < 2"))
    G\*\_1 \< 2
    """
    return re.sub(r"([*_<>`|\\])", r"\\\1", caption)
