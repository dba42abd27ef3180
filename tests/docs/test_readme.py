"""The README's signs and its picture are what they seem; its table is generated (tests/report/test_published.py)."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path

from matplotlib.image import imread

from leakbench.planning.project import Project
from leakbench.publishing.adoption import adopt
from leakbench.publishing.exhibits import packed
from leakbench.report.artifacts import artifact_of
from leakbench.report.findings import MARKS
from leakbench.report.tidy import merge, table_path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_signs_of_verdicts() -> None:
    for verdict, sign in MARKS.items():
        assert f"{sign} {verdict}" in README


def test_picture(tmp_path: Path) -> None:
    """It is what published records draw."""
    (picture,) = re.findall(r"!\[.{20,}\]\((.*)\)", README)
    _, scale, paper, name = Path(picture).with_suffix(".png").parts
    for folder in ("config", "published"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    project = Project(tmp_path)
    entry = artifact_of(f"figures/{scale}/{paper}/{name}")
    adopt(project, scale, [paper])
    for experiment in entry.experiments:
        merge(project, table_path(scale, paper, experiment))
    entry.render(project, entry.path(scale, "png"))
    drawn, shown = (
        imread(image, "webp") for image in (BytesIO(packed(tmp_path / entry.path(scale, "png"))), ROOT / picture)
    )
    assert drawn.shape == shown.shape
    assert (drawn == shown).mean() > 0.9999  # a marker that moves is more; pixels of edges may differ elsewhere
