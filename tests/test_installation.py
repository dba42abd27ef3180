"""Installation, as far as it needs neither a network nor an engine for containers: what is copied and asked for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.forking import snakemake
from tests.test_pins import DIGEST, pins

ROOT = Path(__file__).parents[1]


def copied_by_docker() -> set[str]:
    """What the Dockerfile copies; every path keeps its name."""
    lines = re.findall(r"^COPY (.+)$", (ROOT / "envs" / "Dockerfile").read_text(), re.MULTILINE)
    pairs = [line.split() for line in lines]
    assert all(target in ("./", *sources) for *sources, target in pairs)
    return {source for *sources, _ in pairs for source in sources}


def copied_by_apptainer() -> set[str]:
    section = (ROOT / "envs" / "apptainer.def").read_text().partition("%files\n")[2].partition("\n\n")[0]
    pairs = [line.split() for line in section.splitlines()]
    assert all(target == f"/opt/leakbench/{source}" for source, target in pairs)
    return {source for source, _ in pairs}


def test_images_hold_what_the_workflow_needs(tmp_path: Path) -> None:
    assert copied_by_docker() == copied_by_apptainer()
    for name in copied_by_docker():
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, tmp_path)
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    assert all((tmp_path / name).is_file() for name in (project["readme"], *project["license-files"]))
    status, said = snakemake(["--cores", "1", "--dry-run", "--quiet", "rules"], tmp_path)
    assert status == 0, said


def test_images_and_conda_have_a_python_that_the_project_allows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = {each.rpartition(" ")[2] for each in project["classifiers"]}
    conda = yaml.safe_load((ROOT / "envs" / "conda.yaml").read_text())
    (python,) = (each for each in conda["dependencies"] if str(each).startswith("python="))
    found = [python.partition("=")[2]]
    for name in ("Dockerfile", "apptainer.def"):
        found += re.findall(r"^F(?:ROM|rom:) python:([0-9.]+)-", (ROOT / "envs" / name).read_text(), re.MULTILINE)
    assert len(found) == 3 and {*found} <= allowed
    (pip,) = (each["pip"] for each in conda["dependencies"] if isinstance(each, dict))
    assert "--requirement cpu.txt" in pip  # beside the file


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `make` reads, and commands in .venv that note their arguments instead of doing anything."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    for name in ("pip", "uv"):
        (commands / name).write_text(f'#!/bin/sh\necho "{name} $* FROM $PIP_FIND_LINKS TO $UV_FIND_LINKS" >> asked\n')
        (commands / name).chmod(0o755)
    return tmp_path


def make(checkout: Path, *arguments: str, **variables: str) -> list[str]:
    """Run `make`; what pip and uv were asked for."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_", "MAKE"))}
    subprocess.run(["make", *arguments], cwd=checkout, env=outside | variables, check=True, capture_output=True)
    return (checkout / "asked").read_text().splitlines()


@pytest.mark.skipif(os.uname().sysname != "Linux", reason="torch on the index has no GPU libraries elsewhere")
def test_a_wheelhouse_holds_the_pins_and_a_torch_that_can_be_imported(checkout: Path) -> None:
    tools, files = make(checkout, "wheelhouse")
    assert re.search(r"--dest wheelhouse uv==[0-9.]+ setuptools wheel editables hatchling==[0-9.]+ ", tools)
    assert "--no-deps --dest wheelhouse --requirement wheelhouse/pins.txt" in files
    text = (checkout / "wheelhouse" / "pins.txt").read_text().replace("\\\n", " ")
    written = {line.split(" --hash")[0].strip(): {*DIGEST.findall(line)} for line in text.splitlines() if "==" in line}
    builds = {*DIGEST.findall((ROOT / "envs" / "torch-cpu.txt").read_text())}
    expected = {str(pin): digests for pin, digests in pins("cpu")} | {"torch==2.13.0": builds}
    assert {re.sub(" ;", ";", name).replace("'", '"'): digests for name, digests in written.items()} == expected


def test_a_wheelhouse_for_gpus_holds_the_pins_as_they_stand(checkout: Path) -> None:
    make(checkout, "wheelhouse", "ENV=cuda")
    assert (checkout / "wheelhouse" / "pins.txt").read_text() == (ROOT / "envs" / "cuda.txt").read_text()


def test_without_an_index_uv_looks_where_pip_would(checkout: Path) -> None:
    asked = make(checkout, ".venv/.ready-cpu", PIP_NO_INDEX="1", PIP_FIND_LINKS="/wheels")
    assert len(asked) == 2
    for line in asked:
        assert line.startswith("uv pip install ") and " --no-index " in line and line.endswith(" TO /wheels")


def test_torch_has_builds_for_cpus_on_a_page_of_its_own(checkout: Path) -> None:
    """Under Linux; where wheels lie elsewhere, and for GPUs, the page is not asked."""
    page = "https://download.pytorch.org/whl/cpu/torch/" if os.uname().sysname == "Linux" else ""
    assert make(checkout, ".venv/.ready-cpu")[0].endswith(f"FROM {page} TO {page}")
    assert make(checkout, ".venv/.ready-cuda", "ENV=cuda")[-1].endswith("FROM  TO ")
    (checkout / ".venv" / ".ready-cuda").unlink()
    assert make(checkout, ".venv/.ready-cpu", PIP_FIND_LINKS="/wheels")[-1].endswith("FROM /wheels TO /wheels")
