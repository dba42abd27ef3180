"""The claims of papers: statements that tidy tables can contradict, registered above the functions that judge them."""

from __future__ import annotations

import csv
import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Literal

from leakbench.errors import ConfigError
from leakbench.paper_folders import paper_folders
from leakbench.report.artifacts import Artifact, Tables, artifacts
from leakbench.report.compared import Places, stand_ins, without
from leakbench.report.evidence import Evidence, NotRun
from leakbench.report.findings import Finding, Part, Verdict, decide, effect_text
from leakbench.report.labels import Reads, check_labels, declared
from leakbench.report.reference import printed_tables

if TYPE_CHECKING:
    from leakbench.planning.plan import Plan

NO_SWEEP = "the claim is of a trade-off, and takes a sweep of one of its parameters"
"""Why a compared defense cannot take the place of another one."""


Judge = Callable[[Evidence], Finding]
"""From what the tables hold to a finding; raises :class:`NotRun` where that does not suffice."""


@dataclass(frozen=True)
class Claim:
    """A statement of a paper, or about it.

    Attributes:
        key: short name within the paper, such as ``E1``.
        statement: one plain sentence.
        source: where the paper says it, and what its table has where that is something else.
        reads: the experiments whose tidy tables it reads, with the labels that it reads of them; none for theory.
        find: the pure function that judges it.
        champion: label of the defense that the claim says does well; the note has the verdicts with compared defenses
            in its place. Empty for other claims.
        over: the parameter that the champion is compared over, if any; a compared defense has another one.
    """

    paper: str
    key: str
    statement: str
    source: str
    reads: tuple[Reads, ...]
    find: Judge
    champion: str = ""
    over: str = ""

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the experiments whose tidy tables it reads."""
        return tuple(entry.experiment for entry in self.reads)

    @property
    def order(self) -> tuple[str | int, ...]:
        """Sort key: by the key, with its numbers as such: E2, E10a, E10b, T1."""
        return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", self.key))

    @property
    def printed(self) -> str:
        """The number that the paper prints, and where; empty if it prints none."""
        return _printed(self.paper).get(self.key, "")

    @property
    def by_paper(self) -> Verdict | Literal[""]:
        """The verdict that the paper's own numbers give; empty if it does not print them."""
        finding = self.judge_printed()
        return finding.verdict if finding else ""

    def check(self, plan: Plan) -> None:
        """Look up the labels that it reads.

        Raises:
            UnknownName: the paper's grid does not have one.
        """
        check_labels(plan, self.paper, f"claim {self.key}", self.reads)

    def judge(self, tables: Tables) -> Finding:
        """The verdict that the tidy tables of its experiments give."""
        try:
            return self.find(Evidence({name: tables[name] for name in self.experiments}, self.reads))
        except NotRun as reason:
            return Finding("not run", note=str(reason))

    def judge_printed(self) -> Finding | None:
        """The verdict of a replication that reaches the paper's own numbers, each of which is taken as exact.

        Nothing is tested: the claim is reproduced or contradicted as these numbers say, a trend by their order. Of
        numbers that are printed with a standard deviation the mean alone is used.

        Returns:
            None if the paper does not print all the numbers that the claim speaks of, and of theorems.
        """
        tables = printed_tables(self.paper)
        if not self.experiments or not tables.keys() >= set(self.experiments):
            return None
        try:
            return self.find(Evidence({name: tables[name] for name in self.experiments}, self.reads, exact=True))
        except NotRun:
            return None

    def judge_beside(self, tables: Tables, compared: Places) -> Finding:
        """The verdict on the paper's defenses, and in the note those with compared ones instead of the champion.

        Args:
            tables: the tidy tables of its experiments, and others.
            compared: the compared defenses, which the verdict leaves out.
        """
        tables = {name: tables[name] for name in self.experiments}
        finding = self.judge({name: without(frame, compared) for name, frame in tables.items()})
        if not (self.champion and compared) or finding.verdict == "not run":
            return finding
        notes = []
        for name, others in stand_ins(tables, compared, self.champion, self.over):
            other = Finding("not run", note=NO_SWEEP) if others is None else self.judge(others)
            words = effect_text(other.effect, other.low, other.high) or other.note
            notes.append(f"with {name} instead of {self.champion}: {other.verdict} ({words})")
        return noting(finding, *notes)


def noting(finding: Finding, *notes: str) -> Finding:
    """A finding with further notes."""
    return replace(finding, note=". ".join(filter(None, (finding.note, *notes))))


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
    experiments: Iterable[str | Reads] = (),
    champion: str = "",
    over: str = "",
) -> Callable[[Judge], Judge]:
    """Register the decorated function as the judge of a claim.

    >>> from leakbench.lazy import pd
    >>> from leakbench.report.comparisons import level
    >>> from leakbench.report.findings import decide
    >>> @claim("my_paper", "E1", "Pruning keeps an accuracy of 60 %.", source="Table 2", experiments=["training"])
    ... def pruning(evidence: Evidence) -> Finding:
    ...     accuracy = evidence.series("training", "accuracy", defense="gp")
    ...     return decide(evidence, [level(accuracy, "mnist", "fraction", at_least=0.6)])
    >>> table = pd.DataFrame({"seed": [0, 1, 2], "value": [0.66, 0.68, 0.67]})
    >>> table = table.assign(dataset="mnist", model="lenet5", defense="gp", attack=None, metric="accuracy", axis=None)
    >>> pruning(Evidence({"training": table.assign(index=0, void=False, distinct=False)})).verdict
    'reproduced'

    Args:
        paper: name of the paper.
        key: as in :class:`Claim`, like ``statement``, ``source``, ``champion`` and ``over``.
        statement: one plain sentence.
        source: where the paper says it, and what its table has where that is something else.
        experiments: that it reads, each by name or with the labels that it reads.
        champion: label of the defense that the claim says does well.
        over: the parameter that the champion is compared over.

    Raises:
        ConfigError: the paper's key is taken.
    """

    def register(find: Judge) -> Judge:
        if (paper, key) in _claims:
            raise ConfigError(f"{paper}: claim {key} is registered twice")
        _claims[paper, key] = Claim(paper, key, statement, source, declared(experiments), find, champion, over)
        return find

    return register


def each_cell(
    *experiments: str, gated: bool = True
) -> Callable[[Callable[[str, Evidence], Iterable[Part | str]]], Judge]:
    """Make a judge of a function that compares defenses on one data set and model.

    The function gets the name and the evidence of every pair that the experiments share, and yields parts of the claim,
    and texts for the note.

    >>> from leakbench.lazy import pd
    >>> from leakbench.report.comparisons import level
    >>> @each_cell("training")
    ... def accurate(cell: str, one: Evidence) -> Iterable[Part | str]:
    ...     yield level(one.series("training", "accuracy", defense="gp"), cell, "fraction", at_least=0.6)
    >>> table = pd.DataFrame({"model": ["lenet5"] * 3 + ["vgg16"] * 3, "seed": [0, 1, 2] * 2, "void": False})
    >>> table = table.assign(dataset="mnist", defense="gp", attack=None, metric="accuracy", axis=None, index=0)
    >>> table["distinct"] = False
    >>> finding = accurate(Evidence({"training": table.assign(value=[0.66, 0.68, 0.67, 0.51, 0.53, 0.52])}))
    >>> finding.verdict, finding.effect, finding.meaning
    ('contradicted', 0.52, 'accuracy of gp in training (fraction); mnist with vgg16 (the part that decides, of 2)')

    Args:
        experiments: whose data sets and models count.
        gated: as in :func:`leakbench.report.findings.decide`.
    """

    def judge_of(compare: Callable[[str, Evidence], Iterable[Part | str]]) -> Judge:
        @functools.wraps(compare)
        def find(evidence: Evidence) -> Finding:
            yielded = [each for cell, one in evidence.cells(*experiments).items() for each in compare(cell, one)]
            parts = [each for each in yielded if isinstance(each, Part)]
            notes = dict.fromkeys(each for each in yielded if isinstance(each, str))
            return noting(decide(evidence, parts, gated=gated), *notes)

        return find

    return judge_of


def check_readers(plan: Plan) -> None:
    """Look up the labels that the claims, figures and tables of a plan's papers read.

    Raises:
        UnknownName: a paper's grid does not have one.
    """
    readers: list[Artifact | Claim] = [*artifacts(), *_claims.values()]
    for entry in readers:
        if entry.paper in plan.papers:
            entry.check(plan)


def claims_of(paper: str) -> list[Claim]:
    """A paper's claims, in :attr:`Claim.order`."""
    artifacts()  # imports the papers
    return sorted((entry for entry in _claims.values() if entry.paper == paper), key=lambda entry: entry.order)
