"""Transformed images instead of the images: ATS (Gao et al., CVPR 2021).

Source: "Privacy-Preserving Collaborative Learning with Automatic Transformation Search", and its released code for the
fifty transformations, with the strength of each, and for the policies that its search found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from pydantic import Field, PrivateAttr, model_validator

from leakbench.defenses.base import DEFENSES, ActsOn, Defense, PrivacyStatement, Schedule
from leakbench.errors import Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams

LEVELS = 255
"""Largest value of a pixel, which is a whole number."""
GREY = 128 / LEVELS
"""Fills what a rotation leaves empty."""
LUMINANCE = (0.299, 0.587, 0.114)
STRENGTHS = 10
"""Strengths of each transformation, from none to the largest."""

Operation = Literal[
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
    "rotate",
    "color",
    "posterize",
    "solarize",
    "contrast",
    "sharpness",
    "brightness",
    "autocontrast",
    "equalize",
    "invert",
]


class Transformation(NamedTuple):
    """One of the fifty: an operation, and its strength in ninths of the largest."""

    operation: Operation
    strength: int


TRANSFORMATIONS: tuple[Transformation, ...] = tuple(
    Transformation(*each)
    for each in (
        *(("invert", 7), ("contrast", 6), ("rotate", 2), ("translate_x", 9), ("sharpness", 1)),
        *(("sharpness", 3), ("shear_y", 2), ("translate_y", 2), ("autocontrast", 5), ("equalize", 2)),
        *(("shear_y", 5), ("posterize", 5), ("color", 3), ("brightness", 5), ("sharpness", 9)),
        *(("brightness", 9), ("equalize", 5), ("equalize", 1), ("contrast", 7), ("sharpness", 5)),
        *(("color", 5), ("translate_x", 5), ("equalize", 7), ("autocontrast", 8), ("translate_y", 3)),
        *(("sharpness", 6), ("brightness", 6), ("color", 8), ("solarize", 0), ("invert", 0)),
        *(("equalize", 0), ("autocontrast", 0), ("equalize", 8), ("equalize", 4), ("color", 5)),
        *(("equalize", 5), ("autocontrast", 4), ("solarize", 4), ("brightness", 3), ("color", 0)),
        *(("solarize", 1), ("autocontrast", 0), ("translate_y", 3), ("translate_y", 3), ("autocontrast", 1)),
        *(("solarize", 1), ("equalize", 5), ("invert", 0), ("translate_y", 3), ("autocontrast", 1)),
    )
)
"""The fifty transformations of the released code, in its order."""

PUBLISHED = ((3, 1, 7), (43, 18, 18))
"""Policies that the authors' search found for CIFAR-100 and a ResNet, of which each image takes one."""


@DEFENSES.register("ats", version=1)
class TransformationSearch(Defense):
    """Train on transformed images: every image takes one of several policies at random, anew at every step.

    A policy is a sequence of the fifty :data:`TRANSFORMATIONS`. Those that go either way, such as translations, choose
    their direction at random. By default the policies are those that the authors' search found (as ``hybrid`` in the
    paper); the search itself, which scores policies on a partly trained model, is not here. ``random`` draws three
    transformations for each image, which is what the search is compared with.

    Images are rounded to 256 levels between the smallest and the largest value that clients hold, and transformed as
    by Pillow, but that shears interpolate by torch's bicubic kernel, which is softer. Before its policies the released
    code crops and flips CIFAR images in training, which is left out. Labels stay.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "undone"},)
    acts_on: ClassVar[ActsOn] = "data"

    policies: tuple[tuple[int, ...], ...] = Field(
        PUBLISHED, min_length=1, description="sequences of transformations, by their places among the fifty"
    )
    choice: Literal["given", "random"] = Field(
        "given", description="given: one of the policies; random: three of the fifty for each image"
    )

    _extremes: Any = PrivateAttr(None)

    @model_validator(mode="after")
    def _known(self) -> TransformationSearch:
        for place in {place for policy in self.policies for place in policy}:
            if not 0 <= place < len(TRANSFORMATIONS):
                raise ValueError(f"policies: there is no transformation {place}; they are 0 to 49")
        return self

    def calibrate(self, data: ClientData) -> Defense:
        ready = self.model_copy()
        ready._extremes = data.extremes
        return ready

    def protect_data(
        self, images: torch.Tensor, labels: torch.Tensor, streams: Streams
    ) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = self._range().to(images)
        width = torch.where(high > low, high - low, 1.0)
        pixels = _rounded((images - low) / width).flatten(0, 1)
        chosen = self._chosen(images.shape[:2], streams, images.device).flatten(0, 1)
        signs = streams.child("direction").uniform(images.shape[1], chosen.shape[1]) < 0.5
        signs = torch.where(signs, -1.0, 1.0).to(images).flatten(0, 1)
        for place, sign in zip(chosen.T, signs.T, strict=True):
            pixels = _transformed(pixels, place, sign)
        return (low + width * pixels.unflatten(0, images.shape[:2])).to(images), labels

    def _range(self) -> torch.Tensor:
        """Black and white, ``[2, C, 1, 1]``.

        Raises:
            Infeasible: not calibrated.
        """
        if self._extremes is None:
            raise Infeasible(f"'{self.name}' has seen no data: calibrate it with the clients' images first")
        extremes: torch.Tensor = self._extremes
        return extremes

    def _chosen(self, shape: torch.Size, streams: Streams, device: torch.device) -> torch.Tensor:
        """Places of each image's transformations, one after the other, ``[n, B, longest]``; -1 after the last."""
        if self.choice == "random":
            return streams.child("policy").integers(0, len(TRANSFORMATIONS), shape[1], 3, device=device)
        longest = max(map(len, self.policies))
        table = torch.tensor([[*policy, *[-1] * (longest - len(policy))] for policy in self.policies], device=device)
        return table[streams.child("policy").integers(0, len(table), shape[1], device=device)]

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        self._range()  # else images that were never transformed would look as if they had been
        return super().protect_update(steps, streams)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("the gradient of transformed images is exact")


def _transformed(pixels: torch.Tensor, places: torch.Tensor, signs: torch.Tensor) -> torch.Tensor:
    """Images ``[m, C, H, W]`` in [0, 1], each under the transformation of its place ``[m]``; -1: as it is."""
    result = pixels
    for place in places.unique().tolist():
        if place >= 0:
            rows = (places == place).nonzero().flatten()
            result = result.index_copy(0, rows, transform(pixels[rows], TRANSFORMATIONS[place], signs[rows]))
    return result


def transform(pixels: torch.Tensor, transformation: Transformation, signs: torch.Tensor) -> torch.Tensor:
    """Images under one transformation, ``[m, C, H, W]`` in [0, 1], on 256 levels.

    Args:
        pixels: ``[m, C, H, W]`` in [0, 1].
        transformation: what is done.
        signs: 1 or -1, ``[m]``: the way of what goes either way.
    """
    part = transformation.strength / (STRENGTHS - 1)
    return _rounded(_OPERATIONS[transformation.operation](pixels, part, signs[:, None, None, None]))


def _rounded(pixels: torch.Tensor) -> torch.Tensor:
    return (pixels.clamp(0, 1) * LEVELS).round() / LEVELS


def _moved(pixels: torch.Tensor, matrix: torch.Tensor, mode: str, fill: float = 0.0) -> torch.Tensor:
    """Images read at other places: row ``i`` of ``matrix`` ``[m, 2, 3]`` maps ``(x, y, 1)`` to a place, in pixels."""
    height, width = pixels.shape[2:]
    y, x = torch.meshgrid(*(torch.arange(size, device=pixels.device) + 0.5 for size in (height, width)), indexing="ij")
    points = torch.stack([x, y, torch.ones_like(x)], dim=-1).to(pixels)
    read = torch.einsum("mij,hwj->mhwi", matrix.to(pixels), points)
    sides = read.new_tensor([width, height])
    grid = 2 * read / sides - 1
    inside = ((read >= 0) & (read < sides)).all(dim=-1)[:, None]
    moved = torch.nn.functional.grid_sample(pixels, grid, mode=mode, padding_mode="border", align_corners=False)
    return torch.where(inside, moved, fill)


def _affine(signs: torch.Tensor, entry: tuple[int, int], value: float) -> torch.Tensor:
    """The identity with one entry more, which has the images' signs ``[m, 1, 1, 1]``; ``[m, 2, 3]``."""
    matrix = torch.eye(2, 3, device=signs.device).repeat(len(signs), 1, 1)
    matrix[:, entry[0], entry[1]] += value * signs[:, 0, 0, 0]
    return matrix


def _shear_x(pixels: torch.Tensor, part: float, signs: torch.Tensor) -> torch.Tensor:
    return _moved(pixels, _affine(signs, (0, 1), 0.3 * part), "bicubic")


def _shear_y(pixels: torch.Tensor, part: float, signs: torch.Tensor) -> torch.Tensor:
    return _moved(pixels, _affine(signs, (1, 0), 0.3 * part), "bicubic")


def _translate_x(pixels: torch.Tensor, part: float, signs: torch.Tensor) -> torch.Tensor:
    return _moved(pixels, _affine(signs, (0, 2), 150 / 331 * part * pixels.shape[3]), "nearest")


def _translate_y(pixels: torch.Tensor, part: float, signs: torch.Tensor) -> torch.Tensor:
    return _moved(pixels, _affine(signs, (1, 2), 150 / 331 * part * pixels.shape[2]), "nearest")


def _rotate(pixels: torch.Tensor, part: float, signs: torch.Tensor) -> torch.Tensor:
    """Counter-clockwise, always."""
    angle = torch.deg2rad(torch.tensor(30 * part, dtype=torch.float64))
    turn = torch.tensor([[angle.cos(), -angle.sin()], [angle.sin(), angle.cos()]])
    centre = torch.tensor([pixels.shape[3], pixels.shape[2]]).double() / 2
    matrix = torch.cat([turn, (centre - turn @ centre)[:, None]], dim=1)
    return _moved(pixels, matrix.repeat(len(signs), 1, 1), "nearest", GREY)


def _grey(pixels: torch.Tensor) -> torch.Tensor:
    """Luminance of images of three channels, else the image itself."""
    if pixels.shape[1] != len(LUMINANCE):
        return pixels
    return _rounded((pixels * pixels.new_tensor(LUMINANCE)[:, None, None]).sum(dim=1, keepdim=True))


def _blended(pixels: torch.Tensor, other: torch.Tensor, part: float, signs: torch.Tensor) -> torch.Tensor:
    """From another image past the first one, or not as far as it, by up to half of their difference."""
    return other + (1 + 0.5 * part * signs) * (pixels - other)


def _color(pixels: torch.Tensor, part: float, signs: torch.Tensor) -> torch.Tensor:
    return _blended(pixels, _grey(pixels).expand_as(pixels), part, signs)


def _contrast(pixels: torch.Tensor, part: float, signs: torch.Tensor) -> torch.Tensor:
    return _blended(pixels, _rounded(_grey(pixels).mean(dim=(1, 2, 3), keepdim=True)), part, signs)


def _brightness(pixels: torch.Tensor, part: float, signs: torch.Tensor) -> torch.Tensor:
    return _blended(pixels, torch.zeros_like(pixels), part, signs)


def _sharpness(pixels: torch.Tensor, part: float, signs: torch.Tensor) -> torch.Tensor:
    kernel = pixels.new_tensor([[1, 1, 1], [1, 5, 1], [1, 1, 1]]) / 13
    inner = torch.nn.functional.conv2d(pixels.flatten(0, 1)[:, None], kernel[None, None]).unflatten(
        0, pixels.shape[:2]
    )[:, :, 0]
    smooth = pixels.clone()
    smooth[:, :, 1:-1, 1:-1] = _rounded(inner)
    return _blended(pixels, smooth, part, signs)


def _posterize(pixels: torch.Tensor, part: float, _: torch.Tensor) -> torch.Tensor:
    """The first bits of every pixel: eight to four."""
    unit = 2 ** (8 - round(8 - 4 * part))
    posterized: torch.Tensor = (pixels * LEVELS).round().div(unit, rounding_mode="floor") * unit / LEVELS
    return posterized


def _solarize(pixels: torch.Tensor, part: float, _: torch.Tensor) -> torch.Tensor:
    return torch.where((pixels * LEVELS).round() < 256 * (1 - part), pixels, 1 - pixels)


def _invert(pixels: torch.Tensor, *_: float | torch.Tensor) -> torch.Tensor:
    return 1 - pixels


def _autocontrast(pixels: torch.Tensor, *_: float | torch.Tensor) -> torch.Tensor:
    """Each channel from black to white, by rounding down."""
    low, high = pixels.amin(dim=(2, 3), keepdim=True), pixels.amax(dim=(2, 3), keepdim=True)
    stretched = (pixels - low) / torch.where(high > low, high - low, 1.0)
    return torch.where(high > low, (stretched * LEVELS + 1e-4).floor() / LEVELS, pixels)


def _equalize(pixels: torch.Tensor, *_: float | torch.Tensor) -> torch.Tensor:
    """Each channel with a flat histogram, as near as levels go."""
    levels = (pixels * LEVELS).round().long().flatten(2)
    counts = torch.zeros(*levels.shape[:2], LEVELS + 1, dtype=torch.long, device=pixels.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels))
    largest = levels.amax(dim=2, keepdim=True)
    step = (levels.shape[2] - counts.gather(2, largest)) // LEVELS
    table = (step // 2 + counts.cumsum(dim=2) - counts).div(step.clamp(min=1), rounding_mode="floor")
    equal = table.clamp(max=LEVELS).gather(2, levels)
    return torch.where(step > 0, equal, levels).view_as(pixels) / LEVELS


_Change: TypeAlias = "Callable[[torch.Tensor, float, torch.Tensor], torch.Tensor]"

_OPERATIONS: Mapping[Operation, _Change] = {
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "rotate": _rotate,
    "color": _color,
    "posterize": _posterize,
    "solarize": _solarize,
    "contrast": _contrast,
    "sharpness": _sharpness,
    "brightness": _brightness,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "invert": _invert,
}
