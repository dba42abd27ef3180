"""Objects whose state is tensors: what a loop saves of them, and puts back to go on from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from leakbench.lazy import torch


def part_of(saved: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """What was saved as ``<name>.<key>``, by key."""
    return {key.removeprefix(f"{name}."): value for key, value in saved.items() if key.startswith(f"{name}.")}


def named(name: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state as a part of a larger one: the inverse of :func:`part_of`."""
    return {f"{name}.{key}": value for key, value in state.items()}


class Stateful:
    """An object whose state is tensors.

    The state are its attributes that are tensors, named tuples or dictionaries of tensors, integers, booleans, or
    objects like it; all others are settings.
    """

    def state(self) -> dict[str, torch.Tensor]:
        """The state by name; tensors are not copied."""
        found: dict[str, torch.Tensor] = {}
        for name, value in vars(self).items():
            if isinstance(value, Stateful):
                found |= named(name, value.state())
            elif isinstance(value, torch.Tensor):
                found[name] = value
            elif isinstance(value, tuple) and hasattr(value, "_fields"):
                found |= {f"{name}.{field}": each for field, each in zip(value._fields, value, strict=True)}
            elif _is_of_tensors(value):
                found |= named(name, value)
            elif isinstance(value, int):
                found[name] = torch.tensor(value)
        return found

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Be as it was when ``state`` gave this; tensors go to the device of those that they replace."""
        for name, value in list(vars(self).items()):
            new: Any
            if isinstance(value, Stateful):
                value.restore(part_of(saved, name))
                continue
            if isinstance(value, torch.Tensor):
                new = _copied(saved[name], value)
            elif isinstance(value, tuple) and hasattr(value, "_fields"):
                new = type(value)(
                    *(_copied(saved[f"{name}.{field}"], old) for field, old in zip(value._fields, value, strict=True))
                )
            elif _is_of_tensors(value):
                new = {key: _copied(saved[f"{name}.{key}"], old) for key, old in value.items()}
            elif isinstance(value, int):
                new = type(value)(saved[name].item())
            else:
                continue
            setattr(self, name, new)


def _is_of_tensors(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(each, torch.Tensor) for each in value.values())


def _copied(saved: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """A copy on the device of the tensor that it replaces, aligned as files' tensors need not be."""
    return saved.to(old.device, copy=True)
