"""Python files by their imports, and digests of them, to tell what an edit affects.

Nothing is imported. Import statements are read wherever they are, also in functions, except those under
``TYPE_CHECKING``; imports by computed names are not seen.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path


def imported_files(
    start: Iterable[Path], bases: Sequence[Path], follow: Callable[[str], bool] = lambda _: True
) -> list[Path]:
    """Files and those that they import, transitively, sorted.

    Args:
        start: Python files.
        bases: folders in which modules are looked for, as on ``sys.path``.
        follow: whether to follow a module of this dotted name.

    Raises:
        SyntaxError: a file is no Python; the error names it.
    """
    reached: set[Path] = set()
    waiting = [*start]
    while waiting:
        file = waiting.pop()
        if file not in reached:
            reached.add(file)
            try:
                names = filter(follow, _imports(file.read_bytes(), _package(file, bases)))
            except SyntaxError as error:
                error.filename = str(file)
                raise
            waiting += [other for name in names if (other := _file(name, bases))]
    return sorted(reached)


def source_digest(files: Iterable[Path], bases: Sequence[Path] = ()) -> str:
    """First 16 hexadecimal digits of the SHA-256 of files: of their content, and of their paths below ``bases``.

    Args:
        files: in any order.
        bases: folders; a file that is in none of them counts by its name alone.
    """
    named = sorted(("/".join(_below(file, bases)), file) for file in files)
    total = hashlib.sha256()
    for name, file in named:
        total.update(f"{name}\n{hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:16]


def _below(file: Path, bases: Sequence[Path]) -> tuple[str, ...]:
    """The parts of a file's path below the first base that holds it."""
    base = next((base for base in bases if file.is_relative_to(base)), file.parent)
    return file.relative_to(base).parts


def _package(file: Path, bases: Sequence[Path]) -> str:
    """Dotted name of the package that holds a file; for ``__init__.py``, of that package itself."""
    return ".".join(_below(file, bases)[:-1])


def _file(name: str, bases: Sequence[Path]) -> Path | None:
    """The file of a module or package, if a base holds it."""
    for base in bases:
        path = base.joinpath(*name.split("."))
        for file in (path.parent / f"{path.name}.py", path / "__init__.py"):
            if file.is_file():
                return file
    return None


@cache
def _imports(source: bytes, package: str) -> frozenset[str]:
    """Dotted names that importing a file may import: modules in its statements, and all parent packages.

    Args:
        source: the file's content.
        package: the package that holds it; relative imports are relative to that.
    """
    names = {name for statement in _statements(ast.parse(source)) for name in _named(statement, package)}
    return frozenset(
        above for name in (package, *names) if name for above in accumulate(name.split("."), "{}.{}".format)
    )


def _statements(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements in a tree, without those below ``if TYPE_CHECKING``."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node
    checked = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    for child in node.orelse if checked and isinstance(node, ast.If) else ast.iter_child_nodes(node):
        yield from _statements(child)


def _named(statement: ast.Import | ast.ImportFrom, package: str) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    above = package.split(".")[: len(package.split(".")) + 1 - statement.level] if statement.level else []
    module = ".".join([*filter(None, above), *filter(None, [statement.module])])
    if module:
        yield module
    yield from (".".join(filter(None, [module, alias.name])) for alias in statement.names)
