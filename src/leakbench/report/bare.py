"""Figures and tables for a paper: of a column's width and a font's size, with their caption in a file beside them."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from leakbench.errors import ConfigError
from leakbench.report.style import STYLE, lay_out, legend_below

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.gridspec import SubplotSpec
    from matplotlib.legend import Legend

FOLDER = "bare"
"""Folder of these files, beside the framed ones."""
INCHES = {"in": 1.0, "cm": 1 / 2.54, "mm": 1 / 25.4, "pt": 1 / 72.27}
"""Units of a width; a point is TeX's."""
PANEL, ROW = 2.1, 1.7
"""Inches that a panel is at least wide, where there is more than one column of them, and high."""
NAME = 16
"""Characters of a line of a name on the vertical axis."""
CHARACTER = 0.5
"""Width of a character of text, of the font's size."""


class Shape(NamedTuple):
    """Width of a figure in inches, and size of its font in points."""

    width: float
    font: float

    @classmethod
    def of(cls, width: str, font: float) -> Shape:
        """The shape of a width such as ``3.3in``.

        Raises:
            ConfigError: the width is none, or the font's size is none to read.
        """
        if not 4 <= font <= 30:
            raise ConfigError(f"--font {font:g}: expected a size of 4 to 30 points")
        return cls(inches(width), font)


def inches(width: str) -> float:
    """A width such as ``3.3in`` in inches.

    >>> round(inches("84mm"), 2)
    3.31

    Raises:
        ConfigError: it is no number with a unit, or no width of a figure.
    """
    parsed = re.fullmatch(r"(\d*\.?\d+)\s*(in|cm|mm|pt)", width.strip())
    if parsed is None:
        raise ConfigError(f"--width {width}: expected a number and one of {', '.join(INCHES)}, as 3.3in or 84mm")
    value = float(parsed[1]) * INCHES[parsed[2]]
    if not 1.5 <= value <= 20:
        raise ConfigError(f"--width {width}: {value:.2f} inches; a figure is 1.5 to 20 inches wide")
    return value


def fit(figure: Figure, shape: Shape) -> None:
    """Give a figure a width and a font's size, with as many panels beside each other as fit.

    Panels keep their proportions, and legends that do not fit in their panel go below it. A figure whose axes are on no
    plain grid, such as pictures with a scale beside them, is scaled as a whole, with its text.
    """
    panels = _panels(figure)
    factor = min(shape.width / figure.get_figwidth(), 1.0)  # of a figure as a whole
    _scale_text(figure, shape.font / _style_size() if panels else factor)
    if panels:
        columns, height = _regrid(figure, panels, shape)
        width = 0.8 * shape.width / columns  # of axes, beside their labels
        for _, ax in panels:
            _wrap(ax, width, shape.font)
        figure.canvas.draw()  # measures legends
        below = [_move_below(ax, width, height) for _, ax in panels]
        rows = [max(below[start : start + columns]) for start in range(0, len(below), columns)]
        figure.set_figheight(figure.get_figheight() + sum(rows))
    else:
        figure.set_size_inches(figure.get_figwidth() * factor, figure.get_figheight() * factor)
    for legend in [*figure.legends]:
        legend.remove()
        parts = _parts(legend)
        columns = _columns(parts["labels"], shape.width, parts["fontsize"])
        figure.legend(loc="outside lower center", ncols=columns, **parts)
        if panels:
            figure.set_figheight(figure.get_figheight() + _height(parts, columns))
    lay_out(figure)


def _style_size() -> float:
    return float(cast(Any, STYLE["font.size"]))


def _scale_text(figure: Figure, factor: float) -> None:
    from matplotlib.text import Text

    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_fontsize(float(text.get_fontsize()) * factor)


def _panels(figure: Figure) -> list[tuple[SubplotSpec, Axes]]:
    """Axes on a plain grid, in its order; none of pictures, or where axes span places, share them, or lie elsewhere."""
    placed = [(spec, ax) for ax in figure.axes if (spec := ax.get_subplotspec()) is not None]
    grids = {id(spec.get_gridspec()) for spec, _ in placed}
    places = {spec.num1 for spec, _ in placed}
    spanning = any(spec.num1 != spec.num2 for spec, _ in placed)
    pictures = all(ax.images and ax.get_aspect() != "auto" for _, ax in placed)
    if len(places) != len(figure.axes) or len(grids) != 1 or spanning or pictures:
        return []
    return sorted(placed, key=lambda each: each[0].num1)


def _regrid(figure: Figure, panels: Sequence[tuple[SubplotSpec, Axes]], shape: Shape) -> tuple[int, float]:
    """Put panels into as many columns as fit; returns their number, and the height of a row in inches."""
    from matplotlib.gridspec import GridSpec

    old = panels[0][0].get_gridspec()
    size = figure.get_figwidth() / old.ncols, figure.get_figheight() / old.nrows
    columns = max(1, min(old.ncols, int(shape.width // PANEL)))
    rows = math.ceil(len(panels) / columns)
    lines = max(_wrapped_names(ax) for _, ax in panels)
    height = max(size[1] * shape.width / columns / size[0], ROW, 0.6 + lines * shape.font * 1.4 / 72)
    figure.set_size_inches(shape.width, rows * height)
    grid = GridSpec(rows, columns, figure=figure)
    for place, (spec, ax) in enumerate(panels):
        if columns < old.ncols:
            first = next(beside for other, beside in panels if other.num1 // old.ncols == spec.num1 // old.ncols)
            last = [below for other, below in panels if other.num1 % old.ncols == spec.num1 % old.ncols][-1]
            ax.tick_params(labelleft=True, labelbottom=True)  # panels that share axes show these once
            ax.set_ylabel(ax.get_ylabel() or first.get_ylabel())
            ax.set_xlabel(ax.get_xlabel() or last.get_xlabel())
        ax.set_subplotspec(grid[place // columns, place % columns])
    return columns, height


def _wrapped_names(ax: Axes) -> int:
    """Break long names on the vertical axis; returns how many lines they take, 0 where there are none."""
    names = [each.get_text() for each in ax.get_yticklabels()]
    if max(map(len, names), default=0) <= NAME or any("$" in name for name in names):
        return 0
    wrapped = [textwrap.fill(name, NAME) for name in names]
    ax.set_yticks(ax.get_yticks(), wrapped, fontsize=ax.get_yticklabels()[0].get_fontsize())
    return sum(len(name.splitlines()) for name in wrapped)


def _wrap(ax: Axes, width: float, font: float) -> None:
    """Break titles and labels of axes that are wider than the axes."""
    characters = max(12, int(width * 72 / (font * CHARACTER)))
    for text in (ax.title, ax.xaxis.label):
        if len(text.get_text()) > characters and "$" not in text.get_text():
            text.set_text(textwrap.fill(text.get_text(), characters))


def _move_below(ax: Axes, width: float, height: float) -> float:
    """Put a legend that does not fit in its panel of so many inches below it; returns what it takes there in inches."""
    legend = ax.get_legend()
    if legend is None:
        return 0.0
    figure = ax.get_figure(root=True)
    assert figure is not None
    box = legend.get_window_extent()
    inside = legend.get_bbox_to_anchor() is ax.bbox
    if inside and box.width < 0.6 * width * figure.dpi and box.height < 0.4 * height * figure.dpi:
        return 0.0
    parts = _parts(legend)
    columns = _columns(parts["labels"], width / 0.8, parts["fontsize"])
    legend_below(ax, columns, **parts)
    return _height(parts, columns)


def _height(parts: Mapping[str, Any], columns: int) -> float:
    """Inches that a legend takes below axes."""
    lines = math.ceil(len(parts["labels"]) / columns) + bool(parts["title"])
    return 0.15 + lines * float(parts["fontsize"]) * 1.5 / 72


def _parts(legend: Legend) -> dict[str, Any]:
    """All of a legend that another one repeats elsewhere."""
    texts = legend.get_texts()
    return {
        "handles": legend.legend_handles,
        "labels": [each.get_text() for each in texts],
        "fontsize": texts[0].get_fontsize() if texts else None,
        "title": legend.get_title().get_text() or None,
    }


def _columns(labels: Sequence[str], width: float, size: float) -> int:
    """Columns of a legend of so many inches."""
    longest = max((len(line) for label in labels for line in label.splitlines()), default=1)
    return max(1, min(len(labels), 4, int(width * 72 / (size * (CHARACTER * longest + 4)))))
