"""Accuracy of the paper ``secagg_dp``: which rate is chosen, what is drawn, and verdicts on tables made for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer
from tests.papers.drawn import draw, make
from tests.report.tables import cube, rows, table

from leakbench.papers.secagg_dp.accuracy import CHOICE, HOME, TRAINED, chosen, noise_levels, round_seconds, trained
from leakbench.papers.secagg_dp.accuracy_claims import MARGIN
from leakbench.report.claims import claims_of
from leakbench.report.findings import Finding

Tables = dict[str, pd.DataFrame]
CLAIMS = {entry.key: entry for entry in claims_of("secagg_dp")}
LINEAR, CNN = ("mnist", "linear-zero"), ("mnist", "cnn")
CELLS = {"": LINEAR, "_cnn": CNN}
EPSILONS, RATES, SEEDS = (1.0, 4.0), (0.1, 1.0), 12
MECHANISMS = {"gd": "distributed_noise", "sgd": "distributed_noise", "gsgd": "water_filling", "none": "none"}


def runs(
    defense: str,
    accuracy: Mapping[float, Sequence[float]],
    loss: Mapping[float, Sequence[float]],
    cell: tuple[str, str] = LINEAR,
) -> pd.DataFrame:
    """A defense's training by rate: accuracies and losses over epsilon."""
    found = []
    for rate in accuracy:
        for metric, values in (("accuracy", accuracy[rate]), ("final_loss", loss[rate]), ("noise_variance", [0.5] * 2)):
            part = rows(defense, metric, cube(values, spread=1e-4), points=EPSILONS, sweep="epsilon", cell=cell)
            found.append(part.assign(**{"setting.rate": rate, "axis": None}))
    return table(*found).assign(mechanism=MECHANISMS[defense.partition("-")[0]])


def plain(cell: tuple[str, str], best: float) -> pd.DataFrame:
    """Undefended, without epsilon; the rate 1 has the least loss."""
    found = [
        rows("none", metric, cube([value], spread=1e-4), cell=cell).assign(**{"setting.rate": rate, "axis": None})
        for rate, accuracy, loss in ((0.1, 0.5, 2.0), (1.0, best, 0.2))
        for metric, value in (("accuracy", accuracy), ("final_loss", loss))
    ]
    return table(*found).assign(mechanism="none")


def simple(defense: str, level: float, cell: tuple[str, str] = LINEAR) -> pd.DataFrame:
    """The rate 0.1 has the least loss and is more accurate at larger epsilon; 1 is more accurate still."""
    return runs(
        defense,
        {0.1: [level, level + 0.1], 1.0: [level + 0.05, level + 0.15]},
        {0.1: [1.0, 0.5], 1.0: [1.5, 0.8]},
        cell,
    )


def everything(levels: Mapping[str, float]) -> Tables:
    """All experiments of the accuracy, with these accuracies at epsilon 1."""
    tables: Tables = {}
    for ending, cell in CELLS.items():
        for name in ("accuracy_all", "accuracy_batches", "accuracy_epochs"):
            parts = [simple(defense, level, cell) for defense, level in levels.items() if HOME[defense] == name]
            if name != "accuracy_epochs":
                parts.append(plain(cell, 0.95 if name == "accuracy_all" else 0.93))
            tables[name + ending] = table(*parts)
    return tables | {"accuracy_times": timed({"sgd": 1.0, "gd": 2.0, "gsgd": 3.0})}


def timed(seconds: Mapping[str, float], metric: str = "round_wall_s") -> pd.DataFrame:
    found = []
    for cell in CELLS.values():
        for method, mean in seconds.items():
            values = mean + np.linspace(-0.01, 0.01, 3 * SEEDS).reshape(1, SEEDS, 3)
            part = rows("none", metric, values, cell=cell)
            found.append(part.assign(**{"setting.method": method, "axis": "repetition", "mechanism": "none"}))
    return table(*found)


LEVELS = {
    **{"gd": 0.7, "gsgd": 0.6, "gsgd-repaired": 0.62, "sgd": 0.5, "sgd-amplified": 0.55, "sgd-epochs": 0.3},
    **{"gd-tight": 0.75, "gsgd-tight": 0.67, "sgd-tight": 0.64},
}


def through_the_protocol(loss: float = 1.5, shift: float = 0.0) -> Tables:
    """SGD-DP in the clear and through the protocol, at epsilon 4 and rate 0.1: losses, and accuracies that differ."""
    found = everything(LEVELS)
    through = (
        ("accuracy_secure", "sgd-secure", shift),
        ("accuracy_secure", "sgd-discrete", 0.02),
        ("accuracy_dropout", "sgd-dropout", 0.03),
    )
    for name, label, more in through:
        parts = [
            rows(label, metric, cube([value], spread=1e-4), points=[4.0], sweep="epsilon", cell=LINEAR)
            for metric, value in (
                *(("accuracy", 0.6 - more), ("final_loss", loss + more)),
                *(("noise_variance", 0.5), ("bits", 81920.0)),
            )
        ]
        part = table(*parts).assign(**{"setting.rate": 0.1, "axis": None, "mechanism": "distributed_noise"})
        found[name] = table(found[name], part) if name in found else part
    extra = rows("sgd", "bits", cube([8192.0] * 2, spread=1e-4), points=EPSILONS, sweep="epsilon", cell=LINEAR)
    extra = table(extra).assign(**{"setting.rate": 0.1, "axis": None, "mechanism": "distributed_noise"})
    found["accuracy_batches"] = table(found["accuracy_batches"], extra)
    return found


class TestThroughTheProtocol:
    def test_a_cell_beside_the_clear_one(self) -> None:
        found = make("tableS7", through_the_protocol(0.5, 0.01), paper="secagg_dp").reset_index()
        assert found["updates are summed"].str.partition(";")[0].tolist() == [
            "in the clear",
            *["secure aggregation"] * 3,
        ]
        assert set(found["epsilon"]) == {"4"} and set(found["learning rate"]) == {"0.1"}
        assert found["test accuracy"].tolist() == ["0.600", "0.590", "0.580", "0.570"]
        assert found["difference in accuracy"].tolist()[1:] == ["0.01", "0.02", "0.03"]
        assert found["KiB per user and round"].tolist() == ["1.0", "10.0", "10.0", "10.0"]

    @pytest.mark.parametrize(
        ("shift", "verdict"), [(0.0, "reproduced"), (0.02, "contradicted"), (-0.02, "contradicted")]
    )
    def test_the_same_loss(self, shift: float, verdict: str) -> None:
        tables = through_the_protocol(0.5 * (1 + shift))
        noise = np.random.default_rng(0).normal(0, 1e-5, len(tables["accuracy_secure"]))
        tables["accuracy_secure"]["value"] += noise
        found = judge("E13", tables)
        assert found.verdict == verdict and found.effect == pytest.approx(shift, abs=1e-3)


@pytest.fixture
def tables() -> Tables:
    return everything(LEVELS)


class TestChoice:
    def test_by_the_training_loss_at_each_epsilon(self) -> None:
        frame = runs("gd", {0.1: [0.6, 0.7], 1.0: [0.9, 0.8]}, {0.1: [1.0, 2.0], 1.0: [1.1, 1.9]})
        found = chosen(frame).sort_values("epsilon")
        assert found["rate"].tolist() == [0.1, 1.0]
        assert found["mean"].tolist() == pytest.approx([0.6, 0.8])
        assert (found["low"] < found["mean"]).all() and found["seeds"].tolist() == [SEEDS, SEEDS]

    def test_not_where_a_seed_diverged(self) -> None:
        frame = runs("gd", {0.1: [0.6, 0.7], 1.0: [0.9, 0.8]}, {0.1: [1.0, 2.0], 1.0: [0.1, 0.2]})
        lost = (frame["setting.rate"] == 1.0) & (frame["seed"] == 2) & (frame["setting.epsilon"] == 1)
        frame.loc[lost & frame["metric"].isin(["accuracy", "final_loss"]), "value"] = math.nan
        assert chosen(frame).sort_values("epsilon")["rate"].tolist() == [0.1, 1.0]

    def test_none_where_all_diverged(self) -> None:
        frame = simple("gd", 0.5)
        frame.loc[(frame["metric"] != "noise_variance") & (frame["setting.epsilon"] == 1), "value"] = math.nan
        found = chosen(frame).sort_values("epsilon")
        assert found["rate"].isna().tolist() == [True, False]
        assert found["mean"].isna().tolist() == [True, False]

    def test_the_undefended_have_no_epsilon(self) -> None:
        found = chosen(plain(LINEAR, 0.95))
        assert len(found) == 1 and found["rate"].tolist() == [1.0]
        assert found["mean"].tolist() == pytest.approx([0.95]) and found["epsilon"].isna().all()


class TestFigure:
    def test_panels_and_lines(self, tables: Tables) -> None:
        drawing = draw("fig05", tables, paper="secagg_dp")
        axes = drawing.figure.axes
        assert [ax.get_title() for ax in axes] == ["linear-zero, mnist", "cnn, mnist"]
        for ax in axes:
            lines = dict(zip(ax.get_legend_handles_labels()[1], ax.get_legend_handles_labels()[0], strict=True))
            assert next(iter(lines)) == "no defense" and len(lines) == 1 + len(LEVELS)
            assert ax.get_xscale() == "log" and ax.get_xticks().tolist() == [1, 4]
        numbers = drawing.numbers[drawing.numbers["model"] == "linear-zero"]
        for label, level in LEVELS.items():
            own = numbers[numbers["defense"] == label].sort_values("epsilon")
            assert own["mean"].tolist() == pytest.approx([level, level + 0.1])

    def test_the_readings_are_told_apart(self, tables: Tables) -> None:
        ax = draw("fig05", tables, paper="secagg_dp").figure.axes[0]
        shown = {str(bars.get_label()): bars.lines[0] for bars in ax.containers if isinstance(bars, ErrorbarContainer)}
        batches = [line for name, line in shown.items() if name.startswith("SGD-DP")]
        assert len({line.get_color() for line in batches}) == 1
        assert sorted(str(line.get_linestyle()) for line in batches) == ["-", "--", "-.", ":"]
        assert shown["GD-DP"].get_color() != shown["GSGD-DP (eq. 35)"].get_color() != batches[0].get_color()

    def test_what_diverged_is_left_out(self, tables: Tables) -> None:
        frame = tables["accuracy_all"]
        frame.loc[(frame["defense"] == "gd") & (frame["metric"] != "noise_variance"), "value"] = math.nan
        draw("fig05", tables, paper="secagg_dp")
        found = make("tableS3", tables, paper="secagg_dp")
        here = found[(found["model"] == "linear-zero, mnist") & (found["mechanism"] == "GD-DP")]
        assert here["test accuracy"].tolist() == ["diverged"] * 2

    def test_the_caption_says_how_the_rate_is_chosen(self) -> None:
        assert "never by the test accuracy" in CHOICE


class TestTable:
    def test_rows(self, tables: Tables) -> None:
        found = make("tableS3", tables, paper="secagg_dp")
        assert len(found) == len(trained(tables)) == 2 * (2 * len(LEVELS) + 2)
        here = found[found["model"] == "linear-zero, mnist"].reset_index()
        assert here["mechanism"].tolist()[:4] == [
            "no defense, all records",
            "no defense, random batches",
            "GD-DP",
            "GD-DP",
        ]
        row = here[(here["mechanism"] == "GSGD-DP (eq. 35)") & (here["epsilon"] == "4")].iloc[0]
        assert row["test accuracy"] == "0.700" and row["learning rate"] == "0.1"
        assert row["sigma^2"] == "0.5" and row["seconds of a round"] == "3"

    def test_seconds_and_levels(self, tables: Tables) -> None:
        seconds = round_seconds(tables["accuracy_times"])
        assert seconds["mnist", "cnn", "gd"] == pytest.approx(2.0) and len(seconds) == 6
        levels = noise_levels(tables)
        assert levels["mnist", "linear-zero", "sgd-epochs", 4.0] == pytest.approx(0.5, abs=2e-4)
        assert len(levels) == 2 * 2 * len(LEVELS)


def judge(key: str, tables: Tables) -> Finding:
    return CLAIMS[key].judge({name: tables[name] for name in CLAIMS[key].experiments})


class TestClaims:
    @pytest.mark.parametrize(
        ("key", "change", "verdict"),
        [
            ("E10", {}, "reproduced"),
            ("E10", {"gd": 0.6 - MARGIN / 2}, "reproduced"),
            ("E10", {"gd": 0.6 - 2 * MARGIN}, "contradicted"),
            ("E11a", {}, "reproduced"),
            ("E11a", {"sgd": 0.61}, "contradicted"),
            ("E11a", {"sgd": 0.6}, "inconclusive"),
            ("E11b", {}, "reproduced"),
            ("E11b", {"sgd-epochs": 0.61}, "contradicted"),
            ("E11c", {}, "reproduced"),
            ("E11c", {"sgd-amplified": 0.65}, "contradicted"),
            ("E11d", {}, "reproduced"),
            ("E11d", {"sgd-tight": 0.68}, "contradicted"),
        ],
    )
    def test_orders(self, key: str, change: dict[str, float], verdict: str) -> None:
        found = judge(key, everything(LEVELS | change))
        assert found.verdict == verdict

    def test_the_effect_is_the_mean_over_epsilon_at_the_chosen_rates(self, tables: Tables) -> None:
        found = judge("E11a", tables)
        assert found.effect == pytest.approx(0.1, abs=1e-3)
        assert "epsilon 1, 4" in found.meaning

    def test_one_model_is_enough_to_contradict(self, tables: Tables) -> None:
        tables["accuracy_all_cnn"] = everything(LEVELS | {"gsgd": 0.4})["accuracy_all_cnn"]
        assert judge("E11a", tables).verdict == "contradicted"

    def test_nothing_is_said_where_a_mechanism_diverged(self, tables: Tables) -> None:
        frame = tables["accuracy_all"]
        frame.loc[(frame["defense"] == "gd") & (frame["setting.epsilon"] == 1), "value"] = math.nan
        found = judge("E10", tables)
        assert found.verdict == "not run" and "diverged" in found.note

    @pytest.mark.parametrize(
        ("seconds", "verdict"),
        [
            ({"sgd": 1.0, "gd": 2.0, "gsgd": 3.0}, "reproduced"),
            ({"sgd": 2.5, "gd": 2.0, "gsgd": 3.0}, "contradicted"),
            ({"sgd": 1.0, "gd": 3.0, "gsgd": 2.0}, "contradicted"),
        ],
    )
    def test_times(self, seconds: dict[str, float], verdict: str) -> None:
        """Wall time decides where a GPU computed: the processor's is null then."""
        assert judge("E12", {"accuracy_times": timed(seconds)}).verdict == verdict
        null = timed(seconds, "round_cpu_s").assign(value=math.nan)
        assert judge("E12", {"accuracy_times": table(timed(seconds), null)}).verdict == verdict

    def test_what_else_ran_on_the_machine_decides_no_times(self) -> None:
        slowed = timed({"sgd": 4.0, "gd": 2.0, "gsgd": 3.0})
        finding = judge(
            "E12", {"accuracy_times": table(slowed, timed({"sgd": 1.0, "gd": 2.0, "gsgd": 3.0}, "round_cpu_s"))}
        )
        assert finding.verdict == "reproduced"

    def test_they_read_what_is_drawn(self) -> None:
        read: set[Any] = {name for key in ("E10", "E11a", "E11b", "E11c", "E11d") for name in CLAIMS[key].experiments}
        assert read == set(TRAINED)
