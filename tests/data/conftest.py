"""Small staged data sets in the layout of the Hub, made on the spot."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet

from leakbench.data.base import DATASETS
from leakbench.data.staged import StagedImages
from leakbench.data.text import BERT, BERT_FILE, StagedText
from leakbench.staged import pins
from leakbench.staged.pins import Pin

NATIVE_SHAPES = {"mnist": (28, 28), "fashion_mnist": (28, 28), "celeba": (218, 178, 3), "imagenet": (300, 400, 3)}


def _encode(pixels: np.ndarray, form: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def _noise(count: int, name: str) -> list[np.ndarray]:
    shape = NATIVE_SHAPES.get(name, (32, 32, 3))
    return list(np.random.default_rng(0).integers(0, 256, (count, *shape), dtype=np.uint8))


def _write_split(
    folder: Path,
    split: str,
    images: Sequence[np.ndarray | bytes | None],
    columns: dict[str, list[Any]],
    *,
    image_column: str = "image",
    form: str = "PNG",
    files: int = 1,
    row_group_size: int = 4,
) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    contents = [_encode(image, form) if isinstance(image, np.ndarray) else image for image in images]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({image_column: pa.array([{"bytes": content} for content in contents], kind), **columns})
    paths = [folder / f"{split}-{number:05d}-of-{files:05d}.parquet" for number in range(files)]
    cuts = [len(table) * number // files for number in range(files + 1)]
    for path, start, stop in zip(paths, cuts[:-1], cuts[1:], strict=True):
        parquet.write_table(table.slice(start, stop - start), path, row_group_size=row_group_size)
    return paths


@pytest.fixture
def noise() -> Callable[[int, str], list[np.ndarray]]:
    """``noise(n, name)``: the pixels, uint8, of the first ``n`` images that ``fake`` stages for a data set."""
    return _noise


@pytest.fixture
def write_split() -> Callable[..., list[Path]]:
    """``write_split(folder, split, images, columns)`` writes the parquet files of a split as the Hub holds them."""
    return _write_split


@pytest.fixture(autouse=True)
def unpublished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pins without digests: the files of these tests are others than were published."""
    revisions = {hub_id: Pin(revision=each.revision) for hub_id, each in pins._pins().items()}
    monkeypatch.setattr(pins, "_pins", lambda: revisions)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root, set."""
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.setenv("LEAKBENCH_DATA", str(folder))
    return folder


@pytest.fixture
def fake(root: Path) -> Callable[..., StagedImages]:
    """``fake(name, train=10, files=2)`` stages ten train images in two files, and two test images."""

    def stage(name: str, *, train: int = 6, test: int = 2, **layout: Any) -> StagedImages:
        cls = DATASETS.get(name)
        assert issubclass(cls, StagedImages)
        folder = root / cls.hub_id / cls.folder
        for split, count in ((cls.splits["train"], train), (cls.splits["test"], test)):
            labels = {column: [row % 2 for row in range(count)] for column in cls.label_columns}
            _write_split(folder, split, _noise(count, name), labels, image_column=cls.image_column, **layout)
        return cls.model_validate({})

    return stage


PIECES = "[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] the dog ##s sleep cafe . ' a"


@pytest.fixture
def pieces(root: Path) -> Callable[..., list[str]]:
    """``pieces()`` stages a vocabulary of 14 pieces of words, or the one that it is given; returns its entries."""

    def stage(entries: list[str] | None = None) -> list[str]:
        entries = PIECES.split() if entries is None else entries
        path = root / BERT / BERT_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(entries) + "\n")
        return entries

    return stage


@pytest.fixture
def fake_text(root: Path) -> Callable[..., type[StagedText]]:
    """``fake_text(name, [(sentence, label), ...])`` stages a train split, in files of two rows, and a test split."""

    def stage(
        name: str,
        train: Sequence[tuple[str | None, int | None]],
        test: Sequence[tuple[str | None, int | None]] = (("The dog.", 1),),
    ) -> type[StagedText]:
        cls = DATASETS.get(name)
        assert issubclass(cls, StagedText)
        folder = root / cls.hub_id / cls.folder
        folder.mkdir(parents=True, exist_ok=True)
        for split, rows in ((cls.splits["train"], train), (cls.splits["test"], test)):
            files = (len(rows) + 1) // 2
            for number in range(files):
                part = rows[2 * number : 2 * number + 2]
                table = pa.table(
                    {
                        cls.text_column: pa.array([sentence for sentence, _ in part], pa.string()),
                        "label": pa.array([label for _, label in part], pa.int64()),
                        "idx": list(range(len(part))),
                    }
                )
                parquet.write_table(table, folder / f"{split}-{number:05d}-of-{files:05d}.parquet")
        return cls

    return stage
