"""What holds for every rule, and Snakemake's lint."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.workflow.conftest import Checkout

ROOT = Path(__file__).resolve().parents[2]


TEXT = "".join(path.read_text() for path in [ROOT / "Snakefile", *sorted((ROOT / "workflow" / "rules").glob("*.smk"))])
RULES = dict(re.findall(r"^rule (\w+):\n((?: {4}.*\n|\n(?= {4}))+)", TEXT, re.MULTILINE))
WORKING = sorted(RULES.keys() - {"all"})


def test_all_rules_are_found() -> None:
    assert set(RULES) == set(re.findall(r"^\s*(?:rule|checkpoint)\s+(\w+)", TEXT, re.MULTILINE))
    jobs = ["attack", "calibrate", "fisher", "inventory", "release", "timing", "train"]
    assert sorted([*jobs, "draw", "judge", "merge", "page", "tabulate"]) == WORKING


@pytest.mark.parametrize("rule", WORKING)
def test_every_rule_logs_and_says_what_it_needs(rule: str) -> None:
    directives = re.findall(r"^ {4}(\w+):", RULES[rule], re.MULTILINE)
    assert {"input", "output", "log", "benchmark", "threads", "resources", "params", "shell"} <= set(directives)
    assert {"mem_mb", "runtime"} <= set(re.findall(r"^ {8}(\w+)=lambda wildcards, attempt:", RULES[rule], re.MULTILINE))
    assert "retries" not in directives  # they would try again inside the allocation that was too small
    assert "> {log:q} 2>&1" in RULES[rule]


def lint(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(folder / "workflow" / "lint.py")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_lint() -> None:
    done = lint(ROOT)
    assert done.returncode == 0, done.stderr


def test_lint_names_the_rule_and_the_fault(fresh: Checkout) -> None:
    shutil.copy(ROOT / "workflow" / "lint.py", fresh.root / "workflow")
    fresh.replace("workflow/rules/report.smk", '    log:\n        "logs/{scale}/report.log",\n', "")
    fresh.replace("workflow/rules/report.smk", "{output:q} > {log:q} 2>&1", "{output:q}")
    done = lint(fresh.root)
    assert done.returncode == 1
    assert done.stderr.startswith("page ") and "No log directive defined" in done.stderr
    assert len(done.stderr.splitlines()) == 1
