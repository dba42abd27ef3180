"""Leakage jobs: recovery rates of an attack on clients' data, and the Bayesian privacy leakage that they imply.

An attack runs many times, with fresh starts and fresh randomness of the defense, on clients' uploads from several
models. Counted recoveries are an attacker's belief, and its distance to the prior belief is leakage.
Source: Zhang, Kang et al. (2023), section 7, Algorithms 1 to 3.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, get_args

from pydantic import Field, field_validator, model_validator

from leakbench.attacks.base import Attack, Grant, Knowledge, Observations, Reconstruction
from leakbench.data.base import ImageDataset, image_dataset
from leakbench.defenses.base import Defense
from leakbench.defenses.clients import DefendedClients, Examples
from leakbench.defenses.tuned import SMALLEST_SPREAD, Tuned, Tuning
from leakbench.effort import Effort
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.batches import without_replacement
from leakbench.federated.message import Message, gains, stacked
from leakbench.federated.partition import dirichlet_partition, iid_partition
from leakbench.federated.step import ClientSteps
from leakbench.federated.updates import Runs, run_updates
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.victims import initial_network
from leakbench.lazy import torch
from leakbench.metrics.assignment import assign, reorder
from leakbench.metrics.image import psnr, ssim
from leakbench.models.base import Network
from leakbench.papers.tfl_meta.theory.leakage_estimation import (
    Constants,
    bootstrap_constants,
    class_belief,
    constants,
    null_prior,
    population_prior,
    recovery_counts,
    uniform_prior,
)
from leakbench.randomness import Streams, generator, stream_seed
from leakbench.records import MetricInfo, Outcome, Replicate, Value
from leakbench.theory.distortion import noise_steepness
from leakbench.theory.leakage_surrogate import leakage

Prior = Literal["null", "null_upper", "uniform", "population"]
PRIORS: tuple[Prior, ...] = get_args(Prior)
"""Prior beliefs of an attacker: the rate at which what is reconstructed from another client's upload passes for a datum
(the paper leaves the prior open, and all else depends on it), the upper end of that rate's interval, the same for every
candidate, or one in the client's data."""
CONFIDENCE = 0.95
"""Confidence of the upper end of the null attack's rate, one-sided."""

AUXILIARY = 512
"""Test images, at most, that reference attackers have."""

ROWS = 64 * 2**20
"""Coordinates of uploads that are attacked at once; only memory depends on it."""


def _of_clients(unit: str, direction: Literal["higher", "lower", "none"] = "higher") -> MetricInfo:
    return MetricInfo(unit=unit, direction=direction, axis="client")


RECOVERY_METRICS = {
    "recovery": _of_clients("part of data and attempts in which the similarity exceeds the threshold"),
    "recovery_low": _of_clients("the same, low end of Wilson's 95 % interval"),
    "recovery_high": _of_clients("the same, high end of Wilson's 95 % interval"),
    "null_recovery": _of_clients("the same, of reconstructions from another client's upload", "none"),
    "psnr": _of_clients("dB, mean over data and attempts, after assignment"),
    "ssim": _of_clients("structural similarity, mean over data and attempts, after assignment"),
    "classes": _of_clients("nats^(1/2), leakage about classes, null prior (Algorithm 3, corrected)"),
    "classes_sum": _of_clients("sum of the estimates of Algorithm 3 as printed", "none"),
    "diverged": MetricInfo(unit="attempts that became non-finite, of all clients and models", direction="none"),
    "bits": MetricInfo(unit="bits on the wire per client and step", direction="lower"),
    "trials": MetricInfo(unit="attempts on an upload of each client at all models, M T", direction="none"),
}
LAW_METRICS = {
    "delta": _of_clients("half the range of an upload's coordinate over batches, the largest", "none"),
    "delta_median": _of_clients("the same, the median over coordinates", "none"),
    "sigma_median": _of_clients("standard deviation of a coordinate over batches, the median of positive ones", "none"),
    "dead": _of_clients("part of the coordinates that are the same for all batches", "none"),
    "steepness": _of_clients(f"A, standard deviations of {SMALLEST_SPREAD:g} at least", "none"),
    "dimension": MetricInfo(unit="parameters", direction="none"),
}

TUNING_METRICS = {
    "tau": MetricInfo(unit="total variation that the budget asks for", direction="none"),
    "parameter": MetricInfo(unit="of the mechanism: modulus, bound of masks, variance, or part kept", direction="none"),
}
"""Metrics of defenses that are tuned to a budget."""
NO_PARAMETER = {"parameter": "no protection is needed"}
EXCLUDED = "infinite: the prior excludes what attempts found"


Part = tuple[int, int]
"""Numbers of models and of attempts at each, M and T."""


def leakage_metric_name(constant: str, prior: Prior, smoothing: float | None = None, trials: int | None = None) -> str:
    """``xi/null``; with another smoothing than the first ``xi/null/0.001``; of the first 8 attempts ``xi/null/n8``.

    >>> leakage_metric_name("leakage", "uniform", 0.001, 32)
    'leakage/uniform/0.001/n32'
    """
    return f"{constant}/{prior}" + ("" if smoothing is None else f"/{smoothing:g}") + of_trials(trials)


def of_trials(trials: int | None) -> str:
    """The end of the name of what is estimated from some of the attempts, ``/n8``; empty for all."""
    return "" if trials is None else f"/n{trials}"


def _constants_metrics(smoothing: tuple[float, ...], fewer: tuple[Part, ...]) -> dict[str, MetricInfo]:
    what = {
        "leakage": "nats^(1/2), root of the Jensen-Shannon divergence of belief and prior; C1 without a defense",
        "xi": "nats, largest log ratio of belief and prior",
        "failed": "nats^(1/2), leakage if no attempt recovered anything",
    }
    metrics = {}
    for (name, unit), prior, alpha in itertools.product(what.items(), PRIORS, smoothing):
        words = f"{unit}; {prior} prior" + (f", alpha = {alpha:g}" if alpha != smoothing[0] else "")
        suffix = None if alpha == smoothing[0] else alpha
        metrics[leakage_metric_name(name, prior, suffix)] = _of_clients(words)
        if name == "failed":
            continue
        for part in fewer:
            few = "{} models, {} attempts at each".format(*part)
            metrics[leakage_metric_name(name, prior, suffix, math.prod(part))] = _of_clients(f"{words}, {few}")
        for end in ("low", "high") if suffix is None else ():
            metrics[leakage_metric_name(f"{name}_{end}", prior)] = _of_clients(f"{words}, {end} end of 95 %, bootstrap")
    for name, part in itertools.product(("recovery", "null_recovery"), fewer):
        known = RECOVERY_METRICS[name]
        metrics[name + of_trials(math.prod(part))] = known.model_copy(
            update={"unit": f"{known.unit}; some models and attempts"}
        )
    return metrics


@JOB_KINDS.register("leakage", version=4)
class LeakageJob(JobKind):
    """Count what an attack recovers of every client's batch: attempts at several models, all searched side by side.

    ``models`` networks are trained for ``steps`` steps of SGD on all clients' images (Algorithm 1). Every client
    uploads the gradient of the first ``batch_size`` of its images at each model, ``attempts`` times, with fresh
    randomness of the defense, and every upload is attacked once, from a fresh start (Algorithm 2). A datum is recovered
    if its similarity to the reconstruction that is assigned to it exceeds a threshold. The attacker knows the model at
    which a gradient was taken. A diverged attempt recovers nothing. Reference attackers
    also have test images, which no client holds.
    """

    memory_mb: ClassVar[int] = 16000
    minutes: ClassVar[int] = 240
    uses_attacks: ClassVar[bool] = True
    gated_metrics: ClassVar[Mapping[str, MetricInfo]] = RECOVERY_METRICS
    victim_fields: ClassVar[tuple[str, ...]] = ("clients", "images_per_client", "alpha", "batch_size")

    clients: int = Field(4, ge=2, description="clients, K; another one's upload is each one's null attack")
    images_per_client: int = Field(ge=1, description="images of each client, from the train split")
    alpha: float | None = Field(None, gt=0, description="concentration of the clients' labels; null: i.i.d.")
    batch_size: int = Field(2, ge=1, description="images of an upload, S")
    models: int = Field(ge=1, description="models, M")
    attempts: int = Field(ge=1, description="attacks on each client at each model, T")
    steps: int = Field(ge=0, description="steps of SGD that a model is trained for, R")
    training_batch: int = Field(8, ge=1, description="images of such a step")
    rate: float = Field(gt=0, description="learning rate of such a step")
    thresholds: tuple[float, ...] = Field(
        (25.0,), description="of PSNR in dB, one setting each; the first counts where one number is needed"
    )
    ssim_thresholds: tuple[float, ...] = Field((), description="of SSIM, one more setting each")
    smoothing: tuple[float, ...] = Field((0.5,), description="alpha of beliefs; intervals are of the first")
    resamples: int = Field(1000, ge=1, description="of the bootstrap over attempts")
    law_batches: int = Field(400, ge=2, description="batches of each client that say how its upload varies")
    knowledge: tuple[Grant, ...] = Field(("pixel_range",), description="side knowledge: labels, pixel_range")
    fewer: tuple[Part, ...] = Field(
        (), description="models and attempts, M and T, of which the first ones alone are counted, too, for constants"
    )
    keep_attempts: bool = Field(False, description="keep which attempt recovered what, and which null attack")
    constants: str | None = Field(
        None,
        description="experiment of the same paper whose job 'leakage' estimated the constants on this data set: its "
        "null attacks are the prior, and defenses that are tuned to a budget are tuned by it",
    )

    @field_validator("thresholds", "smoothing")
    @classmethod
    def _some_and_distinct(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        if not values or len(set(values)) < len(values):
            raise ValueError("one or more values, each once")
        return values

    @model_validator(mode="after")
    def _parts_of_all(self) -> LeakageJob:
        if len({*self.thresholds, *self.ssim_thresholds}) < len(self.thresholds + self.ssim_thresholds):
            raise ValueError("ssim_thresholds: one of them is a threshold of PSNR, too")
        if self.batch_size > self.images_per_client:
            raise ValueError(f"batch_size: at most images_per_client ({self.images_per_client}), got {self.batch_size}")
        for models, attempts in self.fewer:
            if not (1 <= models <= self.models and 1 <= attempts <= self.attempts):
                raise ValueError(f"fewer: at most models ({self.models}) and attempts ({self.attempts}), at least 1")
        totals = [math.prod(part) for part in self.fewer]
        if twice := sorted({total for total in totals if totals.count(total) > 1}):
            raise ValueError(f"fewer: models times attempts has to differ; {twice[0]} is there twice")
        if self.fewer and self.constants:
            raise ValueError("fewer: the prior is that of the constants, of all their attempts; give fewer there")
        return self

    @field_validator("knowledge")
    @classmethod
    def _of_images(cls, grants: tuple[Grant, ...]) -> tuple[Grant, ...]:
        unknown = sorted(set(grants) - {"labels", "pixel_range", "noise_variance"})
        if unknown:
            raise ValueError(f"{', '.join(unknown)}: allowed are labels, pixel_range, noise_variance")
        return grants

    def reads(self, attack: Attack | None) -> Mapping[str, str]:
        return {self.name: "constants"} if self.constants else {}

    def effort(self, job: Job) -> Effort:
        trained = Effort(self.training_batch, 1).times(self.steps).beside(self.models)
        law = Effort(self.law_batches * self.batch_size, 1).times(self.clients)
        one = Effort(self.batch_size, 1).plus(job.attack_effort(self.batch_size))
        uploads = one.beside(self.models * self.attempts * self.clients).times(job.defense.count)
        return trained.plus(law).plus(uploads).times(len(job.seeds))

    def volume(self, job: Job) -> float:
        samples = job.defense.count * len(self.tests) * self.clients * self.batch_size
        return len(job.seeds) * float(samples * math.prod(job.dataset.single().shape))

    @property
    def distinct_victims(self) -> bool:
        return True

    def metrics_of(self, job: Job) -> Mapping[str, MetricInfo]:
        tuning = TUNING_METRICS if issubclass(job.defense.component, Tuned) else {}
        return RECOVERY_METRICS | _constants_metrics(self.smoothing, self.fewer) | LAW_METRICS | tuning

    @property
    def tests(self) -> list[Setting]:
        """Tests of recovery: settings of the replicates of one setting of the defense."""
        by_ssim: list[Setting] = [{"threshold": each, "similarity": "ssim"} for each in self.ssim_thresholds]
        return [{"threshold": each} for each in self.thresholds] + by_ssim

    def settings_of(self, job: Job) -> Iterator[Setting]:
        for setting, _ in job.defense.settings():
            yield from self.at_thresholds(setting)

    def at_thresholds(self, setting: Setting) -> list[Setting]:
        """Settings of the replicates of one setting of the defense."""
        return [{**setting, **test} for test in self.tests]

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"client": self.clients}

    def granted_to(self, attack: Attack) -> set[Grant]:
        """Side knowledge that an attack may have."""
        return set(self.knowledge) if attack.observes else {*self.knowledge, "auxiliary_images"}

    def run(self, job: Job, device: torch.device) -> Findings:
        assert job.attack is not None
        settings = list(job.defense.settings())
        replicates: list[Replicate] = []
        tensors: dict[str, torch.Tensor] = {}
        try:
            for attack, places in list(job.faced(dict(enumerate(defense for _, defense in settings)))):
                missing = sorted(attack.needs - self.granted_to(attack))
                if missing:
                    raise Infeasible(f"attack '{job.attack.label}' needs {', '.join(missing)}, which is not granted")
                for seed in job.seeds:
                    measurement = _Measurement(self, job, attack, seed, device)
                    of_seed, tensors_of_seed = measurement.of([settings[place] for place in places])
                    replicates += of_seed
                    tensors |= tensors_of_seed
        except Infeasible as error:
            outcome = Outcome(status="infeasible", reason=str(error))
            return Findings(job.without_numbers(outcome))
        return Findings(replicates, tensors)


class _Attempts(NamedTuple):
    """Results of attempts, each ``[K, M, T, S]``: similarity of a client's data to what comes of its upload.

    ``null_psnr``, ``null_ssim``: to what comes of the next client's upload.
    ``shown``: pixels of the first attempt at the first model, ``[K, S, C, H, W]``. ``diverged``: attempts that became
    non-finite.
    """

    psnr: torch.Tensor
    ssim: torch.Tensor
    null_psnr: torch.Tensor
    null_ssim: torch.Tensor
    shown: torch.Tensor
    diverged: float
    bits: float

    def passed(self, test: Setting) -> tuple[torch.Tensor, torch.Tensor]:
        """Whether the attack recovers a datum, and the null attack does, by one test, boolean."""
        by_ssim, threshold = "similarity" in test, float(test["threshold"])
        pair = (self.ssim, self.null_ssim) if by_ssim else (self.psnr, self.null_psnr)
        return pair[0] > threshold, pair[1] > threshold


class _Measured(NamedTuple):
    """Results of one setting of a defense.

    Attributes:
        replicates: one per test of recovery.
        recovered: which attempts recovered which data, and which null attacks, ``[K, M, T, S]`` each, per test.
        shown: pixels of some reconstructions, ``[K, S, C, H, W]``.
        constants: by the first test, by name.
    """

    replicates: list[Replicate]
    recovered: list[tuple[torch.Tensor, torch.Tensor]]
    shown: torch.Tensor
    constants: dict[str, torch.Tensor]


@dataclass(frozen=True)
class _Clients:
    """The clients of one seed: models and data.

    Attributes:
        network: the architecture.
        parameters: of every model, ``[M, d]``.
        images: pixels of the attacked batches, ``[K, S, C, H, W]``.
        labels: ``[K, S]``.
        held: network inputs of all images, ``[K, N, C, H, W]``, and their labels, ``[K, N]``.
    """

    network: Network
    parameters: torch.Tensor
    images: torch.Tensor
    labels: torch.Tensor
    held: tuple[torch.Tensor, torch.Tensor]


class _Measurement:
    """One seed of a job."""

    def __init__(self, kind: LeakageJob, job: Job, attack: Attack, seed: int, device: torch.device) -> None:
        self.kind, self.job, self.attack, self.seed, self.device = kind, job, attack, seed, device
        self.label = job.dataset.label
        self.dataset = image_dataset(job.dataset.single(), "jobs of kind 'leakage'")
        self.clients = self._clients(self.dataset)

    def _clients(self, dataset: ImageDataset) -> _Clients:
        kind, count = self.kind, dataset.length("train")
        seed = stream_seed(self.label, self.seed, "partition")
        if kind.alpha is None:
            rows = iid_partition(count, kind.clients, kind.images_per_client, seed)
        else:
            labels = dataset.load("train", range(count)).labels
            rows = dirichlet_partition(labels, kind.clients, kind.images_per_client, kind.alpha, seed)
        samples = dataset.load("train", rows.flatten().tolist())
        pixels = samples.values.unflatten(0, tuple(rows.shape)).to(self.device)
        labels = samples.labels.unflatten(0, tuple(rows.shape)).to(self.device)
        networks = [
            initial_network(dataset, self.label, self.job.model.single(), self.seed, self.device, number)
            for number in range(kind.models)
        ]
        held = dataset.normalise(pixels), labels
        parameters = self._trained(networks[0], torch.stack([network.parameters for network in networks]), held)
        size = kind.batch_size
        return _Clients(networks[0], parameters, pixels[:, :size], labels[:, :size], held)

    def _trained(
        self, network: Network, parameters: torch.Tensor, held: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Algorithm 1: all models after R steps on batches of their own, ``[M, d]``.

        Raises:
            ConfigError: a model became non-finite.
        """
        streams = Streams([(self.label, self.seed, "model", number) for number in range(self.kind.models)])
        images, labels = (part.flatten(0, 1) for part in held)
        size = min(self.kind.training_batch, len(labels))
        runs = Runs(parameters, self.kind.steps)

        def update(step: int) -> None:
            rows = without_replacement(streams.child("batch", step), len(labels), size, self.device)
            steps = ClientSteps(network, runs.parameters, images[rows], labels[rows], streams)
            moved = runs.parameters - self.kind.rate * steps.gradient
            runs.advance(step, moved, steps.loss, moved.isfinite().all(dim=1))

        run_updates("training models", self.kind.steps, update, {"runs": runs})
        if not bool(runs.alive.all()):
            raise ConfigError(f"the models became non-finite in {self.kind.steps} steps; lower rate ({self.kind.rate})")
        return runs.parameters

    def of(self, settings: list[tuple[Setting, Defense]]) -> tuple[list[Replicate], dict[str, torch.Tensor]]:
        """A replicate per setting of the defense and threshold, and the tensors to keep."""
        law, law_metrics = self._law()
        measured = self._measured(settings, law_metrics)
        tensors = dict(law)
        if len(settings) == 1:
            tensors |= measured[0].constants
        tensors["victims"] = self.clients.images.cpu()
        tensors["reconstructions"] = torch.stack([each.shown for each in measured for _ in self.kind.tests])
        recovered = [attempts for each in measured for attempts in each.recovered]
        if self.kind.keep_attempts and recovered:
            for name, attempts in zip(("recovered", "null_recovered"), zip(*recovered, strict=True), strict=True):
                tensors[name] = torch.stack(attempts).byte()
        replicates = [replicate for each in measured for replicate in each.replicates]
        return replicates, {f"seed{self.seed}/{name}": tensor for name, tensor in tensors.items()}

    def _measured(self, settings: list[tuple[Setting, Defense]], law: dict[str, Value]) -> list[_Measured]:
        """Settings of the defense, tuned to their budgets where they have one, in one search."""
        tuned: dict[int, tuple[Defense, Tuning | None]] = {}
        measured: dict[int, _Measured] = {}
        for place, (setting, defense) in enumerate(settings):
            try:
                tuning = defense.tuning(self.job.kept) if isinstance(defense, Tuned) else None
                tuned[place] = (tuning.defense if tuning else defense, tuning)
            except Infeasible as error:
                measured[place] = self._beyond_budget(setting, str(error))
        attempts = self._attempts([defense for defense, _ in tuned.values()])
        for (place, (_, tuning)), of_setting in zip(tuned.items(), attempts, strict=True):
            measured[place] = self._judged(settings[place][0], tuning, of_setting, law)
        return [measured[place] for place in range(len(settings))]

    def _judged(self, setting: Setting, tuning: Tuning | None, attempts: _Attempts, law: dict[str, Value]) -> _Measured:
        """One setting of the defense by its attempts."""
        values: dict[str, Value] = {
            "psnr": attempts.psnr.flatten(1).mean(dim=1).tolist(),
            "ssim": attempts.ssim.flatten(1).mean(dim=1).tolist(),
            "diverged": attempts.diverged,
            "bits": attempts.bits,
            "trials": float(self.kind.models * self.kind.attempts),
        }
        if tuning is not None:
            values |= {"tau": tuning.tau, "parameter": tuning.parameter}
        reasons = {} if tuning is None or tuning.parameter is not None else NO_PARAMETER
        passed = [attempts.passed(test) for test in self.kind.tests]
        measured = _Measured([], passed, attempts.shown, {})
        for test, (recovered, null) in zip(self.kind.tests, passed, strict=True):
            counted = self._counted(recovered, null, test)
            metrics = values | counted.values | law
            missing = [name for name, value in counted.values.items() if isinstance(value, list) and None in value]
            replicate = Replicate(seed=self.seed, setting={**setting, **test}, metrics=metrics)
            replicate.reasons = reasons | dict.fromkeys(missing, EXCLUDED)
            measured.replicates.append(replicate)
            if test == self.kind.tests[0]:
                measured.constants.update(counted.constants)
        return measured

    def _beyond_budget(self, setting: Setting, reason: str) -> _Measured:
        """A setting whose budget no parameter meets."""
        outcome, settings = Outcome(status="infeasible", reason=reason), self.kind.at_thresholds(setting)
        lost = self.job.without_numbers(outcome, seeds=[self.seed], settings=settings)
        return _Measured(lost, [], torch.full_like(self.clients.images, torch.nan).cpu(), {})

    def _attempts(self, defenses: Sequence[Defense]) -> list[_Attempts]:
        """All uploads of every client under each of several settings, attacked."""
        kind, clients = self.kind, self.clients
        rows = kind.attempts * kind.clients
        at_once = max(1, ROWS // (rows * clients.network.dimension))
        parts: list[list[tuple[torch.Tensor, ...]]] = [[] for _ in defenses]
        bits = [0.0] * len(defenses)
        for models in torch.arange(kind.models).split(at_once):
            numbers = models.tolist()
            beside = max(1, at_once // len(numbers))
            for first in range(0, len(defenses), beside):
                places = range(len(defenses))[first : first + beside]
                several = [[self._uploads(defenses[place], number) for number in numbers] for place in places]
                reconstruction = self._attack(list(itertools.chain(*several)), numbers * len(several))
                lost = reconstruction.diverged_at >= 0
                results = (*self._similarities(reconstruction, lost), lost)
                for place, messages, *of_setting in zip(
                    places, several, *(each.chunk(len(several)) for each in results), strict=True
                ):
                    bits[place] = max([bits[place], *(message.bits for message in messages)])
                    parts[place].append(tuple(of_setting))

        def by_client(values: torch.Tensor) -> torch.Tensor:
            """From rows ordered by model, attempt and client to ``[K, M, T, S]``."""
            ordered: torch.Tensor = values.unflatten(0, (kind.models, kind.attempts, kind.clients)).movedim(2, 0).cpu()
            return ordered

        attempts: list[_Attempts] = []
        for of_setting, size in zip(parts, bits, strict=True):
            *scores, pixels, diverged = (torch.cat(each) for each in zip(*of_setting, strict=True))
            psnr, ssim, null_psnr, null_ssim = map(by_client, scores)
            shown = pixels[: kind.clients].cpu()
            attempts.append(_Attempts(psnr, ssim, null_psnr, null_ssim, shown, float(diverged.sum()), size))
        return attempts

    def _keys(self, model: int) -> list[tuple[str | int, ...]]:
        """Keys of the random streams of all uploads at a model: attempt after attempt, in each client after client."""
        attempts, clients = range(self.kind.attempts), range(self.kind.clients)
        return [(self.label, self.seed, "upload", model, *at) for at in itertools.product(attempts, clients)]

    def _uploads(self, defense: Defense, model: int) -> Message:
        """All clients' uploads at a model, attempt after attempt: each is the first of its client."""
        clients, times, size = self.clients, self.kind.attempts, self.kind.batch_size
        streams = Streams(self._keys(model))
        samples = Examples(clients.held[0][:, :size].repeat(times, 1, 1, 1, 1), clients.labels.repeat(times, 1))
        defended = DefendedClients(defense, streams, samples, per_server=self.kind.clients)
        batch = defended.protect_data(defended.take(), streams.child("defense"))
        steps = ClientSteps(clients.network, clients.parameters[model], *batch, streams)
        return defended.send(steps, streams.child("defense"))

    def _attack(self, messages: list[Message], models: list[int]) -> Reconstruction:
        """Uploads at some models, a message for each, as observations of one search."""
        clients, rows = self.clients, self.kind.attempts * self.kind.clients
        parameters = clients.parameters[models]
        views = [message.view() for message in messages]
        observations = Observations(
            clients.network,
            parameters[0] if len(set(models)) == 1 else parameters.repeat_interleave(rows, dim=0),
            torch.cat(views),
            (self.kind.batch_size, *clients.held[0].shape[2:]),
            marked=stacked([message.marked for message in messages]),
            gain=gains(messages, views),
        )
        observations.check()
        granted = self.kind.granted_to(self.attack)
        variance = stacked([message.noise_variance for message in messages])
        knowledge = Knowledge(
            labels=clients.labels.repeat(len(observations) // len(clients.labels), 1) if "labels" in granted else None,
            pixel_range=self.dataset.pixel_range(self.device) if "pixel_range" in granted else None,
            noise_variance=variance if "noise_variance" in granted else None,
            auxiliary_images=self._auxiliary() if "auxiliary_images" in granted else None,
        )
        streams = Streams([key for model in models for key in self._keys(model)]).child("attack")
        return self.attack.reconstruct(observations, knowledge, streams)

    def _auxiliary(self) -> torch.Tensor:
        """Network inputs of test images, ``[m, C, H, W]``."""
        rows = range(min(AUXILIARY, self.dataset.length("test")))
        return self.dataset.normalise(self.dataset.load("test", rows).values.to(self.device))

    def _similarities(self, reconstruction: Reconstruction, lost: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """PSNR and SSIM to the clients' data, both of the null attack, ``[n, S]`` each; assigned pixels.

        A null attack compares a client's data with what comes of the next client's upload. Diverged attempts are as far
        from everything as black from white.
        """
        images = self.clients.images
        pixels = self.dataset.denormalise(reconstruction.images).nan_to_num().clamp(0, 1)
        truth = images.repeat(len(pixels) // len(images), 1, 1, 1, 1)

        def measured(guesses: torch.Tensor, failed: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
            assigned = reorder(guesses, assign(guesses, truth))
            scores = [
                metric(assigned.flatten(0, 1), truth.flatten(0, 1)).view(truth.shape[:2]) for metric in (psnr, ssim)
            ]
            return assigned, [each.masked_fill(failed[:, None], 0.0) for each in scores]

        def of_the_next_client(values: torch.Tensor) -> torch.Tensor:
            turned: torch.Tensor = values.unflatten(0, (-1, len(images))).roll(-1, dims=1).flatten(0, 1)
            return turned

        assigned, scores = measured(pixels, lost)
        _, null = measured(of_the_next_client(pixels), of_the_next_client(lost))
        return *scores, *null, assigned

    def _law(self) -> tuple[dict[str, torch.Tensor], dict[str, Value]]:
        """Spread of uploads at the first model over batches of the clients' own images."""
        images, labels = self.clients.held
        spread, half = [], []
        for client in range(self.kind.clients):
            streams = Streams([(self.label, self.seed, "law", client, batch) for batch in range(self.kind.law_batches)])
            rows = without_replacement(streams, labels.shape[1], self.kind.batch_size, self.device)
            uploads = ClientSteps(
                self.clients.network, self.clients.parameters[0], images[client][rows], labels[client][rows], streams
            ).gradient.double()
            spread.append(uploads.std(dim=0).cpu())
            half.append(((uploads.amax(dim=0) - uploads.amin(dim=0)) / 2).cpu())
        sigma, delta = torch.stack(spread), torch.stack(half)
        moving = sigma > 0
        return {"sigma": sigma, "delta": delta.amax(dim=1)}, {
            "delta": delta.amax(dim=1).tolist(),
            "delta_median": delta.median(dim=1).values.tolist(),
            "sigma_median": [float(row[live].median()) for row, live in zip(sigma, moving, strict=True)],
            "dead": (~moving).double().mean(dim=1).tolist(),
            "steepness": [float(noise_steepness(row.clamp(min=SMALLEST_SPREAD))) for row in sigma],
            "dimension": float(sigma.shape[1]),
        }

    def _counted(self, recovered: torch.Tensor, null: torch.Tensor, test: Setting) -> _Counted:
        """Recovery rates and constants.

        Args:
            recovered: ``[K, M, T, S]``.
            null: whether what comes of the next client's upload passes for a datum, ``[K, M, T, S]``.
            test: of recovery.
        """
        kind = self.kind
        successes, of = self._null(null, test)
        priors = self._priors(successes, of)
        values = _rates(recovered, null) | self._classes(recovered, priors["null"])
        low, high = _wilson(recovered.flatten(1).sum(dim=1), recovered[0].numel())
        values |= {"recovery_low": low, "recovery_high": high}
        estimates = self._constants(recovered, priors)
        values |= self._named(estimates)
        failed = self._constants(torch.zeros_like(recovered[:, :1]), priors)
        values |= {
            name.replace("leakage", "failed"): c1 for name, c1 in self._named(failed).items() if "xi" not in name
        }
        for prior in PRIORS:
            draw = generator(self.label, self.seed, "bootstrap")
            ends = bootstrap_constants(recovered, priors[prior], draw, kind.smoothing[0], kind.resamples)
            for name, end in (("leakage", ends["c1"]), ("xi", ends["xi"])):
                values[leakage_metric_name(f"{name}_low", prior)] = _finite(end.low)
                values[leakage_metric_name(f"{name}_high", prior)] = _finite(end.high)
        first = estimates["null", kind.smoothing[0]]
        tensors = {"c1": first.c1, "xi": first.xi, "null": successes, "null_trials": torch.tensor(of)}
        for part in kind.fewer:
            fewer, null_of = (each[:, : part[0], : part[1]] for each in (recovered, null))
            trials = math.prod(part)
            few = self._constants(fewer, self._priors(null_of.double().flatten(1, 2).sum(dim=1), trials))
            values |= self._named(few, trials)
            values |= {name + of_trials(trials): rate for name, rate in _rates(fewer, null_of).items()}
            first = few["null", kind.smoothing[0]]
            tensors |= {"c1" + of_trials(trials): first.c1, "xi" + of_trials(trials): first.xi}
        return _Counted(values, tensors)

    def _constants(self, recovered: torch.Tensor, priors: Mapping[Prior, torch.Tensor]) -> Estimates:
        """Constants of what was recovered, ``[K, M, T, S]``, by every prior and alpha."""
        counts, attempts = recovery_counts(recovered), recovered.shape[2]
        return {
            (prior, alpha): constants(counts, attempts, priors[prior], alpha)
            for prior, alpha in itertools.product(PRIORS, self.kind.smoothing)
        }

    def _named(self, estimates: Estimates, trials: int | None = None) -> dict[str, Value]:
        """Metrics of constants."""
        values = dict[str, Value]()
        for (prior, alpha), estimate in estimates.items():
            suffix = None if alpha == self.kind.smoothing[0] else alpha
            values[leakage_metric_name("leakage", prior, suffix, trials)] = _finite(estimate.c1)
            values[leakage_metric_name("xi", prior, suffix, trials)] = _finite(estimate.xi)
        return values

    def _null(self, null: torch.Tensor, test: Setting) -> tuple[torch.Tensor, int]:
        """Successes of null attacks for every datum, ``[K, S]``, and trials; those of ``constants`` if that is given.

        Raises:
            ConfigError: it has other clients.
        """
        successes, trials = null.double().flatten(1, 2).sum(dim=1), null[0, :, :, 0].numel()
        kept = self.job.kept.get(self.kind.name)
        if kept is None:
            return successes, trials
        source = self.job.uses[self.kind.name].kind
        assert isinstance(source, LeakageJob)
        key = f"seed{self.seed}/null"
        if key not in kept:
            raise ConfigError(
                f"constants: experiment '{self.kind.constants}' has no seed {self.seed}; give it more seeds"
            )
        for field in ("clients", "images_per_client", "alpha", "batch_size"):
            if getattr(source, field) != getattr(self.kind, field):
                raise ConfigError(
                    f"constants: experiment '{self.kind.constants}' has {field} {getattr(source, field)}, and this one "
                    f"{getattr(self.kind, field)}; they are of other clients"
                )
        if source.tests[0] != test:
            return successes, trials
        return kept[key].double(), int(kept[f"seed{self.seed}/null_trials"])

    def _priors(self, successes: torch.Tensor, trials: int) -> dict[Prior, torch.Tensor]:
        """Every prior, ``[K, S + 1]``."""
        size, clients = self.kind.batch_size, self.kind.clients
        return {
            "null": null_prior(successes, trials),
            "null_upper": null_prior(successes, trials, CONFIDENCE),
            "uniform": uniform_prior(size).expand(clients, -1),
            "population": population_prior(size, self.kind.images_per_client).expand(clients, -1),
        }

    def _classes(self, recovered: torch.Tensor, prior: torch.Tensor) -> dict[str, Value]:
        """Algorithm 3: leakage about the classes in a client's batch."""
        size, attempts = self.kind.batch_size, self.kind.attempts
        leakages: list[float | None] = []
        sums: list[float | None] = []
        for labels, hits, before in zip(self.clients.labels.cpu(), recovered, prior, strict=True):
            classes, of = labels.unique(return_inverse=True)
            belongs = torch.nn.functional.one_hot(of, len(classes)).double()
            counts = hits.double().sum(dim=1) @ belongs
            belief = class_belief(counts, size, attempts).mean(dim=0)
            leakages.append(float(leakage(belief, torch.cat([before[:-1] @ belongs, before[-1:]]))))
            sums.append(float(class_belief(counts, size, attempts, "as_printed").sum(dim=-1).mean()))
        return {"classes": leakages, "classes_sum": sums}


Estimates = dict[tuple[Prior, float], Constants]
"""Constants by prior and alpha."""


class _Counted(NamedTuple):
    values: dict[str, Value]
    constants: dict[str, torch.Tensor]


def _rates(recovered: torch.Tensor, null: torch.Tensor) -> dict[str, Value]:
    """Rates of both attacks for every client."""
    both = {"recovery": recovered, "null_recovery": null}
    return {name: attempts.double().flatten(1).mean(dim=1).tolist() for name, attempts in both.items()}


def _finite(values: torch.Tensor) -> list[float | None]:
    return [float(value) if value.isfinite() else None for value in values]


def _wilson(hits: torch.Tensor, trials: int) -> tuple[Value, Value]:
    """Wilson's 95 % interval of rates, for every client."""
    from scipy.stats import binomtest

    ends = [binomtest(int(count), trials).proportion_ci(method="wilson") for count in hits]
    return [float(end.low) for end in ends], [float(end.high) for end in ends]
