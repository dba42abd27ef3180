"""The data root: the folder of staged data sets and weights."""

from __future__ import annotations

import os
from pathlib import Path


def data_root() -> Path:
    """The folder of staged data sets and weights: ``LEAKBENCH_DATA``, else ``data`` in the current folder. Absolute."""
    return Path(os.environ.get("LEAKBENCH_DATA") or "data").expanduser().absolute()
