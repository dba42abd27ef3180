"""The documentation site: its navigation, its links, and, where the group ``docs`` is installed, its build."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from tests.docs.test_documented_commands import PAGES, ROOT

CONFIG = ROOT / "mkdocs.yml"
INSTALLED = all(find_spec(each) for each in ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers"))


def entries(nav: object) -> Iterator[str]:
    """Every page of a navigation, whatever section it is in."""
    if isinstance(nav, str):
        yield nav
    else:
        for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
            yield from entries(each)


def pages_of_the_nav() -> list[str]:
    return list(entries(yaml.safe_load(CONFIG.read_text())["nav"]))


def test_the_nav_has_every_guide_once() -> None:
    there = pages_of_the_nav()
    guides = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    assert guides == {each for each in there if not each.startswith("repository/")}
    outside = {ROOT / each.removeprefix("repository/") for each in there if each.startswith("repository/")}
    assert outside == {path for path in outside if path.is_file()}
    assert len(set(there)) == len(there)


def test_the_nav_has_four_parts() -> None:
    parts = [part for each in yaml.safe_load(CONFIG.read_text())["nav"] for part in each]
    assert parts == ["Tutorial", "How-to", "Reference", "Explanation"]


def test_the_guides_are_short() -> None:
    """In words, without those that `leakbench pages` writes."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    typed = [re.sub(r"<!-- Written .*<!-- The end", "", page.read_text(), flags=re.DOTALL) for page in pages]
    readme, *guides = (len(text.split()) for text in typed)
    assert 300 < readme < 600 and sum(guides) + readme < 18_675


@cache
def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_headings_that_are_there(page: Path) -> None:
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.resolve()), f"{target}#{anchor}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    done = subprocess.run(command, cwd=ROOT, env=os.environ | nowhere, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="the group docs is not installed (pip install 'leakbench[docs]')")
class TestSite:
    def test_every_page_is_there(self, site: Path) -> None:
        built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
        assert built >= {re.sub(r"README$", "index", page.removesuffix(".md")) + ".html" for page in pages_of_the_nav()}

    def test_pages_fetch_nothing(self, site: Path) -> None:
        for page in site.rglob("*.html"):
            assert not re.findall(
                r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=\"?(?:https?:)?//", page.read_text()
            )
        for sheet in site.rglob("*.css"):
            assert not re.findall(r"(?:url\(|@import )[\"']?(?:https?:)?//", sheet.read_text())

    def test_the_reference_is_made_of_docstrings(self, site: Path) -> None:
        text = (site / "reference" / "api.html").read_text()
        assert 'id="leakbench.api.read_records"' in text
        assert ":class:" not in text and "<blockquote>" not in text, "examples and roles are code"

    def test_bars_in_the_code_of_tables(self, site: Path) -> None:
        assert "|g_i - t_i|</code>" in (site / "reference" / "attacks.html").read_text()

    def test_links_to_files_of_the_repository_stay_on_the_site(self, site: Path) -> None:
        assert (site / "repository" / "examples" / "audit_plain_torch.py").is_file()
        assert 'href="repository/examples/audit_plain_torch.py"' in (site / "audit.html").read_text()
