"""The README's signs and its picture are what they seem; its table is generated (tests/report/test_published.py)."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.image import imread

from leakbench.planning.project import Project
from leakbench.publishing.adoption import adopt
from leakbench.report.artifacts import artifact_of
from leakbench.report.findings import MARKS
from leakbench.report.tidy import merge, table_path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_signs_of_verdicts() -> None:
    for verdict, sign in MARKS.items():
        assert f"{sign} {verdict}" in README


def test_picture(tmp_path: Path) -> None:
    """It is what its command draws from published records."""
    (picture,) = re.findall(r"!\[.{20,}\]\((.*)\)", README)
    assert (ROOT / picture).stat().st_size < 300_000
    (path,) = re.findall(r"`snakemake --cores all (figures/\S*\.png) --config scale=laptop`", README)
    for name in ("config", "published"):
        (tmp_path / name).symlink_to(ROOT / name)
    project = Project(tmp_path)
    entry = artifact_of(path)
    adopt(project, "laptop", [entry.paper])
    for experiment in entry.experiments:
        merge(project, table_path("laptop", entry.paper, experiment))
    entry.render(project, path)
    drawn, shown = (imread(root / name) for root, name in ((tmp_path, path), (ROOT, picture)))
    assert drawn.shape == shown.shape
    assert (drawn == shown).mean() > 0.9999  # a marker that moves is more; pixels of edges may differ elsewhere
