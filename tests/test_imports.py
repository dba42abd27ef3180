"""Imports inside functions only defer heavy libraries, which planning a job or listing components does not need."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import leakbench

PACKAGE = Path(leakbench.__file__).parent

QUICK = {"__init__.py", "cli.py", "__main__.py", "lazy.py", "workflow/caller.py", "workflow/warm.py"}
"""Modules that the package, `leakbench --help` and a warm process with its callers start with: they defer whatever they
can."""

LIGHT = {*sys.stdlib_module_names, "leakbench", "pydantic", "yaml"}
"""Packages that planning imports."""

HEAVY = {
    "leakbench.attacks.restoration.denoiser",
    "leakbench.attacks.restoration.networks",
    "leakbench.libraries.energy",
}
"""Modules of ours that import a heavy library: their classes derive from its own, or it is what they are about."""


def deferred(node: ast.AST, inside: bool = False) -> Iterator[tuple[int, str]]:
    """Imports inside functions, by line and module."""
    for child in ast.iter_child_nodes(node):
        if inside and isinstance(child, ast.Import):
            yield from ((child.lineno, alias.name) for alias in child.names)
        elif inside and isinstance(child, ast.ImportFrom):
            yield child.lineno, child.module or ""
        else:
            yield from deferred(child, inside or isinstance(child, ast.FunctionDef))


def test_nothing_light_is_imported_inside_a_function() -> None:
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    assert files.keys() >= QUICK
    pointless = [
        f"{name}:{line}: {module}"
        for name, path in sorted(files.items())
        if name not in QUICK
        for line, module in deferred(ast.parse(path.read_text(encoding="utf-8")))
        if module.partition(".")[0] in LIGHT and module not in HEAVY
    ]
    assert not pointless, "import these at the top of their modules"
