"""``lint/lengths.py`` rejects functions that are longer than a screen, unless they say why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from lint.lengths import LONGEST, faults

ROOT = Path(__file__).parents[2]

LONG = f"mine has {LONGEST + 1} lines, more than {LONGEST}; make it shorter, or give the reason above it: '# long: ...'"
NEEDLESS = f"mine has {LONGEST} lines and needs no reason to be long; remove the comment"


def function(
    lines: int, *, above: str = "", inside: str = "", docstring: str = '"""Count.\n\n    Twice.\n    """'
) -> str:
    body = ["x = 0"] * lines
    return "\n".join(
        [*([above] if above else []), "def mine(x: int) -> None:", f"    {docstring}"]
        + ([f"    {inside}"] if inside else [])
        + [f"    {line}" for line in body]
    )


def found(source: str) -> list[str]:
    return [fault for _, fault in faults(source)]


@pytest.mark.parametrize("docstring", ["pass", '"""Count.\n\n    Twice.\n    """'])
def test_lengths(docstring: str) -> None:
    """A docstring does not count, a blank line or a comment does."""
    spare = 1 if docstring == "pass" else 0
    assert found(function(LONGEST - spare, docstring=docstring)) == []
    assert found(function(LONGEST - spare + 1, docstring=docstring)) == [LONG]
    source = function(LONGEST - spare - 1, docstring=docstring)
    assert found(source + "\n\n    # that is all\n    x = 1") == [LONG.replace(str(LONGEST + 1), str(LONGEST + 2))]


def test_statements_of_several_lines_and_of_functions_inside() -> None:
    several = "def mine(x: int) -> None:\n    x = [\n" + "        0,\n" * (LONGEST - 1) + "    ]"
    assert found(several) == [LONG]
    inside = "def other() -> None:\n    @staticmethod\n    " + several.replace("\n", "\n    ")
    assert found(inside) == [LONG.replace("mine", "other").replace(str(LONGEST + 1), str(LONGEST + 3)), LONG]


@pytest.mark.parametrize("where", ["above", "inside"])
def test_reasons(where: str) -> None:
    reason = {where: "# long: one table, read from top to bottom"}
    assert found(function(LONGEST + 1, **reason)) == []
    assert found(function(LONGEST, **reason)) == [NEEDLESS]
    for unsaid in ("# long:", "# longer: a table", "# it is a table"):
        assert found(function(LONGEST + 1, **{where: unsaid})) == [LONG]


def test_reasons_above_decorators() -> None:
    source = function(LONGEST + 1).replace("def mine", "@cache\ndef mine")
    assert found(source) == [LONG]
    assert found("# long: a table\n" + source) == []
    assert found("# long: a table\n\n" + source) == [LONG], "not beside it"


def test_the_package() -> None:
    assert subprocess.run([sys.executable, "lint/lengths.py"], cwd=ROOT).returncode == 0


def test_the_program(tmp_path: Path) -> None:
    """Run by `make lint`; nothing to look at is an error too."""
    command = [sys.executable, str(ROOT / "lint" / "lengths.py")]
    assert subprocess.run(command, cwd=tmp_path).returncode == 1
    module = tmp_path / "src" / "leakbench" / "mine.py"
    module.parent.mkdir(parents=True)
    module.write_text(function(LONGEST))
    assert subprocess.run(command, cwd=tmp_path).returncode == 0
    module.write_text(function(LONGEST + 1))
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (1, f"src/leakbench/mine.py:1: {LONG}\n")
    assert "lint/lengths.py" in (ROOT / "Makefile").read_text()
