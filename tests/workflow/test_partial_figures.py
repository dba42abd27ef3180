"""A figure while records are missing, and the workflow afterwards: it makes the whole one and reads no other."""

from __future__ import annotations

import csv
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.workflow.test_reruns import FIGURES, PAGE, downstream, record

from leakbench.report.scorecard import thumbnail

if TYPE_CHECKING:
    from tests.workflow.conftest import Checkout

pytestmark = pytest.mark.slow


def test_a_partial_figure_and_then_the_whole_one(project: Checkout) -> None:
    path = record("pruning_training", "gp-80", "train")
    whole = (project.root / f"{FIGURES}/fig03.csv").read_text()
    (project.root / path).unlink()
    times = project.times()
    command = [sys.executable, "-m", "leakbench", "draw", f"{FIGURES}/fig03.pdf", "--partial"]
    said = subprocess.run(command, cwd=project.root, capture_output=True, text=True, check=True).stdout
    made = {f"{FIGURES}/partial/fig03.{extension}" for extension in ("pdf", "png", "csv")}
    assert {file for file, time in project.times().items() if times.get(file) != time} == made
    with (project.root / f"{FIGURES}/partial/fig03.csv").open() as file:
        rows = list(csv.DictReader(file))
    (share,) = {row["partial"] for row in rows}
    assert share in said and share.endswith(" records")
    missing, there = (int(word) for word in share.split() if word.isdigit())
    assert missing == there - 1

    run = project.make()
    assert set(run.jobs) == {path, *downstream("pruning_training")}
    assert (project.root / f"{FIGURES}/fig03.csv").read_text() == whole
    page = (project.root / PAGE).read_text()
    assert thumbnail(project.root / FIGURES / "fig03.png")[0] in page
    assert thumbnail(project.root / FIGURES / "partial/fig03.png")[0] not in page and "partial/" not in page
    assert project.make("--dry-run").nothing_to_do


def test_the_workflow_makes_no_partial_figure(untouched: Checkout) -> None:
    run = untouched.snakemake("--dry-run", f"{FIGURES}/partial/fig03.pdf")
    assert run.returncode != 0 and "partial and bare ones are made by `leakbench draw`" in run.output
