"""Undefended training of the model that is attacked, on samples of no client."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field

from leakbench.effort import Effort
from leakbench.errors import ConfigError, LeakbenchError
from leakbench.federated.updates import Hook, run_updates
from leakbench.jobs.modules import ModuleTraining
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.randomness import generator

if TYPE_CHECKING:
    from leakbench.data.base import Dataset


class Pretraining(BaseModel):
    """SGD or AdamW on the train split, shuffled anew in every epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    samples: int | None = Field(None, ge=1, description="the first so many samples of the train split; all by default")
    batch_size: int = Field(64, ge=1, description="samples per step; the last step of an epoch takes what is left")
    rate: float = Field(0.01, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    optimiser: Literal["sgd", "adamw"] = Field("sgd", description="AdamW as torch has it, for transformers")

    def effort(self, dataset: Dataset, epochs: int) -> Effort:
        """The effort of ``epochs`` epochs."""
        if epochs == 0:
            return Effort(0, 0)
        samples = self.samples or dataset.expected("train")
        return Effort(samples, math.ceil(samples / self.batch_size)).times(epochs)

    def over(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """The optimiser of these parameters."""
        if self.optimiser == "adamw":
            return torch.optim.AdamW(parameters, lr=self.rate)
        return torch.optim.SGD(parameters, lr=self.rate, momentum=self.momentum)


class Diverged(LeakbenchError):
    """Raised where training becomes non-finite; jobs turn it into the outcome ``diverged``."""


def pretrained(
    network: Network,
    dataset: Dataset,
    label: str,
    seed: int,
    epoch: int,
    pretraining: Pretraining,
    device: torch.device,
) -> Network:
    """The network after ``epoch`` epochs of training, its BatchNorm statistics included; unchanged after none.

    The order of the samples depends on the label, the seed and the epoch alone, so longer training passes through the
    states of shorter training.

    Args:
        network: the initial network; it is not changed.
        dataset: its train split is the training data.
        label: the data set's label, which names the random streams.
        seed: of the repetition; it orders the samples.
        epoch: number of epochs.
        pretraining: the optimiser and its parameters.
        device: of the computation.

    Raises:
        ConfigError: the train split has fewer samples than ``pretraining.samples``.
        Diverged: parameters or BatchNorm statistics became non-finite.
    """
    if epoch == 0:
        return network
    available = dataset.length("train")
    count = available if pretraining.samples is None else pretraining.samples
    if count > available:
        raise ConfigError(
            f"pretraining.samples: {count} is more than the train split of '{dataset.name}' has ({available})"
        )
    samples = dataset.load("train", range(count))
    inputs, labels = dataset.normalise(samples.values).to(device), samples.labels.to(device)
    module = network.trainable_module()
    optimiser = pretraining.over(module.parameters())
    orders = _Orders(count, pretraining.batch_size, (label, seed, "pretraining"), device)

    def update(step: int) -> None:
        rows = orders.rows(step)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(inputs[rows]), labels[rows]).backward()
        optimiser.step()

    finite = _StaysFinite(module, orders.steps)
    with torch.enable_grad():
        parts = {"module": ModuleTraining(module, optimiser)}
        run_updates("pretraining", epoch * orders.steps, update, parts, [finite])
    finite.check(epoch)
    return Network(module, device, network.batch_norm)


class _Orders:
    """Orders in which training passes through its samples, a new one in each epoch.

    Attributes:
        steps: of an epoch, the last of which takes the remainder.
    """

    def __init__(self, count: int, batch_size: int, key: tuple[str | int, ...], device: torch.device) -> None:
        self.count, self.batch_size, self.key, self.device = count, batch_size, key, device
        self.steps = -(-count // batch_size)
        self._epoch, self._order = -1, torch.empty(0)

    def rows(self, step: int) -> torch.Tensor:
        """Samples of a step, ``[B]``."""
        epoch, batch = divmod(step, self.steps)
        if epoch != self._epoch:
            order = torch.randperm(self.count, generator=generator(*self.key, epoch))
            self._epoch, self._order = epoch, order.to(self.device)
        return self._order[batch * self.batch_size : (batch + 1) * self.batch_size]


class _StaysFinite(Hook):
    """Checks after every epoch whether training diverged."""

    def __init__(self, module: torch.nn.Module, steps: int) -> None:
        self.module, self.steps = module, steps

    def before(self, step: int) -> None:
        if step > 0 and step % self.steps == 0:
            self.check(step // self.steps)

    def check(self, epoch: int) -> None:
        """Check the module after ``epoch`` epochs.

        Raises:
            Diverged: parameters or BatchNorm statistics are not finite.
        """
        if not all(bool(tensor.isfinite().all()) for tensor in self.module.state_dict().values()):
            raise Diverged(f"pretraining became non-finite in epoch {epoch}")
