"""Supplements S1 to S6 and Tables S1 to S5: the numbers are those of the tidy tables, computed by another hand."""

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
MSE = "assigned_mse_input"


def drawn_pairs(numbers: pd.DataFrame, label: str) -> list[tuple[float, float]]:
    return list(series(numbers, label)[["x", "y"]].itertuples(index=False, name=None))


def test_equal_utility(tables: Tables) -> None:
    drawing, frame = draw("figS1", tables), tables["equal_utility"]
    above, below = drawing.figure.axes
    assert above.get_xscale() == above.get_yscale() == "log" and "variance" in above.get_xlabel()
    lines = {str(line.get_label()): line for line in above.lines}
    errors = drawing.numbers[drawing.numbers["panel"] == "error and bound"]
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
        rows = series(errors, f"bound: {label}")
        assert rows["scale"].tolist() == BUDGETS
        for row in rows.to_dict("records"):
            where = {"metric": "bound", "defense": defense, "setting.scale": row["scale"]}
            assert (row["mean"], row["low"], row["high"]) == pytest.approx(interval(per_seed(frame, **where)))

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
    assert len(rows) == len(table) == 2 + 1 + 4 + 1 + 1 + 4 + 1 + 1 + 1
    for (defense, reading), label, where in (
        (("gradient pruning 80 %", "–"), "gp-80", {}),
        (
            ("optimal pruning 80 %", "form as_released, per tensor"),
            "op-80-readings",
            {"setting.form": "as_released", "setting.per": "tensor"},
        ),
        (("optimal pruning 80 %", "probes 1"), "op-80-probes", {"setting.probes": 1}),
    ):
        row = rows[defense, reading]
        for column, metric in {"U1 kept": "u1_kept", "loss after 5 steps (nats)": "final_loss"}.items():
            mean, low, _ = interval(per_seed(frame, defense=label, metric=metric, **where))
            assert row[column] == f"{mean:.3g} ± {mean - low:.2g}"
        errors = interval(per_seed(frame, defense=label, metric="assigned_mse_input", attack="ig", **where))
        assert row["MSE, images assigned"] == f"{errors[0]:.3g} ± {errors[0] - errors[1]:.2g}"
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


def test_table_of_cifar_readings(tables: Tables) -> None:
    frame = tables["cifar_readings"]
    table = make("tableS4", tables)
    assert len(table) == 2 * (1 + 1 + 1) and set(table["network"]) == {"small_convnet-relu"}
    (row,) = table[table["setting"] == "batch_norm train, form as_released"].to_dict("records")
    where = {"defense": "op-80-forms", "setting.batch_norm": "train", "setting.form": "as_released"}
    for column, metric in {
        "MSE, in the attack's order": "mse_input",
        "loss after 5 steps (nats)": "final_loss",
    }.items():
        mean, low, _ = interval(per_seed(frame, metric=metric, **where))
        assert row[column] == f"{mean:.3g} ± {mean - low:.2g}"


def test_void_numbers_are_marked(tables: Tables) -> None:
    frame = tables["cifar_readings"]
    frame.loc[frame["attack"] == "ig-cifar", "void"] = True
    table = make("tableS4", tables).set_index("defense")
    assert table.loc["no defense", "MSE, images assigned"].str.endswith(" (void)").all()
    assert not table.loc["the mean image, no gradient", "MSE, images assigned"].str.contains("void").any()


def test_table_of_inferred_labels(tables: Tables) -> None:
    table, frame = make("tableS5", tables), tables["inferred_labels"]
    assert table["labels"].tolist() == ["given", "inferred", "not needed: the mean image"]
    for attack, words in {"ig": "given", "ig-inferred": "inferred"}.items():
        (row,) = table[table["labels"] == words].to_dict("records")
        for column, metric in {"labels that are right": "label_accuracy", "MSE, images assigned": MSE}.items():
            mean, low, _ = interval(per_seed(frame, metric=metric, attack=attack, defense="none"))
            assert row[column] == f"{mean:.3g} ± {mean - low:.2g}"


def test_table_of_released_numbers(tables: Tables) -> None:
    """A row per printed number; of what this scale leaves out there is none of ours."""
    table = make("tableS3", tables)
    assert len(table) == 3 + 3 + 2 * 4 * 4 + 2
    pruning, frame = table[table["run"].str.contains("gradient pruning")], tables["released_pruning"]
    assert pruning["printed"].tolist() == ["0.0495", "23.29", "0.0542"]
    for row, metric in zip(pruning.to_dict("records"), ("mse_input", "psnr", "objective"), strict=True):
        numbers = per_seed(frame, metric=metric)
        mean, low, _ = interval(numbers)
        assert row["ours"] == f"{mean:.3g} ± {mean - low:.2g}" and row["seeds"] == len(numbers) == 3
        assert row["range"] == f"{min(numbers):.3g} to {max(numbers):.3g}"
        assert (row["ours, images assigned"] == "–") == (metric == "objective")
    first = "MNIST, 16 images from 1 on, optimal clipped noise 0.02"
    (row,) = table[table["run"] == first].to_dict("records")
    where = {"defense": "optimal-released", "metric": "objective", "setting.scale": 0.02}
    mean, low, _ = interval(per_seed(tables["released_noise"], **where))
    assert (row["printed"], row["ours"]) == ("0.6633", f"{mean:.3g} ± {mean - low:.2g}")
    missing = table[table["run"].str.contains("from 49 on") | table["run"].str.endswith(" 0.05")]
    assert len(missing) == 8 + 6 and set(missing["ours"]) == {"–"}


def test_rounding(tables: Tables) -> None:
    drawing, frame = draw("figS5", tables), tables["rounding"]
    labels = {"corrected": "optimal-rounding", "as released": "optimal-rounding-released"}
    assert [ax.get_title() for ax in drawing.figure.axes] == list(labels)
    for panel, label in labels.items():
        for name, defense in {"rounding to one step": "rounding", "optimal rounding": label}.items():
            rows = series(drawing.numbers, name, panel=panel)
            assert rows["scale"].tolist() == [0.01, 0.1]
            for row in rows.to_dict("records"):
                where = {"defense": defense, "setting.scale": row["scale"]}
                assert row["x"] == pytest.approx(np.mean(per_seed(frame, metric="mse_input", **where)))
                assert row["y"] == pytest.approx(np.mean(per_seed(frame, metric="final_loss", **where)))


def test_the_plotted_ratios(tables: Tables) -> None:
    drawing, frame = draw("figS6", tables), tables["plotted_noise"]
    rows = series(drawing.numbers, "fc_layers.1.bias")
    metric = frame[frame["metric"] == "noise_std/fc_layers.1.bias"]
    levels = metric.pivot_table(index="index", columns="seed", values="value").to_numpy()
    assert rows["mean"].iloc[0] == pytest.approx(levels[0].mean())
    assert len(rows) == 10 and rows["mean"].iloc[9] == pytest.approx(levels.mean())
    assert "isotropic noise" not in set(drawing.numbers["series"])
