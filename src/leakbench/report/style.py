"""Style of figures: one colour per defense everywhere, safe for colour-blind readers, legible in print."""

from __future__ import annotations

import io
import math
import re
import textwrap
from typing import TYPE_CHECKING, Any, cast

from leakbench.errors import RecordError
from leakbench.libraries.pdf_fonts import embed_glyphs_alone

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend
    from matplotlib.text import Text
    from matplotlib.transforms import Bbox, BboxBase
    from PIL.Image import Image

# Okabe and Ito's palette, then colours of Tol's palettes, by the registered name of the mechanism.
COLOURS = {
    "none": "#000000",
    "gaussian_noise": "#CC79A7",
    "clipped_noise": "#D55E00",
    "magnitude_pruning": "#E69F00",
    "optimal_noise": "#56B4E9",
    "optimal_clipped_noise": "#0072B2",
    "optimal_pruning": "#009E73",
    "natural_channel": "#332288",
    "white_channel": "#88CCEE",
    "personalized_channel": "#44AA99",
    "eigen_compression": "#999933",
    "parameter_channel": "#882255",
    "dp_sgd": "#661100",
    "dp_psac": "#BB5566",
    "laplace": "#117733",
    "soteria": "#DDCC77",
    "sign_sgd": "#AA4499",
    "grad_drop": "#FFAABB",
    "grad_drop_residual": "#44CC00",
    "ef_sign_sgd": "#8800EE",
    "qsgd": "#004488",
    "cafl": "#BBCC33",
    "cdpa": "#EE3377",
    "sdq": "#997700",
    "jopeq": "#6699CC",
    "random_mask": "#225555",
    "distributed_noise": "#EE8866",
    "gaussian_sampling": "#AAAA00",
    "water_filling": "#663333",
    "fixed_point": "#D1BBD7",
    "masked_pair": "#CC3311",
    "additive_sharing": "#4EB265",
    "paillier": "#5522BB",
    "tuned": "#0000CC",
    "rounding": "#FE45F9",
    "optimal_rounding": "#7A4900",
    "truncated_svd": "#00CFCF",
    "power_sgd": "#2244FF",
    "censor": "#00D91D",
    "ats": "#9966FF",
    "mixup": "#1EFF87",
    "precode": "#FF00C3",
}
# For mechanisms that the project does not know: out-of-tree defenses.
OTHER_COLOURS = ("#7F3C8D", "#80BA5A", "#A5AA99", "#CF1C90")

MODEL_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377")
"""Colours of lines that are models, in order of appearance: Tol's bright palette."""

MARKERS = {"magnitude_pruning": "s", "clipped_noise": "s", "gaussian_noise": "^", "none": "*"}

IMAGE_REFERENCES = {"mean_image": ("mean image", "--"), "grey": ("constant grey", "-."), "noise": ("random noise", ":")}
SENTENCE_REFERENCES = {"random_sentence": ("random sentence", "dashed"), "frequent_words": ("frequent words", "dotted")}
"""The same line styles as for images by other names: no figure shows both."""
REFERENCES = IMAGE_REFERENCES | SENTENCE_REFERENCES | {"class_mean": ("class mean", "-")}
"""Reference attackers by label: name and line style. Their lines are grey, since no defense affects them."""
REFERENCE_COLOUR = "#777777"

MARK_COLOUR = "#B00020"
"""Colour of the mark on partial figures."""

STYLE = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "lines.markersize": 5,
    "pdf.fonttype": 42,
}


LEGEND_GAP = 0.08
"""Inches between a caption and a legend that was lifted off it."""
CAPTION = "caption"
"""Mark of the caption among the texts of a figure."""
ABOVE_CAPTION = "Above the caption"
"""Text chunk of PNG files: the part of the height that is above the caption."""
DESCRIPTION = "Description"
"""Text chunk of PNG files: the caption."""
LAYOUTS = 2
"""Rounds in which a layout settles."""

FURTHER = (("v", 0.4), ("P", -0.35), ("X", 0.65), ("<", -0.6), (">", 0.2))
"""Markers of further settings of a mechanism, and parts of white, or below zero black, in their colours."""


def setting_of_mechanism(mechanism: str, number: int) -> str:
    """A name of one setting of a mechanism for :func:`colour` and :func:`marker`; number 0 is the mechanism itself."""
    return f"{mechanism} ({number + 1})" if number else mechanism


def _numbered(mechanism: str) -> tuple[str, int]:
    """A mechanism and the number of its setting."""
    name, bracket, number = mechanism.removesuffix(")").rpartition(" (")
    return (name, int(number) - 1) if bracket else (mechanism, 0)


def colour(mechanism: str) -> str:
    """The colour of a mechanism; unknown ones get a fixed colour derived from their name."""
    name, number = _numbered(mechanism)
    base = COLOURS.get(name) or OTHER_COLOURS[sum(name.encode()) % len(OTHER_COLOURS)]
    return _blended(base, FURTHER[(number - 1) % len(FURTHER)][1]) if number else base


def marker(mechanism: str) -> str:
    """The marker of a mechanism, so that series differ without colour too."""
    name, number = _numbered(mechanism)
    return FURTHER[(number - 1) % len(FURTHER)][0] if number else MARKERS.get(name, "o")


def _blended(tint: str, part: float) -> str:
    """A colour blended with white, or with black if the part is below zero."""
    from matplotlib.colors import to_hex, to_rgb

    end = 1.0 if part > 0 else 0.0
    red, green, blue = ((1 - abs(part)) * channel + abs(part) * end for channel in to_rgb(tint))
    return to_hex((red, green, blue))


def shades(mechanism: str, count: int) -> list[str]:
    """Colours of series of one mechanism, from its colour towards white."""
    return [_blended(colour(mechanism), 0.65 * place / max(count - 1, 1)) for place in range(count)]


def other_marker(mechanism: str) -> str:
    """The marker of a second series of the same mechanism."""
    return "D" if marker(mechanism) == "s" else "^"


def use_style() -> None:
    """Make figures in the project's style from here on, without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(cast(Any, STYLE))  # matplotlib types each key by itself


def panels(
    count: int, width: float = 4.2, height: float = 3.1, columns: int | None = None
) -> tuple[Figure, list[Axes]]:
    """Axes in the project's style, so many in a row, by default all; width and height are those of one, in inches.

    Raises:
        RecordError: there are none to draw.
    """
    if not count:
        raise RecordError("nothing that it compares has all its records")
    use_style()
    import matplotlib.pyplot as plt

    columns = min(columns or count, count)
    rows = math.ceil(count / columns)
    size = (width * columns, height * rows)
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for ax in axes.flat[count:]:
        ax.remove()
    return figure, list(axes.flat[:count])


def legend_below(ax: Axes, columns: int = 2, **given: Any) -> None:
    """Put the legend below the axes and their label, for panels side by side.

    Args:
        ax: the axes.
        columns: of the legend.
        given: further arguments of a legend.
    """
    from matplotlib.transforms import ScaledTranslation

    figure = ax.get_figure(root=True)
    assert figure is not None
    below = ax.transAxes + ScaledTranslation(0, -0.42, figure.dpi_scale_trans)
    ax.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        bbox_transform=below,
        borderaxespad=0,
        ncols=columns,
        columnspacing=1.0,
        **{"fontsize": "small", **given},
    )


def plain_ticks(axis: Axis) -> None:
    """Label a logarithmic axis that spans few decades with numbers such as 0.02 and 0.05."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def whole_ticks(axis: Axis) -> None:
    """Label an axis of counts, such as steps, with whole numbers alone."""
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def add_caption(figure: Figure, caption: str) -> None:
    """Add a caption below the axes, wrapped to the figure's width; :func:`pictures` saves what hangs out.

    The figure grows if the caption would take more than half of it.
    """
    characters = int(figure.get_figwidth() * 17)
    wrapped = [part for line in caption.splitlines() for part in textwrap.wrap(line, characters)]
    if figure.get_layout_engine():
        inches = len(wrapped) * 7.5 * 1.2 / 72
        figure.set_figheight(max(figure.get_figheight(), figure.get_figheight() / 2 + inches))
    # A layout engine makes room for it; where axes have fixed places it hangs below the figure.
    place: dict[str, Any] = {} if figure.get_layout_engine() else {"y": 0.0, "va": "top"}
    label = figure.supxlabel("\n".join(wrapped), fontsize=7.5, x=0.01, ha="left", color="#333333", **place)
    label.set_gid(CAPTION)


def lay_out(figure: Figure) -> None:
    """Let a layout engine place things, and keep them there."""
    engine = figure.get_layout_engine()
    if engine:
        for _ in range(LAYOUTS):
            engine.execute(figure)
        figure.set_layout_engine(None)
        _lift_legends(figure)


def _lift_legends(figure: Figure) -> None:
    """Lift legends beside the axes off the caption: engines centre them over the height of both."""
    captions = [text.get_window_extent() for text in figure.texts if text.get_gid() == CAPTION]
    for legend in figure.legends:
        box = legend.get_window_extent()
        above = [caption.y1 - box.y0 for caption in captions if caption.overlaps(box)]
        if above:
            _place(legend, box.translated(0, max(above) + LEGEND_GAP * figure.dpi))


def _place(legend: Legend, box: BboxBase) -> None:
    """Put a legend of a figure into a box of its size, in pixels."""
    figure = legend.get_figure(root=True)
    assert figure is not None
    legend.set_bbox_to_anchor(box.transformed(figure.transFigure.inverted()), figure.transFigure)
    legend.set_loc("center")


def add_mark(figure: Figure, mark: str) -> None:
    """Add a framed line above the figure, at its left edge; :func:`pictures` saves what stands out."""
    lay_out(figure)  # saving would do that with the mark, and move things below it
    for legend in figure.legends:  # anchored to the edges of what is saved, they would move up to the mark
        _place(legend, legend.get_window_extent())
    around = figure.get_tightbbox()  # in inches
    figure.text(
        (around.x0 + 0.06) / figure.get_figwidth(),
        (around.y1 + 0.15) / figure.get_figheight(),
        mark,
        fontsize=11,
        fontweight="bold",
        color=MARK_COLOUR,
        va="bottom",
        bbox={"boxstyle": "square,pad=0.3", "facecolor": "white", "edgecolor": MARK_COLOUR},
    )


def pictures(figure: Figure) -> dict[str, bytes]:
    """The figure as PDF and PNG, cut to what it shows. Equal numbers give equal files; PNG names its caption.

    It is laid out and measured once for both; saving would do either once per format, each with a drawing of its own.
    """
    import matplotlib

    embed_glyphs_alone()
    lay_out(figure)
    box = figure.get_tightbbox().padded(matplotlib.rcParams["savefig.pad_inches"])
    captions = [text for text in figure.texts if text.get_gid() == CAPTION]
    of_png: dict[str, str | None] = {
        ABOVE_CAPTION: f"{_above_caption(figure, captions, box):.4f}",
        DESCRIPTION: " ".join(_unwrapped(text.get_text()) for text in captions),
        "Software": None,
    }
    metadata: dict[str, dict[str, str | None]] = {"pdf": {"CreationDate": None}, "png": of_png}
    saved = {}
    for extension, of_file in metadata.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format=extension, metadata=of_file, bbox_inches=box)
        saved[extension] = buffer.getvalue()
    return saved


def _unwrapped(text: str) -> str:
    r"""Text on one line; words that were parted at a hyphen are whole again.

    >>> _unwrapped("at equal\nerror of data-\ndependent noise")
    'at equal error of data-dependent noise'
    """
    return " ".join(re.sub(r"(?<=\w-)\n", "", text).split())


def _above_caption(figure: Figure, captions: list[Text], box: Bbox) -> float:
    """The part of a box, in inches, from its top down to where all but the captions ends; 1 without a caption."""
    for caption in captions:
        caption.set_in_layout(False)
    shown = figure.get_tightbbox() if captions else box
    for caption in captions:
        caption.set_in_layout(True)
    return min(1.0, float((box.y1 - shown.y0) / box.height))


def without_caption(file: Path) -> tuple[Image, str]:
    """A PNG file of :func:`pictures` cut above its caption, in RGB, and the caption; empty where it has none."""
    from PIL import Image

    with Image.open(file) as picture:
        above = math.ceil(float(picture.info.get(ABOVE_CAPTION, 1)) * picture.height)
        return picture.convert("RGB").crop((0, 0, picture.width, above)), str(picture.info.get(DESCRIPTION, ""))
