"""YAML files laid one over another; the highest that has a key has the last word on it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from leakbench.errors import ConfigError
from leakbench.planning.mistakes import Where, place


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises:
        ConfigError: missing, not YAML, or not a mapping.
    """
    try:
        content = yaml.load(path.read_text(), yaml.CSafeLoader)  # libyaml: eight times as fast
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(f"{path}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values")
    return content


def below(path: Path, root: Path) -> str:
    """A path as messages name it: relative to ``root`` where it is below that, else as it is."""
    return str(path.relative_to(root) if path.is_relative_to(root) else path)


def overlay(base: Any, top: Any) -> Any:
    """``top`` over ``base``: mappings merge key by key, everything else is replaced."""
    if isinstance(base, dict) and isinstance(top, dict):
        return base | {key: overlay(base[key], value) if key in base else value for key, value in top.items()}
    return top


@dataclass(frozen=True)
class Layer:
    """A mapping in a file.

    Attributes:
        file: name in error messages.
        content: the mapping.
        keys: keys of the file below which the mapping is.
    """

    file: str
    content: dict[str, Any]
    keys: tuple[str, ...] = ()

    def decides(self, keys: Sequence[str | int]) -> bool:
        """Whether the mapping has a value at these keys, or replaces something that they are in."""
        node: Any = self.content
        for key in keys:
            if not isinstance(node, dict):
                return True
            if key not in node:
                return False
            node = node[key]
        return True


class Layers:
    """Mappings of several files, each laid over those before it; there is at least one."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self.merged: dict[str, Any] = reduce(overlay, (layer.content for layer in layers))

    def values(self, *keys: str) -> Iterator[Any]:
        """The value at these keys in every layer that has one, also if a layer above replaces it."""
        for layer in self._layers:
            node: Any = layer.content
            for key in keys:
                node = node.get(key) if isinstance(node, dict) else None
            if node is not None:
                yield node

    def where(self, *prefix: str) -> Where:
        """The function from keys below ``prefix`` to the file that has the last word on them, and the keys there.

        Of keys that no file has, that is the lowest.
        """

        def where(*keys: str | int) -> str:
            path = (*prefix, *keys)
            last = next((layer for layer in reversed(self._layers) if layer.decides(path)), self._layers[0])
            return place(last.file, *last.keys, *path)

        return where
