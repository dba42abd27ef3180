"""Verdicts: the rule for parts, what tables have to hold, and the files."""

from __future__ import annotations

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tests.report.synthetic import new_project
from tests.report.tables import rows, table

from leakbench.errors import ConfigError, RecordError
from leakbench.paper_folders import paper_folders
from leakbench.planning.project import Project
from leakbench.report import claims
from leakbench.report.artifacts import artifacts
from leakbench.report.claims import Claim, claim, claims_of
from leakbench.report.comparisons import certain, level
from leakbench.report.evidence import Evidence, NotRun, jackknife_of, same_points, same_seeds
from leakbench.report.findings import Finding, Part, decide, effect_text, lean_text, survives
from leakbench.report.inference import Estimate
from leakbench.report.judging import COLUMNS, claims_inputs, claims_paths, judge, judged, verdict_rows
from leakbench.report.labels import reads
from leakbench.report.scorecard import named_in
from leakbench.report.tidy import merge

NAN = math.nan
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e\d+)?")
ONES = np.ones((2, 3, 2))  # settings, seeds, batches


def part(value: float, error: float, at_least: float = 0.0, at_most: float = math.inf, seeds: int = 9) -> Part:
    """An effect of nine seeds: its 95 % interval is 2.3 standard errors wide on either side."""
    spread = error * math.sqrt(seeds)
    estimate = Estimate(value, error, freedom=seeds - 1, seeds=seeds, spread=spread)
    return Part("here", estimate, "difference", at_least, at_most)


GOOD, BAD, UNCLEAR = part(2, 0.4), part(-2, 0.4), part(0.5, 0.6)


@pytest.mark.parametrize(
    ("judged_part", "verdict"),
    [
        (GOOD, "reproduced"),
        (BAD, "contradicted"),
        (UNCLEAR, "inconclusive"),
        (part(1, 0.43), "reproduced"),  # 2.306 standard errors are 0.992
        (part(1, 0.44), "inconclusive"),
        (part(1, 0.0), "reproduced"),  # nine seeds that agree
        (part(1, 0.0, seeds=5), "inconclusive"),  # five are too few for their signs
        (part(1, 0.01, seeds=3), "reproduced"),
        (part(1, 0.0001, seeds=2), "inconclusive"),  # two decide nothing
        (part(1, NAN), "inconclusive"),
        (part(0.0, 0.05, -0.15, 0.15), "reproduced"),  # two one-sided tests of equivalence
        (part(0.05, 0.05, -0.15, 0.15), "inconclusive"),
        (part(0.0, 0.1, -0.15, 0.15), "inconclusive"),
        (part(0.3, 0.05, -0.15, 0.15), "contradicted"),
        (part(-0.3, 0.05, -0.15, 0.15), "contradicted"),
        (certain(1.0, "", "count", at_least=0.0), "reproduced"),
        (certain(0.0, "", "count", at_least=0.0), "reproduced"),  # at least
        (certain(-1.0, "", "count", at_least=0.0), "contradicted"),
    ],
)
def test_the_rule_for_a_part(judged_part: Part, verdict: str) -> None:
    assert judged_part.verdict == verdict


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([GOOD, GOOD], "reproduced"),
        ([GOOD, UNCLEAR], "inconclusive"),
        ([GOOD, UNCLEAR, BAD], "contradicted"),
    ],
)
def test_the_rule_for_several_parts(parts: list[Part], verdict: str) -> None:
    finding = decide(Evidence({}), parts)
    assert finding.verdict == verdict
    for failing, count in (("contradicted", parts.count(BAD)), ("inconclusive", parts.count(UNCLEAR))):
        assert (f"{failing} in {count} of {len(parts)} parts: here" in finding.note) == bool(count)


def test_the_effect_is_that_of_the_part_that_decides() -> None:
    """The least certain of parts that all hold, the most certain of those that fail, else one without a number."""
    assert decide(Evidence({}), [part(2, 0.4), part(3, 0.9), part(1, 0.1)]).effect == 3
    assert decide(Evidence({}), [GOOD, part(-1, 0.05), BAD]).effect == -1
    assert decide(Evidence({}), [UNCLEAR, part(9, NAN)]).effect == 9


def test_one_failure_of_many_parts_is_tested_at_bonferronis_level() -> None:
    """Of twenty true parts one is at -2.4 standard errors every other time."""
    doubtful = part(-0.24, 0.1)
    assert doubtful.verdict == "contradicted"
    assert decide(Evidence({}), [doubtful]).verdict == "contradicted"
    assert decide(Evidence({}), [doubtful, *[GOOD] * 19]).verdict == "inconclusive"
    assert decide(Evidence({}), [part(-1.0, 0.1), *[GOOD] * 19]).verdict == "contradicted"


def test_a_note_lists_a_dozen_parts() -> None:
    note = decide(Evidence({}), [BAD] * 15).note
    assert note.count("here: ") == 12 and "contradicted in 15 of 15 parts" in note and note.endswith("; 3 more")


def test_an_undecided_claim_says_where_it_leans() -> None:
    finding = decide(Evidence({}), [GOOD, UNCLEAR])
    assert (finding.verdict, finding.lean) == ("inconclusive", "reproduced")
    assert finding.seeds_needed is not None and 90 < finding.seeds_needed < 120  # of 9 seeds, 0.83 standard errors
    against = decide(Evidence({}), [GOOD, part(-0.5, 0.6)])
    assert against.lean == "contradicted" and against.seeds_needed is not None
    assert against.seeds_needed > finding.seeds_needed  # at Bonferroni's level
    nothing = decide(Evidence({}), [GOOD, part(NAN, NAN)])
    assert nothing.lean == "" and "leans to neither side, since here has no number" in nothing.note
    assert decide(Evidence({}), [GOOD]).lean == "" and decide(Evidence({}), [GOOD]).seeds_needed is None
    assert lean_text("contradicted", None) == "leans to contradicted" and lean_text("", 5) == ""
    hardly = decide(Evidence({}), [part(1e-6, 0.6)])
    assert "; more than 1,000 seeds would" in lean_text(hardly.lean, hardly.seeds_needed)


def test_no_part_is_no_verdict() -> None:
    with pytest.raises(NotRun, match="holds nothing"):
        decide(Evidence({}), [])


@pytest.mark.parametrize("parts", [[GOOD], [BAD], [GOOD, BAD]])
def test_an_attack_that_missed_its_gate_decides_nothing(parts: list[Part]) -> None:
    errors = rows("gp", "mse_input", ONES, points=[0.5, 0.9], sweep="fraction", attack="ig", void=True)
    evidence = Evidence({"pruning": errors})
    evidence.series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")
    finding = decide(evidence, parts)
    assert finding.verdict == "inconclusive" and finding.effect is not None
    assert finding.note.startswith("void: ig missed its gate on digits16 with small")


def test_images_are_averaged_over_their_batch() -> None:
    """Images of a client follow each other: indices 0 and 1 are those of batch 0."""
    frame = rows("gp", "mse_input", np.arange(6.0).reshape(1, 2, 3), points=[0.5], sweep="fraction", attack="ig")
    image = frame["metric"] == "mse_input"
    frame.loc[image & (frame["index"] % 2 == 1), "value"] += 1  # the second image of each batch
    found = Evidence({"pruning": frame}).series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")
    np.testing.assert_allclose(found.values, np.arange(6.0).reshape(1, 2, 3) + 0.5)
    assert (found.points, found.seeds) == ((0.5,), (0, 1))


def test_the_order_of_rows_does_not_matter() -> None:
    values = np.random.default_rng(0).normal(size=(3, 2, 4))
    frame = rows("gp", "mse_input", values, points=[0.9, 0.5, 0.7], sweep="fraction", attack="ig")
    evidence = Evidence({"pruning": frame.sample(frac=1, random_state=1)})
    found = evidence.series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")
    assert found.points == (0.5, 0.7, 0.9)
    np.testing.assert_allclose(found.values, values[[1, 2, 0]])


def test_curves_run_over_steps() -> None:
    curve = np.random.default_rng(0).normal(size=(5, 3, 1))
    found = Evidence({"training": rows("gp-90", "loss_curve", curve)}).series("training", "loss_curve", defense="gp-90")
    assert list(found.points) == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(found.values, curve)


def test_other_parameters_are_picked() -> None:
    parts = [rows("op-70", "u1_kept", [[[value]]], where={"batch_norm": mode}) for mode, value in BATCH_NORM.items()]
    evidence = Evidence({"predictors": table(*parts)})
    for mode, value in BATCH_NORM.items():
        found = evidence.series("predictors", "u1_kept", defense="op-70", where={"batch_norm": mode})
        assert found.values.item() == value
    with pytest.raises(NotRun, match="swept over more than this claim knows"):
        evidence.series("predictors", "u1_kept", defense="op-70")
    with pytest.raises(NotRun, match="there is no u1_kept of op-70 in predictors, batch_norm other"):
        evidence.series("predictors", "u1_kept", defense="op-70", where={"batch_norm": "other"})


BATCH_NORM = {"eval": 0.9, "train": 0.7}


def pruning(values: np.ndarray, **options: object) -> Evidence:
    frame = rows("gp", "mse_input", values, points=[0.5, 0.9], sweep="fraction", attack="ig", **options)  # type: ignore[arg-type]
    return Evidence({"pruning": frame})


def test_what_the_tables_lack_is_named() -> None:
    evidence = pruning(ONES)
    found = evidence.series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")
    with pytest.raises(NotRun, match=r"the grid of mse_input of gp in pruning under ig has no 0\.8; it has 0\.5, 0\.9"):
        found.at([0.8])
    for defense, attack in (("op", "ig"), ("gp", "other"), ("gp", None)):
        with pytest.raises(NotRun, match=f"there is no mse_input of {defense} in pruning"):
            evidence.series("pruning", "mse_input", sweep="fraction", defense=defense, attack=attack)
    with pytest.raises(NotRun, match=r"holds no number \(status: diverged\)"):
        pruning(NAN * ONES).series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")


def test_comparisons_are_of_shared_seeds_points_and_batches() -> None:
    one = pruning(ONES).series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")
    late = pruning(ONES, first_seed=2).series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")
    assert [series.seeds for series in same_seeds(one, late)] == [(2,), (2,)]
    assert [series.points for series in same_points(one, late.at([0.9]))] == [(0.9,), (0.9,)]
    assert [(point, series.points) for point, series in one.by_point()] == [(0.5, (0.5,)), (0.9, (0.9,))]
    later = pruning(ONES, first_seed=9).series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")
    with pytest.raises(NotRun, match="share no seed"):
        same_seeds(one, later)
    with pytest.raises(NotRun, match="share no point"):
        same_points(one.at([0.5]), late.at([0.9]))
    wide = pruning(np.ones((2, 3, 4))).series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")
    with pytest.raises(NotRun, match="different numbers of batches: 2, 4"):
        jackknife_of(one, wide)


def test_notes_say_what_was_measured() -> None:
    values = ONES.copy()
    values[0, 0, 0] = NAN
    evidence = pruning(values)
    evidence.series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")
    assert evidence.notes() == ["3 seeds x 2 batches", "2 numbers lost (diverged or infeasible)"]
    alone = pruning(ONES[:, :1])
    alone.series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction")
    assert alone.notes() == ["1 seed x 2 batches: fewer than 3 seeds decide nothing"]
    assert decide(alone, [certain(1.0, "", "count", at_least=0.0)]).note == "1 seed x 2 batches"
    assert "decide nothing" in decide(alone, [certain(1.0, "", "count", at_least=0.0), UNCLEAR]).note


def test_victims_of_their_own_are_no_factor_beside_seeds() -> None:
    """Their mean is the seed's number, and the degrees of freedom are those of seeds alone."""
    values = np.random.default_rng(0).normal(size=(2, 6, 2))
    shared, own = (pruning(values, distinct=distinct) for distinct in (False, True))
    series = [
        each.series("pruning", "mse_input", defense="gp", attack="ig", sweep="fraction") for each in (shared, own)
    ]
    np.testing.assert_allclose(series[1].values, values.mean(axis=2, keepdims=True))
    freedom = [level(each.at([0.5]), "", "").estimate.freedom for each in series]
    assert freedom == [1, 5]
    assert (shared.notes(), own.notes()) == (["6 seeds x 2 batches"], ["6 seeds, 2 batches each"])


def test_of_several_models_the_first_is_judged() -> None:
    cells = [
        rows(
            "gp", "final_loss", np.full((2, 3, 1), number), points=[0.5, 0.9], sweep="fraction", cell=("digits", model)
        )
        for number, model in enumerate(("small", "large"))
    ]
    evidence = Evidence({"pruning": table(*cells), "noise": cells[1]})
    found = evidence.series("pruning", "final_loss", defense="gp", sweep="fraction")
    assert (found.values == 0).all()
    assert evidence.notes()[-1] == "judged on digits with small, the first of several"
    with pytest.raises(NotRun, match="noise holds no digits with small"):
        evidence.series("noise", "final_loss", defense="gp", sweep="fraction")


def test_every_cell_can_be_judged() -> None:
    cells = {("a", "small"): 1.0, ("b", "small"): 2.0, ("b", "large"): 3.0}
    frames = [rows("gp", "final_loss", [[[value], [value]]], cell=cell) for cell, value in cells.items()]
    evidence = Evidence({"pruning": table(*frames), "noise": table(*frames[1:])})
    found = {name: one.series("pruning", "final_loss", defense="gp") for name, one in evidence.cells("pruning").items()}
    assert {name: float(series.values.mean()) for name, series in found.items()} == {
        "a with small": 1.0,
        "b with small": 2.0,
        "b with large": 3.0,
    }
    assert list(evidence.cells("pruning", "noise")) == ["b with small", "b with large"]
    assert evidence.notes() == ["2 seeds: fewer than 3 seeds decide nothing"]  # of all cells, none first

    lonely = Evidence({"pruning": table(frames[0]), "noise": table(*frames[1:])})
    with pytest.raises(NotRun, match="pruning and noise share no data set with a model"):
        lonely.cells("pruning", "noise")


def test_p_values_follow_the_verdict() -> None:
    """All parts have to hold; one that fails is enough, but there were several to choose from. Both sides count."""
    clear, near, bad = part(1.0, 0.1), part(0.24, 0.1), part(-0.3, 0.1)
    evidence = Evidence({})
    assert decide(evidence, [clear, near]).p == 2 * near.p_holds < 0.05
    assert decide(evidence, [clear, bad]).p == pytest.approx(2 * 2 * bad.p_fails)
    unclear = part(0.05, 0.1)
    assert decide(evidence, [clear, unclear]).p == 2 * unclear.p_holds > 0.05
    count = certain(3.0, "", "count", at_least=2.0)
    assert decide(evidence, [count]).p is None and decide(evidence, [count, near]).p == 2 * near.p_holds
    assert decide(evidence, [part(1, 0.1, seeds=2)]).p is None


def test_holm_over_the_claims_of_a_paper() -> None:
    """Three p-values: the least counts three times, the next twice; claims without one do not count."""
    findings = [Finding("reproduced", 1.0, p=p) for p in (0.01, None, 0.03, 0.03)]
    entries = [Claim("p", f"A{i}", "s", "Fig. 1", (), lambda _: findings[0]) for i in range(4)]
    found = verdict_rows(zip(entries, findings, strict=True))
    assert [row["p_holm"] for row in found] == [0.03, None, 0.06, 0.06]
    assert [row["p"] for row in found] == [0.01, None, 0.03, 0.03]
    assert [row["survives"] for row in found] == [True, False, False, False]
    assert all(list(row) == COLUMNS and row["verdict"] == "reproduced" for row in found)
    assert not survives("inconclusive", 0.01)


def papers_that_print(numbers: bool) -> list[str]:
    """Those with numbers beside their claims, or those without."""
    papers = sorted({entry.paper for entry in artifacts() if claims_of(entry.paper)})
    return [paper for paper in papers if (printed_in(paper) / "claims.csv").is_file() is numbers]


def printed_in(paper: str) -> Path:
    """The folder of what a paper prints."""
    return paper_folders()[paper].reference


@pytest.mark.parametrize("paper", papers_that_print(False))
def test_a_paper_without_printed_numbers_is_said_to_have_none(paper: str) -> None:
    page = paper_folders()[paper].page.read_text()
    assert "prints no number that a verdict could stand beside" in " ".join(page.split())
    assert not any(entry.printed for entry in claims_of(paper))


@pytest.mark.parametrize("paper", papers_that_print(True))
def test_printed_numbers_are_those_of_the_papers_tables(paper: str) -> None:
    """Each number beside a claim stands in the table or figure that is named with it, as it is kept here."""
    folder = printed_in(paper)
    listed = pd.read_csv(folder / "claims.csv", dtype=str)
    assert set(listed["claim"]) <= {entry.key for entry in claims_of(paper)} and len(listed) > 2
    for row in listed.to_dict("records"):
        ((kind, number),) = named_in(row["where"])
        reference = folder / f"{'fig' if kind == 'figure' else 'table'}{number:02d}.csv"
        there = {float(x) for x in NUMBER.findall(reference.read_text())}
        said = re.sub(r"ROUGE-[1L]|\b[A-Z]\w*\d+\b", "", row["printed"])
        numbers = [float(x) for x in NUMBER.findall(said)]
        assert numbers and all(abs(x) in there or x in there for x in numbers), row
    assert any(entry.printed.endswith(f"({listed['where'][0]})") for entry in claims_of(paper))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> str:
    """A paper with three claims of this test's own."""
    artifacts()  # once imported, the papers register nothing more
    monkeypatch.setattr(claims, "_claims", {})
    paper = "optimal_defense"

    @claim(
        paper,
        "A1",
        "Some loss is *small* & 5 % lower.",
        source="Fig. 4",
        experiments=(reads("pruning", defenses="gp"),),
    )
    def small(evidence: Evidence) -> Finding:
        losses = evidence.series("pruning", "final_loss", defense="gp", sweep="fraction")
        return decide(evidence, [level(losses, "", "nats", at_most=9.0)])

    @claim(paper, "A2", "Nothing measures it.", source="Fig. 99", experiments=("noise",))
    def nowhere(evidence: Evidence) -> Finding:
        raise NotRun("no number")

    @claim(paper, "T1", "It holds.", source="Theorem 1")
    def holds(_: Evidence) -> Finding:
        return Finding("reproduced", effect=0.25, meaning="slack", note="3 cases")

    return paper


def test_a_key_is_used_once(registered: str) -> None:
    with pytest.raises(ConfigError, match=f"{registered}: claim T1 is registered twice"):
        claim(registered, "T1", "Other.", source="Theorem 2")(lambda _: Finding("reproduced"))
    assert [entry.key for entry in claims_of(registered)] == ["A1", "A2", "T1"]
    assert claims_of("other") == []


def test_a_claim_that_cannot_be_judged_says_why() -> None:
    def find(evidence: Evidence) -> Finding:
        raise NotRun("the moon is missing")

    assert Claim("p", "A", "s", "Fig. 1", (), find).judge({}) == Finding("not run", note="the moon is missing")


def test_verdicts_without_tables(registered: str, tmp_path: Path) -> None:
    project = empty_project(tmp_path)
    found = [(entry.key, finding.verdict, finding.note) for entry, finding in judged(project, "smoke", registered)]
    table_of, other = (f"results/smoke/optimal_defense/{name}/records.parquet" for name in ("pruning", "noise"))
    assert found == [
        ("A1", "not run", f"make the tables with `snakemake --cores all {table_of}`"),
        ("A2", "not run", f"make the tables with `snakemake --cores all {other}`"),
        ("T1", "reproduced", "3 cases"),
    ]
    assert claims_inputs(project, "smoke", registered) == [table_of, other]
    path = claims_paths("smoke", registered)[0]
    with pytest.raises(RecordError, match=f"^{table_of}: missing; make it with `leakbench merge {table_of}`$"):
        judge(project, path)


def empty_project(root: Path) -> Project:
    shutil.copytree(Path(__file__).resolve().parents[2] / "config", root / "config")
    return Project(root)


def test_all_formats_are_written(registered: str, tmp_path: Path) -> None:
    project = new_project(tmp_path)
    for table_of in claims_inputs(project, "smoke", registered):
        merge(project, table_of)
    paths = claims_paths("smoke", registered)
    assert paths == [f"figures/smoke/optimal_defense/claims.{extension}" for extension in ("csv", "md", "tex")]
    judge(project, paths[1])
    csv, markdown, latex = ((tmp_path / path).read_text() for path in paths)
    frame = pd.read_csv(tmp_path / paths[0])
    assert list(frame) == COLUMNS
    assert frame["claim"].tolist() == ["A1", "A2", "T1"]
    assert frame["verdict"].tolist() == ["reproduced", "not run", "reproduced"]
    assert frame["low"][0] <= frame["effect"][0] <= frame["high"][0] and frame["effect"][2] == 0.25
    assert "Smoke scale" in markdown and "Smoke scale" in latex
    assert r"*small* \& 5 \%" in latex and r"optimal_defense" not in latex
    assert "| A1" in markdown and "nan" not in (csv + markdown + latex).lower()
    before = [(tmp_path / path).read_bytes() for path in paths]
    judge(project, paths[2])
    assert before == [(tmp_path / path).read_bytes() for path in paths]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("claims.csv", "expected figures/<scale>/<paper>/claims"),
        ("figures/smoke/optimal_defense/fig02.png", "expected figures/<scale>/<paper>/claims"),
        ("figures/smoke/optimal_defense/claims.pdf", "unknown format 'pdf'"),
        ("figures/smok/optimal_defense/claims.csv", "unknown scale 'smok'; did you mean 'smoke'"),
        ("figures/smoke/optimal/claims.csv", "unknown paper 'optimal'"),
    ],
)
def test_paths_that_are_no_claims(tmp_path: Path, path: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        judge(empty_project(tmp_path), path)


@pytest.mark.parametrize(
    ("numbers", "text"),
    [((None, None, None), ""), ((0.25, None, None), "0.25"), ((1.23456, -1.0, 2.0), "1.23 [-1, 2]")],
)
def test_numbers_to_read(numbers: tuple[float | None, float | None, float | None], text: str) -> None:
    assert effect_text(*numbers) == text
    json.dumps(numbers)
