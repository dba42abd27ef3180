"""Papers are packages, of this distribution or of others, and listing them imports nothing of theirs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from leakbench import papers
from leakbench.errors import ConfigError
from leakbench.paper_folders import import_modules, paper_folders, paper_rooms

DEFENSE = '''
from leakbench.defenses.base import DEFENSES, Defense

@DEFENSES.register("of_a_sixth_paper", version=1)
class OfASixthPaper(Defense):
    """A defense that a paper brings along."""
'''

Install = Callable[[str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """``install(name, package)``: a distribution that has this one entry point of the group of papers."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    paper_folders.cache_clear()

    def installed(name: str, package: str) -> None:
        metadata = tmp_path / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[leakbench.papers]\n{name} = {package}\n")

    yield installed
    paper_folders.cache_clear()


@pytest.fixture
def sixth(install: Install, tmp_path: Path) -> Path:
    """The folder of an installed paper, of which nothing but the package can be imported."""
    folder = tmp_path / "elsewhere" / "sixth_paper"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder / "figures.py").write_text("raise RuntimeError('imported')")
    (tmp_path / "elsewhere" / "__init__.py").touch()
    install("sixth", "elsewhere.sixth_paper")
    return folder


def test_the_papers_of_this_distribution() -> None:
    shipped = paper_folders()
    assert {"optimal_defense", "channel", "cdpa", "secagg_dp", "tfl_meta", "leaderboard"} <= set(shipped)
    assert list(shipped) == sorted(shipped)
    (package,) = papers.__path__
    for name, paper in shipped.items():
        assert paper.folder.is_dir() and (paper.folder / "__init__.py").is_file()
        if paper.package.startswith("leakbench.papers."):
            assert paper.folder == Path(package) / name


def test_a_paper_of_another_distribution(sixth: Path) -> None:
    paper = paper_folders()["sixth"]
    assert (paper.name, paper.package, paper.folder) == ("sixth", "elsewhere.sixth_paper", sixth)
    assert paper.scale("smoke") == sixth / "scales" / "smoke.yaml"
    assert "elsewhere.sixth_paper" not in sys.modules
    with pytest.raises(RuntimeError, match="imported"):
        import_modules(paper.package)


def test_components_in_a_papers_room(sixth: Path) -> None:
    """In another process, since registries are filled once."""
    (sixth / "defenses").mkdir()
    (sixth / "defenses" / "mine.py").write_text(DEFENSE)
    (sixth / "attacks").mkdir()
    (sixth / "attacks" / "released.py").touch()
    assert "elsewhere.sixth_paper.defenses" in paper_rooms("defenses")
    assert "elsewhere.sixth_paper.attacks.released" in paper_rooms("attacks.released")
    assert "elsewhere.sixth_paper.models" not in paper_rooms("models")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from leakbench.attacks.released.base import MODEL_INVERSIONS
from leakbench.defenses.base import DEFENSES
print(DEFENSES.get("of_a_sixth_paper").summary(), bool(list(MODEL_INVERSIONS)))
print("elsewhere.sixth_paper.attacks.released" in sys.modules, "elsewhere.sixth_paper.figures" in sys.modules)
"""
    arguments = [sys.executable, "-c", code, str(sixth.parents[1])]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout == "A defense that a paper brings along. True\nTrue False\n"


@pytest.mark.parametrize("package", ["no_such_package", "no.such.package", "leakbench.errors"])
def test_an_entry_point_that_names_no_package(install: Install, package: str) -> None:
    install("sixth", package)
    with pytest.raises(ConfigError, match=f"'sixth' of group leakbench.papers: '{package}' is no package"):
        paper_folders()


def test_two_papers_of_one_name(install: Install) -> None:
    install("channel", "leakbench.report")
    with pytest.raises(ConfigError, match=r"two packages are paper 'channel': leakbench.papers.channel and leakbench"):
        paper_folders()


def test_listing_papers_imports_none() -> None:
    code = """
import sys
from leakbench.paper_folders import paper_folders
for paper in paper_folders().values():
    assert paper.folder.is_dir() and paper.holds("no_such_room") is False
heavy = ("leakbench.papers.", "leakbench.leaderboard", "torch", "pandas")
print([name for name in sys.modules if name.startswith(heavy)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
