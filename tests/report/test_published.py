"""Published verdicts, and the tables made of them."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pandas as pd
import pytest

from leakbench.errors import ConfigError, RecordError, UnknownName
from leakbench.planning.project import Project
from leakbench.report import published
from leakbench.report.claims import claims_of
from leakbench.report.coverage import PAPER_SCALE, coverage
from leakbench.report.judging import COLUMNS, claims_path
from leakbench.report.published import BEGIN, END, p_text, pages, publish, published_path, write_pages

ROOT = Path(__file__).parents[2]
PAPER = "tfl_meta"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A checkout without papers of its own, whose README has a place for the table."""
    for name in ("config", "workflow"):
        shutil.copytree(ROOT / name, tmp_path / name)
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nbehind\n")
    return Project(tmp_path)


def write_verdicts(project: Project, scale: str, verdict: str = "reproduced", paper: str = PAPER) -> None:
    """Give every claim of a paper the same verdict."""
    empty = dict.fromkeys(COLUMNS)
    known = {"verdict": verdict, "survives": False, "effect": 0.5, "low": 0.25, "high": 0.75, "p": 0.01, "seeds": 3}
    frame = pd.DataFrame(
        [{**empty, **known, "claim": each.key, "statement": each.statement} for each in claims_of(paper)]
    )
    path = project.root / claims_path(scale, paper)
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False)


def readme(project: Project) -> str:
    write_pages(project)
    return (project.root / "README.md").read_text()


def counts(project: Project) -> list[str]:
    (row,) = [line for line in readme(project).splitlines() if "Zhang et al. 2023" in line]
    return [cell.strip() for cell in row.split("|")[4:-1]]


def test_pages_are_as_the_command_writes_them() -> None:
    for path, text in pages(Project(ROOT)):
        assert path.read_text() == text, "run `leakbench pages`"


def test_published_files(project: Project) -> None:
    assert published.published_files(project, [PAPER]) == []
    write_verdicts(project, "laptop")
    publish(project, "laptop", [PAPER])
    assert published.published_files(project, ["cdpa", PAPER]) == [published_path("laptop", PAPER)]


def test_published_verdicts_name_no_machine() -> None:
    """Files are named as in the repository, wherever the verdicts were made."""
    for path in (ROOT / "published").rglob("*.csv"):
        places = re.findall(r"\S*/\S*\.yaml", path.read_text())
        assert all(place.lstrip("(").startswith(("src/", "config/")) for place in places), path


@pytest.mark.parametrize(
    "path", sorted((ROOT / "published").rglob("claims.csv")), ids=lambda path: str(path.parent.name)
)
def test_published_coverage_is_that_of_the_grids(path: Path) -> None:
    """Verdicts of a grid that has changed since have to be published again."""
    scale, paper = path.parts[-3:-1]
    project = Project(ROOT)
    plan, whole = project.plan(scale), project.plan(PAPER_SCALE)
    kept = pd.read_csv(path, dtype=str, keep_default_na=False).set_index("claim")["coverage"]
    derived = {entry.key: coverage(plan, whole, paper, entry.experiments) for entry in claims_of(paper)}
    stale = [key for key, words in derived.items() if key in kept and kept[key] != words]
    assert not stale and set(kept.index) == set(derived), f"run `leakbench publish` after a replication of {scale}"


def test_verdicts_are_counted(project: Project) -> None:
    claims = len(claims_of(PAPER))
    assert counts(project) == [str(claims), "", "", "", "", ""]
    write_verdicts(project, "smoke")
    assert publish(project, "smoke", [PAPER]) == [published_path("smoke", PAPER)]
    assert counts(project) == [str(claims), str(claims), "0", "0", "0", "`smoke`"]


def test_the_scale_that_is_closest_to_the_paper_is_shown(project: Project) -> None:
    for scale, verdict in (("smoke", "reproduced"), ("laptop", "contradicted")):
        write_verdicts(project, scale, verdict)
        publish(project, scale, [PAPER])
    assert counts(project)[1:] == ["0", str(len(claims_of(PAPER))), "0", "0", "`laptop`"]


def test_a_claim_that_the_closest_scale_does_not_judge_is_shown_at_the_next(project: Project) -> None:
    write_verdicts(project, "smoke")
    write_verdicts(project, "overnight", "contradicted")
    path = project.root / claims_path("overnight", PAPER)
    frame = pd.read_csv(path, dtype={"claim": str})
    frame.loc[:9, "verdict"] = "not run"
    frame.to_csv(path, index=False)
    for scale in ("smoke", "overnight"):
        publish(project, scale, [PAPER])
    rest = len(claims_of(PAPER)) - 10
    assert counts(project)[1:] == ["10", str(rest), "0", "0", f"`overnight` {rest}, `smoke` 10"]
    lines = published._paper_table(project, PAPER, published.closest(project, PAPER)).splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["Scale `overnight`", "Scale `smoke`"]
    assert sum("| overnight |" in line for line in lines) == rest and sum("| smoke |" in line for line in lines) == 10


def test_a_claim_that_no_scale_judges_is_shown_at_the_closest(project: Project) -> None:
    for scale in ("smoke", "overnight"):
        write_verdicts(project, scale, "not run")
        publish(project, scale, [PAPER])
    assert counts(project)[1:] == ["0", "0", "0", str(len(claims_of(PAPER))), "`overnight`"]


def test_what_is_around_the_table_stays(project: Project) -> None:
    text = readme(project)
    assert text.startswith(f"before\n{BEGIN}\n| paper |")
    assert text.endswith(f"|\n{END}\nbehind\n")
    assert write_pages(project) == []


def test_the_papers_numbers_stand_beside_ours(project: Project) -> None:
    """Those of the claim as it is registered, and the verdict by them, or either alone."""
    paper = "cdpa"
    claims = {entry.key: entry for entry in claims_of(paper)}
    table = published._paper_table(project, paper, published.closest(Project(ROOT), paper))
    rows = {line.split("](")[0][3:]: line for line in table.splitlines() if line.startswith("| [")}
    assert rows.keys() == claims.keys()
    for key, entry in claims.items():
        shown = ": ".join(filter(None, (entry.printed, entry.by_paper)))
        assert f"| {shown} |" in rows[key], key
    assert any(entry.printed and entry.by_paper for entry in claims.values())


def reword(project: Project, scale: str) -> None:
    """Publish the first claim of a scale as it was worded before."""
    path = project.root / claims_path(scale, PAPER)
    frame = pd.read_csv(path, dtype={"claim": str})
    frame.loc[0, "statement"] = "something else"
    frame.to_csv(path, index=False)
    publish(project, scale, [PAPER])


def line_of_first(project: Project) -> str:
    entry, *_ = claims_of(PAPER)
    lines = published._paper_table(project, PAPER, published.closest(project, PAPER)).splitlines()
    (line,) = [line for line in lines if line.startswith(f"| [{entry.key}](")]
    return line


def test_a_reworded_claim_has_no_verdict(project: Project) -> None:
    write_verdicts(project, "smoke")
    reword(project, "smoke")
    assert "not judged since the claim changed" in line_of_first(project)
    assert counts(project)[1] == str(len(claims_of(PAPER)) - 1)


def test_a_reworded_claim_is_shown_at_a_scale_that_judged_the_new_words(project: Project) -> None:
    for scale in ("smoke", "overnight"):
        write_verdicts(project, scale)
    publish(project, "smoke", [PAPER])
    reword(project, "overnight")
    assert "| smoke |" in line_of_first(project)


def test_a_row_of_a_page(project: Project) -> None:
    write_verdicts(project, "smoke")
    publish(project, "smoke", [PAPER])
    table = published._paper_table(project, PAPER, published.closest(project, PAPER))
    entry, *_ = claims_of(PAPER)
    cell = f"{entry.statement} ({entry.source})"
    line = f"| [{entry.key}](leakage_claims.py) | {cell} | ✔ reproduced | 0.5 [0.25, 0.75] | 0.01 | 3 |  | smoke |  |"
    assert line.replace("|", "") in [row.replace("\\|", "").replace("|", "") for row in table.splitlines()]


@pytest.mark.parametrize(("p", "text"), [(0.0123, "0.012"), (1e-5, "< 0.001"), (1.0, "1"), (float("nan"), "")])
def test_p_values_to_read(p: float, text: str) -> None:
    assert p_text(p) == text


def test_verdicts_that_are_not_there(project: Project) -> None:
    with pytest.raises(RecordError, match=r"figures/smoke/tfl_meta/claims.csv is not there; make it with `snakemake"):
        publish(project, "smoke", [PAPER])


def test_verdicts_of_another_version(project: Project) -> None:
    write_verdicts(project, "smoke")
    path = project.root / claims_path("smoke", PAPER)
    pd.read_csv(path).drop(columns="seeds").to_csv(path, index=False)
    with pytest.raises(RecordError, match="made by another version; make it again with `leakbench judge"):
        publish(project, "smoke", [PAPER])
    assert not (project.root / "published").exists()


def test_a_scale_that_is_not_published(project: Project) -> None:
    with pytest.raises(UnknownName, match="smoke2"):
        publish(project, "smoke2", [PAPER])


@pytest.mark.parametrize("text", ["no place", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_page_without_one_place(project: Project, text: str) -> None:
    (project.root / "README.md").write_text(text)
    with pytest.raises(ConfigError, match=r"README.md: expected one place for a table"):
        write_pages(project)
