"""The commands publish --records, adopt, verify and explain."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.report.synthetic import ROOT, configured, new_project

from leakbench import cli
from leakbench.jobs.runner import Placement, run_job
from leakbench.planning.project import Project
from leakbench.report.tidy import merge, table_path

PAPER = "optimal_defense"


def leakbench(root: Path, *words: str) -> int:
    return cli.main(["--root", str(root), "--set", f"papers=[{PAPER}]", *words])


def test_from_publishing_to_adopting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = new_project(tmp_path / "here")
    assert leakbench(project.root, "publish", "--records") == 0
    assert "published/smoke/optimal_defense/pruning.jsonl.xz: 0.0" in capsys.readouterr().out
    there = tmp_path / "there"
    for name in ("config", "published"):
        shutil.copytree(project.root / name, there / name)
    jobs = len(project.plan("smoke").jobs)
    for line in (f"{jobs} adopted, 0 here already, 0 left out", f"0 adopted, {jobs} here already, 0 left out"):
        assert leakbench(there, "adopt", "smoke") == 0
        assert capsys.readouterr().out.splitlines()[-1] == line
    assert leakbench(there, "adopt", "laptop") == 1
    assert "no records of this scale are published. Allowed: smoke" in capsys.readouterr().err


def test_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    path = f"results/smoke/{PAPER}/undefended/digits16/small/none/grey/all.json"
    run_job(Project(tmp_path, {"papers": [PAPER]}).plan("smoke").jobs[path], tmp_path, Placement(device="cpu"))
    assert leakbench(tmp_path, "publish", "--records") == 0
    capsys.readouterr()
    assert leakbench(tmp_path, "verify", "--within", "1min", "--seed", "3") == 0
    assert capsys.readouterr().out.splitlines() == ["--seed 3", f"{path}: identical", "all of them hold"]
    assert leakbench(tmp_path, "verify", "--within", "soon") == 1
    assert "expected a time such as 90s" in capsys.readouterr().err


def test_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project = new_project(tmp_path)
    (entry,) = (each for each in configured(project) if each.name == "fig02")
    for experiment in entry.experiments:
        merge(project, table_path("smoke", PAPER, experiment))
    entry.render(project, entry.paths("smoke")[0])
    target = f"figures/smoke/{PAPER}/fig02:1"
    assert leakbench(tmp_path, "explain", target, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["row"]["series"] and printed["sources"][0]["state"] == "done"
    assert leakbench(tmp_path, "explain", target) == 0
    assert printed["sources"][0]["digest"] in capsys.readouterr().out
