"""The page on the state of the art says what classes, docs/attacks.md and published lines say."""

from __future__ import annotations

import datetime
import shutil
from pathlib import Path

import pandas as pd
import pytest
from tests.report.synthetic import ROOT

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS
from leakbench.errors import ConfigError
from leakbench.leaderboard.history import keep_lines
from leakbench.leaderboard.lines import lines_path
from leakbench.leaderboard.state_of_the_art import MEASURED, ON, PAGE, measurements, shown, tables, write_page
from leakbench.planning.project import Project
from leakbench.report.published import BEGIN, END


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A checkout with the two pages."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    for page in (PAGE, MEASURED):
        (tmp_path / page).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / page, tmp_path / page)
    return Project(tmp_path, {"papers": ["leaderboard"]})


def test_the_page_is_as_it_would_be_written(project: Project) -> None:
    for lines in ROOT.glob("published/*/leaderboard/lines.csv"):
        (project.root / lines.relative_to(ROOT)).parent.mkdir(parents=True)
        shutil.copyfile(lines, project.root / lines.relative_to(ROOT))
    assert write_page(project) == []
    path = project.root / PAGE
    before = path.read_text()
    path.write_text(before[: before.index(BEGIN)] + f"{BEGIN}\nold\n{END}\n")
    assert write_page(project) == [path]
    assert path.read_text() == before


def test_a_page_without_a_place(project: Project) -> None:
    (project.root / PAGE).write_text("# Nothing")
    with pytest.raises(ConfigError, match="expected one place for a table"):
        write_page(project)
    (project.root / PAGE).unlink()
    assert write_page(project) == []


def test_every_attack_that_stands_alone_is_there() -> None:
    names = [attack.name for attack in shown()]
    assert len(names) == len(set(names)) and set(ON) <= set(names)
    missing = {name for name in ATTACKS if ATTACKS.get(name).observes} - set(names)
    assert {name for name in missing if not issubclass(ATTACKS.get(name), Wrapper)} == {
        "gradient_matching",
        "sentence_matching",
    }


def test_rows_are_those_of_classes_and_pages(project: Project) -> None:
    rows = {line.split("`")[1]: line for line in tables(project).splitlines() if line.startswith("| [`")}
    assert rows.keys() == {attack.name for attack in shown()}
    assert "| nothing | no search |" in rows["spear"]
    assert "| `labels`, `pixel_range` | 24,000 | 18.00 ± 3.33 dB" in rows["ig_script"]
    assert (
        "24.6 dB at the median, 19% recovered" in rows["ig_script"]
        and "4,800 iterations, TV 0.01: " in rows["ig_script"]
    )
    measured = measurements((ROOT / MEASURED).read_text())
    assert measured.keys() - rows.keys() <= {"imputed"}  # a wrapper
    assert len(measured["ig_script"]) == 4 and measured["dager"][0][0].startswith("ROUGE above 99")


def drawn(project: Project, version: int, **strongest: tuple[str, float | None]) -> None:
    """The numbers of Figure 1, as if it had been drawn: the strongest attack on each defense, and what it shows."""
    rows = [
        {"track": "D", "version": version, "dataset": "d", "model": "m", "cohort": 4, "defense": defense, "tier": 1}
        | {"setting": None, "leakage": leakage, "unit": "dB", "loss": 0.1, "strongest": attack}
        for defense, (attack, leakage) in strongest.items()
    ]
    path = project.root / lines_path("laptop")
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)
    keep_lines(project, "laptop", datetime.date(2031, 5, version))


def test_lines_that_another_attack_raised(project: Project) -> None:
    assert "No line of the leaderboard is published yet." in tables(project)
    drawn(project, 1, noise=("ig", 12.0), pruning=("ig", 15.0), sign=("dlg", 13.0), sdq=("", None))
    assert "None of the published lines (scale `laptop`) has been overturned yet." in tables(project)
    drawn(project, 2, noise=("surrogate", 17.25), pruning=("ig", 16.0), sign=("unordered", 12.0), sdq=("ig", 9.0))
    found = tables(project).partition("overturned")[2].strip().splitlines()
    cells = ["2031-05-02", "`laptop`", "D, version 2", "d, m, 4 clients", "`noise`"]
    assert found[-1] == f"| {' | '.join(cells)} | 12.0 dB by `ig` | 17.2 dB by `surrogate` |"
    assert len(found) == 3  # head, rule and one line
