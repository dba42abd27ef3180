"""Adaptive attacks beside the plain ones inside: from arrays, and from records to tables, claims and captions."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from tests.report.synthetic import ROOT, new_project, record_of

from leakbench.planning.project import Project
from leakbench.records import write_record
from leakbench.report.artifacts import formats, shows_under_attacked
from leakbench.report.evidence import Evidence
from leakbench.report.plots import against_parameter, judged
from leakbench.report.scorecard import _adaptive
from leakbench.report.tidy import adaptive_path, merge, needed, table_path
from leakbench.report.under_attacked import COLUMN, COLUMNS, DAGGER, MOST_NOTES, compared, under_attacked_notes

PAPER = "optimal_defense"
NAN = math.nan


def column(*values: float) -> np.ndarray:
    """Numbers of seeds with a victim each."""
    return np.array(values)[:, None]


PLAIN = column(20.0, 22.0, 21.0, 19.0)


@pytest.mark.parametrize(
    ("shift", "weak"),
    [((-4.0, -4.5, -3.5, -4.2), True), ((0.1, -0.2, 0.2, -0.1), False), ((4.0, 4.5, 3.5, 4.2), False)],
)
def test_worse_equal_and_better(shift: tuple[float, ...], weak: bool) -> None:
    """By the paired t-test at 2.5 % on a side, from scipy."""
    verdict = compared({"adaptive": PLAIN + column(*shift)}, {"plain": PLAIN}, "higher")
    assert verdict is not None and verdict.under_attacked is weak
    low, high = stats.t.interval(0.95, 3, loc=np.mean(shift), scale=stats.sem(shift))
    assert verdict.interval == pytest.approx((low, high))
    assert bool(high < 0) is weak and verdict.difference.value == pytest.approx(np.mean(shift))


def test_lower_is_better_of_errors() -> None:
    errors = column(0.02, 0.03, 0.02, 0.025)
    worse = compared({"adaptive": errors + column(0.02, 0.021, 0.019, 0.02)}, {"plain": errors}, "lower")
    assert worse is not None and worse.under_attacked and worse.difference.value < 0


def test_one_adaptive_attack_that_works_is_enough() -> None:
    """The best of either side, by its mean: a hopeless attacker beside a good one condemns nothing."""
    hopeless, good = PLAIN - column(9.0, 9.1, 8.9, 9.2), PLAIN + column(0.5, 0.4, 0.6, 0.5)
    weaker = PLAIN - 3
    verdict = compared({"hopeless": hopeless, "good": good}, {"weaker": weaker, "plain": PLAIN}, "higher")
    assert verdict is not None and (verdict.adaptive, verdict.plain) == ("good", "plain")
    assert not verdict.under_attacked
    alone = compared({"hopeless": hopeless}, {"weaker": weaker, "plain": PLAIN}, "higher")
    assert alone is not None and alone.under_attacked and alone.plain == "plain"


def test_the_best_of_both_need_not_wrap_each_other() -> None:
    """The better adaptive attack beats the one inside it, but not the plain one inside the other: who ignores wins."""
    step = column(0.1, -0.1, 0.2, -0.2)
    adaptive = {"ig-adaptive": PLAIN - 6 + step, "dlg-adaptive": PLAIN - 3 + step}
    verdict = compared(adaptive, {"ig": PLAIN, "dlg": PLAIN - 5}, "higher")
    assert verdict is not None and (verdict.adaptive, verdict.plain) == ("dlg-adaptive", "ig")
    assert verdict.under_attacked


@pytest.mark.parametrize(("behind", "weak"), [(0.005, False), (0.02, False), (0.03, True)])
def test_what_searches_make_of_rounding_is_no_difference(behind: float, weak: bool) -> None:
    """A thousandth of 20.5 dB, even where every seed is that much behind."""
    adaptive = PLAIN - behind * column(1.0, 1.01, 0.99, 1.0)
    verdict = compared({"adaptive": adaptive}, {"plain": PLAIN}, "higher")
    assert verdict is not None and verdict.under_attacked is weak and verdict.interval[1] < 0


def test_two_seeds_decide_nothing() -> None:
    verdict = compared({"adaptive": PLAIN[:2] - column(9.0, 9.1)}, {"plain": PLAIN[:2]}, "higher")
    assert verdict is not None and not verdict.under_attacked and math.isnan(verdict.interval[1])


def test_what_either_lacks_is_left_out_of_both() -> None:
    adaptive = column(10.0, NAN, 11.0, 9.2)
    verdict = compared({"adaptive": adaptive}, {"plain": column(20.0, 1.0, 20.5, NAN)}, "higher")
    assert verdict is not None and verdict.difference.seeds == 2 and verdict.plain_quality == 20.25
    assert compared({"adaptive": column(NAN, NAN)}, {"plain": PLAIN[:2]}, "higher") is None
    assert compared({"adaptive": PLAIN}, {}, "higher") is None


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=9))
def test_an_attack_is_never_weaker_than_itself(values: list[float]) -> None:
    same = column(*values)
    verdict = compared({"adaptive": same}, {"plain": same}, "higher")
    assert verdict is not None and not verdict.under_attacked


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=3, max_size=8))
def test_no_two_attacks_are_weaker_than_each_other(values: list[tuple[int, int]]) -> None:
    first, second = (column(*(float(pair[side]) for pair in values)) for side in (0, 1))
    verdicts = [compared({"a": a}, {"b": b}, "higher") for a, b in ((first, second), (second, first))]
    assert sum(verdict is not None and verdict.under_attacked for verdict in verdicts) < 2


def test_attacks_that_are_as_good_are_marked_in_one_of_forty() -> None:
    draws = np.random.default_rng(0).normal(size=(4000, 2, 5, 1))
    marks = [compared({"a": adaptive}, {"p": plain}, "higher") for adaptive, plain in draws]
    assert 0.018 < np.mean([bool(mark and mark.under_attacked) for mark in marks]) < 0.032


def project_with(root: Path, better: float, at: float | None = None) -> Project:
    """Synthetic records in which ``ig-adaptive`` on pruned gradients is so many dB better than ``ig``.

    A tenth of a dB more and less in turn. The undefended attack passes its gate.

    Args:
        root: of the project.
        better: in dB.
        at: the fraction of gradient pruning at which it is; it is 5 dB better everywhere else.
    """
    project = new_project(root)
    for path, job in project.plan("smoke").jobs.items():
        if job.attack and "/mean_image/" not in path and job.experiment in ("undefended", "pruning", "adaptive"):
            record = record_of(job)
            for found in record.replicates:
                wraps = bool(job.attack.wraps)
                here = job.defense.label == "gp" and at in (None, found.setting.get("fraction"))
                over = (better if here else 5.0) * wraps + 0.1 * (-1) ** found.seed * wraps
                for name in ("psnr", "assigned_psnr"):
                    values = found.metrics[name]
                    assert isinstance(values, list)
                    found.metrics[name] = [30.0 + found.seed + over] * len(values)
            write_record(root / path, record)
    return project


def merged(project: Project, experiment: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    table = table_path("smoke", PAPER, experiment)
    merge(project, table)
    return pd.read_parquet(project.root / table), pd.read_csv(project.root / adaptive_path(table))


def test_weak_adaptive_attacks_mark_the_rows_of_their_setting(tmp_path: Path) -> None:
    """And nothing else: no other setting, defense or experiment, and no verdict of a gate."""
    project = project_with(tmp_path, -4.0, at=0.8)
    frame, cells = merged(project, "adaptive")
    expected = (frame["defense"] == "gp") & (frame["setting.fraction"] == 0.8)
    assert frame[COLUMN].dtype == bool and expected.any()
    assert (frame[COLUMN] == expected).all() and not frame["void"].any()
    assert list(cells.columns) == COLUMNS
    (row,) = cells[cells[COLUMN]].to_dict("records")
    assert (row["defense"], json.loads(row["setting"])) == ("gp", {"fraction": 0.8})
    assert (row["adaptive"], row["plain"], row["metric"]) == ("ig-adaptive", "ig", "assigned_psnr")
    assert row["difference"] == pytest.approx(-4.0) and row["low"] < -4 < row["high"] < 0
    assert row["plain_quality"] - row["adaptive_quality"] == pytest.approx(4.0)
    plain, nothing = merged(project, "pruning")
    assert not plain[COLUMN].any() and nothing.empty and list(nothing.columns) == COLUMNS


def test_adaptive_attacks_that_do_as_well_mark_nothing(tmp_path: Path) -> None:
    frame, cells = merged(project_with(tmp_path, 0.0), "adaptive")
    assert not frame[COLUMN].any() and len(cells) and not cells[COLUMN].any()


def test_the_plain_attacks_of_another_experiment_are_asked_for() -> None:
    """The experiment ``adaptive`` has none of its own; the protocols differ in what attackers are granted alone."""
    project = Project(ROOT, {"papers": [PAPER]})
    of_experiment = {
        name: {job.experiment for job in needed(project, table_path("smoke", PAPER, name)) if job.attack}
        for name in ("adaptive", "equal_utility", "pruning")
    }
    assert of_experiment["adaptive"] == {"adaptive", "undefended", "pruning", "noise"}
    assert of_experiment["equal_utility"] == {"equal_utility", "undefended"}
    assert of_experiment["pruning"] == {"pruning", "undefended"}


@pytest.mark.parametrize(
    ("paper", "experiment", "plain"),
    [("leaderboard", "single", {"map", "dlg-cosine"}), ("cdpa", "inversion_adaptive", {"ig"}), ("cdpa", "rog", set())],
)
def test_only_attacks_that_an_adaptive_one_wraps_are_compared(paper: str, experiment: str, plain: set[str]) -> None:
    """Nothing wraps ``ridge`` of the leaderboard; ``rog-post`` betters images, and knows no defense."""
    cells = Project(ROOT, {"papers": [paper]}).plan("smoke").adapted_cells(paper, experiment)
    assert {job.attack.label for cell in cells for job in cell.plain if job.attack} == plain
    assert all(job.defense.component.name != "none" for cell in cells for job in (*cell.adaptive, *cell.plain))


def tidy(weak: tuple[float, ...] = (0.9,)) -> pd.DataFrame:
    """PSNR of a defense in two settings, of which some are under-attacked."""
    rows = [
        {"setting.fraction": fraction, "seed": seed, "value": 20.0 + seed, COLUMN: fraction in weak}
        for fraction in (0.5, 0.9)
        for seed in range(3)
    ]
    return pd.DataFrame(rows).assign(
        dataset="mnist", model="lenet", defense="gp", mechanism="magnitude_pruning", attack="ig", metric="psnr",
        void=False, distinct=True, status="ok", axis="victim", index=0,
    )  # fmt: skip


def test_claims_get_a_note_and_keep_their_verdict() -> None:
    evidence = Evidence({"pruning": tidy()})
    for _ in range(2):  # it is noted once
        evidence.series("pruning", "psnr", defense="gp", attack="ig", sweep="fraction")
    note, size = evidence.notes()
    assert note == (
        "under-attacked: gp at fraction 0.9 on mnist with lenet: attackers who know it do worse than those who ignore "
        "it, so its numbers flatter it"
    )
    assert size == "3 seeds" and evidence.void == []
    fine = Evidence({"pruning": tidy(weak=())})
    fine.series("pruning", "psnr", defense="gp", attack="ig", sweep="fraction")
    assert fine.notes() == ["3 seeds"]


@pytest.mark.parametrize("weak", [(), (0.9,)])
def test_figures_carry_a_dagger(weak: tuple[float, ...]) -> None:
    drawing = against_parameter(
        tidy(weak), "fraction", {"psnr": "PSNR"}, {"gp": "pruning"}, attack="ig", xlabel="fraction"
    )
    (line,) = drawing.figure.axes[0].lines
    assert line.get_label() == ("pruning †" if weak else "pruning")
    assert drawing.numbers[COLUMN].tolist() == [False, bool(weak)]
    assert shows_under_attacked(drawing) is bool(weak)


def test_tables_to_read_have_the_dagger_and_csv_the_column() -> None:
    table = pd.DataFrame({"defense": ["gp", "op"], "leakage": [20.0, 21.0], COLUMN: [True, False]})
    assert shows_under_attacked(table) and not shows_under_attacked(table.assign(**{COLUMN: False}))
    assert shows_under_attacked(pd.DataFrame({"psnr": ["20.1 [19, 21] †", "–"]}))
    made = {name: content.decode() for name, content in formats(table, ["caption"]).items()}
    assert made["csv"].splitlines() == [f"defense,leakage,{COLUMN}", "gp,20.0,True", "op,21.0,False"]
    for name in ("md", "tex"):
        assert f"gp {DAGGER}" in made[name] and f"op {DAGGER}" not in made[name] and "attacked" not in made[name]


def test_rows_of_no_attack_beside_marked_ones() -> None:
    """A column of a concatenation is empty in rows of training."""
    both = pd.concat([tidy(), pd.DataFrame({"defense": ["gp"], "value": [0.5]})])
    assert shows_under_attacked(both) and not shows_under_attacked(both[both["defense"] != "gp"])
    assert judged(tidy().drop(columns=COLUMN), ["defense"])[COLUMN].tolist() == [False]


def cells(*settings: float) -> pd.DataFrame:
    rows = [
        ("mnist", "lenet", "gp", json.dumps({"fraction": each}), "psnr", "ig-adaptive", "ig", 12.0, 15.5, -3.5, -5, -2)
        for each in settings
    ]
    return pd.DataFrame([(*row, True) for row in rows], columns=COLUMNS)


def test_captions_name_the_cells() -> None:
    assert under_attacked_notes(cells(0.9).assign(**{COLUMN: False})) == []
    (line,) = under_attacked_notes(pd.concat([cells(0.5), cells(0.5)]))  # two experiments, the same cell
    assert line == (
        "† under-attacked: attackers who know the defense do worse than those who ignore it, beyond noise, so that its "
        "numbers flatter it. gp (fraction 0.5): ig-adaptive 12, ig 15.5 psnr, a difference of -3.5 [-5, -2]."
    )
    many = [place / 10 for place in range(MOST_NOTES + 2)]
    (line,) = under_attacked_notes(cells(*many))
    assert line.count("ig-adaptive") == MOST_NOTES and line.endswith("; and 2 more (adaptive.csv).")


def test_the_scorecard_lists_them(tmp_path: Path) -> None:
    project = project_with(tmp_path, -4.0, at=0.8)
    plan = project.plan("smoke")
    for experiment in plan.papers[PAPER].experiments:
        merge(project, table_path("smoke", PAPER, experiment))
    listed = {row.experiment: row for row in _adaptive(project.root, plan, PAPER)}
    assert set(listed) == {"adaptive", "cifar_adaptive", "equal_utility"}
    (cell,) = listed["adaptive"].cells
    assert cell.startswith("digits16, small, gp (fraction 0.8): ig-adaptive ") and listed["adaptive"].count > 4
