"""Input sensitivities ``||grad_x g_i||^2`` of many clients: estimated along random directions, or exact.

Both sum squares of directional derivatives, each by forward-mode differentiation over the gradient. Directions that are
differentiated side by side share the gradient that they perturb: in convolutions and linear layers k of them take
``(5 + 4 k) / 3`` gradients' operations, and 3 k one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.randomness import Streams

Probes = Literal["gaussian", "rademacher"]

MEMORY_BUDGET = 2**30
"""Working memory of the directions that are differentiated side by side, in bytes. Only speed depends on it."""

CPU_BUDGET = 64 * 2**20
"""The same for batches side by side on a CPU, where vectorising saves no more than dispatching: the grouped
convolutions that result for weight gradients are no faster than a loop."""


def random_directions(
    streams: Streams, probes: int, shape: tuple[int, ...], kind: Probes = "gaussian", draw: int = 0
) -> torch.Tensor:
    """Probes of independent entries with mean 0 and variance 1, ``[n, probes, *shape]``.

    Args:
        streams: one random stream per client.
        probes: number of directions, k.
        shape: of a client's input batch, ``(B, C, H, W)``.
        kind: standard normal entries, or signs.
        draw: index of one of many independent sets of probes.
    """
    name = ("sensitivity", draw) if draw else ("sensitivity",)
    directions = streams.child(*name).normal(probes, *shape)
    return torch.where(directions < 0, -1.0, 1.0) if kind == "rademacher" else directions


@dataclass(frozen=True)
class InputJacobian:
    """``J = grad_x g``, ``[d, m]``, of each of ``n`` clients, with ``m = B C H W``: the norms of its rows.

    Attributes:
        network: the model's architecture.
        parameters: ``[d]`` when all clients hold the same model, else ``[n, d]``.
        images: network inputs, ``[n, B, C, H, W]``.
        labels: ``[n, B]``, int64.
        local: the client's local training; ``g`` is its update.
    """

    network: Network
    parameters: torch.Tensor
    images: torch.Tensor
    labels: torch.Tensor
    local: LocalTraining = ONE_STEP

    def mean_square(self, directions: torch.Tensor) -> torch.Tensor:
        """Mean of ``(J v)_i^2`` over directions ``v``, ``[n, d]``: unbiased for ``||J_i||^2`` where they are random.

        Args:
            directions: each client's own, ``[n, k, B, C, H, W]``.
        """
        probes, shape = directions.shape[1], self.images.shape[1:]
        parts = directions.split(self._side_by_side(probes, shape), dim=1)
        return self._sum_of_squares(parts, clients=True) / probes

    def squared_norms(self) -> torch.Tensor:
        """``||J_i||^2`` exactly, ``[n, d]``, along the basis of the input space.

        Where the update is a mean over samples that do not interact, ``J`` consists of the samples' Jacobians over
        ``B``; their norms add, and C H W directions in one image do instead of B C H W in the batch.
        """
        batch, *image = self.images.shape[1:]
        if self.samples_interact:
            return self._sum_of_squares(self._basis((batch, *image)))
        return self._sum_of_squares(self._basis((1, *image)), samples=True) / batch**2

    @property
    def samples_interact(self) -> bool:
        """Whether a sample changes what the others contribute: through BatchNorm, or through later local steps."""
        return self.network.couples_samples or not self.local.is_gradient(self.images.shape[1])

    def _basis(self, shape: tuple[int, ...]) -> Iterator[torch.Tensor]:
        """Unit vectors of inputs of this shape, ``[some, *shape]`` at a time."""
        dimension = math.prod(shape)
        for some in torch.arange(dimension, device=self.images.device).split(self._side_by_side(dimension, shape)):
            unit = torch.zeros(len(some), dimension, device=self.images.device, dtype=self.images.dtype)
            yield unit.scatter_(1, some[:, None], 1.0).view(-1, *shape)

    def _rows(self, budget: int, shape: tuple[int, ...]) -> int:
        return self.network.rows_within(budget // self.local.steps, shape)

    def _side_by_side(self, count: int, shape: tuple[int, ...]) -> int:
        """Number of ``count`` directions to take at a time, in parts of nearly equal size."""
        parts = math.ceil(count / self._rows(MEMORY_BUDGET, shape))
        return math.ceil(count / parts)

    def _sum_of_squares(
        self, parts: Iterable[torch.Tensor], *, clients: bool = False, samples: bool = False
    ) -> torch.Tensor:
        """Sum of ``(J v)_i^2`` over the directions of all parts, ``[n, d]``.

        Args:
            parts: directions ``[k, B, C, H, W]`` of all clients, or each client's own, ``[n, k, B, C, H, W]``.
            clients: whether each has its own.
            samples: whether every sample is a batch of its own, in ``[k, 1, C, H, W]``; the sum is over samples too.
        """

        def of_batch(
            parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, directions: torch.Tensor
        ) -> torch.Tensor:
            def update(inputs: torch.Tensor) -> torch.Tensor:
                return self.local.update(self.network, parameters, inputs, labels)

            def along(direction: torch.Tensor) -> torch.Tensor:
                derivative: torch.Tensor = torch.func.jvp(update, (images,), (direction,))[1]
                return derivative

            squares: torch.Tensor = torch.func.vmap(along)(directions).square()
            return squares.sum(dim=0)

        total = torch.zeros(len(self.images), self.network.dimension, device=self.images.device)
        shared = 0 if self.parameters.dim() == 2 else None
        for directions in parts:
            shape = directions.shape[-self.images.dim() + 1 :]
            budget = CPU_BUDGET if self.images.device.type == "cpu" else MEMORY_BUDGET
            together = max(1, self._rows(budget, shape) // directions.shape[1 if clients else 0])

            def of_samples(
                parameters: torch.Tensor,
                images: torch.Tensor,
                labels: torch.Tensor,
                directions: torch.Tensor,
                together: int = together,
            ) -> torch.Tensor:
                one_each = torch.func.vmap(of_batch, in_dims=(None, 0, 0, None), chunk_size=together)
                squares: torch.Tensor = one_each(parameters, images[:, None], labels[:, None], directions)
                return squares.sum(dim=0)

            batches = max(1, together // self.images.shape[1]) if samples else together
            of_clients = torch.func.vmap(
                of_samples if samples else of_batch,
                in_dims=(shared, 0, 0, 0 if clients else None),
                chunk_size=batches,
            )
            # jvp cannot lay tangents out like an expanded tensor.
            total += of_clients(self.parameters, self.images.contiguous(), self.labels, directions)
        return total
