"""Spectrum jobs: the spectra and spans of users' per-record gradients while a model is trained without noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from pydantic import Field, field_validator, model_validator

from leakbench.data.base import image_dataset
from leakbench.effort import Effort, Unit
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.batches import without_replacement
from leakbench.federated.partition import iid_partition
from leakbench.federated.step import ClientSteps
from leakbench.federated.updates import Hook, run_updates
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.lazy import torch
from leakbench.models.base import Network, build_network
from leakbench.papers.secagg_dp.theory.pooled_span import bytes_of_span, pooled_span
from leakbench.randomness import Streams, stream_seed
from leakbench.records import MetricInfo, Outcome, Replicate, Value
from leakbench.running.checkpoint import State, packed, unpacked
from leakbench.theory.aggregate_dp import (
    Aggregation,
    Form,
    Mechanism,
    full_rank_curve,
    information_bound,
    least_eigenvalue,
)
from leakbench.theory.noise_calibration import calibrated_variance
from leakbench.theory.span import LEAVES
from leakbench.theory.water_filling import added_trace, update_spectrum

MEMORY = 48 * 2**30
"""Most memory of a span, in bytes."""

GRADIENTS = {
    "dimension": MetricInfo(unit="coordinates of a gradient, K", direction="none"),
    "pooled": MetricInfo(unit="gradients of the measured users together", direction="none"),
    "varying": MetricInfo(unit="inputs of the model that are not the same in all their records", direction="none"),
    "rank_bound": MetricInfo(unit="(classes - 1) (varying + 1), of linear models", direction="none"),
    "pooled_rank": MetricInfo(unit="dimension of the span of the measured users' gradients", direction="none"),
    "leaving_pooled": MetricInfo(
        unit="part of the measured users' records whose gradient leaves the span of all others", direction="higher"
    ),
    "leaving_other_users": MetricInfo(
        unit="part of the compared users' records whose gradient leaves the span of the other measured users'",
        direction="higher",
    ),
    "leaving_fresh": MetricInfo(
        unit="part of the fresh records whose gradient leaves the span of all measured ones", direction="higher"
    ),
    "rank": MetricInfo(unit="dimension of the span of a user's gradients", direction="none", axis="victim"),
    "leaving_per_user": MetricInfo(
        unit="part of a user's records whose gradient leaves the span of that user's others",
        direction="higher",
        axis="victim",
    ),
    "clipped": MetricInfo(unit="part of a user's gradients that are clipped", direction="none", axis="victim"),
    "trace": MetricInfo(unit="trace of a user's G G^T / (B D)", direction="none", axis="victim"),
    "largest": MetricInfo(unit="largest eigenvalue of a user's G G^T / (B D)", direction="none", axis="victim"),
    "eigenvalues": MetricInfo(
        unit="eigenvalues of the first user's G G^T / (B D), the largest first", direction="none", axis="direction"
    ),
    "loss": MetricInfo(unit="nats, mean over the fresh records", direction="lower"),
    "accuracy": MetricInfo(unit="part of the fresh records", direction="higher"),
}
BOUNDS: dict[str, tuple[Form, Form]] = {"": ("as_printed", "corrected"), "_repaired": ("repaired", "repaired")}
"""Ends of metrics' names -> bounds of isotropic noise (Table 1, row 5) and of water-filling (Theorem 4), or ours."""
AT_VARIANCE = {
    "variance": MetricInfo(unit="sigma^2 of one user, the protocol's grid", direction="none", axis="level"),
    "filled": MetricInfo(
        unit="trace of what water-filling adds at this sigma^2, mean over users", direction="none", axis="level"
    ),
    "isotropic": MetricInfo(unit="trace of isotropic noise, K sigma^2", direction="none", axis="level"),
    "saved": MetricInfo(unit="part of it that water-filling saves", direction="higher", axis="level"),
}
AT_EPSILON = {
    "epsilon": MetricInfo(unit="epsilon of all rounds, the protocol's grid", direction="none", axis="level")
} | {
    f"{name}{end}": MetricInfo(unit=unit, direction="none", axis="level")
    for end, (isotropic, filled) in BOUNDS.items()
    for name, unit in {
        "filled_at_epsilon": f"trace of what water-filling adds for this epsilon ({filled}), mean over users",
        "isotropic_at_epsilon": f"trace of isotropic noise for this epsilon ({isotropic})",
        "excess_at_epsilon": "what water-filling adds more than isotropic noise, part of that",
    }.items()
}
NOISE = AT_VARIANCE | AT_EPSILON
BY_USERS = {
    "users": MetricInfo(unit="users whose updates are summed, the protocol's grid", direction="none", axis="level"),
    "subspace": MetricInfo(unit="dimension of the subspace that holds every gradient, K*", direction="none"),
    "floor": MetricInfo(
        unit="Lambda, sum of the users' smallest eigenvalues of G* G*^T / D", direction="none", axis="level"
    ),
    "pooled_floor": MetricInfo(
        unit="smallest eigenvalue of the sum of the users' G* G*^T / D", direction="none", axis="level"
    ),
    "rho": MetricInfo(unit="D Lambda / C^2, of the pooled floor", direction="none", axis="level"),
    "epsilon_of_users": MetricInfo(unit="epsilon of a round by eq. 31, of Lambda", direction="lower", axis="level"),
    "epsilon_pooled": MetricInfo(unit="epsilon of a round, of the pooled floor", direction="lower", axis="level"),
    "information": MetricInfo(unit="nats, bound of eq. 9 with c = 1 and K*", direction="lower", axis="level"),
}


@JOB_KINDS.register("spectrum", version=1)
class SpectrumJob(JobKind):
    """Measure users' clipped per-record gradients in rounds of training without noise (Zhang et al. 2024).

    In every round each user takes a batch of its records at random, and the server subtracts the rate times the mean of
    the clipped gradients (eqs. 2 and 3). Before some of the rounds the gradients of all records of the first
    ``measured`` users are taken, in float64. Records are of the train split, at random, none of two users; fresh ones
    are the first of the test split. With ``features``, models read the scores of so many principal components, each of
    variance one, that were fitted to images of the train split that no user holds.
    """

    memory_mb: ClassVar[int] = 32000
    minutes: ClassVar[int] = 480
    on_gpu: ClassVar[bool] = False
    unit: ClassVar[Unit] = "parameters"

    users: int = Field(50, ge=2, description="users, N, who all take part in every round")
    records: int = Field(1200, ge=2, description="records of a user, D")
    batch: int = Field(32, ge=1, description="B: records of a user and round, and the batch of G G^T / (B D)")
    clip: float = Field(10.0, gt=0, description="norm at which a record's gradient is clipped, C")
    rate: float = Field(0.1, gt=0, description="learning rate")
    rounds: tuple[int, ...] = Field(
        (0, 10, 100), min_length=1, description="rounds before which gradients are measured"
    )
    measured: int | None = Field(None, ge=2, description="users whose gradients are measured and pooled; null: all")
    compared: int = Field(2, ge=1, description="of these, users whose gradients are held against the others' span")
    fresh: int = Field(1000, ge=1, description="records of the test split that no user holds")
    classes: tuple[int, ...] | None = Field(None, min_length=2, description="labels whose records count; null: all")
    features: int | None = Field(None, ge=1, description="principal components that models read; null: the images")
    auxiliary: int = Field(0, ge=0, description="images of the train split that no user holds, for the components")
    variances: tuple[float, ...] = Field(
        (1e-3, 1e-2, 0.05, 1.0), description="sigma^2 of one user, at which noise is compared"
    )
    epsilons: tuple[float, ...] = Field((0.5, 2, 8), description="of all rounds, at which noise is compared")
    total_rounds: int = Field(100, ge=1, description="rounds that these epsilons are of")
    delta: float = Field(1e-4, gt=0, lt=1, description="of all rounds, and of a round in `by_users`")
    by_users: tuple[int, ...] = Field(
        (), description="numbers of users for which Theorem 3 is evaluated; for models of few parameters"
    )

    @field_validator("rounds", "by_users")
    @classmethod
    def _ascending(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if list(value) != sorted(set(value)) or any(number < 0 for number in value):
            raise ValueError(f"numbers must ascend from 0 or more, found {list(value)}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> SpectrumJob:
        if self.batch > self.records:
            raise ValueError(f"batch ({self.batch}) must be at most records ({self.records})")
        if (self.measured or 2) > self.users:
            raise ValueError(f"measured ({self.measured}) must be at most users ({self.users})")
        if self.by_users and not 1 <= self.by_users[0] <= self.by_users[-1] <= self.users:
            raise ValueError(f"by_users must lie in 1 to users ({self.users}), found {list(self.by_users)}")
        if self.features is not None and self.auxiliary <= self.features:
            raise ValueError(
                f"auxiliary ({self.auxiliary}) must exceed features ({self.features}), which are fitted to these images"
            )
        return self

    @property
    def observed(self) -> int:
        """Number of users whose gradients are measured."""
        return self.measured or self.users

    def metrics_of(self, job: Job) -> Mapping[str, MetricInfo]:
        return GRADIENTS | NOISE | (BY_USERS if self.by_users else {})

    def settings_of(self, job: Job) -> Iterator[Setting]:
        for number in self.rounds:
            yield {"round": number}

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return (
            {"victim": self.observed, "direction": self.records, "level": len(self.variances)}
            | dict.fromkeys(AT_EPSILON, len(self.epsilons))
            | dict.fromkeys(BY_USERS, len(self.by_users))
        )

    def effort(self, job: Job) -> Effort:
        """Gradients, and their products with each other: as many multiply-adds as a pass through a linear model."""
        dataset = job.dataset.single()
        count, pixels = self.observed * self.records, math.prod(dataset.shape)
        inputs = self.features or pixels
        rank = min(count, inputs * len(self.classes or range(dataset.classes)))
        measured = count * (1 + (2 + self.compared) * rank + self.records)
        trained = Effort(self.users * self.batch, 1).times(self.rounds[-1])
        passes, steps = trained.plus(Effort(measured, self.observed).times(len(self.rounds))).times(len(job.seeds))
        return Effort(passes * inputs / pixels, steps)

    def volume(self, job: Job) -> float:
        return float(len(job.seeds) * len(self.rounds))

    def run(self, job: Job, device: torch.device) -> Findings:
        variances = self._calibrated()
        replicates: list[Replicate] = []
        for seed in job.seeds:
            with torch.no_grad():
                replicates += _Users(self, job, seed, device).replicates(variances)
        return Findings(replicates)

    def _calibrated(self) -> dict[str, list[float]]:
        """sigma^2 for every epsilon, by the names in :data:`NOISE`."""
        setting = Aggregation(self.users, self.records, self.batch, self.clip)

        def levels(mechanism: Mechanism, form: Form) -> list[float]:
            return [
                calibrated_variance(setting, epsilon, self.total_rounds, self.delta, mechanism, form)
                for epsilon in self.epsilons
            ]

        return {f"isotropic_at_epsilon{end}": levels("gaussian", form) for end, (form, _) in BOUNDS.items()} | {
            f"filled_at_epsilon{end}": levels("gaussian_filled", form) for end, (_, form) in BOUNDS.items()
        }


@dataclass(frozen=True)
class _Records:
    """Network inputs, float32 ``[..., D, C, H, W]``, and labels ``[..., D]``."""

    inputs: torch.Tensor
    labels: torch.Tensor


class _Users:
    """The users of one repetition, whose model is trained."""

    def __init__(self, kind: SpectrumJob, job: Job, seed: int, device: torch.device) -> None:
        self.kind, self.job, self.seed = kind, job, seed
        label = job.dataset.label
        self.held, self.fresh, classes = _load(kind, job, seed, device)
        shape = tuple(self.held.inputs.shape[2:])
        self.network = build_network(
            job.model.single(), shape, classes, stream_seed(label, seed, "initialisation"), device
        )
        self.exact = Network(self.network.trainable_module().double(), device)
        self.parameters = self.network.parameters
        self.streams = Streams([(label, seed, "client", user) for user in range(kind.users)])
        self.classes = classes
        needed = bytes_of_span(self.network.dimension, kind.observed * kind.records)
        if needed > MEMORY:
            raise ConfigError(
                f"the span of {kind.observed * kind.records} gradients of {self.network.dimension} coordinates takes "
                f"{needed / 2**30:.0f} GiB, more than {MEMORY / 2**30:.0f}; lower `measured` or take a smaller model"
            )

    def replicates(self, variances: dict[str, list[float]]) -> list[Replicate]:
        """The measurements before every round that is measured; infinities are null."""
        measurements = _Measurements(self, variances)
        run_updates("rounds", self.kind.rounds[-1] + 1, self.update, {"users": self}, [measurements])
        return measurements.replicates

    def state(self) -> dict[str, torch.Tensor]:
        """The model."""
        return {"parameters": self.parameters}

    def restore(self, saved: State) -> None:
        """Continue with a model of earlier rounds."""
        self.parameters = saved["parameters"].to(self.parameters.device, copy=True)

    def update(self, number: int) -> None:
        """A round of SGD on batches, with clipped gradients; the last one is measured and not taken."""
        if number == self.kind.rounds[-1]:
            return
        streams = self.streams.child("batch", number)
        chosen = without_replacement(streams, self.kind.records, self.kind.batch, self.parameters.device)
        user = torch.arange(self.kind.users, device=chosen.device)[:, None]
        steps = ClientSteps(
            self.network, self.parameters, self.held.inputs[user, chosen], self.held.labels[user, chosen], streams
        )
        total = torch.zeros_like(self.parameters)
        for _, gradients in steps.sample_gradients():
            total += _clipped(gradients, self.kind.clip)[0].sum(dim=(0, 1))
        self.parameters = self.parameters - self.kind.rate / (self.kind.users * self.kind.batch) * total

    def _gradients(self, records: _Records) -> tuple[torch.Tensor, float]:
        """Clipped per-record gradients as columns, float64 ``[K, D]``, and the part that is clipped."""
        inputs, labels = records.inputs.double()[None], records.labels[None]
        steps = ClientSteps(self.exact, self.parameters.double(), inputs, labels, self.streams)
        ((_, gradients),) = steps.sample_gradients()
        clipped, share = _clipped(gradients[0], self.kind.clip)
        return clipped.mT, share

    def _of_user(self, user: int) -> tuple[torch.Tensor, float]:
        return self._gradients(_Records(self.held.inputs[user], self.held.labels[user]))

    def _chunks(self, but: int | None = None) -> Iterator[torch.Tensor]:
        """The gradients of one measured user after the other."""
        for user in range(self.kind.observed):
            if user != but:
                yield self._of_user(user)[0]

    def measure(self, number: int, variances: dict[str, list[float]]) -> Replicate:
        """The gradients of all records before a round.

        Args:
            number: of the round.
            variances: ``sigma^2`` for every epsilon, by the names in :data:`NOISE`.
        """
        if not bool(self.parameters.isfinite().all()):
            reason = f"training became non-finite before round {number}"
            outcome = Outcome(status="diverged", reason=reason, step=number)
            (lost,) = self.job.without_numbers(outcome, seeds=[self.seed], settings=[{"round": number}])
            return lost
        logits = self.network.logits(self.parameters, self.fresh.inputs)
        metrics: dict[str, Value] = {
            "dimension": float(self.network.dimension),
            "pooled": float(self.kind.observed * self.kind.records),
            "loss": float(torch.nn.functional.cross_entropy(logits, self.fresh.labels)),
            "accuracy": float((logits.argmax(dim=1) == self.fresh.labels).double().mean()),
        }
        reasons: dict[str, str] = {}
        metrics |= self._rank_bound(reasons)
        spectra = self._spectra(metrics)
        metrics |= self._spans()
        metrics |= _noise(self.kind, spectra, variances, self.network.dimension)
        if self.kind.by_users:
            metrics |= self._by_users(reasons)
        return Replicate(seed=self.seed, setting={"round": number}, metrics=metrics, reasons=reasons)

    def _rank_bound(self, reasons: dict[str, str]) -> dict[str, Value]:
        images = self.held.inputs[: self.kind.observed].flatten(0, 1).flatten(1)
        varying = int((images != images[0]).any(dim=0).sum())
        bound = None
        if self.network.first_linear is not None and self.network.first_linear == self.network.head:
            bound = float((self.classes - 1) * (varying + 1))
        else:
            reasons["rank_bound"] = "known for linear models alone"
        return {"varying": float(varying), "rank_bound": bound}

    def _spectra(self, metrics: dict[str, Value]) -> torch.Tensor:
        """Eigenvalues of every measured user, descending ``[n, D]``; adds the metrics of single users."""
        of_users: dict[str, list[float | None]] = {"rank": [], "leaving_per_user": [], "clipped": []}
        spectra = []
        for user in range(self.kind.observed):
            gradients, clipped = self._of_user(user)
            spectra.append(update_spectrum(gradients, self.kind.batch).eigenvalues.flip(-1))
            span = pooled_span([gradients])
            of_users["rank"].append(float(span.rank))
            leaves = span.leave_one_out([gradients]) > LEAVES
            of_users["leaving_per_user"].append(float(leaves.double().mean()))
            of_users["clipped"].append(clipped)
        eigenvalues = torch.stack(spectra)
        metrics |= of_users
        metrics |= {"trace": eigenvalues.sum(dim=1).tolist(), "largest": eigenvalues[:, 0].tolist()}
        metrics["eigenvalues"] = eigenvalues[0, : self.network.dimension].tolist()
        return eigenvalues

    def _spans(self) -> dict[str, Value]:
        def share(distances: torch.Tensor) -> float:
            return float((distances > LEAVES).double().mean())

        everyone = pooled_span(self._chunks())
        metrics: dict[str, Value] = {
            "pooled_rank": float(everyone.rank),
            "leaving_pooled": share(everyone.leave_one_out(self._chunks())),
            "leaving_fresh": share(everyone.residual(self._gradients(self.fresh)[0])),
        }
        del everyone
        compared = range(min(self.kind.compared, self.kind.observed))
        others = [share(pooled_span(self._chunks(but=user)).residual(self._of_user(user)[0])) for user in compared]
        metrics["leaving_other_users"] = sum(others) / len(others)
        return metrics

    def _by_users(self, reasons: dict[str, str]) -> dict[str, Value]:
        """Theorem 3 in the subspace that holds every gradient, by the number of users."""
        kind = self.kind
        inside = torch.stack([_in_subspace(self.network, self._of_user(user)[0]) for user in range(kind.by_users[-1])])
        last = [users - 1 for users in kind.by_users]
        sums = (inside @ inside.mT / kind.records).cumsum(dim=0)[last]
        pooled = torch.linalg.eigvalsh(sums)[:, 0].clamp(min=0).tolist()
        single = least_eigenvalue(inside).cumsum(dim=0)[last].tolist()
        size = inside.shape[1]
        metrics: dict[str, Value] = {
            "users": [float(users) for users in kind.by_users],
            "subspace": float(size),
            "floor": single,
            "pooled_floor": pooled,
            "rho": [kind.records * floor / kind.clip**2 for floor in pooled],
            "epsilon_of_users": [_round_epsilon(kind, floor) for floor in single],
            "epsilon_pooled": [_round_epsilon(kind, floor) for floor in pooled],
            "information": [
                information_bound(users, kind.batch, size) if users > 1 else None for users in kind.by_users
            ],
        }
        why = {
            "epsilon_of_users": "Lambda is C^2 / D or less: Theorem 3 says nothing",
            "epsilon_pooled": "the pooled floor is C^2 / D or less: Theorem 3 says nothing",
            "information": "of one user there is no bound",
        }
        reasons |= {name: reason for name, reason in why.items() if None in _list(metrics[name])}
        return metrics


class _Measurements(Hook):
    """Measurements before some of the rounds."""

    def __init__(self, users: _Users, variances: dict[str, list[float]]) -> None:
        self.users, self.variances = users, variances
        self.replicates: list[Replicate] = []

    def before(self, step: int) -> None:
        if step in self.users.kind.rounds:
            self.replicates.append(self.users.measure(step, self.variances))

    def state(self) -> dict[str, torch.Tensor]:
        return {"replicates": packed([replicate.model_dump(mode="json") for replicate in self.replicates])}

    def restore(self, saved: State) -> None:
        self.replicates = [Replicate.model_validate(each) for each in unpacked(saved["replicates"])]


def _list(value: Value) -> list[float | None]:
    return value if isinstance(value, list) else [value]


def _load(kind: SpectrumJob, job: Job, seed: int, device: torch.device) -> tuple[_Records, _Records, int]:
    """The users' records, ``[N, D]``, fresh ones, and the number of classes.

    Raises:
        ConfigError: there are too few records; the data set holds no images.
    """
    dataset = image_dataset(job.dataset.single(), "jobs of kind 'spectrum'")
    classes = torch.tensor(sorted(set(kind.classes or range(dataset.classes))))

    def read(split: str) -> _Records:
        samples = dataset.load(split, range(dataset.length(split)))  # type: ignore[arg-type]
        rows = torch.isin(samples.labels, classes)
        return _Records(dataset.normalise(samples.values[rows]), torch.searchsorted(classes, samples.labels[rows]))

    train, test = read("train"), read("test")
    held = kind.users * kind.records
    if held + kind.auxiliary > len(train.labels) or kind.fresh > len(test.labels):
        raise ConfigError(
            f"users * records + auxiliary are {held + kind.auxiliary} and fresh {kind.fresh}; the splits of "
            f"'{dataset.name}' have {len(train.labels)} and {len(test.labels)} images of these classes"
        )
    order = iid_partition(
        len(train.labels), 1, held + kind.auxiliary, stream_seed(job.dataset.label, seed, "partition")
    )[0]
    rows = order[:held]
    inputs, fresh = train.inputs[rows], test.inputs[: kind.fresh]
    if kind.features is not None:
        inputs, fresh = _scores(train.inputs[order[held:]], kind.features, inputs, fresh)
    shape = (kind.users, kind.records)
    return (
        _Records(inputs.unflatten(0, shape).to(device), train.labels[rows].view(shape).to(device)),
        _Records(fresh.to(device), test.labels[: kind.fresh].to(device)),
        len(classes),
    )


def _scores(fitted: torch.Tensor, count: int, *images: torch.Tensor) -> Iterator[torch.Tensor]:
    """Images as their scores on principal components of others, each of variance one there, ``[n, 1, 1, count]``.

    Raises:
        ConfigError: there are fewer components.
    """
    flat = fitted.flatten(1).double()
    mean = flat.mean(dim=0)
    _, values, right = torch.linalg.svd(flat - mean, full_matrices=False)
    if count > len(values) or not float(values[count - 1]) > 1e-9 * float(values[0]):
        raise ConfigError(f"features: the auxiliary images have fewer than {count} principal components")
    axes = right[:count].mT / values[:count] * math.sqrt(len(flat) - 1)
    for each in images:
        yield ((each.flatten(1).double() - mean) @ axes).float().view(-1, 1, 1, count)


def _clipped(gradients: torch.Tensor, clip: float) -> tuple[torch.Tensor, float]:
    """Gradients ``[..., K]`` with norms of at most ``clip``, and the part that had larger ones."""
    norms = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True)
    return gradients * (clip / norms.clamp(min=clip)), float((norms > clip).double().mean())


def _noise(
    kind: SpectrumJob, spectra: torch.Tensor, variances: dict[str, list[float]], dimension: int
) -> dict[str, Value]:
    """Traces of both kinds of noise, at equal variance and at equal epsilon."""

    def filled(levels: tuple[float, ...] | list[float]) -> torch.Tensor:
        each = torch.tensor(levels, dtype=torch.float64, device=spectra.device)
        return added_trace(spectra.unsqueeze(1), each.expand(len(spectra), -1), dimension).mean(dim=0).cpu()

    even = dimension * torch.tensor(kind.variances, dtype=torch.float64)
    added = filled(kind.variances)
    metrics: dict[str, Value] = {
        "variance": list(kind.variances),
        "filled": added.tolist(),
        "isotropic": even.tolist(),
        "saved": (1 - added / even).tolist(),
        "epsilon": list(kind.epsilons),
    }
    for end in BOUNDS:
        even = dimension * torch.tensor(variances[f"isotropic_at_epsilon{end}"], dtype=torch.float64)
        added = filled(variances[f"filled_at_epsilon{end}"])
        metrics[f"isotropic_at_epsilon{end}"] = even.tolist()
        metrics[f"filled_at_epsilon{end}"] = added.tolist()
        metrics[f"excess_at_epsilon{end}"] = (added / even - 1).tolist()
    return metrics


def _in_subspace(network: Network, gradients: torch.Tensor) -> torch.Tensor:
    """Coordinates of gradients ``[K, D]`` in a subspace that holds that of any record, ``[K - F - 1, D]``.

    The last layer's gradients by the logits sum to zero over the classes, whatever the data: of C of them C - 1 count.
    """
    head, rows = network.head, gradients.mT
    first, stop = head.weight.start, (head.bias or head.weight).stop
    layer = [head.weights(rows)]
    if head.bias is not None:
        layer.append(rows[:, head.bias].unsqueeze(-1))
    ones = torch.ones(head.outputs, 1, dtype=rows.dtype, device=rows.device)
    contrasts = torch.linalg.qr(ones, mode="complete").Q[:, 1:]
    inside = torch.einsum("dcf,ck->dkf", torch.cat(layer, dim=-1), contrasts).flatten(1)
    return torch.cat([rows[:, :first], rows[:, stop:], inside], dim=1).mT


def _round_epsilon(kind: SpectrumJob, floor: float) -> float | None:
    """Epsilon of a round; None where the theorem does not apply."""
    try:
        epsilon = full_rank_curve(kind.records, kind.batch, kind.clip, floor).guarantee(kind.delta).epsilon
    except Infeasible:
        return None
    return epsilon if math.isfinite(epsilon) else None
