"""Compared defenses in tidy tables: settings by name, and other defenses' places."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from tests.report.tables import rows, table

from leakbench.report.claims import Claim
from leakbench.report.compared import defenses_apart, in_setting, of_setting, settings_apart, stand_ins
from leakbench.report.evidence import Evidence, jackknife_of
from leakbench.report.findings import Finding, Part, decide
from leakbench.report.labels import reads
from leakbench.report.tidy import setting_columns

POINTS = (0.1, 0.5)
OWN = ("mine", "plain", "other", "best", "worst")
LOSSES = np.array([[[1.0], [1.1]], [[2.0], [2.1]]])  # of two points, two seeds
MANY = np.array([1.0, 2.0])[:, None, None] + np.linspace(0, 0.1, 12)[:, None]  # of twelve seeds


def of(defense: str, sweep: str | None, losses: np.ndarray = LOSSES) -> pd.DataFrame:
    found = rows(defense, "final_loss", losses if sweep else losses[:1], points=POINTS, sweep=sweep)
    return found.assign(mechanism="own" if defense in OWN else "pruning")


@pytest.mark.parametrize("setting", [{}, {"p": 0.1}, {"p": 1 / 3, "form": "as_printed"}, {"bits": 2.0}])
def test_names_of_settings(setting: dict[str, object]) -> None:
    label, found = of_setting(in_setting("mine-1.5", setting))
    assert label == "mine-1.5" and list(found) == list(setting)
    for key, value in setting.items():
        assert found[key] == value if isinstance(value, str) else float(found[key]) == value


def test_settings_of_unknown_parameters_are_defenses() -> None:
    frame = table(of("op", "fraction"), of("mine", "strength"), of("plain", None))
    apart = settings_apart(frame, {"mine": 0, "plain": 2})
    assert list(apart["defense"].unique()) == ["op", "mine, strength=0.1", "mine, strength=0.5", "plain"]
    assert setting_columns(apart) == ["setting.fraction"]
    assert apart["mechanism"].unique().tolist() == ["pruning", "own", "own (2)", "own (3)"]
    assert apart.loc[apart["defense"] == "mine, strength=0.5", "value"].tolist() == [2.0, 2.1]
    assert settings_apart(frame, {}) is frame


def test_defenses_of_one_mechanism_are_told_apart() -> None:
    frame = table(of("op", "fraction"), of("mine", "strength"), of("plain", None))
    apart = defenses_apart(frame, {"mine": 0, "plain": 2})
    assert apart.groupby("defense")["mechanism"].unique().map(list).to_dict() == {
        "op": ["pruning"],
        "mine": ["own"],
        "plain": ["own (3)"],
    }
    pd.testing.assert_frame_equal(apart.drop(columns="mechanism"), frame.drop(columns="mechanism"))


def test_known_parameters_stay_columns() -> None:
    frame = table(of("op", "fraction"), of("mine", "fraction"))
    pd.testing.assert_frame_equal(settings_apart(frame, {"mine": 0}), frame)


def test_stand_ins() -> None:
    tables = {"a": table(of("op", None), of("mine", "strength")), "b": table(of("gp", None), of("other", None))}
    found = dict(stand_ins(tables, {"mine": 0, "other": 2}, "op", ""))
    assert list(found) == ["mine, strength=0.1", "mine, strength=0.5"]  # "other" is not where "op" is
    replaced = found["mine, strength=0.5"]
    assert replaced is not None and replaced["a"]["defense"].tolist() == ["op", "op"]
    assert replaced["a"]["value"].tolist() == [2.0, 2.1] and set(replaced["b"]["defense"]) == {"gp"}


def test_stand_ins_of_a_trade_off() -> None:
    """What a defense sweeps takes the place of the parameter; one that sweeps nothing takes none."""
    frame = table(of("op", "fraction"), of("gp", "fraction"), of("mine", "strength"), of("plain", None))
    found = dict(stand_ins({"a": frame}, {"mine": 0, "plain": 2}, "op", "fraction"))
    assert found["plain"] is None and found["mine"] is not None
    series = Evidence(found["mine"]).series("a", "final_loss", defense="op", sweep="fraction")
    assert series.points == POINTS and series.values.tolist() == LOSSES.tolist()


READ = (reads("a", defenses="*"),)


def lower(evidence: Evidence) -> Finding:
    """Whether op has the smallest loss of all."""
    frame = evidence._tables["a"]
    parts = []
    for defense in frame["defense"].unique():
        if defense != "op":
            ours, theirs = (evidence.series("a", "final_loss", defense=each) for each in ("op", defense))
            resamples = jackknife_of(ours, theirs)
            effect = resamples.estimate(resamples.mean(theirs.values[0] - ours.values[0]))
            parts.append(Part(defense, effect, "loss", at_least=0.0))
    return decide(evidence, parts)


def test_a_verdict_knows_nothing_of_compared_defenses() -> None:
    papers = table(of("op", None, MANY), of("gp", None, 1.01 * MANY + 1))
    both = table(papers, of("best", None, 0.99 * MANY - 5), of("worst", None, 0.99 * MANY + 5))
    claim = Claim("p", "E1", "Op is best.", "Fig. 1", READ, lower, champion="op")
    alone, beside = claim.judge({"a": papers}), claim.judge_beside({"a": both}, {"best": 0, "worst": 1})
    assert (beside.verdict, beside.effect, beside.p) == (alone.verdict, alone.effect, alone.p)
    assert alone.verdict == "reproduced" and beside.note.startswith(alone.note)
    assert "with best instead of op: reproduced (6.02 [" in beside.note
    assert "with worst instead of op: contradicted (-3.98 [" in beside.note
    assert claim.judge_beside({"a": papers}, {}) == alone


def test_a_claim_that_is_not_run_has_no_stand_ins() -> None:
    claim = Claim("p", "E1", "Op is best.", "Fig. 1", READ, lower, champion="op")
    found = claim.judge_beside({"a": table(of("gp", None), of("best", None))}, {"best": 0})
    assert found.verdict == "not run" and "best" not in found.note
