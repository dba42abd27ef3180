"""Figures and tables for a paper: their size, and their caption beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib import pyplot as plt
from matplotlib.text import Text
from PIL import Image

from leakbench.cli import main
from leakbench.errors import ConfigError
from leakbench.report.artifacts import artifact_of, artifacts
from leakbench.report.bare import Shape, fit, inches
from leakbench.report.style import panels

ROOT = Path(__file__).resolve().parents[2]
FORMULAS = [entry for entry in artifacts() if not entry.experiments]


@pytest.mark.parametrize(
    ("text", "value"), [("3.3in", 3.3), ("84mm", 84 / 25.4), ("8.5 cm", 8.5 / 2.54), ("252pt", 252 / 72.27)]
)
def test_widths(text: str, value: float) -> None:
    assert inches(text) == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize("text", ["3.3", "wide", "3.3px", "-3in", "0.1in", "90in"])
def test_what_is_no_width(text: str) -> None:
    with pytest.raises(ConfigError, match=f"--width {text}"):
        inches(text)


@pytest.mark.parametrize("font", [0.0, -1.0, 100.0, float("nan")])
def test_what_is_no_font(font: float) -> None:
    with pytest.raises(ConfigError, match="expected a size of 4 to 30 points"):
        Shape.of("3.3in", font)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "config").symlink_to(ROOT / "config")
    return tmp_path


def width_of(picture: Path) -> float:
    """Inches."""
    with Image.open(picture) as opened:
        return opened.width / 150


@pytest.mark.parametrize("width", ["3.3in", "6.75in"])
def test_a_figure(root: Path, capsys: pytest.CaptureFixture[str], width: str) -> None:
    entry = next(entry for entry in FORMULAS if entry.kind == "figure")
    file = entry.path("smoke", "pdf")
    assert main(["--root", str(root), "draw", file, "--bare", "--width", width]) == 0
    folder = Path(file).parent / "bare"
    written = capsys.readouterr().out.split()
    assert written == [str(folder / f"{entry.name}.{extension}") for extension in ("pdf", "png", "caption.tex")]
    assert all((root / each).is_file() for each in written)
    assert width_of(root / written[1]) <= inches(width) + 0.2  # cut to what it shows, with a margin
    words = (root / written[2]).read_text()
    assert words.startswith(rf"\caption{{Figure {entry.number}. ")
    assert words.endswith(f"\\label{{fig:{entry.paper}-{entry.name}}}\n")
    assert not (root / file).exists()  # the framed one is another file


def test_a_table(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entry = next(entry for entry in FORMULAS if entry.kind == "table")
    for arguments in (["--bare"], []):
        assert main(["--root", str(root), "draw", entry.path("smoke", "tex"), *arguments]) == 0
    bare, caption = capsys.readouterr().out.split()
    rows, framed = (root / bare).read_text(), (root / entry.path("smoke", "tex")).read_text()
    assert rows.startswith(r"\begin{tabular}") and r"\toprule" in rows and "caption" not in rows
    label = rf"\label{{tab:{entry.paper}-{entry.name}}}"
    assert label in (root / caption).read_text() and label in framed and r"\caption{" in framed


def test_panels_go_below_each_other_and_legends_below_them() -> None:
    figure, axes = panels(3)
    for ax in axes:
        ax.plot([0, 1], label="a defense with a long name")
        ax.plot([1, 0], label="another defense with a long name")
        ax.set(xlabel="parameter", title="A title that is much longer than a column of a paper is wide, by far")
        ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    axes[0].set_ylabel("PSNR (dB)")
    fit(figure, Shape(3.3, 8.0))
    assert figure.get_figwidth() == 3.3
    boxes = [ax.get_window_extent() for ax in axes]
    assert boxes[0].y0 > boxes[1].y1 and boxes[1].y0 > boxes[2].y1
    assert all(box.width > 0.6 * figure.bbox.width and box.height > 1.0 * figure.dpi for box in boxes)
    for ax, box in zip(axes, boxes, strict=True):
        legend = ax.get_legend()
        assert legend is not None and legend.get_window_extent().y1 < box.y0
        assert ax.get_ylabel() == "PSNR (dB)" and "\n" in ax.get_title()
    assert figure.get_tightbbox().width < 3.4
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text) and text.get_text()]
    assert min(float(text.get_fontsize()) for text in texts) > 6
    plt.close(figure)


def test_a_legend_of_the_whole_figure_takes_no_height_of_its_panels() -> None:
    figure, (ax,) = panels(1)
    for number in range(12):
        ax.plot([0, number], label=f"defense {number}")
    figure.legend(loc="outside lower center", ncols=6)
    fit(figure, Shape(3.3, 8.0))
    (legend,) = figure.legends
    assert ax.get_window_extent().height > 1.0 * figure.dpi
    assert legend.get_window_extent().y1 <= ax.get_window_extent().y0
    plt.close(figure)


def test_pictures_stay_beside_each_other() -> None:
    figure, axes = panels(4)
    for ax in axes:
        ax.imshow([[0, 1], [1, 0]])
    width, height = figure.get_size_inches()
    fit(figure, Shape(3.3, 8.0))
    assert figure.get_figwidth() == pytest.approx(3.3)
    assert figure.get_figheight() == pytest.approx(height * 3.3 / width)
    assert len({round(ax.get_position().y0, 3) for ax in axes}) == 1
    plt.close(figure)


def test_every_figure_of_formulas_fits_a_column(root: Path) -> None:
    from leakbench.planning.project import Project

    project = Project(root)
    for entry in FORMULAS:
        if entry.kind == "figure":
            artifact_of(entry.path("smoke", "png")).render(project, entry.path("smoke", "png"), Shape(3.3, 8.0))
            picture = (root / entry.path("smoke", "png")).parent / "bare" / f"{entry.name}.png"
            assert width_of(picture) < 3.6, entry.name
