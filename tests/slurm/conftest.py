"""Fixtures: the one-host SLURM cluster, and a stand-in for SLURM's commands where the flags are all that matters."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

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
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Any]]]:
    """By name, what the ``RUNS`` of the modules of this session's tests return: they wait side by side.

    Each is given a one-host SLURM cluster of its own, which stays until the session ends, and an empty folder.
    """
    reason = one_host.why_not()
    if reason is not None:
        pytest.skip(reason)
    functions: dict[str, Callable[[Cluster, Path], Any]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path.parent == TESTS / "slurm" and "runs" in item.fixturenames:
            functions |= item.module.RUNS
    with ExitStack() as clusters, ThreadPoolExecutor(len(functions)) as pool:

        def on_a_cluster(function: Callable[[Cluster, Path], Any], folder: Path) -> Any:
            return function(clusters.enter_context(one_host.Cluster()), folder)

        yield {
            name: pool.submit(on_a_cluster, function, tmp_path_factory.mktemp(name))
            for name, function in functions.items()
        }


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
