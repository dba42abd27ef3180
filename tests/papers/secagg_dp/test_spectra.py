"""Figures 4 and S2, Tables S4 and S5 and claims E20 to E28, on tables whose numbers are known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from tests.papers.drawn import draw, make, smoke_tables, with_seeds
from tests.workflow.quick_jobs import without

from leakbench.jobs.base import Job
from leakbench.papers.secagg_dp import PAPER
from leakbench.papers.secagg_dp.jobs.spectrum import BOUNDS, SpectrumJob
from leakbench.papers.secagg_dp.spectra import MEASURED, by_users
from leakbench.papers.secagg_dp.tables import VARIANCE
from leakbench.records import Replicate
from leakbench.report.claims import claims_of
from leakbench.report.findings import Finding

Tables = dict[str, pd.DataFrame]
CLAIMS = {entry.key: entry for entry in claims_of(PAPER)}


def known(job: Job, replicate: Replicate) -> None:
    """Spectra by a power law, which fall over the rounds; a linear model's rank is at its bound, a network's full."""
    kind, linear = job.kind, job.model.label == "linear"
    assert isinstance(kind, SpectrumJob) and isinstance(replicate.metrics["loss"], float)
    users, pooled = kind.observed, kind.observed * kind.records
    size, rank = (650.0, min(549.0, pooled)) if linear else (2.0 * pooled, float(pooled))
    trace = 2 * replicate.metrics["loss"] / (1 + int(replicate.setting["round"]))
    even = [size * level for level in kind.variances]
    saved = [trace / (trace + each) for each in even]
    replicate.metrics |= dict.fromkeys(("leaving_pooled", "leaving_other_users"), 1.0 if rank == pooled else 0.02)
    replicate.metrics |= {"dimension": size, "pooled": float(pooled), "pooled_rank": rank, "rank_bound": 549.0}
    replicate.metrics |= {"rank": [float(kind.records)] * users, "leaving_per_user": [1.0] * users}
    replicate.metrics["eigenvalues"] = [trace / 3 * (1 + index) ** -1.5 for index in range(kind.records)]
    replicate.metrics |= {"variance": list(kind.variances), "epsilon": list(kind.epsilons)}
    replicate.metrics |= {"trace": [trace] * users, "isotropic": [*even], "saved": [*saved]}
    replicate.metrics["filled"] = [(1 - part) * each for part, each in zip(saved, even, strict=True)]
    for end in BOUNDS:
        replicate.metrics[f"excess_at_epsilon{end}"] = [0.1] * len(kind.epsilons)
    if not linear:
        without(replicate, "known for linear models alone", "rank_bound")
    if kind.by_users:
        rho = [trace * number for number in kind.by_users]
        epsilons = [10 / (each - 1) if each > 1 else None for each in rho]
        replicate.metrics |= {"users": [float(number) for number in kind.by_users], "rho": [*rho]}
        replicate.metrics["pooled_floor"] = [each * kind.clip**2 / kind.records for each in rho]
        replicate.metrics["epsilon_pooled"] = epsilons
        replicate.reasons["epsilon_pooled"] = "Theorem 3 says nothing"


@pytest.fixture
def tables() -> Tables:
    return smoke_tables(PAPER, spectrum=known)


def numbers(frame: pd.DataFrame, metric: str, number: int, index: int | None = None) -> np.ndarray:
    rows = frame[(frame["metric"] == metric) & (frame["setting.round"] == number)]
    rows = rows if index is None else rows[rows["index"] == index]
    return rows.sort_values(["seed", "index"])["value"].to_numpy(dtype=float)


class TestFigure4:
    def test_it_shows_the_spectrum_and_what_is_added(self, tables: Tables) -> None:
        drawing = draw("fig04", tables, paper=PAPER)
        shown = drawing.numbers
        first = tables["spectra"][tables["spectra"]["seed"] == 0]
        for number, rows in shown.groupby("round"):
            own = numbers(first, "eigenvalues", int(str(number)))
            inherent = rows["eigenvalue"].to_numpy()
            assert inherent == pytest.approx([*own, 0.0])  # the first one that is zero is there, too
            assert rows["filled"].to_numpy() == pytest.approx(np.where(inherent < VARIANCE, VARIANCE, inherent))
            assert rows["isotropic"].to_numpy() == pytest.approx(inherent + VARIANCE)

    def test_panels_state_the_trace_of_what_is_added(self, tables: Tables) -> None:
        axes = draw("fig04", tables, paper=PAPER).figure.axes
        first = tables["spectra"][tables["spectra"]["seed"] == 0]
        own = numbers(first, "eigenvalues", 20)
        filled = 650 * VARIANCE - np.minimum(own, VARIANCE).sum()
        assert [ax.get_title() for ax in axes[2:]] == [
            f"water-filling, round 20: adds {filled:.1f}",
            f"isotropic noise, round 20: adds {650 * VARIANCE:.1f}",
        ]
        assert all((ax.get_xscale(), ax.get_yscale()) == ("log", "log") for ax in axes)


def test_table_s4_has_a_row_per_model_and_round(tables: Tables) -> None:
    table = make("tableS4", tables, paper=PAPER)
    assert list(zip(table["model"], table["round"], strict=True)) == [
        *(("linear", "0"), ("linear", "20")),
        *(("small-lenet", "0"), ("small-lenet", "20")),
    ]
    assert table["K"].tolist() == ["650", "650", "1600", "1600"]
    assert table["rank"].tolist() == ["549", "549", "800", "800"]
    assert table["bound"].tolist() == ["549", "549", "–", "–"]
    assert table["leaves: all others (%)"].tolist() == ["2", "2", "100", "100"]
    accuracy = 100 * numbers(tables["spectra"], "accuracy", 20).mean()
    assert table["accuracy (%)"].tolist()[1] == f"{accuracy:.3g}"


def test_table_s5_names_its_levels(tables: Tables) -> None:
    table = make("tableS5", tables, paper=PAPER)
    saved = numbers(tables["spectra"], "saved", 0, index=1).mean()
    assert table["saved (%), sigma^2 = 0.01"].tolist()[0] == f"{100 * saved:+.3g}"
    assert table["excess (%), epsilon = 2"].tolist() == ["+10"] * 4
    assert len([name for name in table if "repaired" in name]) == 3


class TestFigureS2:
    def test_numbers_are_means_over_seeds(self, tables: Tables) -> None:
        frame = by_users(tables["toy"])
        one = frame[(frame["clip"] == 1) & (frame["round"] == 0)]
        assert one["N"].tolist() == [1, 2, 5, 10, 20]
        here = tables["toy"][tables["toy"]["setting.clip"] == 1]
        for place, users in enumerate(one["N"]):
            epsilons = numbers(here, "epsilon_pooled", 0, index=place)
            known = epsilons[~np.isnan(epsilons)]
            row = one[one["N"] == users].iloc[0]
            assert row["lost"] == len(epsilons) - len(known)
            expected = known.mean() if len(known) else np.nan
            assert row["epsilon_pooled"] == pytest.approx(expected, nan_ok=True)

    def test_a_panel_says_where_the_theorem_says_nothing(self, tables: Tables) -> None:
        def words() -> list[list[str]]:
            axes = draw("figS2", tables, paper=PAPER).figure.axes
            return [[text.get_text() for text in ax.texts] for ax in axes]

        assert words() == [[], [], []]
        frame = tables["toy"]
        frame.loc[(frame["metric"].str.startswith("epsilon_")) & (frame["setting.clip"] == 10), "value"] = np.nan
        assert words() == [[], ["the theorem\nsays nothing"], []]


def judge(key: str, tables: Tables) -> Finding:
    entry = CLAIMS[key]
    return entry.judge({name: tables[name] for name in entry.experiments})


@pytest.fixture
def judged(tables: Tables) -> Tables:
    return with_seeds(tables)


def test_what_the_numbers_say_is_what_is_judged(judged: Tables) -> None:
    verdicts = {key: judge(key, judged).verdict for key in CLAIMS if CLAIMS[key].experiments and key[0] == "E"}
    ours = {key: verdict for key, verdict in verdicts.items() if key >= "E20"}
    assert ours.pop("E25a") == "contradicted"
    assert set(ours) == {"E20", "E21", "E22", "E23", "E24", "E25b", "E26", "E27", "E28"}
    assert set(ours.values()) == {"reproduced"}


def put(value: float) -> Callable[[pd.Series], pd.Series]:
    return lambda values: values * 0 + value


@pytest.mark.parametrize(
    ("key", "experiment", "metric", "change"),
    [
        ("E20", "spectra_cnn", "pooled_rank", put(799)),
        ("E21", "spectra", "leaving_pooled", put(0.5)),
        ("E22", "spectra", "rank", put(650)),
        ("E23", "spectra", "pooled_rank", put(560)),
        ("E24", "spectra", "saved", put(-0.1)),
        ("E25a", "spectra", "excess_at_epsilon", put(0.2)),
        ("E25b", "spectra", "excess_at_epsilon_repaired", put(-0.1)),
        ("E26", "toy", "epsilon_pooled", put(0.5)),
        ("E27", "toy", "pooled_floor", put(0.3)),
        ("E28", "toy", "rho", lambda values: 1e3 - values),
    ],
)
def test_other_numbers_contradict(
    key: str, experiment: str, metric: str, change: Callable[[pd.Series], pd.Series], judged: Tables
) -> None:
    frame = judged[experiment]
    chosen = frame["metric"] == metric
    frame.loc[chosen, "value"] = change(frame.loc[chosen, "value"].fillna(1.0))
    if key == "E27":  # not at the threshold: larger in the last round
        frame.loc[chosen & (frame["setting.round"] == 20), "value"] += 0.1
    assert judge(key, judged).verdict == "contradicted"


def test_where_the_theorem_gives_no_epsilon_it_is_not_judged(judged: Tables) -> None:
    frame = judged["toy"]
    frame.loc[frame["metric"] == "rho", "value"] = 0.5
    found = judge("E28", judged)
    assert found.verdict == "not run" and "rho exceeds 1 in no measured round" in found.note


def test_no_epsilon_at_all_is_none_that_few_users_reach(judged: Tables) -> None:
    frame = judged["toy"]
    frame.loc[frame["metric"] == "epsilon_pooled", "value"] = np.nan
    found = judge("E26", judged)
    assert (found.verdict, found.effect) == ("reproduced", 0.0)


def test_both_experiments_are_judged(tables: Tables) -> None:
    assert all(CLAIMS[key].experiments == MEASURED for key in ("E20", "E21", "E22", "E23", "E24", "E25a", "E25b"))
    assert "of 16" in (judge("E24", tables).meaning or "")
