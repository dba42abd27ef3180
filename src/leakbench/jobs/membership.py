"""Membership jobs: inference of a record's membership in a sum of users' updates.

In every trial users draw their records from one pool, and each sends one defended update; the server sees their mean
and scores records of the first user (members), and as many of the pool that no user drew.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import ClassVar, NamedTuple

from pydantic import Field, model_validator

from leakbench.attacks.membership_of_sums import Background, Coordinates, Mechanism, log_likelihood_ratio
from leakbench.data.base import image_dataset
from leakbench.defenses.aggregate import AllRecords, SummedUsers
from leakbench.defenses.base import DATA_VERBS, ActsOn, Defense, PrivacyStatement, Schedule
from leakbench.defenses.clients import DefendedClients
from leakbench.defenses.distributed_noise import DistributedNoise
from leakbench.defenses.dp_sgd import ClippedGradients
from leakbench.defenses.gaussian_sampling import GaussianSampling
from leakbench.defenses.water_filling import WaterFilling
from leakbench.effort import Effort, Unit
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.batches import without_replacement
from leakbench.federated.step import MEMORY_BUDGET, ClientSteps
from leakbench.jobs.base import JOB_KINDS, Findings, Job, JobKind, Setting
from leakbench.jobs.pretraining import Diverged, Pretraining, pretrained
from leakbench.jobs.sums import only_sums
from leakbench.jobs.victims import initial_network
from leakbench.lazy import torch
from leakbench.metrics.membership import auc, true_positive_rate
from leakbench.models.base import Network
from leakbench.randomness import Streams, generator
from leakbench.records import MetricInfo, Outcome, Replicate
from leakbench.theory.aggregate_dp import information_bound
from leakbench.theory.membership_bound import auc_bound
from leakbench.theory.span import LEAVES, leave_one_out

SCORES = {
    "inner": "inner product of the candidate's gradient with the mean update",
    "cosine": "their cosine",
    "likelihood": "ratio of normal likelihoods, moments from auxiliary records",
}
FALSE_POSITIVES = 0.05
SPAN_LIMIT = 512
"""Most records of a sum whose span is computed, at a cost of the square of their number times the parameters."""

_AUC = "area under the ROC curve, members against fresh records"
_DRAWN = "area under the ROC curve, members in the user's batch against fresh records"
MEMBERSHIP_METRICS = {
    f"{kind}{end}/{score}": MetricInfo(unit=f"{unit}{interval}; {words}", direction="higher")
    for score, words in SCORES.items()
    for kind, unit in (("auc", _AUC), ("auc_drawn", _DRAWN))
    for end, interval in (("", ""), ("_low", ", DeLong's 95 %, low end"), ("_high", ", DeLong's 95 %, high end"))
} | {
    f"tpr/{score}": MetricInfo(unit=f"true positives at 5 % false positives, part; {words}", direction="higher")
    for score, words in SCORES.items()
}
STATED = {
    "epsilon": MetricInfo(unit="epsilon of a round at the protocol's delta", direction="higher"),
    "auc_bound": MetricInfo(unit="area under the ROC curve that (epsilon, delta) leaves, at most", direction="higher"),
    "information_bound": MetricInfo(unit="nats, eq. 9 of Zhang et al. (2024), c = 1", direction="higher"),
    "leaving": MetricInfo(
        unit="part of the first trial's members whose gradient leaves the span of all other summed records",
        direction="higher",
    ),
    "dimension": MetricInfo(unit="parameters of the model", direction="none"),
}
MEMBERSHIP_METRICS |= STATED


@JOB_KINDS.register("membership", version=2)
class MembershipJob(JobKind):
    """Membership inference on the mean of users' updates, without ground truth.

    The model is untrained, or was trained without a defense on records of no user. Mechanisms that weight all records
    take all; others a batch. Scores are those of :mod:`leakbench.attacks.membership_of_sums`, and plain products. The
    records of a trial are the same for all defenses, and those of fewer users are among those of more; the seed draws
    them, the server's records, the model, the batches and the mechanisms' randomness. The hundreds of means are taken
    in the clear, which equals what secure aggregation decodes.
    """

    memory_mb: ClassVar[int] = 16000
    minutes: ClassVar[int] = 120
    metrics: ClassVar[Mapping[str, MetricInfo]] = MEMBERSHIP_METRICS
    unit: ClassVar[Unit] = "parameters"
    faces: ClassVar[frozenset[ActsOn]] = frozenset({"samples", "updates"})

    users: tuple[int, ...] = Field(min_length=1, description="numbers of users, N; a setting of the record each")
    records: int = Field(ge=2, description="records of each user, D")
    batch: int | None = Field(
        None, ge=1, description="records that a user draws for its update, B, where the mechanism leaves it open; all"
    )
    trials: int = Field(ge=1, description="sums per seed")
    candidates: int | None = Field(
        None, ge=1, description="members asked about per trial, and others; all of a user's by default"
    )
    auxiliary: int = Field(
        ge=4,
        description="records of no user that the server holds, drawn from the train split behind the pretraining's",
    )
    pool: int | None = Field(None, ge=1, description="records that users draw from, drawn beside these; all the rest")
    epoch: int = Field(0, ge=0, description="how many epochs the model was trained, undefended, before")
    pretraining: Pretraining = Field(Pretraining(), description="how, on the first records of the train split")
    delta: float = Field(1e-5, gt=0, lt=1, description="the delta at which epsilon is stated")

    @model_validator(mode="after")
    def _consistent(self) -> MembershipJob:
        if min(self.users) < 1 or len(set(self.users)) < len(self.users):
            raise ValueError(f"users: numbers of 1 or more, each once; found {list(self.users)}")
        for name in ("batch", "candidates"):
            value = getattr(self, name)
            if value is not None and value > self.records:
                raise ValueError(f"{name} ({value}) must be at most records ({self.records})")
        if self.trials * self._asked < 2:
            raise ValueError("trials: one trial with one candidate has no ROC curve")
        if self.epoch and self.pretraining.samples is None:
            raise ValueError("pretraining.samples: say how many, since users hold records of the same split")
        return self

    @property
    def _asked(self) -> int:
        return self.candidates or self.records

    def settings_of(self, job: Job) -> Iterator[Setting]:
        for (setting, _), users in itertools.product(job.defense.settings(), self.users):
            yield {**setting, "users": users}

    def effort(self, job: Job) -> Effort:
        dataset = job.dataset.single()
        # The gradients of all records are taken once; then each trial adds up those of its users' records.
        population = self.auxiliary + (self.pool or dataset.expected("train") - self.auxiliary)
        taken = sum(self._taken(defense) for _, defense in job.defense.settings())
        trials = Effort(taken * max(self.users), 1).times(self.trials)
        tried = Effort(population, 1).plus(trials).times(len(job.seeds))
        return reduce(Effort.plus, self.shared_effort(job).values(), tried)

    def shared_effort(self, job: Job) -> dict[str, Effort]:
        return self.pretraining.shared_effort(job, self.epoch)

    def volume(self, job: Job) -> float:
        return float(len(job.seeds) * job.defense.count * len(self.users))

    def run(self, job: Job, device: torch.device) -> Findings:
        settings = [(setting, defense) for setting, defense in job.defense.settings()]
        try:
            for _, defense in settings:
                self._check(defense)
            replicates = [each for seed in job.seeds for each in self._seed(job, settings, seed, device)]
        except Infeasible as error:
            outcome = Outcome(status="infeasible", reason=str(error))
            replicates = job.without_numbers(outcome)
        return Findings(replicates)

    def _check(self, defense: Defense) -> None:
        """Reject mechanisms that act on images, or whose parameters do not fit the protocol.

        Raises:
            Infeasible: a mechanism is rejected.
        """
        only_sums([defense])
        if defense.overrides(*DATA_VERBS):
            raise Infeasible(f"'{defense.name}' acts on images; membership is asked of gradients of the images")
        if isinstance(defense, SummedUsers) and defense.users is not None:
            raise Infeasible(f"'{defense.name}' is told of {defense.users} users; the protocol says how many there are")
        taken = self._taken(defense)
        if taken > self.records:
            raise Infeasible(f"'{defense.name}' takes batches of {taken}, and a user has {self.records} records")

    def _taken(self, defense: Defense) -> int:
        """Records of a user's update."""
        if isinstance(defense, AllRecords):
            return self.records
        if isinstance(defense, DistributedNoise):
            return defense.batch or self.records
        return self.batch or self.records

    def _seed(
        self, job: Job, settings: list[tuple[Setting, Defense]], seed: int, device: torch.device
    ) -> Iterator[Replicate]:
        try:
            population = self._population(job, seed, device)
        except Diverged as error:
            yield from job.without_numbers(Outcome(status="diverged", reason=str(error)), seeds=[seed])
            return
        label, dimension = job.dataset.label, population.network.dimension
        trials = [self._trial(population, label, seed, number) for number in range(self.trials)]
        sums = self._sums(population, trials, [defense for _, defense in settings])
        leaving = {users: self._leaving(population, trials[0], users) for users in self.users}
        rows = torch.stack([torch.cat([trial.rows[0, : self._asked], trial.others]) for trial in trials])
        judge = _Judge(population, rows.to(device))
        for (setting, defense), each in zip(settings, sums, strict=True):
            for means, users in zip(each.means, self.users, strict=True):
                scores = judge.scores(means, defense, each.mechanism, users)
                guarantee = self._guarantee(defense, users, dimension, leaving[users])
                replicate = Replicate(
                    seed=seed, setting={**setting, "users": users}, metrics={}, privacy=guarantee.privacy.as_dict()
                )
                _judged(replicate, scores, each.drawn)
                replicate.metrics |= guarantee.values
                replicate.reasons |= guarantee.reasons
                yield replicate

    def _sums(self, population: Population, trials: Sequence[Trial], defenses: Sequence[Defense]) -> list[_Sums]:
        """The server's view under every defense; those that take equal batches share a step in each trial."""
        shape = (len(defenses), len(self.users), len(trials), population.network.dimension)
        means = torch.empty(shape, device=population.labels.device)
        drawn = torch.ones(len(defenses), len(trials), self._asked, dtype=torch.bool)
        mechanisms: list[Mechanism] = []
        for number, trial in enumerate(trials):
            steps = {taken: trial.steps(population, taken) for taken in {self._taken(defense) for defense in defenses}}
            for place, defense in enumerate(defenses):
                taken = self._taken(defense)
                clients = DefendedClients(defense, trial.streams, per_server=len(trial.rows))
                message = clients.send(steps[taken], trial.streams.child("defense"))
                if number == 0:
                    mechanisms.append(_mechanism(defense, taken, message.noise_variance))
                seen = message.view().cumsum(dim=0)
                means[place, :, number] = torch.stack([seen[users - 1] / users for users in self.users])
                drawn[place, number] = (trial.batch(taken)[0, :, None] == torch.arange(self._asked)).any(dim=0)
        return [_Sums(*each) for each in zip(means, drawn, mechanisms, strict=True)]

    def _population(self, job: Job, seed: int, device: torch.device) -> Population:
        """The model, and the gradients of all records.

        Raises:
            ConfigError: the train split is too small.
            Diverged: pretraining became non-finite.
        """
        dataset = image_dataset(job.dataset.single(), "jobs of kind 'membership'")
        trained = (self.pretraining.samples or 0) if self.epoch else 0
        first, available = trained + self.auxiliary, dataset.length("train")
        needed = max(self.users) * self.records + self._asked
        size = available - first if self.pool is None else self.pool
        if first + size > available or size < needed:
            raise ConfigError(
                f"membership takes {first} records for the server and a pool of {max(size, needed)}, of which "
                f"{needed} are drawn; the train split of '{dataset.name}' has {available}"
            )
        label = job.dataset.label
        network = initial_network(dataset, label, job.model.single(), seed, device)
        network = pretrained(network, dataset, label, seed, self.epoch, self.pretraining, device, of=job.model.digest)
        # Neighbours in a data set may have more in common than others, such as the writer.
        order = trained + torch.randperm(available - trained, generator=generator(label, seed, "membership", "records"))
        samples = dataset.load("train", order[: self.auxiliary + size].tolist())
        images, labels = dataset.normalise(samples.values.to(device)), samples.labels.to(device)
        return Population(network, images, labels, self.auxiliary)

    def _trial(self, population: Population, label: str, seed: int, number: int) -> Trial:
        order = torch.randperm(population.size, generator=generator(label, seed, "membership", number)) + self.auxiliary
        # The candidates come first: they are the same for any number of users.
        target, others = order[: self.records], order[self.records : self.records + self._asked]
        rest = order[self.records + self._asked :][: (max(self.users) - 1) * self.records]
        rows = torch.cat([target, rest]).view(-1, self.records)
        keys = [(label, seed, "membership", number, "user", user) for user in range(len(rows))]
        return Trial(rows, others, Streams(keys))

    def _leaving(self, population: Population, trial: Trial, users: int) -> float | None:
        """Part of the members whose gradient leaves the others' span: without noise epsilon is infinite (Th. 1)."""
        if users * self.records > SPAN_LIMIT:
            return None
        columns = population.gradients[trial.rows[:users].flatten().to(population.gradients.device)].T
        return float((leave_one_out(columns)[: self._asked] > LEAVES).double().mean())

    def _guarantee(self, defense: Defense, users: int, dimension: int, leaving: float | None) -> _Guarantee:
        """Bounds and guarantees, which need no scores."""
        batch = defense.batch if isinstance(defense, AllRecords) else self._taken(defense)
        values: dict[str, float | list[float | None] | None] = {"leaving": leaving, "dimension": float(dimension)}
        reasons = {}
        if leaving is None:
            reasons["leaving"] = f"of more than {SPAN_LIMIT} records it is not computed"
        values["information_bound"] = information_bound(users, batch, dimension) if users > 1 else None
        alone = "of the update of one user"
        if users == 1:
            reasons["information_bound"] = f"{alone} eq. 9 says nothing"
        schedule = Schedule(dimension, delta=self.delta)
        if not isinstance(defense, SummedUsers):
            privacy = defense.privacy(schedule)
        elif users == 1:
            privacy = PrivacyStatement(None, None, f"not stated {alone}")
        else:
            taken = self._taken(defense)
            schedule = replace(schedule, clients=users, records=self.records, batch=taken, sampling="independent")
            privacy = defense.model_copy(update={"users": users, "records": self.records}).privacy(schedule)
        values["epsilon"], values["auc_bound"] = privacy.epsilon, None
        if privacy.epsilon is None or privacy.delta is None:
            reasons |= dict.fromkeys(("epsilon", "auc_bound"), privacy.basis)
        else:
            values["auc_bound"] = auc_bound(privacy.epsilon, privacy.delta)
        return _Guarantee(values, reasons, privacy)


class _Sums(NamedTuple):
    """The server's view under one defense.

    Attributes:
        means: of the users' updates, by number of users and trial, ``[users, T, d]``.
        drawn: mask of the members in the first user's batch, ``[T, c]``.
        mechanism: public parameters of the defense.
    """

    means: torch.Tensor
    drawn: torch.Tensor
    mechanism: Mechanism


class _Guarantee(NamedTuple):
    values: dict[str, float | list[float | None] | None]
    reasons: dict[str, str]
    privacy: PrivacyStatement


@dataclass(frozen=True)
class Population:
    """All records, as network inputs: first the server's, then the pool.

    Attributes:
        network: the model.
        images: ``[P, C, H, W]``.
        labels: ``[P]``.
        auxiliary: number of the server's.
    """

    network: Network
    images: torch.Tensor
    labels: torch.Tensor
    auxiliary: int

    @property
    def size(self) -> int:
        """Number of records in the pool."""
        return len(self.labels) - self.auxiliary

    @cached_property
    def _gradients_and_losses(self) -> tuple[torch.Tensor, torch.Tensor]:
        steps = ClientSteps(
            self.network, self.network.parameters, self.images[:, None], self.labels[:, None], Streams([])
        )
        return steps.gradient, steps.loss

    @property
    def gradients(self) -> torch.Tensor:
        """Gradients of the records' losses, ``[P, d]``: 4 P d bytes."""
        return self._gradients_and_losses[0]

    @property
    def losses(self) -> torch.Tensor:
        """Losses of the records, ``[P]``."""
        return self._gradients_and_losses[1]


@dataclass(frozen=True)
class Trial:
    """The records of users and others in one trial.

    Attributes:
        rows: records of every user, ``[N, D]``; the first user's are the members.
        others: records of no user, ``[c]``.
        streams: of every user.
    """

    rows: torch.Tensor
    others: torch.Tensor
    streams: Streams

    def batch(self, taken: int) -> torch.Tensor:
        """Places of the records that every user takes, ``[N, taken]``."""
        if taken == self.rows.shape[1]:
            return torch.arange(taken).expand(len(self.rows), taken)
        return without_replacement(self.streams.child("batch"), self.rows.shape[1], taken, self.rows.device)

    def steps(self, population: Population, taken: int) -> ClientSteps:
        """The users' step on ``taken`` of their records."""
        return _KnownGradients(population, self.rows.gather(1, self.batch(taken)), self.streams)


class _KnownGradients(ClientSteps):
    """A step of users on precomputed gradients: rows ``[N, B]`` of a population."""

    def __init__(self, population: Population, rows: torch.Tensor, streams: Streams) -> None:
        rows = rows.to(population.labels.device)
        network = population.network
        super().__init__(network, network.parameters, population.images[rows], population.labels[rows], streams)
        self._population, self._rows = population, rows

    @cached_property
    def _gradient_and_loss(self) -> tuple[torch.Tensor, torch.Tensor]:
        means = [self._sample_gradients(slice(user, user + 1)).mean(dim=1) for user in range(len(self._rows))]
        return torch.cat(means), self._population.losses[self._rows].mean(dim=1)

    def _sample_gradients(self, part: slice) -> torch.Tensor:
        return self._population.gradients[self._rows[part]]


def _mechanism(defense: Defense, taken: int, variance: torch.Tensor | None) -> Mechanism:
    """The public parameters of a mechanism; of noise whose variance differs between coordinates, the mean."""
    if isinstance(defense, GaussianSampling | WaterFilling):
        return Mechanism(taken, 1 / defense.batch, defense.noise_level, isinstance(defense, WaterFilling))
    assert not isinstance(defense, AllRecords)
    return Mechanism(taken, noise=0.0 if variance is None else float(variance.mean()))


class _Judge:
    """Scores of candidates ``rows``, ``[T, 2 c]``, members first; mechanisms share intermediate results."""

    def __init__(self, population: Population, rows: torch.Tensor) -> None:
        self._population, self._rows = population, rows
        self._norms = torch.linalg.vector_norm(population.gradients, dim=1)
        self._by_factors: dict[bytes, tuple[torch.Tensor, Background, Coordinates]] = {}

    def scores(self, means: torch.Tensor, defense: Defense, mechanism: Mechanism, users: int) -> torch.Tensor:
        """Scores under means ``[T, d]``, in the order of :data:`SCORES`, float64 ``[scores, T, 2 c]``."""
        factors, background, everyone = self._clipped(defense)
        chosen = factors[self._rows].double()
        gradients = self._population.gradients
        products = torch.stack(
            [gradients[rows].double() @ mean.double() for rows, mean in zip(self._rows, means, strict=True)]
        )
        products = products * chosen
        candidates = everyone.at(self._rows, chosen)
        updates = Coordinates.of(means, background)
        lengths = candidates.square.sqrt() * torch.linalg.vector_norm(means.double(), dim=1, keepdim=True)
        scores = {
            "inner": products,
            "cosine": products / lengths.clamp(min=torch.finfo(torch.float64).tiny),
            "likelihood": log_likelihood_ratio(candidates, updates, products, background, mechanism, users),
        }
        return torch.stack([scores[name] for name in SCORES])

    def _clipped(self, defense: Defense) -> tuple[torch.Tensor, Background, Coordinates]:
        """Factors of a mechanism on gradients, moments of the results, and coordinates of all gradients."""
        none = torch.ones_like(self._norms)
        factors = defense.factors(self._norms) if isinstance(defense, ClippedGradients) else none
        key = factors.cpu().numpy().tobytes()
        if key not in self._by_factors:
            gradients, auxiliary = self._population.gradients, self._population.auxiliary
            background = Background.of(gradients[:auxiliary] * factors[:auxiliary, None])
            # Only candidates are scored, but most of the pool is one in some trial.
            self._by_factors[key] = factors, background, _in_parts(gradients, background)
        return self._by_factors[key]


def _in_parts(gradients: torch.Tensor, background: Background) -> Coordinates:
    """Coordinates of all gradients, in chunks, as float64 takes twice the memory."""
    size = max(1, MEMORY_BUDGET // (16 * gradients.shape[1]))
    parts = [Coordinates.of(part, background) for part in gradients.split(size)]
    return Coordinates(
        torch.cat([part.along for part in parts]),
        torch.cat([part.mean for part in parts]),
        torch.cat([part.square for part in parts]),
    )


def _judged(replicate: Replicate, scores: torch.Tensor, drawn: torch.Tensor) -> None:
    """Add areas under the curve of all trials together, with intervals, to a replicate.

    Args:
        replicate: gets the areas.
        scores: ``[scores, T, 2 c]``, members first.
        drawn: mask of the members in the user's batch, ``[T, c]``.
    """
    asked = drawn.shape[1]
    member = (torch.arange(2 * asked) < asked).expand(len(drawn), -1)
    taken = torch.cat([drawn, torch.ones_like(drawn)], dim=1)
    flat = scores.flatten(1).cpu()
    numbers: dict[str, torch.Tensor] = {}
    for kind, mask in (("auc", torch.ones_like(taken)), ("auc_drawn", taken)):
        chosen = mask.flatten()
        if int((member & mask).sum()) < 2:
            numbers |= {f"{kind}{end}": flat.new_full((len(flat),), math.nan) for end in ("", "_low", "_high")}
            continue
        area = auc(flat[:, chosen], member.flatten()[chosen])
        numbers |= {kind: area.value, f"{kind}_low": area.low, f"{kind}_high": area.high}
    numbers["tpr"] = true_positive_rate(flat, member.flatten(), FALSE_POSITIVES)
    for kind, values in numbers.items():
        for name, value in zip(SCORES, values.tolist(), strict=True):
            known = math.isfinite(value)
            replicate.metrics[f"{kind}/{name}"] = value if known else None
            if not known:
                replicate.reasons[f"{kind}/{name}"] = "scores are not finite, or fewer than two members were drawn"
