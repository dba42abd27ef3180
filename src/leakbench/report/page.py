"""One self-contained HTML page of a scale: every figure and table, what is missing, and where the numbers come from."""

from __future__ import annotations

import base64
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from leakbench.errors import ConfigError
from leakbench.experiments import Plan, Project
from leakbench.lazy import pd
from leakbench.records import Record, atomic_write, read_record
from leakbench.report.artifacts import FIGURES, Artifact, artifacts
from leakbench.report.claims import MARKS, SMOKE_WARNING, claims_of, claims_path, claims_paths, in_numbers
from leakbench.report.tidy import existing, gates_path, missing_path, table_path
from leakbench.report.verdicts import in_words


@dataclass(frozen=True)
class Shown:
    """An artifact on the page: a picture as a data URI, or a table as HTML; and the files beside the page."""

    artifact: Artifact
    caption: str
    picture: str | None
    table: str | None
    files: dict[str, str]


@dataclass(frozen=True)
class Missing:
    """Numbers that do not exist, and why."""

    experiment: str
    metric: str
    reason: str
    cells: int


@dataclass(frozen=True)
class Judged:
    """A cell whose attack has a gate."""

    experiment: str
    dataset: str
    model: str
    attack: str
    required: str
    reached: str
    passed: bool


@dataclass(frozen=True)
class Decided:
    """A claim and the verdict on it."""

    claim: str
    statement: str
    source: str
    mark: str
    verdict: str
    effect: str
    meaning: str
    note: str


def write_page(project: Project, path: str) -> None:
    """Write the page to ``figures/<scale>/report.html``; it needs no other file and no network.

    Raises:
        ConfigError: the path is not a report's.
    """
    from jinja2 import Environment, PackageLoader

    parts = PurePosixPath(path).parts
    if len(parts) != 3 or parts[0] != FIGURES or parts[2] != "report.html":
        raise ConfigError(f"{path}: expected {FIGURES}/<scale>/report.html")
    scale = parts[1]
    plan = project.plan(scale, where=path)
    records = [read_record(existing(project.root, job, f"run {job}")) for job in plan.jobs]
    environment = Environment(loader=PackageLoader("leakbench.report"), autoescape=True, trim_blocks=True)
    text = environment.get_template("page.html.j2").render(
        scale=scale,
        description=plan.description,
        papers=plan.papers,
        shown={paper: list(_shown(project, scale, paper)) for paper in plan.papers},
        claims={paper: list(_claims(project.root, scale, paper)) for paper in plan.papers},
        claim_files={paper: _files(claims_paths(scale, paper), paper) for paper in plan.papers},
        smoke_warning=SMOKE_WARNING if scale == "smoke" else "",
        gates={paper: list(_gates(project.root, plan, paper)) for paper in plan.papers},
        missing={paper: list(_missing(project.root, plan, paper)) for paper in plan.papers},
        outcomes=Counter(record.outcome.status for record in records),
        provenance=_provenance(records),
    )
    atomic_write(project.root / path, text.encode())


def _shown(project: Project, scale: str, paper: str) -> Iterator[Shown]:
    for entry in artifacts():
        if entry.paper != paper:
            continue
        files = _files(entry.paths(scale), paper)
        picture = table = None
        shown = entry.path(scale, "png" if entry.kind == "figure" else "csv")
        file = existing(project.root, shown, f"draw {shown}")
        if entry.kind == "figure":
            content = file.read_bytes()
            picture = f"data:image/png;base64,{base64.b64encode(content).decode()}"
        else:
            frame = pd.read_csv(file)
            table = frame.to_html(index=False, na_rep="–", border=0)
        yield Shown(entry, entry.full_caption(project, scale), picture, table, files)


def _files(paths: list[str], paper: str) -> dict[str, str]:
    """Formats and links, as they are seen from the page."""
    return {PurePosixPath(path).suffix[1:].upper(): f"{paper}/{PurePosixPath(path).name}" for path in paths}


def _claims(root: Path, scale: str, paper: str) -> Iterator[Decided]:
    if not claims_of(paper):
        return
    path = claims_path(scale, paper)
    frame = pd.read_csv(existing(root, path, f"judge {path}"), dtype={"claim": str})
    numbers = frame[["effect", "low", "high"]].astype(object).where(frame[["effect", "low", "high"]].notna(), None)
    words = frame.fillna({"meaning": "", "note": ""})
    for row, (effect, low, high) in zip(words.to_dict("records"), numbers.to_numpy().tolist(), strict=True):
        yield Decided(
            row["claim"],
            row["statement"],
            row["source"],
            MARKS[row["verdict"]],
            row["verdict"],
            in_numbers(effect, low, high),
            row["meaning"],
            row["note"],
        )


def _gates(root: Path, plan: Plan, paper: str) -> Iterator[Judged]:
    for experiment in plan.papers[paper].experiments:
        table = table_path(plan.scale, paper, experiment)
        frame = pd.read_csv(existing(root, gates_path(table), f"merge {table}"))
        for row in frame.to_dict("records"):
            reached = "no number" if math.isnan(row["quality"]) else f"{row['quality']:.3g}"
            cell = (row["dataset"], row["model"], row["attack"] + in_words(row["setting"]))
            yield Judged(experiment, *cell, f"{row['metric']} {row['bound']}", reached, bool(row["passed"]))


def _missing(root: Path, plan: Plan, paper: str) -> Iterator[Missing]:
    for experiment in plan.papers[paper].experiments:
        table = table_path(plan.scale, paper, experiment)
        frame = pd.read_csv(existing(root, missing_path(table), f"merge {table}"))
        for (metric, reason), rows in frame.groupby(["metric", "reason"]):
            yield Missing(experiment, str(metric), str(reason), len(rows))


def _provenance(records: list[Record]) -> dict[str, str]:
    """What the records share, in words, and what they cost together."""

    def several(values: Iterator[str]) -> str:
        return ", ".join(sorted(set(values)))

    commits = several(
        (record.provenance.commit or "unknown")[:12] + (" with changes" if record.provenance.dirty else "")
        for record in records
    )
    versions = several(
        f"{name} {version}" for record in records for name, version in record.provenance.versions.items()
    )
    return {
        "records": str(len(records)),
        "made": f"{min(r.provenance.started for r in records)} to {max(r.provenance.started for r in records)}",
        "commit": commits,
        "devices": several(record.provenance.device for record in records),
        "versions": versions,
        "computing time": f"{sum(record.cost.device_s for record in records):.0f} s",
        "largest job": f"{max(record.cost.peak_memory_bytes for record in records) / 2**30:.2f} GiB",
    }
