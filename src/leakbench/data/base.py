"""Data sets: labelled samples (images in [0, 1], or token ids of text) by split and index."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from leakbench.errors import ConfigError
from leakbench.lazy import np, torch
from leakbench.registry import Component, Registry
from leakbench.staged.root import data_root as data_root

Split = Literal["train", "test"]


class Samples(NamedTuple):
    """Images, float32 ``[n, C, H, W]`` in [0, 1], or token ids, int64 ``[n, L]``; and labels, int64 ``[n]``."""

    values: torch.Tensor
    labels: torch.Tensor

    @classmethod
    def from_pixels(cls, pixels: np.ndarray, labels: Sequence[int]) -> Samples:
        """Samples from pixels, uint8 ``[n, H, W, C]``."""
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        images = images.to(torch.float32, memory_format=torch.contiguous_format).div_(255)
        return cls(images, torch.as_tensor(labels, dtype=torch.int64))


def side(default: int) -> Any:
    """The field ``size`` with its default, in pixels."""
    return Field(default, ge=8, description="side of the square images, in pixels")


class Dataset(Component):
    """Labelled samples. A subclass sets ``classes`` and implements ``shape``, ``length`` and ``read``.

    >>> from leakbench.data.embedded import Digits
    >>> Digits(size=8).load("test", [13, 6]).labels
    tensor([3, 6])
    """

    classes: ClassVar[int]
    unit: ClassVar[str] = "samples"
    """Name of the samples in messages."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's values: ``(C, H, W)`` of an image, ``(L,)`` of a text."""
        raise NotImplementedError

    def length(self, split: Split) -> int:
        """Number of samples in a split.

        Raises:
            MissingData: the data set is not staged.
        """
        raise NotImplementedError

    def expected(self, split: Split) -> int:
        """Number of samples in a split, or what is known of it while the data set is not staged."""
        return self.length(split)

    def read(self, split: Split, rows: list[int]) -> Samples:
        """The samples at ``rows``, which all lie inside the split, in the order asked for.

        Raises:
            MissingData: the data set is not staged, or a staged file cannot be read.
        """
        raise NotImplementedError

    def files(self) -> list[Path]:
        """The staged files that samples are read from, as far as they are there; none if nothing is staged."""
        return []

    def load(self, split: Split, indices: Sequence[int]) -> Samples:
        """The samples at ``indices`` (0-based, in the order of the data set), in the order asked for.

        Raises:
            MissingData: the data set is not staged, or a staged file cannot be read.
            IndexError: an index lies outside the split.
        """
        return self.read(split, self._inside(split, indices))

    def _inside(self, split: Split, indices: Sequence[int]) -> list[int]:
        """The indices as integers.

        Raises:
            IndexError: one lies outside the split.
        """
        rows = [operator.index(index) for index in indices]
        length = self.length(split)
        for row in rows:
            if not 0 <= row < length:
                raise IndexError(
                    f"data set '{self.name}' has no index {row} in split '{split}' of {length} {self.unit}"
                )
        return rows

    def normalise(self, values: torch.Tensor) -> torch.Tensor:
        """Values of samples to network inputs; any leading axes."""
        return values

    def denormalise(self, values: torch.Tensor) -> torch.Tensor:
        """Network inputs to values of samples; any leading axes."""
        return values


class ImageDataset(Dataset):
    """Labelled images. ``size`` is the side, in pixels, to which the images are resized.

    A subclass gives ``size`` its default with :func:`side`, sets the class variables, and implements ``length`` and
    ``read``.

    >>> class Greys(ImageDataset):
    ...     channels, classes, mean, std = 1, 10, (0.5,), (0.25,)
    ...     size: int = side(8)
    ...     def length(self, split):
    ...         return 256
    ...     def read(self, split, rows):
    ...         pixels = np.array(rows, dtype=np.uint8)[:, None, None, None]
    ...         return Samples.from_pixels(np.tile(pixels, (1, self.size, self.size, 1)), [row % 10 for row in rows])
    >>> images, labels = Greys().load("train", [0, 255])
    >>> images.shape, labels, Greys().normalise(images).unique()
    (torch.Size([2, 1, 8, 8]), tensor([0, 5]), tensor([-2.,  2.]))
    """

    unit = "images"
    added: ClassVar[tuple[str, ...]] = ("inputs",)
    channels: ClassVar[int]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    size: int = Field(ge=8, description="side of the square images, in pixels")
    inputs: Literal["normalised", "pixels"] = Field(
        "normalised", description="network inputs: less the mean of the channel, over its deviation; or in [0, 1]"
    )

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(C, H, W)``."""
        return (self.channels, self.size, self.size)

    def _channelwise(self, values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)

    def normalise(self, values: torch.Tensor) -> torch.Tensor:
        """Pixels in [0, 1], ``[..., C, H, W]``, to network inputs."""
        if self.inputs == "pixels":
            return values
        return (values - self._channelwise(self.mean, values)) / self._channelwise(self.std, values)

    def denormalise(self, values: torch.Tensor) -> torch.Tensor:
        """Network inputs ``[..., C, H, W]`` to pixels."""
        if self.inputs == "pixels":
            return values
        return values * self._channelwise(self.std, values) + self._channelwise(self.mean, values)

    def pixel_range(self, device: torch.device) -> torch.Tensor:
        """Smallest and largest network input that is a pixel, per channel, ``[2, C, 1, 1]``."""
        bounds = torch.tensor([0.0, 1.0], device=device).view(2, 1, 1, 1)
        return self.normalise(bounds.expand(2, self.channels, 1, 1))


def image_dataset(dataset: Dataset, what: str) -> ImageDataset:
    """The same data set, known to hold images.

    Args:
        dataset: any data set.
        what: what needs images, for the error message.

    Raises:
        ConfigError: it holds no images.
    """
    if not isinstance(dataset, ImageDataset):
        raise ConfigError(f"data set '{dataset.name}' holds {dataset.unit}, no images, but {what} need images")
    return dataset


DATASETS: Registry[Dataset] = Registry("dataset", "leakbench.data")
