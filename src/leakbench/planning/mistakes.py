"""Mistakes in the configuration, in one line that names the file, the key, the value and the nearest right one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from leakbench.errors import ConfigError, UnknownName
from leakbench.registry import LABEL, LABEL_WORDS

M = TypeVar("M", bound=BaseModel)

Where = Callable[..., str]
"""Names the place of keys in a message: the file that has the last word on them, and the keys."""


def place(file: str, *keys: str | int) -> str:
    """``file: key.key``, as error messages name a place."""
    return f"{file}: {'.'.join(map(str, keys))}" if keys else file


def check_known(what: str, name: str, allowed: Collection[str], where: str) -> None:
    """Reject a name that is not among the allowed ones.

    Raises:
        UnknownName: with the nearest of those that are.
    """
    if name not in allowed:
        raise UnknownName(what, name, allowed, where)


def validated(model: type[M], content: Mapping[str, Any], where: Where) -> M:
    """``content`` as ``model``.

    Raises:
        ConfigError: naming the file, the key, the value and what is allowed.
    """
    try:
        return model.model_validate(dict(content))
    except ValidationError as error:
        raise explain(error, model, where) from None


def explain(error: ValidationError, model: type[BaseModel], where: Where) -> ConfigError:
    """The most telling fault, in one line that names the place, the key, the value and what would fit."""
    faults = error.errors()
    # A misspelt key is also a missing one, and its place is more telling.
    fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    keys, holder = _keys_and_holder(model, fault["loc"])
    if fault["type"] == "extra_forbidden":
        return UnknownName("key", str(keys[-1]), getattr(holder, "model_fields", ()), where(*keys))
    if fault["type"] == "union_tag_invalid":
        return UnknownName("kind", fault["ctx"]["tag"], _kinds(holder), where(*keys, "kind"))
    if fault["type"] == "union_tag_not_found":
        kinds = ", ".join(sorted(_kinds(holder)))
        return ConfigError(f"{where(*keys, 'kind')}: this key is missing. Allowed: {kinds}.")
    if fault["type"] == "missing":
        return ConfigError(f"{where(*keys)}: this key is missing")
    value = f" (found: {fault['input']!r})" if keys else ""
    what = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "string_pattern_mismatch" and fault["ctx"]["pattern"] == LABEL:
        what = f"expected {LABEL_WORDS}"
    return ConfigError(f"{where(*keys)}: {what}{value}")


def _keys_and_holder(model: Any, location: Iterable[str | int]) -> tuple[list[str | int], Any]:
    """A location as pydantic names it in keys of the file, and the annotation that was to fit there.

    Below a union of parts pydantic also names the part by its ``kind``, which is no key. For a key that is unknown, the
    annotation is that of the mapping that holds it.
    """
    keys: list[str | int] = []
    for key in location:
        kinds = _kinds(model)
        if key in kinds:
            model = kinds[str(key)]
            continue
        keys.append(key)
        if not hasattr(model, "model_fields"):
            model = next((part for part in reversed(get_args(model)) if part not in (Ellipsis, NoneType)), None)
        elif key in model.model_fields:
            model = model.model_fields[key].annotation
    return keys, model


def _kinds(annotation: Any) -> dict[str, Any]:
    """The members of a union of parts, by their ``kind``; empty for anything else."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    parts = [part for part in members if "kind" in getattr(part, "model_fields", ())]
    return {kind: part for part in parts for kind in get_args(part.model_fields["kind"].annotation)}
