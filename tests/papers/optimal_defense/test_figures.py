"""Figures 2 to 7: what is drawn is what the numbers beside it say, and what the tidy tables hold."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from tests.papers.drawn import Tables, clouds, draw, interval, per_seed, series

from leakbench.report.style import COLOURS, REFERENCE_COLOUR

SWEEPS = {"fig02": "fraction", "fig05": "scale"}
CURVES = {"fig03": "pruning_training", "fig06": "noise_training"}
TRADES = {"fig04": "fraction", "fig07": "scale"}
REFERENCES = {"mean image": "mean_image", "constant grey": "grey", "random noise": "noise"}
LINES = ["no defense", *REFERENCES]
MECHANISMS = {
    "no defense": "none",
    "gradient pruning": "magnitude_pruning",
    "gradient pruning 80 %": "magnitude_pruning",
    "gradient pruning 90 %": "magnitude_pruning",
    "optimal pruning": "optimal_pruning",
    "optimal pruning 80 %": "optimal_pruning",
    "clipped noise (the paper's DP-SGD)": "clipped_noise",
    "clipped noise (the paper's DP-SGD) 0.1": "clipped_noise",
    "optimal noise": "optimal_clipped_noise",
    "optimal noise 0.1": "optimal_clipped_noise",
}
LABELS = {
    "gradient pruning": "gp",
    "optimal pruning": "op",
    "clipped noise (the paper's DP-SGD)": "dpsgd",
    "optimal noise": "optimal",
}


@pytest.mark.parametrize("name", SWEEPS)
def test_errors_against_a_parameter(tables: Tables, name: str) -> None:
    drawing, parameter = draw(name, tables), SWEEPS[name]
    defended = pd.concat([tables["pruning"], tables["noise"]])
    assert [ax.get_ylabel() for ax in drawing.figure.axes] == ["MSE (normalised inputs)", "PSNR (dB, pixels in [0, 1])"]
    for ax, metric in zip(drawing.figure.axes, ["mse_input", "psnr"], strict=True):
        lines = {str(line.get_label()): line for line in ax.lines}
        assert set(lines) == {*LINES, *drawing.numbers["series"]} and ax.get_xlabel()
        for label, line in lines.items():
            numbers = series(drawing.numbers, label, metric=metric)
            drawn = np.asarray(line.get_ydata(), dtype=float)
            if label in LINES:
                attack = REFERENCES.get(label, "ig")
                seeds = per_seed(tables["undefended"], metric=metric, attack=attack)
                assert set(drawn) == set(numbers["mean"]) and numbers[parameter].isna().all()
                expected = [interval(seeds)]
            else:
                assert drawn.tolist() == numbers["mean"].tolist()
                assert (
                    np.asarray(line.get_xdata()).tolist() == numbers[parameter].tolist() == sorted(numbers[parameter])
                )
                where = {"metric": metric, "defense": LABELS[label], "attack": "ig"}
                expected = [
                    interval(per_seed(defended, **where, **{f"setting.{parameter}": value}))
                    for value in numbers[parameter]
                ]
            assert numbers[["mean", "low", "high"]].to_numpy() == pytest.approx(np.array(expected))
            assert set(numbers["seeds"]) == {6} and set(numbers["lost"]) == {0}
    assert drawing.figure.axes[0].get_xscale() == ("log" if name == "fig05" else "linear")


@pytest.mark.parametrize("name", CURVES)
def test_training_curves(tables: Tables, name: str) -> None:
    drawing = draw(name, tables)
    (ax,) = drawing.figure.axes
    assert ax.get_xlabel() == "server step" and "nats" in ax.get_ylabel()
    frame = tables[CURVES[name]]
    labels = [str(line.get_label()) for line in ax.lines]
    assert len(labels) == frame["defense"].nunique() and set(labels) == set(drawing.numbers["series"])
    for line in ax.lines:
        numbers = series(drawing.numbers, str(line.get_label()))
        assert np.asarray(line.get_ydata()).tolist() == numbers["mean"].tolist()
        assert np.asarray(line.get_xdata()).tolist() == numbers["step"].tolist() == [*range(1, 21)]
    undefended = series(drawing.numbers, "no defense")["mean"].tolist()
    curves = frame[(frame["metric"] == "loss_curve") & (frame["defense"] == "none")]
    losses = curves.pivot_table(index="index", columns="seed", values="value").to_numpy()
    for step in (0, 3, 7, 8, 19):  # trailing means over eight steps
        assert undefended[step] == pytest.approx(losses[max(0, step - 7) : step + 1].mean())
    assert len({(line.get_color(), line.get_linestyle()) for line in ax.lines}) == len(ax.lines)


def test_a_diverged_run_ends_where_it_diverged(tables: Tables) -> None:
    frame = tables["noise_training"]
    lost = (frame["metric"] == "loss_curve") & (frame["defense"] == "optimal-0.1") & (frame["index"] >= 5)
    frame.loc[lost & (frame["seed"] == 0), "value"] = math.nan
    numbers = series(draw("fig06", tables).numbers, "optimal noise 0.1")
    assert numbers["seeds"].tolist() == [3] * 5 + [2] * 15
    assert numbers["lost"].tolist() == [0] * 5 + [1] * 15

    frame.loc[lost, "value"] = math.nan
    numbers = series(draw("fig06", tables).numbers, "optimal noise 0.1")
    assert numbers["mean"].isna().tolist() == [False] * 5 + [True] * 15


@pytest.mark.parametrize("name", TRADES)
def test_trade_offs(tables: Tables, name: str) -> None:
    drawing, parameter = draw(name, tables), TRADES[name]
    (ax,) = drawing.figure.axes
    assert ax.get_xlabel() == "MSE (normalised inputs)" and ax.get_ylabel() == "training loss after 5 steps (nats)"
    points = clouds(ax)
    defended = {name for name in MECHANISMS if name in set(drawing.numbers["series"])}
    assert set(points) == defended and "no defense" in defended
    for label, cloud in points.items():
        numbers = series(drawing.numbers, label)
        assert np.asarray(cloud.get_offsets()).tolist() == numbers[["x", "y"]].to_numpy().tolist()
        areas = np.asarray(cloud.get_sizes())
        assert len(numbers) == (1 if label == "no defense" else 4)
        assert (np.diff(areas) > 0).all() and (np.diff(numbers[parameter].dropna()) > 0).all()
    verticals = {str(line.get_label()): line for line in ax.lines if line.get_label() in LINES}
    for label in REFERENCES:
        (row,) = series(drawing.numbers, label).to_dict("records")
        assert set(np.asarray(verticals[label].get_xdata(), dtype=float)) == {row["x"]}
    attack = {"attack": "mean_image", "metric": "mse_input"}
    (row,) = series(drawing.numbers, "mean image").to_dict("records")
    assert (row["x"], row["x_low"], row["x_high"]) == pytest.approx(interval(per_seed(tables["undefended"], **attack)))


def test_trade_offs_count_what_diverged(tables: Tables) -> None:
    """One of three trainings is lost in the strongest setting: the others stand for it, and the numbers say so."""
    numbers = draw("fig07", tables).numbers
    rows = series(numbers, "clipped noise (the paper's DP-SGD)").to_dict("records")
    assert [(row["scale"], row["x_lost"], row["y_lost"]) for row in rows] == [
        (0.001, 0, 0),
        (0.005, 0, 0),
        (0.02, 0, 0),
        (0.1, 0, 1),
    ]
    where = {"metric": "final_loss", "defense": "dpsgd", "setting.scale": 0.1}
    found = [rows[-1][key] for key in ("y", "y_low", "y_high")]
    assert found == pytest.approx(interval(per_seed(tables["noise"], **where)))


def test_a_mechanism_has_one_colour_in_all_figures(tables: Tables) -> None:
    for name in (*SWEEPS, *CURVES, *TRADES):
        for ax in draw(name, tables).figure.axes:
            found = {str(line.get_label()): to_hex(line.get_color()) for line in ax.lines}
            for cloud in ax.collections:
                if isinstance(cloud, PathCollection):
                    found[str(cloud.get_label())] = to_hex(np.asarray(cloud.get_facecolor())[0])
            for label, mechanism in MECHANISMS.items():
                assert found.get(label, COLOURS[mechanism].lower()) == COLOURS[mechanism].lower(), (name, label)
            for label in REFERENCES.keys() & set(found):
                assert found[label] == REFERENCE_COLOUR


@pytest.mark.parametrize("name", [*SWEEPS, *CURVES, *TRADES])
def test_one_seed_is_enough_to_draw(tables: Tables, name: str) -> None:
    first = {experiment: frame[frame["seed"] == 0] for experiment, frame in tables.items()}
    numbers = draw(name, first).numbers
    low, high = ("x_low", "x_high") if name in TRADES else ("low", "high")
    assert numbers[low].tolist() == numbers[high].tolist()


@pytest.mark.parametrize(
    ("name", "experiment", "old"),
    [("fig02", "pruning", "op"), ("fig03", "pruning_training", "op-80"), ("fig04", "pruning", "op")],
)
def test_defenses_can_be_added_and_removed(tables: Tables, name: str, experiment: str, old: str) -> None:
    frame = tables[experiment]
    mine = frame[frame["defense"] == old].assign(defense="mine", mechanism="my_mechanism")
    added = draw(name, tables | {experiment: pd.concat([frame, mine])})
    assert "mine" in set(added.numbers["series"])
    removed = draw(name, tables | {experiment: frame[frame["defense"] != old]})
    shown = [label for label in draw(name, tables).numbers["series"].unique() if "optimal" not in label]
    assert removed.numbers["series"].unique().tolist() == shown
