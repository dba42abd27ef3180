"""No function is longer than a screen without a reason: ``python lint/lengths.py`` from the repository root.

The body of a function, without its docstring, has at most 60 lines. A longer one says why in a comment ``# long: ...``,
on the line above the function or above its first statement.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path("src/leakbench")

LONGEST = 60

_REASON = re.compile(r"^\s*# long: \S", flags=re.MULTILINE)

Fault = tuple[int, str]


def faults(source: str) -> Iterator[Fault]:
    """Lines of a module with functions that are too long without a reason, or give one without need."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        if not body:
            continue
        first = _first_line(body[0])
        length = (body[-1].end_lineno or first) - first + 1
        reason = _REASON.search("\n".join(lines[max(_first_line(node) - 2, 0) : first - 1]))
        if length > LONGEST and not reason:
            todo = "make it shorter, or give the reason above it: '# long: ...'"
            yield node.lineno, f"{node.name} has {length} lines, more than {LONGEST}; {todo}"
        if length <= LONGEST and reason:
            yield node.lineno, f"{node.name} has {length} lines and needs no reason to be long; remove the comment"


def _first_line(node: ast.stmt) -> int:
    """Line of the first decorator, or of the statement itself."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(each.lineno for each in decorators)])


def main() -> int:
    """Print all faults of the package; returns the exit status."""
    files = sorted(PACKAGE.rglob("*.py"))
    listed = [f"{file}:{line}: {fault}" for file in files for line, fault in sorted(faults(file.read_text("utf-8")))]
    for fault in listed:
        print(fault, file=sys.stderr)
    return 1 if listed or not files else 0


if __name__ == "__main__":
    sys.exit(main())
