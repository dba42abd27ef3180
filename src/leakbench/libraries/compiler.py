"""Keeps torch's compiler out of processes that do not compile.

The first derivative by ``torch.func`` asks ``torch._dynamo`` for a context manager, which does nothing unless compiled
autograd is on. torch imports the compiler for that: 800 modules, three to five seconds of every job.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from types import SimpleNamespace
from typing import Any


class _Deferred:
    """Placeholder for ``torch._dynamo`` until something needs more of it; any import of it replaces this."""

    compiled_autograd = SimpleNamespace(_disable=contextlib.nullcontext)

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torch._dynamo"), name)


def defer_compiler() -> None:
    """Import torch's compiler when it is used, and not at the first derivative. Changes no number."""
    if "torch._dynamo" not in sys.modules:
        import torch

        torch._dynamo = _Deferred()  # type: ignore[assignment]
