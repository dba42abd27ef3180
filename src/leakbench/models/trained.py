"""Trained models: the parameters of several runs of one architecture, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from leakbench.lazy import torch
from leakbench.models.base import Network, Statistics

MEMORY_BUDGET = 256 * 2**20
"""Working memory of one forward pass, in bytes. Only speed depends on it."""


@dataclass(frozen=True)
class TrainedModels:
    """Runs that differ in their seed, their data or their defense.

    One forward pass serves one run: side by side, convolutions with weights of their own become grouped ones, which
    are slower on a CPU.

    Attributes:
        network: the architecture.
        parameters: after training, ``[runs, d]``.
        statistics: running statistics of BatchNorm layers after training, each ``[runs, channels]``; empty without.
        initial: the public parameters that training started from, ``[runs, d]``; None where they are unknown.
    """

    network: Network
    parameters: torch.Tensor
    statistics: Statistics = field(default_factory=dict)
    initial: torch.Tensor | None = None

    def __len__(self) -> int:
        return len(self.parameters)

    def rows(self, start: int, stop: int) -> TrainedModels:
        """The runs ``start`` to ``stop``."""
        part = slice(start, stop)
        statistics = {name: values[part] for name, values in self.statistics.items()}
        initial = None if self.initial is None else self.initial[part]
        return TrainedModels(self.network, self.parameters[part], statistics, initial)

    def logits_and_features(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits ``[runs, n, classes]`` and the last layer's inputs, ``[runs, n, F]``, in evaluation.

        Args:
            images: ``[n, C, H, W]``, or each run's own, ``[runs, n, C, H, W]``.
        """
        network = self.network.in_mode("eval")
        logits, features = zip(
            *(
                (torch.cat(parts) for parts in zip(*self._parts(network, run, images), strict=True))
                for run in range(len(self))
            ),
            strict=True,
        )
        return torch.stack(logits), torch.stack(features)

    def _parts(self, network: Network, run: int, images: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        statistics = {name: values[run] for name, values in self.statistics.items()}
        inputs = images if images.dim() == 4 else images[run]
        size = max(1, MEMORY_BUDGET // (4 * 200 * inputs[0].numel()))  # some two hundred floats per input pixel
        with torch.no_grad():
            for part in inputs.split(size):
                yield network.logits_and_features(self.parameters[run], part, statistics)

    def logits(self, images: torch.Tensor) -> torch.Tensor:
        """Logits ``[runs, n, classes]`` of images as for :meth:`logits_and_features`."""
        return self.logits_and_features(images)[0]

    def accuracy(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Part of the images that is classified correctly, ``[runs]``.

        Args:
            images: ``[n, C, H, W]``, or ``[runs, n, C, H, W]``.
            labels: ``[n]``, or ``[runs, n]``.
        """
        return (self.logits(images).argmax(dim=-1) == labels).float().mean(dim=-1)
