"""torchvision beside a CPU build of torch: what is declared, and when nothing is."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType

import pytest
import torch

from leakbench.libraries import torchvision_compat

SYMPTOM = "operator torchvision::nms does not exist"


class Stand(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A torchvision whose import fails as it is told, and works from then on."""

    def __init__(self, failure: str | None) -> None:
        self.failure = failure
        self.imports = 0

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(name, self) if name == "torchvision" else None

    def exec_module(self, module: ModuleType) -> None:
        self.imports += 1
        module.__dict__["attempt"] = self.imports
        if self.failure is not None and self.imports == 1:
            sys.modules["torchvision.half"] = ModuleType("torchvision.half")
            raise RuntimeError(self.failure)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators that are declared, instead of declaring them."""
    found: list[str] = []

    class Library:
        def __init__(self, namespace: str, kind: str) -> None:
            self.namespace = namespace
            assert kind == "DEF"

        def define(self, schema: str) -> None:
            found.append(f"{self.namespace}::{schema.partition('(')[0]}")

    monkeypatch.setattr(torch.library, "Library", Library)
    monkeypatch.setattr(torchvision_compat, "_libraries", [])
    return found


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch, declared: list[str]) -> Iterator[Callable[[str | None], Stand]]:
    """``stand(failure)`` puts a torchvision in the place of the installed one, which comes back after the test."""
    installed = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "torchvision"}
    for name in installed:
        del sys.modules[name]

    def place(failure: str | None) -> Stand:
        finder = Stand(failure)
        monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
        return finder

    yield place
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
    sys.modules.update(installed)


uncached = torchvision_compat.import_torchvision.__wrapped__


def test_the_symptom_is_cured_by_two_declarations(stand: Callable[[str | None], Stand], declared: list[str]) -> None:
    finder = stand(SYMPTOM)
    module = uncached()
    assert module is sys.modules["torchvision"] and module.attempt == finder.imports == 2
    assert declared == ["torchvision::nms", "torchvision::qnms"]
    assert "torchvision.half" not in sys.modules  # what the first attempt left


def test_another_error_is_not_swallowed(stand: Callable[[str | None], Stand], declared: list[str]) -> None:
    finder = stand("the disk is full")
    with pytest.raises(RuntimeError, match="the disk is full"):
        uncached()
    assert finder.imports == 1 and declared == []


def test_nothing_is_declared_where_torchvision_loads(stand: Callable[[str | None], Stand], declared: list[str]) -> None:
    finder = stand(None)
    assert uncached().attempt == finder.imports == 1
    assert declared == []


REAL = """
import sys
try:
    import torchvision
    broken = False
except RuntimeError as error:
    broken = "operator torchvision::nms does not exist" in str(error)
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]
from leakbench.libraries import torchvision_compat
first, second = (torchvision_compat.import_torchvision() for _ in range(2))
import torch
import torchvision
from torchmetrics.functional.image import peak_signal_noise_ratio
assert first is second is torchvision
assert bool(torchvision_compat._libraries) == broken
assert torch.ops.torchvision.nms is not None
assert callable(first.models.alexnet)
print("broken" if broken else "sound")
"""


@pytest.mark.slow
def test_the_installed_torchvision_loads() -> None:
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in {"broken", "sound"}
