"""Undefended training of the model that is attacked, on samples of no client."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from leakbench.effort import Effort
from leakbench.errors import ConfigError, LeakbenchError
from leakbench.federated.updates import Hook, run_updates
from leakbench.jobs.modules import ModuleTraining
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.numerics.stateful import named, part_of
from leakbench.randomness import generator
from leakbench.records import canonical

if TYPE_CHECKING:
    from leakbench.data.base import Dataset
    from leakbench.jobs.base import Job


class Pretraining(BaseModel):
    """SGD or AdamW on the train split, shuffled anew in every epoch."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    samples: int | None = Field(None, ge=1, description="the first so many samples of the train split; all by default")
    batch_size: int = Field(64, ge=1, description="samples per step; the last step of an epoch takes what is left")
    rate: float = Field(0.01, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    optimiser: Literal["sgd", "adamw"] = Field("sgd", description="AdamW as torch has it, for transformers")

    def shared_effort(self, job: Job, epochs: int, steps: int = 0) -> dict[str, Effort]:
        """The effort of ``epochs`` epochs and ``steps`` steps of the job's model, for each of its seeds.

        Jobs share it that train the same model alike.
        """
        if epochs == steps == 0:
            return {}
        dataset = job.dataset.single()
        samples = self.samples or dataset.expected("train")
        one = Effort(samples, math.ceil(samples / self.batch_size)).times(epochs)
        one = one.plus(Effort(self.batch_size, 1).times(steps))
        names = (self.work(job.model.digest, dataset, job.dataset.label, seed, epochs, steps) for seed in job.seeds)
        return dict.fromkeys(names, one)

    def work(self, model: str, dataset: Dataset, label: str, seed: int, *until: Any) -> str:
        """The name of a training: all that its result depends on."""
        data = [dataset.name, dataset.version, dataset.parameters(), label]
        return canonical([model, data, seed, self.model_dump(), *until])

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
    *,
    of: str | None = None,
) -> Network:
    """The network after ``epoch`` epochs of training: the first state of :func:`trajectory`.

    Raises:
        ConfigError: as :func:`trajectory`.
        Diverged: as :func:`trajectory`.
    """
    return trajectory(network, dataset, label, seed, epoch, pretraining, device, of=of)[0]


def trajectory(
    network: Network,
    dataset: Dataset,
    label: str,
    seed: int,
    epoch: int,
    pretraining: Pretraining,
    device: torch.device,
    *,
    states: int = 1,
    apart: int = 1,
    of: str | None = None,
) -> list[Network]:
    """States of one training, BatchNorm statistics included: after ``epoch`` epochs, and every few steps from there.

    The order of the samples depends on the label, the seed and the epoch alone, so longer training passes through the
    states of shorter training.

    Args:
        network: the initial network, which is not changed; it is the first state where there are no epochs.
        dataset: its train split is the training data.
        label: the data set's label, which names the random streams.
        seed: of the repetition; it orders the samples.
        epoch: number of epochs before the first state.
        pretraining: the optimiser and its parameters.
        device: of the computation.
        states: their number.
        apart: steps between two of them.
        of: digest of the model, of which with the label and the seed the initial network is made; jobs that give it
            share the training.

    Raises:
        ConfigError: the train split has fewer samples than ``pretraining.samples``.
        Diverged: parameters or BatchNorm statistics became non-finite.
    """
    if epoch == 0 and states == 1:
        return [network]
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
        network.module_loss(module, inputs[rows], labels[rows], (label, seed, "pretraining", "step", step)).backward()
        optimiser.step()

    finite = _StaysFinite(module, orders.steps)
    *earlier, total = (epoch * orders.steps + number * apart for number in range(states))
    kept = _Kept(module, earlier)
    shared = of and pretraining.work(of, dataset, label, seed, earlier, total)
    with torch.enable_grad():
        parts = {"module": ModuleTraining(module, optimiser)}
        run_updates("pretraining", total, update, parts, [finite, kept], shared=shared)
    finite.check(math.ceil(total / orders.steps))
    return [network.holding(each) for each in (*kept.modules(), module)]


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


class _Kept(Hook):
    """Copies of a module's state after these numbers of steps."""

    def __init__(self, module: torch.nn.Module, steps: Sequence[int]) -> None:
        self.module, self.steps = module, tuple(steps)
        self.states: dict[str, torch.Tensor] = {}
        for number in range(len(steps)):
            self._keep(number)

    def _keep(self, number: int) -> None:
        self.states |= named(str(number), {name: part.clone() for name, part in self.module.state_dict().items()})

    def after(self, step: int) -> None:
        if step + 1 in self.steps:
            self._keep(self.steps.index(step + 1))

    def modules(self) -> Iterator[torch.nn.Module]:
        """A module in each of the states."""
        for number in range(len(self.steps)):
            module = copy.deepcopy(self.module)
            module.load_state_dict(part_of(self.states, str(number)))
            yield module


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
