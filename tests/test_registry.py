"""Components register themselves, wherever their file lies; names that do not exist are explained."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from leakbench import registry
from leakbench.attacks.base import ATTACKS
from leakbench.defenses.base import DEFENSES
from leakbench.errors import ConfigError, UnknownName
from leakbench.registry import Component, Registry


class Shape(Component):
    sides: int = 3


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[Shape]:
    """A registry whose package holds one module, which registers nothing."""
    package = tmp_path / "shapes_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "loaded.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return Registry("shape", "shapes_package")


def test_register_and_get(shapes: Registry[Shape]) -> None:
    @shapes.register("square", version=2)
    class Square(Shape):
        """Four sides.

        More.
        """

        sides: int = 4

    assert shapes.get("square") is Square
    assert (Square.name, Square.version, Square.summary()) == ("square", 2, "Four sides.")
    assert Square().parameters() == {"sides": 4}
    assert list(shapes) == ["square"]
    assert "shapes_package.loaded" in sys.modules


def test_a_name_belongs_to_one_class(shapes: Registry[Shape]) -> None:
    class First(Shape):
        pass

    class Second(Shape):
        pass

    shapes.register("shape", version=1)(First)
    shapes.register("shape", version=1)(First)  # a module that is imported twice
    with pytest.raises(ConfigError, match=f"shape 'shape' of {__name__} is already registered by {__name__}"):
        shapes.register("shape", version=1)(Second)
    assert shapes.get("shape") is First


def test_a_name_is_a_part_of_paths(shapes: Registry[Shape]) -> None:
    for name in ("a/b c", "", "line\n", "-a"):
        with pytest.raises(ConfigError, match=rf"of {__name__}\.Shape: a name is a part of paths: a letter or digit"):
            shapes.register(name, version=1)(Shape)


def test_a_module_that_cannot_be_imported_is_not_passed_over(shapes: Registry[Shape], tmp_path: Path) -> None:
    (tmp_path / "shapes_package" / "broken.py").write_text("raise RuntimeError('broken')")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            shapes.get("square")


def test_entry_points_of_other_distributions(shapes: Registry[Shape], monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        def load(self) -> None:
            shapes.register("elsewhere", version=1)(Shape)

    monkeypatch.setattr(registry, "entry_points", lambda group: [Entry()] if group == "shapes_package" else [])
    assert list(shapes) == ["elsewhere"]


def test_unknown_names_are_explained() -> None:
    with pytest.raises(UnknownName) as caught:
        DEFENSES.get("optimal_nose", "config/papers/x.yaml: defenses.a")
    message = str(caught.value)
    assert message.startswith("config/papers/x.yaml: defenses.a: unknown defense 'optimal_nose'; did you mean")
    assert "'optimal_noise'?" in message and "magnitude_pruning" in message
    with pytest.raises(UnknownName, match=r"unknown attack 'zzz'\. Allowed: .*ig_script"):
        ATTACKS.get("zzz")


def test_components_are_frozen_and_strict() -> None:
    cls: type[Any] = DEFENSES.get("gaussian_noise")
    with pytest.raises(ValidationError, match="frozen"):
        cls(scale=1).scale = 2
    with pytest.raises(ValidationError, match="Extra inputs"):
        cls(scale=1, strength=2)
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        cls(scale=-1)
