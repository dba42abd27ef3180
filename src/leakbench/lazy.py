"""Heavy libraries under their usual names, imported on first use.

Planning jobs, listing components and ``leakbench --help`` read every plug-in but compute nothing. Plug-ins therefore
write ``from leakbench.lazy import torch``, and torch's two seconds are paid by the first tensor, not by the import.
A plug-in with ``import torch`` works too, but makes every listing slower.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


class _Lazy:
    """A stand-in for a module that imports it at the first attribute access."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(importlib.import_module(self._name), attribute)
        setattr(self, attribute, value)  # the next access finds it
        return value


if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import torch
else:
    np = _Lazy("numpy")
    pd = _Lazy("pandas")
    torch = _Lazy("torch")

__all__ = ["np", "pd", "torch"]
