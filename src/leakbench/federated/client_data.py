"""The data sets of clients before training, for mechanisms that act on data."""

from __future__ import annotations

from functools import cached_property

from leakbench.data.covariance import Moments, moments_of
from leakbench.errors import ConfigError
from leakbench.lazy import torch


class ClientData:
    """All training images of ``n`` clients: row ``i`` is client ``i``.

    Statistics are computed at the first use and shared by all settings and defenses.

    Args:
        images: network inputs, ``[n, N, C, H, W]``. One row may stand for every client (``n = 1``).
        classes: number of classes that labels tell apart; None where nobody says.

    Raises:
        ConfigError: the images have another number of axes.
    """

    def __init__(self, images: torch.Tensor, classes: int | None = None) -> None:
        if images.dim() != 5:
            raise ConfigError(f"images of shape {list(images.shape)}; the data of clients are [n, N, C, H, W]")
        self.images, self.classes = images, classes

    def __len__(self) -> int:
        return len(self.images)

    @property
    def shape(self) -> tuple[int, int, int]:
        """``(C, H, W)``."""
        channels, height, width = self.images.shape[2:]
        return channels, height, width

    @cached_property
    def extremes(self) -> torch.Tensor:
        """Smallest and largest value of any image, per channel, ``[2, C, 1, 1]``: black and white, where both occur."""
        axes = (0, 1, 3, 4)
        return torch.stack([self.images.amin(dim=axes), self.images.amax(dim=axes)])[:, :, None, None]

    @cached_property
    def moments(self) -> list[Moments]:
        """Mean and covariance of each client's flattened images.

        Raises:
            ConfigError: a client holds fewer than two images, or values that are not finite.
        """
        return [moments_of(images) for images in self.images]
