"""A checkout in a folder of its own, with a small scale, and what Snakemake makes of it."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.forking import snakemake

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

HALVED = '''"""An out-of-tree defense."""

from leakbench.defenses.base import DEFENSES, Defense
from leakbench.federated.message import DenseMessage


@DEFENSES.register("halved", version=1)
class Halved(Defense):
    """Half of the gradient."""

    def protect_update(self, steps, streams):
        return DenseMessage(steps.gradient / 2)
'''

# A job as Snakemake announces it, in a dry run and in a real one.
JOB = re.compile(r"^(?:local)?rule (\w+):\n((?: {4}.*\n)*)", re.MULTILINE)
OUTPUT = re.compile(r"^ {4}output: ([^,\n]+)", re.MULTILINE)


@pytest.hookimpl(tryfirst=True)  # before that of tests/conftest.py
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep these tests in one process of pytest-xdist: they share a complete run."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("workflow"))


@pytest.fixture(autouse=True)
def _no_plugin_stays(clean_registries: None) -> None:
    """A test that plans in its own process loads the plug-in that replaces what jobs compute."""


@dataclass(frozen=True)
class Run:
    """What a call of Snakemake did, or would do."""

    returncode: int
    output: str

    @property
    def jobs(self) -> dict[str, str]:
        """The rule by the first output of every announced job."""
        found = [(rule, OUTPUT.search(details)) for rule, details in JOB.findall(self.output)]
        return {output[1]: rule for rule, output in found if output}

    @property
    def rules(self) -> Counter[str]:
        """How many jobs of each rule were announced."""
        return Counter(self.jobs.values())

    @property
    def nothing_to_do(self) -> bool:
        return "Nothing to be done" in self.output


@dataclass(frozen=True)
class Checkout:
    """A folder with the workflow, the configuration and two plug-ins: quick jobs, and the defense ``halved``."""

    root: Path

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--cores", "2", *arguments]

    def snakemake(self, *arguments: str) -> Run:
        return Run(*snakemake(["--cores", "2", *arguments], self.root))

    def make(self, *arguments: str) -> Run:
        """A run that has to succeed."""
        run = self.snakemake(*arguments)
        assert run.returncode == 0, run.output
        return run

    def edit(self, file: str, change: Callable[[Any], None]) -> None:
        """Change the content of a YAML file, which is made if it is missing."""
        path = self.root / file
        content = yaml.safe_load(path.read_text()) if path.is_file() else {}
        change(content)
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(content, sort_keys=False))

    def replace(self, file: str, old: str, new: str) -> None:
        """Change a part of a text file."""
        path = self.root / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def results(self) -> dict[str, Any]:
        """What every record says of its replicates: not when, where or how long."""
        return {
            str(path.relative_to(self.root)): json.loads(path.read_text())["replicates"]
            for path in sorted((self.root / "results").rglob("*.json"))
        }

    def times(self) -> dict[str, int]:
        """When every file was written that the workflow made."""
        made = [path for folder in ("results", "figures") for path in (self.root / folder).rglob("*") if path.is_file()]
        return {str(path.relative_to(self.root)): path.stat().st_mtime_ns for path in made}


def new_checkout(root: Path) -> Checkout:
    """A checkout in which nothing has run yet."""
    for folder in ("workflow", "config", "profiles"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Snakefile", root)
    shutil.copy(HERE / "quick_jobs.py", root)
    shutil.copy(HERE / "tiny.yaml", root / "config" / "scales")
    (root / "halved.py").write_text(HALVED)
    checkout = Checkout(root)
    settings = {"scale": "tiny", "papers": ["optimal_defense"], "plugins": ["quick_jobs.py", "halved.py"]}
    checkout.edit("config/config.yaml", lambda config: config.update(settings))
    return checkout


@pytest.fixture(scope="session")
def untouched(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """A checkout for dry runs, in which nothing is made or changed."""
    return new_checkout(tmp_path_factory.mktemp("untouched"))


@pytest.fixture
def fresh(tmp_path: Path) -> Checkout:
    """A checkout of a test's own in which nothing has run yet."""
    return new_checkout(tmp_path)


@dataclass(frozen=True)
class Finished:
    """A checkout after a complete run, and that run."""

    checkout: Checkout
    run: Run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Everything of the scale ``tiny``, made once. Change nothing in here: tests that do use ``project``."""
    checkout = new_checkout(tmp_path_factory.mktemp("finished"))
    return Finished(checkout, checkout.make())


@pytest.fixture
def project(finished: Finished, tmp_path: Path) -> Checkout:
    """A copy of the finished run, with Snakemake's memory of it."""
    root = tmp_path / "project"
    shutil.copytree(finished.checkout.root, root)
    return Checkout(root)
