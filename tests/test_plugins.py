"""Plug-ins: files and modules that register components, what they import beside them, and their source."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakbench.defenses.base import DEFENSES, Defense
from leakbench.errors import ConfigError
from leakbench.plugins import load_plugin, source_of

PLUGIN = '''
from pydantic import Field
from leakbench.defenses.base import DEFENSES, Defense

@DEFENSES.register("from_a_file", version=3)
class FromAFile(Defense):
    """A defense in a file of one's own."""
    strength: float = Field(2.5, ge=0)
'''


@pytest.fixture(autouse=True)
def _clean(clean_registries: None) -> None:
    """Plug-ins do not outlive a test."""


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "my_plugin.py"
    path.write_text(PLUGIN)
    load_plugin(str(path))
    cls = DEFENSES.get("from_a_file")
    assert issubclass(cls, Defense) and cls.version == 3 and cls().parameters() == {"strength": 2.5}
    load_plugin(str(path))
    assert DEFENSES.get("from_a_file") is cls  # imported once


def test_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_plugin.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    load_plugin("module_plugin")
    assert DEFENSES.get("from_a_file").__module__ == "module_plugin"


@pytest.mark.parametrize("source", ["nowhere/plugin.py", "no_such_plugin_module"])
def test_nothing_there(source: str) -> None:
    with pytest.raises(ConfigError, match=rf"config.yaml: plugins: .*'{source}'"):
        load_plugin(source, "config.yaml: plugins")


def test_a_broken_file_fails_every_time(tmp_path: Path) -> None:
    path = tmp_path / "broken_plugin.py"
    path.write_text("raise RuntimeError('broken')")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"broken_plugin\.py, line 1: .*RuntimeError: broken"):
            load_plugin(str(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (\n", r"config\.yaml: compare: .*faulty\.py, line 1: '\(' was never closed"),
        (
            PLUGIN.replace("from_a_file", "soteria"),
            r"config\.yaml: compare: .*faulty\.py, line 5: .*already registered by",
        ),
        ("import sys\nsys.exit(0)\n", r"config\.yaml: compare: .*faulty\.py, line 2: .*SystemExit: 0"),
        (PLUGIN + "\ndef late():\n    import faulty_late\n", r"config\.yaml: compare: .*faulty_late\.py, line 1: "),
        ("from faulty_helper import x\n", r"config\.yaml: compare: .*faulty_helper\.py, line 2: .*ZeroDivisionError"),
    ],
    ids=["syntax", "taken name", "exit", "late helper", "helper"],
)
def test_a_faulty_file_is_named_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "faulty.py").write_text(text)
    (tmp_path / "faulty_late.py").write_text("x = (\n")
    (tmp_path / "faulty_helper.py").write_text("\nx = 1 / 0\n")
    with pytest.raises(ConfigError, match=message):
        load_plugin(str(tmp_path / "faulty.py"), "config.yaml: compare")


def test_a_folder_whose_name_begins_like_that_of_a_library_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib_mine").mkdir()
    file = tmp_path / "lib_mine" / "fails_beside_lib.py"
    file.write_text("1 / 0\n")
    monkeypatch.setattr("leakbench.user_code.installed", lambda: {tmp_path / "lib"})
    with pytest.raises(ConfigError, match=r"fails_beside_lib\.py, line 1: it cannot be imported"):
        load_plugin(str(file))


HELPED = """
from leakbench.defenses.base import DEFENSES, Defense
from helper_of_plugins import SCALE

@DEFENSES.register("helped", version=1)
class Helped(Defense):
    scale: float = SCALE
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "helped_plugin.py").write_text(HELPED)
    (tmp_path / "helper_of_plugins.py").write_text("from deeper_plugin_helper import SCALE")
    (tmp_path / "deeper_plugin_helper.py").write_text("SCALE = 0.5")
    (tmp_path / "unrelated.py").write_text("")
    return tmp_path


def test_a_file_imports_what_lies_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    load_plugin(str(folder / "helped_plugin.py"))
    assert DEFENSES.get("helped")().parameters() == {"scale": 0.5}


def test_the_source_is_the_file_and_what_it_imports_beside_it(folder: Path) -> None:
    module = load_plugin(str(folder / "helped_plugin.py"))
    source = DEFENSES.get("helped").source
    assert source is not None and source == source_of(module.__name__)
    assert source.name == "helped_plugin.py"
    assert set(source.files) == {"helped_plugin.py", "helper_of_plugins.py", "deeper_plugin_helper.py"}
    (folder / "unrelated.py").write_text("x = 1")
    assert source_of(module.__name__) == source
    for name in source.files:
        (folder / name).write_text((folder / name).read_text() + "# edited\n")
        edited = source_of(module.__name__)
        assert edited is not None and edited.digest != source.digest
        assert {each for each in source.files if source.files[each] != edited.files[each]} == {name}
        (folder / name).write_text((folder / name).read_text().removesuffix("# edited\n"))


def test_the_source_does_not_depend_on_where_it_lies(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    first = source_of(load_plugin(str(folder / "helped_plugin.py")).__name__)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    for path in folder.glob("*.py"):
        (elsewhere / path.name).write_bytes(path.read_bytes())
    assert source_of(load_plugin(str(elsewhere / "helped_plugin.py")).__name__) == first


def test_the_source_of_a_module_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its package, and nothing beside that."""
    package = tmp_path / "plugin_package"
    (package / "defenses").mkdir(parents=True)
    for folder in (package, package / "defenses"):
        (folder / "__init__.py").touch()
    (package / "common.py").write_text("import beside_the_plugin_package")
    (tmp_path / "beside_the_plugin_package.py").touch()
    (package / "defenses" / "mine.py").write_text("from ..common import beside_the_plugin_package" + PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    load_plugin("plugin_package.defenses.mine")
    source = DEFENSES.get("from_a_file").source
    assert source is not None and source.name == "plugin_package.defenses.mine"
    inside = {"common.py", "__init__.py", "defenses/__init__.py", "defenses/mine.py"}
    assert set(source.files) == {f"plugin_package/{name}" for name in inside}


def test_an_installed_module_is_not_searched_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakbench.user_code.sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "another_plugin_distribution.py").touch()
    (tmp_path / "installed_plugin.py").write_text("import another_plugin_distribution" + PLUGIN)
    load_plugin("installed_plugin")
    source = DEFENSES.get("from_a_file").source
    assert source is not None and set(source.files) == {"installed_plugin.py"}


def test_this_package_has_no_source() -> None:
    assert all(DEFENSES.get(name).source is None for name in DEFENSES)
    assert source_of("leakbench.defenses.noise") is None and source_of("no_such_module") is None
