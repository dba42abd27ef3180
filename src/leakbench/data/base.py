"""What a data set is: labelled images in [0, 1], by split and index, with the normalisation its models expect."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from leakbench.lazy import np, torch
from leakbench.registry import Component, Registry

Split = Literal["train", "test"]


class Samples(NamedTuple):
    """Images, float32 ``[n, C, H, W]`` in [0, 1], and labels, int64 ``[n]``."""

    images: torch.Tensor
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
    """Labelled images. ``size`` is the side, in pixels, to which the images are resized.

    A subclass gives ``size`` its default with :func:`side`, sets the class variables, and implements ``length`` and
    ``read``.
    """

    channels: ClassVar[int]
    classes: ClassVar[int]
    mean: ClassVar[tuple[float, ...]]
    std: ClassVar[tuple[float, ...]]

    size: int = Field(ge=8, description="side of the square images, in pixels")

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(C, H, W)``."""
        return (self.channels, self.size, self.size)

    def length(self, split: Split) -> int:
        """Number of images in a split.

        Raises:
            MissingData: the data set is not staged.
        """
        raise NotImplementedError

    def read(self, split: Split, rows: list[int]) -> Samples:
        """The images at ``rows``, which all lie inside the split, in the order asked for.

        Raises:
            MissingData: the data set is not staged, or a staged file cannot be read.
        """
        raise NotImplementedError

    def load(self, split: Split, indices: Sequence[int]) -> Samples:
        """The images at ``indices`` (0-based, in the order of the data set), in the order asked for.

        Raises:
            MissingData: the data set is not staged, or a staged file cannot be read.
            IndexError: an index lies outside the split.
        """
        rows = [operator.index(index) for index in indices]
        length = self.length(split)
        for row in rows:
            if not 0 <= row < length:
                raise IndexError(f"data set '{self.name}' has no index {row} in split '{split}' of {length} images")
        return self.read(split, rows)

    def _channelwise(self, values: Sequence[float], like: torch.Tensor) -> torch.Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)

    def normalise(self, images: torch.Tensor) -> torch.Tensor:
        """Pixels in [0, 1] to network inputs; any leading axes."""
        return (images - self._channelwise(self.mean, images)) / self._channelwise(self.std, images)

    def denormalise(self, images: torch.Tensor) -> torch.Tensor:
        """Network inputs to pixels; any leading axes."""
        return images * self._channelwise(self.std, images) + self._channelwise(self.mean, images)


def data_root() -> Path:
    """The folder that holds staged data sets: ``LEAKBENCH_DATA``, else ``data`` in the current folder. Absolute."""
    return Path(os.environ.get("LEAKBENCH_DATA") or "data").expanduser().absolute()


DATASETS: Registry[Dataset] = Registry("dataset", "leakbench.data")
