"""The README's signs and its picture are what they seem; its table is generated (tests/report/test_published.py)."""

from __future__ import annotations

import re
from pathlib import Path

from leakbench.report.artifacts import artifact_of
from leakbench.report.findings import MARKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_signs_of_verdicts() -> None:
    for verdict, sign in MARKS.items():
        assert f"{sign} {verdict}" in README


def test_picture() -> None:
    (picture,) = re.findall(r"!\[.{20,}\]\((.*)\)", README)
    assert (ROOT / picture).stat().st_size < 300_000
    (command,) = re.findall(r"`snakemake --cores all (figures/.*\.png)`", README)
    assert artifact_of(command).kind == "figure"
