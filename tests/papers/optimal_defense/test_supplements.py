"""Supplements S1 to S4 and Tables S1 and S2: the numbers are those of the tidy tables, computed by another hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from tests.papers.drawn import Tables, clouds, draw, interval, make, per_seed, series

from leakbench.report.tidy import setting_columns

U2 = {"clipped noise": "dpsgd-u2", "optimal noise": "optimal-u2"}
BUDGETS = [1e-4, 1e-3, 1e-2]
ADAPTIVE = ", adaptive attack"


def drawn_pairs(numbers: pd.DataFrame, label: str) -> list[tuple[float, float]]:
    return list(series(numbers, label)[["x", "y"]].itertuples(index=False, name=None))


def test_equal_utility(tables: Tables) -> None:
    drawing, frame = draw("figS1", tables), tables["equal_utility"]
    above, below = drawing.figure.axes
    assert above.get_xscale() == above.get_yscale() == "log" and "variance" in above.get_xlabel()
    lines = {str(line.get_label()): line for line in above.lines}
    errors = drawing.numbers[drawing.numbers["panel"] == "error and information"]
    assert set(lines) == set(errors["series"])
    looks = {(str(line.get_color()), str(line.get_linestyle()), str(line.get_marker())) for line in lines.values()}
    assert len(looks) == len(lines)
    for label, defense in U2.items():
        for attack, words in {"ig": "", "ig-adaptive": ADAPTIVE}.items():
            rows = series(errors, label + words)
            assert rows["scale"].tolist() == BUDGETS
            for row in rows.to_dict("records"):
                where = {"metric": "mse_input", "attack": attack, "defense": defense, "setting.scale": row["scale"]}
                assert (row["mean"], row["low"], row["high"]) == pytest.approx(interval(per_seed(frame, **where)))
        for formula, information in {"1 / (1 + information)": 1.0, "1 / information": 0.0}.items():
            rows = series(errors, f"{formula}: {label}")
            for row in rows.to_dict("records"):
                where = {"metric": "information", "defense": defense, "setting.scale": row["scale"]}
                expected = interval([1 / (mean + information) for mean in per_seed(frame, **where)])
                assert (row["mean"], row["low"], row["high"]) == pytest.approx(expected)

    trades = drawing.numbers[drawing.numbers["panel"] == "trade-off"]
    assert set(clouds(below)) == {"no defense", *U2}
    chosen = set()
    for label, defense in U2.items():
        for (x, y), budget in zip(drawn_pairs(trades, label), BUDGETS, strict=True):
            where = {"defense": defense, "setting.scale": budget}
            means = {
                attack: float(np.mean(per_seed(frame, metric="mse_input", attack=attack, **where)))
                for attack in ("ig", "ig-adaptive")
            }
            chosen.add(min(means, key=lambda attack: means[attack]))
            assert x == pytest.approx(min(means.values()))
            assert y == pytest.approx(np.mean(per_seed(frame, metric="final_loss", **where)))
    assert chosen == {"ig", "ig-adaptive"}  # or the test would not see which is taken


def test_little_information_does_not_stretch_the_axis(tables: Tables) -> None:
    frame = tables["equal_utility"]
    frame.loc[frame["metric"] == "information", "value"] = 1e-9
    above = draw("figS1", tables).figure.axes[0]
    assert above.get_ylim()[1] < 100  # its reciprocal is 1e9


def test_trade_offs_with_adaptive_attackers(tables: Tables) -> None:
    drawing = draw("figS2", tables)
    for ax, panel, defenses, parameter in (
        (drawing.figure.axes[0], "pruning", {"gradient pruning": "gp", "optimal pruning": "op"}, "fraction"),
        (drawing.figure.axes[1], "noise", {"clipped noise": "dpsgd", "optimal noise": "optimal"}, "scale"),
    ):
        assert ax.get_title() == panel
        numbers = drawing.numbers[drawing.numbers["panel"] == panel]
        points = clouds(ax)
        assert set(points) == {"no defense", *defenses, *(name + ADAPTIVE for name in defenses)}
        for label, defense in defenses.items():
            for words, experiment, attack in (("", panel, "ig"), (ADAPTIVE, "adaptive", "ig-adaptive")):
                rows = series(numbers, label + words)
                assert len(rows) == 4
                for row in rows.to_dict("records"):
                    where = {"defense": defense, f"setting.{parameter}": row[parameter]}
                    errors = per_seed(tables[experiment], metric="mse_input", attack=attack, **where)
                    losses = interval(per_seed(tables[panel], metric="final_loss", **where))
                    assert (row["x"], row["x_low"], row["x_high"]) == pytest.approx(interval(errors))
                    assert (row["y"], row["y_low"], row["y_high"]) == pytest.approx(losses)
            shapes = [points[name].get_paths()[0].vertices for name in (label, label + ADAPTIVE)]
            assert np.shape(shapes[0]) != np.shape(shapes[1]) or not np.allclose(shapes[0], shapes[1])


def test_information_against_utility(tables: Tables) -> None:
    drawing, cifar = draw("figS3", tables), tables["cifar_predictors"]
    titles = ["digits16", "photos16, BatchNorm: eval", "photos16, BatchNorm: train"]
    assert [ax.get_title() for ax in drawing.figure.axes] == titles
    labels = {"gradient pruning": "gp", "optimal pruning": "op"}
    for title, ax in zip(titles, drawing.figure.axes, strict=True):
        for name, short in labels.items():
            rows = series(drawing.numbers, name, panel=title)
            offsets = np.asarray(clouds(ax)[name].get_offsets())
            assert offsets.tolist() == rows[["x", "y"]].to_numpy().tolist()
            here = {"digits16": [0.5, 0.8, 0.9, 0.95]}.get(title, [0.8, 0.9] if short == "gp" else [0.7, 0.8])
            assert rows["fraction"].tolist() == here
            for row in rows.to_dict("records"):
                if title == "digits16":
                    frame, where = tables["information"], {"defense": short, "setting.fraction": row["fraction"]}
                else:
                    frame = cifar[cifar["setting.batch_norm"] == title.split()[-1]]
                    where = {"defense": f"{short}-{round(100 * row['fraction'])}"}
                x = interval(per_seed(frame, metric="u1_kept", **where))
                y = interval(per_seed(frame, metric="information_kept", **where))
                found = tuple(row[key] for key in ("x", "x_low", "x_high", "y", "y_low", "y_high"))
                assert found == pytest.approx(x + y)
        written = sorted(text.get_text() for text in ax.texts)
        assert written == sorted(f"{part:.0%}" for part in drawing.numbers.query("panel == @title")["fraction"])


def test_predictors_without_a_swept_batch_norm(tables: Tables) -> None:
    cifar = tables["cifar_predictors"]
    single = cifar[cifar["setting.batch_norm"] == "eval"].drop(columns="setting.batch_norm")
    drawing = draw("figS3", tables | {"cifar_predictors": single})
    assert [ax.get_title() for ax in drawing.figure.axes] == ["digits16", "photos16"]


def test_plain_gradient_descent(tables: Tables) -> None:
    numbers = draw("figS4", tables).numbers
    for panel, parameter, labels in (
        ("pruning", "fraction", {"gradient pruning": "gp", "optimal pruning": "op"}),
        ("noise", "scale", {"clipped noise": "dpsgd", "optimal noise": "optimal"}),
    ):
        for label, defense in labels.items():
            rows = series(numbers, label, panel=panel)
            assert len(rows) == 4
            for row in rows.to_dict("records"):
                where = {"defense": defense, f"setting.{parameter}": row[parameter]}
                errors = per_seed(tables[panel], metric="mse_input", attack="ig", **where)
                losses = per_seed(tables["sgd"], metric="final_loss", **where)
                assert (row["x"], row["y"]) == pytest.approx((interval(errors)[0], interval(losses)[0]))
        (row,) = series(numbers, "no defense", panel=panel).to_dict("records")
        assert row["y"] == pytest.approx(np.mean(per_seed(tables["sgd"], metric="final_loss", defense="none")))


def test_table_of_readings(tables: Tables) -> None:
    frame = tables["readings"]
    frame.loc[frame["mechanism"].str.contains("pruning") & (frame["metric"] == "information"), "value"] = np.nan
    table = make("tableS1", tables)
    rows = {(row["defense"], row["reading"]): row for row in table.to_dict("records")}
    assert len(rows) == len(table) == 1 + 4 + 5 + 1 + 4 + 5
    for (defense, reading), label, where in (
        (("gradient pruning 80 %", "–"), "gp-80", {}),
        (
            ("optimal pruning 80 %", "form as_printed, per tensor"),
            "op-80-readings",
            {"setting.form": "as_printed", "setting.per": "tensor"},
        ),
        (("optimal noise", "probes 50"), "optimal-probes", {"setting.probes": 50}),
    ):
        row = rows[defense, reading]
        for column, metric in {"U1 kept": "u1_kept", "loss after 5 steps (nats)": "final_loss"}.items():
            mean, low, _ = interval(per_seed(frame, defense=label, metric=metric, **where))
            assert row[column] == f"{mean:.3g} ± {mean - low:.2g}"
        infinite = "pruning" in defense
        assert (row["information per input"] == "–") == infinite


def test_table_of_everything(tables: Tables) -> None:
    table = make("tableS2", tables)
    assert list(table.columns[:2]) == ["defense", "setting"] and len(table.columns) == 11 and len(table) == 16
    for defense, setting, label, where in (
        ("optimal pruning", "fraction 0.95", "op", {"setting.fraction": 0.95}),
        ("clipped noise (the paper's DP-SGD)", "scale 0.001", "dpsgd", {"setting.scale": 0.001}),
    ):
        (row,) = table[(table["defense"] == defense) & (table["setting"] == setting)].to_dict("records")
        frame = tables["information"]
        for column, metric in {"U2": "u2", "part capped": "capped", "information per input": "information"}.items():
            mean = np.mean(per_seed(frame, defense=label, metric=metric, **where))
            assert row[column] == ("–" if math.isnan(mean) else f"{mean:.3g}")


def test_tables_without_sweeps(tables: Tables) -> None:
    frame = tables["readings"]
    single = frame[frame["defense"] == "gp-80"].drop(columns=setting_columns(frame))
    (row,) = make("tableS1", tables | {"readings": single}).to_dict("records")
    assert (row["defense"], row["reading"]) == ("gradient pruning 80 %", "–")
