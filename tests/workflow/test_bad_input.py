"""Misspelt names on Snakemake's command line: an error that says what would be right, before any job runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from tests.workflow.conftest import HALVED

from leakbench.errors import ConfigError
from leakbench.workflow.snakefile import Workflow
from leakbench.workflow.targets import check_targets

if TYPE_CHECKING:
    from tests.workflow.conftest import Checkout

TARGET = "results/smoke/optimal_defense/pruning/digits16/small/gpp/ig/all.json"
SETTINGS = {
    "scale=typo": "command line: scale: unknown scale 'typo'. Allowed: full, laptop, overnight, smoke, tiny.",
    "sclae=smoke": "command line: sclae: unknown key 'sclae'; did you mean 'scale'?",
    "papers=[x]": "command line: papers: unknown paper 'x'. "
    "Allowed: cdpa, channel, leaderboard, optimal_defense, secagg_dp, tfl_meta.",
    "papers=optimal_defense": "command line: papers: Input should be a valid list (found: 'optimal_defense')",
    "scale=": "command line: scale: Input should be a valid string (found: None)",
    "plugins=[typo.py]": "command line: plugins: no Python file at",
    "plugins=[typo]": "command line: plugins: cannot import 'typo'",
}


def test_target(untouched: Checkout) -> None:
    run = untouched.snakemake(TARGET)
    assert run.returncode != 0
    assert f"{TARGET}: unknown defense 'gpp'; did you mean 'gp'? Allowed: gp, op." in run.output
    assert not run.jobs and not (untouched.root / "results").exists()


TARGETS = {
    "figures/smoke/optimal_defense/fig4.pdf": "unknown artifact 'fig4'; did you mean 'fig04'?",
    "figure/smoke/optimal_defense/fig04.pdf": "Expected figures/",
    "figures/smoke/optimal_defense": "name a file such as figures/smoke/optimal_defense/fig01.pdf",
    "figures/smoke": "say --config scale=smoke instead",
    "results/smoke/optimal_defens": "unknown paper 'optimal_defens'; did you mean 'optimal_defense'?",
    "results/smoke/optimal_defense/prunning/records.parquet": "did you mean 'pruning'?",
    "results/smoke/optimal_defense/pruning": "results/smoke/optimal_defense/pruning/records.parquet and records",
    "results/smoke/optimal_defense/pruning/records.csv": "results/smoke/optimal_defense/pruning/records.parquet and",
    "figures/overnight/optimal_defense/fig10.pdf": "the scale 'overnight' leaves out what it reads",
    "figures/smoke/optimal_defense/partial/fig04.pdf": "partial and bare ones are made by `leakbench draw`",
    TARGET: "unknown defense 'gpp'; did you mean 'gp'?",
    "scorecrad": "Expected figures/<scale>/<paper>/<figure or table>.<format>, results/<scale>/scorecard.html",
}


@pytest.mark.parametrize("target", TARGETS)
def test_what_targets_are_told(untouched: Checkout, target: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_targets(Workflow(untouched.root, {}).project, [target])
    assert target in str(caught.value) and TARGETS[target] in str(caught.value)


def test_targets_that_are_made(untouched: Checkout) -> None:
    flow = Workflow(untouched.root, {})
    check_targets(flow.project, ["all", *flow.targets(), *flow.scorecard_inputs(flow.scale)[:-1]])


def test_the_sentence_that_helps_comes_last(untouched: Checkout) -> None:
    run = untouched.snakemake("figures/smoke/optimal_defense/fig4.pdf")
    assert run.returncode == 1
    assert run.output.splitlines()[-1].startswith("leakbench: figures/smoke/optimal_defense/fig4.pdf: unknown artifact")
    assert not (untouched.root / "results").exists()


UNSTEADY = (
    HALVED.replace("halved", "unsteady")
    .replace("steps.gradient / 2", "steps.gradient * random()")
    .replace("from leakbench.defenses", "from random import random\n\nfrom leakbench.defenses", 1)
)


def test_a_run_begins_with_the_checks_of_compared_defenses(untouched: Checkout, tmp_path: Path) -> None:
    (tmp_path / "unsteady.py").write_text(f'print("loaded")\n{UNSTEADY}')
    flow = Workflow(untouched.root, {"compare": [f"{tmp_path}/unsteady.py:Halved"]})
    with pytest.raises(SystemExit) as ended:
        flow.check_compared()
    first, *lines = str(ended.value).splitlines()
    assert first.startswith("leakbench: nothing was computed")
    assert any(line.startswith("  unsteady: repeats: the same streams made another message") for line in lines)
    Workflow(untouched.root, {"compare": [{"name": "gaussian_noise", "scale": 0.1}]}).check_compared()


@pytest.mark.parametrize("setting", [*SETTINGS][:3])
def test_settings(untouched: Checkout, setting: str) -> None:
    run = untouched.snakemake("--config", setting)
    assert run.returncode != 0
    assert run.output.splitlines()[-1].startswith(f"leakbench: {SETTINGS[setting]}")
    assert "leakbench/" not in run.output  # no traceback into the package
    assert not run.jobs and not (untouched.root / "results").exists()


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_settings_are_told(untouched: Checkout, setting: str) -> None:
    key, _, value = setting.partition("=")
    config = yaml.safe_load((untouched.root / "config" / "config.yaml").read_text())
    with pytest.raises(ConfigError) as caught:
        Workflow(untouched.root, config | {key: yaml.safe_load(value)})
    assert str(caught.value).startswith(SETTINGS[setting])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("figures/smoke/optimal_defence/fig04.png", "unknown paper 'optimal_defence'; did you mean 'optimal_defense'?"),
        ("figures/smoke/optimal_defense/fig4.png", "unknown artifact 'fig4'; did you mean 'fig04'? Allowed: fig01"),
        (
            "figures/smoke/optimal_defense/fig04.pgn",
            "unknown format 'pgn'; did you mean 'png'? Allowed: csv, pdf",
        ),
        ("figures/smkoe/optimal_defense/fig04.png", "unknown scale 'smkoe'; did you mean 'smoke'?"),
        ("figures/smoke/fig04.png", "expected figures/<scale>/<paper>/<figNN|tableNN>.<format>"),
    ],
)
def test_what_figures_are_told(untouched: Checkout, path: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Workflow(untouched.root, {}).tables_of(path)
    assert str(caught.value).startswith(f"{path}: {message}")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (("smkoe", "optimal_defense", "pruning"), "unknown scale 'smkoe'; did you mean 'smoke'?"),
        (("smoke", "optimal_defence", "pruning"), "unknown paper 'optimal_defence'; did you mean 'optimal_defense'?"),
        (("smoke", "optimal_defense", "prunning"), "unknown experiment 'prunning'; did you mean 'pruning'?"),
    ],
)
def test_what_tables_are_told(untouched: Checkout, parts: tuple[str, str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Workflow(untouched.root, {}).records(*parts)
    assert str(caught.value).startswith(f"results/{'/'.join(parts)}/records.parquet: {message}")
