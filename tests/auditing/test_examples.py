"""The examples run, and what they capture is audited by the commands of docs/audit.md."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from leakbench.auditing.findings import AuditRecord
from leakbench.cli import main

ROOT = Path(__file__).parents[2]


def commands_of(example: str) -> list[list[str]]:
    """The commands in the docstring of an example."""
    text = (ROOT / "examples" / example).read_text().split('"""')[1].replace("\\\n", " ")
    return [shlex.split(line.removeprefix("$ ")) for line in text.splitlines() if line.startswith("$ ")]


def run(example: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *further: str) -> AuditRecord:
    (folder / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(folder)
    capture, audit = commands_of(example)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    subprocess.run([sys.executable, *capture[1:]], check=True, env=environment)
    assert main([*audit[1:], *further]) == 0
    return AuditRecord.model_validate_json((folder / "audit" / "record.json").read_bytes())


def test_plain_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = run("audit_plain_torch.py", tmp_path, monkeypatch, "--iterations", "45", "--restarts", "1")
    assert record.best is not None and record.best.level == "exact"
    assert len(record.behind) == 9


def test_flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="Flower is not installed (pip install flwr)")
    record = run("audit_flower.py", tmp_path, monkeypatch, "--iterations", "150", "--restarts", "2")
    assert record.best is not None and record.best.unexplained is not None and record.best.unexplained < 0.01


def test_the_page_has_the_commands_of_the_example() -> None:
    page = (ROOT / "docs" / "audit.md").read_text()
    assert all(shlex.join(command) in page for command in commands_of("audit_plain_torch.py"))
