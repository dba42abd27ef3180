"""Examples in docstrings run, and everything that the pages import has one."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import leakbench
from leakbench.report import artifacts, claims

ROOT = Path(__file__).parents[2]
PACKAGE = Path(leakbench.__file__).parent

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]


def module_of(file: Path) -> str:
    return ".".join(("leakbench", *file.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


API = "leakbench.api"
"""Its examples read records; tests/test_api.py runs them beside some."""

MODULES = [
    name
    for file in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in file.read_text(encoding="utf-8") and (name := module_of(file)) != API
]


def imported() -> set[tuple[str, str]]:
    """Names that the pages' code imports from the package, with their modules."""
    blocks = [
        block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    ]
    return {
        (node.module, alias.name)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("leakbench.")
        for alias in node.names
    }


@pytest.fixture
def unregistered(clean_registries: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that an example registers outlives it."""
    artifacts.artifacts()  # imports the papers
    monkeypatch.setattr(artifacts, "_artifacts", dict(artifacts._artifacts))
    monkeypatch.setattr(claims, "_claims", dict(claims._claims))


@pytest.mark.usefixtures("unregistered")
@pytest.mark.parametrize("module", MODULES)
def test_examples(module: str) -> None:
    results = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert results.attempted and not results.failed


@pytest.mark.parametrize(("module", "name"), sorted(imported()))
def test_what_users_subclass_or_call(module: str, name: str) -> None:
    """Constants, registries and the lazy libraries have no docstring of their own."""
    thing = getattr(importlib.import_module(module), name)
    if (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__module__.startswith("leakbench."):
        examples = doctest.DocTestFinder(recurse=False).find(thing, name)
        assert any(each.examples for each in examples), f"{module}.{name}: give its docstring a runnable example"
