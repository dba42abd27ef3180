"""Labels that claims, figures and tables read: a renamed one stops planning, one that a scale leaves out does not."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.report.synthetic import ROOT, tidy_tables
from tests.report.tables import rows

from leakbench.cli import main
from leakbench.errors import ConfigError, UnknownName
from leakbench.paper_folders import PaperFolder, paper_folders
from leakbench.planning.project import Project
from leakbench.report.artifacts import artifact_of
from leakbench.report.catalogue import catalogue
from leakbench.report.claims import check_readers
from leakbench.report.evidence import Evidence
from leakbench.report.judging import judged
from leakbench.report.labels import Reads, declared, fits, reads
from leakbench.report.tidy import table_path
from leakbench.workflow.snakefile import Workflow

PAPER = "optimal_defense"
FOLDER = paper_folders()[PAPER]


def test_a_declaration_lists_labels_by_axis() -> None:
    read = reads("pruning", defenses={"gp": "gradient pruning", "op": "optimal pruning"}, attacks="ig")
    assert read == Reads("pruning", defenses=("gp", "op"), attacks=("ig",))
    assert list(read.labels()) == [("defenses", "gp"), ("defenses", "op"), ("attacks", "ig")]
    assert declared(["pruning", read]) == (Reads("pruning"), read)


def test_a_pattern_fits_some_labels() -> None:
    assert fits("resnet*", ["lenet", "resnet18"]) and not fits("resnet*", ["lenet"]) and not fits("op", ["op-80"])
    read = reads("pruning", defenses="op*")
    assert read.has("defenses", "op-80") and not read.has("defenses", "gp") and not read.has("attacks", "op-80")


@pytest.mark.parametrize(
    "ask",
    [
        lambda evidence: evidence.series("pruning", "final_loss", defense="op"),
        lambda evidence: evidence.series("pruning", "mse_input", defense="gp", attack="dlg"),
        lambda evidence: evidence.metrics("pruning", "", defense="op"),
        lambda evidence: evidence.swept("pruning", "fraction", defense="op"),
    ],
)
def test_evidence_refuses_labels_that_are_not_declared(ask: Callable[[Evidence], object]) -> None:
    frame = rows("gp", "mse_input", np.ones((1, 2, 2)), attack="ig")
    evidence = Evidence({"pruning": frame}, [reads("pruning", defenses="gp", attacks="ig")])
    evidence.series("pruning", "mse_input", defense="gp", attack="ig")
    with pytest.raises(ConfigError, match="undeclared"):
        ask(evidence)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    return tmp_path


@pytest.fixture
def renamed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The paper with another name of op, in its grid and in its scales."""
    grid, smoke = checkout / "grid.yaml", checkout / "smoke.yaml"
    for file, original in ((grid, FOLDER.grid), (smoke, FOLDER.scale("smoke"))):
        file.write_text(re.sub(r"(?<![\w-])op(?![\w-])", "op2", original.read_text()))
    monkeypatch.setattr(PaperFolder, "grid", property(lambda _: grid))
    monkeypatch.setattr(PaperFolder, "scale", lambda *_: smoke)
    return Project(checkout, {"papers": [PAPER]})


def test_a_renamed_label_stops_planning_listing_judging_and_drawing(
    renamed: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = r"experiments\.pruning\.defenses, read by figure 2: unknown defense 'op'; did you mean 'op2'\?"
    assert renamed.plan("smoke").jobs, "nothing but the readers is wrong"
    with pytest.raises(UnknownName, match=message):
        Workflow(renamed.root, {"papers": [PAPER]}).targets()
    for what in ("artifacts", "papers"):
        with pytest.raises(UnknownName, match=message):
            catalogue(renamed, what)
    entry = artifact_of(f"figures/smoke/{PAPER}/fig02.png")
    with pytest.raises(UnknownName, match=message):
        entry.render(renamed, entry.path("smoke", "png"))
    with pytest.raises(UnknownName, match="read by claim E1: unknown defense 'op'"):
        list(judged(renamed, "smoke", PAPER))
    monkeypatch.chdir(renamed.root)
    assert main(["--set", f"papers=[{PAPER}]", "claims"]) == 1
    assert "read by claim E1: unknown defense 'op'; did you mean 'op2'?" in capsys.readouterr().err


def test_the_note_of_a_claim_that_is_not_run_names_what_a_user_leaves_out(checkout: Path) -> None:
    """The paper's grid has the label, so that it is no mistake of the claim."""
    overlay = checkout / "config" / "papers" / f"{PAPER}.yaml"
    overlay.parent.mkdir()
    overlay.write_text("experiments: {pruning: {defenses: [gp]}}")
    project = Project(checkout, {"papers": [PAPER]})
    plan = project.plan("smoke")
    assert plan.papers[PAPER].experiments["pruning"].defenses == ["gp"]
    check_readers(plan)
    tables = tidy_tables(plan)
    for experiment in ("pruning", "undefended"):
        table = checkout / table_path("smoke", PAPER, experiment)
        table.parent.mkdir(parents=True)
        tables[experiment].to_parquet(table)
    findings = {entry.key: finding for entry, finding in judged(project, "smoke", PAPER)}
    for key in ("E1", "E5"):
        assert findings[key].verdict == "not run"
        place = f"config/papers/{PAPER}.yaml: experiments.pruning.defenses"
        assert findings[key].note.endswith(f"; the configuration leaves out defense 'op' ({place})")
