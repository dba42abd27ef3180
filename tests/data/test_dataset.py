"""What every data set of images promises, embedded or staged."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from leakbench.data.base import DATASETS, Dataset, ImageDataset, Samples, Split, data_root, image_dataset
from leakbench.data.embedded import Digits
from leakbench.data.staged import StagedImages
from leakbench.errors import ConfigError, UnknownName

NAMES = ["celeba", "cifar10", "cifar100", "digits", "fashion_mnist", "imagenet", "mnist", "photos", "svhn"]


@pytest.fixture(params=NAMES)
def dataset(request: pytest.FixtureRequest, fake: Callable[..., StagedImages]) -> ImageDataset:
    cls = DATASETS.get(request.param)
    return fake(request.param) if issubclass(cls, StagedImages) else image_dataset(cls(), "tests")


def test_names_are_registered() -> None:
    assert list(DATASETS) == sorted([*NAMES, "cola", "rotten_tomatoes", "sentences"])
    with pytest.raises(UnknownName, match="did you mean 'mnist'"):
        DATASETS.get("mnits")


@pytest.mark.parametrize("split", ["train", "test"])
def test_samples(dataset: ImageDataset, split: Split) -> None:
    images, labels = dataset.load(split, [1, 0])
    assert images.shape == (2, *dataset.shape) and images.dtype == torch.float32 and images.is_contiguous()
    assert 0 <= images.min() < images.max() <= 1
    assert labels.shape == (2,) and labels.dtype == torch.int64
    assert labels.min() >= 0 and labels.max() < dataset.classes
    assert len(dataset.mean) == len(dataset.std) == dataset.channels


def test_order_and_repeats_are_respected(dataset: ImageDataset) -> None:
    images, labels = dataset.load("train", [3, 0, 3, 1])
    again = dataset.load("train", [0, 1, 3])
    assert torch.equal(images, again.values[[2, 0, 2, 1]])
    assert torch.equal(labels, again.labels[[2, 0, 2, 1]])


def test_no_indices(dataset: ImageDataset) -> None:
    images, labels = dataset.load("train", [])
    assert images.shape == (0, *dataset.shape) and labels.shape == (0,)


def test_indices_of_other_libraries(dataset: ImageDataset) -> None:
    expected = dataset.load("train", [2, 1]).values
    assert torch.equal(dataset.load("train", torch.tensor([2, 1])).values, expected)  # type: ignore[arg-type]
    assert torch.equal(dataset.load("train", np.array([2, 1])).values, expected)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        dataset.load("train", [0.5])  # type: ignore[list-item]


@pytest.mark.parametrize("index", [-1, 10**6])
def test_index_outside_the_split(dataset: ImageDataset, index: int) -> None:
    with pytest.raises(IndexError, match=f"'{dataset.name}' has no index {index} in split 'test' of "):
        dataset.load("test", [0, index])


def test_another_size(dataset: ImageDataset) -> None:
    other = type(dataset)(size=24)
    images = other.load("train", [0, 1]).values
    assert images.shape == (2, dataset.channels, 24, 24) and 0 <= images.min() < images.max() <= 1
    assert other.length("train") == dataset.length("train")


def test_parameters_are_validated(dataset: ImageDataset) -> None:
    with pytest.raises(ValidationError):
        type(dataset)(size=4)
    with pytest.raises(ValidationError):
        type(dataset)(side=32)  # type: ignore[call-arg]
    assert dataset.parameters() == {"size": dataset.size}


@given(name=st.sampled_from(NAMES), lead=st.lists(st.integers(1, 3), max_size=2), seed=st.integers(0, 2**32))
@settings(max_examples=50, deadline=None)
def test_normalise_round_trip(name: str, lead: list[int], seed: int) -> None:
    dataset = image_dataset(DATASETS.get(name).model_validate({"size": 8}), "tests")
    images = torch.rand(*lead, *dataset.shape, generator=torch.Generator().manual_seed(seed))
    inputs = dataset.normalise(images)
    torch.testing.assert_close(dataset.denormalise(inputs), images, atol=1e-6, rtol=0)
    for channel in range(dataset.channels):
        expected = (images[..., channel, :, :] - dataset.mean[channel]) / dataset.std[channel]
        torch.testing.assert_close(inputs[..., channel, :, :], expected)


def test_pixels_as_inputs() -> None:
    """In [0, 1], as they are; where inputs are normalised, the parameter is no part of an identity."""
    plain, pixels = (Digits(**{"size": 8, **given}) for given in ({}, {"inputs": "pixels"}))
    images = torch.rand(2, *pixels.shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(pixels.normalise(images), images) and torch.equal(pixels.denormalise(images), images)
    assert not torch.equal(plain.normalise(images), images)
    assert pixels.pixel_range(torch.device("cpu")).flatten().tolist() == [0, 1]
    assert "inputs" not in plain.parameters() and pixels.parameters()["inputs"] == "pixels"


class Words(Dataset):
    """Two texts of three tokens."""

    name, version, classes, unit = "words", 1, 2, "sentences"

    @property
    def shape(self) -> tuple[int, ...]:
        return (3,)

    def length(self, split: Split) -> int:
        return 2

    def read(self, split: Split, rows: list[int]) -> Samples:
        return Samples(torch.tensor([[2, 5, 3], [2, 3, 0]])[rows], torch.tensor([1, 0])[rows])


def test_what_is_no_image() -> None:
    words = Words()
    values, labels = words.load("train", [1, 0])
    assert torch.equal(values, torch.tensor([[2, 3, 0], [2, 5, 3]])) and labels.tolist() == [0, 1]
    assert torch.equal(words.normalise(values), values) and torch.equal(words.denormalise(values), values)
    with pytest.raises(IndexError, match="'words' has no index 2 in split 'test' of 2 sentences"):
        words.load("test", [2])
    with pytest.raises(ConfigError, match="'words' holds sentences, no images, but pictures need images"):
        image_dataset(words, "pictures")


def test_data_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LEAKBENCH_DATA", raising=False)
    assert data_root() == tmp_path / "data"
    monkeypatch.setenv("LEAKBENCH_DATA", "elsewhere")
    assert data_root() == tmp_path / "elsewhere"
    monkeypatch.setenv("LEAKBENCH_DATA", "~/sets")
    assert data_root() == Path.home() / "sets"


def test_listing_imports_nothing_heavy() -> None:
    code = (
        "import json, sys, leakbench.data.staging\n"
        "from leakbench.data.base import DATASETS\n"
        "names = [DATASETS.get(name)().parameters() for name in DATASETS]\n"
        "heavy = 'torch numpy pandas pyarrow PIL sklearn skimage scipy datasets tokenizers transformers'.split()\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
