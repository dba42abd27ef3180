"""Reading staged parquet files: which rows, which pixels, and what is said when files are missing or broken."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from leakbench.data.base import DATASETS, image_dataset
from leakbench.data.staged import Celeba, Cifar10, Imagenet, Mnist, StagedDataset
from leakbench.errors import MissingData

Fake = Callable[..., StagedDataset]
Noise = Callable[[int, str], list[np.ndarray]]
Write = Callable[..., list[Path]]

REAL_ROOT = os.environ.get("LEAKBENCH_DATA")  # before a fixture sets another


def to_tensor(pixels: list[np.ndarray]) -> torch.Tensor:
    """float32 ``[n, C, H, W]`` in [0, 1]."""
    stacked = np.stack(pixels).reshape(len(pixels), *pixels[0].shape[:2], -1)
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).float() / 255


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.integers(0, 24), max_size=30))
def test_pixels_are_exact_across_files_and_row_groups(fake: Fake, noise: Noise, rows: list[int]) -> None:
    mnist = fake("mnist", train=25, files=3)
    images, labels = mnist.load("train", rows)
    expected = to_tensor(noise(25, "mnist"))
    assert torch.equal(images, expected[rows])
    assert labels.tolist() == [row % 2 for row in rows]


def test_long_row_groups_are_read_in_batches(fake: Fake, noise: Noise) -> None:
    mnist = fake("mnist", train=700, row_group_size=600)
    rows = [699, 0, 255, 256, 599, 600]
    assert torch.equal(mnist.load("train", rows).values, to_tensor(noise(700, "mnist"))[rows])


def test_channels_and_columns_of_cifar10(fake: Fake, noise: Noise) -> None:
    cifar10 = fake("cifar10")
    assert torch.equal(cifar10.load("train", [4, 2]).values, to_tensor(noise(6, "cifar10"))[[4, 2]])


def test_only_the_rows_asked_for_are_decoded(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    mnist = fake("mnist", train=300, row_group_size=300)
    decoded: list[bytes] = []
    original = Mnist._decode

    def count(self: Mnist, content: bytes) -> np.ndarray:
        decoded.append(content)
        return original(self, content)

    monkeypatch.setattr(Mnist, "_decode", count)
    mnist.load("train", [7, 290, 7])
    assert len(decoded) == 2


def test_other_row_groups_and_files_are_not_read(fake: Fake) -> None:
    mnist = fake("mnist", train=16, files=2)
    first, second = (shard.path for shard in mnist.shards("train"))
    second.write_bytes(b"")
    column = parquet.ParquetFile(first).metadata.row_group(1).column(0)
    content = bytearray(first.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    first.write_bytes(content)

    assert mnist.load("train", range(4)).values.shape[0] == 4
    for row, path in ((4, first), (8, second)):
        with pytest.raises(MissingData, match=f"{path.name} cannot be read"):
            mnist.load("train", [row])


def test_smaller_sizes_are_antialiased(root: Path, write_split: Write) -> None:
    board = (np.indices((28, 28)).sum(0) % 2 * 255).astype(np.uint8)
    write_split(root / "ylecun/mnist/mnist", "train", [board], {"label": [0]})
    image = Mnist(size=14).load("train", [0]).values[0, 0]
    assert (image[1:-1, 1:-1] - 0.5).abs().max() < 0.02


def test_celeba_labels_are_three_bits_and_the_whole_frame_is_kept(root: Path, write_split: Write) -> None:
    frame = np.zeros((218, 178, 3), dtype=np.uint8)
    frame[:20], frame[-20:] = 255, 255  # a centre crop would lose these
    attributes = [[bool(label >> bit & 1) for label in range(8)] for bit in range(3)]
    columns = dict(zip(("Heavy_Makeup", "Mouth_Slightly_Open", "Smiling"), attributes, strict=True))
    folder = root / "flwrlabs/celeba/img_align+identity+attr"
    write_split(folder, "train", [frame] * 8, {**columns, "celeb_id": [1] * 8}, form="JPEG")

    images, labels = Celeba().load("train", range(8))
    assert labels.tolist() == list(range(8))
    assert images[0, :, 0].min() > 0.95 and images[0, :, -1].min() > 0.95 and images[0, :, 16].max() < 0.05


def test_imagenet_is_cropped_at_the_centre_and_tests_on_validation(root: Path, write_split: Write) -> None:
    frame = np.zeros((300, 500, 3), dtype=np.uint8)
    frame[:, 100:400] = 255
    grey = np.full((260, 230), 255, dtype=np.uint8)
    transparent = np.full((230, 260, 4), 255, dtype=np.uint8)
    images = [frame, grey, transparent]
    write_split(root / "ILSVRC/imagenet-1k/data", "validation", images, {"label": [0, 7, 999]}, files=2)

    loaded = Imagenet().load("test", range(3))
    assert loaded.values.shape == (3, 3, 224, 224) and loaded.labels.tolist() == [0, 7, 999]
    assert loaded.values[..., 1:-1].min() > 0.98  # the black margins are gone
    with pytest.raises(MissingData, match=r"imagenet-1k/data/train-\*-of-\*.parquet"):
        Imagenet().length("train")


def test_a_missing_set_says_what_where_and_how(root: Path) -> None:
    with pytest.raises(MissingData) as caught:
        Mnist().load("train", [0])
    message = str(caught.value)
    assert "'mnist' (ylecun/mnist on the Hub) is not staged" in message
    assert f"{root}/ylecun/mnist/mnist/train-*-of-*.parquet" in message
    assert f"{root} exists and holds: (nothing)" in message
    assert "leakbench stage mnist" in message
    assert f"LEAKBENCH_DATA to the folder that holds ylecun/mnist (it is '{root}')" in message
    assert "\n" not in message


def test_a_wrong_data_root_is_recognisable(fake: Fake, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake("mnist")
    monkeypatch.setenv("LEAKBENCH_DATA", str(root / "ylecun"))
    with pytest.raises(MissingData, match="ylecun exists and holds: mnist"):
        Mnist().length("train")
    monkeypatch.setenv("LEAKBENCH_DATA", str(root / "nowhere"))
    with pytest.raises(MissingData, match="nowhere is not a folder"):
        Mnist().length("train")
    monkeypatch.delenv("LEAKBENCH_DATA")
    monkeypatch.chdir(root)
    with pytest.raises(MissingData, match=r"data is not a folder.*\(it is not set\)"):
        Mnist().length("train")


def test_an_incomplete_set_is_refused(fake: Fake, root: Path) -> None:
    mnist = fake("mnist", train=9, files=3)
    (root / "ylecun/mnist/mnist/train-00001-of-00003.parquet").unlink()
    with pytest.raises(MissingData, match="must match one whole set of files, but matches 2: train-00000-of-00003"):
        mnist.length("train")


def test_two_sets_in_one_folder_are_refused(fake: Fake, root: Path) -> None:
    fake("mnist", files=1)
    mnist = fake("mnist", files=2)
    with pytest.raises(MissingData, match="one whole set of files, but matches 3"):
        mnist.length("train")


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_truncated_file_is_named(fake: Fake, root: Path, kept: int) -> None:
    mnist = fake("mnist")
    path = root / "ylecun/mnist/mnist/train-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(MissingData, match=f"{re.escape(str(path))} cannot be read.*leakbench stage mnist"):
        mnist.load("train", [0])
    assert mnist.length("test") == 2


def test_a_file_of_another_data_set_is_refused(fake: Fake, root: Path) -> None:
    fake("mnist")
    target = root / Cifar10.hub_id
    target.mkdir(parents=True)
    (root / "ylecun/mnist/mnist").rename(target / Cifar10.folder)
    with pytest.raises(MissingData, match=r"has no column 'img\.bytes', only image\.bytes, image.path, label"):
        Cifar10().length("train")


@pytest.mark.parametrize(
    ("image", "label", "reason"),
    [
        (np.zeros((28, 28), dtype=np.uint8), 10, "label 10 is not one of 10 classes"),
        (np.zeros((28, 28), dtype=np.uint8), -1, "label -1 is not one of 10 classes"),
        (np.zeros((28, 28), dtype=np.uint8), None, "NoneType"),
        (b"no picture", 0, "cannot identify image file"),
        (None, 0, "cannot identify image file"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    root: Path, write_split: Write, image: Any, label: Any, reason: str
) -> None:
    good = np.zeros((28, 28), dtype=np.uint8)
    path = write_split(root / "ylecun/mnist/mnist", "train", [good, image], {"label": [0, label]})[0]
    assert Mnist().load("train", [0]).labels.tolist() == [0]
    with pytest.raises(MissingData, match=f"row 1 of {re.escape(str(path))} cannot be used.*{reason}"):
        Mnist().load("train", [0, 1])


@pytest.mark.parametrize(
    ("name", "lengths"),
    [("mnist", (60_000, 10_000)), ("fashion_mnist", (60_000, 10_000)), ("cifar10", (50_000, 10_000))],
)
def test_real_data(name: str, lengths: tuple[int, int]) -> None:
    if not REAL_ROOT:
        pytest.skip("LEAKBENCH_DATA is not set")
    dataset = image_dataset(DATASETS.get(name).model_validate({}), "tests")
    try:
        assert (dataset.length("train"), dataset.length("test")) == lengths
    except MissingData as error:
        pytest.skip(str(error))
    images, labels = dataset.load("train", range(0, lengths[0], 29))
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.tensor(dataset.mean), atol=0.01, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3)), torch.tensor(dataset.std), atol=0.01, rtol=0)
    assert labels.bincount(minlength=10).min() > 100
