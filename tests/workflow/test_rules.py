"""What holds for every rule, and Snakemake's lint."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leakbench.jobs.base import JOB_KINDS

if TYPE_CHECKING:
    from tests.workflow.conftest import Checkout

ROOT = Path(__file__).resolve().parents[2]


FILES = [ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk"))]
PARTS = [part for path in FILES for part in re.split(r"(?=^ +rule)", path.read_text(), flags=re.MULTILINE)]
TEXT = "".join(map(textwrap.dedent, PARTS))
# The rule of the kinds of job has no name in the file.
RULES = dict(re.findall(r"^rule ?(\w*):\n((?: {4}.*\n|\n(?= {4}))+)", TEXT, re.MULTILINE))


def test_all_rules_are_found(rules_of_workflow: set[str]) -> None:
    assert rules_of_workflow - RULES.keys() == set(JOB_KINDS)
    assert RULES.keys() - rules_of_workflow == {""}


@pytest.mark.parametrize("rule", sorted(RULES.keys() - {"all"}))
def test_every_rule_logs_and_says_what_it_needs(rule: str) -> None:
    directives = re.findall(r"^ {4}(\w+):", RULES[rule], re.MULTILINE)
    assert {"input", "output", "log", "benchmark", "threads", "resources", "params", "shell"} <= set(directives)
    grown = re.findall(r"^ {8}(\w+)=lambda wildcards, attempt\b", RULES[rule], re.MULTILINE)
    assert {"mem_mb", "runtime"} <= set(grown)
    assert "retries" not in directives  # they would try again inside the allocation that was too small
    assert "> {log:q} 2>&1" in RULES[rule]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "lint" / "snakefile.py")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_lint() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stderr


def test_lint_names_the_rule_and_the_fault(fresh: Checkout) -> None:
    shutil.copytree(ROOT / "lint", fresh.root / "lint")
    fresh.replace("workflow/rules/report.smk", '    log:\n        "logs/{scale}/scorecard.log",\n', "")
    fresh.replace("workflow/rules/report.smk", "{output:q} > {log:q} 2>&1", "{output:q}")
    done = lint(fresh.root)
    assert done.returncode == 1
    assert done.stderr.startswith("scorecard ") and "No log directive defined" in done.stderr
    assert len(done.stderr.splitlines()) == 1
