"""Every label that a claim, figure or table reads by name is declared, and a renamed one is an error of planning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.text import Text
from tests.papers.test_compared_defenses import evaluated
from tests.report.synthetic import ROOT, record_of, tidy_tables
from tests.workflow.quick_jobs import findings

from leakbench.errors import UnknownName
from leakbench.planning.layers import Layers
from leakbench.planning.paper_plan import PaperPlan
from leakbench.planning.plan import Plan
from leakbench.planning.project import Project
from leakbench.records import Record, write_record, write_tensors
from leakbench.report.artifacts import Artifact, Made, artifacts
from leakbench.report.claims import Claim, check_readers, claims_of
from leakbench.report.labels import AXES, Reads
from leakbench.report.record_tensors import RecordTensors

Reader = Artifact | Claim
COLUMNS = {"datasets": "dataset", "models": "model", "defenses": "defense", "attacks": "attack"}
"""Axes of a grid -> their columns in tidy tables."""
MARK = "~"
"""Stands before labels that are renamed."""


@cache
def plan() -> Plan:
    return Project(ROOT).plan("smoke")


@cache
def tables_of(paper: str) -> Mapping[str, pd.DataFrame]:
    return evaluated(tidy_tables(plan(), paper))


READERS: list[Reader] = [entry for entry in artifacts() if entry.experiments]
READERS += [entry for paper in plan().papers for entry in claims_of(paper) if entry.experiments]


def name(entry: Reader) -> str:
    return f"{entry.paper}-{entry.name if isinstance(entry, Artifact) else entry.key}"


# Declared labels are looked up.


@pytest.mark.parametrize("scale", ["smoke", "laptop", "full"])
def test_the_grids_have_every_declared_label(scale: str) -> None:
    check_readers(Project(ROOT).plan(scale))


def renamed(paper: str, axis: str, declared: str) -> Plan:
    """The plan of a paper whose grid and scale have other names for what a declaration names."""
    grid = plan()._plans[paper]
    layers = [replace(layer, content=_renamed(layer.content, axis, declared)) for layer in grid._layers._layers]
    other = Plan.__new__(Plan)
    other.scale, other._plans = "smoke", {paper: PaperPlan("smoke", paper, Layers(layers), [])}
    return other


def _renamed(node: Any, axis: str, declared: str, below: str = "") -> Any:
    """A mapping of the configuration with the labels on an axis renamed that fit a declaration."""
    if isinstance(node, dict):
        labelled = below == axis or (below, axis) == ("gates", "attacks")
        return {
            _other(key, declared) if labelled else key: _renamed(value, axis, declared, key)
            for key, value in node.items()
        }
    if isinstance(node, list) and below == axis:
        return [_other(label, declared) for label in node]
    return node


def _other(label: str, declared: str) -> str:
    """Another name, which a pattern does not fit, for what a declaration names."""
    if not fnmatchcase(label, declared):
        return label
    return label[::-1] if "*" in declared else f"my{label}"


DECLARED = sorted(
    {(entry.paper, axis, label) for entry in READERS for each in entry.reads for axis, label in each.labels()}
)


@pytest.mark.parametrize(("paper", "axis", "label"), DECLARED, ids=map("-".join, DECLARED))
def test_a_renamed_label_is_an_error_that_names_its_readers(paper: str, axis: str, label: str) -> None:
    other = renamed(paper, axis, label)
    for entry in READERS:
        read = [(axis, label) in each.labels() for each in entry.reads]
        if entry.paper == paper and any(read):
            reader = f"{entry.kind} {entry.number}" if isinstance(entry, Artifact) else f"claim {entry.key}"
            place = rf"^\S+\.yaml: .*experiments\..*{axis}, read by {reader}: "
            with pytest.raises(UnknownName, match=place) as error:
                entry.check(other)
            if "*" not in label:
                message = str(error.value)
                assert f"unknown {AXES[axis]} '{label}'" in message and f"my{label}" in message
                assert "did you mean" in message or len(label) < 4


def test_a_renamed_experiment_is_an_error() -> None:
    grid = plan()._plans["optimal_defense"]
    layers = []
    for layer in grid._layers._layers:
        experiments = {f"my{key}": value for key, value in layer.content.get("experiments", {}).items()}
        layers.append(replace(layer, content=layer.content | {"experiments": experiments}))
    other = Plan.__new__(Plan)
    other._plans = {"optimal_defense": PaperPlan("smoke", "optimal_defense", Layers(layers), [])}
    with pytest.raises(UnknownName, match="read by figure 1: unknown experiment 'coordinates'; did you mean 'mycoord"):
        check_readers(other)


# Labels that are not declared may have any name.


@dataclass(frozen=True)
class Elsewhere(RecordTensors):
    """Tensors of records whose undeclared labels are renamed."""

    reads: tuple[Reads, ...] = ()

    def _record(self, experiment: str, defense: str, work: str, seed: int) -> tuple[str, Record]:
        read = next(each for each in self.reads if each.experiment == experiment)
        for axis, label in (("defenses", defense), ("attacks", work)):
            kinds = {job.kind.name for job in self.jobs[experiment]}
            assert label.startswith(MARK) or read.has(axis, label) or label in kinds, f"{label} is not declared"
        return super()._record(experiment, defense.removeprefix(MARK), work.removeprefix(MARK), seed)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records")


def stored(entry: Artifact, root: Path) -> Elsewhere:
    """The tensors that an artifact reads, written when they are first asked for."""
    jobs = {experiment: plan().experiment_jobs(entry.paper, experiment) for experiment in entry.tensors}
    for job in (job for of_experiment in jobs.values() for job in of_experiment):
        if not (root / job.path).exists():
            record, tensors = record_of(job), findings(replace(job, experiment="pictures")).tensors
            if tensors:
                record.tensors = write_tensors((root / job.path).with_suffix(".safetensors"), tensors)
            write_record(root / job.path, record)
    return Elsewhere(root, jobs, reads=entry.reads)


def marked(entry: Reader) -> dict[str, pd.DataFrame]:
    """The tables that a claim or artifact reads, with a mark before every label that it does not declare."""
    tables = {}
    for read in entry.reads:
        frame = tables_of(entry.paper)[read.experiment].copy()
        for axis, column in COLUMNS.items():
            labels = frame[column].dropna().unique()
            frame[column] = frame[column].replace({each: MARK + each for each in labels if not read.has(axis, each)})
        tables[read.experiment] = frame
    return tables


def shown(made: Made) -> tuple[Counter[Any], Counter[str]]:
    """The numbers of an artifact, a row each, and the words in a figure, all without marks."""
    frame, texts = (made, []) if isinstance(made, pd.DataFrame) else (made.numbers, made.figure.findobj(Text))
    rows = [tuple((str(key), _plain(value)) for key, value in row.items()) for row in frame.to_dict("records")]
    return Counter(rows), Counter(_plain(text.get_text()) for text in texts if isinstance(text, Text))


def _plain(value: Any) -> str:
    return (
        " ".join(value.replace(MARK, "").split())  # a mark may move the end of a line
        if isinstance(value, str)
        else f"{value:.9g}"
        if isinstance(value, float)
        else str(value)
    )


ARTIFACTS = [entry for entry in READERS if isinstance(entry, Artifact) and name(entry) != "tfl_meta-figS7"]
"""All but one, whose tensors no quick job keeps."""


@pytest.mark.parametrize("entry", ARTIFACTS, ids=name)
def test_an_artifact_reads_no_label_that_it_does_not_declare(entry: Artifact, root: Path) -> None:
    tables = {read.experiment: tables_of(entry.paper)[read.experiment].copy() for read in entry.reads}
    made = [entry.made(each, stored(entry, root), {}) for each in (tables, marked(entry))]
    assert shown(made[1]) == shown(made[0])


@pytest.mark.parametrize("entry", [each for each in READERS if isinstance(each, Claim)], ids=name)
def test_a_claim_reads_no_label_that_it_does_not_declare(entry: Claim) -> None:
    """Of defenses and attacks :class:`Evidence` sees to it, too; this asks about data sets and models."""
    tables = {read.experiment: tables_of(entry.paper)[read.experiment] for read in entry.reads}
    finding, other = entry.judge(tables), entry.judge(marked(entry))
    assert replace(other, note=_plain(other.note), meaning=_plain(other.meaning)) == finding
