"""The scorecard of a scale: one self-contained HTML page.

First the artifacts that lead, such as the leaderboard; then the claims that are contradicted; then every claim with its
verdict, findings, figures, tables, gaps and provenance. It is made from existing files: verdicts, pictures, and those
beside the tidy tables. No record is read.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from leakbench.errors import ConfigError, RecordError
from leakbench.lazy import pd
from leakbench.planning.plan import Plan
from leakbench.planning.project import Project
from leakbench.records import RESULTS, atomic_write
from leakbench.report.artifacts import Artifact, artifacts_at
from leakbench.report.claims import Claim, claims_of
from leakbench.report.findings import MARKS, SURVIVES, effect_text, lean_text, marked, tally, threshold_text
from leakbench.report.gate_verdicts import over_reference, setting_behind
from leakbench.report.judging import COLUMNS, SMOKE_WARNING, claims_path, claims_paths
from leakbench.report.published import Row, closest
from leakbench.report.style import without_caption
from leakbench.report.tidy import (
    adaptive_path,
    existing,
    gates_path,
    missing_path,
    provenance_path,
    read_frame,
    table_path,
)
from leakbench.report.under_attacked import COLUMN, in_words

FINDINGS = "## Errors and gaps of the paper"
"""Heading of the section of a replication page that the scorecard shows."""

LEADING, WIDTH = 900, 360
"""Largest width of a picture that leads, and of others, in pixels; the whole one is linked."""

ROWS = 12
"""Largest number of rows of a table on the page, but of those that lead; the whole one is linked."""

_ROMAN = {"I": 1, "II": 2, "III": 3, "IV": 4, "V": 5, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "X": 10}
_NUMBER = r"(?:\d+|[IVX]+)\b"
_NAMED = re.compile(rf"\b(Fig\.|Table|Tables) ({_NUMBER}(?:(?:, | and | to ){_NUMBER})*)")


@dataclass(frozen=True)
class Shown:
    """An artifact on the page: a small picture as a data URI, or a table as HTML, and links to the files.

    Attributes:
        size: width and height of the picture.
        rows: number of rows of the whole table; 0 of a picture.
    """

    artifact: Artifact
    caption: str
    files: dict[str, str]
    picture: str = ""
    size: tuple[int, int] = (0, 0)
    table: str = ""
    rows: int = 0


@dataclass(frozen=True)
class Missing:
    """Missing numbers, with the reason."""

    experiment: str
    metric: str
    reason: str
    cells: int


@dataclass(frozen=True)
class Gated:
    """A cell whose attack has a gate, and whether it passed.

    Attributes:
        margin: asked for over the reference attacker.
        reached: the attack, the reference attacker, and the difference with its interval.
    """

    experiment: str
    dataset: str
    model: str
    attack: str
    margin: str
    reached: str
    passed: bool


@dataclass(frozen=True)
class UnderAttacked:
    """The cells of an experiment in which an adaptive attack runs beside the plain one.

    Attributes:
        cells: in words, with both attacks, those in which the adaptive one does worse, beyond noise.
        count: of all that were compared.
    """

    experiment: str
    cells: list[str]
    count: int


@dataclass(frozen=True)
class Decided:
    """A claim and the verdict on it.

    Attributes:
        analytic: whether it is judged by computing alone, as theorems are.
        published: of a claim without a verdict here, the one that is published of the scale closest to the papers'.
        threshold: what the effect has to be; empty where it has no threshold.
        bar: places of zero, of the interval's ends and of the effect, in percent of the bar's width; None without an
            interval.
        p_holm: p-value of the verdict after Holm's correction over the paper's claims.
        survives: the mark of a verdict that outlives that correction; empty elsewhere.
        coverage: how much of the paper's grid was computed.
        by_paper: sign and word of the verdict that the paper's own numbers give; empty if it does not print them.
        undecided: where an inconclusive claim leans, and how many seeds would decide it; empty elsewhere.
        see: ids of the figures and tables on the page that show it.
        experiments: that it was judged by.
    """

    claim: str
    statement: str
    source: str
    analytic: bool
    mark: str
    verdict: str
    published: str
    effect: str
    threshold: str
    bar: tuple[float, float, float, float] | None
    p_holm: str
    survives: str
    undecided: str
    coverage: str
    printed: str
    by_paper: str
    meaning: str
    note: str
    see: list[str]
    experiments: list[str]

    @property
    def place(self) -> int:
        """Sort key: decided claims, then inconclusive ones, then those without a verdict here."""
        return {"inconclusive": 1, "not run": 3 - bool(self.published)}.get(self.verdict, 0)

    @property
    def contradicted(self) -> bool:
        """Whether it is contradicted: here, or where it has no verdict here by the published one."""
        return MARKS["contradicted"] in (self.mark, self.published[:1])


@dataclass(frozen=True)
class Records:
    """Links to the records of an experiment.

    Attributes:
        folder: that they are in.
        cells: by data set and model; of each record its defense and attack, its file, and its outcome unless ``ok``.
    """

    experiment: str
    title: str
    folder: str
    count: int
    cells: dict[str, list[tuple[str, str, str]]]


def scorecard_path(scale: str) -> str:
    """Path of a scale's scorecard, relative to the project's root."""
    return f"{RESULTS}/{scale}/scorecard.html"


def write_scorecard(project: Project, path: str) -> None:
    """Write the page to ``results/<scale>/scorecard.html``.

    Raises:
        ConfigError: the path is not a scorecard's.
        RecordError: as :func:`scorecard`.
    """
    scale = PurePosixPath(path).parent.name
    if path != scorecard_path(scale):
        raise ConfigError(f"{path}: expected {scorecard_path('<scale>')}")
    project.plan(scale, where=path)
    atomic_write(project.root / path, scorecard(project, scale).encode())


def scorecard(project: Project, scale: str) -> str:
    """The page of a scale, as HTML that needs no other file and no network; links start from ``results/<scale>/``.

    Raises:
        RecordError: a picture, table or verdict is missing; the message says which command makes it.
    """
    from jinja2 import Environment, PackageLoader

    plan = project.plan(scale)
    claims = {paper: sorted(_claims(project, scale, paper), key=lambda row: row.place) for paper in plan.papers}
    shown = {paper: list(_shown(project, scale, paper)) for paper in plan.papers}
    provenance = _read_provenance(project.root, plan)
    loader = PackageLoader("leakbench.report")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("scorecard.html.j2").render(
        scale=scale,
        description=plan.description,
        papers=plan.papers,
        marks=MARKS,
        survives=SURVIVES,
        leading={paper: [item for item in items if item.artifact.leads] for paper, items in shown.items()},
        contradicted={paper: _contradicted(rows) for paper, rows in claims.items()},
        counts={paper: _counts(rows) for paper, rows in claims.items()},
        claims=claims,
        claim_files={paper: _files(scale, claims_paths(scale, paper)) for paper in plan.papers},
        smoke_warning=SMOKE_WARNING if scale == "smoke" else "",
        findings={paper: _findings(project.papers[paper].page) for paper in plan.papers},
        pages={paper: _page(project, scale, paper) for paper in plan.papers},
        shown={paper: [item for item in items if not item.artifact.leads] for paper, items in shown.items()},
        most_rows=ROWS,
        gates={paper: list(_gates(project.root, plan, paper)) for paper in plan.papers},
        adaptive={paper: list(_adaptive(project.root, plan, paper)) for paper in plan.papers},
        missing={paper: list(_missing(project.root, plan, paper)) for paper in plan.papers},
        records={paper: list(_records(plan, paper, provenance)) for paper in plan.papers},
        **_provenance(pd.concat(provenance.values())),
    )


def _counts(rows: list[Decided]) -> dict[str, str]:
    """Claims by verdict, and of each verdict those that outlive Holm's correction."""
    verdicts, survive = [row.verdict for row in rows], [bool(row.survives) for row in rows]
    return {verdict: tally(verdicts, survive, verdict) for verdict in MARKS}


def _contradicted(rows: list[Decided]) -> list[Decided]:
    """Contradicted claims, those that outlive Holm's correction first."""
    return sorted((row for row in rows if row.contradicted), key=lambda row: not row.survives)


def _link(scale: str, path: str) -> str:
    """A path below the root, relative to the page."""
    return PurePosixPath(os.path.relpath(path, PurePosixPath(scorecard_path(scale)).parent)).as_posix()


def _page(project: Project, scale: str, paper: str) -> tuple[str, str]:
    """Name and link of a paper's replication page; the link is empty if the page is not below the root."""
    folder = project.papers[paper]
    if not folder.page.is_relative_to(project.root):
        return f"{folder.package.replace('.', '/')}/{folder.page.name}", ""
    name = str(folder.page.relative_to(project.root))
    return name, _link(scale, name)


def _files(scale: str, paths: list[str]) -> dict[str, str]:
    """Formats and links."""
    return {PurePosixPath(path).suffix[1:].upper(): _link(scale, path) for path in paths}


def _of_paper(plan: Plan, paper: str) -> list[Artifact]:
    return [entry for entry in artifacts_at(plan) if entry.paper == paper]


def _shown(project: Project, scale: str, paper: str) -> Iterator[Shown]:
    for entry in _of_paper(project.plan(scale), paper):
        files = _files(scale, entry.paths(scale))
        caption = entry.full_caption(project, scale)
        path = entry.path(scale, "png" if entry.kind == "figure" else "csv")
        if entry.kind == "figure":
            file = existing(project.root, path, f"draw {path}")
            picture, size = thumbnail(file, LEADING if entry.leads else WIDTH)
            yield Shown(entry, caption, files, picture=picture, size=size)
        else:
            frame = read_frame(project.root, path, f"draw {path}")
            table = _html(frame if entry.leads else frame.head(ROWS))
            yield Shown(entry, caption, files, table=table, rows=len(frame))


def _html(frame: pd.DataFrame) -> str:
    """A table, without the spaces and styles of pandas."""
    html = frame.to_html(index=False, na_rep="–", border=0)
    return re.sub(r">\s+<", "><", html).replace('<tr style="text-align: right;">', "<tr>")


def thumbnail(file: Path, width: int = WIDTH) -> tuple[str, tuple[int, int]]:
    """A small copy of a picture above its caption, as a data URI of WebP, and its width and height in pixels."""
    small, _ = without_caption(file)
    small.thumbnail((width, 2 * width))
    buffer = io.BytesIO()
    small.save(buffer, format="WEBP", quality=30, method=2)  # half the time of the default, 5 % more bytes
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}", small.size


def _claims(project: Project, scale: str, paper: str) -> Iterator[Decided]:
    known = {entry.key: entry for entry in claims_of(paper)}
    if not known:
        return
    path = claims_path(scale, paper)
    texts = dict.fromkeys(("claim", "printed", "by_paper"), str)
    frame = read_frame(project.root, path, f"judge {path}", dtype=texts)
    if list(frame.columns) != COLUMNS or not set(frame["claim"]) <= set(known):
        raise RecordError(f"{path}: made by another version; make it again with `leakbench judge {path}`")
    numbers = frame[["effect", "low", "high", "at_least", "at_most", "p_holm"]].astype(object)
    numbers = numbers.where(numbers.notna(), None)
    words = frame.fillna({"meaning": "", "note": "", "printed": "", "by_paper": "", "lean": "", "coverage": ""})
    plan, published = project.plan(scale), closest(project, paper)
    configured = plan.papers[paper].experiments
    for row, (effect, low, high, at_least, at_most, p_holm) in zip(
        words.to_dict("records"), numbers.to_numpy().tolist(), strict=True
    ):
        entry = known[row["claim"]]
        yield Decided(
            claim=row["claim"],
            statement=row["statement"],
            source=row["source"],
            analytic=not entry.experiments,
            mark=MARKS[row["verdict"]],
            verdict=row["verdict"],
            published=_published(published.get(row["claim"])) if row["verdict"] == "not run" else "",
            effect=effect_text(effect, low, high),
            threshold=threshold_text(at_least, at_most),
            bar=_bar(effect, low, high),
            p_holm="" if p_holm is None else "below 0.001" if p_holm < 1e-3 else f"{p_holm:.2g}",
            survives=SURVIVES if row["survives"] else "",
            undecided=lean_text(row["lean"], None if math.isnan(row["seeds_needed"]) else int(row["seeds_needed"])),
            coverage=row["coverage"],
            printed=row["printed"],
            by_paper=f"{MARKS[row['by_paper']]} {row['by_paper']}" if row["by_paper"] else "",
            meaning=row["meaning"],
            note=row["note"],
            see=_see(plan, entry),
            experiments=[name for name in entry.experiments if name in configured],
        )


def _published(judged: tuple[str, Row] | None) -> str:
    """A published verdict in words; empty without one.

    >>> _published(("laptop", {"verdict": "reproduced", "survives": False, "effect": 0.5, "low": 0.2, "high": 0.7}))
    '✔ reproduced at the scale laptop: 0.5 [0.2, 0.7]'
    """
    if judged is None or judged[1]["verdict"] == "not run":
        return ""
    scale, row = judged
    effect = effect_text(row["effect"], row["low"], row["high"])
    return f"{marked(row)} at the scale {scale}" + (f": {effect}" if effect else "")


def _bar(effect: float | None, low: float | None, high: float | None) -> tuple[float, float, float, float] | None:
    if effect is None or low is None or high is None:
        return None
    least, most = min(0.0, low, effect), max(0.0, high, effect)
    if least == most:
        return None
    zero, left, right, place = (round(2 + 96 * (x - least) / (most - least), 1) for x in (0.0, low, high, effect))
    return zero, left, right, place


def _see(plan: Plan, entry: Claim) -> list[str]:
    """Figures and tables that a claim's source names; if there are none, those drawn from its experiments alone."""
    of_paper = _of_paper(plan, entry.paper)
    named = named_in(entry.source)
    sourced = [each.name for each in of_paper if (each.kind, each.number) in named]
    experiments = set(entry.experiments)
    return sourced or [each.name for each in of_paper if each.experiments and set(each.experiments) <= experiments]


def named_in(source: str) -> set[tuple[str, int]]:
    """Kinds and numbers of the figures and tables that a text names.

    >>> sorted(named_in("Fig. 2, 12 to 13 and Table IV"))
    [('figure', 2), ('figure', 12), ('figure', 13), ('table', 4)]
    """
    names = set()
    for word, numbers in _NAMED.findall(source):
        kind = "figure" if word == "Fig." else "table"
        parts = re.split(r"(, | and | to )", numbers)
        last = _arabic(parts[0])
        names.add((kind, last))
        for joint, number in zip(parts[1::2], parts[2::2], strict=True):
            now = _arabic(number)
            names |= {(kind, each) for each in (range(last, now + 1) if joint == " to " else [now])}
            last = now
    return names


def _arabic(number: str) -> int:
    return int(number) if number.isdigit() else _ROMAN.get(number, 0)


def _findings(page: Path) -> str:
    """The section of a replication page that lists the paper's errors, as HTML; empty if there is none."""
    from markdown_it import MarkdownIt

    if not page.is_file():
        return ""
    section = page.read_text(encoding="utf-8").partition(f"\n{FINDINGS}\n")[2]
    section = re.split(r"^## ", section, flags=re.MULTILINE)[0]
    parser = MarkdownIt("commonmark", {"html": False}).enable("table").disable(["link", "image", "autolink"])
    html: str = parser.render(re.sub(r"^###", "####", section, flags=re.MULTILINE))
    return html.replace("<table>", '<div class="scroll" tabindex="0"><table>').replace("</table>", "</table></div>")


def _merged(
    root: Path, plan: Plan, paper: str, beside: Callable[[str], str], dtype: Mapping[str, type] | None = None
) -> Iterator[tuple[str, pd.DataFrame]]:
    """Every experiment of a paper with a file that lies beside its tidy table."""
    for experiment in plan.papers[paper].experiments:
        table = table_path(plan.scale, paper, experiment)
        yield experiment, read_frame(root, beside(table), f"merge {table}", dtype=dtype)


def _gates(root: Path, plan: Plan, paper: str) -> Iterator[Gated]:
    for experiment, frame in _merged(root, plan, paper, gates_path):
        for row in frame.to_dict("records"):
            of_both = f"{row['quality']:.3g}, {row['reference']} {row['reference_quality']:.3g}"
            reached = "no number" if math.isnan(row["difference"]) else f"{of_both}: {over_reference(row)}"
            cell = (row["dataset"], row["model"], row["attack"] + setting_behind(row["setting"]))
            yield Gated(experiment, *cell, f"{row['metric']} {row['margin']:g}", reached, bool(row["passed"]))


def _adaptive(root: Path, plan: Plan, paper: str) -> Iterator[UnderAttacked]:
    for experiment, frame in _merged(root, plan, paper, adaptive_path):
        marks = frame[frame[COLUMN].astype(bool)].to_dict("records")
        if len(frame):
            cells = [f"{row['dataset']}, {row['model']}, {in_words(row)}" for row in marks]
            yield UnderAttacked(experiment, cells, len(frame))


def _missing(root: Path, plan: Plan, paper: str) -> Iterator[Missing]:
    for experiment, frame in _merged(root, plan, paper, missing_path):
        for (metric, reason), rows in frame.groupby(["metric", "reason"]):
            yield Missing(experiment, str(metric), str(reason), len(rows))


Provenance = Mapping[tuple[str, str], "pd.DataFrame"]
"""Tables of provenance by paper and experiment, with a row for every record."""


def _read_provenance(root: Path, plan: Plan) -> Provenance:
    return {
        (paper, experiment): frame
        for paper in plan.papers
        for experiment, frame in _merged(root, plan, paper, provenance_path, {"commit": str, "data": str})
    }


def _records(plan: Plan, paper: str, provenance: Provenance) -> Iterator[Records]:
    for experiment, spec in plan.papers[paper].experiments.items():
        rows = provenance[paper, experiment]
        cells: dict[str, list[tuple[str, str, str]]] = {}
        for path, status in zip(rows["record"], rows["status"], strict=True):
            dataset, model, *rest = PurePosixPath(path).with_suffix("").parts[4:]
            of = ", ".join(each for each in rest if each != "all")
            cell = cells.setdefault(f"{dataset}, {model}", [])
            cell.append((of, _link(plan.scale, path), "" if status == "ok" else status))
        folder = _link(plan.scale, str(PurePosixPath(table_path(plan.scale, paper, experiment)).parent))
        yield Records(experiment, spec.title, folder, len(rows), cells)


def _provenance(rows: pd.DataFrame) -> dict[str, dict[str, str] | dict[str, int]]:
    """Outcomes of the records, their provenance in words, and their total cost."""

    def several(values: Iterator[str]) -> str:
        return ", ".join(sorted(set(values)))

    commits = rows[["commit", "dirty"]].drop_duplicates().itertuples(index=False)
    versions = [json.loads(each) for each in rows["versions"].unique()]
    words = {
        "records": str(len(rows)),
        "made": f"{rows['started'].min()} to {rows['started'].max()}",
        "commit": several(
            ("unknown" if pd.isna(commit) else str(commit)[:12]) + (" with changes" if dirty is True else "")
            for commit, dirty in commits
        ),
        "devices": several(iter(rows["device"].unique())),
        "versions": several(f"{name} {version}" for each in versions for name, version in each.items()),
        "data": several(iter(rows["data"].dropna().unique())) or "none staged",
        "computing time": f"{rows['device_s'].sum():.0f} s",
        "largest job": f"{rows['peak_memory_bytes'].max() / 2**30:.2f} GiB",
    }
    return {"outcomes": dict(Counter(rows["status"])), "provenance": words}
