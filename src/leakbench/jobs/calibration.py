"""The images that calibrate a defense, in jobs without training."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property

from leakbench.data.base import Dataset, image_dataset
from leakbench.defenses.base import Defense
from leakbench.federated.client_data import ClientData
from leakbench.jobs.base import Setting
from leakbench.lazy import torch


class CalibrationImages:
    """Images instead of every client's data: one row, read at the first use.

    Args:
        count: their number; all by default.
        skip: number of images at the start of the training split to leave out, since an attacker holds them. They are
            used all the same where the split has no others.
    """

    def __init__(self, dataset: Dataset, device: torch.device, count: int | None = None, skip: int = 0) -> None:
        self.dataset, self.device = dataset, device
        length = dataset.length("train")
        first = skip if length - skip >= 2 else 0
        self.rows = range(first, length if count is None else min(first + count, length))

    @cached_property
    def data(self) -> ClientData:
        """Network inputs; their moments are computed at the first use, too.

        Raises:
            ConfigError: the data set holds no images.
        """
        dataset = image_dataset(self.dataset, "mechanisms that look at their clients' data")
        images = dataset.load("train", self.rows).values.to(self.device)
        return ClientData(dataset.normalise(images)[None], dataset.classes)

    def calibrated(self, settings: Iterable[tuple[Setting, Defense]]) -> list[tuple[Setting, Defense]]:
        """Every setting of a defense, calibrated for any number of clients where it needs calibration.

        Raises:
            ConfigError: the parameters do not fit the images, or the data set holds none.
        """
        return [
            (setting, defense.calibrate(self.data) if defense.overrides("calibrate") else defense)
            for setting, defense in settings
        ]
