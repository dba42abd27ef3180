"""The scorecard of a scale: one file that needs no other, with everything on it, and what is missing."""

from __future__ import annotations

import base64
import html
import io
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image
from tests.report.synthetic import configured

from leakbench.errors import ConfigError, RecordError
from leakbench.paper_folders import paper_folders
from leakbench.planning.project import Project
from leakbench.report import scorecard
from leakbench.report.artifacts import artifacts
from leakbench.report.claims import claims_of
from leakbench.report.findings import MARKS, SURVIVES
from leakbench.report.judging import SMOKE_WARNING, claims_path, claims_paths
from leakbench.report.published import published_path
from leakbench.report.scorecard import LEADING, ROWS, WIDTH, named_in, write_scorecard
from leakbench.report.style import ABOVE_CAPTION
from leakbench.report.tidy import adaptive_path, table_path

ROOT = Path(__file__).resolve().parents[2]
PAGE = "results/smoke/scorecard.html"


class Page(HTMLParser):
    """What a page loads, where it leads, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.loaded: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on"), "no scripts but the page's own"
            if name in {"src", "srcset", "data", "poster"} or (tag == "link" and name == "href"):
                self.loaded.append(value or "")
            elif name == "href":
                self.links.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def source(rendered: Project) -> str:
    return (rendered.root / PAGE).read_text()


@pytest.fixture(scope="module")
def page(source: str) -> Page:
    return Page(source)


def test_it_loads_nothing(source: str, page: Page) -> None:
    assert page.loaded and all(url.startswith("data:") for url in page.loaded)
    assert not page.tags & {"iframe", "object", "embed", "base"} and source.count("<script") == 1
    assert not re.search(r"@import|url\(|https?://", source)


def test_pictures_are_small_ones_of_the_figures(rendered: Project, page: Page) -> None:
    pictures = [base64.b64decode(url.partition(",")[2]) for url in page.loaded if url.startswith("data:image/webp")]
    figures = [entry for entry in configured(rendered) if entry.kind == "figure"]
    assert len(pictures) == len(figures)
    for picture, entry in zip(pictures, figures, strict=True):
        with Image.open(io.BytesIO(picture)) as small, Image.open(rendered.root / entry.path("smoke", "png")) as whole:
            assert small.width <= WIDTH < whole.width
            above = float(whole.info[ABOVE_CAPTION]) * whole.height
            assert above < whole.height
            assert small.width / small.height == pytest.approx(whole.width / above, rel=0.02)
            of_whole = whole.convert("L").crop((0, 0, whole.width, round(above))).resize(small.size)
            assert np.abs(np.asarray(of_whole, dtype=float) - np.asarray(small.convert("L"), dtype=float)).mean() < 8


def test_links_lead_to_files_beside_it_or_to_its_parts(rendered: Project, source: str, page: Page) -> None:
    files = {path for entry in configured(rendered) for path in entry.paths("smoke")}
    files |= set(claims_paths("smoke", "optimal_defense"))
    assert {f"../../{path}" for path in files} <= set(page.links)
    for link in page.links:
        if link.startswith("#"):
            assert f'id="{link[1:]}"' in source
        else:
            assert (rendered.root / PAGE).parent.joinpath(link).exists(), link


def test_claims_lead_to_their_records(rendered: Project, source: str, page: Page) -> None:
    """Every record is linked once, below its experiment; and every claim to the experiments that it was judged by."""
    jobs = rendered.plan("smoke").jobs
    assert sorted(link for link in page.links if link.endswith(".json")) == sorted(
        path.removeprefix("results/smoke/") for path in jobs
    )
    parts = re.findall(
        r'<details id="records-optimal_defense-(\w+)"><summary>.*?, (\d+) records?:(.*?)</details>', source, re.S
    )
    assert [name for name, _, _ in parts] == list(rendered.plan("smoke").papers["optimal_defense"].experiments)
    for name, count, listed in parts:
        links = re.findall(r'<li><a href="optimal_defense/(\w+)/.*?\.json">', listed)
        assert links == [name] * int(count)
    for entry in claims_of("optimal_defense"):
        claim = source.partition(f'id="optimal_defense-{entry.key}"')[2].partition("</li>")[0]
        assert re.findall(r'href="#records-optimal_defense-(\w+)"', claim) == list(entry.experiments)


def test_records_that_did_not_end_well(source: str) -> None:
    assert len(re.findall(r"<li><a [^>]*>dpsgd, train</a>: diverged\n", source)) == 2


def test_it_says_what_it_shows(rendered: Project, page: Page) -> None:
    plan = rendered.plan("smoke")
    text = " ".join(page.text.split())
    assert f"Scale smoke: {plan.description}." in text and "need not hold there" in text
    for spec in plan.papers.values():
        assert spec.title in text and spec.citation in text
    for entry in configured(rendered):
        assert f"{entry.kind.capitalize()} {entry.number}: {entry.title}" in text
    assert "119530" in text  # Table 1


def test_it_lists_claims_with_verdicts(rendered: Project, source: str) -> None:
    """Every claim of claims.csv with its verdict as a sign and a word: decided ones first, theorems last."""
    frame = pd.read_csv(rendered.root / claims_path("smoke", "optimal_defense"))
    found = re.findall(
        r'<li class="claim ([\w-]+)" id="optimal_defense-(\w+)".*\n.*<span aria-hidden="true">(.)</span> ([\w ]+)<',
        source,
    )
    theorems = {entry.key for entry in claims_of("optimal_defense") if not entry.experiments}
    place = frame["verdict"].map({"inconclusive": 1, "not run": 2}).fillna(0) + 3 * frame["claim"].isin(theorems)
    ordered = frame.iloc[np.argsort(place, kind="stable")]
    assert [row[1] for row in found] == ordered["claim"].tolist() and len(found) > 25
    assert [row[3] for row in found] == ordered["verdict"].tolist() and len({row[3] for row in found}) > 2
    assert all(mark == MARKS[verdict] and style == verdict.replace(" ", "-") for style, _, mark, verdict in found)
    row = frame.dropna(subset=["low"]).iloc[0]
    assert f"<dd>{row['effect']:.3g} [{row['low']:.3g}, {row['high']:.3g}]<svg" in source
    text = html.unescape(source)
    for column in ("statement", "source", "note"):
        assert all(words in text for words in frame[column].dropna())
    assert SMOKE_WARNING in text


def test_theorems_are_folded(source: str) -> None:
    """They and no other claims, below the others of their paper."""
    folded = source.partition('<details class="analytic">')[2].partition("</ol></details>")[0]
    theorems = [entry.key for entry in claims_of("optimal_defense") if not entry.experiments]
    assert sorted(re.findall(r'<li class="claim [\w-]+" id="optimal_defense-(\w+)"', folded)) == sorted(theorems)
    assert f"{len(theorems)} theorems and other analytic claims: {len(theorems)} reproduced</summary>" in folded


def test_cards_name_the_papers_number_only_where_it_is_printed(source: str) -> None:
    assert "no printed number" not in source
    for entry in claims_of("optimal_defense"):
        card = source.partition(f'id="optimal_defense-{entry.key}"')[2].partition("</li>")[0]
        assert ("<dt>paper</dt>" in card) == bool(entry.printed)


def test_contradicted_claims_lead(rendered: Project, source: str) -> None:
    """All of them, each with a link to its card."""
    frame = pd.read_csv(rendered.root / claims_path("smoke", "optimal_defense"))
    section = source.partition('<section id="contradicted"')[2].partition("</section>")[0]
    expected = frame.loc[frame["verdict"] == "contradicted", "claim"].tolist()
    linked = re.findall(r'<li><a href="#optimal_defense-(\w+)">', section)
    assert sorted(linked) == sorted(expected) and expected
    assert f'<p class="soft">{len(expected)} claims are contradicted' in section
    assert source.index('<section id="contradicted"') < source.index('<section id="claims"')


def test_artifacts_that_lead(leading: Project) -> None:
    """They stand before everything else, once, large and with all rows."""
    source = (leading.root / PAGE).read_text()
    first, _, rest = source.partition('<section id="contradicted"')
    for name in ("fig04", "table01"):
        assert f'id="optimal_defense-{name}"' in first and f'id="optimal_defense-{name}"' not in rest
    (picture,) = re.findall(r'<img src="data:image/webp;base64,([^"]+)" width="(\d+)"', first)
    assert WIDTH < int(picture[1]) <= LEADING
    rows = len(pd.read_csv(leading.root / "figures/smoke/optimal_defense/table01.csv"))
    assert first.count("<tr>") == rows + 1 and "The first" not in first


def test_the_leaderboard_leads() -> None:
    names = {(entry.paper, entry.name) for entry in artifacts() if entry.leads}
    assert names == {("leaderboard", "fig05"), ("leaderboard", "table03")}


def test_long_tables_are_cut(source: str) -> None:
    rows = [table.count("<tr>") for table in re.findall(r'<table class="dataframe">.*?</table>', source, re.S)]
    assert max(rows) == ROWS + 1 and f"The first {ROWS} of " in source


def test_published_verdicts_stand_in_where_there_is_none(copy: Path) -> None:
    frame = pd.read_csv(copy / claims_path("smoke", "optimal_defense"))
    absent = frame.loc[frame["verdict"] == "not run", "claim"]
    last, judged = absent.iloc[-1], frame.loc[frame["verdict"] == "reproduced", "claim"].iloc[0]
    path = copy / published_path("laptop", "optimal_defense")
    path.parent.mkdir(parents=True)
    chosen = frame[frame["claim"].isin([last, judged])]
    chosen.assign(verdict="contradicted", survives=True, effect=0.5, low=0.25, high=0.75).to_csv(path, index=False)
    write_scorecard(Project(copy), PAGE)
    source = (copy / PAGE).read_text()
    words = "<dt>published</dt><dd>✘ contradicted ★ at the scale laptop: 0.5 [0.25, 0.75]</dd>"
    assert source.count("<dt>published</dt>") == 1
    assert words in source.partition(f'id="optimal_defense-{last}"')[2].partition("</li>")[0]
    cards = re.findall(r'<li class="claim not-run" id="optimal_defense-(\w+)"', source)
    assert cards[0] == last and len(cards) == len(absent)
    assert f"<td>{len(absent)}, 1 published</td>" in source
    contradicted = source.partition('<section id="contradicted"')[2].partition("</section>")[0]
    assert f'<a href="#optimal_defense-{last}">' in contradicted
    assert f'<a href="#optimal_defense-{judged}">' not in contradicted


def test_it_lists_missing_numbers_with_reasons(page: Page, rendered: Project) -> None:
    attacked = [job for job in rendered.plan("smoke").experiment_jobs("optimal_defense", "noise") if job.attack]
    numbers = sum(len(job.seeds) * job.defense.count for job in attacked)
    metrics = "loss_curve|final_loss|(?:assigned_)?lpips(?:_vgg)?"
    rows = re.findall(rf"(?<!_)noise\s*({metrics})\s*(\d+)\s*([^\n]+)", page.text)
    assert [(metric, int(cells), reason.strip()) for metric, cells, reason in rows] == [
        ("assigned_lpips", numbers, "the weights are not <staged>"),
        ("assigned_lpips_vgg", numbers, "the weights are not <staged>"),
        ("final_loss", 1, "training became non-finite at step 1"),
        ("loss_curve", 1, "training became non-finite at step 1"),
        ("lpips", numbers, "the weights are not <staged>"),
        ("lpips_vgg", numbers, "the weights are not <staged>"),
    ]


def test_it_lists_adaptive_attacks(rendered: Project, source: str) -> None:
    """Every experiment that compares some, with the cells in which they are too weak."""
    section = source.partition('<section id="adaptive"')[2].partition("</section>\n</section>")[0]
    for experiment in rendered.plan("smoke").papers["optimal_defense"].experiments:
        cells = pd.read_csv(rendered.root / adaptive_path(table_path("smoke", "optimal_defense", experiment)))
        weak = int(cells["under_attacked"].astype(bool).sum())
        words = f"<strong>{weak} of {len(cells)} under-attacked</strong>" if weak else f"none of {len(cells)} under-"
        assert (f"<li>{experiment}: {words}" in section) == bool(len(cells))
    assert "<li>adaptive: " in section


def test_it_escapes(source: str) -> None:
    assert "not &lt;staged&gt;" in source and "<staged>" not in source


def test_it_says_where_numbers_come_from(page: Page, rendered: Project) -> None:
    jobs = len(rendered.plan("smoke").jobs)
    assert f"Outcomes: {jobs - 2} ok, 2 diverged." in page.text  # dpsgd, in the experiments noise and sgd
    for name, value in {
        "records": f"{jobs}",
        "commit": "0123456789ab",
        "versions": "python 3.11, torch 2",
        "computing time": f"{1.5 * jobs:.0f} s",
        "largest job": "1.00 GiB",
    }.items():
        assert f"\n{name}{value}\n" in page.text


def test_it_counts_verdicts(rendered: Project, source: str) -> None:
    frame = pd.read_csv(rendered.root / claims_path("smoke", "optimal_defense"))
    cells = []
    for verdict in MARKS:
        of_it = frame[frame["verdict"] == verdict]
        stars = int(of_it["survives"].sum())
        cells.append(f"<td>{len(of_it)}{f' ({stars} {SURVIVES})' if stars else ''}</td>")
    assert f"optimal_defense</a></th>{''.join(cells)}<td>{len(frame)}</td></tr>" in source


def test_it_counts_those_that_outlive_the_correction() -> None:
    verdicts = [("reproduced", SURVIVES), ("reproduced", ""), ("contradicted", "")]
    rows: Any = [SimpleNamespace(verdict=verdict, survives=star) for verdict, star in verdicts]
    counts = {"reproduced": "2 (1 ★)", "contradicted": "1", "inconclusive": "0", "not run": "0"}
    assert scorecard._counts(rows) == counts


def test_it_shows_the_findings_of_the_replication_page(rendered: Project, source: str) -> None:
    section = source.partition('<section id="findings"')[2].partition('<section id="artifacts"')[0]
    listed = paper_folders()["optimal_defense"].page.read_text().partition("## Errors and gaps of the paper")[2]
    assert section.count("<li>") == len(re.findall(r"^ *- ", listed.partition("\n## ")[0], flags=re.MULTILINE)) > 10
    assert "<strong>I3, direction.</strong>" in section and "## " not in section


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("Fig. 4", {("figure", 4)}),
        ("Fig. 2 and 3, text of Table IV", {("figure", 2), ("figure", 3), ("table", 4)}),
        ("Fig. 27 to 29 and 31", {("figure", 27), ("figure", 28), ("figure", 29), ("figure", 31)}),
        ("Tables II and VIII", {("table", 2), ("table", 8)}),
        ("Theorem 4, eq. 19", set()),
    ],
)
def test_figures_and_tables_in_words(source: str, named: set[tuple[str, int]]) -> None:
    assert named_in(source) == named


@pytest.fixture
def copy(rendered: Project, tmp_path: Path) -> Path:
    shutil.copytree(rendered.root, tmp_path / "copy")
    return tmp_path / "copy"


def test_words_of_the_configuration_are_escaped(copy: Path) -> None:
    path = copy / "config" / "papers" / "optimal_defense.yaml"
    path.parent.mkdir()
    path.write_text(yaml.safe_dump({"title": "<script>alert('x')</script> & more"}))
    write_scorecard(Project(copy), PAGE)
    source = (copy / PAGE).read_text()
    assert source.count("<script") == 1
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; more" in source


def test_equal_records_make_equal_pages(rendered: Project, copy: Path) -> None:
    (copy / PAGE).unlink()
    write_scorecard(Project(copy), PAGE)
    assert (copy / PAGE).read_bytes() == (rendered.root / PAGE).read_bytes()


def test_what_has_no_claims_and_no_findings_has_no_empty_sections(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leakbench.report.scorecard.claims_of", lambda _: [])
    elsewhere = {"optimal_defense": replace(paper_folders()["optimal_defense"], folder=copy)}
    project = Project(copy)
    assert project.plan("smoke")  # read, and kept
    monkeypatch.setattr(project, "papers", elsewhere)
    write_scorecard(project, PAGE)
    source = (copy / PAGE).read_text()
    assert "claims-optimal_defense" not in source and '<section class="findings"' not in source
    assert 'id="optimal_defense-fig04"' in source and 'id="records-optimal_defense-noise"' in source


@pytest.mark.parametrize(
    ("lost", "command"),
    [
        ("figures/smoke/optimal_defense/fig02.png", "draw figures/smoke/optimal_defense/fig02.png"),
        ("figures/smoke/optimal_defense/claims.csv", "judge figures/smoke/optimal_defense/claims.csv"),
        ("figures/smoke/optimal_defense/table01.csv", "draw figures/smoke/optimal_defense/table01.csv"),
        (
            "results/smoke/optimal_defense/noise/missing.csv",
            "merge results/smoke/optimal_defense/noise/records.parquet",
        ),
    ],
)
def test_what_is_not_made_yet_is_named(copy: Path, lost: str, command: str) -> None:
    (copy / lost).unlink()
    with pytest.raises(RecordError, match=f"^{lost}: missing; make it with `leakbench {command}`$"):
        write_scorecard(Project(copy), PAGE)


def test_verdicts_by_the_papers_own_numbers(copy: Path, rendered: Project) -> None:
    """Beside the claims that have one, and beside no other."""
    words = "by the paper's own numbers: "
    assert words not in (rendered.root / PAGE).read_text()
    path = copy / claims_path("smoke", "optimal_defense")
    frame = pd.read_csv(path, dtype={"by_paper": str})
    frame.loc[0, "by_paper"] = "contradicted"
    frame.to_csv(path, index=False)
    write_scorecard(Project(copy), PAGE)
    source = (copy / PAGE).read_text()
    assert source.count(words) == 1 and f"{words}{MARKS['contradicted']} contradicted" in source


def test_claims_of_another_version(copy: Path) -> None:
    path = claims_path("smoke", "optimal_defense")
    pd.read_csv(copy / path).drop(columns="p_holm").to_csv(copy / path, index=False)
    with pytest.raises(RecordError, match=f"^{path}: made by another version; make it again with `leakbench judge"):
        write_scorecard(Project(copy), PAGE)


@pytest.mark.parametrize("path", ["results/scorecard.html", "results/smoke/report.html", "figures/smoke/index.html"])
def test_paths_that_are_no_page(rendered: Project, path: str) -> None:
    with pytest.raises(ConfigError, match=f"^{path}: expected results/<scale>/scorecard.html"):
        write_scorecard(rendered, path)
