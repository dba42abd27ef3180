"""Transformations, against Pillow's, one image at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from tests.defenses.tensors import streams

from leakbench.defenses.base import Defense, Schedule
from leakbench.defenses.transformations import (
    TRANSFORMATIONS,
    Transformation,
    TransformationSearch,
    transform,
)
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.client_data import ClientData

SIDE = 16


def pictures(count: int, channels: int, seed: int = 0) -> torch.Tensor:
    """Smooth ones, of whole levels, ``[count, channels, SIDE, SIDE]``."""
    coarse = torch.rand(count, channels, 5, 5, generator=torch.Generator().manual_seed(seed))
    smooth = torch.nn.functional.interpolate(coarse, size=SIDE, mode="bilinear")
    return (smooth * 200 + 20).round() / 255


def by_pillow(picture: Image.Image, made: Transformation, sign: int) -> Image.Image:
    """The released code, with its ranges."""
    part = made.strength / 9

    def affine(*matrix: float, resample: Any = Image.Resampling.NEAREST) -> Image.Image:
        return picture.transform(picture.size, Image.Transform.AFFINE, matrix, resample)

    def rotated() -> Image.Image:
        turned = picture.convert("RGBA").rotate(30 * part)
        return Image.composite(turned, Image.new("RGBA", turned.size, (128,) * 4), turned).convert(picture.mode)

    bicubic, factor, shift = Image.Resampling.BICUBIC, 1 + 0.5 * part * sign, 150 / 331 * part * SIDE * sign
    ways: dict[str, Callable[[], Image.Image]] = {
        "shear_x": lambda: affine(1, 0.3 * part * sign, 0, 0, 1, 0, resample=bicubic),
        "shear_y": lambda: affine(1, 0, 0, 0.3 * part * sign, 1, 0, resample=bicubic),
        "translate_x": lambda: affine(1, 0, shift, 0, 1, 0),
        "translate_y": lambda: affine(1, 0, 0, 0, 1, shift),
        "rotate": rotated,
        "color": lambda: ImageEnhance.Color(picture).enhance(factor),
        "posterize": lambda: ImageOps.posterize(picture, round(8 - 4 * part)),
        "solarize": lambda: ImageOps.solarize(picture, 256 * (1 - part)),  # type: ignore[arg-type]
        "contrast": lambda: ImageEnhance.Contrast(picture).enhance(factor),
        "sharpness": lambda: ImageEnhance.Sharpness(picture).enhance(factor),
        "brightness": lambda: ImageEnhance.Brightness(picture).enhance(factor),
        "autocontrast": lambda: ImageOps.autocontrast(picture),
        "equalize": lambda: ImageOps.equalize(picture),
        "invert": lambda: ImageOps.invert(picture),
    }
    return ways[made.operation]()


def as_picture(values: torch.Tensor) -> Image.Image:
    levels = (values * 255).round().byte().numpy()
    return Image.fromarray(levels[0] if len(levels) == 1 else np.moveaxis(levels, 0, -1))


def as_levels(picture: Image.Image) -> torch.Tensor:
    array = torch.from_numpy(np.array(picture)).float()
    return array[None] if array.dim() == 2 else array.movedim(-1, 0)


EVERY = [*sorted(set(TRANSFORMATIONS)), Transformation("shear_x", 6), Transformation("rotate", 9)]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("made", EVERY, ids=lambda made: f"{made.operation}-{made.strength}")
def test_as_by_pillow(made: Transformation, channels: int) -> None:
    """To a level, where rounding differs; edges of what is moved by part of a pixel are read in other ways."""
    values, signs = pictures(4, channels), torch.tensor([1.0, -1.0, 1.0, -1.0])
    ours = transform(values, made, signs) * 255
    theirs = torch.stack([
        as_levels(by_pillow(as_picture(one), made, int(sign))) for one, sign in zip(values, signs, strict=True)
    ])  # fmt: skip
    apart = (ours - theirs).abs()
    if made.operation in ("shear_x", "shear_y", "rotate"):
        assert float((apart > 3).float().mean()) < 0.1 and float(apart.median()) <= 1
    else:
        assert float(apart.max()) <= 1.01


def ready(images: torch.Tensor, **parameters: Any) -> Defense:
    return TransformationSearch.model_validate(parameters).calibrate(ClientData(images))


def test_the_published_policies_by_a_literal_loop() -> None:
    """Image by image: one of two policies, three transformations, each its own way."""
    values = pictures(6, 3, seed=1).view(2, 3, 3, SIDE, SIDE)
    images = 4 * values - 1
    extremes = torch.tensor([-1.0, 3.0]).view(1, 2, 1, 1, 1).expand(1, 2, 3, SIDE, SIDE)
    protected, labels = ready(extremes).protect_data(images, torch.zeros(2, 3, dtype=torch.long), streams(0, 1))
    assert not labels.any()
    policies = ((3, 1, 7), (43, 18, 18))
    for client in range(2):
        choice = streams(client).child("policy").integers(0, 2, 3)[0]
        ways = streams(client).child("direction").uniform(3, 3)[0] < 0.5
        for number in range(3):
            picture = as_picture(values[client, number])
            for place, negative in zip(policies[int(choice[number])], ways[number], strict=True):
                picture = by_pillow(picture, TRANSFORMATIONS[place], -1 if negative else 1)
            expected = 4 * as_levels(picture) / 255 - 1
            assert float((protected[client, number] - expected).abs().max()) <= 4 * 3.1 / 255


def test_images_of_a_client_do_not_depend_on_others() -> None:
    images = pictures(6, 1).view(3, 2, 1, SIDE, SIDE)
    labels = torch.zeros(3, 2, dtype=torch.long)
    for choice in ("given", "random"):
        together, _ = ready(images, choice=choice).protect_data(images, labels, streams(0, 1, 2))
        alone, _ = ready(images, choice=choice).protect_data(images[1:2], labels[1:2], streams(1))
        assert torch.equal(together[1:2], alone) and not torch.equal(together, images)


def test_every_step_draws_anew_and_a_random_policy_is_another_for_each_image() -> None:
    images = pictures(1, 3).expand(1, 8, -1, -1, -1)
    labels = torch.zeros(1, 8, dtype=torch.long)
    defense = ready(pictures(4, 3)[None], choice="random")
    first, _ = defense.protect_data(images, labels, streams(0).child(0))
    second, _ = defense.protect_data(images, labels, streams(0).child(1))
    assert not torch.equal(first, second)
    assert len({tuple(one.flatten().tolist()) for one in first[0]}) > 4


def test_a_policy_of_nothing_rounds_to_levels_alone() -> None:
    images = pictures(3, 1)[None]
    same, _ = ready(images, policies=[[]]).protect_data(images, torch.zeros(1, 3, dtype=torch.long), streams(0))
    assert float((same - images).abs().max()) <= 0.5 / 255


def test_there_are_fifty_and_others_are_refused() -> None:
    assert len(TRANSFORMATIONS) == 50
    with pytest.raises((ConfigError, ValueError), match="there is no transformation 50; they are 0 to 49"):
        TransformationSearch.model_validate({"policies": [[3, 50]]})


def test_uncalibrated_it_does_nothing_but_complain() -> None:
    images = pictures(2, 1)[None]
    with pytest.raises(Infeasible, match="has seen no data"):
        TransformationSearch().protect_data(images, torch.zeros(1, 2, dtype=torch.long), streams(0))
    statement = TransformationSearch().privacy(Schedule(10))
    assert statement.epsilon is None and statement.basis
