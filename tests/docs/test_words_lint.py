"""``lint/words.py`` rejects names that say nothing and docstrings that begin with a clause."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lint.words import faults

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "source",
    [
        "found = 1",
        "def total(told: int) -> None: pass",
        "def stands() -> None: pass",
        "class Said: pass",
        "class Point:\n    own_models: int",
        "for found in (): pass",
        "self.found_so_far = 1",
    ],
)
def test_vague_names(source: str) -> None:
    ((_, fault),) = faults(source)
    assert fault.endswith("use the field's noun for what it holds")


@pytest.mark.parametrize("source", ["owner = 1", "foundation = 1", "x = found", "x.found", 'x = "found"', "f(found=1)"])
def test_other_names(source: str) -> None:
    """Words that contain them, and names of others, which are only read."""
    assert list(faults(source)) == []


@pytest.mark.parametrize(
    "source",
    [
        '"""What it is."""',
        'def total() -> int:\n    """Of all.\n\n    More.\n    """',
        'class Point:\n    x: int\n    """How far right."""',
        'LIMIT = 1\n"""Where it ends."""',
    ],
)
def test_clauses(source: str) -> None:
    ((_, fault),) = faults(source)
    assert fault.endswith("begin with a verb or the thing's name")


def test_verbs_nouns_and_whether() -> None:
    assert list(faults('"""Points."""\ndef x() -> bool:\n    """Whether it is."""\n    return f("What")')) == []


def test_the_tree() -> None:
    assert subprocess.run([sys.executable, "lint/words.py"], cwd=ROOT).returncode == 0


def test_the_program(tmp_path: Path) -> None:
    """Run by `make lint`; nothing to look at is an error too."""
    command = [sys.executable, str(ROOT / "lint" / "words.py")]
    assert subprocess.run(command, cwd=tmp_path).returncode == 1
    module = tmp_path / "src" / "leakbench" / "mine.py"
    module.parent.mkdir(parents=True)
    module.write_text("found = 1\n")
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 1 and result.stderr.startswith("src/leakbench/mine.py:1: the name found")
    assert "lint/words.py" in (ROOT / "Makefile").read_text()
