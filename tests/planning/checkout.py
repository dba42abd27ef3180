"""A copy of the configuration, of the project and of its papers, that a test may break."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from leakbench.errors import ConfigError
from leakbench.jobs.base import Job
from leakbench.paper_folders import paper_folders
from leakbench.planning.layers import read_yaml
from leakbench.planning.project import Project

ROOT = Path(__file__).resolve().parents[2]
CONFIG = "config/config.yaml"
PAPER = "papers/optimal_defense/grid.yaml"
PAPER_SMOKE = "papers/optimal_defense/scales/smoke.yaml"
SMOKE = "config/scales/smoke.yaml"
OVERLAY = "papers.optimal_defense"
"""Keys of SMOKE below which it changes the paper."""

Change = Callable[[Any], Any]


class Checkout:
    """``config/`` and ``papers/`` in a folder."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        shutil.copytree(ROOT / "config", root / "config")
        papers = {name: replace(paper, folder=root / "papers" / name) for name, paper in paper_folders().items()}
        for name, paper in paper_folders().items():
            for file in paper.folder.rglob("*.yaml"):
                copied = papers[name].folder / file.relative_to(paper.folder)
                copied.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, copied)
        monkeypatch.setattr("leakbench.planning.project.paper_folders", lambda: papers)

    def edit(self, file: str, change: Change) -> None:
        """Change the content of a YAML file, which is made if it is missing."""
        path = self.root / file
        content = read_yaml(path) if path.is_file() else {}
        content = json.loads(json.dumps(content))  # anchors become copies
        change(content)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False))

    def jobs(self, scale: str = "smoke", **overrides: Any) -> dict[str, Job]:
        return Project(self.root, overrides).plan(scale).jobs

    def digests(self, scale: str = "smoke") -> dict[str, str]:
        return {path: job.digest for path, job in self.jobs(scale).items()}

    def fault(self, scale: str = "smoke", **overrides: Any) -> str:
        """The error message about the configuration; always one line."""
        with pytest.raises(ConfigError) as caught:
            self.jobs(scale, **overrides)
        assert "\n" not in str(caught.value)
        return str(caught.value)


def put(*keys: str, value: Any) -> Change:
    """A change that sets one key of nested mappings, which it makes where they are missing."""

    def change(content: dict[str, Any]) -> None:
        *parents, last = keys
        for key in parents:
            content = content.setdefault(key, {})
        content[last] = value

    return change
