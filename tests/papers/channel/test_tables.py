"""The paper's Tables 1 and 2, and what its privacy budgets and totals amount to (supplements S1 and S2)."""

from __future__ import annotations

import importlib
import math
import shutil
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from tests.report.synthetic import ROOT, record_of, tidy_tables

from leakbench.papers.channel.common import printed
from leakbench.papers.channel.jobs.timing import METHODS
from leakbench.papers.channel.tables import _interval, architecture_of
from leakbench.planning.project import Project
from leakbench.report.artifacts import artifact_of
from leakbench.report.tidy import tidy_rows

PARAMETERS = {"lenet5": 62_006, "resnet10": 4_903_242, "alexnet": 35_855_178, "vgg16": 134_301_514}
PROJECT = Project(ROOT, {"papers": ["channel"]})


def make(name: str, tables: dict[str, pd.DataFrame] | None = None) -> pd.DataFrame:
    made = artifact_of(f"figures/full/channel/{name}.csv").make(tables or {})
    assert isinstance(made, pd.DataFrame)
    return made


@cache
def architectures(scale: str) -> pd.DataFrame:
    """The tidy table of the real models, which counting does not fill with numbers."""
    rows: list[dict[str, Any]] = []
    for job in PROJECT.plan(scale).experiment_jobs("channel", "architectures"):
        rows += tidy_rows(job, record_of(job))
    return pd.DataFrame(rows)


def cost(**values: dict[str, Any]) -> pd.DataFrame:
    """A cost table of one model: per method its metrics; lists run over repetitions."""
    rows = []
    for method, metrics in values.items():
        for metric, value in metrics.items():
            for index, number in enumerate(value if isinstance(value, list) else [value]):
                row = {"model": "vgg16-8", "setting.method": method, "seed": 0, "metric": metric, "index": index}
                rows.append(row | {"value": number})
    return pd.DataFrame(rows)


class TestNotation:
    def test_every_symbol_is_found_where_the_table_says(self) -> None:
        notation = make("table01")
        assert notation["symbol"].is_unique and not notation.isna().any().any()
        for where in notation["where"]:
            parts = where.split(".")
            module = next(i for i, part in enumerate(parts) if part[0].isupper() or i == len(parts) - 1)
            found = importlib.import_module(f"leakbench.{'.'.join(parts[:module])}")
            owner = reduce(getattr, parts[module:-1], found)
            fields = [vars(each).get("__annotations__", {}) for each in getattr(owner, "__mro__", ())]
            assert hasattr(owner, parts[-1]) or any(parts[-1] in each for each in fields), where


class TestTrainingTime:
    @pytest.mark.parametrize("scale", ["smoke", "laptop", "full"])
    def test_our_models_have_the_printed_numbers_of_parameters(self, scale: str) -> None:
        """E13: to the three digits of the paper; at every scale, since counting costs nothing."""
        sizes = architectures(scale).groupby("model")["value"].sum()
        assert sizes.to_dict() == PARAMETERS
        reference = printed("table02").drop_duplicates("architecture").set_index("architecture")["parameters"]
        assert {name: float(f"{size:.2e}") for name, size in sizes.items()} == reference.to_dict()

    def test_the_printed_overheads_are_those_of_the_printed_seconds(self) -> None:
        for _, rows in printed("table02").groupby("architecture"):
            seconds, overhead = (rows.set_index("method")[name].to_dict() for name in ("seconds", "overhead"))
            assert overhead.keys() == {"sgd", "opacus", "channel"} and math.isnan(overhead["sgd"])
            for method in ("opacus", "channel"):
                assert overhead[method] == pytest.approx(seconds[method] / seconds["sgd"] - 1, abs=6e-5)

    def test_rows(self) -> None:
        numbers = {"training_flops": 1e6, "extra_flops": 12_500.0, "normal_draws": 153_600_000.0, "extra_bytes": 160.0}
        table = make(
            "table02",
            {
                "architectures": architectures("full"),
                "cost": cost(
                    sgd={
                        "parameters": 2_097_442.0,
                        "training_wall_s": [100.0, 104.0, 99.0],
                        "overhead": [0.0, 0.0, 0.0],
                        **dict.fromkeys(numbers, 0.0),
                        "training_flops": 1e6,
                    },
                    channel={
                        "training_wall_s": [110.0, 112.0, 109.0],
                        "overhead": [0.1, 0.12, 0.08],
                        "overhead_cpu": [0.2, 0.2, 0.2],
                        "overhead_once": [0.05, 0.05, 0.06],
                        **numbers,
                    },
                    dp_sgd={"training_wall_s": math.nan, "overhead": math.nan, **numbers},
                ),
            },
        )
        sgd, channel, failed = table.to_dict("records")
        assert (sgd["model"], sgd["method"], sgd["parameters, paper"]) == ("vgg16-8", "SGD", "1.34e+08")
        assert (sgd["parameters, ours"], sgd["parameters, timed"]) == ("134,301,514", "2,097,442")
        assert (sgd["paper (s)"], sgd["paper, overhead"], sgd["overhead of 'once'"]) == ("581.69 ± 5.35", "–", "–")
        assert channel["method"] == "data-space channel" and channel["paper, overhead"] == "+5.38 %"
        low, high = stats.t.interval(0.95, 2, loc=110.33, scale=stats.sem([110, 112, 109]))
        assert channel["ours (s)"] == f"110.3 ± {(high - low) / 2:.2g}"
        low, high = stats.t.interval(0.95, 2, loc=10, scale=stats.sem([10, 12, 8]))
        assert channel["ours, overhead"] == f"+10 ± {(high - low) / 2:.2g} %"
        assert channel["overhead, processor time"].startswith("+20 ± ")
        assert channel["operations added"] == "+1.25 %" and channel["normal draws"] == "1.54e+08"
        assert channel["bytes added"] == "160"
        assert failed["ours (s)"] == failed["ours, overhead"] == failed["paper (s)"] == failed["paper, overhead"] == "–"
        assert failed["operations added"] == "+1.25 %"

    def test_repetitions_of_all_seeds_count(self) -> None:
        """Means of two seeds would be two numbers; there are four."""
        frame = cost(sgd={"training_wall_s": [1.0, 2.0]})
        both = pd.concat([frame, frame.assign(seed=1, value=frame["value"] + 2)])
        low, high = stats.t.interval(0.95, 3, loc=2.5, scale=stats.sem([1, 2, 3, 4]))
        assert _interval(both, "training_wall_s") == f"2.5 ± {(high - low) / 2:.2g}"

    @pytest.mark.parametrize("scale", ["smoke", "laptop", "full"])
    def test_of_every_scale(self, scale: str) -> None:
        read = artifact_of("figures/full/channel/table02.csv").experiments
        tables = tidy_tables(PROJECT.plan(scale), "channel", only=read)
        table = make("table02", {**tables, "architectures": architectures(scale)})
        assert len(table) == 4 * len(METHODS) and table["model"].nunique() == 4
        assert (table["parameters, paper"] != "–").all() and (table["parameters, ours"] != "–").all()
        of_paper = ~table["method"].isin(["DP-SGD (ours)", "parameter-space channel"])
        assert (table.loc[of_paper, "paper (s)"] != "–").all()

    def test_labels_name_architectures(self) -> None:
        known = list(PARAMETERS)
        for label, name in {"vgg16": "vgg16", "vgg16-8": "vgg16", "small_lenet5": "lenet5", "mine": None}.items():
            assert architecture_of(label, known) == name


class TestPrivacyOfDPSGD:
    def test_the_papers_grid(self) -> None:
        """Capacities and epsilons as they follow from the definitions, to the digits shown."""
        table = make("tableS1").set_index("channel's capacity")
        assert list(table.index) == ["50", "100", "200", "300", "500", "800", "1000", "1500"]
        paired = table[table["multiplier"] != "–"]
        assert paired["multiplier"].to_dict() == {"100": "0.8", "200": "0.57", "300": "0.46", "1500": "0.2066"}
        assert paired["capacity, as printed"].tolist() == ["100.00", "196.98", "302.46", "1499.41"]
        assert paired["corrected"].tolist() == ["50.00", "98.49", "151.23", "749.70"]
        assert paired["for LeNet"].iloc[0] == "49.96"
        assert paired["of one release"].tolist() == ["6.056", "8.500", "10.532", "23.450"]
        assert [float(v) for v in paired["Theorem 4 (2) at the printed epsilon"]] == pytest.approx(
            [7.93, 71.5, 394.3, 2.999e5], rel=1e-3
        )
        for column, numbers in {
            "of the stated run": (1.561, 4.594, 10.361, 217.4),
            "classical conversion": (2.001, 5.393, 11.525, 220.8),
            "25 epochs of 60,000": (1.699, 5.102, 12.072, 310.7),
        }.items():
            assert [float(value) for value in paired[column]] == pytest.approx(numbers, rel=3e-3)

    def test_capacities_without_a_partner(self) -> None:
        table = make("tableS1").set_index("channel's capacity")
        alone = table.loc[["50", "500", "800", "1000"]]
        assert (alone["epsilon, printed"] == "–").all()
        assert table.loc["50", "multiplier for it, as printed"] == f"{math.sqrt(64 / 50):.4g}"
        assert table.loc["50", "multiplier for it, corrected"] == "0.8"


class TestTotals:
    def test_vacuous_totals(self) -> None:
        table = make("tableS2").set_index(["kappa (nats)", "n"])
        assert table.loc[(300, 1), "factor, d = 3072"] == "0.823" and table.loc[(50, 1), "factor, d = 3072"] == "0.968"
        assert table.loc[(300, 10_000), "factor, d = 3072"] == "10^-848"
        assert table.loc[(50, 10_000), "factor, d = 3072"] == "10^-141"
        assert table.loc[(200, 1666), "n kappa (nats)"] == 333_200
        np.testing.assert_allclose(
            table["steps to 1 %, d = 1024"].astype(float),
            512 * math.log(100) / table.index.get_level_values(0),
            atol=0.05,
        )


def test_tables_of_formulas_are_written_and_say_nothing_of_data(tmp_path: Path) -> None:
    entry = artifact_of("figures/full/channel/tableS2.csv")
    assert entry.inputs("full") == []
    caption = entry.full_caption(PROJECT, "full")
    assert caption == f"Table S2. Not in the paper. {entry.caption} From formulas alone, so the same at every scale."
    project = Project(shutil.copytree(ROOT / "config", tmp_path / "config").parent, {"papers": ["channel"]})
    entry.render(project, "figures/full/channel/tableS2.csv")
    written = [(tmp_path / path).read_text() for path in entry.paths("full")]
    assert "10^-848" in written[0] and written[1].endswith(f"{caption}\n") and "table" in written[2]
