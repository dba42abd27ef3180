"""Which edits draw or judge a paper again: those of its own folder, of the report, and of what they compute with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from leakbench.paper_folders import paper_folders
from leakbench.workflow import snakefile
from leakbench.workflow.snakefile import Workflow

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ["optimal_defense", "channel", "cdpa", "secagg_dp", "tfl_meta", "leaderboard"]

Changed = Callable[[str], tuple[set[str], set[str]]]


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Changed:
    """``changed(file)``: the papers that an edit of the file draws again, and that it judges again."""
    copy = tmp_path / "leakbench"
    shutil.copytree(ROOT / "src" / "leakbench", copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(snakefile, "INSTALLED", tmp_path)
    monkeypatch.setattr(snakefile, "REPORT", copy / "report")
    flow = Workflow(ROOT, {})
    flow.project.papers = {
        name: replace(paper, folder=copy.joinpath(*paper.package.split(".")[1:]))
        for name, paper in paper_folders().items()
    }

    def digests() -> dict[str, tuple[str, str]]:
        snakefile._paper_sources.cache_clear()
        return {paper: (flow.drawing_digest("smoke", paper), flow.judging_digest("smoke", paper)) for paper in PAPERS}

    def edited(file: str) -> tuple[set[str], set[str]]:
        before = digests()
        with (copy / file).open("a") as stream:
            stream.write("\n# edited\n")
        after = digests()
        drawn, judged = ({paper for paper in PAPERS if before[paper][i] != after[paper][i]} for i in (0, 1))
        return drawn, judged

    return edited


def test_a_file_of_a_paper_concerns_that_paper_alone(changed: Changed) -> None:
    for file, paper in {
        "papers/channel/tables.py": "channel",
        "papers/secagg_dp/theory/pooled_span.py": "secagg_dp",
        "papers/cdpa/reference/table02.csv": "cdpa",
        "leaderboard/figures.py": "leaderboard",
    }.items():
        assert changed(file) == ({paper}, {paper})


def test_a_formula_concerns_the_papers_that_use_it(changed: Changed) -> None:
    drawn, judged = changed("theory/leakage_surrogate.py")
    assert drawn == judged == {"tfl_meta"}
    drawn, judged = changed("theory/arguments.py")  # through other formulas
    assert {"channel", "tfl_meta"} <= drawn == judged and "leaderboard" not in drawn


def test_mechanisms_are_judged_again_and_not_drawn(changed: Changed) -> None:
    assert changed("defenses/optimal.py") == (set(), {"optimal_defense"})


def test_the_report_concerns_all_and_code_that_computes_records_none(changed: Changed) -> None:
    assert changed("report/plots.py") == (set(PAPERS), set(PAPERS))
    for file in ("jobs/train.py", "attacks/engine.py", "planning/plan.py", "papers/channel/page.md"):
        assert changed(file) == (set(), set())


def test_digests_need_no_heavy_library() -> None:
    code = """
import sys
from pathlib import Path
from leakbench.workflow.snakefile import Workflow
flow = Workflow(Path(sys.argv[1]), {})
assert all(flow.drawing_digest("smoke", paper) != flow.judging_digest("smoke", paper) for paper in flow.project.papers)
print(sorted({"torch", "numpy", "pandas", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code, str(ROOT)], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
