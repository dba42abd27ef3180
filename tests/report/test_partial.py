"""Figures and tables of the records that are there: marked, in a folder of their own, not mixed with whole ones."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from tests.report.synthetic import ROOT, record_of
from tests.workflow.quick_jobs import findings

from leakbench.cli import main
from leakbench.errors import RecordError, UnknownName
from leakbench.planning.project import Project
from leakbench.records import Tensors, write_record, write_tensors
from leakbench.report.artifacts import artifact_of
from leakbench.report.partial import draw_partly, partial_path
from leakbench.report.style import add_caption, add_mark, panels
from leakbench.report.tidy import merge, needed, table_path

PAPER = "optimal_defense"
CELL = f"results/smoke/{PAPER}/{{}}/digits16/small/{{}}/{{}}/all.json"
TRAINED = CELL.format("pruning_training", "{}", "train")
FIG03 = f"figures/smoke/{PAPER}/fig03.pdf"
FIG04 = f"figures/smoke/{PAPER}/fig04.pdf"
FIG08 = f"figures/smoke/{PAPER}/fig08.pdf"
PICTURE = CELL.format("pictures", "optimal-0.1", "ig")
TABLE = f"figures/smoke/{PAPER}/table01.md"

Make = Callable[..., Project]


@pytest.fixture
def checkout(tmp_path: Path) -> Make:
    """``checkout(artifact)``: a project with all records of one artifact, but for those at paths in ``without``."""

    def make(artifact: str, without: tuple[str, ...] = ()) -> Project:
        shutil.copytree(ROOT / "config", tmp_path / "config")
        settings = tmp_path / "config" / "config.yaml"
        settings.write_text(yaml.safe_dump(yaml.safe_load(settings.read_text()) | {"papers": [PAPER]}))
        project = Project(tmp_path)
        for path, job in jobs_of(project, artifact).items():
            if path not in without:
                record, tensors = record_of(job), findings(job).tensors
                if tensors:
                    record.tensors = write_tensors((tmp_path / path).with_suffix(".safetensors"), tensors)
                write_record(tmp_path / path, record)
        return project

    return make


def jobs_of(project: Project, artifact: str) -> dict[str, Any]:
    entry = artifact_of(artifact)
    tables = [table_path("smoke", PAPER, experiment) for experiment in entry.experiments]
    return {job.path: job for table in tables for job in needed(project, table)}


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_figure_of_some_records(checkout: Make) -> None:
    project = checkout(FIG03, without=(TRAINED.format("gp-80"),))
    n = len(jobs_of(project, FIG03))
    before = files(project.root)
    said = draw_partly(project, FIG03)
    after = files(project.root)
    made = [f"figures/smoke/{PAPER}/partial/fig03.{extension}" for extension in ("csv", "pdf", "png")]
    assert sorted(set(after) - set(before)) == made and before.items() <= after.items()
    assert said[0] == f"{made[0]}, .pdf, .png: {n - 1} of {n} records (pruning_training {n - 1} of {n})"
    assert said[1] == f"The whole one is made by `snakemake --cores all {FIG03}`."
    numbers = pd.read_csv(project.root / made[0])
    assert set(numbers["partial"]) == {f"{n - 1} of {n} records"}
    assert after[made[1]].startswith(b"%PDF") and after[made[2]].startswith(b"\x89PNG")


def test_what_is_shown_is_what_the_whole_one_shows_of_these_records(checkout: Make) -> None:
    project = checkout(FIG03)
    merge(project, table_path("smoke", PAPER, "pruning_training"))
    artifact_of(FIG03).render(project, FIG03)
    whole = pd.read_csv(project.root / FIG03.replace("pdf", "csv"))
    (project.root / TRAINED.format("gp-80")).unlink()
    draw_partly(project, FIG03)
    part = pd.read_csv(project.root / partial_path(artifact_of(FIG03), "smoke", "csv")).drop(columns="partial")
    gone = set(whole["series"]) - set(part["series"])
    assert len(gone) == 1
    pd.testing.assert_frame_equal(part, whole[~whole["series"].isin(gone)].reset_index(drop=True))


@pytest.mark.parametrize(
    ("artifact", "gone"),
    [(FIG03, TRAINED.format("gp-80")), (FIG04, CELL.format("pruning", "gp", "train")), (FIG08, PICTURE)],
)
def test_the_mark_stands_on_the_figure_and_covers_nothing(
    artifact: str, gone: str, checkout: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, str]] = []

    def remember(figure: Any, text: str) -> None:
        seen.append((figure, text))
        add_mark(figure, text)

    monkeypatch.setattr("leakbench.report.artifacts.add_mark", remember)
    project = checkout(artifact, without=(gone,))
    draw_partly(project, artifact)
    ((figure, text),) = seen
    n = len(jobs_of(project, artifact))
    assert text == f"PARTIAL: {n - 1} of {n} records"
    assert figure._supxlabel.get_text().startswith("Records that are there: ")
    assert alone((project.root / partial_path(artifact_of(artifact), "smoke", "png")).read_bytes())


def test_the_mark_stands_above_a_legend_at_the_top() -> None:
    figure, (ax,) = panels(1)
    ax.plot([0, 1], [0, 1], label="a line")
    figure.legend(loc="outside upper left")
    add_caption(figure, "A caption. " * 40)
    add_mark(figure, "PARTIAL: 1 of 2 records")
    stream = io.BytesIO()
    figure.savefig(stream, bbox_inches="tight")
    assert alone(stream.getvalue())


def alone(picture: bytes) -> bool:
    """Whether a red frame stands above all that is not red, at the left, in letters large enough to read."""
    with Image.open(io.BytesIO(picture)) as opened:
        pixels = np.asarray(opened.convert("RGB")).astype(int)
    red = (pixels[..., 0] > 150) & (pixels[..., 1] < 40) & (pixels[..., 2] < 60)
    rows, columns = np.flatnonzero(red.sum(axis=1) > 100), np.flatnonzero(red.sum(axis=0) > 20)
    above = pixels[: rows.max() + 1]
    coloured = (above.min(axis=-1) < 200) & (above[..., 0] - above[..., 1] < 20)
    return bool(not coloured.any() and rows.max() - rows.min() > 30 and columns.min() < 30)


def test_nothing_missing_is_marked_all_the_same(checkout: Make) -> None:
    """A script may ask for partial artifacts whatever there is; an unmarked one is drawn by the workflow alone."""
    project = checkout(TABLE)
    n = len(jobs_of(project, TABLE))
    said = draw_partly(project, TABLE)
    assert said[1] == f"Nothing is missing: `snakemake --cores all {TABLE}` makes the whole one."
    folder = project.root / f"figures/smoke/{PAPER}/partial"
    assert {path.name for path in folder.iterdir()} == {"table01.csv", "table01.md", "table01.tex"}
    assert (folder / "table01.md").read_text().startswith(f"**PARTIAL: {n} of {n} records**\n\n|")
    assert rf"\caption{{PARTIAL: {n} of {n} records. " in (folder / "table01.tex").read_text()
    assert set(pd.read_csv(folder / "table01.csv")["partial"]) == {f"{n} of {n} records"}
    assert not (project.root / TABLE).exists()


def test_stale_and_broken_records_count_as_missing(checkout: Make) -> None:
    project = checkout(FIG03)
    stale, broken, bare = TRAINED.format("gp-80"), TRAINED.format("none"), TRAINED.format("op-80")
    record = record_of(project.job(stale))
    write_record(project.root / stale, record.model_copy(update={"job": record.job | {"seeds": [7]}}))
    (project.root / broken).write_text("{")
    without = record_of(project.job(bare)).model_copy(update={"tensors": Tensors(file="gone", sha256="", keys=[])})
    write_record(project.root / bare, without)
    before = files(project.root)
    n = len(jobs_of(project, FIG03))
    said = draw_partly(project, FIG03)
    assert f"{n - 3} of {n} records" in said[0]
    lines = said[1].splitlines()[1:]
    assert f"Counts as missing: {stale}: made by another configuration or version of a component" in lines
    assert any(line.startswith(f"Counts as missing: {broken}: not a valid record: ") for line in lines)
    assert any(line.startswith(f"Counts as missing: {bare}: ") and "its tensors are missing" in line for line in lines)
    assert before.items() <= files(project.root).items()  # neither moved aside nor removed


def test_a_gate_without_its_undefended_records_is_missed(checkout: Make) -> None:
    undefended = CELL.format("undefended", "none", "ig")
    project = checkout(FIG04, without=(undefended,))
    said = draw_partly(project, FIG04)
    assert "undefended" in said[0]
    numbers = pd.read_csv(project.root / partial_path(artifact_of(FIG04), "smoke", "csv"))
    assert numbers.loc[numbers["series"] == "optimal pruning", "void"].all()


def test_none_of_the_records(checkout: Make) -> None:
    project = checkout(FIG03)
    n = len(jobs_of(project, FIG03))
    shutil.rmtree(project.root / "results")
    with pytest.raises(RecordError) as caught:
        draw_partly(project, FIG03)
    assert str(caught.value) == (f"{FIG03}: 0 of {n} records are there; make them with `snakemake --cores all {FIG03}`")
    assert not (project.root / "figures").exists()


def test_what_cannot_be_drawn_from_these(
    checkout: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pictures need the record whose pictures they are; other functions fail on a part of a grid as they like."""
    path = f"figures/smoke/{PAPER}/fig08.png"
    victim = CELL.format("pictures", "none", "ig")
    project = checkout(path, without=(victim,))
    n = len(jobs_of(project, path))
    monkeypatch.chdir(project.root)
    assert main(["draw", path, "--partial"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"leakbench: {path}: cannot be drawn from {n - 1} of {n} records (")
    assert "pictures 2 of 3, undefended 2 of 2" in error and f"{victim} is missing" in error
    assert f"Make the others with `snakemake --cores all {path}`" in error and "Traceback" not in error
    assert not (project.root / "figures").exists()


def test_a_fault_of_a_whole_artifact_is_no_matter_of_missing_records(
    checkout: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = checkout(FIG03)

    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("leakbench.report.artifacts.Artifact.made", fail)
    with pytest.raises(KeyError, match="a bug"):
        draw_partly(project, FIG03)
    (project.root / TRAINED.format("gp-80")).unlink()
    with pytest.raises(RecordError, match="KeyError: 'a bug'"):
        draw_partly(project, FIG03)


def test_the_command(checkout: Make, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    project = checkout(FIG03, without=(TRAINED.format("gp-80"),))
    monkeypatch.chdir(project.root)
    assert main(["draw", FIG03, "--partial"]) == 0
    assert f"figures/smoke/{PAPER}/partial/fig03.csv, .pdf, .png: " in capsys.readouterr().out
    with pytest.raises(UnknownName):
        draw_partly(project, f"figures/smoke/{PAPER}/fig99.pdf")
    assert main(["draw", f"figures/smoke/{PAPER}/partial/fig03.pdf", "--partial"]) == 1
    assert "expected figures/<scale>/<paper>/<figNN|tableNN>.<format>" in capsys.readouterr().err
