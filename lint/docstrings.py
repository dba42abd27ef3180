"""Checks of docstrings that ruff does not have: ``python lint/docstrings.py`` from the repository root.

Public functions and classes give the shapes of their arrays and say when they raise errors; a method without a
docstring overrides one that has it. Modules of formulas, mechanisms and presets name their source.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from leakbench import errors

PACKAGE = Path("src/leakbench")

SOURCED = ("theory", "defenses", "attacks/presets.py")

OURS = {
    "theory/arguments.py": "validation of the arguments of all formulas",
    "defenses/base.py": "the interface of mechanisms, and none of them",
    "defenses/clients.py": "clients that apply any of them",
}
"""Modules there without a source, with the reason."""

_ARRAY = re.compile(r"\b(Tensor|ndarray|NDArray)\b")
_NO_ONE_SHAPE = re.compile(r"\b(dict|Mapping)\[[^\[\]]*\b(Tensor|ndarray)\]|Callable\[\[.*?\], .*?\]")
_SHAPE = re.compile(r"``[^`]*\[[^`\]]+\][^`]*``|``\([A-Z, ]+\)``|\bscalars?\b|\bshapes?\b|\belementwise\b")
_YEAR = re.compile(r"\b(19|20)\d\d\b")
_UNDOCUMENTED = {"AssertionError", "NotImplementedError", "NotAsked", "NotRun"}
"""Errors that need no docstring: those that cannot happen, and those of checks and claims that do not apply."""

Fault = tuple[int, str]


class Documented:
    """Methods with a docstring, by the names of their classes."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        self._bases: dict[str, set[str]] = {}
        self._methods: dict[str, set[str]] = {}
        for node in (each for tree in trees for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
            methods = {m.name for m in node.body if isinstance(m, ast.FunctionDef) and ast.get_docstring(m)}
            self._methods.setdefault(node.name, set()).update(methods)
            self._bases.setdefault(node.name, set()).update(map(_name_of, node.bases))

    def inherits(self, owner: ast.ClassDef, method: str) -> bool:
        """Whether a base has a docstring for a method; of other libraries' methods only torch's ``forward`` counts."""
        bases, seen = set(map(_name_of, owner.bases)), {owner.name}
        while todo := bases - seen:
            if any(method in self._methods.get(base, ()) for base in todo):
                return True
            seen |= todo
            bases = set().union(*(self._bases.get(base, ()) for base in todo))
        return method == "forward" and "Module" in seen


def _name_of(base: ast.expr) -> str:
    return ast.unparse(base).partition("[")[0].rpartition(".")[2]


def faults(tree: ast.Module, name: str, documented: Documented) -> Iterator[Fault]:
    """Lines of a module with what is missing there.

    Args:
        tree: the module.
        name: its path in the package, which decides on the checks.
        documented: all classes that it may derive from.
    """
    yield from _of(tree, "", documented)
    room = re.sub(r"^papers/[^/]+/", "", name)
    if any(room == place or room.startswith(f"{place}/") for place in SOURCED) and not name.endswith("__init__.py"):
        nodes = (each for each in ast.walk(tree) if isinstance(each, ast.Module | ast.ClassDef | ast.FunctionDef))
        sourced = any(_YEAR.search(ast.get_docstring(each) or "") for each in nodes)
        if not sourced and name not in OURS:
            yield 1, "no docstring names a paper and its year"
        if sourced and name in OURS:
            yield 1, "it names a source; remove it from OURS in lint/docstrings.py"


def _of(owner: ast.Module | ast.ClassDef, around: str, documented: Documented) -> Iterator[Fault]:
    """Faults of public definitions; ``around`` is the docstring of the class that they are in."""
    for node in owner.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name.startswith("_"):
            continue
        docstring = ast.get_docstring(node)
        if isinstance(node, ast.ClassDef):
            beside = (each.value for each in node.body if isinstance(each, ast.Expr))
            words = " ".join(str(each.value) for each in beside if isinstance(each, ast.Constant))
            fields = (each.annotation for each in node.body if isinstance(each, ast.AnnAssign))
            if any(map(_is_array, fields)) and not _SHAPE.search(words):
                yield node.lineno, f"{node.name} holds arrays, and does not give their shapes"
            yield from _of(node, words, documented)
        elif docstring is not None:
            yield from _of_function(node, docstring, around)
        elif isinstance(owner, ast.ClassDef) and not documented.inherits(owner, node.name):
            yield node.lineno, f"{owner.name}.{node.name} has no docstring, nor does it override one that has"


def _of_function(node: ast.FunctionDef, docstring: str, around: str) -> Iterator[Fault]:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    annotations = [*(each.annotation for each in arguments), node.returns]
    if any(map(_is_array, annotations)) and not _SHAPE.search(docstring + around):
        yield node.lineno, f"{node.name} takes or returns arrays, and does not give their shapes"
    named = set(re.findall(r"^ *(\w+): ", docstring.partition("Raises:")[2], flags=re.MULTILINE))
    for error in sorted(set(_raised(node.body, set()))):
        if not named & _ancestry(error):
            yield node.lineno, f"{node.name} raises {error}, and does not say when"


def _is_array(annotation: ast.expr | None) -> bool:
    return annotation is not None and bool(_ARRAY.search(_NO_ONE_SHAPE.sub("", ast.unparse(annotation))))


def _raised(body: list[ast.stmt], caught: set[str]) -> Iterator[str]:
    """Errors that statements raise by name, and do not catch themselves."""
    for node in body:
        if isinstance(node, ast.Raise):
            error = _name_of(node.exc.func if isinstance(node.exc, ast.Call) else node.exc) if node.exc else ""
            if error[:1].isupper() and error not in _UNDOCUMENTED and not _ancestry(error) & caught:
                yield error
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
            handlers = getattr(node, "handlers", [])
            types = (each.type for each in handlers if each.type)
            handled = {name.id for each in types for name in ast.walk(each) if isinstance(name, ast.Name)}
            yield from _raised(getattr(node, "body", []), caught | handled)
            for part in (node, *handlers, *getattr(node, "cases", [])):
                inner = [getattr(part, field, []) for field in ("orelse", "finalbody")]
                yield from _raised(sum(inner, [] if part is node else part.body), caught)


def _ancestry(error: str) -> set[str]:
    """The name of an error, and those of the errors that it is one of."""
    cls = getattr(errors, error, getattr(builtins, error, None))
    return {error} if cls is None else {each.__name__ for each in cls.__mro__} - {"Exception", "BaseException"}


def main() -> int:
    """Print all faults of the package; returns the exit status."""
    trees = {file: ast.parse(file.read_text(encoding="utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}
    documented = Documented(trees.values())
    listed = [
        f"{file}:{line}: {fault}"
        for file, tree in trees.items()
        for line, fault in faults(tree, file.relative_to(PACKAGE).as_posix(), documented)
    ]
    for fault in listed:
        print(fault, file=sys.stderr)
    return 1 if listed or not trees else 0


if __name__ == "__main__":
    sys.exit(main())
