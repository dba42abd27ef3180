"""Whole training runs, side by side: plain SGD, on data or with gradients that a defense changes.

They are the victims of attacks on a released model, the shadow models of such attacks, and the local training of
clients in federated averaging. One client that trains alone is enough to measure the leakage of its steps (Tan et al.
2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from leakbench.errors import ConfigError
from leakbench.federated.gradients import Batch, BatchGradients, Gradients
from leakbench.federated.updates import Hook, Part, Runs, finite_rows, run_updates
from leakbench.lazy import torch
from leakbench.models.base import Network, Statistics
from leakbench.models.trained import TrainedModels
from leakbench.numerics.adam import Adam
from leakbench.numerics.sgd import Momentum
from leakbench.numerics.stateful import named, part_of
from leakbench.randomness import Streams


class Training(BaseModel):
    """SGD with momentum, Adam or AdamW, for a number of steps that need not end with an epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    steps: int = Field(ge=0, description="optimiser steps")
    batch_size: int = Field(64, ge=1, description="images per step; the last step of an epoch takes what is left")
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    rate: float = Field(0.01, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(
        5e-4, ge=0, description="times the parameters, added to the gradient, or with adamw to the step over the rate"
    )


Transform: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Streams], torch.Tensor]"
"""``transform(images [runs, B, C, H, W], labels [runs, B], rows [runs, B], streams) -> images``, called at every step,
such as noise that is drawn at every access. ``rows``: the images' indices in the run's data; ``streams``: one per run,
of the step."""


@dataclass(frozen=True)
class Start:
    """The models that runs start with.

    Attributes:
        network: the architecture, and the BatchNorm statistics that every run starts with.
        parameters: ``[d]``, or each run's own, ``[runs, d]``.
        statistics: each run's own BatchNorm statistics, each ``[runs, channels]``; by default the network's.
        velocity: the momentum of SGD, ``[runs, d]``; zero by default.
    """

    network: Network
    parameters: torch.Tensor
    statistics: Statistics | None = None
    velocity: torch.Tensor | None = None

    def runs(self, count: int, steps: int) -> Runs:
        """Copies of the models for ``count`` runs."""
        shared = self.statistics or self.network.running_statistics
        statistics = {name: values.expand(count, -1).clone() for name, values in shared.items()}
        return Runs(self.parameters.expand(count, -1).clone(), steps, statistics)


@dataclass(frozen=True)
class TrainingSet:
    """The samples that runs train on.

    Attributes:
        images: network inputs, ``[N, C, H, W]``, or each run's own, ``[runs, N, C, H, W]``; or token ids, integers
            ``[N, L]`` or ``[runs, N, L]``.
        labels: ``[N]`` or ``[runs, N]``, int64.
        rows: indices of the images that each run trains on, ``[runs, n]``; all by default.
    """

    images: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor | None = None

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of an image ``(C, H, W)``, or of the token ids of a sentence ``(L,)``."""
        return tuple(self.images.shape[-3 if self.images.is_floating_point() else -1 :])

    @property
    def leading(self) -> tuple[int, ...]:
        """Shape of the images without that of a sample."""
        return tuple(self.images.shape[: self.images.dim() - len(self.sample_shape)])

    @property
    def count(self) -> int:
        """Samples that a run trains on."""
        return self.leading[-1] if self.rows is None else self.rows.shape[1]

    def take(self, chosen: torch.Tensor, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Images, labels, and their indices ``[runs, B]`` among all.

        Args:
            chosen: places among the samples that a run trains on, ``[runs, B]``, on the CPU.
            device: of the images.
        """
        rows = (chosen if self.rows is None else self.rows.cpu().gather(1, chosen)).to(device)
        axes = len(self.sample_shape)
        return _take(self.images, rows, shared_axes=axes + 1), _take(self.labels, rows, shared_axes=1), rows


@dataclass(frozen=True)
class TrainingRuns:
    """The outcome of training.

    Attributes:
        models: the trained models. A run that diverged keeps the last parameters that were finite.
        curves: mean loss of each batch before its step, ``[runs, steps]``; NaN from the step at which a run diverged.
        diverged_at: that step, ``[runs]``, -1 where it never came.
        first_batch: images ``[runs, B, C, H, W]`` or token ids ``[runs, B, L]``, and labels ``[runs, B]``, of the first
            step; None without steps.
        velocity: the momentum of SGD after training, ``[runs, d]``; None for other optimisers.
        snapshots: the models after so many steps, for the numbers of steps that were asked for.
    """

    models: TrainedModels
    curves: torch.Tensor
    diverged_at: torch.Tensor
    first_batch: tuple[torch.Tensor, torch.Tensor] | None = None
    velocity: torch.Tensor | None = None
    snapshots: Mapping[int, TrainedModels] = field(default_factory=dict)


def train_runs(
    start: Start,
    data: TrainingSet,
    streams: Streams,
    training: Training,
    *,
    transform: Transform | None = None,
    gradients: Gradients | None = None,
    snapshots: Sequence[int] = (),
    quiet: bool = False,
) -> TrainingRuns:
    """Train every run from its own starting point on its own images.

    Each epoch takes a run's images in a new order, which its stream alone decides: runs with equal streams see equal
    orders, whatever their data. BatchNorm normalises with the batch and keeps running statistics, as torch's training
    mode does; dropout is off.

    Args:
        start: the models to start with.
        data: the samples to train on.
        streams: one per run.
        training: the optimiser and its parameters.
        transform: changes the images of every batch.
        gradients: computes gradients; by default those of each batch's mean loss.
        snapshots: numbers of steps after which the models are kept, too: those of a training of so many steps.
        quiet: show no progress, for one of many rounds.

    Raises:
        ConfigError: shapes do not fit, or there is a velocity for an optimiser that has none, or a snapshot lies
            beyond the training.
        Infeasible: per-sample gradients of a model whose BatchNorm layers mix the samples.
    """
    _check(start, data, len(streams), training)
    if not all(0 < steps <= training.steps for steps in snapshots):
        raise ConfigError(f"snapshots: {list(snapshots)} must lie within the training's {training.steps} steps")
    trainer = _Trainer(start, data, streams, training, transform, gradients or BatchGradients())
    parts: dict[str, Part] = {"runs": trainer.runs, "optimisers": trainer.optimisers}
    album = _Album(trainer.runs, snapshots)
    run_updates("training", training.steps, trainer.update, parts, hooks=[album], quiet=quiet)
    return trainer.outcome(album)


class _Album(Hook):
    """Copies of all models after some of the steps."""

    borrowed: ClassVar[frozenset[str]] = frozenset({"_runs"})

    def __init__(self, runs: Runs, steps: Sequence[int]) -> None:
        self._runs, self._pages = runs, {number: page for page, number in enumerate(dict.fromkeys(steps))}
        count = len(self._pages)
        self.parameters = torch.zeros(count, *runs.parameters.shape, device=runs.parameters.device)
        self.statistics = {
            name: torch.zeros(count, *values.shape).to(values) for name, values in runs.statistics.items()
        }

    def after(self, step: int) -> None:
        page = self._pages.get(step + 1)
        if page is not None:
            self.parameters[page] = self._runs.parameters
            for name, values in self._runs.statistics.items():
                self.statistics[name][page] = values

    def models(self, network: Network, initial: torch.Tensor) -> dict[int, TrainedModels]:
        """The models after each of these numbers of steps."""
        return {
            number: TrainedModels(
                network,
                self.parameters[page],
                {name: values[page] for name, values in self.statistics.items()},
                initial,
            )
            for number, page in self._pages.items()
        }


class _Trainer:
    """The update of all runs: a batch, gradients, a step of the optimisers."""

    def __init__(
        self,
        start: Start,
        data: TrainingSet,
        streams: Streams,
        training: Training,
        transform: Transform | None,
        gradients: Gradients,
    ) -> None:
        self.data, self.streams, self.training = data, streams, training
        self.transform, self.gradients = transform, gradients
        self.start, self.network = start, start.network.in_mode("train")
        self.device = start.parameters.device
        self.runs = start.runs(len(streams), training.steps)
        together = gradients.together(self.network, training.batch_size, data.sample_shape, self.device)
        self.optimisers = _Optimisers(training, self.runs.parameters, start.velocity, together)
        self.orders = _Orders(streams, data.count, training.batch_size)
        self.first_batch: Batch | None = None

    def update(self, step: int) -> None:
        """Move every run by a gradient of its next batch."""
        training, runs = self.training, self.runs
        batch = self._batch(step)
        for rows, optimiser in self.optimisers:
            before = runs.parameters[rows]
            statistics = {name: values[rows] for name, values in runs.statistics.items()}
            gradient = self.gradients.compute(self.network, before, statistics, batch, rows)
            if training.optimiser == "adamw":  # the decay does not pass through Adam
                direction = optimiser.direction(gradient.values).add(before, alpha=training.weight_decay)
            else:
                direction = optimiser.direction(torch.add(gradient.values, before, alpha=training.weight_decay))
            moved = before - training.rate * direction
            runs.advance(step, moved, gradient.loss, finite_rows(gradient.loss, moved), gradient.statistics, rows)

    def _batch(self, step: int) -> Batch:
        images, labels, rows = self.data.take(self.orders.rows(step), self.device)
        batch = Batch(images, labels, self.streams, step)
        if self.transform is not None:
            batch = batch._replace(images=self.transform(images, labels, rows, batch.step_streams()))
        if step == 0:
            self.first_batch = batch
        return batch

    def outcome(self, album: _Album) -> TrainingRuns:
        """The trained models, with their losses, first batch and snapshots."""
        runs, steps = self.runs, self.training.steps
        if self.first_batch is None and steps > 0:  # an earlier attempt took this step
            self.first_batch = self._batch(0)
        batch = None if self.first_batch is None else (self.first_batch.images, self.first_batch.labels)
        initial = self.start.parameters.expand(len(runs), -1)
        network = self.network.in_mode("eval")
        return TrainingRuns(
            TrainedModels(network, runs.parameters, runs.statistics, initial),
            runs.losses,
            runs.diverged_at,
            batch,
            self.optimisers.velocity,
            album.models(network, initial),
        )


class _Optimisers:
    """An optimiser for every group of runs whose gradients are computed together.

    Attributes:
        velocity: the momentum of SGD, ``[runs, d]``; None for other optimisers.
    """

    def __init__(
        self, training: Training, parameters: torch.Tensor, velocity: torch.Tensor | None, together: int
    ) -> None:
        self.training, self.parameters = training, parameters
        self.velocity: torch.Tensor | None = None
        if training.optimiser == "sgd":
            self.velocity = torch.zeros_like(parameters) if velocity is None else velocity.clone()
        self._group(together)

    def _group(self, together: int) -> None:
        self.together, runs = together, len(self.parameters)
        self.groups = [slice(first, min(first + together, runs)) for first in range(0, runs, together)]
        self.optimisers: list[Adam | Momentum] = [
            Adam(self.parameters[rows])
            if self.velocity is None
            else Momentum(self.velocity[rows], self.training.momentum)
            for rows in self.groups
        ]

    def __iter__(self) -> Iterator[tuple[slice, Adam | Momentum]]:
        return zip(self.groups, self.optimisers, strict=True)

    def state(self) -> dict[str, torch.Tensor]:
        """Moments of all groups, and a group's size, which depends on a GPU's free memory and affects last digits."""
        state = {"together": torch.tensor(self.together)}
        for number, optimiser in enumerate(self.optimisers):
            state |= named(str(number), optimiser.state())
        return state

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Return to a state, with groups of its size."""
        self._group(int(saved["together"]))
        for number, optimiser in enumerate(self.optimisers):
            optimiser.restore(part_of(saved, str(number)))


class _Orders:
    """Orders in which every run passes through its samples, a new one in each epoch."""

    def __init__(self, streams: Streams, count: int, batch_size: int) -> None:
        self.streams, self.count, self.batch_size = streams, count, batch_size
        self._epoch, self._order = -1, torch.empty(0)

    def rows(self, step: int) -> torch.Tensor:
        """Samples of a step, ``[runs, B]``; the last step of an epoch takes what is left."""
        epoch, batch = divmod(step, -(-self.count // self.batch_size))
        if epoch != self._epoch:
            order = self.streams.child("order", epoch).uniform(self.count)
            self._epoch, self._order = epoch, order.argsort(dim=1, stable=True)
        return self._order[:, batch * self.batch_size : (batch + 1) * self.batch_size]


def _check(start: Start, data: TrainingSet, runs: int, training: Training) -> None:
    count = data.leading[-1] if data.leading else 0
    dimension = start.network.dimension
    shapes = {
        "parameters": (start.parameters.shape, ((dimension,), (runs, dimension))),
        "images": (data.leading, ((count,), (runs, count))),
        "labels": (data.labels.shape, ((count,), (runs, count))),
    }
    for name, (shape, allowed) in shapes.items():
        if tuple(shape) not in allowed:
            raise ConfigError(f"training {runs} runs: {name} of shape {list(shape)}; it must be one of {allowed}")
    if start.velocity is not None and training.optimiser != "sgd":
        raise ConfigError(f"momentum goes on from training to training with SGD, and not with {training.optimiser}")


def _take(values: torch.Tensor, rows: torch.Tensor, shared_axes: int) -> torch.Tensor:
    """The ``rows`` (``[runs, B]``) of values that all runs share, or of each run's."""
    if values.dim() == shared_axes:
        return values[rows]
    return values[torch.arange(len(rows), device=rows.device)[:, None], rows]
