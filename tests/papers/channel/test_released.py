"""Figures of released models: what is drawn follows from the tables, by hand."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.papers.drawn import interval
from tests.report.synthetic import ROOT, tidy_tables

from leakbench.papers.channel.balance import hypervolume, improvements, pareto
from leakbench.papers.channel.released import MIA, PAPERS_ATTACK, SHOWN, judged_by_strongest, strongest_membership
from leakbench.planning.project import Project
from leakbench.report.artifacts import Tables, artifact_of
from leakbench.report.gate_verdicts import VOID_MODEL
from leakbench.report.plots import Drawing

SWEEPS = {f"fig{number:02d}": (experiment, measure, parameter) for number, experiment, measure, parameter in SHOWN}


@pytest.fixture(scope="module")
def whole() -> dict[str, pd.DataFrame]:
    """Tables of the smoke scale, and of a second data set."""
    plan = Project(ROOT, {"papers": ["channel"]}).plan("smoke")
    found = {name: frame[frame["kind"] == "release"] for name, frame in tidy_tables(plan, "channel").items()}
    return {
        name: pd.concat([frame, frame.assign(dataset="other", value=frame["value"] * 0.9)], ignore_index=True)
        for name, frame in found.items()
        if len(frame)
    }


@pytest.fixture
def tables(whole: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {name: frame.copy() for name, frame in whole.items()}


def draw(name: str, tables: Tables) -> Drawing:
    entry = artifact_of(f"figures/smoke/channel/{name}.csv")
    drawing = entry.make({experiment: tables[experiment] for experiment in entry.experiments})
    assert isinstance(drawing, Drawing)
    drawing.figure.canvas.draw()
    return drawing


def seeds(frame: pd.DataFrame, **equal: object) -> list[float]:
    for column, value in equal.items():
        frame = frame[frame[column.replace("__", ".")] == value]
    return frame.sort_values("seed")["value"].tolist()


@pytest.mark.parametrize("name", SWEEPS)
def test_a_metric_against_a_parameter(tables: dict[str, pd.DataFrame], name: str) -> None:
    experiment, measure, parameter = SWEEPS[name]
    drawing, frame = draw(name, tables), tables[experiment]
    strongest = strongest_membership(tables["undefended_release"])
    if measure is MIA:
        assert drawing.numbers["metric"].nunique() == 3  # all attacks are in the CSV
    assert [ax.get_title() for ax in drawing.figure.axes] == ["digits16", "other"]
    for ax, dataset in zip(drawing.figure.axes, ["digits16", "other"], strict=True):
        every = {str(line.get_label()): line for line in ax.lines if not str(line.get_label()).startswith("_")}
        lines = {label: line for label, line in every.items() if "the paper's attack" not in label}
        assert list(lines) == list(frame["model"].unique())
        beside = [model for model in lines if measure is MIA and strongest[dataset, model] != PAPERS_ATTACK]
        assert set(every) - set(lines) == {f"{model}, the paper's attack" for model in beside}
        for model, line in lines.items():
            numbers = drawing.numbers[drawing.numbers["drawn"]]
            numbers = numbers[(numbers["dataset"] == dataset) & (numbers["model"] == model)]
            metric = strongest[dataset, model] if measure is MIA else measure.metric
            assert set(numbers["metric"]) == {metric} | ({PAPERS_ATTACK} if measure is MIA else set())
            numbers = numbers[numbers["metric"] == metric]
            own = numbers[numbers["series"] == experiment]
            assert np.asarray(line.get_xdata()).tolist() == own[parameter].tolist() == sorted(own[parameter])
            assert np.asarray(line.get_ydata()).tolist() == own["mean"].tolist()
            cell = {"dataset": dataset, "model": model, "metric": metric}
            for row in own.to_dict("records"):
                expected = interval(seeds(frame, **cell, **{f"setting__{parameter}": row[parameter]}))
                assert (row["mean"], row["low"], row["high"]) == pytest.approx(expected)
            (reference,) = numbers[numbers["series"] == "no defense"].to_dict("records")
            assert reference["mean"] == pytest.approx(interval(seeds(tables["undefended_release"], **cell))[0])
            flat = [np.asarray(other.get_ydata()) for other in ax.lines if other.get_linestyle() == ":"]
            assert any((values == reference["mean"]).all() for values in flat)


def test_the_strongest_attack_is_that_of_the_undefended_runs() -> None:
    def rows(model: str, metric: str, *values: float) -> pd.DataFrame:
        return pd.DataFrame({"dataset": "digits", "model": model, "metric": metric, "value": values})

    weaker, stronger, ignored = ("auc/a", 0.6, 0.9), ("auc/b", 0.8, 0.8), ("auc/b_noisy", 1.0, 1.0)
    first = [rows("first", *weaker), rows("first", *stronger), rows("first", *ignored), rows("first", "accuracy", 2)]
    frame = pd.concat(
        [*first, rows("second", "auc/b", 0.5), rows("second", "auc/a", 0.5), rows("third", "auc/a", np.nan)]
    )
    assert strongest_membership(frame) == {("digits", "first"): "auc/b", ("digits", "second"): "auc/a"}
    judged = judged_by_strongest(frame, frame)
    assert judged["metric"].tolist() == [
        *["auc/a"] * 2,
        *["mia"] * 2,
        *["auc/b_noisy"] * 2,
        "accuracy",
        "auc/b",
        "mia",
        "auc/a",
    ]


def test_improvements_are_those_of_pairs(tables: dict[str, pd.DataFrame]) -> None:
    runs = improvements({name: tables[name] for name in ("undefended_release", "natural")})
    assert len(runs) == tables["natural"]["metric"].eq("accuracy").sum()
    row = runs.iloc[3]
    cell = {"dataset": row["dataset"], "model": row["model"], "seed": row["seed"]}
    own = cell | {"setting__kappa": row["setting.kappa"]}
    auc = strongest_membership(tables["undefended_release"])[row["dataset"], row["model"]]
    ((auc_0,), (mse_0,)) = (seeds(tables["undefended_release"], **cell, metric=m) for m in (auc, "inversion_mse"))
    ((auc_1,), (mse_1,)) = (seeds(tables["natural"], **own, metric=m) for m in (auc, "inversion_mse"))
    mia, dra = (auc_0 - auc_1) / auc_0, 1 - mse_0 / mse_1
    assert (row["imp_mia"], row["imp_dra"], row["gdc"]) == pytest.approx((mia, dra, (mia + dra) / 2))


def test_accuracy_against_capability(tables: dict[str, pd.DataFrame]) -> None:
    numbers = draw("fig15", tables).numbers
    assert set(numbers["series"]) == {"Natural", "White", "Personalized", "DP-SGD", "DP-PSAC"}
    assert set(numbers["model"]) == {"lenet5"}  # DP has no other
    for _, cell in numbers.groupby(["dataset", "model"]):
        points = cell[["gdc", "accuracy"]].to_numpy()
        dominated = [any((other >= own).all() and (other > own).any() for other in points) for own in points]
        assert cell["on_front"].tolist() == [not each for each in dominated]
        for _, own in cell.groupby("series"):
            assert own["hypervolume"].nunique() == 1 and own["hypervolume"].iloc[0] >= 0
    assert "imp_mia_low" in draw("fig16", tables).numbers


def test_lost_runs_are_counted_and_do_not_spoil_the_others(tables: dict[str, pd.DataFrame]) -> None:
    frame = tables["natural"]
    lost = (frame["seed"] == 0) & (frame["setting.kappa"] == 10) & (frame["dataset"] == "other")
    frame.loc[lost, "value"] = math.nan
    numbers = draw("fig15", tables).numbers
    row = numbers[(numbers["dataset"] == "other") & (numbers["series"] == "Natural") & (numbers["strength"] == 10)]
    assert row["seeds"].tolist() == [2] and row["lost"].tolist() == [2]
    assert draw("fig09", tables).numbers["lost"].sum() > 0


@pytest.mark.parametrize("name", ["fig11", "fig24"])
def test_exchanges(tables: dict[str, pd.DataFrame], name: str) -> None:
    experiment, parameter = {"fig11": ("natural", "kappa"), "fig24": ("steps", "steps")}[name]
    numbers = draw(name, tables).numbers
    for row in numbers[numbers["series"] == experiment].to_dict("records"):
        cell = {"dataset": row["dataset"], "model": row["model"], f"setting__{parameter}": row[parameter]}
        for column, metric in {"accuracy": "accuracy", "mse": "inversion_mse", "auc": row["attack"]}.items():
            expected = interval(seeds(tables[experiment], **cell, metric=metric))
            found = (row[column], row[f"{column}_low"], row[f"{column}_high"])
            assert found == pytest.approx(expected)
    assert {"no defense", experiment} == set(numbers["series"])


@pytest.mark.parametrize("name", ["fig09", "fig11", "fig15"])
def test_models_near_chance_are_marked(tables: dict[str, pd.DataFrame], name: str) -> None:
    assert not draw(name, tables).shows_void
    marked = draw(name, {key: frame.assign(void=frame["dataset"] == "other") for key, frame in tables.items()})
    assert marked.shows_void and set(marked.numbers.loc[marked.numbers["void"], "dataset"]) == {"other"}
    legend = marked.figure.axes[-1].get_legend()
    assert legend is not None and any(VOID_MODEL in text.get_text() for text in legend.get_texts())
    plt.close("all")


@pytest.mark.parametrize("name", ["fig09", "fig11", "fig15"])
def test_one_seed_is_enough_to_draw(tables: dict[str, pd.DataFrame], name: str) -> None:
    assert len(draw(name, {key: frame[frame["seed"] == 0] for key, frame in tables.items()}).numbers)
    plt.close("all")


POINTS = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12)


@given(POINTS)
def test_hypervolume_counts_the_dominated_squares(points: list[tuple[int, int]]) -> None:
    squares = {(i, j) for x, y in points for i in range(x) for j in range(y)}
    assert hypervolume(np.array(points, dtype=float), np.zeros(2)) == len(squares)


@given(POINTS)
def test_the_front_dominates_as_much_as_all_points(points: list[tuple[int, int]]) -> None:
    every = np.array(points, dtype=float)
    front = every[pareto(every)]
    assert len(front) and hypervolume(front, np.zeros(2)) == hypervolume(every, np.zeros(2))
