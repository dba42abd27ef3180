"""Figures S3 and S4, Table S6 and claims L, from numbers that are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.papers.drawn import draw, interval, make, per_seed, series, smoke_tables
from tests.report.synthetic import ROOT
from tests.workflow.quick_jobs import without

from leakbench.jobs.base import Job
from leakbench.papers.secagg_dp import PAPER
from leakbench.papers.secagg_dp import leakage_claims as claims
from leakbench.papers.secagg_dp.leakage import BATCHES, INVERSION, MEMBERSHIP
from leakbench.planning.project import Project
from leakbench.records import Replicate
from leakbench.report.claims import claims_of
from leakbench.report.evidence import Evidence, NotRun
from leakbench.report.findings import Finding

Frame = pd.DataFrame
CELL = {"dataset": "digits8", "model": "lenet", "void": False, "distinct": False, "status": "ok"}


def known(job: Job, replicate: Replicate) -> None:
    """Bounds by users: eq. 9 falls, and two or more have an epsilon where there is noise."""
    users, variance = replicate.setting["users"], float(replicate.setting.get("variance", 0.0))
    assert isinstance(users, int)
    replicate.metrics |= {"leaving": 1.0, "information_bound": 50.0 / users}
    if variance > 0 and users > 1:
        replicate.metrics |= {"epsilon": 1 / variance, "auc_bound": 0.99}
    else:
        without(replicate, "no guarantee", "epsilon", "auc_bound")


@pytest.fixture(scope="module")
def tables() -> dict[str, Frame]:
    return smoke_tables(PAPER, membership=known)


def setting(frame: Frame, **equal: Any) -> Frame:
    for key, value in equal.items():
        frame = frame[frame[key.replace("setting_", "setting.")] == value]
    return frame


def test_the_smoke_scale_holds_what_is_drawn(tables: dict[str, Frame]) -> None:
    assert set(tables) >= {INVERSION, MEMBERSHIP, BATCHES}
    plan = Project(ROOT, {"papers": [PAPER]}).plan("full")
    users = {job.kinds.sweep["users"][-1] for job in plan.experiment_jobs(PAPER, INVERSION) if job.kinds}
    assert users == {50}


def test_fig_s3(tables: dict[str, Frame]) -> None:
    drawing = draw("figS3", tables, paper=PAPER)
    frame = tables[INVERSION]
    own = setting(frame, metric="assigned_psnr", attack="dlg", defense="none")
    for users in (1, 2, 8):
        expected = interval(per_seed(setting(own, setting_users=users)))
        (row,) = series(drawing.numbers, "no defense", users=users).to_dict("records")
        assert (row["mean"], row["low"], row["high"]) == pytest.approx(expected)
    names = set(drawing.numbers["series"])
    assert {"Gaussian weights", r"water-filling, $\sigma^2$ = 1e-06", "mean image", "random noise"} <= names
    (ax,) = drawing.figure.axes
    assert {line.get_label() for line in ax.get_lines()} == names and ax.get_xscale() == "log"


def test_a_weak_attack_is_said_to_be_void(tables: dict[str, Frame]) -> None:
    frame = tables[INVERSION]
    weak = {INVERSION: frame.assign(void=frame["attack"] == "dlg")}
    (ax,) = draw("figS3", weak, paper=PAPER).figure.axes
    labels = {str(line.get_label()) for line in ax.get_lines()}
    assert {label for label in labels if "void" in label} and "mean image" in labels


def test_fig_s4(tables: dict[str, Frame]) -> None:
    drawing = draw("figS4", tables, paper=PAPER)
    frame = tables[MEMBERSHIP]
    for model in ("linear", "lenet"):
        own = setting(frame, model=model, defense="filled-members", setting_users=4, setting_variance=1.0)
        chosen = series(
            drawing.numbers, r"water-filling, $\sigma^2$ = 1", users=4, model=model, score="likelihood"
        ).to_dict("records")
        assert len(chosen) == 1
        for column, metric in (("mean", "auc"), ("low", "auc_low"), ("high", "auc_high")):
            expected = np.mean(per_seed(setting(own, metric=f"{metric}/likelihood")))
            assert chosen[0][column] == pytest.approx(expected)
    assert set(drawing.numbers["score"]) == {"inner", "cosine", "likelihood"}
    axes = drawing.figure.axes
    assert len(axes) == 6
    for ax in axes:
        assert any(np.asarray(line.get_ydata()).tolist() == [0.5, 0.5] for line in ax.get_lines())  # chance
    labels = [{str(line.get_label()) for line in ax.get_lines()} for ax in axes[:3]]
    assert {"no defense", "Gaussian weights", "batches: in the batch"} <= labels[0]
    assert "Gaussian weights" not in labels[1] | labels[2]
    # A guarantee of 0.99 is drawn, and no other line has so many points at one height.
    for ax, drawn in zip(axes[:3], (False, True, True), strict=True):
        assert (
            any(np.allclose(each, 0.99) for line in ax.get_lines() if len(each := np.asarray(line.get_ydata())))
            == drawn
        )


def test_table_s6(tables: dict[str, Frame]) -> None:
    table = make("tableS6", tables, paper=PAPER)
    assert list(table.columns[4:-3]) == [f"N = {users}" for users in (1, 2, 4, 8, 16)]
    rows = table.set_index(["attack", "model", "mechanism"]).sort_index()
    inverted = rows.loc[("inversion", "lenet", "no defense")]
    own = setting(tables[INVERSION], metric="assigned_psnr", attack="dlg", defense="none", setting_users=8)
    assert float(inverted["N = 8"]) == pytest.approx(np.mean(per_seed(own)), abs=0.05) and inverted["N = 16"] == "–"
    noisy = rows.loc[("membership", "linear", "isotropic noise, sigma^2 = 100")]
    own = setting(tables[MEMBERSHIP], model="linear", defense="isotropic-members", setting_variance=100.0)
    own = setting(own, setting_users=16)
    value, low, high = (np.mean(per_seed(setting(own, metric=f"auc{end}/likelihood"))) for end in ("", "_low", "_high"))
    assert noisy["N = 16"] == f"{value:.3f} ({low:.3f}, {high:.3f})"
    assert noisy["epsilon"] == "0.01" and noisy["AUC at most"] == "0.990"
    plain = rows.loc[("membership", "linear", "no defense")]
    assert plain["epsilon"] == plain["AUC at most"] == "–" and plain["TPR"] != "–"
    batch = rows.loc[("membership", "lenet", "batches, in the batch: no defense")]
    assert batch["N = 1"] != "–" and batch["TPR"] == "–"


def tidy(
    metric: str,
    by_users: dict[int, float],
    defense: str = "none",
    attack: str | None = None,
    variance: float | None = None,
    axis: str | None = None,
    spread: float = 0.001,
) -> Frame:
    """A metric over users, of twelve seeds that hardly differ; of images, two of every user."""
    found = []
    for users, value in by_users.items():
        for seed in range(12):
            for index in range(2 * users if axis == "image" else 1):
                row = {**CELL, "defense": defense, "attack": attack, "metric": metric, "axis": axis, "seed": seed}
                row |= {"index": index, "value": value + spread * (seed - 5.5), "setting.users": users}
                found.append(row | ({} if variance is None else {"setting.variance": variance}))
    return pd.DataFrame(found)


def inversion(attacked: dict[int, float], mean: float = 11.0, void: bool = False) -> dict[str, Frame]:
    scalars = [tidy("bits", dict.fromkeys(attacked, 1.0), attack=name) for name in ("dlg", "mean_image")]
    # One client per seed.
    scalars += [tidy("alignment", dict.fromkeys(attacked, 1.0), attack=name, axis="victim") for name in ("dlg",)]
    images = [
        tidy("assigned_psnr", attacked, attack="dlg", axis="image"),
        tidy("assigned_psnr", dict.fromkeys(attacked, mean), attack="mean_image", axis="image"),
    ]
    return {INVERSION: pd.concat([*scalars, *images]).assign(void=void)}


def areas(
    none: dict[int, float],
    sampled: dict[int, float] | None = None,
    noisy: dict[int, float] | None = None,
    *,
    drawn: dict[int, float] | None = None,
    leaving: dict[int, float] | None = None,
    bound: float = 0.6,
) -> dict[str, Frame]:
    sampled, noisy, grid = sampled or none, noisy or dict.fromkeys(none, 0.5), list(none)
    information = {users: 100.0 / (users - 1) for users in grid if users > 1}
    parts = [
        tidy("dimension", dict.fromkeys(grid, 9.0)),
        tidy("information_bound", information),
        tidy("auc/likelihood", none),
        tidy("auc/likelihood", sampled, "sampled-members"),
        tidy("dimension", dict.fromkeys(grid, 9.0), "sampled-members"),
        tidy("leaving", leaving or dict.fromkeys(grid, 1.0), "sampled-members", spread=0.0),
    ]
    for defense in ("isotropic-members", "filled-members"):
        for variance in (1.0, 10.0):
            values = noisy if variance == 10 else none
            parts.append(tidy("dimension", dict.fromkeys(grid, 9.0), defense, variance=variance))
            parts.append(tidy("auc/likelihood", values, defense, variance=variance))
            if variance == 10:
                guaranteed = {users: bound for users in grid if users > 1}
                parts.append(tidy("auc_bound", guaranteed, defense, variance=variance, spread=0.0))
    batches = [
        tidy("dimension", dict.fromkeys(grid, 9.0)),
        tidy("information_bound", information),
        tidy("auc_drawn/likelihood", drawn or none),
    ]
    return {MEMBERSHIP: pd.concat(parts), BATCHES: pd.concat(batches)}


FALLS, RISES = {1: 0.99, 2: 0.9, 10: 0.7}, {1: 0.7, 2: 0.8, 10: 0.9}
HIDDEN = {1: 0.99, 2: 0.9, 10: 0.45}
CASES: list[tuple[str, dict[str, Frame], str]] = [
    ("L1a", inversion({1: 40.0, 2: 30.0, 8: 12.0}), "reproduced"),
    ("L1a", inversion({1: 10.0, 2: 30.0, 8: 42.0}), "contradicted"),
    ("L1a", inversion({1: 40.0, 2: 30.0, 8: 12.0}, void=True), "inconclusive"),
    ("L1b", areas(FALLS), "reproduced"),
    ("L1b", areas(RISES), "contradicted"),
    ("L1c", inversion({1: 40.0, 8: 9.0}), "reproduced"),
    ("L1c", inversion({1: 40.0, 8: 20.0}), "contradicted"),
    ("L2", areas(FALLS), "reproduced"),
    ("L2", areas(HIDDEN), "contradicted"),
    ("L2", areas(FALLS, drawn=HIDDEN), "contradicted"),
    ("L3", areas(FALLS), "reproduced"),
    ("L3", areas(FALLS, sampled=HIDDEN), "contradicted"),
    ("L3", areas(FALLS, sampled=HIDDEN, leaving={1: 1.0, 2: 1.0, 10: 0.5}), "reproduced"),
    ("L4a", areas(FALLS), "reproduced"),
    ("L4a", areas(FALLS, noisy=FALLS), "contradicted"),
    ("L4b", areas(FALLS), "reproduced"),
    ("L4b", areas(FALLS, noisy=dict.fromkeys(FALLS, 0.3)), "contradicted"),
    ("L5", areas(FALLS), "reproduced"),
    ("L5", areas(FALLS, bound=0.48), "contradicted"),
]


def found(key: str, given: dict[str, Frame]) -> Finding:
    (entry,) = (claim for claim in claims_of(PAPER) if claim.key == key)
    return entry.judge({name: given[name] for name in entry.experiments})


@pytest.mark.parametrize(("key", "given", "verdict"), CASES, ids=[f"{key}-{n}" for n, (key, _, _) in enumerate(CASES)])
def test_claims(key: str, given: dict[str, Frame], verdict: str) -> None:
    assert found(key, given).verdict == verdict


def test_the_bound_counts_where_it_is_small() -> None:
    """Of 2 and 3 users it is more than a quarter of that of two."""
    assert found("L2", areas({1: 0.4, 2: 0.4, 3: 0.4, 10: 0.7})).verdict == "reproduced"
    assert found("L2", areas({1: 0.9, 2: 0.9, 3: 0.9})).verdict == "not run"


def test_seeds_are_samples_of_their_own() -> None:
    """Each draws its own records, so that seeds which agree to the last digit are no fewer; no note says otherwise."""
    tables = areas(FALLS)
    frame = tables[MEMBERSHIP]
    tables[MEMBERSHIP] = pd.concat([frame[frame["seed"] == 0].assign(seed=seed) for seed in range(12)])
    for key in ("L1b", "L2", "L3", "L4a", "L5"):
        finding = found(key, tables)
        assert (finding.verdict, finding.seeds) == ("reproduced", 12), key
        assert "12 seeds" in finding.note and "same for all seeds" not in finding.note


def test_numbers_of_users_are_averaged_by_themselves() -> None:
    evidence = Evidence(inversion({1: 40.0, 2: 30.0, 8: 12.0}))
    found = claims.by_users(evidence, INVERSION, "assigned_psnr", "none", "dlg")
    assert found.points == (1.0, 2.0, 8.0)
    means: list[float] = found.values.mean(axis=(1, 2)).tolist()
    assert found.values.size == 3 * 12 and means == pytest.approx([40, 30, 12])
    with pytest.raises(NotRun):
        claims.by_users(evidence, INVERSION, "ssim", "none", "dlg")


def test_claims_run_on_what_the_smoke_scale_holds(tables: dict[str, Frame]) -> None:
    for key in ("L1a", "L2", "L3", "L4b"):
        assert found(key, tables).verdict != "not run"
