"""The local computation of clients: updates now, per-sample gradients and input sensitivities when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from leakbench.errors import Infeasible
from leakbench.federated.features import FeatureJacobian, FeatureSensitivity
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.federated.sensitivity import InputJacobian, Probes, random_directions
from leakbench.lazy import torch
from leakbench.models.base import Network, Statistics
from leakbench.randomness import Streams

MEMORY_BUDGET = 512 * 2**20
"""Working memory of one vectorised call, in bytes. Only speed depends on it."""


class ClientSteps:
    """One round of ``n`` clients, computed together: row ``i`` of every tensor is client ``i``.

    A round is one gradient step by default. After several local steps the update over the learning rate takes the
    gradient's place.

    Two clients with three images each:

    >>> from leakbench.models.base import build_network
    >>> from leakbench.models.convnets import SimpleConvNet
    >>> network = build_network(SimpleConvNet(width=2), (1, 8, 8), 10, seed=0)
    >>> images, labels = torch.zeros(2, 3, 1, 8, 8), torch.tensor([[0, 1, 2], [3, 4, 5]])
    >>> streams = Streams([("example", client) for client in range(2)])
    >>> steps = ClientSteps(network, network.parameters, images, labels, streams)
    >>> steps.gradient.shape, steps.per_sample_gradient.shape
    (torch.Size([2, 160]), torch.Size([2, 3, 160]))

    Args:
        network: the model's architecture.
        parameters: ``[d]`` when all clients hold the same model, else ``[n, d]``.
        images: network inputs, ``[n, B, C, H, W]``.
        labels: int64 ``[n, B]``, or probabilities ``[n, B, classes]``.
        streams: one random stream per client.
        local: the clients' local training.
    """

    def __init__(
        self,
        network: Network,
        parameters: torch.Tensor,
        images: torch.Tensor,
        labels: torch.Tensor,
        streams: Streams,
        local: LocalTraining = ONE_STEP,
    ) -> None:
        self.network = network
        self.parameters = parameters
        self.images = images
        self.labels = labels
        self.streams = streams
        self.local = local
        self._shared = 0 if parameters.dim() == 2 else None
        self._chunk = network.rows_within(MEMORY_BUDGET // local.steps, images.shape[1:])
        self._sensitivities: dict[tuple[int, Probes, int], torch.Tensor] = {}
        self._features: dict[str, FeatureSensitivity] = {}

    def __len__(self) -> int:
        return self.images.shape[0]

    @cached_property
    def _gradient_and_loss(self) -> tuple[torch.Tensor, torch.Tensor]:
        def update_and_loss(
            parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            update = self.local.update(self.network, parameters, images, labels)
            return update, self.network.loss(parameters, images, labels)

        one_pass = self.local.is_gradient(self.images.shape[1])
        compute = torch.func.grad_and_value(self.network.loss) if one_pass else update_and_loss
        batched = torch.func.vmap(compute, in_dims=(self._shared, 0, 0), chunk_size=self._chunk)
        result: tuple[torch.Tensor, torch.Tensor] = batched(self.parameters, self.images, self.labels)
        return result

    @property
    def gradient(self) -> torch.Tensor:
        """Gradient of the mean batch loss, or the update of :class:`LocalTraining`, ``[n, d]``."""
        return self._gradient_and_loss[0]

    @property
    def estimate(self) -> torch.Tensor | None:
        """The gradient at an attacker's estimate so far, ``[n, d]``: where a likelihood takes sizes of noise from.

        None of clients, and before there is an estimate.
        """
        return None

    @property
    def loss(self) -> torch.Tensor:
        """Mean batch loss before the step, ``[n]``."""
        return self._gradient_and_loss[1]

    @cached_property
    def per_sample_gradient(self) -> torch.Tensor:
        """Gradient of each sample's loss, ``[n, B, d]``.

        In the mode ``train`` of BatchNorm each sample is a batch of its own.

        Raises:
            Infeasible: the update is not the mean of such gradients.
        """
        return self._sample_gradients(slice(0, len(self)))

    def sample_gradients(self) -> Iterator[tuple[slice, torch.Tensor]]:
        """Slices of clients, with their ``[k, B, d]`` of :attr:`per_sample_gradient`.

        They are computed once if all fit in memory, else anew in every iteration.

        Raises:
            Infeasible: as :attr:`per_sample_gradient`.
        """
        if self._samples_fit:
            yield slice(0, len(self)), self.per_sample_gradient
            return
        size = max(1, MEMORY_BUDGET // self._samples_held)
        for start in range(0, len(self), size):
            part = slice(start, min(start + size, len(self)))
            yield part, self._sample_gradients(part)

    @property
    def _samples_held(self) -> int:
        """Bytes of one client's gradients, and of two temporaries of their size."""
        return 3 * 4 * self.images.shape[1] * self.network.dimension

    @property
    def _samples_fit(self) -> bool:
        return len(self) * self._samples_held <= MEMORY_BUDGET

    def _sample_gradients(self, part: slice) -> torch.Tensor:
        if not self.local.is_gradient(self.images.shape[1]):
            raise Infeasible(
                f"per-sample gradients exist for one local step on all {self.images.shape[1]} images; "
                f"these clients take {self.local.steps} step(s) on {self.local.batch_size or 'all'} image(s) each"
            )

        def one(parameters: torch.Tensor, image: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return self.network.gradient(parameters, image[None], label[None])

        samples = torch.func.vmap(one, in_dims=(None, 0, 0))
        batched = torch.func.vmap(samples, in_dims=(self._shared, 0, 0), chunk_size=self._chunk)
        parameters = self.parameters if self._shared is None else self.parameters[part]
        result: torch.Tensor = batched(parameters, self.images[part], self.labels[part])
        return result

    @cached_property
    def batch_statistics(self) -> Statistics:
        """:meth:`Network.batch_statistics` of each client's images, each ``[n, channels]``."""
        batched = torch.func.vmap(self.network.batch_statistics, in_dims=(self._shared, 0), chunk_size=self._chunk)
        result: Statistics = batched(self.parameters, self.images)
        return result

    def sensitivity(self, probes: int = 10, kind: Probes = "gaussian", draw: int = 0) -> torch.Tensor:
        """Unbiased estimate of ``||grad_x g_i||^2``, ``[n, d]`` (Chen et al. 2024, Algorithm 1, lines 2-3).

        Each probe ``v`` is a direction in the space of the whole input batch, and contributes the squared directional
        derivative ``<grad_x g_i, v>^2``. The probes come from the clients' streams, so every defense of one step sees
        the same estimate; it is computed once.

        Args:
            probes: number of directions, k. The relative standard deviation is ``sqrt(2 / k)`` for Gaussian probes.
            kind: ``gaussian`` (the paper) or ``rademacher`` (never a larger variance).
            draw: index of the set of probes; defenses take 0. Take another one to judge a choice based on an estimate,
                such as the Fisher information left after pruning: the coordinates kept are those whose estimate
                happened to be small.
        """
        key = (probes, kind, draw)
        if key not in self._sensitivities:
            directions = random_directions(self.streams, probes, self.images.shape[1:], kind, draw)
            self._sensitivities[key] = self._input_jacobian.mean_square(directions.to(self.images.device))
        return self._sensitivities[key]

    @cached_property
    def exact_sensitivity(self) -> torch.Tensor:
        """``||grad_x g_i||^2`` itself, ``[n, d]``.

        Takes one direction per pixel of an image where samples do not interact, else per pixel of the batch: thousands
        of gradients.
        """
        return self._input_jacobian.squared_norms()

    def feature_sensitivity(self, layer: str) -> FeatureSensitivity:
        """The features that the fully connected layer ``layer`` reads, and their sensitivity to the images.

        Before the first local step; computed once.

        Raises:
            ConfigError: as :meth:`Network.features`.
        """
        if layer not in self._features:
            jacobian = FeatureJacobian(self.network, self.parameters, self.images)
            self._features[layer] = jacobian.sensitivity(layer)
        return self._features[layer]

    @property
    def _input_jacobian(self) -> InputJacobian:
        return InputJacobian(self.network, self.parameters, self.images, self.labels, self.local)

    def rows(self, start: int, stop: int) -> ClientSteps:
        """The clients ``start`` to ``stop``, sharing what has been computed for all of them."""
        part = slice(start, stop)
        parameters = self.parameters if self._shared is None else self.parameters[part]
        selected = _SelectedSteps(
            self.network,
            parameters,
            self.images[part],
            self.labels[part],
            Streams(self.streams.keys[part]),
            self.local,
        )
        selected.parent, selected.part = self, part
        return selected


class _SelectedSteps(ClientSteps):
    """Rows of a larger computation, which runs for all rows at the first use."""

    parent: ClientSteps
    part: slice

    @cached_property
    def _gradient_and_loss(self) -> tuple[torch.Tensor, torch.Tensor]:
        gradient, loss = self.parent._gradient_and_loss
        return gradient[self.part], loss[self.part]

    @cached_property
    def per_sample_gradient(self) -> torch.Tensor:
        return self.parent.per_sample_gradient[self.part]

    @property
    def _samples_fit(self) -> bool:
        return self.parent._samples_fit

    @cached_property
    def batch_statistics(self) -> Statistics:
        return {name: values[self.part] for name, values in self.parent.batch_statistics.items()}

    def sensitivity(self, probes: int = 10, kind: Probes = "gaussian", draw: int = 0) -> torch.Tensor:
        return self.parent.sensitivity(probes, kind, draw)[self.part]

    @cached_property
    def exact_sensitivity(self) -> torch.Tensor:
        return self.parent.exact_sensitivity[self.part]

    def feature_sensitivity(self, layer: str) -> FeatureSensitivity:
        every = self.parent.feature_sensitivity(layer)
        return FeatureSensitivity(every.features[self.part], every.norms[self.part])


class TrainedSteps(ClientSteps):
    """A round whose local training is done elsewhere.

    For training that :class:`LocalTraining` does not describe, such as SGD with momentum on batches in random order.
    ``images`` and ``labels`` are the first batch of the round, since defenses may look at samples.

    Args:
        network: the model's architecture.
        parameters: before local training, ``[n, d]``.
        images: the first batch, ``[n, B, C, H, W]``.
        labels: ``[n, B]``, int64.
        streams: one random stream per client.
        local: the number of local steps, their learning rate and batch size.
        trained: the parameters after local training, ``[n, d]``.
        loss: mean over the local steps of the batch's loss before the step, ``[n]``.
    """

    def __init__(
        self,
        network: Network,
        parameters: torch.Tensor,
        images: torch.Tensor,
        labels: torch.Tensor,
        streams: Streams,
        local: LocalTraining,
        *,
        trained: torch.Tensor,
        loss: torch.Tensor,
    ) -> None:
        super().__init__(network, parameters, images, labels, streams, local)
        self._trained, self._loss = trained, loss

    @cached_property
    def _gradient_and_loss(self) -> tuple[torch.Tensor, torch.Tensor]:
        return (self.parameters - self._trained) / self.local.rate, self._loss

    def _sample_gradients(self, part: slice) -> torch.Tensor:
        raise Infeasible("an update of local training is not the mean of per-sample gradients")

    @property
    def _input_jacobian(self) -> InputJacobian:
        raise Infeasible("the input sensitivity of local training on random batches is not computed")

    def rows(self, start: int, stop: int) -> TrainedSteps:
        part = slice(start, stop)
        return TrainedSteps(
            self.network,
            self.parameters[part],
            self.images[part],
            self.labels[part],
            Streams(self.streams.keys[part]),
            self.local,
            trained=self._trained[part],
            loss=self._loss[part],
        )
