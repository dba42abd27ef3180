"""Whole training runs, side by side: plain SGD, on data or with gradients that a defense changes.

The victims of attacks on a released model, and the shadow models of such attacks. What federated learning leaks of one
client is what this client's own steps leak, so one client that trains alone is enough (Tan et al. 2024). Clients that
train locally for a round of federated averaging are such runs, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from leakbench.errors import ConfigError, Infeasible
from leakbench.lazy import torch
from leakbench.models.base import Network, Statistics
from leakbench.models.bert import embedding_width
from leakbench.models.stacked import StackedNetworks
from leakbench.models.trained import TrainedModels
from leakbench.numerics.adam import Adam
from leakbench.numerics.stateful import Stateful, named, part_of
from leakbench.randomness import Streams
from leakbench.running.checkpoint import loop

MEMORY_BUDGET = 512 * 2**20
"""Working memory of the gradients that are computed together, in bytes. Only speed depends on it."""

STACKED_TOGETHER = 32
"""Runs whose gradients one pass of :class:`StackedNetworks` computes. Only speed depends on it."""

GPU_PART = 0.3
"""Part of a GPU's free memory that they may take there."""


class Training(BaseModel):
    """SGD with momentum, Adam or AdamW, for a number of steps that need not end with an epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(ge=0, description="optimiser steps")
    batch_size: int = Field(64, ge=1, description="images per step; the last step of an epoch takes what is left")
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    rate: float = Field(0.01, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    weight_decay: float = Field(
        5e-4, ge=0, description="times the parameters, added to the gradient, or with adamw to the step over the rate"
    )


Transform: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Streams], torch.Tensor]"
"""``transform(images [runs, B, C, H, W], labels [runs, B], rows [runs, B], streams) -> images``, anew at every step,
such as noise that is drawn at every access. ``rows``: which of a run's images these are; ``streams``: one per run, of
the step."""


class _Momentum(Stateful):
    """The same interface as Adam's."""

    def __init__(self, velocity: torch.Tensor, momentum: float) -> None:
        self._velocity = velocity
        self._momentum = momentum

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        return self._velocity.mul_(self._momentum).add_(gradient)

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        self._velocity.copy_(saved["_velocity"])  # which may be the caller's


class SampleGradients(Protocol):
    """What a run makes of the gradients of single samples, as DP-SGD does. They never exist all at once."""

    def contribution(self, gradients: torch.Tensor, runs: slice) -> torch.Tensor:
        """The sum over samples of what each contributes, such as its clipped gradient.

        Args:
            gradients: of some of the samples of some of the runs, ``[k, b, d]``.
            runs: which runs these are, for settings that differ among them.

        Returns:
            ``[k, d]``.
        """
        ...

    def release(self, total: torch.Tensor, batch_size: int, streams: Streams, runs: slice) -> torch.Tensor:
        """What takes the gradient's place, ``[k, d]``: the mean of the contributions, with noise.

        Args:
            total: the sum of all contributions, ``[k, d]``.
            batch_size: samples of this step.
            streams: one per run of ``runs``, of the step.
            runs: which runs these are.
        """
        ...


@dataclass(frozen=True)
class TrainingRuns:
    """What training ended with.

    Attributes:
        models: the trained models. A run that diverged keeps the last parameters that were finite.
        curves: mean loss of each batch before its step, ``[runs, steps]``; NaN from the step at which a run diverged.
        diverged_at: that step, ``[runs]``, -1 where it never came.
        first_batch: images ``[runs, B, C, H, W]`` or token ids ``[runs, B, L]``, and labels ``[runs, B]``, of the first
            step; None without steps.
    """

    models: TrainedModels
    curves: torch.Tensor
    diverged_at: torch.Tensor
    first_batch: tuple[torch.Tensor, torch.Tensor] | None = None


def train_runs(
    network: Network,
    parameters: torch.Tensor,
    images: torch.Tensor,
    labels: torch.Tensor,
    streams: Streams,
    training: Training,
    *,
    rows: torch.Tensor | None = None,
    statistics: Statistics | None = None,
    velocity: torch.Tensor | None = None,
    transform: Transform | None = None,
    sample_gradients: SampleGradients | None = None,
    together: int | None = None,
    stacked: StackedNetworks | None = None,
    quiet: bool = False,
) -> TrainingRuns:
    """Train every run from its own starting point on its own images.

    Each epoch takes a run's images in a new order, which its stream alone decides: runs with equal streams see equal
    orders, whatever their data. BatchNorm normalises with the batch and keeps running statistics, as torch's training
    mode does; dropout is off.

    Args:
        network: the architecture, and the BatchNorm statistics that every run starts with.
        parameters: ``[d]``, or each run's own, ``[runs, d]``.
        images: network inputs, ``[N, C, H, W]``, or each run's own, ``[runs, N, C, H, W]``; or token ids, integers
            ``[N, L]`` or ``[runs, N, L]``.
        labels: ``[N]`` or ``[runs, N]``, int64.
        streams: one per run.
        training: how to train.
        rows: which of the images each run trains on, ``[runs, n]``; all by default.
        statistics: each run's own BatchNorm statistics to start with, each ``[runs, channels]``; by default the
            network's.
        velocity: the momentum of SGD to start with, ``[runs, d]``, which holds that of the end afterwards; zero, and
            forgotten, by default.
        transform: changes the images of every batch.
        sample_gradients: makes the update from per-sample gradients; the batch's gradient by default.
        together: runs whose gradients are computed in one vectorised call. By default one for images on a CPU, where
            the grouped convolutions of several are slower than a loop (``benchmarks/training_runs.py``), and as many as
            fit for sentences or on a GPU. Numbers depend on it in their last digits alone.
        stacked: the network for gradients of many runs by matrix products; they differ in their last digits.
        quiet: show no progress, for one of many rounds.

    Raises:
        ConfigError: shapes do not fit, or there is a velocity for an optimiser that has none.
        Infeasible: per-sample gradients of a model whose BatchNorm layers mix the samples.
    """
    runs, axes = len(streams), _sample_axes(images)
    count = images.shape[-axes - 1] if rows is None else rows.shape[1]
    _check(network, parameters, images, labels, runs)
    network = network.in_mode("train")
    if sample_gradients is not None and network.couples_samples:
        raise Infeasible("per-sample gradients do not exist where BatchNorm normalises with the batch's statistics")
    initial = parameters.expand(runs, -1)
    current, device = initial.clone(), initial.device
    if velocity is not None and training.optimiser != "sgd":
        raise ConfigError(f"momentum goes on from training to training with SGD, and not with {training.optimiser}")
    own_statistics = statistics or network.running_statistics
    statistics = {name: values.expand(runs, -1).clone() for name, values in own_statistics.items()}
    curves = torch.full((runs, training.steps), torch.nan, device=device)
    diverged_at = torch.full((runs,), -1, device=device)
    size = STACKED_TOGETHER if stacked else together or _together(network, training.batch_size, images, device)
    rows = None if rows is None else rows.cpu()
    first_batch: tuple[torch.Tensor, torch.Tensor] | None = None
    with loop("training", training.steps, quiet=quiet, ends=not quiet) as steps:
        if steps.saved:
            size = int(steps.saved["together"])  # the free memory of a GPU decides it, and it the last digits
        parts = [slice(first, min(first + size, runs)) for first in range(0, runs, size)]
        optimisers = [
            _optimiser(training, current[part], None if velocity is None else velocity[part]) for part in parts
        ]
        if steps.saved:
            for tensor, name in ((current, "current"), (curves, "curves"), (diverged_at, "diverged_at")):
                tensor.copy_(steps.saved[name])
            for name, values in statistics.items():
                values.copy_(steps.saved[f"statistics.{name}"])
            for number, optimiser in enumerate(optimisers):
                optimiser.restore(part_of(steps.saved, f"optimiser{number}"))

        def state() -> dict[str, torch.Tensor]:
            found = {"together": torch.tensor(size), "current": current, "curves": curves, "diverged_at": diverged_at}
            found |= named("statistics", statistics)
            for number, optimiser in enumerate(optimisers):
                found |= named(f"optimiser{number}", optimiser.state())
            return found

        for step, places in enumerate(_batches(streams, count, training)):
            if 0 < step < steps.done:
                continue
            chosen = (places if rows is None else rows.gather(1, places)).to(device)
            batch, targets = _take(images, chosen, shared_axes=axes + 1), _take(labels, chosen, shared_axes=1)
            drawing = transform is not None or sample_gradients is not None
            own = streams.child("step", step) if drawing else streams
            if transform is not None:
                batch = transform(batch, targets, chosen, own)
            first_batch = first_batch or (batch, targets)
            if step < steps.done:
                continue
            for part, optimiser in zip(parts, optimisers, strict=True):
                before = {name: values[part] for name, values in statistics.items()}
                if sample_gradients is None and stacked is not None:
                    gradient, loss = stacked.gradient_and_loss(current[part], batch[part], targets[part])
                    after = before
                elif sample_gradients is None:
                    gradient, loss, seen = _gradient(network, current[part], batch[part], targets[part])
                    after = network.moving_average(before, seen)
                else:
                    gradient, loss = _private_gradient(
                        network, sample_gradients, current[part], batch[part], targets[part], own, part
                    )
                    after = before
                if training.optimiser == "adamw":  # the decay does not pass through Adam
                    direction = optimiser.direction(gradient).add(current[part], alpha=training.weight_decay)
                else:
                    direction = optimiser.direction(torch.add(gradient, current[part], alpha=training.weight_decay))
                moved = current[part] - training.rate * direction
                finite = loss.isfinite() & moved.isfinite().all(dim=1)
                diverged_at[part] = torch.where((diverged_at[part] < 0) & ~finite, step, diverged_at[part])
                alive = diverged_at[part] < 0
                curves[part, step] = torch.where(alive, loss, torch.nan)
                current[part] = torch.where(alive[:, None], moved, current[part])
                for name, values in after.items():
                    statistics[name][part] = torch.where(alive[:, None], values, before[name])
            steps.tick(state)
    models = TrainedModels(network.in_mode("eval"), current, statistics, initial)
    return TrainingRuns(models, curves, diverged_at, first_batch)


def _optimiser(training: Training, parameters: torch.Tensor, velocity: torch.Tensor | None) -> Adam | _Momentum:
    if training.optimiser != "sgd":
        return Adam(parameters)
    return _Momentum(torch.zeros_like(parameters) if velocity is None else velocity, training.momentum)


def _sample_axes(images: torch.Tensor) -> int:
    """Of an image ``[C, H, W]``, or of the token ids ``[L]`` of a sentence."""
    return 3 if images.is_floating_point() else 1


def _check(network: Network, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, runs: int) -> None:
    leading = tuple(images.shape[: -_sample_axes(images)])
    count = leading[-1] if leading else 0
    shapes = {
        "parameters": (parameters.shape, ((network.dimension,), (runs, network.dimension))),
        "images": (leading, ((count,), (runs, count))),
        "labels": (labels.shape, ((count,), (runs, count))),
    }
    for name, (found, allowed) in shapes.items():
        if tuple(found) not in allowed:
            raise ConfigError(f"training {runs} runs: {name} of shape {list(found)}; it must be one of {allowed}")


def _batches(streams: Streams, count: int, training: Training) -> Iterator[torch.Tensor]:
    """Which images every step takes, ``[runs, B]``."""
    done = epoch = 0
    while done < training.steps:
        order = streams.child("order", epoch).uniform(count).argsort(dim=1, stable=True)
        for rows in order.split(training.batch_size, dim=1)[: training.steps - done]:
            yield rows
            done += 1
        epoch += 1


def _take(values: torch.Tensor, rows: torch.Tensor, shared_axes: int) -> torch.Tensor:
    """The ``rows`` (``[runs, B]``) of what all runs share, or of each run's own."""
    if values.dim() == shared_axes:
        return values[rows]
    return values[torch.arange(len(rows), device=rows.device)[:, None], rows]


def _together(network: Network, batch_size: int, images: torch.Tensor, device: torch.device) -> int:
    if device.type == "cpu" and images.is_floating_point():
        return 1
    return network.rows_within(_budget(device), (batch_size, *_differentiated(network, images)))


def _differentiated(network: Network, images: torch.Tensor) -> tuple[int, ...]:
    """The shape of a sample where the network begins to compute: token ids are embedded first."""
    sample = tuple(images.shape[-_sample_axes(images) :])
    return sample if images.is_floating_point() else (*sample, embedding_width(network))


def _budget(device: torch.device) -> int:
    if device.type != "cuda":
        return MEMORY_BUDGET
    return max(MEMORY_BUDGET, int(GPU_PART * torch.cuda.mem_get_info(device)[0]))


def _gradient(
    network: Network, parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, Statistics]:
    """Gradients ``[k, d]``, losses ``[k]`` and BatchNorm statistics ``[k, channels]`` of one batch of each run."""

    def loss(parameters: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, Statistics]:
        logits, seen = network.logits_and_statistics(parameters, images, unbiased=True)
        return torch.nn.functional.cross_entropy(logits, labels), seen

    if len(parameters) > 1:
        gradient, (value, seen) = torch.func.vmap(torch.func.grad_and_value(loss, has_aux=True))(
            parameters, images, labels
        )
        return gradient, value, seen
    with torch.enable_grad():
        leaf = parameters[0].detach().requires_grad_()
        value, seen = loss(leaf, images[0], labels[0])
        (gradient,) = torch.autograd.grad(value, leaf)
    return gradient[None], value.detach()[None], {name: values.detach()[None] for name, values in seen.items()}


def _private_gradient(
    network: Network,
    private: SampleGradients,
    parameters: torch.Tensor,
    images: torch.Tensor,
    labels: torch.Tensor,
    streams: Streams,
    runs: slice,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What takes the place of the gradients, ``[k, d]``, and losses ``[k]``; samples in parts that fit in memory."""

    def one(parameters: torch.Tensor, image: torch.Tensor, label: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = torch.func.grad_and_value(network.loss)(
            parameters, image[None], label[None]
        )
        return found

    samples = torch.func.vmap(one, in_dims=(None, 0, 0))
    k, size = len(parameters), images.shape[1]
    part = max(1, network.rows_within(_budget(parameters.device), (1, *_differentiated(network, images))) // k)
    total, loss = torch.zeros_like(parameters), torch.zeros(k, device=parameters.device)
    for some, theirs in zip(images.split(part, dim=1), labels.split(part, dim=1), strict=True):
        if k > 1:
            gradients, losses = torch.func.vmap(samples)(parameters, some, theirs)
        else:
            gradients, losses = (found[None] for found in samples(parameters[0], some[0], theirs[0]))
        total += private.contribution(gradients, runs)
        loss += losses.sum(dim=1)
    return private.release(total, size, Streams(streams.keys[runs]), runs), loss / size
