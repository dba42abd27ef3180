"""What all tests share."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from leakbench.federated.sensitivity import Probes
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import JOB_KINDS
from leakbench.jobs.runner import Placement
from leakbench.lazy import torch
from leakbench.libraries.compiler import defer_compiler
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import SimpleConvNet
from leakbench.planning.variants import REGISTRIES
from leakbench.report.claims import Claim

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in several processes; torch is not loaded yet
# On some CPUs MKL chooses kernels by the size of a product; in strict mode the numbers of a row do not depend on it.
os.environ.setdefault("MKL_CBWR", "AVX2,STRICT")
TESTS = Path(__file__).resolve().parent

settings.register_profile("leakbench", deadline=None, derandomize=True)
settings.load_profile("leakbench")


@pytest.fixture(scope="session", autouse=True)
def compiler_waits() -> None:
    """Torch's compiler is imported by tests that compile, and not at the first derivative, as in jobs."""
    defer_compiler()


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-fingerprints",
        action="store_true",
        help="write tests/fingerprints.json anew; refused where numbers changed and the version did not",
    )
    parser.addoption(
        "--update-identities",
        action="store_true",
        help="write tests/planning/identities.json anew, where identities of jobs are meant to change",
    )


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_auto_num_workers() -> int:
    """A process per core, and one more for the tests on SLURM, which wait for most of their time."""
    return len(os.sched_getaffinity(0)) + (shutil.which("sbatch") is not None)


def pytest_configure(config: pytest.Config) -> None:
    """Have pytest-xdist hand out groups in the order of the tests, not by their number of tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist's, which reads the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep files together in processes of pytest-xdist, and begin with what takes longest: nothing ends alone.

    A file is a group, whose fixtures one process makes; a slow test is one by itself unless a mark says otherwise. The
    tests on SLURM come first, which wait for most of their time, then groups with slow tests, then those with most.
    """
    if not hasattr(config, "workerinput"):
        return
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        mark, name = item.get_closest_marker("xdist_group"), item.nodeid
        if mark is not None:
            name = mark.args[0]
        elif item.get_closest_marker("slow") is None:
            name = item.path.relative_to(TESTS).as_posix()
            item.add_marker(pytest.mark.xdist_group(name))
        groups.setdefault(name, []).append(item)

    def place(group: list[pytest.Item]) -> tuple[bool, bool, int]:
        marks = {mark.name for item in group for mark in item.iter_markers()}
        return "slurm" not in marks, "slow" not in marks, -len(group)

    items[:] = [item for group in sorted(groups.values(), key=place) for item in group]


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what was imported and collected: looking through it takes a second."""
    gc.freeze()


@pytest.fixture(scope="session")
def rules_of_workflow() -> set[str]:
    """Names of all rules, as Snakemake reads the workflow."""
    command = [sys.executable, "-m", "snakemake", "--list-rules"]
    return set(subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=True).stdout.split())


class FixedSteps(ClientSteps):
    def __init__(self, gradient: torch.Tensor, sensitivity: torch.Tensor) -> None:
        self._fixed_gradient = gradient
        self._fixed_sensitivity = sensitivity

    @property
    def gradient(self) -> torch.Tensor:
        return self._fixed_gradient

    def sensitivity(self, probes: int = 10, kind: Probes = "gaussian", draw: int = 0) -> torch.Tensor:
        return self._fixed_sensitivity


@pytest.fixture
def clean_registries() -> Iterator[None]:
    """Plug-ins do not outlive a test: neither what they register nor what they replace in jobs and claims."""
    with registries_as_they_were():
        yield


@contextmanager
def registries_as_they_were() -> Iterator[None]:
    """Undoes what plug-ins register, and what they replace in jobs and claims."""
    registries = [*REGISTRIES.values(), JOB_KINDS]
    known = [dict(registry._classes) for registry in registries if list(registry)]
    replaceable: list[tuple[Any, str]] = [(JOB_KINDS.get(name), "run") for name in JOB_KINDS]
    replaceable += [(Placement, "resolve"), (Claim, "judge")]
    methods = [getattr(owner, name) for owner, name in replaceable]
    modules, path = set(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for registry, classes in zip(registries, known, strict=True):
        registry._classes.clear()
        registry._classes.update(classes)
    for (owner, name), method in zip(replaceable, methods, strict=True):
        setattr(owner, name, method)
    for name in set(sys.modules) - modules:
        if "plugin" in name:
            del sys.modules[name]


@pytest.fixture(scope="session")
def fixed_steps() -> Callable[[torch.Tensor, torch.Tensor], ClientSteps]:
    """``fixed_steps(gradient, sensitivity)``: what clients computed, both ``[n, d]``, as given."""
    return FixedSteps


@pytest.fixture(scope="session")
def tiny_network() -> Network:
    """160 parameters and 64 pixels: small enough for exact derivatives."""
    return build_network(SimpleConvNet(width=2), (1, 8, 8), 10, seed=3)
