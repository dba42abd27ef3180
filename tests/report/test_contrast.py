"""Style sheets: every text is legible on every background, in light, in dark and in print."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.report.contrast import contrast

PACKAGE = Path(__file__).parents[2] / "src" / "leakbench"
SHARED = PACKAGE / "report" / "templates" / "base.css"
PAGES = [
    PACKAGE / "report" / "templates" / "scorecard.html.j2",
    PACKAGE / "auditing" / "templates" / "audit.html.j2",
]
LEAST = 4.5
INK, BEHIND = "color", "background"


def sheet(page: Path) -> str:
    """The style sheet of a page."""
    style = page.read_text(encoding="utf-8").partition("<style>")[2].partition("</style>")[0]
    return style.replace('{% include "base.css" %}', SHARED.read_text(encoding="utf-8"))


def rules(style: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Selectors and declarations, also of those in media queries."""
    for selector, block in re.findall(r"([^{}]+)\{([^{}]*)\}", style):
        declared = (one.partition(":") for one in block.split(";") if ":" in one)
        yield selector.strip(), {name.strip(): value.strip() for name, _, value in declared}


def palettes(style: str) -> list[dict[str, str]]:
    """Colours by the names of their variables: in light, and with what each media query changes."""
    light, *changes = [
        {name: value for name, value in declared.items() if name.startswith("--")}
        for selector, declared in rules(style)
        if selector == ":root"
    ]
    return [light, *({**light, **change} for change in changes)]


def pairs(style: str) -> set[tuple[str, str]]:
    """Colours of text, each with every colour that may be behind it."""
    inks, grounds = ({declared[name] for _, declared in rules(style) if name in declared} for name in (INK, BEHIND))
    return set(itertools.product(inks, grounds - {"#ffffff"}))  # white is behind pictures alone


def channels(colour: str, palette: dict[str, str]) -> bytes:
    """Red, green and blue of a variable in a palette."""
    return bytes.fromhex(palette[colour.removeprefix("var(").rstrip(")")].removeprefix("#"))


def test_the_measure() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((119, 119, 119), (255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name.partition(".")[0])
def test_text_is_legible(page: Path) -> None:
    style = sheet(page)
    modes = palettes(style)
    assert len(modes) >= 2 and len(pairs(style)) >= 6
    for palette in modes:
        for ink, behind in sorted(pairs(style)):
            assert contrast(channels(ink, palette), channels(behind, palette)) >= LEAST, (ink, behind, palette)
