"""From records to one row per number, and a list of what is missing."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from tests.report.synthetic import ROOT, new_project, record_of

from leakbench import cli
from leakbench.errors import ConfigError, DataChanged, RecordError
from leakbench.leaderboard.lines import lines_path
from leakbench.planning.project import Project
from leakbench.records import MetricInfo, Outcome, Record, Replicate, atomic_write, write_record
from leakbench.report.judging import claims_path
from leakbench.report.tidy import (
    SETTING,
    adaptive_path,
    gates_path,
    merge,
    missing_path,
    needed,
    provenance_path,
    table_path,
    tidy_rows,
)

CELL = "results/smoke/optimal_defense/{}/digits16/small/{}/{}/all.json"
TABLE = table_path("smoke", "optimal_defense", "pruning")


def changed(path: str, replicates: list[Replicate], metrics: dict[str, MetricInfo]) -> tuple[Any, Record]:
    job = Project(ROOT).job(path)
    return job, record_of(job).model_copy(update={"replicates": replicates, "metrics": metrics})


def test_a_row_per_number() -> None:
    metrics = {
        "mse": MetricInfo(unit="squared pixel", direction="lower", axis="image"),
        "bits": MetricInfo(unit="bits", direction="lower"),
        "lpips": MetricInfo(unit="1", direction="lower", axis="image"),
    }
    replicate = Replicate(
        seed=2,
        setting={"fraction": 0.5},
        outcome=Outcome(status="diverged", reason="non-finite", step=3),
        metrics={"mse": [0.25, None], "bits": 32.0, "lpips": None},
        reasons={"mse": "non-finite", "lpips": "not staged"},
    )
    job, record = changed(CELL.format("pruning", "gp", "ig"), [replicate, replicate], metrics)
    assert len(list(tidy_rows(job, record))) == 8
    rows = list(tidy_rows(replace(job, kind=job.kind.model_copy(update={"budget": True})), record))[:5]
    shared = {
        "scale": "smoke",
        "paper": "optimal_defense",
        "experiment": "pruning",
        "dataset": "digits16",
        "model": "small",
        "defense": "gp",
        "mechanism": "magnitude_pruning",
        "attack": "ig",
        "kind": "attack",
        "void": False,
        "seed": 2,
        "status": "diverged",
        SETTING + "fraction": 0.5,
    }
    assert [{key: row[key] for key in shared} for row in rows] == [shared] * 5
    assert [(row["metric"], row["unit"], row["direction"], row["axis"], row["index"]) for row in rows] == [
        ("mse", "squared pixel", "lower", "image", 0),
        ("mse", "squared pixel", "lower", "image", 1),
        ("bits", "bits", "lower", None, 0),
        ("lpips", "1", "lower", "image", 0),
        ("device_s", "s of the processor or GPU", "none", None, 0),
    ]
    assert rows[4]["value"] == record.cost.device_s / 2
    values = [row["value"] for row in rows]
    assert values[0] == 0.25 and math.isnan(values[1]) and values[2] == 32.0 and math.isnan(values[3])


def test_training_has_no_attack() -> None:
    job = Project(ROOT).job(CELL.format("pruning", "gp", "train"))
    rows = list(tidy_rows(job, record_of(job)))
    assert {row["attack"] for row in rows} == {None} and {row["kind"] for row in rows} == {"train"}
    curve = [
        row for row in rows if row["metric"] == "loss_curve" and row["seed"] == 0 and row["setting.fraction"] == 0.5
    ]
    assert [row["index"] for row in curve] == list(range(5)) and {row["axis"] for row in curve} == {"step"}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return new_project(tmp_path)


def test_merge(project: Project) -> None:
    merge(project, TABLE)
    frame = pd.read_parquet(project.root / TABLE)
    jobs = project.plan("smoke").experiment_jobs("optimal_defense", "pruning")
    expected = pd.DataFrame([row for job in jobs for row in tidy_rows(job, record_of(job))])
    pd.testing.assert_frame_equal(frame, expected, check_dtype=False)
    assert set(frame["kind"]) == {"attack", "train"} and set(frame["defense"]) == {"gp", "op"}


def test_missing_numbers_are_listed_with_their_reasons(project: Project) -> None:
    table = table_path("smoke", "optimal_defense", "noise")
    merge(project, table)
    missing = pd.read_csv(project.root / missing_path(table))
    assert list(missing.columns) == ["record", "seed", "setting", "metric", "reason"]
    attacks = missing[missing["metric"] == "lpips"]
    assert len(attacks) == 2 * 6 * 4  # defenses, seeds, settings
    assert set(attacks["reason"]) == {"the weights are not <staged>"}
    diverged = missing[missing["reason"].str.contains("non-finite")]
    assert diverged.to_dict("records") == [
        {
            "record": CELL.format("noise", "dpsgd", "train"),
            "seed": 1,
            "setting": '{"scale": 0.1}',
            "metric": metric,
            "reason": "training became non-finite at step 1",
        }
        for metric in ("loss_curve", "final_loss", "accuracy")
    ]


@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("draw figures/smoke/optimal_defense/fig02.csv", TABLE.replace("pruning", "undefended")),
        ("claims", TABLE),
        ("board", lines_path("smoke")),
        ("explain figures/smoke/optimal_defense/fig02:1", "figures/smoke/optimal_defense/fig02.csv"),
        ("publish --paper optimal_defense", claims_path("smoke", "optimal_defense")),
        ("list papers", claims_path("smoke", "optimal_defense")),
    ],
)
def test_a_damaged_table_is_named_with_what_makes_it(
    project: Project, command: str, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for experiment in project.plan("smoke").papers["optimal_defense"].experiments:
        atomic_write(project.root / table_path("smoke", "optimal_defense", experiment), b"PAR1")
    atomic_write(project.root / path, b"PAR1" if path.endswith("parquet") else b"")
    assert cli.main(["--root", str(project.root), *command.split()]) == 1
    said = capsys.readouterr().err
    assert ": cannot be read; delete it, and make it again with `leakbench " in said
    assert path in said or path.endswith("parquet")


def test_nothing_missing_is_an_empty_list(project: Project) -> None:
    table = table_path("smoke", "optimal_defense", "architecture")
    merge(project, table)
    assert pd.read_csv(project.root / missing_path(table)).empty


def test_an_experiment_that_the_scale_leaves_out_is_an_empty_table(project: Project) -> None:
    """Whoever reads its tables finds their columns."""
    project = Project(project.root, {"papers": ["leaderboard"]})
    assert not project.plan("smoke").experiment_jobs("leaderboard", "batch")
    table = table_path("smoke", "leaderboard", "batch")
    merge(project, table)
    assert pd.read_parquet(project.root / table).empty
    for path in (missing_path(table), provenance_path(table), gates_path(table), adaptive_path(table)):
        assert pd.read_csv(project.root / path).empty


def test_a_missing_record(project: Project) -> None:
    path = CELL.format("pruning", "gp", "ig")
    (project.root / path).unlink()
    with pytest.raises(RecordError, match=f"^{path}: missing; make it with `leakbench run {path}`$"):
        merge(project, TABLE)
    assert not (project.root / TABLE).exists()


def test_a_broken_record_is_moved_aside(project: Project) -> None:
    path = project.root / CELL.format("pruning", "op", "train")
    path.write_text("{")
    with pytest.raises(RecordError, match=re.escape(str(path))) as caught:
        merge(project, TABLE)
    assert "run the same command again to regenerate it" in str(caught.value)
    assert not path.exists()
    assert [found.read_text() for found in path.parent.glob("all.json.corrupt-*")] == ["{"]


def test_a_record_of_another_configuration_is_refused(project: Project) -> None:
    path = project.root / "config" / "papers" / "optimal_defense.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump({"variants": {"attacks": {"ig": {"restarts": 2}}}}))
    with pytest.raises(RecordError, match=r"gp/ig/all.json: made by another configuration or version of a component"):
        merge(Project(project.root), TABLE)
    assert (project.root / CELL.format("pruning", "gp", "ig")).exists()


def test_records_are_those_of_the_plan(project: Project) -> None:
    record = record_of(project.job(CELL.format("pruning", "gp", "ig")))
    write_record(project.root / CELL.format("pruning", "op", "ig"), record)  # copied by hand to another cell's place
    with pytest.raises(RecordError, match=r"op/ig/all.json: made by another configuration"):
        merge(project, TABLE)


@pytest.mark.parametrize("table", ["results/smoke/records.parquet", TABLE.replace("pruning", "prunning"), "table.csv"])
def test_tables_that_do_not_exist(project: Project, table: str) -> None:
    with pytest.raises(ConfigError, match=f"^{table}: "):
        merge(project, table)


def test_records_of_different_data_are_not_mixed(project: Project) -> None:
    paths = [CELL.format("pruning", label, "ig") for label in ("gp", "op")]

    def made_from(path: str, data: str | None) -> None:
        record = record_of(project.job(path))
        provenance = record.provenance.model_copy(update={"data": data})
        write_record(project.root / path, record.model_copy(update={"provenance": provenance}))

    made_from(paths[0], "0123456789abcdef")  # the others were made before anybody noted it
    merge(project, TABLE)
    made_from(paths[1], "0123456789abcdef")
    merge(project, TABLE)
    made_from(paths[1], "fedcba9876543210")
    before = (project.root / TABLE).read_bytes()
    with pytest.raises(DataChanged) as caught:
        merge(project, TABLE)
    message = str(caught.value)
    assert message.startswith(f"{paths[0]} and {paths[1]} were made from different files of data set 'digits16'")
    assert "fingerprints 0123456789abcdef and fedcba9876543210; that of the files here: none" in message
    assert "`grep -rl 0123456789abcdef results/smoke/optimal_defense` lists" in message
    assert (project.root / TABLE).read_bytes() == before


def test_the_undefended_record_of_a_gate_is_of_the_same_data(project: Project) -> None:
    table = table_path("smoke", "optimal_defense", "pruning")
    undefended = CELL.format("undefended", "none", "ig")
    assert undefended in [job.path for job in needed(project, table)]
    for path, data in ((undefended, "a" * 16), (CELL.format("pruning", "gp", "ig"), "b" * 16)):
        record = record_of(project.job(path))
        provenance = record.provenance.model_copy(update={"data": data})
        write_record(project.root / path, record.model_copy(update={"provenance": provenance}))
    with pytest.raises(DataChanged, match=r"undefended/digits16/small/none/ig/all.json were made from different files"):
        merge(project, table)
