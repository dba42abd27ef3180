"""Data sets that are staged as parquet files, laid out as in their repositories on the Hugging Face Hub.

The files lie at ``{data root}/{hub id}/{folder}/{split}-{k}-of-{n}.parquet``; a column of images is of the type
``struct<bytes, path>``. Reading never touches the network: ``leakbench stage`` (``staging.py``) fetches.
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Callable, Iterator
from functools import cache
from io import BytesIO
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, NamedTuple, TypeVar

from leakbench.data.base import DATASETS, Dataset, ImageDataset, Samples, Split, data_root, side
from leakbench.errors import MissingData
from leakbench.lazy import np

V = TypeVar("V")


class Shard(NamedTuple):
    """One parquet file of a split: it holds the rows ``start <= row < stop`` of the split."""

    path: Path
    start: int
    stop: int


class StagedDataset(Dataset):
    """A labelled data set in parquet files: their paths, and their rows one by one.

    :class:`StagedImages` makes images of the rows, ``text.StagedText`` sentences.
    """

    hub_id: ClassVar[str]
    folder: ClassVar[str] = ""
    """Folder in the Hub repository that holds the parquet files; for most sets the name of the configuration."""
    splits: ClassVar[dict[Split, str]] = {"train": "train", "test": "test"}
    """Our names of the splits to the names in the repository."""
    label_columns: ClassVar[tuple[str, ...]] = ("label",)
    terms: ClassVar[str] = ""
    """The licence, or the terms of use, as far as its publishers name them."""
    gated: ClassVar[bool] = False
    """Whether the Hub gives it to those alone who accepted its terms there."""
    download: ClassVar[int | None] = None
    """Bytes of the files of the splits that are read, about."""
    published: ClassVar[dict[Split, int]] = {}
    """Samples per split, as published."""

    def expected(self, split: Split) -> int:
        return self.published[split] if self.published else self.length(split)

    @classmethod
    def pattern(cls, split: Split) -> str:
        """The files of a split, relative to the repository's folder."""
        return str(PurePosixPath(cls.folder, f"{cls.splits[split]}-*-of-*.parquet"))

    @classmethod
    def paths(cls, split: Split) -> list[Path]:
        """The files of a split that are there, sorted."""
        pattern = data_root() / cls.hub_id / cls.pattern(split)
        return sorted(pattern.parent.glob(pattern.name))

    def files(self) -> list[Path]:
        return [*super().files(), *(path for split in self.splits for path in self.paths(split))]

    @classmethod
    def shards(cls, split: Split) -> tuple[Shard, ...]:
        """The files of a split, in order.

        Raises:
            MissingData: no files, not all of them, or one that is not a parquet file with the expected columns.
        """
        root = data_root()
        pattern = root / cls.hub_id / cls.pattern(split)
        paths = cls.paths(split)
        if not paths:
            raise MissingData(_not_staged(cls, pattern, root))
        matches = [re.search(r"-(\d+)-of-(\d+)", path.name) for path in paths]
        numbers = [(int(match[1]), int(match[2])) for match in matches if match]
        if numbers != [(number, len(paths)) for number in range(len(paths))]:
            # A missing file would shift all later rows without a word.
            names = ", ".join(path.name for path in paths[:8]) + (", ..." if len(paths) > 8 else "")
            raise cls.broken(f"{pattern} must match one whole set of files, but matches {len(paths)}: {names}")
        stops = list(accumulate(_count(cls, path) for path in paths))
        return tuple(map(Shard, paths, [0, *stops], stops))

    @classmethod
    def columns(cls) -> list[str]:
        """Paths of the columns that are read."""
        raise NotImplementedError

    @classmethod
    def broken(cls, what: str) -> MissingData:
        """The error for files that are there but cannot be used."""
        return MissingData(f"data set '{cls.name}': {what}. Delete the file(s), then run `leakbench stage {cls.name}`.")

    @classmethod
    def label(cls, values: list[Any]) -> int:
        """The class, from the values of ``label_columns``."""
        return int(values[0])

    @classmethod
    def count(cls, split: Split) -> int:
        """Number of rows in the files of a split.

        Raises:
            MissingData: the data set is not staged.
        """
        return cls.shards(split)[-1].stop

    @classmethod
    def labelled(cls, split: Split, rows: np.ndarray, decode: Callable[[dict[str, Any]], V]) -> Iterator[tuple[V, int]]:
        """Rows one by one: what ``decode`` makes of each, and its class.

        Args:
            split: which files.
            rows: sorted, unique, inside the split, int64 ``[n]``.
            decode: makes a value of a row, which it gets as a column -> entry mapping.

        Raises:
            MissingData: the data set is not staged, or ``decode`` raises, or the label of a row is unknown.
        """
        for shard in cls.shards(split):
            inside = rows[(shard.start <= rows) & (rows < shard.stop)] - shard.start
            for row, record in cls._records(shard.path, inside):
                try:
                    value = decode(record)
                    label = cls.label([record[column] for column in cls.label_columns])
                    if not 0 <= label < cls.classes:
                        raise ValueError(f"label {label} is not one of {cls.classes} classes")
                except (OSError, SyntaxError, TypeError, ValueError) as error:  # Pillow raises the first two
                    raise cls.broken(f"row {row} of {shard.path} cannot be used ({error})") from error
                yield value, label

    @classmethod
    def _records(cls, path: Path, rows: np.ndarray) -> Iterator[tuple[int, dict[str, Any]]]:
        """The rows of one file (sorted, unique, relative to the file), one by one.

        Reads only the row groups that hold them, in small batches, and stops after the last of them.
        """
        import pyarrow
        from pyarrow import parquet

        if not len(rows):
            return
        try:
            # buffer_size: stream the column; a whole split can be one row group.
            with parquet.ParquetFile(path, buffer_size=1 << 20) as file:
                sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
                stops = np.cumsum(sizes)
                groups = np.unique(np.searchsorted(stops, rows, side="right"))
                numbers = np.concatenate([np.arange(stops[group] - sizes[group], stops[group]) for group in groups])
                seen = 0
                for batch in file.iter_batches(batch_size=256, row_groups=groups.tolist(), columns=cls.columns()):
                    here = numbers[seen : seen + len(batch)]
                    chosen = np.flatnonzero(np.isin(here, rows))
                    yield from zip(here[chosen].tolist(), batch.take(pyarrow.array(chosen)).to_pylist(), strict=True)
                    seen += len(batch)
                    if here[-1] >= rows[-1]:
                        return
        except (pyarrow.ArrowException, OSError) as error:
            raise cls.broken(f"{path} cannot be read ({error})") from error


class StagedImages(StagedDataset, ImageDataset):
    """A labelled image data set in parquet files. Subclasses only say where it lies and how it looks.

    Images of another size than ``size`` are resized bilinearly, with antialiasing. The whole frame is resized, unless
    ``crop`` says to keep the central square only.
    """

    image_column: ClassVar[str] = "image"
    crop: ClassVar[bool] = False

    @classmethod
    def columns(cls) -> list[str]:
        return [f"{cls.image_column}.bytes", *cls.label_columns]

    def length(self, split: Split) -> int:
        return self.count(split)

    def read(self, split: Split, rows: list[int]) -> Samples:
        wanted, positions = np.unique(np.asarray(rows, dtype=np.int64), return_inverse=True)
        pixels = np.empty((len(wanted), self.size, self.size, self.channels), dtype=np.uint8)
        labels = np.empty(len(wanted), dtype=np.int64)
        for place, (image, label) in enumerate(self.labelled(split, wanted, self._image)):
            pixels[place], labels[place] = image, label
        return Samples.from_pixels(pixels[positions], labels[positions].tolist())

    def idx_digests(self, split: Split) -> tuple[str, str]:
        """MD5 digests of a split's grey images and of its labels as files of the format IDX, in which MNIST appeared.

        Raises:
            MissingData: the data set is not staged, or a row cannot be used.
        """
        count = self.count(split)
        images = hashlib.md5(struct.pack(">4i", 0x803, count, self.size, self.size), usedforsecurity=False)
        labels = hashlib.md5(struct.pack(">2i", 0x801, count), usedforsecurity=False)
        for image, label in self.labelled(split, np.arange(count), self._image):
            images.update(image.tobytes())
            labels.update(bytes([label]))
        return images.hexdigest(), labels.hexdigest()

    def _image(self, record: dict[str, Any]) -> np.ndarray:
        return self._decode(record[self.image_column]["bytes"])

    def _decode(self, content: bytes) -> np.ndarray:
        """Pixels of one encoded image, uint8 ``[size, size, C]``."""
        from PIL import Image, ImageOps

        with Image.open(BytesIO(content)) as encoded:
            image = encoded.convert("L" if self.channels == 1 else "RGB")
        square = (self.size, self.size)
        if image.size != square:
            bilinear = Image.Resampling.BILINEAR
            image = ImageOps.fit(image, square, bilinear) if self.crop else image.resize(square, bilinear)
        return np.asarray(image).reshape(*square, self.channels)


@cache
def _count(dataset: type[StagedDataset], path: Path) -> int:
    """Number of rows of a file.

    Raises:
        MissingData: it is not a parquet file with the expected columns.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            columns = [file.schema.column(number).path for number in range(len(file.schema))]
            rows: int = file.metadata.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise dataset.broken(f"{path} cannot be read ({error})") from error
    for column in dataset.columns():
        if column not in columns:
            raise dataset.broken(f"{path} has no column '{column}', only {', '.join(columns)}")
    return rows


def _not_staged(dataset: type[StagedDataset], pattern: Path, root: Path) -> str:
    """A message: the missing files, where the search for them ended, and what to do."""
    if root.is_dir():
        deepest = next(folder for folder in pattern.parents if folder.is_dir())
        names = sorted(path.name for path in deepest.iterdir() if not path.name.startswith("."))
        listing = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        ends = f"{deepest} exists and holds: {listing or '(nothing)'}"
    else:
        ends = f"the data root {root} is not a folder"
    setting = os.environ.get("LEAKBENCH_DATA")
    return (
        f"data set '{dataset.name}' ({dataset.hub_id} on the Hub) is not staged: no file matches {pattern}; {ends}. "
        f"Run `leakbench stage {dataset.name}` where the Hub can be reached, or set LEAKBENCH_DATA to the folder that "
        f"holds {dataset.hub_id} (it is {repr(setting) if setting else 'not set'})."
    )


@DATASETS.register("mnist", version=1)
class Mnist(StagedImages):
    """MNIST: handwritten digits, 28x28 grey."""

    hub_id, folder = "ylecun/mnist", "mnist"
    terms, download = "CC BY-SA 3.0", 18_200_000
    published: ClassVar[dict[Split, int]] = {"train": 60_000, "test": 10_000}
    channels, classes = 1, 10
    mean, std = (0.1307,), (0.3081,)
    size: int = side(28)


@DATASETS.register("fashion_mnist", version=1)
class FashionMnist(StagedImages):
    """Fashion-MNIST: articles of clothing, 28x28 grey."""

    hub_id, folder = "zalando-datasets/fashion_mnist", "fashion_mnist"
    terms, download = "MIT", 36_000_000
    published: ClassVar[dict[Split, int]] = {"train": 60_000, "test": 10_000}
    channels, classes = 1, 10
    mean, std = (0.2860,), (0.3530,)
    size: int = side(28)


@DATASETS.register("cifar10", version=1)
class Cifar10(StagedImages):
    """CIFAR-10: ten kinds of animals and vehicles, 32x32 RGB."""

    hub_id, folder = "uoft-cs/cifar10", "plain_text"
    terms, download = "none named", 144_000_000
    published: ClassVar[dict[Split, int]] = {"train": 50_000, "test": 10_000}
    image_column = "img"
    channels, classes = 3, 10
    mean, std = (0.4915, 0.4823, 0.4468), (0.2470, 0.2435, 0.2616)
    size: int = side(32)


@DATASETS.register("cifar100", version=1)
class Cifar100(StagedImages):
    """CIFAR-100: a hundred kinds of animals, plants and things, 32x32 RGB."""

    hub_id, folder = "uoft-cs/cifar100", "cifar100"
    terms, download = "none named", 142_000_000
    published: ClassVar[dict[Split, int]] = {"train": 50_000, "test": 10_000}
    image_column = "img"
    label_columns = ("fine_label",)
    channels, classes = 3, 100
    mean, std = (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)
    size: int = side(32)


@DATASETS.register("svhn", version=1)
class Svhn(StagedImages):
    """SVHN: cropped house numbers, 32x32 RGB, without the ``extra`` split."""

    hub_id, folder = "ufldl-stanford/svhn", "cropped_digits"
    terms, download = "non-commercial use only", 183_000_000
    published: ClassVar[dict[Split, int]] = {"train": 73_257, "test": 26_032}
    channels, classes = 3, 10
    mean, std = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
    size: int = side(32)


@DATASETS.register("celeba", version=1)
class Celeba(StagedImages):
    """CelebA: aligned faces; the whole 178x218 frame is resized to a square.

    Eight classes: bit 0 is ``Heavy_Makeup``, bit 1 ``Mouth_Slightly_Open``, bit 2 ``Smiling``.
    """

    hub_id, folder = "flwrlabs/celeba", "img_align+identity+attr"
    terms = "CelebA's release agreement: non-commercial research only, no passing on"
    download = 10_600_000_000
    published: ClassVar[dict[Split, int]] = {"train": 162_770, "test": 19_962}
    label_columns = ("Heavy_Makeup", "Mouth_Slightly_Open", "Smiling")
    channels, classes = 3, 8
    mean, std = (0.5063, 0.4258, 0.3832), (0.3107, 0.2904, 0.2897)
    size: int = side(32)

    @classmethod
    def label(cls, values: list[Any]) -> int:
        return sum(int(value) << bit for bit, value in enumerate(values))


@DATASETS.register("imagenet", version=1)
class Imagenet(StagedImages):
    """ImageNet-1k: short side resized, centre-cropped. The test split is the validation split, which has labels."""

    hub_id, folder = "ILSVRC/imagenet-1k", "data"
    terms, gated = "ImageNet's terms of access: non-commercial research and education only", True
    download = 153_000_000_000
    published: ClassVar[dict[Split, int]] = {"train": 1_281_167, "test": 50_000}
    splits: ClassVar[dict[Split, str]] = {"train": "train", "test": "validation"}
    crop = True
    channels, classes = 3, 1000
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    size: int = side(224)
