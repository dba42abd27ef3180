"""Scales: the layers over the grids of papers.

The highest layer that has a key decides, from the lowest up:

1. the paper's ``grid.yaml``,
2. the paper's ``scales/<scale>.yaml``,
3. the checkout's ``config/papers/<paper>.yaml``, for every scale,
4. the checkout's ``config/scales/<scale>.yaml``, below ``papers: <paper>:``.

For a scale that extends another one, 2 and 4 are both scales' files, the extending above the extended.
Only the grid has to exist.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from leakbench.errors import ConfigError
from leakbench.paper_folders import PaperFolder
from leakbench.planning.layers import Layer, Layers, below, read_yaml
from leakbench.planning.mistakes import check_known, place, validated
from leakbench.planning.schemas import Device, ScaleSpec

PAPERS, SCALES = "config/papers", "config/scales"
"""Folders of a checkout: overlays of papers, and scales."""


def stems(folder: Path) -> list[str]:
    """Names of the YAML files in a folder, without their endings."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


@dataclass(frozen=True)
class Scale:
    """A scale of a checkout.

    Attributes:
        root: folder that holds ``config/``.
        specs: its file by its name, after those of the scales that it extends, the first of which extends none.
    """

    root: Path
    specs: dict[str, ScaleSpec]

    @property
    def name(self) -> str:
        """The scale in paths."""
        return [*self.specs][-1]

    @property
    def description(self) -> str:
        """The scale in words, for captions."""
        return self.specs[self.name].description

    @property
    def device(self) -> Device:
        """The device that costs are estimated for, of the nearest file that names one."""
        named = [spec.device for spec in self.specs.values() if "device" in spec.model_fields_set]
        return named[-1] if named else "cpu"

    def layers(self, paper: PaperFolder) -> Layers:
        """A paper's grid, and everything that lies over it."""
        optional = [*map(paper.scale, self.specs), self.root / PAPERS / f"{paper.name}.yaml"]
        files = [paper.grid, *filter(Path.is_file, optional)]
        top = [
            Layer(_scale_file(scale), spec.papers[paper.name], ("papers", paper.name))
            for scale, spec in self.specs.items()
            if paper.name in spec.papers
        ]
        return Layers([Layer(below(file, self.root), read_yaml(file)) for file in files] + top)


def read_scale(root: Path, name: str, papers: Collection[str]) -> Scale:
    """The scale of a name.

    Args:
        root: folder that holds ``config/``.
        name: of a file in ``config/scales``.
        papers: names of all papers.

    Raises:
        ConfigError: a file does not fit its schema, names an unknown paper or scale, or extends itself in a circle.
    """
    return Scale(root, dict(reversed([*_chain(root, name, papers)])))


def _chain(root: Path, name: str, papers: Collection[str]) -> Iterator[tuple[str, ScaleSpec]]:
    """A scale, the one that it extends, and so on."""
    passed: list[str] = []
    extended: str | None = name
    while extended:
        file = _scale_file(extended)
        spec = validated(ScaleSpec, read_yaml(root / file), partial(place, file))
        for paper in spec.papers:
            check_known("paper", paper, papers, place(file, "papers"))
        yield extended, spec
        passed.append(extended)
        if spec.extends:
            _check_extended(spec.extends, passed, stems(root / SCALES), place(file, "extends"))
        extended = spec.extends


def _check_extended(name: str, passed: Sequence[str], known: Collection[str], where: str) -> None:
    check_known("scale", name, known, where)
    if name in passed:
        raise ConfigError(f"{where}: the scales {' -> '.join((*passed, name))} extend each other")


def _scale_file(scale: str) -> str:
    return f"{SCALES}/{scale}.yaml"
