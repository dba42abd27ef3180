"""Rows of what attackers hold of many observations: tensors, and collections of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from leakbench.lazy import torch
from leakbench.randomness import Streams


def picked(part: Any, rows: Sequence[int]) -> Any:
    """Some rows of a tensor, of random streams, of a list, or of every tensor in a dictionary or a named tuple.

    None stays None.
    """
    if part is None:
        return None
    if isinstance(part, torch.Tensor):
        return part[torch.tensor(rows, device=part.device)]
    if isinstance(part, Streams):
        return part.at(rows)
    if isinstance(part, dict):
        return {name: picked(each, rows) for name, each in part.items()}
    if hasattr(part, "_fields"):
        return type(part)(*(picked(each, rows) for each in part))
    return [part[row] for row in rows]


def joined(parts: Sequence[Any]) -> Any:
    """The rows of all parts, each of a kind that :func:`picked` takes, one part after the other; None where all are."""
    first = parts[0]
    if all(part is None for part in parts):
        return None
    if isinstance(first, torch.Tensor):
        return torch.cat(list(parts))
    if isinstance(first, Streams):
        return Streams([key for part in parts for key in part.keys])
    if isinstance(first, dict):
        return {name: joined([part[name] for part in parts]) for name in first}
    if hasattr(first, "_fields"):
        return type(first)(*(joined(columns) for columns in zip(*parts, strict=True)))
    return [each for part in parts for each in part]


def rows_of_each(objects: Sequence[object]) -> list[list[int]]:
    """The rows of each object, such as a mechanism that several observations share, by identity."""
    rows: dict[int, list[int]] = {}
    for row, each in enumerate(objects):
        rows.setdefault(id(each), []).append(row)
    return list(rows.values())
