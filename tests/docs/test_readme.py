"""The README's table of papers and its picture say what is so."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from leakbench.planning.project import Project
from leakbench.report.artifacts import artifact_of
from leakbench.report.catalogue import catalogue
from leakbench.report.findings import MARKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
ROW = re.compile(r"^\| .*? \| ([\d |]+) \| \[(\w+)\]\(src/leakbench/(?:papers/)?(\w+)/page\.md\) \|$", re.MULTILINE)


@pytest.fixture(scope="module")
def stated() -> dict[str, list[int]]:
    """The numbers in the table, by the paper's name."""
    rows = ROW.findall(README)
    assert all(name == page for _, name, page in rows)
    return {name: [int(each) for each in numbers.split("|")] for numbers, name, _ in rows}


def papers() -> list[dict[str, Any]]:
    return catalogue(Project(ROOT), "papers")


def test_every_paper_has_a_row(stated: dict[str, list[int]]) -> None:
    assert list(stated) == [row["name"] for row in papers()]


@pytest.mark.parametrize("row", papers(), ids=lambda row: row["name"])
def test_counts(row: dict[str, Any], stated: dict[str, list[int]]) -> None:
    found = [row[key] for key in ("figures", "tables", "claims")]
    assert stated[row["name"]] == found, "correct README.md"


def test_signs_of_verdicts() -> None:
    for verdict in ("reproduced", "contradicted", "inconclusive"):
        assert f"{MARKS[verdict]} {verdict}" in README


def test_picture() -> None:
    (picture,) = re.findall(r"!\[.{20,}\]\((.*)\)", README)
    assert (ROOT / picture).stat().st_size < 300_000
    (command,) = re.findall(r"`snakemake --cores all (figures/.*\.png)`", README)
    assert artifact_of(command).kind == "figure"
