"""What a paper claims, as statements that tidy tables can contradict, and the verdict on each."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Literal

from leakbench.errors import ConfigError, UnknownName
from leakbench.lazy import pd
from leakbench.paper_folders import paper_folders
from leakbench.records import atomic_write
from leakbench.report.artifacts import FIGURES, Tables, artifacts, escaped
from leakbench.report.compared import Places, places_of, stand_ins, without
from leakbench.report.evidence import Evidence, NotRun
from leakbench.report.statistics import CONFIDENCE, Estimate, holm
from leakbench.report.tidy import existing, table_path

if TYPE_CHECKING:
    from leakbench.planning.project import Project

Verdict = Literal["reproduced", "contradicted", "inconclusive", "not run"]
MARKS: Mapping[str, str] = {"reproduced": "✔", "contradicted": "✘", "inconclusive": "?", "not run": "–"}
"""A sign per verdict, so that none is told by its colour alone."""

_NUMBERS = ["effect", "low", "high", "p", "p_holm"]
COLUMNS = ["claim", "statement", "source", "printed", "verdict", *_NUMBERS, "meaning", "note"]
"""Of claims.csv."""

NO_SWEEP = "the claim is of a trade-off, and takes a sweep of one of its parameters"
"""Why a compared defense cannot take the place of another one."""

FORMATS = ("csv", "md", "tex")
SMOKE_WARNING = "Smoke scale: small models and embedded data; verdicts say little about the paper."


@dataclass(frozen=True)
class Finding:
    """A verdict, and the number behind it.

    Attributes:
        effect: of the sample; None where there is none, as ``low`` and ``high``, its 95 % interval.
        p: two-sided p-value of the verdict; None where no interval decides.
        meaning: what the effect is and its unit, in words.
        note: which part of the claim fails, how much was measured, what is missing.
    """

    verdict: Verdict
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    meaning: str = ""
    note: str = ""


@dataclass(frozen=True)
class Part:
    """One comparison of a claim: an effect and where it has to lie.

    Attributes:
        name: where it was made, such as ``fraction 0.8``; empty if the claim has one part.
        meaning: what the effect is and its unit, in words.
        at_least: lower threshold, in the effect's unit.
        at_most: upper threshold.
        note: what else to say of it.
    """

    name: str
    estimate: Estimate
    meaning: str
    at_least: float = -math.inf
    at_most: float = math.inf
    note: str = ""

    @property
    def verdict(self) -> Verdict:
        """Inconclusive if there is no interval, or it contains a threshold; else what the effect says."""
        value, low, high = self.estimate.value, self.estimate.low, self.estimate.high
        if math.isnan(low) or any(low <= threshold <= high for threshold in (self.at_least, self.at_most)):
            return "inconclusive"
        return "reproduced" if self.at_least < value < self.at_most else "contradicted"

    @property
    def p(self) -> float:
        """Of the effect being at its nearer threshold; NaN without resamples."""
        thresholds = [each for each in (self.at_least, self.at_most) if math.isfinite(each)]
        return max((self.estimate.p_value(each) for each in thresholds), default=math.nan)

    @property
    def slack(self) -> float:
        """Distance to the nearer threshold, on its right side, in half-widths of the interval."""
        value, half = self.estimate.value, (self.estimate.high - self.estimate.low) / 2
        distance = min(value - self.at_least, self.at_most - value)
        return distance / half if half > 0 else math.copysign(math.inf, distance)

    def in_words(self) -> str:
        """Where, and what was found there."""
        estimate = self.estimate
        interval = "no interval" if math.isnan(estimate.low) else f"{estimate.low:.3g} to {estimate.high:.3g}"
        value = "no number" if math.isnan(estimate.value) else f"{estimate.value:.3g} ({interval})"
        return f"{self.name or 'it'}: {value}" + (f", {self.note}" if self.note else "")


def decide(evidence: Evidence, parts: Sequence[Part], *, gated: bool = True) -> Finding:
    """The verdict on a claim of one or more parts.

    Reproduced if all parts are; contradicted if one is; else inconclusive. An attack that missed its gate makes every
    verdict inconclusive. The effect is that of the part that decides: of those with the claim's verdict, the one
    furthest on the wrong side of its threshold, or nearest to it, in widths of its interval.

    Args:
        evidence: where the parts' numbers were read, which says what of it is void.
        parts: of the claim, each with its estimate.
        gated: False where the claim is of the attacks themselves, so that what a weak one reached is what it asks, or
            of what no attack changes.

    Raises:
        NotRun: there are no parts.
    """
    if not parts:
        raise NotRun("the grid of this scale holds nothing that the claim speaks of")
    verdicts = [part.verdict for part in parts]
    verdict: Verdict = next((each for each in ("contradicted", "inconclusive") if each in verdicts), "reproduced")
    deciding = min((part for part in parts if part.verdict == verdict), key=_how_bad)
    notes = []
    if len(parts) > 1:
        for each in ("contradicted", "inconclusive"):
            failing = [part.in_words() for part in parts if part.verdict == each]
            if failing:
                notes.append(f"{each} in {len(failing)} of {len(parts)} parts: {'; '.join(failing)}")
    elif parts[0].note:
        notes.append(parts[0].note)
    estimate = deciding.estimate
    meaning = deciding.meaning + (f"; {deciding.name}" if deciding.name else "")
    meaning += f" (the part that decides, of {len(parts)})" if len(parts) > 1 else ""
    void = bool(evidence.void and gated)
    return Finding(
        "inconclusive" if void else verdict,
        _number(estimate.value),
        _number(estimate.low),
        _number(estimate.high),
        None if void else _number(_p_value(parts, verdict)),
        meaning,
        ". ".join([*(evidence.void if gated else []), *notes, *evidence.notes()]),
    )


def _p_value(parts: Sequence[Part], verdict: Verdict) -> float:
    """Of the claim: of all parts the largest, since all have to hold; of those that fail the smallest, times all parts.

    NaN if a part that decides has none.
    """
    failing = verdict == "contradicted"
    values = [part.p for part in parts if not failing or part.verdict == verdict]
    if any(map(math.isnan, values)):
        return math.nan
    return min(1.0, len(parts) * min(values)) if failing else max(values)


def _how_bad(part: Part) -> float:
    return -math.inf if math.isnan(part.estimate.low) else part.slack


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, or about it.

    Attributes:
        key: short name within the paper, such as ``E1``.
        statement: one plain sentence.
        source: where the paper says it.
        experiments: whose tidy tables it reads; none for theory.
        find: the pure function from what the tables hold to a finding. It may raise :class:`NotRun`.
        champion: label of the defense that the claim says does well; the note says what becomes of the claim if a
            compared defense takes its place. Empty where the claim is of something else.
        over: the parameter that the champion is compared over, if any; a compared defense has its own.
    """

    paper: str
    key: str
    statement: str
    source: str
    experiments: tuple[str, ...]
    find: Callable[[Evidence], Finding]
    champion: str = ""
    over: str = ""

    @property
    def printed(self) -> str:
        """The paper's own number and where it stands; empty where the paper prints none."""
        return _printed(self.paper).get(self.key, "")

    def judge(self, tables: Tables) -> Finding:
        """The verdict that the tidy tables of its experiments give."""
        try:
            return self.find(Evidence({name: tables[name] for name in self.experiments}))
        except NotRun as reason:
            return Finding("not run", note=str(reason))

    def judge_beside(self, tables: Tables, compared: Places) -> Finding:
        """The verdict on the paper's defenses, and in the note how compared ones do in the place of the champion.

        Args:
            tables: the tidy tables of its experiments, and others.
            compared: the compared defenses, of which the verdict knows nothing.
        """
        tables = {name: tables[name] for name in self.experiments}
        found = self.judge({name: without(frame, compared) for name, frame in tables.items()})
        if not (self.champion and compared) or found.verdict == "not run":
            return found
        notes = [found.note] if found.note else []
        for name, others in stand_ins(tables, compared, self.champion, self.over):
            other = Finding("not run", note=NO_SWEEP) if others is None else self.judge(others)
            words = in_numbers(other.effect, other.low, other.high) or other.note
            notes.append(f"with {name} in the place of {self.champion}: {other.verdict} ({words})")
        return replace(found, note=". ".join(notes))


@cache
def _printed(paper: str) -> dict[str, str]:
    """Numbers by the key of their claim, from ``reference/claims.csv`` of the paper's package."""
    papers = paper_folders()
    file = papers[paper].reference / "claims.csv" if paper in papers else None
    if file is None or not file.is_file():
        return {}
    with file.open(encoding="utf-8") as lines:
        return {row["claim"]: f"{row['printed']} ({row['where']})" for row in csv.DictReader(lines)}


_claims: dict[tuple[str, str], Claim] = {}


def claim(
    paper: str,
    key: str,
    statement: str,
    *,
    source: str,
    experiments: tuple[str, ...] = (),
    champion: str = "",
    over: str = "",
) -> Callable[[Callable[[Evidence], Finding]], Callable[[Evidence], Finding]]:
    """Decorator that registers the function that judges a claim; the arguments are :class:`Claim`'s.

    Raises:
        ConfigError: the paper's key is taken.
    """

    def register(find: Callable[[Evidence], Finding]) -> Callable[[Evidence], Finding]:
        if (paper, key) in _claims:
            raise ConfigError(f"{paper}: claim {key} is registered twice")
        _claims[paper, key] = Claim(paper, key, statement, source, experiments, find, champion, over)
        return find

    return register


def claims_of(paper: str) -> list[Claim]:
    """A paper's claims, in the order of its module."""
    artifacts()  # imports the papers
    return [entry for entry in _claims.values() if entry.paper == paper]


def claims_path(scale: str, paper: str, extension: str = "csv") -> str:
    """Where the verdicts on a paper's claims are written, relative to the project's root."""
    return f"{FIGURES}/{scale}/{paper}/claims.{extension}"


def claims_paths(scale: str, paper: str) -> list[str]:
    """Every file the verdicts on a paper's claims are written to."""
    return [claims_path(scale, paper, extension) for extension in FORMATS]


def claims_inputs(project: Project, scale: str, paper: str) -> list[str]:
    """The tidy tables that a paper's claims read, of the experiments that are configured."""
    configured = project.plan(scale).papers[paper].experiments
    names = dict.fromkeys(name for entry in claims_of(paper) for name in entry.experiments)
    return [table_path(scale, paper, name) for name in names if name in configured]


def judged(project: Project, scale: str, paper: str) -> Iterator[tuple[Claim, Finding]]:
    """Every claim of a paper with its verdict, from the tidy tables that exist."""
    configured = project.plan(scale).papers[paper].experiments
    paths = {name: table_path(scale, paper, name) for name in configured}
    tables: dict[str, pd.DataFrame] = {}
    for entry in claims_of(paper):
        unknown = [name for name in entry.experiments if name not in configured]
        missing = [name for name in entry.experiments if name in paths and not (project.root / paths[name]).is_file()]
        if unknown:
            yield entry, Finding("not run", note=f"not configured: {', '.join(unknown)}")
        elif missing:
            targets = " ".join(paths[name] for name in missing)
            yield entry, Finding("not run", note=f"make the tables with `snakemake --cores all {targets}`")
        else:
            for name in entry.experiments:
                if name not in tables:
                    tables[name] = pd.read_parquet(project.root / paths[name])
            yield entry, entry.judge_beside(tables, places_of(project.compared))


def verdict_rows(results: Iterable[tuple[Claim, Finding]]) -> list[dict[str, Any]]:
    """A row of claims.csv per claim of one paper, in JSON types.

    ``p_holm`` is ``p`` after Holm's correction over those of the paper's claims that have one. Verdicts are those of
    each claim alone.
    """
    results = list(results)
    adjusted = holm([math.nan if finding.p is None else finding.p for _, finding in results])
    rows = [
        {
            "claim": entry.key,
            "statement": entry.statement,
            "source": entry.source,
            "printed": entry.printed,
            **asdict(finding),
            "p_holm": _number(p_holm),
        }
        for (entry, finding), p_holm in zip(results, adjusted, strict=True)
    ]
    return [{column: row[column] for column in COLUMNS} for row in rows]


def unsure(verdict: str, p_holm: float | None) -> bool:
    """Whether a verdict does not outlive the correction for the number of a paper's claims."""
    return verdict in ("reproduced", "contradicted") and p_holm is not None and p_holm >= 1 - CONFIDENCE


def in_numbers(effect: float | None, low: float | None, high: float | None) -> str:
    """An effect with its interval, to read."""
    if effect is None:
        return ""
    return f"{effect:.3g}" + ("" if low is None or high is None else f" [{low:.3g}, {high:.3g}]")


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
    caption = f"Claims of {spec.title} ({spec.citation}). Scale '{scale}': {plan.description}."
    if scale == "smoke":
        caption += f" {SMOKE_WARNING}"
    for extension, content in _formats(frame, caption).items():
        atomic_write(project.root / claims_path(scale, paper, extension), content.encode())


def _formats(frame: pd.DataFrame, caption: str) -> dict[str, str]:
    """As CSV, where numbers keep all their digits, and as tables to read."""
    shown = frame.astype(object)
    for column in _NUMBERS:
        shown[column] = ["" if math.isnan(value) else f"{value:.3g}" for value in frame[column].astype(float)]
    latex = shown.to_latex(
        index=False,
        caption=escaped(caption),
        escape=True,  # the cells alone
        longtable=True,
        column_format="lp{5cm}p{2cm}p{3cm}lrrrrrp{3cm}p{5cm}",
    )
    markdown = shown.to_markdown(index=False, disable_numparse=True)
    return {"csv": frame.to_csv(index=False), "md": f"{markdown}\n\n{caption}\n", "tex": latex}
