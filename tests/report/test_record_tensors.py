"""Tensors of records, found by the labels of their jobs: the right ones, and what is missing named with a remedy."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from leakbench.errors import RecordError
from leakbench.jobs.base import Job
from leakbench.planning.project import Project
from leakbench.records import read_record, read_tensors
from leakbench.report.artifacts import artifact_of
from leakbench.report.record_tensors import RecordTensors

EXPERIMENTS = ("pictures", "coordinates", "architecture")


def jobs_of(project: Project) -> dict[str, list[Job]]:
    return {name: project.plan("smoke").experiment_jobs("optimal_defense", name) for name in EXPERIMENTS}


@pytest.fixture
def stored(rendered: Project) -> RecordTensors:
    return RecordTensors(rendered.root, jobs_of(rendered))


def path_of(experiment: str, defense: str, work: str) -> str:
    return f"results/smoke/optimal_defense/{experiment}/digits16/small/{defense}/{work}/all.json"


def test_tensors_are_those_of_the_record(stored: RecordTensors) -> None:
    path = stored.root / path_of("coordinates", "optimal-0.1", "fisher")
    named = read_record(path).tensors
    assert named is not None
    expected, found = read_tensors(path, named), stored.tensors("coordinates", "optimal-0.1", "fisher")
    assert set(found) == set(expected) and all(torch.equal(found[key], expected[key]) for key in expected)
    with pytest.raises(TypeError):
        found["more"] = torch.zeros(1)  # type: ignore[index]


def test_reconstructions_in_victim_order(stored: RecordTensors) -> None:
    """The synthetic assignment turns each batch around."""
    tensors = stored.tensors("pictures", "dpsgd-0.05", "ig")
    (row,) = stored.reconstructions("pictures", "dpsgd-0.05", "ig")
    assert torch.equal(row.victims, tensors["seed0/victims"][0])
    assert torch.equal(row.images, tensors["seed0/reconstructions"][0, 0].flip(0))
    (replicate,) = read_record(stored.root / path_of("pictures", "dpsgd-0.05", "ig")).replicates
    assert row.psnr.tolist() == pytest.approx(replicate.metrics["assigned_psnr"])


@pytest.mark.parametrize(
    ("job", "fault"),
    [
        (("pictures", "gp", "ig"), "pictures: no job of defense 'gp' and 'ig' with seed 0"),
        (("pictures", "none", "train"), "pictures: no job of defense 'none' and 'train' with seed 0"),
        (("architecture", "none", "inventory"), "holds no tensors: its kind of job keeps none"),
    ],
)
def test_jobs_that_have_none(stored: RecordTensors, job: tuple[str, str, str], fault: str) -> None:
    with pytest.raises(RecordError, match=re.escape(fault)):
        stored.tensors(*job)
    with pytest.raises(RecordError, match="no job of defense 'none' and 'ig' with seed 7"):
        stored.reconstructions("pictures", "none", "ig", seed=7)


def test_missing_tensors_are_named_with_the_command(rendered: Project, tmp_path: Path) -> None:
    path = path_of("pictures", "none", "ig")
    stored = RecordTensors(tmp_path, jobs_of(rendered))
    with pytest.raises(RecordError, match=f"^{path}: missing; make it with `leakbench run {path}`$"):
        stored.reconstructions("pictures", "none", "ig")
    (tmp_path / path).parent.mkdir(parents=True)
    shutil.copy(rendered.root / path, tmp_path / path)
    with pytest.raises(
        RecordError, match=r"all\.safetensors: missing; make it again with `leakbench run .*all\.json`$"
    ):
        stored.reconstructions("pictures", "none", "ig")


def test_a_figure_asks_for_the_tensors_it_draws(rendered: Project, tmp_path: Path) -> None:
    shutil.copytree(rendered.root / "config", tmp_path / "config")
    experiment = "results/smoke/optimal_defense/coordinates"
    shutil.copytree(rendered.root / experiment, tmp_path / experiment)
    project, path = Project(tmp_path), "figures/smoke/optimal_defense/fig01.png"
    artifact_of(path).render(project, path)
    assert (tmp_path / path).read_bytes() == (rendered.root / path).read_bytes()
    (tensors,) = (tmp_path / experiment).rglob("*.safetensors")
    tensors.write_bytes(b"else")
    with pytest.raises(RecordError, match="altered since"):
        artifact_of(path).render(project, path)
