"""docs/add-a-paper.md: a sixth paper as a distribution outside the tree, with one word in config.yaml."""

from __future__ import annotations

import csv
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.docs.test_documented_commands import ROOT, blocks

PAGE = ROOT / "docs" / "add-a-paper.md"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages: the paper's files, as the page has them, and what an installer writes."""
    site = tmp_path / "site"
    files = re.findall(
        r"`(sixth/[\w/.]+|pyproject\.toml)`[^`]*?(?:\([^)]*\))?[^`]*?\n\n?```\w+\n(.*?)^```", TEXT, FLAGS
    )
    for name, content in files:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content)
    (site / "sixth" / "jobs" / "__init__.py").touch()
    project = tomllib.loads((site / "pyproject.toml").read_text())["project"]
    metadata = site / "sixth-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    ((group, names),) = project["entry-points"].items()
    lines = [f"[{group}]", *(f"{name} = {package}" for name, package in names.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return site


TEXT = PAGE.read_text()
FLAGS = re.MULTILINE | re.DOTALL


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The configuration and the workflow, with one word more."""
    for name in ("config", "workflow"):
        shutil.copytree(ROOT / name, tmp_path / "checkout" / name)
    shutil.copy(ROOT / "Snakefile", tmp_path / "checkout")
    config = tmp_path / "checkout" / "config" / "config.yaml"
    settings = config.read_text()
    config.write_text(settings.replace("papers: [", "papers: [sixth, "))
    assert "sixth" in yaml.safe_load(config.read_text())["papers"]
    return tmp_path / "checkout"


@pytest.mark.slow
def test_a_sixth_paper_is_one_folder_and_one_word(site: Path, checkout: Path) -> None:
    """Its own kind of job, a figure and a claim, through Snakemake."""
    (command,) = (line for block in blocks(PAGE, "console") for line in block.splitlines())
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = checkout / "figures" / "smoke" / "sixth"
    assert (figures / "fig01.pdf").read_bytes().startswith(b"%PDF")
    (verdict,) = csv.DictReader((figures / "claims.csv").read_text().splitlines())
    assert verdict["claim"] == "E1" and verdict["by_paper"] == "reproduced"
    assert sorted(path.name for path in (checkout / "results" / "smoke" / "sixth" / "norms").rglob("all.json"))
