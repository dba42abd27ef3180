"""The environments hold the versions that ``pyproject.toml`` asks for."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("environment", ["cpu", "cuda"])
def test_environments_hold_what_is_asked_for(environment: str) -> None:
    """A version that is changed in one place alone is not the one that gets installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(each for some in project["optional-dependencies"].values() for each in some)]
    pinned = {
        line.strip().lower() for line in (ROOT / "envs" / f"{environment}.txt").read_text().splitlines() if "==" in line
    }
    names = {pin.partition("==")[0] for pin in pinned}
    exact = {each.lower() for each in asked if "==" in each}
    assert not exact - pinned
    assert {each.lower() for each in asked if "==" not in each} <= names
