"""Figures and tables: found by path, registered once, written in every format, the same bytes for the same numbers."""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from tests.report.synthetic import configured

from leakbench.errors import ConfigError, RecordError
from leakbench.planning.project import Project
from leakbench.report import artifacts as module
from leakbench.report.artifacts import FORMATS, Artifact, Tables, artifact, artifact_of, artifacts
from leakbench.report.catalogue import catalogue
from leakbench.report.findings import MARKS
from leakbench.report.judging import claims_path
from leakbench.report.style import add_caption

NAMES = [
    *(f"fig{number:02d}" for number in range(1, 15)),
    *(f"figS{number}" for number in range(1, 7)),
    "table01",
    *(f"tableS{number}" for number in range(1, 6)),
]


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Artifacts that a test registers are forgotten after it."""
    artifacts()
    monkeypatch.setattr(module, "_artifacts", dict(module._artifacts))
    artifacts.cache_clear()
    yield
    artifacts.cache_clear()


def nothing(tables: Tables) -> pd.DataFrame:
    return pd.DataFrame()


def of_paper(paper: str = "optimal_defense") -> list[Artifact]:
    return [entry for entry in artifacts() if entry.paper == paper]


def test_the_papers_artifacts() -> None:
    ours = of_paper()
    assert [entry.name for entry in ours] == NAMES
    for entry in ours:
        assert entry.title and entry.caption and entry.experiments
        assert entry.paths("full") == [
            f"figures/full/optimal_defense/{entry.name}.{extension}" for extension in FORMATS[entry.kind]
        ]
        for path in entry.paths("full"):
            assert artifact_of(path) is entry


@pytest.mark.usefixtures("registry")
def test_a_number_is_taken_once() -> None:
    register = artifact("optimal_defense", "figure", 2, title="", caption="", experiments=())
    with pytest.raises(ConfigError, match=r"^optimal_defense: fig02 is registered twice$"):
        register(nothing)
    artifact("optimal_defense", "table", 2, title="", caption="", experiments=())(nothing)
    assert artifact_of("figures/smoke/optimal_defense/table02.csv").make is nothing


@pytest.mark.usefixtures("registry")
def test_supplements_stand_after_the_papers_own() -> None:
    for number in ("S10", 15, "S9", 100):
        artifact("optimal_defense", "figure", number, title="", caption="", experiments=())(nothing)
    artifacts.cache_clear()
    names = [entry.name for entry in artifacts() if (entry.paper, entry.kind) == ("optimal_defense", "figure")]
    assert names == [*NAMES[:14], "fig15", "fig100", *NAMES[14:20], "figS9", "figS10"]
    assert artifact_of("figures/smoke/optimal_defense/figS9.pdf").number == "S9"


@pytest.mark.parametrize("number", ["1", "s1", "S0", "S01", "S", "A1", "S1.5"])
def test_numbers_that_are_none(number: str) -> None:
    with pytest.raises(ConfigError, match=f"^optimal_defense: '{number}' numbers no table; expected the paper's own"):
        artifact("optimal_defense", "table", number, title="", caption="", experiments=())(nothing)


def test_tensors_come_from_experiments_that_it_names() -> None:
    register = artifact(
        "optimal_defense", "figure", 99, title="", caption="", experiments=("noise",), tensors=("noise", "pruning")
    )
    with pytest.raises(ConfigError, match=r"^optimal_defense: fig99 asks for tensors of pruning; name it in"):
        register(nothing)


def test_supplements_say_that_they_are_ours(rendered: Project) -> None:
    for entry in configured(rendered):
        assert ("Not in the paper." in entry.full_caption(rendered, "smoke")) == ("S" in entry.name)


def test_listing(rendered: Project) -> None:
    rows = {row["name"]: row for row in catalogue(rendered, "artifacts")}
    assert list(rows) == NAMES
    assert rows["figS1"]["number"] == "S1" and rows["fig14"]["number"] == 14
    assert rows["tableS2"]["path"] == "figures/smoke/optimal_defense/tableS2.csv"


def test_papers_are_counted(rendered: Project) -> None:
    """Artifacts and claims of each; verdicts of the scales that were run."""
    (row,) = catalogue(rendered, "papers")
    figures = sum(name.startswith("fig") for name in NAMES)
    assert (row["name"], row["figures"], row["tables"]) == ("optimal_defense", figures, len(NAMES) - figures)
    found = pd.read_csv(rendered.root / claims_path("smoke", "optimal_defense"))
    survive = found[found["survives"]]["verdict"]
    for each in MARKS:
        count, star = (found["verdict"] == each).sum(), (survive == each).sum()
        assert row[each] == (f"{count} ({star} ★)" if star else f"{count}")
    assert row["claims"] == len(found)
    (row,) = catalogue(rendered, "papers", "laptop")
    assert row["claims"] == len(found) and {row[each] for each in MARKS} == {""}


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("figures/smoke/optimal_defence/fig02.png", "unknown paper 'optimal_defence'; did you mean 'optimal_defense'?"),
        ("figures/smoke/optimal_defense/fig15.png", "unknown artifact 'fig15'; did you mean 'fig"),
        ("figures/smoke/optimal_defense/table1.csv", "unknown artifact 'table1'; did you mean 'table"),
        ("figures/smoke/optimal_defense/fig02.tex", "unknown format 'tex'. Allowed: csv, pdf, png."),
        ("figures/smoke/optimal_defense/table01.png", "unknown format 'png'. Allowed: csv, md, tex."),
        ("figures/smoke/optimal_defense/fig02", "unknown format ''. Allowed: csv, pdf, png."),
        ("results/smoke/optimal_defense/fig02.png", "expected figures/<scale>/<paper>/<figNN|tableNN>.<format>"),
        ("fig02.png", "expected figures/<scale>/<paper>/<figNN|tableNN>.<format>"),
    ],
)  # fmt: skip
def test_paths_that_name_none(path: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        artifact_of(path)
    assert str(caught.value).startswith(f"{path}: {fault}")


def test_captions_say_what_the_scale_is(rendered: Project) -> None:
    for entry in configured(rendered):
        caption = entry.full_caption(rendered, "smoke")
        assert caption.startswith(f"{entry.kind.capitalize()} {entry.number}. ")
        assert caption.endswith(f" Scale 'smoke': {rendered.plan('smoke').description}.")
    assert "Scale 'full'" in configured(rendered)[0].full_caption(rendered, "full")


def test_every_format_is_written(rendered: Project) -> None:
    for entry in configured(rendered):
        starts = {"pdf": b"%PDF", "png": b"\x89PNG", "csv": b"", "md": b"|", "tex": b"\\begin{table}"}
        for path in entry.paths("smoke"):
            content = (rendered.root / path).read_bytes()
            assert len(content) > 100 and content.startswith(starts[path.rpartition(".")[2]])


def test_pictures_are_large_enough_to_read(rendered: Project) -> None:
    for entry in configured(rendered):
        if entry.kind == "figure":
            content = (rendered.root / entry.path("smoke", "png")).read_bytes()
            width, height = struct.unpack(">II", content[16:24])
            assert width > 900 and height > 450


def test_the_caption_stands_below_the_figure(rendered: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = {}

    def record(figure: object, caption: str) -> None:
        add_caption(figure, caption)  # type: ignore[arg-type]
        seen["text"] = figure._supxlabel.get_text()  # type: ignore[attr-defined]

    monkeypatch.setattr("leakbench.report.artifacts.add_caption", record)
    entry = artifact_of("figures/smoke/optimal_defense/fig03.png")
    entry.render(rendered, entry.paths("smoke")[0])
    assert " ".join(seen["text"].split()) == entry.full_caption(rendered, "smoke")


def test_equal_numbers_make_equal_files(rendered: Project, tmp_path: Path) -> None:
    """Another process, another folder, another moment: the same bytes."""
    shutil.copytree(rendered.root, tmp_path / "again")
    for name in ("fig07", "table01"):
        entry = artifact_of(f"figures/smoke/optimal_defense/{name}.csv")
        for path in entry.paths("smoke"):
            (tmp_path / "again" / path).unlink()
        command = [sys.executable, "-m", "leakbench", "draw", entry.paths("smoke")[0]]
        subprocess.run(command, cwd=tmp_path / "again", check=True)
        for path in entry.paths("smoke"):
            assert (tmp_path / "again" / path).read_bytes() == (rendered.root / path).read_bytes(), path


def test_a_table_that_is_not_merged_yet(tmp_path: Path, rendered: Project) -> None:
    shutil.copytree(rendered.root / "config", tmp_path / "config")
    path = "figures/smoke/optimal_defense/fig03.pdf"
    table = "results/smoke/optimal_defense/pruning_training/records.parquet"
    with pytest.raises(RecordError, match=f"^{table}: missing; make it with `leakbench merge {table}`$"):
        artifact_of(path).render(Project(tmp_path), path)
