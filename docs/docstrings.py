"""Extension of Griffe, which reads docstrings for the reference: examples and Sphinx's roles become Markdown's code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"^( *)(>>> .*(?:\n(?!\s*$).+)*)", re.MULTILINE)
ROLE = re.compile(r":\w+:`~?([^`]+)`")


class AsMarkdown(Extension):
    """Rewrites every docstring."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite that of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """A docstring whose examples are blocks of code, and whose roles are code."""
    return ROLE.sub(r"`\1`", EXAMPLE.sub(r"\1```pycon\n\1\2\n\1```", docstring))
