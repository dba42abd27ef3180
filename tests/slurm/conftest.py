"""Fixtures: the one-host SLURM cluster, and a stand-in for SLURM's commands where the flags are all that matters."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.slurm.cluster import Cluster

TESTS = Path(__file__).resolve().parents[1]


def _load(path: Path) -> ModuleType:
    """A helper beside the tests, under whatever import mode pytest runs."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


one_host = _load(TESTS / "slurm" / "cluster.py")
fake = _load(TESTS / "fakeslurm" / "fakeslurm.py")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A one-host SLURM cluster for this test session."""
    reason = one_host.why_not()
    if reason is not None:
        pytest.skip(reason)
    with one_host.Cluster() as cluster:
        yield cluster


@dataclass(frozen=True)
class FakeSlurm:
    """SLURM's commands without SLURM."""

    state: Path
    environment: dict[str, str]


@pytest.fixture
def fake_slurm(tmp_path: Path) -> Iterator[FakeSlurm]:
    """An environment in which sbatch, squeue and the others are stand-ins."""
    commands, state = tmp_path / "commands", tmp_path / "state"
    fake.install(commands, state)
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    path = os.pathsep.join([str(commands), os.environ.get("PATH", os.defpath)])
    yield FakeSlurm(state, outside | {"PATH": path})
    fake.stop_jobs(state)
