"""Sums of record gradients, layer by layer, for clients that share a model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.models.layered import LayeredNetwork
from leakbench.models.record_gradients import RecordGradients
from leakbench.randomness import Streams

MEMORY_BUDGET = 64 * 2**20
"""Working memory of the clients that are computed together, in bytes; on a GPU, :data:`GPU_BUDGET`."""
GPU_BUDGET = 8 * 2**30


class LayeredSteps(ClientSteps):
    """One gradient step of clients that hold their servers' models, equally many per server.

    The records of a server's clients pass through its model together.
    Numbers differ from those of :class:`ClientSteps` in their last digits.

    Args:
        network: the model's architecture.
        layered: the same, taken apart.
        servers: one model per server, ``[s, d]``; consecutive clients are those of one server.
        images: network inputs, ``[n, B, C, H, W]``.
        labels: int64 ``[n, B]``, or probabilities ``[n, B, classes]``.
        streams: one random stream per client.
    """

    def __init__(
        self,
        network: Network,
        layered: LayeredNetwork,
        servers: torch.Tensor,
        images: torch.Tensor,
        labels: torch.Tensor,
        streams: Streams,
    ) -> None:
        self._clients = len(images) // len(servers)
        super().__init__(network, servers.repeat_interleave(self._clients, dim=0), images, labels, streams)
        self._layered, self._servers = layered, servers
        self._losses: dict[int, torch.Tensor] = {}

    def record_gradients(self) -> Iterator[tuple[slice, RecordGradients]]:
        """Slices of clients, each of one server, with the gradients of their records."""
        each = self._layered.bytes_of(self.images.shape[2:]) * self.images.shape[1]
        size = max(1, (GPU_BUDGET if self.images.is_cuda else MEMORY_BUDGET) // each)
        for server, parameters in enumerate(self._servers):
            first = server * self._clients
            for start in range(first, first + self._clients, size):
                part = slice(start, min(start + size, first + self._clients))
                gradients = self._layered.record_gradients(parameters, self.images[part], self.labels[part])
                self._losses[start] = gradients.losses.mean(dim=1)
                yield part, gradients

    @cached_property
    def gradient(self) -> torch.Tensor:
        return torch.cat([gradients.mean() for _, gradients in self.record_gradients()])

    @property
    def loss(self) -> torch.Tensor:
        if sum(map(len, self._losses.values())) < len(self):
            _ = self.gradient
        return torch.cat([self._losses[start] for start in sorted(self._losses)])
