"""Papers by name: the packages below ``leakbench.papers``, those of other distributions, and the leaderboard.

A paper is a package. Its folder holds the paper's grid and scales (YAML), its page, its printed numbers, its figures
and claims, and in sub-packages named like those of ``leakbench`` (``jobs``, ``defenses``, ...) components of its own.
Another distribution brings a paper with an entry point of the group ``leakbench.papers``: the paper's name, and its
package::

    [project.entry-points."leakbench.papers"]
    my_paper = "my_package.my_paper"

Listing papers imports none of their modules.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from leakbench.errors import ConfigError

PAPERS = "leakbench.papers"
"""Package of the papers in this distribution, and group of the entry points of others."""
LEADERBOARD = "leakbench.leaderboard"
"""Not a paper, but configured like one."""


@dataclass(frozen=True)
class PaperFolder:
    """A paper's package and its folder.

    Attributes:
        name: as in paths and in ``config.yaml``.
        package: dotted name of the package.
        folder: folder of the package.
    """

    name: str
    package: str
    folder: Path

    @property
    def base(self) -> Path:
        """The folder on ``sys.path`` that the package is in."""
        return self.folder.parents[self.package.count(".")]

    @property
    def grid(self) -> Path:
        """Variants and experiments."""
        return self.folder / "grid.yaml"

    def scale(self, scale: str) -> Path:
        """Changes of the grid at a scale; without the file the grid is used as it is."""
        return self.folder / "scales" / f"{scale}.yaml"

    @property
    def page(self) -> Path:
        """The replication page: gaps and errors of the paper."""
        return self.folder / "page.md"

    @property
    def reference(self) -> Path:
        """Folder of the paper's printed numbers, as CSV."""
        return self.folder / "reference"

    @property
    def so_far(self) -> Path:
        """Overlay that leaves out what a published scale lacks, to be copied; not every paper has one."""
        return self.folder / "so_far.yaml"

    def holds(self, room: str) -> bool:
        """Whether the paper has a module or package ``room``, such as ``jobs`` or ``attacks.released``."""
        path = self.folder.joinpath(*room.split("."))
        return path.is_dir() or path.with_suffix(".py").is_file()


@cache
def paper_folders() -> Mapping[str, PaperFolder]:
    """Every installed paper by name, sorted.

    Raises:
        ConfigError: two packages are papers of the same name, or an entry point names no package.
    """
    papers: dict[str, PaperFolder] = {}
    for name, package in _packages():
        if name in papers:
            raise ConfigError(f"two packages are paper '{name}': {papers[name].package} and {package}")
        papers[name] = PaperFolder(name, package, _folder(name, package))
    return dict(sorted(papers.items()))


def _packages() -> Iterator[tuple[str, str]]:
    """Names of papers, with their packages."""
    package = importlib.import_module(PAPERS)
    for module in pkgutil.iter_modules(package.__path__):
        if module.ispkg:
            yield module.name, f"{PAPERS}.{module.name}"
    if importlib.util.find_spec(LEADERBOARD):
        yield LEADERBOARD.rpartition(".")[2], LEADERBOARD
    for entry in entry_points(group=PAPERS):
        yield entry.name, entry.value


def _folder(name: str, package: str) -> Path:
    """The folder of a package. Its parents are imported; it is not."""
    try:
        spec = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"entry point '{name}' of group {PAPERS}: '{package}' is no package that can be imported")
    return Path(next(iter(spec.submodule_search_locations)))


def paper_rooms(room: str) -> Iterator[str]:
    """Dotted names of the packages (or modules) that papers call ``room``, such as ``jobs``."""
    for paper in paper_folders().values():
        if paper.holds(room):
            yield f"{paper.package}.{room}"


def import_modules(package: str) -> None:
    """Import a package with all modules in it, at any depth."""
    path = importlib.import_module(package).__path__
    for module in pkgutil.walk_packages(path, f"{package}."):
        importlib.import_module(module.name)
