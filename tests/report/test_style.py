"""One colour per mechanism, everywhere."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from leakbench.attacks.base import ATTACKS
from leakbench.defenses.base import DEFENSES
from leakbench.report.style import (
    ABOVE_CAPTION,
    CAPTION,
    COLOURS,
    MARKERS,
    OTHER_COLOURS,
    REFERENCE_COLOUR,
    REFERENCES,
    add_caption,
    colour,
    lay_out,
    marker,
    other_marker,
    panels,
    pictures,
    setting_of_mechanism,
    shades,
)


def rgb(code: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(code.removeprefix("#")))


def test_every_defense_of_the_project_has_a_colour_of_its_own() -> None:
    assert set(DEFENSES) <= set(COLOURS)
    everything = [*COLOURS.values(), *OTHER_COLOURS, REFERENCE_COLOUR]
    assert len(set(everything)) == len(everything)
    for one, other in itertools.combinations(everything, 2):
        assert sum(abs(a - b) for a, b in zip(rgb(one), rgb(other), strict=True)) > 60, (one, other)


@pytest.mark.parametrize("mechanism", ["sign_noise", "halved", "x"])
def test_other_defenses_get_one_that_stays(mechanism: str) -> None:
    assert colour(mechanism) in OTHER_COLOURS
    assert colour(mechanism) == colour(str(mechanism))
    assert marker(mechanism) == "o"


def test_reference_attackers_differ_by_line() -> None:
    assert set(REFERENCES) == {name for name in ATTACKS if not ATTACKS.get(name).observes}
    assert len({label for label, _ in REFERENCES.values()}) == len(REFERENCES)
    assert len({style for _, style in REFERENCES.values()}) == len(REFERENCES)


def test_a_second_series_of_a_mechanism_has_another_marker() -> None:
    mechanisms = [name for name in DEFENSES if name != "none"]
    for name in mechanisms:
        assert other_marker(name) not in {marker(name), *MARKERS.values()} - {"^"}
    assert {other_marker(name) for name in mechanisms} == {"D", "^"}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_shades_start_at_the_mechanisms_colour_and_grow_lighter(count: int) -> None:
    found = shades("optimal_noise", count)
    assert len(set(found)) == count and found[0] == colour("optimal_noise").lower()
    brightness = [sum(rgb(code)) for code in found]
    assert brightness == sorted(brightness) and brightness[-1] < 3 * 255


def test_a_long_caption_leaves_room_for_the_axes() -> None:
    figure, (ax,) = panels(1, height=2.0)
    add_caption(figure, "A caption of many words. " * 60)
    figure.canvas.draw()
    caption = figure.texts[-1]
    labelled = ax.get_tightbbox()
    assert labelled is not None and labelled.y0 > caption.get_window_extent().y1
    assert ax.get_window_extent().height > 0.3 * figure.dpi
    plain, _ = panels(1, height=2.0)
    add_caption(plain, "A caption.")
    assert plain.get_figheight() == 2.0


@pytest.mark.parametrize("captioned", [True, False])
def test_pictures_say_where_the_caption_begins(captioned: bool) -> None:
    """All of the axes, red here, is above it; all of the caption is below."""
    figure, (ax,) = panels(1, height=2.0)
    ax.plot([0, 1], [0, 1], color="red")
    ax.set_xlabel("x", color="red")
    ax.tick_params(colors="red")
    if captioned:
        add_caption(figure, "A caption of many words. " * 20)
    with Image.open(io.BytesIO(pictures(figure)["png"])) as picture:
        above = round(float(picture.info[ABOVE_CAPTION]) * picture.height)
        pixels = np.asarray(picture.convert("RGB"), dtype=int)
    assert (above < len(pixels)) == captioned
    redness = pixels[..., 0] - pixels[..., 1]
    assert redness[:above].max() > 200 and redness[above:].max(initial=0) == 0
    if captioned:
        assert pixels[above:].min() < 100


@pytest.mark.parametrize("mechanism", ["optimal_noise", "mine"])
def test_settings_of_a_mechanism_differ_in_colour_and_marker(mechanism: str) -> None:
    names = [setting_of_mechanism(mechanism, number) for number in range(6)]
    assert names[0] == mechanism and len({(colour(name), marker(name)) for name in names}) == 6
    assert len({colour(name) for name in names}) == 6


@pytest.mark.parametrize("lines", [3, 12])
def test_a_legend_beside_low_panels_stays_above_the_caption(lines: int) -> None:
    figure, (ax,) = panels(1, width=3.0, height=2.0)
    for line in range(lines):
        ax.plot([0, 1], [line, line], label=f"line {line}")
    legend = figure.legend(*ax.get_legend_handles_labels(), loc="outside right center")
    add_caption(figure, "A caption of several lines. " * 12)
    lay_out(figure)
    (caption,) = (text for text in figure.texts if text.get_gid() == CAPTION)
    assert legend.get_window_extent().y0 > caption.get_window_extent().y1
    assert legend.get_window_extent().x0 > ax.get_window_extent().x1
