"""Figures 9, 11, 12 and 13: what is drawn is what the numbers beside it say, and what the tidy tables hold."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from tests.papers.drawn import Tables, clouds, draw, interval, per_seed, series

from leakbench.report.style import COLOURS

LABELS = {
    "gradient pruning": "gp-cifar",
    "optimal pruning": "op-cifar",
    "clipped noise (the paper's DP-SGD)": "dpsgd-cifar",
    "optimal noise": "optimal-cifar",
}
REFERENCES = {"mean image": "mean_image", "constant grey": "grey", "random noise": "noise"}
TRADES = {
    "fig09": ("cifar_pruning", "fraction", [0.5, 0.7, 0.8, 0.9, 0.95]),
    "fig11": ("cifar_noise", "scale", [1e-4, 1e-3]),
}


@pytest.mark.parametrize("name", TRADES)
def test_trade_offs(tables: Tables, name: str) -> None:
    experiment, parameter, values = TRADES[name]
    frame, drawing = tables[experiment], draw(name, tables)
    (ax,) = drawing.figure.axes
    points = clouds(ax)
    shown = [label for label in LABELS if LABELS[label] in set(frame["defense"])]
    assert set(points) == {"no defense", *shown} and len(shown) == 2
    for label in shown:
        rows = series(drawing.numbers, label)
        assert rows[parameter].tolist() == values
        assert np.asarray(points[label].get_offsets()).tolist() == rows[["x", "y"]].to_numpy().tolist()
        for row in rows.to_dict("records"):
            where = {"defense": LABELS[label], f"setting.{parameter}": row[parameter]}
            x = interval(per_seed(frame, metric="mse_input", attack="ig-cifar", **where))
            y = interval(per_seed(frame, metric="final_loss", **where))
            assert (row["x"], row["x_low"], row["x_high"], row["y"], row["y_low"], row["y_high"]) == pytest.approx(
                x + y
            )
    (row,) = series(drawing.numbers, "no defense").to_dict("records")
    undefended = {"defense": "none", "metric": "mse_input", "attack": "ig-cifar"}
    assert (row["x"], row["x_low"], row["x_high"]) == pytest.approx(interval(per_seed(frame, **undefended)))
    for label, attack in REFERENCES.items():
        (row,) = series(drawing.numbers, label).to_dict("records")
        expected = per_seed(tables["cifar_references"], metric="mse_input", attack=attack)
        assert row["x"] == pytest.approx(np.mean(expected))


@pytest.mark.parametrize(
    ("name", "metrics", "attack"), [("fig12", ["final_loss"], None), ("fig13", ["mse_input", "psnr"], "ig-cifar")]
)
def test_against_the_noise_scale(tables: Tables, name: str, metrics: list[str], attack: str | None) -> None:
    drawing, frame = draw(name, tables), tables["cifar_noise"]
    of_attack = {} if attack is None else {"attack": attack}
    for ax, metric in zip(drawing.figure.axes, metrics, strict=True):
        assert ax.get_xscale() == "log" and ax.get_xlabel() == "noise scale (RMS std)" and ax.get_ylabel()
        lines = {str(line.get_label()): line for line in ax.lines}
        assert set(lines) == {"no defense", *list(LABELS)[2:], *(REFERENCES if attack else ())}
        for label in list(LABELS)[2:]:
            rows = series(drawing.numbers, label, metric=metric)
            assert rows["scale"].tolist() == np.asarray(lines[label].get_xdata()).tolist() == [1e-4, 1e-3, 1e-2, 0.1]
            assert np.asarray(lines[label].get_ydata()).tolist() == rows["mean"].tolist()
            for row in rows.to_dict("records"):
                where = {"metric": metric, "defense": LABELS[label], "setting.scale": row["scale"], **of_attack}
                assert (row["mean"], row["low"], row["high"]) == pytest.approx(interval(per_seed(frame, **where)))
        (row,) = series(drawing.numbers, "no defense", metric=metric).to_dict("records")
        where = {"metric": metric, "defense": "none", **of_attack}
        assert (row["mean"], row["low"], row["high"]) == pytest.approx(interval(per_seed(frame, **where)))


def test_void_attacks_are_hollow_and_say_so(tables: Tables) -> None:
    frame = tables["cifar_noise"]
    frame["void"] = frame["attack"] == "ig-cifar"
    name = "optimal noise\n(void: attack too weak)"
    swept = draw("fig13", tables)
    for ax in swept.figure.axes:
        (line,) = [line for line in ax.lines if line.get_label() == name]
        assert line.get_linestyle() == "--" and line.get_markerfacecolor() == "none"
    traded = draw("fig11", tables)
    cloud = clouds(traded.figure.axes[0])[name]
    assert len(cloud.get_facecolor()) == 0
    assert to_rgba(COLOURS["optimal_clipped_noise"]) == tuple(np.asarray(cloud.get_edgecolor())[0])
    assert swept.shows_void and traded.shows_void
    assert not draw("fig12", tables).shows_void  # training has no attack to be too weak


@pytest.mark.parametrize("name", ["fig11", "fig12", "fig13"])
def test_a_scale_that_nothing_sweeps(tables: Tables, name: str) -> None:
    frame = tables["cifar_noise"]
    single = frame[frame["setting.scale"].isna() | (frame["setting.scale"] == 1e-3)].drop(columns="setting.scale")
    numbers = draw(name, tables | {"cifar_noise": single}).numbers
    assert "no defense" in set(numbers["series"])
    assert ("optimal noise" in set(numbers["series"])) == (name == "fig11")  # a point, but no line
