"""Pictures of reconstructions: the best, the median and the worst victims above each method's reconstructions."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from leakbench.lazy import torch
from leakbench.metrics.image import psnr
from leakbench.report.style import use_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches. Axes have fixed places, so that all images are equally large and groups stand apart.
_IMAGE, _GAP, _GROUP_GAP, _TEXT, _HEADER, _MARGIN = 0.8, 0.08, 0.3, 0.2, 0.3, 0.1
_CHARACTER = 0.082
_LABEL_CHARACTERS = 16


def selection(order_by: torch.Tensor, each: int = 3) -> dict[str, list[int]]:
    """The best, the median and the worst victims, from better to worse, without overlap.

    Args:
        order_by: score to rank victims by, ``[n]``, higher is better; NaN is worst, ties keep their order.
        each: how many of each; fewer where there are not three times as many victims.

    Returns:
        Group label -> indices of victims. Fewer than three victims are one group, ``all``.

    Raises:
        ValueError: there is no victim, or ``each`` is not positive.
    """
    if order_by.dim() != 1 or len(order_by) == 0 or each < 1:
        raise ValueError(f"expected a value per victim and at least one of each: {tuple(order_by.shape)}, {each}")
    ranking = order_by.where(~order_by.isnan(), -torch.inf).argsort(descending=True, stable=True).tolist()
    n = len(ranking)
    k = min(each, n // 3)
    if k == 0:
        return {"all": ranking}
    middle = (n - k) // 2
    return {"best": ranking[:k], "median": ranking[middle : middle + k], "worst": ranking[n - k :]}


def gallery(
    victims: torch.Tensor,
    reconstructions: Mapping[str, torch.Tensor],
    order_by: torch.Tensor | None,
    *,
    each: int = 3,
    size: float = _IMAGE,
    title: str | None = None,
    victims_label: str = "victim",
    decibels: Mapping[str, torch.Tensor] | None = None,
    numbers: Sequence[int] | None = None,
) -> Figure:
    """A row of victims and below it a row per method; every reconstruction with its PSNR, every victim with its number.

    Args:
        victims: images in [0, 1], ``[n, C, H, W]``, grey (C = 1) or colour (C = 3).
        reconstructions: label of the method -> its reconstructions, ``[n, C, H, W]``, in victim order; clamped to
            [0, 1] here. Those that are not finite are left empty and marked.
        order_by: score to rank victims by, ``[n]``, higher is better; see :func:`selection`. None: all victims, in
            their order, in one group without a label.
        each: how many of the best, the median and the worst victims.
        size: width and height of an image, in inches.
        title: above the picture.
        victims_label: label of the victims' row.
        decibels: the PSNR to write below each method's images, ``[n]``, NaN where it has none; computed by default.
        numbers: of the victims, to write below them; by default their places.

    Raises:
        ValueError: there are neither one nor three channels, or the shapes do not fit.
    """
    _check(victims, reconstructions, order_by)
    use_style()
    import matplotlib.pyplot as plt

    groups = {"": list(range(len(victims)))} if order_by is None else selection(order_by, each)
    chosen = [index for group in groups.values() for index in group]
    rows = [(victims_label, victims), *reconstructions.items()]
    labels = [textwrap.fill(label, _LABEL_CHARACTERS, break_long_words=False) for label, _ in rows]
    left = _MARGIN + _CHARACTER * max(len(line) for label in labels for line in label.split("\n"))
    top = _MARGIN + _HEADER * ((order_by is not None) + (title is not None))
    width = left + len(chosen) * (size + _GAP) + (len(groups) - 1) * _GROUP_GAP + _MARGIN
    height = top + len(rows) * (size + _TEXT) + _MARGIN
    figure = plt.figure(figsize=(width, height))

    x = left
    columns: list[float] = []
    for label, group in groups.items():
        columns += [x + position * (size + _GAP) for position in range(len(group))]
        if label:
            _bracket(figure, label, x / width, (columns[-1] + size) / width, 1 - top / height, _MARGIN / 2 / height)
        x = columns[-1] + size + _GAP + _GROUP_GAP
    if title is not None:
        figure.text(0.5, 1 - _MARGIN / height, title, ha="center", va="top", fontsize="large")

    for number, (label, (name, images)) in enumerate(zip(labels, rows, strict=True)):
        if number == 0:
            below = [f"no. {index if numbers is None else numbers[index]}" for index in chosen]
        else:
            values = psnr(images.clamp(0, 1), victims) if decibels is None else decibels[name]
            below = _captions(images[chosen], values[chosen])
        bottom = height - top - number * (size + _TEXT) - size
        for place, index, text in zip(columns, chosen, below, strict=True):
            ax = figure.add_axes((place / width, bottom / height, size / width, size / height))
            _show(ax, images[index])
            ax.set_xlabel(text, labelpad=1.5, fontsize="small")
            if index == chosen[0]:
                ax.set_ylabel(label, rotation=0, ha="right", va="center")
    return figure


def _check(victims: torch.Tensor, reconstructions: Mapping[str, torch.Tensor], order_by: torch.Tensor | None) -> None:
    if victims.dim() != 4 or victims.shape[1] not in (1, 3):
        raise ValueError(f"victims {tuple(victims.shape)} are not grey or colour images [n, C, H, W]")
    if order_by is not None and order_by.shape != victims.shape[:1]:
        raise ValueError(f"{tuple(order_by.shape)} values to rank {len(victims)} victims by")
    for name, images in reconstructions.items():
        if images.shape != victims.shape:
            raise ValueError(f"'{name}' {tuple(images.shape)} and the victims {tuple(victims.shape)} differ in shape")


def _captions(images: torch.Tensor, decibels: torch.Tensor) -> list[str]:
    finite = images.flatten(1).isfinite().all(dim=1).tolist()
    return [
        "not finite" if not whole else "diverged" if value != value else f"{value:.1f} dB"
        for value, whole in zip(decibels.tolist(), finite, strict=True)
    ]


def _show(ax: Axes, image: torch.Tensor) -> None:
    """One image in a thin frame; nothing where it is not finite."""
    ax.set(xticks=[], yticks=[])
    ax.grid(False)
    ax.spines[:].set(visible=True, linewidth=0.5, color="#999999")
    if image.isfinite().all():
        pixels = image.detach().cpu().clamp(0, 1).permute(1, 2, 0).squeeze(2).numpy()
        ax.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")


def _bracket(figure: Figure, label: str, start: float, end: float, bottom: float, gap: float) -> None:
    """A group's label above a line over its columns, in fractions of the figure."""
    from matplotlib.lines import Line2D

    figure.add_artist(Line2D([start, end], [bottom + gap] * 2, color="#333333", linewidth=0.8))
    figure.text((start + end) / 2, bottom + 2 * gap, label, ha="center", va="bottom")
