"""Galleries: the right images at the right places, with what is said of them."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from leakbench.randomness import generator
from leakbench.report.gallery import gallery, selection
from leakbench.report.style import add_caption

N = 12


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def pictures(channels: int, side: int = 8) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
    """Victims, two methods of which one is noisier for later victims, and its PSNR."""
    draw = generator("gallery", channels)
    victims = torch.rand(N, channels, side, side, generator=draw)
    size = torch.linspace(0.01, 0.9, N).view(-1, 1, 1, 1)
    noisy = victims + size * torch.randn(victims.shape, generator=draw)
    methods = {"Inverting Gradients": noisy, "mean image": victims.mean(dim=0).expand(N, -1, -1, -1)}
    error = (noisy.clamp(0, 1) - victims).square().flatten(1).mean(dim=1)
    return victims, methods, -10 * error.log10()


def rows_of(figure: Figure, rows: int) -> list[list[Axes]]:
    """Axes by place: rows from the top, columns from the left."""
    axes = sorted(figure.axes, key=lambda ax: (-round(ax.get_position().y0, 6), ax.get_position().x0))
    columns, rest = divmod(len(axes), rows)
    assert rest == 0
    return [axes[row * columns : (row + 1) * columns] for row in range(rows)]


def shown(ax: Axes) -> np.ndarray:
    (image,) = ax.images
    assert image.get_clim() == (0, 1)
    pixels = np.asarray(image.get_array())
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_right_images_at_right_places(channels: int) -> None:
    victims, methods, order_by = pictures(channels)
    figure = gallery(victims, methods, order_by, each=2, title="Undefended")
    figure.canvas.draw()
    ranking = sorted(range(N), key=lambda index: -float(order_by[index]))
    expected = ranking[:2] + ranking[5:7] + ranking[-2:]
    rows = rows_of(figure, 3)
    assert [row[0].get_ylabel().replace("\n", " ") for row in rows] == ["victim", *methods]
    for row, images in zip(rows, [victims, *methods.values()], strict=True):
        assert len(row) == 6 and not any(ax.get_ylabel() for ax in row[1:])
        for ax, index in zip(row, expected, strict=True):
            assert np.array_equal(shown(ax), images[index].clamp(0, 1).numpy())
            assert ax.get_window_extent().width == pytest.approx(ax.get_window_extent().height)
    assert [ax.get_xlabel() for ax in rows[0]] == [f"no. {index}" for index in expected]
    for row, images in zip(rows[1:], methods.values(), strict=True):
        errors = [float((images[index].clamp(0, 1) - victims[index]).square().mean()) for index in expected]
        assert [ax.get_xlabel() for ax in row] == [f"{-10 * math.log10(error):.1f} dB" for error in errors]


def test_labels_stand_above_their_columns() -> None:
    figure = gallery(*pictures(1), title="Undefended")
    figure.canvas.draw()
    labels = {text.get_text(): text for text in figure.texts}
    assert list(labels) == ["best", "median", "worst", "Undefended"]
    top = rows_of(figure, 3)[0]
    for group, label in enumerate(("best", "median", "worst")):
        columns = [ax.get_position() for ax in top[3 * group : 3 * group + 3]]
        x, y = labels[label].get_position()
        assert x == pytest.approx((columns[0].x0 + columns[-1].x1) / 2) and y > columns[0].y1
    gaps = np.diff([ax.get_position().x0 for ax in top])
    assert gaps[[2, 5]].min() > 1.2 * gaps[[0, 1, 3, 4, 6, 7]].max()  # groups stand apart


@pytest.mark.parametrize("title", [None, "Three methods on 4x4 images"])
def test_nothing_overlaps(title: str | None) -> None:
    victims, methods, order_by = pictures(1)
    long = {"a method whose name is rather long, with its parameters": methods["mean image"], **methods}
    figure = gallery(victims, long, order_by, title=title)
    figure.canvas.draw()
    texts = [*figure.texts, *(label for ax in figure.axes for label in (ax.xaxis.label, ax.yaxis.label))]
    boxes = [text.get_window_extent() for text in texts if text.get_text()]
    boxes += [ax.get_window_extent() for ax in figure.axes]
    whole = figure.bbox
    for one, box in enumerate(boxes):
        assert whole.x0 <= box.x0 and box.x1 <= whole.x1 and whole.y0 <= box.y0 and box.y1 <= whole.y1
        assert not any(box.overlaps(other) for other in boxes[one + 1 :])


def test_a_caption_hangs_below() -> None:
    figure = gallery(*pictures(1))
    add_caption(figure, "Reconstructions of undefended gradients. " * 8)
    figure.canvas.draw()
    (caption,) = [text for text in figure.texts if text.get_text().startswith("Reconstructions")]
    assert caption.get_window_extent().y1 <= min(ax.xaxis.label.get_window_extent().y0 for ax in figure.axes)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    buffer.seek(0)
    assert plt.imread(buffer).shape[0] > figure.bbox.height


def test_a_lost_reconstruction_is_named() -> None:
    victims, methods, order_by = pictures(3)
    methods["Inverting Gradients"][4, 0, 0, 0] = torch.nan
    order_by[4] = torch.nan
    rows = rows_of(gallery(victims, methods, order_by), 3)
    assert rows[0][-1].get_xlabel() == "no. 4"  # it is the worst
    assert rows[1][-1].get_xlabel() == "not finite" and not rows[1][-1].images
    assert rows[2][-1].get_xlabel().endswith(" dB") and rows[2][-1].images


@given(st.lists(st.integers(0, 20) | st.just(math.nan), min_size=1, max_size=30), st.integers(1, 12))
def test_selection(values: list[float], each: int) -> None:
    groups = selection(torch.tensor(values, dtype=torch.float64), each)
    chosen = [index for group in groups.values() for index in group]
    assert len(set(chosen)) == len(chosen)
    ranked = [-1 if math.isnan(value) else value for value in values]
    assert [ranked[index] for index in chosen] == sorted((ranked[index] for index in chosen), reverse=True)
    k, ordered = min(each, len(values) // 3), sorted(ranked)
    if k == 0:
        assert list(groups) == ["all"] and len(chosen) == len(values)
        return
    assert list(groups) == ["best", "median", "worst"] and {len(group) for group in groups.values()} == {k}
    assert sorted(ranked[index] for index in groups["best"]) == ordered[-k:]
    assert sorted(ranked[index] for index in groups["worst"]) == ordered[:k]
    median = [ranked[index] for index in groups["median"]]
    below, above = (sum(value < m for value in ranked) for m in (min(median), max(median)))
    assert below <= len(values) / 2 and above <= (len(values) + k) / 2
    assert ordered[(len(values) - 1) // 2] in median or ordered[len(values) // 2] in median


@pytest.mark.parametrize("n", [1, 2])
def test_few_victims_are_one_group(n: int) -> None:
    victims, methods, order_by = pictures(1)
    figure = gallery(victims[:n], {name: images[:n] for name, images in methods.items()}, order_by[:n])
    assert [text.get_text() for text in figure.texts] == ["all"] and len(figure.axes) == 3 * n


def test_all_victims_in_their_order() -> None:
    victims, methods, _ = pictures(1)
    figure = gallery(victims, methods, None, size=1.0)
    figure.canvas.draw()
    assert [ax.get_xlabel() for ax in figure.axes[:N]] == [f"no. {index}" for index in range(N)]
    assert not figure.texts and not figure.lines  # one group needs no label
    for index, ax in enumerate(figure.axes[N : 2 * N]):
        shown = np.asarray(ax.images[0].get_array())
        assert np.array_equal(shown, methods["Inverting Gradients"][index, 0].clamp(0, 1).numpy())
        assert ax.get_position().width * figure.get_figwidth() == pytest.approx(1.0)


def test_shapes_must_fit() -> None:
    victims, methods, order_by = pictures(1)
    with pytest.raises(ValueError, match="not grey or colour"):
        gallery(victims.expand(-1, 2, -1, -1), {}, order_by)
    with pytest.raises(ValueError, match=r"'mean image' .* differ in shape"):
        gallery(victims, {"mean image": methods["mean image"][:3]}, order_by)
    with pytest.raises(ValueError, match="values to rank 12 victims"):
        gallery(victims, methods, order_by[:3])
    with pytest.raises(ValueError, match="at least one of each"):
        gallery(victims, methods, order_by, each=0)
    with pytest.raises(ValueError, match="a value per victim"):
        selection(torch.zeros(0))
