"""The scorecard in a real, headless Chromium: it renders, filters and prints, and asks for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report.browser import Browser, browser, installed
from tests.report.contrast import contrast

from leakbench.planning.project import Project
from leakbench.report.findings import MARKS

PROGRAMS = installed()

PAIRS = """
const pairs = new Set(), words = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (words.nextNode()) {
  const around = words.currentNode.parentElement;
  if (!words.currentNode.data.trim() || !around.checkVisibility()) continue;
  let behind = around;
  while (behind && getComputedStyle(behind).backgroundColor === "rgba(0, 0, 0, 0)") behind = behind.parentElement;
  pairs.add(getComputedStyle(around).color + "|" + getComputedStyle(behind || document.body).backgroundColor);
}
return [...pairs].map(pair => pair.split("|"));
"""
"""Colours of every text that is seen, with those of what is behind it."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAMS is None, reason="no chromium or no chromedriver; see tests/report/install_chromium.sh"),
]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAMS is not None
    with browser(PROGRAMS, tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture
def page(started: Browser, rendered: Project) -> Browser:
    """The scorecard, freshly loaded on a wide screen."""
    started.width(1200)
    started.media()
    started.open(Path("/dev/null"))
    started.log("browser"), started.log("performance")
    started.open(rendered.root / "results/smoke/scorecard.html")
    return started


def shown(page: Browser) -> list[str]:
    """The verdicts of the claims that are visible."""
    script = (
        "return [...document.querySelectorAll('.claim')].filter(c => c.checkVisibility()).map(c => c.dataset.verdict)"
    )
    found: list[str] = page.run(script)
    return found


def rgb(colour: str) -> tuple[int, ...]:
    """The channels of ``rgb(1, 2, 3)``."""
    return tuple(int(part) for part in colour.removeprefix("rgb(").rstrip(")").split(","))


def choose(page: Browser, name: str, value: str) -> None:
    page.run(
        "const list = document.getElementById(arguments[0]); list.value = arguments[1];"
        "list.dispatchEvent(new Event('input', {bubbles: true}))",
        name,
        value,
    )


def test_it_renders_without_an_error(page: Browser) -> None:
    pictures = page.run("return [...document.images].map(i => i.complete && i.naturalWidth)")
    assert len(pictures) > 10 and all(width > 100 for width in pictures)
    assert page.run("return document.querySelector('h1').checkVisibility()")
    assert page.log("browser") == []


def test_no_request_leaves_the_page(page: Browser, rendered: Project) -> None:
    page.run("scrollTo(0, document.body.scrollHeight)")
    asked = page.requests()
    file = (rendered.root / "results/smoke/scorecard.html").as_uri()
    assert file in asked and all(url == file or url.startswith("data:") for url in asked)


def test_the_page_could_not_ask_for_more(page: Browser) -> None:
    """Its policy refuses what a picture or script would fetch, and this console reports it."""
    page.run("const image = new Image(); image.src = 'http://127.0.0.1:9/x.png'; document.body.append(image)")
    assert any("Content Security Policy" in entry["message"] for entry in page.log("browser"))


def test_filters(page: Browser) -> None:
    every: list[str] = page.run("return [...document.querySelectorAll('.claim')].map(c => c.dataset.verdict)")
    assert len(every) > 25 and len(set(every)) > 2
    for verdict in MARKS:
        choose(page, "verdict", verdict)
        left = shown(page)
        assert left == [each for each in every if each == verdict]
        assert page.run("return document.getElementById('count').textContent") == f"{len(left)} of {len(every)} claims"
    choose(page, "verdict", "")
    unfolded = shown(page)
    choose(page, "paper", "optimal_defense")
    assert shown(page) == unfolded and len(unfolded) > 20


def test_search_hides_cards(page: Browser) -> None:
    """All that lack a word, and whatever is no claim; theorems that have all words unfold."""
    texts = "[...document.querySelectorAll('.claim')].filter(c => c.checkVisibility()).map(c => c.textContent)"
    unfolded = page.run(f"return {texts}")
    page.run("scrollTo(0, document.body.scrollHeight)")
    choose(page, "search", "Pruning  mnist")
    first = "document.querySelector('.claim:not([hidden])').getBoundingClientRect()"
    assert page.run(f"return 0 < {first}.top && {first}.top < innerHeight")
    left = page.run(f"return {texts}")
    assert 0 < len(left) < len(unfolded)
    assert all("pruning" in text.lower() and "mnist" in text.lower() for text in left)
    assert not page.run("return document.getElementById('summary').checkVisibility()")
    choose(page, "search", "theorem")
    assert page.run("return document.querySelector('.analytic .claim:not([hidden])').checkVisibility()")
    choose(page, "search", "no claim has this word")
    assert page.run(f"return {texts}") == []
    assert page.run("return document.getElementById('count').textContent").startswith("0 of ")
    choose(page, "search", "")
    assert page.run(f"return {texts}") == unfolded
    assert page.run("return document.getElementById('summary').checkVisibility()")


def test_a_link_out_of_a_search_ends_it(page: Browser) -> None:
    choose(page, "search", "pruning")
    page.run("document.querySelector('.claim:not([hidden]) a[href^=\"#records-\"]').click()")
    page.run("return new Promise(done => setTimeout(done, 100))")
    assert page.run("return document.getElementById('search').value") == ""
    assert page.run("return document.querySelector('#records details[open] li a').checkVisibility()")


def test_theorems_fold_and_open(page: Browser) -> None:
    card = "document.querySelector('.analytic .claim')"
    assert not page.run(f"return {card}.checkVisibility()")
    for opened in (True, False):
        page.run("document.querySelector('.analytic > summary').click()")
        assert page.run(f"return {card}.checkVisibility()") is opened
    page.run(f"location.hash = {card}.id")
    page.run("return new Promise(done => setTimeout(done, 100))")
    assert page.run(f"return {card}.checkVisibility() && {card}.getBoundingClientRect().top") > 0


@pytest.mark.parametrize(("width", "height"), [(1280, 844), (375, 812)])
def test_a_picture_is_above_the_fold(page: Browser, leading: Project, width: int, height: int) -> None:
    """And at least 200 of its lines."""
    page.width(width, height)
    page.open(leading.root / "results/smoke/scorecard.html")
    box = page.run("return document.images[0].getBoundingClientRect().toJSON()")
    whole = box["bottom"] <= height
    assert box["left"] >= 0 and box["right"] <= width and (whole or box["top"] <= height - 200)
    assert page.run("return document.documentElement.scrollWidth") <= width


def test_a_claim_opens_its_records(page: Browser) -> None:
    listed = "document.querySelector('#records details[open] li a')"
    assert page.run(f"return {listed}") is None
    page.run("document.querySelector('.claim a[href^=\"#records-\"]').click()")
    page.run("return new Promise(done => setTimeout(done, 100))")
    assert page.run(f"return {listed}.checkVisibility() && {listed}.href.endsWith('.json')")


def test_without_scripts_it_is_a_plain_list(page: Browser, rendered: Project) -> None:
    every = shown(page)
    page.command("Emulation.setScriptExecutionDisabled", value=True)
    page.open(rendered.root / "results/smoke/scorecard.html")
    page.command("Emulation.setScriptExecutionDisabled", value=False)
    assert shown(page) == every
    assert not page.run("return document.getElementById('filters').checkVisibility()")
    page.run("document.querySelector('.analytic > summary').click()")
    assert len(shown(page)) > len(every)


@pytest.mark.parametrize("width", [320, 375, 1280])
def test_nothing_is_wider_than_the_screen(page: Browser, width: int) -> None:
    page.width(width)
    page.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    assert page.run("return document.documentElement.scrollWidth") <= width


def test_dark_is_dark(page: Browser) -> None:
    def brightness(of: str) -> float:
        colour = page.run(f"return getComputedStyle(document.body).{of}")
        return sum(float(part) for part in colour.strip("rgb()").split(",")) / 3

    assert brightness("backgroundColor") > 200 > 100 > brightness("color")
    page.media("dark")
    assert brightness("backgroundColor") < 50 < 200 < brightness("color")
    page.media("dark", "print")
    assert brightness("color") < 50


@pytest.mark.parametrize(("scheme", "media"), [("light", "screen"), ("dark", "screen"), ("light", "print")])
def test_all_text_has_contrast(page: Browser, scheme: str, media: str) -> None:
    """At least 4.5 to 1 between every text that is seen and what is behind it."""
    page.media(scheme, media)
    page.run("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    pairs = page.run(PAIRS)
    assert len(pairs) >= 5
    for ink, behind in pairs:
        assert contrast(rgb(ink), rgb(behind)) >= 4.5, (ink, behind)


def test_keyboard_and_names(page: Browser) -> None:
    """Whatever scrolls or is chosen can be reached by keyboard, and whatever is seen has a name."""
    assert page.run("return [...document.querySelectorAll('.scroll')].every(part => part.tabIndex === 0)")
    assert page.run("return [...document.querySelectorAll('select, input')].every(part => part.labels.length === 1)")
    assert page.run("return [...document.images].every(part => part.alt.length > 20)")
    assert page.run("return new Set([...document.querySelectorAll('[id]')].map(part => part.id)).size") == page.run(
        "return document.querySelectorAll('[id]').length"
    )
    assert page.run("return document.documentElement.lang") == "en"
