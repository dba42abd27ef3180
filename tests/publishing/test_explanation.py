"""From a row of a figure to the records behind it."""

from __future__ import annotations

import pandas as pd
import pytest
from tests.report.synthetic import configured, new_project

from leakbench.errors import ConfigError, RecordError
from leakbench.planning.project import Project
from leakbench.publishing.explanation import explain, matching
from leakbench.records import read_record
from leakbench.report.tidy import merge, table_path

PAPER = "optimal_defense"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A checkout with one figure. Change nothing in it."""
    project = new_project(tmp_path_factory.mktemp("explained"))
    (entry,) = (each for each in configured(project) if each.name == "fig04")
    for experiment in entry.experiments:
        merge(project, table_path("smoke", PAPER, experiment))
    entry.render(project, entry.paths("smoke")[0])
    return project


def test_records_behind_a_row(project: Project) -> None:
    rows = pd.read_csv(project.root / f"figures/smoke/{PAPER}/fig04.csv")
    for number in (1, len(rows)):
        explanation = explain(project, f"figures/smoke/{PAPER}/fig04:{number}")
        series = rows.iloc[number - 1]["series"]
        assert explanation.row["series"] == series and explanation.sources
        named: set[str] = set()
        for source in explanation.sources:
            record = read_record(project.root / source.path)
            job = project.plan("smoke").jobs[source.path]
            named |= {each.component.name.replace("_", " ") for each in (job.defense, job.attack) if each is not None}
            assert source.state == "done" and source.digest == job.digest
            assert (source.commit, source.data) == (record.provenance.commit, record.provenance.data)
        assert series in named


def test_words_that_name_nothing_tell_nothing_apart(project: Project) -> None:
    jobs = list(project.plan("smoke").jobs.values())
    assert matching({"panel": "a panel", "mean": 0.5}, jobs) == jobs
    attacked = matching({"attack": "ig", "dataset": "digits16"}, jobs)
    assert {job.attack.label for job in attacked if job.attack} == {"ig"}
    assert any(job.attack is None for job in attacked) and len(attacked) < len(jobs)


def test_a_path_with_an_ending_is_the_same(project: Project) -> None:
    first = explain(project, f"figures/smoke/{PAPER}/fig04:1")
    assert explain(project, f"figures/smoke/{PAPER}/fig04.png:1") == first


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("figures/smoke/optimal_defense/fig04", "expected figures/"),
        ("figures/smoke/optimal_defense/fig04:0", "Allowed: 1 to"),
        ("figures/smoke/optimal_defense/fig99:1", "fig99"),
    ],
)
def test_nothing_there(project: Project, target: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        explain(project, target)


def test_a_figure_that_was_not_drawn(project: Project) -> None:
    with pytest.raises(RecordError, match="make it with"):
        explain(project, f"figures/smoke/{PAPER}/table01:1")
