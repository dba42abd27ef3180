"""Gradients of several training runs: of batches, of batches by matrix products, and of single samples."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple, Protocol

from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.models.base import Network, Statistics
from leakbench.models.bert import embedding_width
from leakbench.models.layered import LayeredNetwork
from leakbench.models.record_gradients import Formed, RecordGradients
from leakbench.models.stacked import StackedNetworks
from leakbench.randomness import Streams

MEMORY_BUDGET = 512 * 2**20
"""Working memory of the gradients that are computed together, in bytes. Only speed depends on it."""

STACKED_TOGETHER = 32
"""Runs whose gradients one pass of :class:`StackedNetworks` computes. Only speed depends on it."""

GPU_PART = 0.3
"""Fraction of a GPU's free memory that they may take."""


class Batch(NamedTuple):
    """The batches of several runs in a step.

    Attributes:
        images: ``[runs, B, C, H, W]``, or token ids ``[runs, B, L]``.
        labels: ``[runs, B]``.
        streams: of the training, one per run.
        step: its number.
    """

    images: torch.Tensor
    labels: torch.Tensor
    streams: Streams
    step: int

    def step_streams(self, runs: slice = slice(None)) -> Streams:
        """Random streams of this step, one per run of ``runs``."""
        return Streams(self.streams.keys[runs]).child("step", self.step)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of an image ``(C, H, W)``, or of a sentence ``(L,)``."""
        return tuple(self.images.shape[2:])


class Gradient(NamedTuple):
    """The gradients of some of the runs.

    Attributes:
        values: ``[k, d]``.
        loss: mean loss of the batch, ``[k]``.
        statistics: BatchNorm's running statistics after the batch, each ``[k, channels]``; empty where they stay.
    """

    values: torch.Tensor
    loss: torch.Tensor
    statistics: Statistics


class Gradients(ABC):
    """A way to compute gradients.

    Args:
        together: runs in one vectorised call. By default one for images on a CPU, where the grouped convolutions of
            several are slower than a loop (``benchmarks/training_runs.py``); for sentences or on a GPU, as many as fit.
            It affects the last digits of numbers alone.
    """

    def __init__(self, together: int | None = None) -> None:
        self._together = together

    def together(self, network: Network, batch_size: int, sample: tuple[int, ...], device: torch.device) -> int:
        """Number of runs whose gradients one vectorised call computes.

        Args:
            network: the architecture, in mode ``train``.
            batch_size: samples of a step.
            sample: shape of an image ``(C, H, W)``, or of the token ids of a sentence ``(L,)``.
            device: of the computation.

        Raises:
                Infeasible: the gradients do not exist for this architecture.
        """
        return self._together or runs_within(network, batch_size, sample, device)

    @abstractmethod
    def compute(
        self, network: Network, parameters: torch.Tensor, statistics: Statistics, batch: Batch, runs: slice
    ) -> Gradient:
        """The gradients of some runs.

        Args:
            network: the architecture, in mode ``train``.
            parameters: of these runs, ``[k, d]``.
            statistics: BatchNorm's running statistics of these runs, each ``[k, channels]``.
            batch: of all runs.
            runs: which runs these are.
        """


class BatchGradients(Gradients):
    """Gradients of the mean loss of each run's batch; BatchNorm's running statistics follow the batches."""

    def compute(
        self, network: Network, parameters: torch.Tensor, statistics: Statistics, batch: Batch, runs: slice
    ) -> Gradient:
        images, labels = batch.images[runs], batch.labels[runs]
        if not network.plain_loss:
            raise Infeasible("training runs minimise the cross-entropy alone, and this model's loss has another term")

        def loss(
            parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor
        ) -> tuple[torch.Tensor, Statistics]:
            logits, seen = network.logits_and_statistics(parameters, images, unbiased=True)
            return torch.nn.functional.cross_entropy(logits, labels), seen

        if len(parameters) > 1:
            gradient, (value, seen) = torch.func.vmap(torch.func.grad_and_value(loss, has_aux=True))(
                parameters, images, labels
            )
            return Gradient(gradient, value, network.moving_average(statistics, seen))
        with torch.enable_grad():
            leaf = parameters[0].detach().requires_grad_()
            value, seen = loss(leaf, images[0], labels[0])
            (gradient,) = torch.autograd.grad(value, leaf)
        of_run = {name: values.detach()[None] for name, values in seen.items()}
        return Gradient(gradient[None], value.detach()[None], network.moving_average(statistics, of_run))


class StackedGradients(Gradients):
    """The same by matrix products, for networks without BatchNorm; they differ in their last digits.

    Args:
        networks: the architecture, taken apart.
    """

    def __init__(self, networks: StackedNetworks) -> None:
        super().__init__(STACKED_TOGETHER)
        self._networks = networks

    def compute(
        self, network: Network, parameters: torch.Tensor, statistics: Statistics, batch: Batch, runs: slice
    ) -> Gradient:
        gradient, loss = self._networks.gradient_and_loss(parameters, batch.images[runs], batch.labels[runs])
        return Gradient(gradient, loss, {})


def batch_gradients(network: Network, device: torch.device) -> Gradients:
    """The faster way to the gradients of batches: matrix products on a CPU, where the network can be taken apart.

    A step of LeNet-5 with 64 images of 32x32 takes three quarters of the time in grey, and less of 16x16.
    """
    stacked = StackedNetworks.of(network) if device.type == "cpu" else None
    return StackedGradients(stacked) if stacked else BatchGradients()


class SampleMechanism(Protocol):
    """A mechanism that scales the gradients of single samples, by their norms, and releases their sum, as DP-SGD."""

    def factors(self, norms: torch.Tensor, runs: slice) -> torch.Tensor:
        """Factors of the samples' gradients.

        Args:
            norms: of the gradients of some of the samples of some of the runs, ``[k, b]``.
            runs: which runs these are, for settings that differ among them.

        Returns:
            ``[k, b]``.
        """
        ...

    def release(self, total: torch.Tensor, batch_size: int, streams: Streams, runs: slice) -> torch.Tensor:
        """The released gradients, ``[k, d]``: the mean of the scaled gradients, with noise.

        Args:
            total: the sum of all scaled gradients, ``[k, d]``.
            batch_size: samples of this step.
            streams: one per run of ``runs``, of the step.
            runs: which runs these are.
        """
        ...


class SampleGradients(Gradients):
    """Gradients released by a mechanism on single samples, in chunks that fit in memory.

    On a CPU, sequences of layers give norms and weighted sums without most of the gradients themselves.

    Args:
        mechanism: scales and releases them.
        together: runs in one vectorised call, see :class:`Gradients`.
    """

    def __init__(self, mechanism: SampleMechanism, together: int | None = None) -> None:
        super().__init__(together)
        self._mechanism = mechanism
        self._records: _Records | None = None

    def together(self, network: Network, batch_size: int, sample: tuple[int, ...], device: torch.device) -> int:
        if network.couples_samples:
            raise Infeasible("per-sample gradients do not exist where BatchNorm normalises with the batch's statistics")
        records = self._of(network, device)
        if records.stacked is None:
            return super().together(network, batch_size, sample, device)
        return self._together or max(1, _budget(device) // (records.bytes_of(sample, device) * batch_size))

    def _of(self, network: Network, device: torch.device) -> _Records:
        if self._records is None or self._records.network is not network:
            self._records = _Records(network, device)
        return self._records

    def compute(
        self, network: Network, parameters: torch.Tensor, statistics: Statistics, batch: Batch, runs: slice
    ) -> Gradient:
        records, device = self._of(network, parameters.device), parameters.device
        images, labels = batch.images[runs], batch.labels[runs]
        k, size = len(parameters), images.shape[1]
        part = max(1, _budget(device) // records.bytes_of(batch.sample_shape, device) // k)
        total, loss = torch.zeros_like(parameters), torch.zeros(k, device=device)
        for some, theirs in zip(images.split(part, dim=1), labels.split(part, dim=1), strict=True):
            gradients = records.of(parameters, some, theirs)
            factors = self._mechanism.factors(gradients.norms(), runs)
            total += gradients.weighted(factors[:, None])[:, 0]
            loss += gradients.losses.sum(dim=1)
        released = self._mechanism.release(total, size, batch.step_streams(runs), runs)
        return Gradient(released, loss / size, {})


class _Records:
    """The fastest way to the gradients of single samples of a network: stacked, by layers, or by vmap.

    Attributes:
        network: the architecture.
        stacked: the same taken apart, where all runs go through together.
    """

    def __init__(self, network: Network, device: torch.device) -> None:
        self.network = network
        self.stacked = StackedNetworks.of(network) if device.type == "cpu" else None
        self._layered = LayeredNetwork.of(network) if device.type == "cpu" else None

    def bytes_of(self, sample: tuple[int, ...], device: torch.device) -> int:
        """Working memory of a sample, in bytes, roughly."""
        if self._layered is not None:
            return self._layered.bytes_of(sample)
        return 4 * (10 * self.network.dimension + 200 * math.prod(_differentiated(self.network, sample)))

    def of(self, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> RecordGradients:
        """The gradients of ``b`` samples of each of ``k`` runs.

        Args:
            parameters: ``[k, d]``.
            images: ``[k, b, ...]``.
            labels: ``[k, b]``.
        """
        if self.stacked is not None:
            return self.stacked.record_gradients(parameters, images, labels)
        if self._layered is not None and len(parameters) == 1:
            return self._layered.record_gradients(parameters[0], images, labels)

        def one(
            parameters: torch.Tensor, image: torch.Tensor, label: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            both: tuple[torch.Tensor, torch.Tensor] = torch.func.grad_and_value(self.network.loss)(
                parameters, image[None], label[None]
            )
            return both

        samples = torch.func.vmap(one, in_dims=(None, 0, 0))
        if len(parameters) > 1:
            gradients, losses = torch.func.vmap(samples)(parameters, images, labels)
        else:
            gradients, losses = (result[None] for result in samples(parameters[0], images[0], labels[0]))
        return RecordGradients([Formed(gradients)], losses)


def runs_within(network: Network, batch_size: int, sample: tuple[int, ...], device: torch.device) -> int:
    """Number of runs whose gradients fit into one vectorised call.

    Args:
        network: the architecture.
        batch_size: samples of a step.
        sample: shape of an image ``(C, H, W)``, or of the token ids of a sentence ``(L,)``.
        device: of the computation.
    """
    if device.type == "cpu" and len(sample) > 1:
        return 1
    return network.rows_within(_budget(device), (batch_size, *_differentiated(network, sample)))


def _differentiated(network: Network, sample: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a sample where the network begins to compute: token ids are embedded first."""
    return sample if len(sample) > 1 else (*sample, embedding_width(network))


def _budget(device: torch.device) -> int:
    if device.type != "cuda":
        return MEMORY_BUDGET
    return max(MEMORY_BUDGET, int(GPU_PART * torch.cuda.mem_get_info(device)[0]))
