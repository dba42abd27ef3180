"""docs/add-a-defense.md, from an empty folder outside the checkout to a figure."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.docs.test_documented_commands import ROOT, blocks
from tests.docs.test_documented_commands import run as of_documentation

from leakbench.cli import main
from leakbench.contract.trial import trial
from leakbench.defenses.base import Defense
from leakbench.jobs.runner import Placement, run_job
from leakbench.planning.layers import overlay
from leakbench.planning.project import Project
from leakbench.report.under_attacked import Adaptation

PAGE = ROOT / "docs" / "add-a-defense.md"
RECORD = "results/smoke/optimal_defense/{}/digits16/small/{}/all.json"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The reader's folder, with the file of the page."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "sign_noise.py").write_text("\n".join(blocks(PAGE, "python")))
    return tmp_path / "mine"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("config", "workflow", "slurm"):
        shutil.copytree(ROOT / name, tmp_path / "checkout" / name)
    shutil.copy(ROOT / "Snakefile", tmp_path / "checkout")
    shutil.copy(ROOT / "tests" / "workflow" / "quick_jobs.py", tmp_path / "checkout")
    return tmp_path / "checkout"


def run(command: str, folder: Path, *more: str) -> str:
    return of_documentation([*shlex.split(command), *more], folder)


def commands() -> list[str]:
    return [line for block in blocks(PAGE, "console") for line in block.splitlines()]


def test_the_reader_writes_few_lines() -> None:
    written = [*blocks(PAGE, "python"), *blocks(PAGE, "yaml")]
    assert sum(bool(line.strip()) for block in written for line in block.splitlines()) < 60


@pytest.mark.slow
@pytest.mark.usefixtures("clean_registries")
def test_nothing_is_wrong_with_the_file(
    mine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found: dict[str, Adaptation | None] = {}

    def once(defense: type[Defense], given: Mapping[str, Any]) -> Adaptation | None:
        """One trial of each defense for both ways to print."""
        if defense.name not in found:
            found[defense.name] = trial(defense, given)
        return found[defense.name]

    _, *check = shlex.split(commands()[0])
    monkeypatch.chdir(mine)
    monkeypatch.setattr("leakbench.contract.defenses.trial", once)
    assert main(check) == 0
    assert "Nothing is wrong." in capsys.readouterr().out
    assert main([*check, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert found.keys() == {"sign_noise", "random_pruning"}
    asked = {(row["component"], row["check"]) for row in answers if row["verdict"] == "ok"}
    assert {
        ("sign_noise", "bias"),
        ("sign_noise", "variance as stated"),
        ("random_pruning", "adaptive attacker"),
    } <= asked


@pytest.mark.usefixtures("mine")
def test_where_it_belongs(checkout: Path) -> None:
    assert "sign_noise" in run(commands()[1], checkout)


@pytest.mark.slow
@pytest.mark.usefixtures("mine")
def test_a_figure_shows_it(checkout: Path) -> None:
    """With jobs that compute nothing; the next test computes one."""
    run(commands()[2], checkout, "plugins=[quick_jobs.py]")
    assert "sign_noise" in (checkout / "figures/smoke/optimal_defense/fig04.csv").read_text()
    assert (checkout / "figures/smoke/optimal_defense/fig04.pdf").stat().st_size > 0


@pytest.mark.usefixtures("mine", "clean_registries")
def test_a_sweep_is_computed(checkout: Path) -> None:
    compare, _, _ = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
    job = Project(checkout, compare).job(RECORD.format("pruning_training", "signs/train"))
    record = run_job(job, checkout, Placement(device="cpu"))
    assert record.outcome.status == "ok"
    assert {replicate.setting["probability"] for replicate in record.replicates} == {0.01, 0.1, 0.3}


@pytest.mark.usefixtures("mine", "clean_registries")
def test_the_adaptive_attacker_in_one_experiment(checkout: Path) -> None:
    _, settings, paper = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
    short = {"papers": {"optimal_defense": {"variants": {"attacks": {"ig": {"iterations": 3}}}}}}
    additions = {"config.yaml": settings, "papers/optimal_defense.yaml": paper, "scales/smoke.yaml": short}
    for file, addition in additions.items():
        path = checkout / "config" / file
        path.parent.mkdir(exist_ok=True)
        content = yaml.safe_load(path.read_text()) if path.is_file() else {}
        path.write_text(yaml.safe_dump(overlay(content, addition)))
    job = Project(checkout).job(RECORD.format("pruning", "random-90/clever"))
    record = run_job(job, checkout, Placement(device="cpu"))
    assert record.outcome.status == "ok"
    attack = record.job["attack"]
    assert (attack["name"], attack["against"]["name"]) == ("adaptive", "masked")
    assert attack["against"]["attack"]["name"] == "ig_optimal_defense"
