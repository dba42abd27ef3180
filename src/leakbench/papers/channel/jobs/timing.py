"""Timing jobs: cost of training under a defense, in seconds of this machine and in operations of any."""

from __future__ import annotations

import copy
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from pydantic import Field

from leakbench.data.base import image_dataset
from leakbench.data.covariance import RunningMoments
from leakbench.defenses.base import DEFENSES, Defense
from leakbench.defenses.channel import ParameterChannel
from leakbench.defenses.clients import DefendedClients, Examples, calibrated
from leakbench.defenses.dp_sgd import DPSGD
from leakbench.effort import Effort
from leakbench.federated.client_data import ClientData
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.costs import Times, timed
from leakbench.lazy import torch
from leakbench.models.base import Network, build_network
from leakbench.models.sizes import multiply_adds
from leakbench.randomness import Streams, stream_seed
from leakbench.records import MetricInfo, Outcome, Replicate, Value

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


Method = Literal["sgd", "opacus", "channel", "dp_sgd", "parameter_channel"]
METHODS: tuple[Method, ...] = get_args(Method)
"""Plain SGD; DP-SGD by Opacus; plain SGD on images that a data-space channel made noisy; DP-SGD by this project; noise
on the parameters of the same capacity, found anew at every step (Tan et al. 2024, section 5.1)."""
OF_SAMPLES = ("opacus", "dp_sgd", "parameter_channel")
"""Methods that take the gradient of every image."""

_ONCE = ("covariance", "solve", "noise")
_ONCE_WORDS = ("products of the images", "noise of the asked capacity, from their sums", "noise on the images")


TIMES = timed(
    {
        "step": "one training step",
        **dict(zip(_ONCE, (f"once, {words}" for words in _ONCE_WORDS), strict=True)),
        "once": "what is done once, for all images",
        "training": "all epochs, extrapolated, with what is done once",
    }
)
_OVERHEAD = "over the seconds of plain SGD in the same repetition, minus one; not reproducible"
OVERHEADS = {
    "overhead": MetricInfo(unit=f"training, wall time, {_OVERHEAD}", direction="lower", axis="repetition"),
    "overhead_cpu": MetricInfo(unit=f"training, processor time, {_OVERHEAD}", direction="lower", axis="repetition"),
    "overhead_once": MetricInfo(
        unit="wall time of what is done once, over that of training by plain SGD; not reproducible",
        direction="lower",
        axis="repetition",
    ),
    "overhead_once_cpu": MetricInfo(
        unit="processor time of what is done once, over that of training by plain SGD; not reproducible",
        direction="lower",
        axis="repetition",
    ),
}
COUNTS = {
    "parameters": MetricInfo(unit="parameters", direction="none"),
    "multiply_adds": MetricInfo(unit="multiply-adds of a forward and a backward pass of one image", direction="none"),
    "training_flops": MetricInfo(unit="floating-point operations of all epochs of plain SGD", direction="none"),
    "extra_flops": MetricInfo(unit="floating-point operations that the defense adds to them", direction="lower"),
    "normal_draws": MetricInfo(unit="normal random numbers that the defense draws in all epochs", direction="lower"),
    "extra_bytes": MetricInfo(unit="bytes of the largest arrays that the defense adds", direction="lower"),
}
TIMING_METRICS = TIMES | OVERHEADS | COUNTS


@JOB_KINDS.register("timing", version=3)
class TimingJob(JobKind):
    """Time plain SGD and four defenses on one machine, in one process, in turns (Tan et al. 2024, Table 2).

    A repetition times every method once, in random order, so that what drifts on the machine hits all alike; each
    starts with the same parameters, and steps that are not timed. ``steps`` steps stand for all epochs: training takes
    ``epochs * ceil(N / B)`` times the mean step, and what a defense does once. Of that, products and noise of images
    are in proportion to ``N / images``, and solving does not depend on N.

    Data, order of the images and noise follow from the seed. Seconds do not: they are never the same twice. On a
    machine that others use, too, processor time says more than wall time; on a GPU it says nothing, and is null.

    All methods read the same batches through torch's ``DataLoader``, Opacus under Poisson sampling through its own.
    BatchNorm makes way for GroupNorm where gradients are those of images, as Opacus replaces it. The project's own
    DP-SGD and noise on parameters run without dropout, as everything behind :class:`~leakbench.models.base.Network`
    does. A method that does not fit in the memory is infeasible; the others are not.
    """

    minutes: ClassVar[int] = 120
    metrics: ClassVar[Mapping[str, MetricInfo]] = TIMING_METRICS

    epochs: int = Field(25, ge=1, description="epochs of training that steps stand for")
    steps: int = Field(ge=1, description="steps timed per method and repetition")
    warmup: int = Field(3, ge=1, description="steps before them that are not timed")
    repetitions: int = Field(10, ge=1, description="times that every method is timed")
    batch_size: int = Field(64, ge=1, description="images per step, B; under Poisson sampling on average")
    rate: float = Field(0.01, gt=0, description="learning rate")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of SGD")
    training_images: int | None = Field(
        None, ge=2, description="N that seconds are extrapolated to; by default all of the training split"
    )
    images: int | None = Field(
        None, ge=2, description="images that the channel measures and makes noisy; by default all of the training split"
    )
    channel: Literal["natural_channel", "white_channel", "personalized_channel"] = Field(
        "natural_channel", description="the data-space channel"
    )
    kappa: float = Field(300.0, gt=0, description="capacity of both channels, in nats")
    clip: float = Field(1.0, gt=0, description="bound on the norm of an image's gradient, S, of both kinds of DP-SGD")
    multiplier: float = Field(0.8, gt=0, description="standard deviation of their noise over S, z")
    poisson: bool = Field(True, description="Opacus draws each image of a batch independently, which is its default")

    def settings_of(self, job: Job) -> Iterator[Setting]:
        for method in METHODS:
            yield {"method": method}

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"repetition": self.repetitions}

    def effort(self, job: Job) -> Effort:
        steps = self.repetitions * (self.warmup + self.steps)
        return Effort(self.batch_size, 1).times(len(job.seeds) * len(METHODS) * steps)

    def run(self, job: Job, device: torch.device) -> Findings:
        return Findings([replicate for seed in job.seeds for replicate in _Bench(self, job, seed, device).replicates()])


@dataclass(frozen=True)
class Extra:
    """Cost that a defense adds to training: operations and draws over all epochs, and bytes at a time.

    An operation is an addition or a multiplication; draws are counted and not translated into operations.
    """

    flops: float = 0.0
    draws: float = 0.0
    bytes: float = 0.0


def channel_extra(images: int, pixels: int, *, coloured: bool = False) -> Extra:
    """Extra of a data-space channel: once, whatever is trained and for how long. ``N`` images of ``d`` pixels.

    The covariance is symmetric, so half of its ``2 N d^2`` operations; its eigenvectors take ``14 d^3 / 3`` at most by
    divide and conquer: ``4/3`` to make it tridiagonal, ``4/3`` to solve that, ``2`` to transform back. (Finding the
    variance then takes some hundred passes over ``d`` numbers, which is nothing.) Noise is scaled and added, ``2 N d``;
    coloured noise takes a matrix product, ``2 N d^2``. Held: noisy images in float32, and covariance and eigenvectors
    in float64.
    """
    scaling = 2 * images * pixels * (pixels if coloured else 1)
    return Extra(
        flops=images * pixels**2 + 14 * pixels**3 / 3 + scaling + (images * pixels if coloured else 0),
        draws=images * pixels,
        bytes=4 * images * pixels + 16 * pixels**2,
    )


def dp_sgd_extra(steps: int, batch_size: int, parameters: int) -> Extra:
    """Extra of DP-SGD, at every step.

    Norms of ``B`` gradients of ``p`` numbers and their weighted sum take ``2 B p`` each. Noise on the sum is scaled and
    added, ``2 p``. A gradient per image takes no more operations than their sum does, and ``B p`` numbers of memory in
    float32, which is what such a step waits for.
    """
    return Extra(
        flops=steps * (4.0 * batch_size * parameters + 2 * parameters),
        draws=steps * parameters,
        bytes=4 * batch_size * parameters,
    )


def parameter_channel_extra(steps: int, batch_size: int, parameters: int) -> Extra:
    """Extra of noise on the parameters, at every step.

    ``B`` gradients of ``p`` numbers are centred and multiplied with each other in float64, ``B p + B^2 p`` (half of a
    symmetric product), and summed, ``B p``; noise is scaled and added, ``2 p``. The ``B`` eigenvalues are nothing.
    """
    held = 4 * batch_size * parameters
    flops = parameters * (2.0 * batch_size + batch_size**2 + 2)
    return Extra(flops=steps * flops, draws=steps * parameters, bytes=held + 2 * held)


@dataclass(frozen=True)
class _Scale:
    """Factors from measured times to those of the whole training."""

    step: float
    per_image: float

    def once(self, times: dict[str, float]) -> float:
        """Seconds of what is done once."""
        covariance, solve, noise = (times.get(part, 0.0) for part in _ONCE)
        return self.per_image * (covariance + noise) + solve

    def training(self, times: dict[str, float]) -> float:
        """Seconds of all epochs, with what is done once."""
        return self.once(times) + self.step * times["step"]


class _Bench:
    """All that the methods share in one seed, and the methods."""

    def __init__(self, kind: TimingJob, job: Job, seed: int, device: torch.device) -> None:
        dataset, model = image_dataset(job.dataset.single(), "jobs of kind 'timing'"), job.model.single()
        self.kind, self.seed, self.device, self.label = kind, seed, device, job.dataset.label
        length = dataset.length("train")
        samples = dataset.load("train", range(min(kind.images or length, length)))
        self.images, self.labels = dataset.normalise(samples.values), samples.labels
        self.training_images = kind.training_images or length
        network = build_network(model, dataset.shape, dataset.classes, seed, device)
        self.parameters, self.module = network.dimension, network.trainable_module()
        self.multiply_adds = multiply_adds(model, dataset.shape, dataset.classes)
        self.channel: Defense = DEFENSES.get(kind.channel).model_validate({"kappa": kind.kappa})
        self.dp_sgd: Defense = DPSGD(clip=kind.clip, multiplier=kind.multiplier)
        self.steps = kind.epochs * math.ceil(self.training_images / kind.batch_size)

    def replicates(self) -> Iterator[Replicate]:
        """One per method, with a list over repetitions of every time."""
        times: dict[Method, list[Times]] = {method: [] for method in METHODS}
        reasons = {method: reason for method in METHODS if (reason := self._too_large(method))}
        self._warm_up_linear_algebra()
        for repetition in range(self.kind.repetitions):
            order = torch.randperm(len(METHODS), generator=self._generator("order of methods", repetition)).tolist()
            for method in (METHODS[place] for place in order):
                if method in reasons:
                    continue
                try:
                    times[method].append(self._time(method, repetition))
                except torch.OutOfMemoryError:
                    if method == "sgd":
                        raise
                    reasons[method] = "out of memory on the GPU"
        for method in METHODS:
            yield self._replicate(method, times[method], times["sgd"], reasons.get(method))

    def _time(self, method: Method, repetition: int) -> Times:
        times, images = Times(), self.images
        if method == "channel":
            images = self._protected(times, repetition)
        steps = self._runs[method](images, repetition)
        for _ in range(self.kind.warmup):  # the first one sets up, too
            next(steps)
        with times.of("step", self.device):
            for _ in range(self.kind.steps):
                next(steps)
        times.wall["step"] /= self.kind.steps
        times.cpu["step"] /= self.kind.steps
        return times

    @property
    def _runs(self) -> dict[Method, Callable[[torch.Tensor, int], Iterator[None]]]:
        return {
            "sgd": self._plain,
            "channel": self._plain,
            "opacus": self._opacus,
            "dp_sgd": partial(self._defended, self.dp_sgd),
            "parameter_channel": partial(self._defended, ParameterChannel(kappa=self.kind.kappa)),
        }

    def _protected(self, times: Times, repetition: int) -> torch.Tensor:
        """The images with the channel's noise, where the data loader wants them; measures what is done once."""
        running = RunningMoments()
        with times.of("covariance", self.device):
            data = ClientData(self.images[None].to(self.device))
            running.update(data.images[0])
        with times.of("solve", self.device):
            data.moments = [running.moments()]
            ready = calibrated(self.channel, data)
        samples = Examples(data.images, self.labels[None].to(self.device))
        streams = self._streams("channel", repetition)
        with times.of("noise", self.device):
            client = DefendedClients(ready, streams, samples)
            return client.samples.inputs[0].cpu()

    def _warm_up_linear_algebra(self) -> None:
        """Calibrate a channel for images of a few pixels, since the libraries' first call costs more."""
        self.channel.calibrate(ClientData(self.images[None, :8, :, :2, :2].to(self.device)))

    def _plain(self, images: torch.Tensor, repetition: int) -> Iterator[None]:
        module = copy.deepcopy(self.module)
        optimiser = self._sgd(module)
        for inputs, targets in self._batches(self._loader(images, repetition)):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(module(inputs), targets).backward()
            optimiser.step()
            yield

    def _opacus(self, images: torch.Tensor, repetition: int) -> Iterator[None]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Secure RNG turned off")
            warnings.filterwarnings("ignore", message="Full backward hook is firing")
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            from opacus import PrivacyEngine

            module = without_batch_norm(self.module)
            module, optimiser, loader = PrivacyEngine().make_private(
                module=module,
                optimizer=self._sgd(module),
                data_loader=self._loader(images, repetition),
                noise_multiplier=self.kind.multiplier,
                max_grad_norm=self.kind.clip,
                poisson_sampling=self.kind.poisson,
                noise_generator=self._generator("opacus", repetition, device=self.device),
            )
        for inputs, targets in self._batches(loader):
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Full backward hook is firing")
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(module(inputs), targets).backward()
                optimiser.step()
            yield

    def _defended(self, defense: Defense, images: torch.Tensor, repetition: int) -> Iterator[None]:
        network = Network(without_batch_norm(self.module), self.device)
        parameters, velocity = network.parameters, torch.zeros(network.dimension, device=self.device)
        streams = self._streams(defense.name, repetition)
        client = DefendedClients(defense, streams)
        for number, (inputs, targets) in enumerate(self._batches(self._loader(images, repetition))):
            steps = ClientSteps(network, parameters, inputs[None], targets[None], streams)
            update = client.aggregate(client.send(steps, streams.child("step", number)))[0]
            velocity.mul_(self.kind.momentum).add_(update)
            parameters = parameters - self.kind.rate * velocity
            yield

    def _sgd(self, module: torch.nn.Module) -> torch.optim.SGD:
        return torch.optim.SGD(module.parameters(), lr=self.kind.rate, momentum=self.kind.momentum)

    def _loader(self, images: torch.Tensor, repetition: int) -> DataLoader[tuple[torch.Tensor, ...]]:
        """Shuffled batches, the same for every method of a repetition."""
        return torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(images, self.labels),
            batch_size=min(self.kind.batch_size, len(images)),
            shuffle=True,
            generator=self._generator("order of images", repetition),
        )

    def _batches(self, loader: DataLoader[tuple[torch.Tensor, ...]]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Epoch after epoch, on the device; incomplete batches are left out, for their steps are shorter."""
        while True:
            for images, labels in loader:
                if len(images) == loader.batch_size or loader.batch_size is None:
                    yield images.to(self.device), labels.to(self.device)

    def _generator(self, purpose: str, repetition: int, device: torch.device | str = "cpu") -> torch.Generator:
        return torch.Generator(device).manual_seed(stream_seed(self.label, self.seed, purpose, repetition))

    def _streams(self, purpose: str, repetition: int) -> Streams:
        return Streams([(self.label, self.seed, purpose, repetition)])

    def _extra(self, method: Method) -> Extra:
        if method == "sgd":
            return Extra()
        if method == "channel":
            coloured = self.kind.channel == "white_channel"
            return channel_extra(self.training_images, self.images[0].numel(), coloured=coloured)
        if method == "parameter_channel":
            return parameter_channel_extra(self.steps, self.kind.batch_size, self.parameters)
        return dp_sgd_extra(self.steps, self.kind.batch_size, self.parameters)

    def _too_large(self, method: Method) -> str | None:
        """Reason not to try a method: asking the operating system for too much memory ends the process."""
        needed, total = self._extra(method).bytes, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if method not in OF_SAMPLES or self.device.type != "cpu" or needed < total:
            return None
        return f"gradients per image take {needed / 2**30:.0f} GiB, and the machine has {total / 2**30:.0f}"

    def _replicate(self, method: Method, timed: list[Times], sgd: list[Times], reason: str | None) -> Replicate:
        extra, scale = self._extra(method), _Scale(self.steps, self.training_images / len(self.images))
        metrics: dict[str, Value] = {
            "parameters": float(self.parameters),
            "multiply_adds": self.multiply_adds,
            "training_flops": 2 * self.multiply_adds * self.kind.epochs * self.training_images,
            "extra_flops": extra.flops,
            "normal_draws": extra.draws,
            "extra_bytes": extra.bytes,
        }
        setting: dict[str, float | int | str | bool] = {"method": method}
        if reason is not None:
            missing = [name for name in TIMING_METRICS if name not in COUNTS]
            return Replicate(
                seed=self.seed,
                setting=setting,
                outcome=Outcome(status="infeasible", reason=f"{method}: {reason}"),
                metrics=metrics | dict.fromkeys(missing),
                reasons=dict.fromkeys(missing, reason),
            )
        for part in ("step", *_ONCE):
            metrics[f"{part}_wall_s"] = [times.wall.get(part, 0.0) for times in timed]
            metrics[f"{part}_cpu_s"] = [times.cpu.get(part, 0.0) for times in timed]
        pairs = list(zip(timed, sgd, strict=True))
        metrics["once_wall_s"] = [scale.once(times.wall) for times in timed]
        metrics["once_cpu_s"] = [scale.once(times.cpu) for times in timed]
        metrics["training_wall_s"] = [scale.training(times.wall) for times in timed]
        metrics["training_cpu_s"] = [scale.training(times.cpu) for times in timed]
        metrics["overhead"] = [scale.training(times.wall) / scale.training(plain.wall) - 1 for times, plain in pairs]
        metrics["overhead_cpu"] = [scale.training(times.cpu) / scale.training(plain.cpu) - 1 for times, plain in pairs]
        metrics["overhead_once"] = [scale.once(times.wall) / scale.training(plain.wall) for times, plain in pairs]
        metrics["overhead_once_cpu"] = [scale.once(times.cpu) / scale.training(plain.cpu) for times, plain in pairs]
        reasons: dict[str, str] = {}
        if self.device.type == "cuda":
            clocks = [name for name in TIMING_METRICS if name.endswith(("_cpu", "_cpu_s"))]
            metrics |= dict.fromkeys(clocks)
            reasons = dict.fromkeys(clocks, "a GPU computes, so the time of the processor says nothing")
        return Replicate(seed=self.seed, setting=setting, metrics=metrics, reasons=reasons)


def without_batch_norm(module: torch.nn.Module) -> torch.nn.Module:
    """A copy with the GroupNorm that Opacus puts in place of BatchNorm, layer by layer.

    (Opacus copies a whole module by pickling it, which a class that is made on first use does not allow.)
    """
    from opacus.validators import ModuleValidator

    other = copy.deepcopy(module)
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            other.set_submodule(name, ModuleValidator.fix(layer))
    return other
