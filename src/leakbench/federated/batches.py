"""The samples that a client takes in every step."""

from __future__ import annotations

from typing import Literal, TypeAlias

from leakbench.lazy import torch
from leakbench.randomness import Streams

Sampling: TypeAlias = Literal["shuffled", "independent", "all"]
"""``shuffled``: consecutive batches of data shuffled in each epoch; ``independent``: at each step a batch drawn without
replacement; ``all``: all samples at each step."""

Chosen: TypeAlias = "tuple[torch.Tensor | slice, torch.Tensor | slice]"
"""Rows and columns of samples among those of all clients, ``[n, N, ...]``."""

ALL: Chosen = (slice(None), slice(None))


def without_replacement(streams: Streams, held: int, size: int, device: torch.device) -> torch.Tensor:
    """Some of the samples that each client holds, in any order, ``[n, size]``; each client's from its stream alone.

    Args:
        streams: one per client, not used before.
        held: samples that each client holds, ``size`` or more.
        size: samples to choose.
        device: of the samples.
    """
    return streams.uniform(held).argsort(dim=1)[:, :size].to(device)


class ClientBatches:
    """The batches of ``n`` clients; each client's depend on its random stream alone.

    Args:
        streams: one per client.
        held: samples that each client holds, N.
        size: samples of a batch, B; divides N where they are shuffled, and is N where all are taken.
        sampling: how to draw batches.
        device: of the samples.
    """

    def __init__(self, streams: Streams, held: int, size: int, sampling: Sampling, device: torch.device) -> None:
        self._streams, self._held, self._size, self._sampling = streams, held, size, sampling
        self._device = device
        self._epoch, self._order = -1, torch.empty(0)

    def at(self, step: int) -> Chosen:
        """The samples of a step, ``[n, B]`` of ``[n, N]``, for steps in any order."""
        if self._sampling == "all":
            return ALL
        rows = torch.arange(len(self._streams), device=self._device)[:, None]
        if self._sampling == "independent":
            return rows, without_replacement(self._streams.child("batch", step), self._held, self._size, self._device)
        epoch, batch = divmod(step, self._held // self._size)
        if epoch != self._epoch:
            shuffle = self._streams.child("order", epoch).uniform(self._held, device=self._device)
            self._epoch, self._order = epoch, shuffle.argsort(dim=1)
        return rows, self._order[:, batch * self._size : (batch + 1) * self._size]
