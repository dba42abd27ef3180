"""Verdicts on attacks: medians over the undefended replicates, what is void, and what is said about it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image
from tests.report.synthetic import ROOT, new_project, record_of, tidy_tables

from leakbench.gates import Gate, GateSpec
from leakbench.planning.project import Project
from leakbench.records import Replicate, read_record, write_record
from leakbench.report import judging
from leakbench.report.artifacts import artifact_of, artifacts
from leakbench.report.judging import claims_path
from leakbench.report.plots import Drawing
from leakbench.report.scorecard import write_scorecard
from leakbench.report.style import COLOURS, add_caption
from leakbench.report.tidy import gates_path, merge, table_path, tidy_rows
from leakbench.report.verdicts import COLUMNS, Judge, void_notes

PAPER = "optimal_defense"
UNDEFENDED = f"results/smoke/{PAPER}/undefended/digits16/small/none/ig/all.json"


def judge(*replicates: Replicate, **bound: float) -> Judge:
    spec = GateSpec(metric="psnr", **(bound or {"at_least": 18.0}))
    return Judge(Gate("digits16", "small", "ig", spec, (), "attack"), replicates)


def replicate(psnr: Any, seed: int = 0, **setting: Any) -> Replicate:
    return Replicate(seed=seed, setting=setting, metrics={"psnr": psnr})


@given(st.lists(st.lists(st.floats(-100, 100) | st.none(), max_size=6), min_size=1, max_size=4))
def test_the_quality_is_the_median_over_seeds_and_images(values: list[list[float | None]]) -> None:
    numbers = [number for several in values for number in several if number is not None]
    verdict = judge(*(replicate(several, seed) for seed, several in enumerate(values))).verdict({"fraction": 0.5})
    assert verdict.setting == {}
    assert verdict.quality == pytest.approx(np.median(numbers) if numbers else math.nan, nan_ok=True)
    assert verdict.passed == bool(numbers and np.median(numbers) >= 18)


def test_no_number_misses_every_gate() -> None:
    for undefended in ([replicate(None)], [replicate([None, None])], [Replicate(seed=0, metrics={})], []):
        for bound in ({"at_least": -1e9}, {"at_most": 1e9}):
            verdict = judge(*undefended, **bound).verdict({})
            assert math.isnan(verdict.quality) and not verdict.passed


def test_settings_of_the_undefended_gradient_are_judged_apart() -> None:
    """A protocol that sweeps its batch size has an undefended gradient per size."""
    judged = judge(
        *(replicate([psnr + seed], seed, batch=batch) for seed in (0, 2) for batch, psnr in ((1, 25), (8, 11)))
    )
    assert [judged.verdict({"batch": batch, "fraction": 0.5}).quality for batch in (1, 8)] == [26, 12]
    assert [judged.verdict({"batch": batch}).passed for batch in (1, 8)] == [True, False]
    assert not judged.verdict({"batch": 4}).passed  # there is no such undefended gradient
    assert judged.verdict({"fraction": 0.5}).quality == 19  # all four: 25, 27, 11, 13
    assert judged.verdict({"fraction": 0.5}).setting == {}


def project_with(root: Path, psnr: float | None) -> Project:
    """Synthetic records of the smoke scale, in which the undefended attack reaches a median of ``psnr`` everywhere."""
    project = new_project(root)
    record = record_of(project.job(UNDEFENDED))
    for found in record.replicates:
        values = found.metrics["psnr"]
        assert isinstance(values, list)
        found.metrics["psnr"] = [psnr] * len(values)
    write_record(root / UNDEFENDED, record)
    return project


def merged(project: Project, experiment: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    table = table_path("smoke", PAPER, experiment)
    merge(project, table)
    return pd.read_parquet(project.root / table), pd.read_csv(project.root / gates_path(table))


def test_a_gate_missed_voids_the_rows_of_its_attack(tmp_path: Path) -> None:
    project = project_with(tmp_path, 9.125)
    for experiment in ("undefended", "noise"):
        frame, gates = merged(project, experiment)
        assert frame["void"].dtype == bool
        assert (frame["void"] == (frame["attack"] == "ig")).all() and not frame["void"].all()
        assert gates.to_dict("records") == [
            dict(zip(COLUMNS, ("digits16", "small", "ig", "{}", "psnr", ">= 18", 9.125, False), strict=True))
        ]


def test_a_gate_passed_changes_nothing_but_the_verdict(tmp_path: Path) -> None:
    project = project_with(tmp_path, 18.0)
    frame, gates = merged(project, "noise")
    jobs = project.plan("smoke").experiment_jobs(PAPER, "noise")
    expected = pd.DataFrame([row for job in jobs for row in tidy_rows(job, read_record(project.root / job.path))])
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False)
    assert not frame["void"].any()
    assert gates[["quality", "passed"]].to_dict("records") == [{"quality": 18.0, "passed": True}]


def test_an_attack_that_reached_nothing_is_void(tmp_path: Path) -> None:
    frame, gates = merged(project_with(tmp_path, None), "noise")
    assert frame.loc[frame["attack"] == "ig", "void"].all()
    assert gates["quality"].isna().all() and not gates["passed"].any()


def test_an_experiment_without_gates(tmp_path: Path) -> None:
    frame, gates = merged(new_project(tmp_path), "noise_training")
    assert not frame["void"].any()
    assert gates.empty and list(gates.columns) == COLUMNS


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            ("mnist", "lenet", "ig", "{}", "psnr", ">= 18", 9.1, False),
            "void: ig reaches 9.1 dB without a defense on mnist with lenet, below the 18 dB that this experiment asks "
            "for.",
        ),
        (
            ("mnist", "lenet", "ig", '{"batch": 8}', "mse", "<= 0.05", 0.1, False),
            "void: ig reaches mse 0.1 without a defense on mnist with lenet, batch 8, above the mse 0.05 that this "
            "experiment asks for.",
        ),
        (
            ("mnist", "lenet", "ig", "{}", "psnr", ">= 18", math.nan, False),
            "void: ig has no number without a defense on mnist with lenet, and this experiment asks for at least 18 "
            "dB.",
        ),
        (("mnist", "lenet", "ig", "{}", "psnr", ">= 18", 19.0, True), None),
    ],
)  # fmt: skip
def test_words(row: tuple[Any, ...], said: str | None) -> None:
    units = {"psnr": "dB, pixels in [0, 1]", "mse": "squared pixel value"}
    frame = pd.DataFrame([row, row], columns=COLUMNS)  # two experiments with one gate: said once
    assert void_notes(frame, units) == ([said] if said else [])


REFERENCES = {"mean image", "constant grey", "random noise"}


def draw(name: str, void: bool) -> Drawing:
    tables = {
        experiment: frame.assign(void=void & (frame["attack"] == "ig"))
        for experiment, frame in tidy_tables(Project(ROOT).plan("smoke")).items()
    }
    entry = artifact_of(f"figures/smoke/{PAPER}/{name}.png")
    drawing = entry.make({experiment: tables[experiment] for experiment in entry.experiments})
    assert isinstance(drawing, Drawing)
    return drawing


@pytest.mark.parametrize("void", [True, False])
def test_void_series_are_hollow_and_dashed_in_their_colour(void: bool) -> None:
    drawing = draw("fig02", void)
    assert drawing.shows_void == void
    numbers = drawing.numbers
    assert (numbers["void"] == (void & ~numbers["series"].isin(REFERENCES))).all()
    suffix = "\n(void: attack too weak)" if void else ""
    for ax in drawing.figure.axes:
        lines = {str(line.get_label()): line for line in ax.lines}
        assert set(lines) == REFERENCES | {
            name + suffix for name in ("no defense", "gradient pruning", "optimal pruning")
        }
        pruned = lines["gradient pruning" + suffix]
        assert pruned.get_color() == COLOURS["magnitude_pruning"] == pruned.get_markeredgecolor()
        assert pruned.get_markerfacecolor() == ("none" if void else pruned.get_color())
        for name in ("no defense", "gradient pruning", "optimal pruning"):
            assert lines[name + suffix].get_linestyle() == ("--" if void else "-")
    legend = drawing.figure.axes[-1].get_legend()
    assert legend is not None
    assert sum("void" in text.get_text() for text in legend.get_texts()) == (3 if void else 0)


@pytest.mark.parametrize("void", [True, False])
def test_void_points_of_a_trade_off_are_hollow(void: bool) -> None:
    drawing = draw("fig04", void)
    numbers = drawing.numbers
    assert (numbers["void"] == (void & ~numbers["series"].isin(REFERENCES))).all()
    (ax,) = drawing.figure.axes
    suffix = "\n(void: attack too weak)" if void else ""
    clouds = {str(cloud.get_label()): cloud for cloud in ax.collections if isinstance(cloud, PathCollection)}
    for name, mechanism in {"no defense": "none", "optimal pruning": "optimal_pruning"}.items():
        cloud = clouds[name + suffix]
        assert to_hex(np.asarray(cloud.get_edgecolor())[0]) == COLOURS[mechanism].lower()
        assert len(np.asarray(cloud.get_facecolor())) == (0 if void else 1)
    whiskers = [line.get_linestyle() for line in ax.lines if len(np.asarray(line.get_xdata())) == 4]
    assert whiskers == ["--" if void else "-"] * 2


def test_training_curves_know_no_gate() -> None:
    drawing = draw("fig03", void=True)
    assert not drawing.shows_void and "void" not in drawing.numbers


@pytest.mark.parametrize(("psnr", "void"), [(9.125, True), (21.5, False)])
def test_files_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, psnr: float, void: bool) -> None:
    """From records to the words under a figure, the numbers beside it, and the page."""
    captions = []

    def record(figure: Figure, caption: str) -> None:
        captions.append(caption)
        add_caption(figure, caption)

    monkeypatch.setattr("leakbench.report.artifacts.add_caption", record)
    project = project_with(tmp_path, psnr)
    for experiment in project.plan("smoke").papers[PAPER].experiments:
        merge(project, table_path("smoke", PAPER, experiment))
    entry = artifact_of(f"figures/smoke/{PAPER}/fig04.png")
    entry.render(project, entry.paths("smoke")[0])
    others = [other for other in artifacts() if other is not entry and other.paper == PAPER]
    for path in (path for other in others for path in other.paths("smoke")):
        (tmp_path / path).write_text("text\nof another artifact\n")  # the page asks for all of them
    for other in others:
        if other.kind == "figure":
            Image.new("RGB", (4, 4)).save(tmp_path / other.path("smoke", "png"))
    (tmp_path / claims_path("smoke", PAPER)).write_text(",".join(judging.COLUMNS) + "\n")

    note = (
        "\nvoid: ig reaches 9.12 dB without a defense on digits16 with small, below the 18 dB that this experiment "
        "asks for."
    )
    assert captions[0] == entry.full_caption(project, "smoke") + (note if void else "")
    beside = pd.read_csv(tmp_path / entry.path("smoke", "csv"))
    assert beside.loc[beside["series"] == "optimal pruning", "void"].tolist() == [void] * 4

    write_scorecard(project, "results/smoke/scorecard.html")
    source = (tmp_path / "results/smoke/scorecard.html").read_text()
    assert '<h2 id="gates-title">Gates</h2>' in source
    reached, verdict = ("9.12", "<strong>void</strong>") if void else ("21.5", "passed")
    missed = 0
    for experiment in ("undefended", "pruning", "noise"):
        cells = (experiment, "digits16", "small", "ig", "psnr &gt;= 18", reached, verdict)
        assert f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" in source
    for experiment in project.plan("smoke").papers[PAPER].experiments:
        gates = pd.read_csv(tmp_path / gates_path(table_path("smoke", PAPER, experiment)))
        missed += int((~gates["passed"].astype(bool)).sum())
    assert source.count("<strong>void</strong>") == missed and (missed >= 3) == void
