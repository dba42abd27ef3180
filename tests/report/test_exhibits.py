"""Pages of published figures and tables: whole, as drawn, and of the records beside them."""

from __future__ import annotations

import os
import re
import shutil
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from tests.report.synthetic import configured

from leakbench import cli
from leakbench.errors import RecordError
from leakbench.planning.project import Project
from leakbench.publishing.archives import SUMS, archive_folder, read_archives, read_sums, write_archives
from leakbench.publishing.exhibits import (
    PICTURE,
    SCORECARD,
    outdated_pages,
    packed,
    write_exhibits,
    write_published_scorecard,
)
from leakbench.report.artifacts import artifacts_at
from leakbench.report.published import exhibits_path
from leakbench.report.style import without_caption

ROOT = Path(__file__).resolve().parents[2]
PAPER = "optimal_defense"
PUBLISHED = sorted(path.relative_to(ROOT).parts[1:3] for path in ROOT.glob("published/*/*/README.md"))


@pytest.fixture(scope="module")
def published(rendered: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rendered project with its records published."""
    root = tmp_path_factory.mktemp("published")
    shutil.copytree(rendered.root, root, dirs_exist_ok=True, symlinks=True)
    write_archives(Project(root, {"papers": [PAPER]}), "smoke", [PAPER])
    return root


@pytest.fixture
def project(published: Path, tmp_path: Path) -> Project:
    """A copy that a test may change."""
    shutil.copytree(published, tmp_path, dirs_exist_ok=True, symlinks=True)
    return Project(tmp_path, {"papers": [PAPER]})


def test_everything_drawn_is_on_the_page(project: Project) -> None:
    old = archive_folder(project, "smoke") / PAPER / f"fig99{PICTURE}"
    old.touch()
    page, *pictures = write_exhibits(project, "smoke", [PAPER])
    text = page.read_text()
    assert not old.exists()
    assert re.findall(r"^## (.*?): ", text, re.MULTILINE) == [
        f"{each.kind.capitalize()} {each.number}" for each in sorted(configured(project), key=lambda each: each.order)
    ]
    assert sorted(pictures) == sorted(page.parent / name for name in re.findall(r"!\[.*\]\((.*)\)", text))
    table = next(each for each in configured(project) if each.kind == "table")
    assert (project.root / table.path("smoke", "md")).read_text().split("\n\n")[0] in text


def test_a_picture_is_what_was_drawn(project: Project) -> None:
    for entry in configured(project):
        if entry.kind == "figure":
            file = project.root / entry.path("smoke", "png")
            drawn, caption = without_caption(file)
            kept = Image.open(BytesIO(packed(file))).convert("RGB")
            assert caption.startswith(f"Figure {entry.number}. ")
            assert kept.size == drawn.size and kept.tobytes() == drawn.tobytes()


def test_only_what_is_drawn_from_the_numbers_that_are_there(project: Project) -> None:
    entry = next(each for each in configured(project) if each.experiments)
    path = entry.path("smoke", "png" if entry.kind == "figure" else "md")
    os.utime(project.root / path, (1, 1))
    with pytest.raises(RecordError, match=f"{path}: older than the numbers .* `leakbench draw {path}`"):
        write_exhibits(project, "smoke", [PAPER])
    (project.root / path).unlink()
    with pytest.raises(RecordError, match=f"{path}: missing; make it with `leakbench draw {path}`"):
        write_exhibits(project, "smoke", [PAPER])


def test_the_scorecard_without_links_to_the_run(project: Project) -> None:
    text = write_published_scorecard(project, "smoke").read_text()
    links = re.findall(r'<a [^>]*href="([^"]*)"', text)
    assert links and all(link.startswith("#") for link in links)
    assert "records.parquet" in text


def test_the_scorecard_shows_all_that_is_published(project: Project) -> None:
    folder = archive_folder(project, "smoke")
    with (folder / SUMS).open("a") as sums:
        sums.write(f"{'0' * 64}  channel/release.tar.xz\n")
    write_published_scorecard(project, "smoke")  # records alone, of a run under way, are not on it
    page = project.root / exhibits_path("smoke", "channel")
    page.parent.mkdir(exist_ok=True)
    page.touch()
    with pytest.raises(RecordError, match=r"scorecard\.html: .* add to `papers`: channel"):
        write_published_scorecard(project, "smoke")


def test_the_command(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--root", str(project.root), "--set", f"papers=[{PAPER}]", "publish", "--figures"]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    page = f"published/smoke/{PAPER}/README.md"
    assert f"{page}: " in printed and "published/smoke/scorecard.html: " in printed and "other records" not in printed
    written = project.root / page
    written.write_text(written.read_text().replace("from records ", "from records 0"))
    assert cli.main([*words[:-1], "--records"]) == 0
    note = f"{page}: shows other records; `leakbench publish --figures --scale smoke --paper {PAPER}` writes it again"
    assert note in capsys.readouterr().out
    (archive_folder(project, "smoke") / SUMS).unlink()
    assert cli.main(words) == 1
    assert "no records of this scale are published" in capsys.readouterr().err


@pytest.mark.parametrize(("scale", "paper"), PUBLISHED)
def test_published_pages_show_the_published_records(scale: str, paper: str) -> None:
    """All artifacts of the scale, with the captions of today's code, of the archives beside them."""
    project = Project(ROOT)
    page = ROOT / exhibits_path(scale, paper)
    text = page.read_text()
    assert outdated_pages(project, scale, [paper]) == {}
    entries = [each for each in artifacts_at(project.plan(scale)) if each.paper == paper]
    plain = re.sub(r"\\([*_<>`|\\])", r"\1", text)
    for entry in entries:
        assert f"## {entry.kind.capitalize()} {entry.number}: {entry.title}\n" in text
        assert " ".join(entry.caption.split()) in plain
    pictures = {f"{entry.name}{PICTURE}" for entry in entries if entry.kind == "figure"}
    assert pictures == {path.name for path in page.parent.glob(f"*{PICTURE}")}
    assert pictures == set(re.findall(r"!\[.*\]\((.*)\)", text))


def test_what_has_all_its_records_has_pages() -> None:
    """A run that is under way may publish its records so far, alone."""
    project = Project(ROOT)
    scales = {path.parent.name for path in ROOT.glob(f"published/*/{SUMS}")}
    of = {(scale, path.split("/")[0]) for scale in scales for path in read_sums(ROOT / "published" / scale)}
    assert of >= {*PUBLISHED}
    for scale, paper in of - {*PUBLISHED}:
        done = {path for archive in read_archives(project, scale, [paper]) for path in archive.records}
        assert {*project.plan(scale).jobs_of(paper)} - done, f"publish the figures of {paper} at {scale}, too"
    for scale, paper in PUBLISHED:
        assert f'id="{paper}"' in (ROOT / "published" / scale / SCORECARD).read_text()
