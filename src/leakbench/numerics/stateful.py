"""Objects whose state is tensors, which a loop saves and restores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from leakbench.lazy import torch


def part_of(saved: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """Tensors that were saved as ``<name>.<key>``, by key."""
    return {key.removeprefix(f"{name}."): value for key, value in saved.items() if key.startswith(f"{name}.")}


def named(name: str, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A state as a part of a larger one: the inverse of :func:`part_of`."""
    return {f"{name}.{key}": value for key, value in state.items()}


class Stateful:
    """An object whose state is tensors.

    The state are its attributes that are tensors, named tuples or dictionaries of tensors, integers, booleans, or
    objects like it; all others are settings.
    """

    borrowed: ClassVar[frozenset[str]] = frozenset()
    """Attributes that are no part of the state, since another object saves them."""

    def _parts(self) -> Iterator[tuple[str, Any]]:
        for name, value in list(vars(self).items()):
            if name not in self.borrowed:
                yield name, value

    def state(self) -> dict[str, torch.Tensor]:
        """The state by name; tensors are not copied."""
        state: dict[str, torch.Tensor] = {}
        for name, value in self._parts():
            if isinstance(value, Stateful):
                state |= named(name, value.state())
            elif isinstance(value, torch.Tensor):
                state[name] = value
            elif _is_tuple_of_tensors(value):
                state |= named(name, value._asdict())
            elif _is_dict_of_tensors(value):
                state |= named(name, value)
            elif isinstance(value, int):
                state[name] = torch.tensor(value)
        return state

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Return to a saved :meth:`state`; tensors go to the device of those that they replace."""
        for name, value in self._parts():
            new: Any
            if isinstance(value, Stateful):
                value.restore(part_of(saved, name))
                continue
            if isinstance(value, torch.Tensor):
                new = _copied(saved[name], value)
            elif _is_tuple_of_tensors(value):
                fields = value._asdict().items()
                new = type(value)(**{key: _copied(saved[f"{name}.{key}"], old) for key, old in fields})
            elif _is_dict_of_tensors(value):
                new = {key: _copied(saved[f"{name}.{key}"], old) for key, old in value.items()}
            elif isinstance(value, int):
                new = type(value)(saved[name].item())
            else:
                continue
            setattr(self, name, new)


def _is_tuple_of_tensors(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields") and _are_tensors(value)


def _is_dict_of_tensors(value: object) -> bool:
    return isinstance(value, dict) and _are_tensors(value.values())


def _are_tensors(values: Iterable[object]) -> bool:
    return all(isinstance(each, torch.Tensor) for each in values)


def _copied(saved: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """A copy on the device of the tensor that it replaces, aligned as files' tensors need not be."""
    return saved.to(old.device, copy=True)
