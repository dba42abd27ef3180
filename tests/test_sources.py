"""Which files a Python file imports, and digests that change with them and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from leakbench.sources import imported_files, source_digest

FILES = {
    "start.py": "import helper\nfrom package import module\nfrom package.deep import NAME\nimport json\n",
    "helper.py": "def f():\n    from late import x\n",
    "late.py": "x = 1",
    "package/__init__.py": "",
    "package/module.py": "from . import sibling\nfrom .deep.leaf import y\n",
    "package/sibling.py": "from ..late import x",
    "package/deep/__init__.py": "NAME = 1",
    "package/deep/leaf.py": "import package.deep\nimport start\n",  # a circle
    "package/unused.py": "import unrelated",
    "unrelated.py": "",
    "typed.py": "if TYPE_CHECKING:\n    import unrelated\nelse:\n    import late\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def reached(folder: Path, start: str) -> set[str]:
    return {str(path.relative_to(folder)) for path in imported_files([folder / start], [folder])}


def test_files_that_are_imported(folder: Path) -> None:
    everything = set(FILES) - {"package/unused.py", "unrelated.py", "typed.py"}
    assert reached(folder, "start.py") == everything
    assert reached(folder, "helper.py") == {"helper.py", "late.py"}
    assert reached(folder, "typed.py") == {"typed.py", "late.py"}
    assert reached(folder, "package/unused.py") == {"package/__init__.py", "package/unused.py", "unrelated.py"}


def test_what_is_followed(folder: Path) -> None:
    kept = imported_files([folder / "start.py"], [folder], lambda name: not name.startswith("package"))
    assert {path.name for path in kept} == {"start.py", "helper.py", "late.py"}


def test_a_digest_is_of_contents_and_places(folder: Path) -> None:
    files = [folder / "helper.py", folder / "late.py"]
    before = source_digest(files, [folder])
    assert source_digest(reversed(files), [folder]) == before and len(before) == 16
    moved = folder / "elsewhere"
    moved.mkdir()
    for file in files:
        (moved / file.name).write_bytes(file.read_bytes())
    assert source_digest([moved / file.name for file in files], [moved]) == before
    assert source_digest([moved / file.name for file in files], [folder]) != before
    (folder / "late.py").write_text("x = 2")
    assert source_digest(files, [folder]) != before
