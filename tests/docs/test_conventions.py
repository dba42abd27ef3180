"""Files by which forges and catalogs know a project: what they name is there, and they agree with the rest."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def project() -> dict[str, Any]:
    content: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return content


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def test_the_newest_version_is_that_of_the_package() -> None:
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert newest == project()["version"] == str(read(ROOT / "CITATION.cff")["version"])


def test_continuous_integration_runs_on_every_python_that_is_allowed() -> None:
    (workflow,) = (read(path) for path in WORKFLOWS)
    allowed = [each.rpartition(" ")[2] for each in project()["classifiers"]]
    jobs = workflow["jobs"]
    assert jobs["tests"]["strategy"]["matrix"]["python"] == allowed
    run = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = [target for line in run for target in re.findall(r"^make (\w+)", line)]
    assert targets == ["lint", "test", "replicate"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    for script in re.findall(r"bash (\S+)", "\n".join(run)):
        assert (ROOT / script).is_file()
    for python in (
        step["with"]["python-version"]
        for job in jobs.values()
        for step in job["steps"]
        if "with" in step and "python-version" in step["with"]
    ):
        assert python in allowed or python == "${{ matrix.python }}"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_issue_forms(template: Path) -> None:
    form = read(template)
    assert form["name"] and form["description"]
    identities = [element["id"] for element in form["body"]]
    assert len({*identities}) == len(identities)
    assert all(element["type"] in ("input", "textarea") for element in form["body"])
    assert all(element["attributes"]["label"] for element in form["body"])
    assert any(element.get("validations", {}).get("required") for element in form["body"])


def test_the_workflow_catalog_finds_what_it_looks_for() -> None:
    """A workflow without environments of its rules, of which Snakemake can make a report."""
    usage = read(ROOT / ".snakemake-workflow-catalog.yml")["usage"]
    rules = "".join(path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk"))
    assert not any(usage["software-stack-deployment"].values())
    assert not re.search(r"^\s+(conda|container|envmodules):", rules, re.MULTILINE)
    assert usage["report"] and "report(" in rules
    assert (ROOT / "Snakefile").is_file() and (ROOT / "config" / "README.md").is_file()
