"""Published lines of the leaderboard: added where they changed, and never taken away."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from tests.report.synthetic import ROOT

from leakbench.cli import main
from leakbench.errors import RecordError
from leakbench.leaderboard.history import history, history_path, keep_lines
from leakbench.leaderboard.lines import lines_path
from leakbench.planning.project import Project

FIRST, SECOND = datetime.date(2031, 5, 6), datetime.date(2031, 7, 8)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A checkout."""
    shutil.copytree(ROOT / "config", tmp_path / "config")
    return Project(tmp_path, {"papers": ["leaderboard"]})


def drawn(project: Project, scale: str = "laptop", **leakages: float) -> None:
    """The numbers of Figure 1, as if it had been drawn; gaps as in real ones."""
    rows = [
        {"track": "A", "version": 1, "dataset": "d", "model": "m", "cohort": None, "defense": name, "tier": 1}
        | {"setting": None, "leakage": leakage, "loss": 1 / 3}
        for name, leakage in leakages.items()
    ]
    path = project.root / lines_path(scale)
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_csv(path, index=False)


def test_a_line_is_kept_with_its_day_until_it_changes(project: Project) -> None:
    drawn(project, noise=10 / 7, pruning=20.0)
    assert keep_lines(project, "laptop", FIRST) == [history_path("laptop")]
    drawn(project, noise=10 / 7 + 1e-9, pruning=21.0, sign=5.0)
    assert keep_lines(project, "laptop", SECOND) == [history_path("laptop")]
    assert keep_lines(project, "laptop", SECOND) == []  # nothing changed
    kept = [(line["published"], line["defense"], line["leakage"]) for line in history(project, "laptop")]
    assert kept == [
        ("2031-05-06", "noise", 1.42857),
        ("2031-05-06", "pruning", 20.0),
        ("2031-07-08", "pruning", 21.0),
        ("2031-07-08", "sign", 5.0),
    ]


def test_another_version_of_a_track_is_another_board(project: Project) -> None:
    drawn(project, noise=10.0)
    keep_lines(project, "laptop", FIRST)
    path = project.root / lines_path("laptop")
    path.write_text(path.read_text().replace("A,1,", "A,2,"))
    keep_lines(project, "laptop", SECOND)
    assert [(line["version"], line["leakage"]) for line in history(project, "laptop")] == [(1, 10.0), (2, 10.0)]


def test_columns_may_be_added(project: Project) -> None:
    """Lines that say more than they did are no other lines."""
    drawn(project, noise=10.0)
    keep_lines(project, "laptop", FIRST)
    path = project.root / lines_path("laptop")
    pd.read_csv(path).assign(seconds=3.0).to_csv(path, index=False)
    assert keep_lines(project, "laptop", SECOND) == []


def test_nothing_of_smoke_is_kept(project: Project) -> None:
    drawn(project, "smoke", noise=10.0)
    assert keep_lines(project, "smoke", FIRST) == []
    with pytest.raises(RecordError, match="publish --scale smoke"):
        history(project, "smoke")


def test_commands_publish_and_print_the_history(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project.root / "README.md").write_text((ROOT / "README.md").read_text())
    monkeypatch.chdir(project.root)
    drawn(project, noise=10.0)
    main(["publish", "--scale", "laptop", "--paper", "leaderboard"])
    assert history_path("laptop") in capsys.readouterr().out
    main(["board", "--scale", "laptop", "--history", "--json"])
    (line,) = json.loads(capsys.readouterr().out)
    assert line["defense"] == "noise" and line["published"] == datetime.date.today().isoformat()
    main(["board", "--scale", "laptop", "--history"])
    assert "noise" in capsys.readouterr().out
