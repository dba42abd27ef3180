"""Files laid one over another."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from leakbench.errors import ConfigError
from leakbench.planning.layers import Layer, Layers, overlay, read_yaml


def test_overlay() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 2, "c": {"z": 1}}
    kept = copy.deepcopy(base)
    top = {"a": {"y": [3], "new": {"deep": 1}}, "b": {"now": "a mapping"}, "c": None}
    assert overlay(base, top) == {"a": {"x": 1, "y": [3], "new": {"deep": 1}}, "b": {"now": "a mapping"}, "c": None}
    assert base == kept
    assert overlay(base, {}) == base
    assert overlay(base, {"a": {}}) == base
    assert overlay(1, {"a": 2}) == {"a": 2}


def test_a_file_below_a_file_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name in ("file/config.yaml", "config.yaml"):
        with pytest.raises(ConfigError, match=f"{name}: no such file"):
            read_yaml(tmp_path / name)


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        (("a", "x"), "low: a.x"),
        (("a", "y"), "middle: a.y"),
        (("a", "y", "deeper"), "middle: a.y.deeper"),  # in a value that replaces a mapping
        (("b",), "top: below.b"),
        (("a",), "middle: a"),
        (("nowhere", "n"), "low: nowhere.n"),
    ],
)
def test_the_highest_file_that_has_a_key_is_named(keys: tuple[str, ...], place: str) -> None:
    low = Layer("low", {"a": {"x": 1, "y": {"deeper": 1}}, "b": 1})
    layers = Layers([low, Layer("middle", {"a": {"y": 2}}), Layer("top", {"b": 3}, ("below",))])
    assert layers.merged == {"a": {"x": 1, "y": 2}, "b": 3}
    assert layers.where()(*keys) == layers.where(*keys)() == place
