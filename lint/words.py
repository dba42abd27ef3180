"""Names and docstrings use the field's nouns and verbs: ``python lint/words.py`` from the repository root.

No variable, argument, attribute, function or class is named by one of :data:`VAGUE`. No docstring begins with one of
:data:`OPENERS`: it begins with a verb, with the name of the thing, or with "Whether".
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PLACES = ("src/leakbench", "lint", "benchmarks")

VAGUE = {"found", "said", "told", "own", "stands"}
"""Parts of names that say nothing about the thing."""

OPENERS = {"As", "How", "Of", "So", "That", "These", "Those", "What", "When", "Where", "Which", "Who", "Whose"}
"""First words of clauses, where a docstring names the thing."""

Fault = tuple[int, str]


def faults(source: str) -> Iterator[Fault]:
    """Lines of a module with vague names, and with docstrings that begin with a clause."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for name in _names(node):
            if vague := VAGUE.intersection(name.lower().split("_")):
                line = getattr(node, "lineno", 1)
                yield line, f"the name {name} says {sorted(vague)[0]!r}; use the field's noun for what it holds"
        for line, text in _docstrings(node):
            first = text.split(maxsplit=1)[0] if text.strip() else ""
            if first in OPENERS:
                yield line, f"a docstring begins {first!r}; begin with a verb or the thing's name"


def _names(node: ast.AST) -> Iterator[str]:
    """Names that a node binds."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
            yield name


def _docstrings(node: ast.AST) -> Iterator[Fault]:
    """Strings that are statements: docstrings, and those below attributes and constants."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        return
    for child in node.body:
        match child:
            case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                yield line, text


def main() -> int:
    """Print all faults; returns the exit status."""
    files = [file for place in PLACES for file in sorted(Path(place).rglob("*.py"))]
    listed = [f"{file}:{line}: {fault}" for file in files for line, fault in sorted(faults(file.read_text("utf-8")))]
    for fault in listed:
        print(fault, file=sys.stderr)
    return 1 if listed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
