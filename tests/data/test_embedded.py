"""The digits and the photographs that ship inside dependencies."""

from __future__ import annotations

import socket

import numpy as np
import pytest
import torch

from leakbench.data import embedded
from leakbench.data.base import ImageDataset, Split
from leakbench.data.embedded import PHOTOGRAPHS, Box, Digits, Photos
from leakbench.errors import MissingData


def overlap(a: Box, b: Box) -> bool:
    return a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom


@pytest.mark.parametrize("dataset", [Digits(), Photos()], ids=lambda dataset: dataset.name)
def test_mean_and_std_are_those_of_the_train_split(dataset: ImageDataset) -> None:
    images = dataset.load("train", range(dataset.length("train"))).values.double()
    mean = images.mean((0, 2, 3)).tolist()
    std = images.std((0, 2, 3), correction=0).tolist()
    assert tuple(round(value, 4) for value in mean) == dataset.mean
    assert tuple(round(value, 4) for value in std) == dataset.std


@pytest.mark.parametrize("dataset", [Digits(), Photos()], ids=lambda dataset: dataset.name)
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_class_is_in_both_splits(dataset: ImageDataset, split: Split) -> None:
    labels = dataset.load(split, range(dataset.length(split))).labels
    assert labels.bincount(minlength=dataset.classes).min() >= 40


def test_digits_at_their_native_size_are_the_scans() -> None:
    from sklearn.datasets import load_digits

    scans, classes = load_digits(return_X_y=True)
    digits = Digits(size=8)
    assert digits.length("train") == 1297 and digits.length("test") == 500
    images, labels = digits.load("test", [0, 499])
    np.testing.assert_array_equal(images.flatten(1).numpy() * 16, scans[[1297, 1796]])
    assert labels.tolist() == classes[[1297, 1796]].tolist()


def test_digits_keep_their_brightness_when_enlarged() -> None:
    rows = range(100)
    small, large = Digits(size=8).load("train", rows).values, Digits(size=32).load("train", rows).values
    torch.testing.assert_close(large.mean((1, 2, 3)), small.mean((1, 2, 3)), atol=1e-5, rtol=0)


def test_crops_of_the_two_splits_share_no_pixel() -> None:
    for label, photograph in enumerate(PHOTOGRAPHS):
        assert not overlap(photograph.train, photograph.test)
        height, width, _ = embedded._photograph(photograph.package, photograph.file).shape
        for split, region in (("train", photograph.train), ("test", photograph.test)):
            assert 0 <= region.left < region.right <= width and 0 <= region.top < region.bottom <= height
            crops = [Photos.crop(split, row) for row in range(label, Photos().length(split), Photos.classes)]  # type: ignore[arg-type]
            assert len(set(crops)) == len(crops)
            assert min(crop.left for crop in crops) == region.left
            assert min(crop.top for crop in crops) == region.top
            assert max(crop.right for crop in crops) == region.right
            assert max(crop.bottom for crop in crops) == region.bottom


def test_resizing_does_not_carry_test_pixels_into_train_crops(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = range(0, Photos().length("train"), 7)
    before = Photos().load("train", rows).values
    original = embedded._photograph

    def without_test_region(package: str, file: str) -> np.ndarray:
        pixels = original(package, file).copy()
        region = next(photograph.test for photograph in PHOTOGRAPHS if photograph.file == file)
        pixels[region.top : region.bottom, region.left : region.right] = 0
        return pixels

    monkeypatch.setattr(embedded, "_photograph", without_test_region)
    assert torch.equal(Photos().load("train", rows).values, before)
    assert Photos().load("test", range(10)).values.max() == 0


def test_consecutive_indices_show_different_photographs_and_places() -> None:
    labels = Photos().load("train", range(25)).labels
    assert labels.tolist() == [index % 10 for index in range(25)]
    first_four = [Photos.crop("train", 10 * position) for position in range(4)]
    assert len({crop.left for crop in first_four}) == len({crop.top for crop in first_four}) == 2


def test_crops_show_structure() -> None:
    images, labels = Photos().load("train", range(0, 2560, 3))
    contrast = images.std((2, 3)).mean(1)
    assert all(contrast[labels == label].median() > 0.04 for label in range(Photos.classes))


def test_photos_need_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    embedded._photograph.cache_clear()
    Photos().load("test", range(10))


def test_a_photograph_that_the_package_lacks_is_named() -> None:
    with pytest.raises(MissingData, match=r"holds no data/lena\.png; install the pinned"):
        embedded._photograph("skimage", "data/lena.png")
