"""The scorecard in a real, headless Chromium: it renders, filters and prints, and asks for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report.browser import Browser, browser, installed

from leakbench.planning.project import Project
from leakbench.report.findings import MARKS

PROGRAMS = installed()

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


def choose(page: Browser, name: str, value: str) -> None:
    page.run(
        "const list = document.getElementById(arguments[0]); list.value = arguments[1];"
        "list.dispatchEvent(new Event('change', {bubbles: true}))",
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
    every = shown(page)
    assert len(every) > 25 and len(set(every)) > 2
    for verdict in MARKS:
        choose(page, "verdict", verdict)
        left = shown(page)
        assert left == [each for each in every if each == verdict]
        assert page.run("return document.getElementById('count').textContent") == f"{len(left)} of {len(every)} claims"
    choose(page, "verdict", "")
    choose(page, "paper", "optimal_defense")
    assert shown(page) == every


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


@pytest.mark.parametrize("width", [320, 390, 1200])
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


def test_keyboard_and_names(page: Browser) -> None:
    """Whatever scrolls or is chosen can be reached by keyboard, and whatever is seen has a name."""
    assert page.run("return [...document.querySelectorAll('.scroll')].every(part => part.tabIndex === 0)")
    assert page.run("return [...document.querySelectorAll('select')].every(part => part.labels.length === 1)")
    assert page.run("return [...document.images].every(part => part.alt.length > 20)")
    assert page.run("return new Set([...document.querySelectorAll('[id]')].map(part => part.id)).size") == page.run(
        "return document.querySelectorAll('[id]').length"
    )
    assert page.run("return document.documentElement.lang") == "en"
