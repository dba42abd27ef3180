"""Printed numbers in the places of records: what claims make of them, and where verdicts by them are shown."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from leakbench.errors import ConfigError
from leakbench.paper_folders import PaperFolder
from leakbench.report import claims, reference
from leakbench.report.artifacts import artifacts
from leakbench.report.checks import Checked, theorem_of
from leakbench.report.claims import claim, claims_of
from leakbench.report.comparisons import difference, level, relative, trend
from leakbench.report.evidence import Evidence, NotRun, Series, jackknife_of
from leakbench.report.findings import Finding, Part, decide
from leakbench.report.judging import verdict_rows
from leakbench.report.labels import reads
from leakbench.report.reference import Printed, printed_tables, tidy_table
from leakbench.report.terminal import print_claims

CELL = ("cifar10", "lenet5")
FRACTIONS = (0.1, 0.5, 0.9)


def swept(values: Sequence[float]) -> Evidence:
    numbers = [
        Printed(CELL, "gp", "accuracy", value, setting={"fraction": fraction})
        for fraction, value in zip(FRACTIONS, values, strict=True)
    ]
    numbers.append(Printed(CELL, "none", "accuracy", 0.75))
    return Evidence({"pruning": tidy_table(numbers)}, exact=True)


def over_fraction(evidence: Evidence) -> Series:
    return evidence.series("pruning", "accuracy", defense="gp", sweep="fraction")


def verdict(*parts: Part) -> Finding:
    return decide(Evidence({}, exact=True), parts)


def test_one_number_decides_on_either_side() -> None:
    """No seeds are needed, no p-value follows, and the interval is the number."""
    series = over_fraction(swept([0.7, 0.6, 0.5]))
    plain = swept([0.7, 0.6, 0.5]).series("pruning", "accuracy", defense="none")
    less, more = series.at([0.9]), series.at([0.1])
    for part, expected in (
        (level(less, "", "part", at_least=0.49), "reproduced"),
        (level(less, "", "part", at_least=0.51), "contradicted"),
        (relative(less, plain, "", at_most=-0.3), "reproduced"),
        (relative(less, plain, "", at_most=-0.4), "contradicted"),
        (difference(plain, less, "", "part"), "reproduced"),
        (difference(plain, less, "", "part", at_least=0.3), "contradicted"),
    ):
        finding = verdict(part)
        assert finding.verdict == expected and finding.p is None and not finding.lean
        assert finding.low == finding.effect == finding.high
    assert verdict(level(more, "", "part", at_least=0.7)).verdict == "reproduced"  # a threshold is inside


@pytest.mark.parametrize(
    ("values", "expected", "note"),
    [
        ((0.5, 0.6, 0.7), "reproduced", ""),
        ((0.5, 0.5, 0.7), "reproduced", ""),
        ((0.5, 0.7, 0.69), "contradicted", "falls between 0.5 and 0.9 (by 0.01)"),
        ((0.7, 0.6, 0.5), "contradicted", "falls between 0.1 and 0.5 (by 0.1), 0.5 and 0.9 (by 0.1)"),
    ],
)
def test_a_trend_is_that_of_every_step(values: Sequence[float], expected: str, note: str) -> None:
    finding = verdict(trend(over_fraction(swept(values)), "", "fraction", rises=True))
    assert (finding.verdict, finding.note) == (expected, note)
    assert verdict(trend(over_fraction(swept(values[::-1])), "", "fraction", rises=False)).verdict == expected


def test_a_trend_of_two_numbers() -> None:
    series = over_fraction(swept([0.5, 0.6, 0.7])).at([0.1, 0.9])
    assert verdict(trend(series, "", "fraction", rises=True)).verdict == "reproduced"
    assert verdict(trend(series, "", "fraction", rises=False)).verdict == "contradicted"


def test_what_is_no_number_decides_nothing() -> None:
    jackknife = jackknife_of(over_fraction(swept([0.5, 0.6, 0.7])))
    nothing = Part("", jackknife.estimate(np.array([np.nan, np.nan])), "share of nothing", at_least=0.0)
    assert verdict(nothing).verdict == "inconclusive"


def test_numbers_of_a_record_among_them_are_tested() -> None:
    exact = over_fraction(swept([0.5, 0.6, 0.7]))
    assert jackknife_of(exact).exact
    assert not jackknife_of(exact, Series("measured", exact.points, exact.seeds, exact.values)).exact


def test_there_are_no_seeds_to_note() -> None:
    evidence = swept([0.5, 0.6, 0.7])
    over_fraction(evidence)
    assert evidence.notes() == []


# A paper's module.


@pytest.fixture
def printing(monkeypatch: pytest.MonkeyPatch) -> str:
    """A paper that prints numbers of one of two experiments, with a claim on either, and a theorem."""
    artifacts()  # once imported, the papers register nothing more
    paper = "sixth"
    monkeypatch.setattr(claims, "_claims", {})
    tables = {"pruning": tidy_table([Printed(CELL, "gp", "accuracy", 0.61)])}
    monkeypatch.setattr(claims, "printed_tables", lambda name: tables if name == paper else {})

    for key, experiment, defense, least in (
        ("A1", "pruning", "gp", 0.6),
        ("A2", "pruning", "gp", 0.7),
        ("A3", "pruning", "op", 0.6),
        ("A4", "noise", "gp", 0.6),
    ):

        def judge(evidence: Evidence, of: tuple[str, str, float] = (experiment, defense, least)) -> Finding:
            series = evidence.series(of[0], "accuracy", defense=of[1])
            return decide(evidence, [level(series, "", "part", at_least=of[2])])

        claim(paper, key, "An accuracy.", source="Table 1 has 0.61", experiments=[reads(experiment, defenses=defense)])(
            judge
        )

    @theorem_of(paper, "T1", "A theorem.", source="Theorem 1")
    def theorem() -> Checked:
        raise AssertionError("printed numbers do not ask for it")

    return paper


def test_a_claim_is_judged_by_what_is_printed(printing: str) -> None:
    """A missing defense, a missing experiment and a theorem have no verdict by the paper's own numbers."""
    by_paper = {entry.key: entry.by_paper for entry in claims_of(printing)}
    assert by_paper == {"A1": "reproduced", "A2": "contradicted", "A3": "", "A4": "", "T1": ""}


def test_verdicts_by_it_are_in_rows_and_on_the_terminal(printing: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = verdict_rows((entry, Finding("inconclusive")) for entry in claims_of(printing))
    assert [row["by_paper"] for row in rows] == ["reproduced", "contradicted", "", "", ""]
    print_claims([{"paper": printing, "scale": "laptop", **row} for row in rows])
    shown = capsys.readouterr().out
    assert shown.count("by the paper's own numbers: ") == 2 and "own numbers: contradicted" in shown


def folder_with(module: Mapping[str, Any] | None, root: Path, patch: pytest.MonkeyPatch) -> str:
    """A paper whose module for printed numbers holds these names; None for one without the module."""
    if module is not None:
        (root / "printed.py").touch()
        patch.setitem(
            sys.modules, "seventh.printed", cast(ModuleType, SimpleNamespace(__file__="printed.py", **module))
        )
    patch.setattr(reference, "paper_folders", lambda: {"seventh": PaperFolder("seventh", "seventh", root)})
    printed_tables.cache_clear()
    return "seventh"


def test_a_folder_may_have_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed_tables(folder_with(None, tmp_path, monkeypatch)) == {}
    assert printed_tables("no such paper") == {}


def test_a_module_has_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tidy_table([Printed(CELL, "gp", "accuracy", 0.61)])
    assert (
        printed_tables(folder_with({"tables": lambda: {"pruning": table}}, tmp_path, monkeypatch))["pruning"] is table
    )
    with pytest.raises(ConfigError, match=r"printed.py: expected a function 'tables'"):
        printed_tables(folder_with({"table": None}, tmp_path, monkeypatch))


def test_missing_points_are_not_run() -> None:
    with pytest.raises(NotRun, match=r"has no 0\.8"):
        over_fraction(swept([0.5, 0.6, 0.7])).at([0.8])
