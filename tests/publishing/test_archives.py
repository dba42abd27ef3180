"""Published records: archives that are whole, adopted as if computed here, and checked against new computation."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.report.synthetic import ROOT, configured, new_project, record_of

from leakbench.errors import ConfigError
from leakbench.planning.project import Project
from leakbench.publishing.adoption import adopt
from leakbench.publishing.archives import LICENCE, SUMS, archive_folder, read_archives, write_archives
from leakbench.records import RESULTS, Record, read_record, read_tensors, write_record, write_tensors
from leakbench.report.schemas import schemas
from leakbench.report.tidy import merge, table_path

PAPER = "optimal_defense"


@pytest.fixture(scope="module")
def publisher(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A checkout that published all of its records. Change nothing in it."""
    project = new_project(tmp_path_factory.mktemp("publisher"))
    write_archives(project, "smoke", [PAPER])
    return project


@pytest.fixture
def project(publisher: Project, tmp_path: Path) -> Project:
    """A fresh clone: what is published, and no results."""
    for name in ("config", "published"):
        shutil.copytree(publisher.root / name, tmp_path / name)
    return Project(tmp_path)


def every_record(project: Project) -> Iterator[tuple[str, Record]]:
    for path in project.plan("smoke").jobs:
        yield path, read_record(project.root / path)


def signed(project: Project) -> None:
    """Write the digests of changed files, as a cheat would."""
    folder = archive_folder(project, "smoke")
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files]
    (folder / SUMS).write_text("".join(lines))


def rewritten(project: Project, change: Callable[[list[str]], list[str]], name: str = "pruning") -> None:
    """Change the lines of an archive."""
    path = archive_folder(project, "smoke") / PAPER / f"{name}.jsonl.xz"
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    path.write_bytes(lzma.compress("\n".join(change(lines)).encode()))
    signed(project)


def test_what_is_adopted_is_what_was_published(publisher: Project, project: Project) -> None:
    adoption = adopt(project, "smoke", [PAPER])
    assert sorted(adoption.adopted) == sorted(project.plan("smoke").jobs) and not adoption.left_out
    theirs = dict(every_record(publisher))
    pictured = {name for entry in configured(project) for name in entry.tensors}
    for path, record in every_record(project):
        assert record.model_copy(update={"tensors": None}) == theirs[path].model_copy(update={"tensors": None})
        whole = theirs[path].tensors
        if path.split("/")[3] in pictured and whole is not None:
            assert record.tensors is not None
            kept, every = read_tensors(project.root / path, record.tensors), read_tensors(publisher.root / path, whole)
            assert set(kept) == {key for key in every if key.startswith("seed0/")}
            assert all(torch.equal(each, every[key]) for key, each in kept.items())
        else:
            assert record.tensors is None
    assert adopt(project, "smoke", [PAPER]).adopted == []  # a second time


def test_figures_are_drawn_from_adopted_records(project: Project) -> None:
    """Also those of pictures, whose tensors are published."""
    adopt(project, "smoke", [PAPER])
    for experiment in project.plan("smoke").papers[PAPER].experiments:
        merge(project, table_path("smoke", PAPER, experiment))
    pictures = [entry for entry in configured(project) if entry.tensors]
    assert pictures
    for entry in pictures:
        path = entry.paths("smoke")[0]
        entry.render(project, path)
        assert (project.root / path).stat().st_size > 0


def test_adopted_records_have_one_time(project: Project) -> None:
    """Snakemake runs again what is older than a file that it was computed from."""
    adopt(project, "smoke", [PAPER])
    paths = list(project.plan("smoke").jobs)
    assert len({(project.root / path).stat().st_mtime_ns for path in paths}) == 1
    os.utime(project.root / paths[0], (1, 1))
    adopt(project, "smoke", [PAPER])
    assert (project.root / paths[0]).stat().st_mtime == 1, "nothing was new"
    (project.root / paths[1]).unlink()
    adopt(project, "smoke", [PAPER])
    files = [file for file in (project.root / RESULTS).rglob("*") if file.is_file()]
    assert len(files) > len(paths) and len({file.stat().st_mtime_ns for file in files}) == 1


def test_snakemake_has_nothing_to_compute(project: Project) -> None:
    adopt(project, "smoke", [PAPER])
    for name in ("workflow", "Snakefile"):
        Path(project.root / name).symlink_to(ROOT / name)
    listed = subprocess.run(
        [sys.executable, "-m", "snakemake", "--cores", "1", "-n", "--quiet", "rules"],
        cwd=project.root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    counted = dict(re.findall(r"^(\w+) +(\d+)$", listed, re.MULTILINE))
    assert "merge" in counted and not counted.keys() & {"attack", "train", "fisher", "inventory"}, listed


def test_the_same_records_make_the_same_bytes(publisher: Project) -> None:
    folder = archive_folder(publisher, "smoke")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    write_archives(publisher, "smoke", [PAPER])
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_not_there_is_not_published(project: Project) -> None:
    adopt(project, "smoke", [PAPER])
    gone = table_path("smoke", PAPER, "pruning")
    shutil.rmtree((project.root / gone).parent)
    files = {path.name for path in write_archives(project, "smoke", [PAPER])}
    assert "pruning.jsonl.xz" not in files and "noise.jsonl.xz" in files
    assert not (archive_folder(project, "smoke") / PAPER / "pruning.jsonl.xz").exists()


def test_what_a_scale_leaves_out_stays_published(project: Project) -> None:
    """Records of an experiment that is switched off for a while are not lost."""
    adopt(project, "smoke", [PAPER])
    folder = archive_folder(project, "smoke") / PAPER
    before = (folder / "pruning.jsonl.xz").read_bytes()
    experiments = project.plan("smoke").papers[PAPER].experiments
    off = Project(project.root)
    plan = off.plan("smoke")
    with pytest.MonkeyPatch.context() as patch:
        whole = type(plan).experiment_jobs
        patch.setattr(
            type(plan),
            "experiment_jobs",
            lambda self, paper, name: {} if name == "pruning" else whole(self, paper, name),
        )
        files = write_archives(off, "smoke", [PAPER])
    assert "pruning" in experiments and (folder / "pruning.jsonl.xz").read_bytes() == before
    assert folder / "pruning.jsonl.xz" in files and all(path.exists() for path in files)


def test_an_archive_says_whose_it_is_and_under_which_licence(project: Project) -> None:
    content = lzma.decompress((archive_folder(project, "smoke") / PAPER / "pruning.jsonl.xz").read_bytes())
    head, first, *_ = map(json.loads, content.decode().splitlines())
    assert (head["schema"], head["licence"], head["experiment"]) == ("leakbench.published/1", LICENCE, "pruning")
    assert sorted(schemas()["archived"]["required"]) == sorted(first)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / PAPER / "pruning.jsonl.xz").write_bytes(b"x"), "damaged"),
        (lambda folder: (folder / PAPER / "pruning.jsonl.xz").unlink(), "missing, and listed in"),
        (lambda folder: shutil.copy(folder / PAPER / "noise.jsonl.xz", folder / PAPER / "b.jsonl.xz"), "not listed"),
        (lambda folder: (folder / SUMS).unlink(), "no records of this scale are published"),
        (lambda folder: (folder / SUMS).write_text("nothing"), "a digest and a path"),
    ],
)
def test_damage_is_named_and_nothing_adopted(project: Project, change: Callable[[Path], Any], words: str) -> None:
    change(archive_folder(project, "smoke"))
    with pytest.raises(ConfigError, match=words):
        adopt(project, "smoke", [PAPER])
    assert not (project.root / RESULTS).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: ['{"schema": "leakbench.published/2"}', *lines[1:]], "that this version reads"),
        (lambda lines: [*lines, "{}"], "that this version reads"),
        (lambda _: [], "that this version reads"),
        (lambda lines: [lines[0].replace('"pruning"', '"noise"'), *lines[1:]], "holds experiment noise"),
    ],
)
def test_foreign_archives_are_named(project: Project, change: Callable[[list[str]], list[str]], words: str) -> None:
    rewritten(project, change)
    with pytest.raises(ConfigError, match=words):
        adopt(project, "smoke", [PAPER])


def test_records_of_another_plan_are_named_and_left_out(project: Project) -> None:
    def older(lines: list[str]) -> list[str]:
        first = json.loads(lines[1])
        first["record"]["job"]["seeds"] = [7]
        elsewhere = json.loads(lines[2])
        elsewhere["path"] = elsewhere["path"].replace("/pruning/", "/grafting/")
        return [lines[0], json.dumps(first), json.dumps(elsewhere), *lines[3:]]

    rewritten(project, older)
    left_out = adopt(project, "smoke", [PAPER]).left_out
    assert sorted(left_out.values()) == [
        "made by another configuration or version of a component",
        "no job of the plan",
    ]
    assert not any((project.root / path).exists() for path in left_out)


def test_records_that_differ_are_named_and_nothing_is_overwritten(project: Project) -> None:
    adopt(project, "smoke", [PAPER])
    path, record = next(every_record(project))
    record.replicates[0].metrics["psnr"] = [1.0]
    write_record(project.root / path, record)
    other = next(each for each in project.plan("smoke").jobs if each != path)
    (project.root / other).unlink()
    with pytest.raises(ConfigError, match=f"1 records here have other numbers than the published ones: {path}"):
        adopt(project, "smoke", [PAPER])
    assert read_record(project.root / path) == record and not (project.root / other).exists()


def test_seconds_may_differ_from_the_published_ones(tmp_path: Path) -> None:
    """Nobody gets them twice."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    project = Project(tmp_path, {"papers": ["leaderboard"]})
    path, job = next((path, job) for path, job in project.plan("smoke").jobs.items() if job.kind.name == "overhead")
    record = record_of(job)
    write_record(tmp_path / path, record)
    write_archives(project, "smoke", ["leaderboard"])
    for replicate in record.replicates:
        replicate.metrics |= {
            name: None for name in replicate.metrics if "not reproducible" in record.metrics[name].unit
        }
    assert record != read_record(tmp_path / path)
    write_record(tmp_path / path, record)
    assert adopt(project, "smoke", ["leaderboard"]).kept == [path]


def test_tensors_from_which_other_jobs_go_on_are_published(tmp_path: Path) -> None:
    """Released models are attacked by shadow models of another job."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    project = Project(tmp_path, {"papers": ["channel"]})
    path, job = next((path, job) for path, job in project.plan("smoke").jobs.items() if job.kind.name == "shadows")
    record = record_of(job)
    record.tensors = write_tensors((tmp_path / path).with_suffix(".safetensors"), {"confidence": torch.ones(3)})
    write_record(tmp_path / path, record)
    write_archives(project, "smoke", ["channel"])
    shutil.rmtree(tmp_path / RESULTS)
    assert adopt(project, "smoke", ["channel"]).adopted == [path]
    assert read_tensors(tmp_path / path, record.tensors)["confidence"].sum() == 3


def test_archives_of_one_paper(project: Project) -> None:
    assert list(read_archives(project, "smoke", ["cdpa"])) == []


@pytest.mark.parametrize("archive", sorted(ROOT.glob("published/*/*/*.jsonl.xz")), ids=lambda path: path.stem)
def test_no_published_record_lacks_numbers_because_of_a_mistake_of_ours(archive: Path) -> None:
    """The reason of an infeasible replicate is a sentence, not the name of a Python exception."""
    for line in lzma.decompress(archive.read_bytes()).decode().splitlines()[1:]:
        outcomes = [each["outcome"] for each in json.loads(line)["record"]["replicates"]]
        assert not any(re.search(r"\b[A-Z]\w+Error\b", each["reason"] or "") for each in outcomes)
