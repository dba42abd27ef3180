"""Verdicts on attacks: their margins over a blind guess, what is void, and what is said about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
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
from leakbench.jobs.base import Job, Variant
from leakbench.planning.project import Project
from leakbench.records import Replicate, read_record, write_record
from leakbench.report import judging
from leakbench.report.artifacts import artifact_of, artifacts
from leakbench.report.gate_verdicts import COLUMNS, GateVerdict, Judge, void_notes
from leakbench.report.judging import claims_path
from leakbench.report.plots import Drawing
from leakbench.report.scorecard import write_scorecard
from leakbench.report.style import COLOURS, add_caption
from leakbench.report.tidy import gates_path, merge, table_path, tidy_rows

PAPER = "optimal_defense"
UNDEFENDED = f"results/smoke/{PAPER}/undefended/digits16/small/none/ig/all.json"

Values = Sequence[Sequence[float | None]]


@cache
def _undefended() -> Job:
    return Project(ROOT).plan("smoke").jobs[UNDEFENDED]


def job_of(seeds: int = 3, **protocol: Any) -> Job:
    """An attack job on single images, one client of each seed's own, unless the protocol says otherwise."""
    job = _undefended()
    kind = job.kind.model_copy(update={"batch_size": 1, "clients": 1, "victims": "distinct", "seeds": seeds} | protocol)
    return replace(job, kind=kind, seeds=tuple(range(seeds)))


def judge(job: Job, attack: Values, guess: Values, *, margin: float = 3.0, metric: str = "psnr") -> Judge:
    """A judge of numbers per seed, and in each per image."""
    gate = Gate("digits16", "small", "ig", GateSpec(metric=metric, margin=margin), (job,), (job,), type(job.kind))
    of_both = [
        [(job, Replicate(seed=seed, metrics={metric: list(of_seed)})) for seed, of_seed in enumerate(values)]
        for values in (attack, guess)
    ]
    return Judge(gate, *of_both)


def verdict(job: Job, attack: Values, guess: Values, **asked: Any) -> GateVerdict:
    return judge(job, attack, guess, **asked).verdict(job, {"fraction": 0.5})


def interval(found: GateVerdict) -> list[float]:
    return [round(end, 3) for end in (found.difference.low, found.difference.value, found.difference.high)]


NOTHING = [[12.0] * 4] * 12
"""Of a blind guess, the same for all."""


def test_the_images_of_a_batch_are_one_number() -> None:
    """Differences of batches: 8, 7, 10, whose standard error is sqrt(7 / 9), and Student's quantile 4.303."""
    job = job_of(batch_size=2)
    numbers = [[20.0, 22.0], [18.0, 20.0], [22.0, 24.0]], [[12.0, 14.0], [12.0, 12.0], [13.0, 13.0]]
    found = verdict(job, *numbers)
    assert interval(found) == [4.539, 8.333, 12.128] and found.passed
    assert (found.quality, round(found.reference_quality, 3)) == (21.0, 12.667)
    assert verdict(job, *numbers, margin=4.5).passed and not verdict(job, *numbers, margin=4.6).passed


def test_victims_that_seeds_share_are_a_part_of_the_sample() -> None:
    """Seeds add -1, 0, 1 and victims -2, 0, 2: the error is sqrt(5 / 3), and sqrt(1 / 3) if victims are not shared."""
    attack = [[20.0 + seed + victim for victim in (-2, 0, 2)] for seed in (-1, 0, 1)]
    guess = [row[:3] for row in NOTHING[:3]]
    shared = verdict(job_of(clients=3, victims="same"), attack, guess)
    distinct = verdict(job_of(clients=3), attack, guess)
    assert (interval(shared), shared.passed) == ([2.445, 8.0, 13.555], False)
    assert (interval(distinct), distinct.passed) == ([5.516, 8.0, 10.484], True)


def test_a_protocol_of_one_seed_is_judged_by_its_batches() -> None:
    """Differences 6, 8, 10, 8 of four batches: the error is sqrt(2 / 3), Student's quantile 3.182."""
    attack = [[18.0, 20.0, 22.0, 20.0]]
    found = verdict(job_of(seeds=1, clients=4), attack, NOTHING[:1])
    assert (interval(found), found.passed) == ([5.402, 8.0, 10.598], True)
    two = verdict(job_of(seeds=1, clients=2), [attack[0][:2]], [NOTHING[0][:2]])
    assert not two.passed and math.isnan(two.row()["low"]) and two.row()["difference"] == 7.0


def test_two_seeds_decide_nothing() -> None:
    attack = [[18.0, 20.0, 22.0, 20.0], [18.1, 20.1, 22.1, 20.1]]
    for victims in ("same", "distinct"):
        found = verdict(job_of(seeds=2, clients=4, victims=victims), attack, NOTHING[:2])
        assert not found.passed and math.isnan(found.row()["low"])
    one_of_two = judge(job_of(seeds=2, clients=4), attack[:1], NOTHING[:1])  # the other's record is missing
    assert not one_of_two.verdict(job_of(seeds=2, clients=4), {}).passed


@pytest.mark.parametrize(("seeds", "passed"), [(3, False), (5, False), (6, True), (9, True)])
def test_seeds_that_agree_to_the_last_digit(seeds: int, passed: bool) -> None:
    assert verdict(job_of(seeds), [[20.0]] * seeds, [[12.0]] * seeds).passed is passed


def test_lower_is_better_of_errors() -> None:
    worse, better = [[0.08], [0.07], [0.09]], [[0.01], [0.02], [0.015]]
    found = verdict(job_of(), better, worse, metric="mse", margin=0.02)
    assert found.passed and found.difference.value == pytest.approx(0.065)
    assert not verdict(job_of(), worse, better, metric="mse", margin=0.02).passed


def test_models_are_judged_by_two_metrics_of_one_record() -> None:
    """Accuracies 0.3, 0.4 and 0.5 over chances of 0.1, 0.1 and 0.2: the error of the mean is a fifteenth of a tenth."""
    job = _released("natural")
    bare = _released("undefended_release")
    spec = GateSpec(metric="accuracy", reference="chance", margin=0.05, undefended="undefended_release")
    gate = Gate("digits16", "lenet5", "release", spec, (bare,), (bare,), type(bare.kind))
    records = [
        (bare, Replicate(seed=seed, metrics={"accuracy": accuracy, "chance": chance}))
        for seed, (accuracy, chance) in enumerate([(0.3, 0.1), (0.4, 0.1), (0.5, 0.2)])
    ]
    found = Judge(gate, records, records).verdict(job, {"kappa": 2})
    assert (found.quality, found.reference_quality) == pytest.approx((0.4, 0.4 / 3))
    assert found.difference.value == pytest.approx(0.8 / 3) and found.passed
    strict = replace(gate, spec=spec.model_copy(update={"margin": 0.2}))
    assert not Judge(strict, records, records).verdict(job, {"kappa": 2}).passed
    assert gate.concerns(job) and not gate.concerns(_undefended())


def _released(experiment: str) -> Job:
    return (
        Project(ROOT, {"papers": ["channel"]})
        .plan("smoke")
        .jobs[
            f"results/smoke/channel/{experiment}/digits16/lenet5/"
            f"{'none' if experiment == 'undefended_release' else experiment}/release/all.json"
        ]
    )


def test_what_either_lacks_is_left_out_of_both() -> None:
    job = job_of(clients=2)
    attack: Values = [[20.0, None], [22.0, 30.0], [24.0, 26.0], [None, None]]
    guess: Values = [[12.0, 2.0], [12.0, 12.0], [12.0, None], [12.0, 12.0]]
    found = verdict(replace(job, seeds=(0, 1, 2, 3)), attack, guess)
    assert found.quality == pytest.approx((20 + 26 + 24) / 3)
    assert (found.reference_quality, found.difference.seeds) == (12.0, 3)
    assert found.difference.value == pytest.approx((8 + 14 + 12) / 3)


def test_no_number_misses_every_gate() -> None:
    nothing: list[Values] = [[], [[None]] * 3, [[None], [None], []]]
    for attack in nothing:
        found = verdict(job_of(), attack, [[12.0]] * 3, margin=1e-9)
        assert math.isnan(found.quality) and math.isnan(found.difference.value) and not found.passed


small = st.floats(-50, 50)


@given(
    values=st.integers(1, 8).flatmap(
        lambda seeds: st.lists(st.lists(small, min_size=3, max_size=3), min_size=seeds, max_size=seeds)
    ),
    margin=st.floats(1e-6, 100),
    victims=st.sampled_from(["same", "distinct"]),
)
def test_a_blind_guess_never_passes(values: list[list[float]], margin: float, victims: str) -> None:
    found = verdict(job_of(len(values), clients=3, victims=victims), values, values, margin=margin)
    assert not found.passed and found.difference.value == 0


@given(
    better=st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=1, max_size=7),
    shift=st.integers(-100, 100),
    victims=st.sampled_from(["same", "distinct"]),
)
def test_a_shift_of_both_changes_nothing(better: list[list[int]], shift: int, victims: str) -> None:
    job = job_of(len(better), clients=2, victims=victims)
    guess = [[0.0, 0.0]] * len(better)
    shifted = verdict(job, [[each + shift for each in row] for row in better], [[float(shift)] * 2] * len(better))
    found = verdict(job, better, guess)
    assert found.passed == shifted.passed
    assert interval(shifted) == pytest.approx(interval(found), nan_ok=True, abs=2e-3)


def test_settings_of_the_undefended_gradient_are_judged_apart() -> None:
    """A protocol that sweeps its batch size has an undefended gradient per size."""
    job = job_of()
    swept = replace(job, kinds=Variant("attack", type(job.kind), {}, {"batch_size": [1, 8]}))

    def replicates(one: float, eight: float) -> list[tuple[Job, Replicate]]:
        return [
            (swept, Replicate(seed=seed, setting={"batch_size": size}, metrics={"psnr": [psnr + seed] * size}))
            for seed in range(3)
            for size, psnr in ((1, one), (8, eight))
        ]

    gate = Gate("digits16", "small", "ig", GateSpec(metric="psnr", margin=3.0), (swept,), (swept,), type(job.kind))
    judged = Judge(gate, replicates(25.0, 13.0), [(each, guess) for each, guess in replicates(12.5, 12.0)])
    found = {size: judged.verdict(swept, {"batch_size": size, "fraction": 0.5}) for size in (1, 4, 8)}
    assert [found[size].setting for size in (1, 8)] == [{"batch_size": 1}, {"batch_size": 8}]
    assert [found[size].quality for size in (1, 8)] == [26, 14] and math.isnan(found[4].quality)
    assert [found[size].difference.value for size in (1, 8)] == [12.5, 1.0]
    assert judged.verdict(job_of(batch_size=8), {"fraction": 0.5}).setting == {"batch_size": 8}


def project_with(root: Path, better: float | None) -> Project:
    """Synthetic records of the smoke scale, in which the undefended attack is so many dB above the mean image's 12.

    Half a dB more and half a dB less in turn, seed by seed; None is no number.
    """
    project = new_project(root)
    for path, over in ((UNDEFENDED, better), (UNDEFENDED.replace("/ig/", "/mean_image/"), 0.0)):
        record = record_of(project.job(path))
        for found in record.replicates:
            values = found.metrics["assigned_psnr"]
            assert isinstance(values, list)
            spread = (-1) ** found.seed / 2 if over else 0.0
            found.metrics["assigned_psnr"] = [None if over is None else 12.0 + over + spread] * len(values)
        write_record(root / path, record)
    return project


def merged(project: Project, experiment: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    table = table_path("smoke", PAPER, experiment)
    merge(project, table)
    return pd.read_parquet(project.root / table), pd.read_csv(project.root / gates_path(table))


def test_a_gate_missed_voids_the_rows_of_its_attack(tmp_path: Path) -> None:
    project = project_with(tmp_path, 1.5)
    for experiment in ("undefended", "noise"):
        frame, gates = merged(project, experiment)
        assert frame["void"].dtype == bool
        assert (frame["void"] == (frame["attack"] == "ig")).all() and not frame["void"].all()
        (row,) = gates.to_dict("records")
        assert list(row) == COLUMNS
        assert [row.pop(end) for end in ("low", "high")] == pytest.approx([0.9252, 2.0748], abs=1e-4)
        cell, asked = ["digits16", "small", "ig", "{}"], ["assigned_psnr", "mean_image", 3]
        assert list(row.values()) == [*cell, *asked, 13.5, 12, 1.5, False]


def test_a_gate_passed_changes_nothing_but_the_verdict(tmp_path: Path) -> None:
    project = project_with(tmp_path, 3.6)
    frame, gates = merged(project, "noise")
    jobs = project.plan("smoke").experiment_jobs(PAPER, "noise")
    expected = pd.DataFrame([row for job in jobs for row in tidy_rows(job, read_record(project.root / job.path))])
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False)
    assert not frame["void"].any()
    assert gates[["difference", "passed"]].to_dict("records") == [{"difference": pytest.approx(3.6), "passed": True}]


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
            ("mnist", "lenet", "ig", "{}", "psnr", "mean_image", 3, 13.2, 12, 1.2, 0.3, 2.1, False),
            "void: ig is 1.2 dB [0.3, 2.1] better than mean_image without a defense on mnist with lenet; this "
            "experiment asks for 3 dB.",
        ),
        (
            ("cola", "bert", "tag", '{"batch": 8}', "rouge1", "frequent_words", 20, 30, 20, 10, -1, 21, False),
            "void: tag is 10 of rouge1 [-1, 21] better than frequent_words without a defense on cola with bert, batch "
            "8; this experiment asks for 20 of rouge1.",
        ),
        (
            ("mnist", "lenet", "ig", "{}", "psnr", "mean_image", 3, 21, 12, 9, math.nan, math.nan, False),
            "void: ig is 9 dB (too few seeds or victims for an interval) better than mean_image without a defense on "
            "mnist with lenet; this experiment asks for 3 dB.",
        ),
        (
            ("mnist", "lenet", "ig", "{}", "psnr", "mean_image", 3, *[math.nan] * 5, False),
            "void: ig has no number beside mean_image's without a defense on mnist with lenet; this experiment asks "
            "for 3 dB.",
        ),
        (("mnist", "lenet", "ig", "{}", "psnr", "mean_image", 3, 21, 12, 9, 8, 10, True), None),
    ],
)  # fmt: skip
def test_words(row: tuple[Any, ...], said: str | None) -> None:
    units = {"psnr": "dB, pixels in [0, 1]", "rouge1": "F-measure of words"}
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


@pytest.mark.parametrize(("better", "void"), [(1.5, True), (9.0, False)])
def test_files_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, better: float, void: bool) -> None:
    """From records to the words under a figure, the numbers beside it, and the page."""
    captions = []

    def record(figure: Figure, caption: str) -> None:
        captions.append(caption)
        add_caption(figure, caption)

    monkeypatch.setattr("leakbench.report.artifacts.add_caption", record)
    project = project_with(tmp_path, better)
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
        "\nvoid: ig is 1.5 dB [0.925, 2.07] better than mean_image without a defense on digits16 with small; this "
        "experiment asks for 3 dB."
    )
    assert captions[0] == entry.full_caption(project, "smoke") + (note if void else "")
    beside = pd.read_csv(tmp_path / entry.path("smoke", "csv"))
    assert beside.loc[beside["series"] == "optimal pruning", "void"].tolist() == [void] * 4

    write_scorecard(project, "results/smoke/scorecard.html")
    source = (tmp_path / "results/smoke/scorecard.html").read_text()
    assert '<h2 id="gates-title">Gates</h2>' in source
    reached = "13.5, mean_image 12: 1.5 [0.925, 2.07]" if void else "21, mean_image 12: 9 [8.43, 9.57]"
    word = "<strong>void</strong>" if void else "passed"
    missed = 0
    for experiment in ("undefended", "pruning", "noise"):
        cells = (experiment, "digits16", "small", "ig", "assigned_psnr 3", reached, word)
        assert f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" in source
    for experiment in project.plan("smoke").papers[PAPER].experiments:
        gates = pd.read_csv(tmp_path / gates_path(table_path("smoke", PAPER, experiment)))
        missed += int((~gates["passed"].astype(bool)).sum())
    assert source.count("<strong>void</strong>") == missed and (missed >= 3) == void
