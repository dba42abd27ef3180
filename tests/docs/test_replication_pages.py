"""What the replication pages cite exists: tests, figures, tables and claims."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from leakbench.paper_folders import paper_folders
from leakbench.report.artifacts import artifacts
from leakbench.report.claims import claims_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = {name: paper.page for name, paper in paper_folders().items()}
TESTS = {path: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_cited_tests(page: Path) -> None:
    cited = re.findall(r"`(?:(tests/[\w/]+\.py)::)?(test_\w+|Test\w+)`", page.read_text())
    assert cited
    for file, name in cited:
        among = [text for path, text in TESTS.items() if not file or path == ROOT / file]
        assert any(re.search(rf"(def|class) {name}\b", text) for text in among), name


@pytest.mark.parametrize("paper", PAGES)
def test_cited_supplements_and_claims(paper: str) -> None:
    text = PAGES[paper].read_text()
    of_paper = [entry for entry in artifacts() if entry.paper == paper]
    numbers = {f"{entry.kind} {entry.number}" for entry in of_paper}
    for kind, number in re.findall(r"(Fig\.|Table) (S\d+)", text):
        assert f"{'figure' if kind == 'Fig.' else 'table'} {number}" in numbers
    keys = {re.sub(r"[a-z]$", "", entry.key) for entry in claims_of(paper)}
    assert set(re.findall(r"\| \**([ET]\d+)\b", text)) <= keys


@pytest.mark.parametrize("paper", PAGES)
def test_claims_link_to_their_code(paper: str) -> None:
    links = dict(re.findall(r"^\| \[(\w+)\]\(([^)]+)\)", PAGES[paper].read_text(), flags=re.MULTILINE))
    assert links.keys() == {entry.key for entry in claims_of(paper)}
    assert all((PAGES[paper].parent / file).is_file() and "/" not in file for file in links.values())
