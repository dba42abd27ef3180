"""Inverter jobs: networks that make images of messages, trained for attackers on clients that they make up."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field, model_validator

from leakbench.attacks.auxiliary import is_random, messages_of
from leakbench.attacks.base import Knowledge, Observations
from leakbench.attacks.inverter import Inverter, untrained
from leakbench.attacks.learned import per_tensor
from leakbench.data.base import Dataset, ImageDataset, image_dataset
from leakbench.defenses.base import Defense
from leakbench.defenses.clients import PublicMechanism
from leakbench.effort import FORWARD, Effort, Unit
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.federated.tensors import Tensors
from leakbench.federated.updates import run_updates
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.calibration import CalibrationImages
from leakbench.jobs.modules import SPANS, ModuleTraining
from leakbench.jobs.pretraining import Diverged, Pretraining, pretrained
from leakbench.jobs.subjects import check_defense
from leakbench.jobs.victims import initial_network
from leakbench.lazy import torch
from leakbench.metrics.image import psnr
from leakbench.models.base import BatchNorm, Network
from leakbench.numerics.stateful import Stateful, named, part_of
from leakbench.randomness import Streams, generator, seeded, stream_seed
from leakbench.records import MetricInfo, Outcome, Replicate, Value

if TYPE_CHECKING:
    from leakbench.attacks.base import Grant

LOSSES = ("loss", "held_out_loss")
INVERTER_METRICS = {
    name: MetricInfo(
        unit=f"squared error of pixels, {which}, one mean per 1/{SPANS} of training", direction="lower", axis="step"
    )
    for name, which in zip(LOSSES, ("training", "held-out images"), strict=True)
} | {
    "epoch": MetricInfo(unit="epochs of training behind the weights that are kept", direction="none"),
    "psnr_held_out": MetricInfo(unit="dB, held-out images, which chose the epoch", direction="higher", axis="image"),
    "psnr_mean_image": MetricInfo(unit="dB, the mean training image in their place", direction="higher", axis="image"),
}
OF_CELLS = ("local", "batch_norm", "epoch", "pretraining", "calibration", "auxiliary")
"""Fields of the protocol that the attack has, too, and that have to be the same there."""


@JOB_KINDS.register("inverter", version=1)
class InverterJob(JobKind):
    """Train the networks of the attack ``learned_inversion``, one per seed and setting of a defense, and keep them.

    As published (Wu et al. 2023): fully connected layers on the message, trained with Adam on the squared error of
    pixels, at a tenth of the rate after three quarters of all epochs. The attacker defends auxiliary images under the
    attacked model with its own copy of the mechanism, which draws anew in every epoch. The weights are those of the
    epoch with the smallest error on auxiliary images that are held out; the authors choose it by that on test images.
    Tensors of messages are centred and scaled to unit mean square, which the authors do not say.
    """

    minutes: ClassVar[int] = 240
    unit: ClassVar[Unit] = "multiply-adds"
    metrics: ClassVar[Mapping[str, MetricInfo]] = INVERTER_METRICS
    grants: ClassVar[Grant | None] = "inverter"
    of_cells: ClassVar[bool] = True

    auxiliary: int = Field(512, ge=3, description="auxiliary images, those of the attack: the first of the train split")
    held_out: int = Field(64, ge=1, description="the last of these, which choose the epoch; the others train")
    widths: tuple[int, ...] = Field((3000, 3000), description="units of the layers between message and image")
    epochs: int = Field(200, ge=1, description="passes through the images")
    batch_size: int = Field(256, ge=1, description="images per step, in an order drawn anew in every epoch")
    rate: float = Field(1e-4, gt=0, description="step size of Adam, a tenth of it after three quarters")
    fresh: bool = Field(True, description="whether the mechanism draws anew in every epoch, or once")
    batch_norm: BatchNorm = Field("eval", description="of the attack's clients")
    local: LocalTraining = Field(ONE_STEP, description="of the attack's clients")
    epoch: int = Field(0, ge=0, description="of the attacked model")
    pretraining: Pretraining = Field(Pretraining(), description="of the attacked model")
    calibration: int | None = Field(5000, ge=2, description="of the attacked defense")

    @model_validator(mode="after")
    def _some_to_train_on(self) -> InverterJob:
        if self.held_out > self.auxiliary - 2:
            raise ValueError(f"held_out: {self.held_out} of {self.auxiliary} images leave fewer than two to train on")
        return self

    def granted(
        self, kept: Mapping[str, torch.Tensor], dataset: Dataset, rows: Sequence[tuple[int, int]], device: torch.device
    ) -> list[Inverter]:
        made: dict[tuple[int, int], Inverter] = {}
        for seed, setting in rows:
            if (seed, setting) not in made:
                state = part_of(kept, _key(seed, setting))
                if not state:
                    raise Infeasible(f"the network of seed {seed} and setting {setting} has no weights: it diverged")
                made[seed, setting] = Inverter.of(state, device)
        return [made[row] for row in rows]

    def mismatch(self, source: Job, reader: Job) -> str:
        for axis in ("model", "defense"):
            ours, theirs = (getattr(job, axis).label for job in (source, reader))
            if ours != theirs:
                return f"trains for {axis} '{ours}', and the attack is on '{theirs}'"
        if missing := sorted(set(reader.seeds) - set(source.seeds)):
            return f"trains for seeds {list(source.seeds)}, and the attack has {missing}, too"
        for _, one in reader.combinations():
            for name in OF_CELLS:
                ours, theirs = getattr(self, name), getattr(one.kind, name)
                if ours != theirs:
                    return f"trains with {name}: {ours}, and the attack has {theirs}; give both the same"
        return ""

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"step": min(SPANS, self.epochs), "image": self.held_out}

    def effort(self, job: Job) -> Effort:
        pixels = math.prod(job.dataset.single().shape)
        sizes = [sum(job.parameter_counts().values()), *self.widths, pixels]
        layers = sum(before * after for before, after in itertools.pairwise(sizes))
        learned_from = self.auxiliary - self.held_out
        images = self.epochs * (learned_from + FORWARD * self.held_out)
        one = Effort(3 * layers * images, self.epochs * math.ceil(learned_from / self.batch_size))
        return one.times(len(job.seeds) * job.defense.count)

    def run(self, job: Job, device: torch.device) -> Findings:
        dataset = image_dataset(job.dataset.single(), "jobs of kind 'inverter'")
        available = dataset.length("train")
        if self.auxiliary > available:
            raise ConfigError(
                f"auxiliary: {self.auxiliary} is more than the train split of '{dataset.name}' has ({available})"
            )
        replicates: list[Replicate] = []
        tensors: dict[str, torch.Tensor] = {}
        try:
            for _, defense in job.defense.settings():
                check_defense(dataset, defense)
                if defense.together > 1:
                    raise Infeasible(f"'{defense.name}' works with {defense.together} clients together")
            images = CalibrationImages(dataset, device, self.calibration, self.auxiliary)
            defenses = images.calibrated(job.defense.settings())
            for seed in job.seeds:
                network = initial_network(dataset, job.dataset.label, job.model.single(), seed, device)
                try:
                    network = pretrained(
                        network,
                        dataset,
                        job.dataset.label,
                        seed,
                        self.epoch,
                        self.pretraining,
                        device,
                        of=job.model.digest,
                    ).in_mode(self.batch_norm)
                except Diverged as error:
                    replicates += job.without_numbers(Outcome(status="diverged", reason=str(error)), seeds=[seed])
                    continue
                for place, (setting, defense) in enumerate(defenses):
                    clients = _Clients.of(self, dataset, job.dataset.label, seed, network, defense, device)
                    replicate, weights = self._train(clients, seed, setting, (job.dataset.label, seed, "inverter"))
                    replicates.append(replicate)
                    tensors |= named(_key(seed, place), weights)
        except Infeasible as error:
            return Findings(job.without_numbers(Outcome(status="infeasible", reason=str(error))))
        return Findings(replicates, tensors)

    def _train(
        self, clients: _Clients, seed: int, setting: Setting, key: tuple[str | int, ...]
    ) -> tuple[Replicate, dict[str, torch.Tensor]]:
        """A replicate, and the tensors of the network; none where training diverged."""
        count = self.auxiliary - self.held_out
        pixels, held_out_pixels = clients.pixels.flatten(1).split([count, self.held_out])
        first, held_out = clients.messages(0, count, "epoch", 0), clients.messages(count, self.held_out, "held out")
        again = self.fresh and clients.are_random
        inverter = self._untrained(first, clients, pixels.shape[1], key)
        layers = inverter.layers
        optimiser = torch.optim.Adam(layers.parameters(), lr=self.rate)
        # Falls once: MultiStepLR would, too, but its state does not survive JSON.
        schedule = torch.optim.lr_scheduler.StepLR(optimiser, math.ceil(0.75 * self.epochs), gamma=0.1)
        chosen = _Chosen(layers, self.epochs)
        square = torch.nn.functional.mse_loss

        def update(epoch: int) -> None:
            messages = clients.messages(0, count, "epoch", epoch) if again and epoch else first
            order = torch.randperm(count, generator=generator(*key, "order", epoch)).to(messages.device)
            total = torch.zeros((), device=messages.device)
            for rows in order.split(self.batch_size):
                loss = square(inverter.pixels(messages[rows]), pixels[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                total += loss.detach() * len(rows) / count
            schedule.step()
            with torch.no_grad():
                chosen.offer(epoch, total, square(inverter.pixels(held_out), held_out_pixels))

        with torch.enable_grad():
            run_updates(
                "training inverters",
                self.epochs,
                update,
                {"layers": ModuleTraining(layers, optimiser, schedule), "chosen": chosen},
            )
        metrics: dict[str, Value] = dict(zip(LOSSES, chosen.spans, strict=True))
        if (broken := chosen.broken) is not None:
            metrics |= dict.fromkeys(set(INVERTER_METRICS) - set(LOSSES))
            reason = "training became non-finite"
            reasons = {name: reason for name, value in metrics.items() if not isinstance(value, list) or None in value}
            outcome = Outcome(status="diverged", reason=reason, step=broken)
            return Replicate(seed=seed, setting=dict(setting), outcome=outcome, metrics=metrics, reasons=reasons), {}
        layers.load_state_dict(chosen.weights)
        with torch.no_grad():
            estimates = {"psnr_held_out": inverter.pixels(held_out), "psnr_mean_image": pixels.mean(dim=0)[None]}
        for name, estimate in estimates.items():
            shown = estimate.expand_as(held_out_pixels).view_as(clients.pixels[count:])
            metrics[name] = psnr(shown, clients.pixels[count:]).tolist()
        metrics["epoch"] = float(chosen.epoch + 1)
        return Replicate(seed=seed, setting=dict(setting), metrics=metrics), inverter.state()

    def _untrained(
        self, messages: torch.Tensor, clients: _Clients, pixels: int, key: tuple[str | int, ...]
    ) -> Inverter:
        centre = messages.mean(dim=0, keepdim=True)
        scale = per_tensor(messages - centre, Tensors(clients.seen.network.sizes))
        with seeded(stream_seed(*key, "initialisation")):
            layers = untrained(messages.shape[1], [*self.widths, pixels])
        return Inverter(centre, scale, layers.to(messages.device))


@dataclass(frozen=True)
class _Clients:
    """The clients that the attacker makes up of its auxiliary images, one of each.

    Attributes:
        seen: the model and the protocol, as of a client of whom nothing was received.
        known: images and mechanism.
        pixels: the images in [0, 1], ``[m, C, H, W]``.
        streams: the attacker's randomness.
    """

    seen: Observations
    known: Knowledge
    pixels: torch.Tensor
    streams: Streams

    @classmethod
    def of(
        cls,
        kind: InverterJob,
        dataset: ImageDataset,
        label: str,
        seed: int,
        network: Network,
        defense: Defense,
        device: torch.device,
    ) -> _Clients:
        samples = dataset.load("train", range(kind.auxiliary))
        pixels = samples.values.to(device)
        nothing = torch.zeros(1, network.dimension, device=device)
        return cls(
            Observations(network, network.parameters, nothing, (1, *dataset.shape), kind.local),
            Knowledge(
                auxiliary_images=dataset.normalise(pixels),
                auxiliary_labels=samples.labels.to(device),
                mechanism=[PublicMechanism(defense)],
            ),
            pixels,
            Streams([(label, seed, "inverter")]),
        )

    @property
    def are_random(self) -> bool:
        """Whether the mechanism is."""
        with torch.no_grad():
            return is_random(self.seen, self.known, self.streams)

    def messages(self, first: int, clients: int, *purpose: str | int) -> torch.Tensor:
        """Messages of the images from ``first`` on, ``[clients, d]``."""
        streams = self.streams.child(*purpose)
        with torch.no_grad():
            parts = messages_of(self.seen, self.known, streams, clients, first=first)
            return torch.cat([sent[:, 0] for _, sent in parts])


class _Chosen(Stateful):
    """The losses of all epochs, and the weights after the one with the smallest held-out loss."""

    def __init__(self, layers: torch.nn.Sequential, epochs: int) -> None:
        self.layers = layers
        self.losses = torch.full((epochs, len(LOSSES)), torch.nan)
        self.weights = {name: value.clone() for name, value in layers.state_dict().items()}
        self.epoch = -1

    def offer(self, epoch: int, *losses: torch.Tensor) -> None:
        """Note an epoch, and take the weights if they are the best so far."""
        self.losses[epoch] = torch.stack(losses).to(self.losses)
        least = self.losses[self.epoch, 1] if self.epoch >= 0 else torch.tensor(torch.inf)
        if self.losses[epoch, 1] < least:
            self.epoch = epoch
            self.weights = {name: value.clone() for name, value in self.layers.state_dict().items()}

    @property
    def broken(self) -> int | None:
        """The first epoch of which a loss is not finite."""
        rows = (~self.losses.isfinite().all(dim=1)).nonzero().flatten().tolist()
        return rows[0] if rows else None

    @property
    def spans(self) -> list[list[float | None]]:
        """Mean losses per span of training; None where they are not finite."""
        parts = torch.stack([part.mean(dim=0) for part in self.losses.tensor_split(min(SPANS, len(self.losses)))])
        return [[float(value) if bool(value.isfinite()) else None for value in curve] for curve in parts.T]


def _key(seed: int, setting: int) -> str:
    return f"seed{seed}/setting{setting}"
