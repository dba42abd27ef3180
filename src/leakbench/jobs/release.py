"""Release jobs: train a model on one client's data under a defense, then attack the model that is released."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from leakbench.attacks.released.base import (
    MEMBERSHIP_ATTACKS,
    MODEL_INVERSIONS,
    Labelled,
    MembershipAttack,
    ModelInversion,
    joined,
)
from leakbench.attacks.released.four_branch import FourBranch
from leakbench.attacks.released.inversion import MeanStart
from leakbench.attacks.released.lira import LiRA
from leakbench.attacks.released.threshold import Threshold
from leakbench.data.base import image_dataset
from leakbench.defenses.base import ActsOn, Defense, Schedule
from leakbench.defenses.channel import ChannelReport
from leakbench.defenses.clients import DefendedClients, Examples, calibrated
from leakbench.defenses.dp_sgd import DPSGD, PrivateRuns
from leakbench.effort import FORWARD, Effort
from leakbench.errors import Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.federated.gradients import SampleGradients, batch_gradients
from leakbench.federated.training import Start, TrainingRuns, TrainingSet, Transform, train_runs
from leakbench.jobs.base import JOB_KINDS, Findings, Job, Setting
from leakbench.jobs.client_training import ClientImages, ClientTraining, target_of
from leakbench.jobs.shadows import shadow_confidences
from leakbench.lazy import torch
from leakbench.metrics.inversion import INVERSION_METRICS, class_centres, inversion_metrics
from leakbench.metrics.membership import auc
from leakbench.models.base import Network
from leakbench.models.trained import TrainedModels
from leakbench.randomness import Streams
from leakbench.records import MetricInfo, Outcome, Replicate, Value
from leakbench.registry import Component, Registry

if TYPE_CHECKING:
    from leakbench.attacks.base import Attack

MODEL_METRICS = {
    "accuracy": MetricInfo(unit="part of the evaluation images", direction="higher"),
    "chance": MetricInfo(
        unit="part of the evaluation images that have the most frequent label of the training images", direction="none"
    ),
    "rate": MetricInfo(unit="learning rate of SGD or Adam", direction="none"),
    "train_accuracy": MetricInfo(unit="part of the clean training images", direction="higher"),
    "final_loss": MetricInfo(unit="nats, mean over the clean training images", direction="lower"),
    **{f"inversion_{name}": info for name, info in INVERSION_METRICS.items()},
    "inversion_mse_per_class": INVERSION_METRICS["mse"].model_copy(update={"axis": "class"}),
    "capacity": MetricInfo(unit="nats per image and draw of the noise", direction="higher"),
    "noise_variance": MetricInfo(unit="squared network input, mean over pixels", direction="none"),
    "epsilon": MetricInfo(unit="epsilon of (epsilon, delta)-differential privacy", direction="higher"),
}
STATED = ("capacity", "noise_variance", "epsilon")
"""Metrics of the mechanism that are known before training."""

PROTECTED = "_noisy"
"""Suffix of the name of an attack on candidates that the defense has protected."""

DATA_BUDGET = 2 * 2**30
"""Bytes that training sets and optimisers of runs side by side may take on a CPU. Only last digits depend on it."""

GPU_PART = 0.4
"""Fraction of a GPU's memory that they may take."""


def auc_metrics(attack: str) -> dict[str, MetricInfo]:
    """The metrics of a membership attack of this name."""
    unit = "area under the ROC curve"
    return {
        f"auc/{attack}": MetricInfo(unit=unit, direction="higher"),
        f"auc_low/{attack}": MetricInfo(unit=f"{unit}, lower end of DeLong's 95 % interval", direction="higher"),
        f"auc_high/{attack}": MetricInfo(unit=f"{unit}, upper end of DeLong's 95 % interval", direction="higher"),
    }


@dataclass(frozen=True)
class _Run:
    """One model to train: a seed, a setting of the defense with its index, the calibrated defense."""

    seed: int
    place: int
    setting: Setting
    defense: Defense


class _Guarantee(NamedTuple):
    """Metrics that are known before training, why some are missing, and the privacy statement."""

    values: dict[str, Value]
    missing: dict[str, str]
    privacy: dict[str, Any]


class _Trained(NamedTuple):
    """Models after some number of steps.

    Attributes:
        models: of all runs.
        diverged_at: the step at which a run became non-finite, ``[runs]``; -1 where it never did.
        images: that they were trained on, ``[N, C, H, W]``, or ``[runs, N, C, H, W]`` where defenses change them.
        rates: learning rate of each run.
    """

    models: TrainedModels
    diverged_at: torch.Tensor
    images: torch.Tensor
    rates: list[float]


@JOB_KINDS.register("release", version=3)
class ReleaseJob(ClientTraining):
    """Train on one client's data and attack the released model: membership inference and model inversion.

    A channel changes the images before training (or at every step); DP-SGD bounds and noises the gradients of samples.
    Everything but the defense's noise is the same for all defenses: the model's initialisation, the order of the
    images, the split into known and judged images, and the randomness of attacks. Attackers hold clean images and clean
    labels; of the training images and of the evaluation images they know as many as a third of the smaller set, and as
    many of either are judged. Shadow models of LiRA are undefended, and train for as many epochs as the victim.

    With several ``rates`` a model is trained at each, and the one that is most accurate on the auxiliary images is
    released; evaluation images play no part in the choice.

    DP-SGD's epsilon is that of Poisson sampling, though batches are those of shuffled epochs, as in common practice.
    """

    memory_mb: ClassVar[int] = 16000
    minutes: ClassVar[int] = 120
    faces: ClassVar[frozenset[ActsOn]] = frozenset({"data", "samples"})
    gated_metrics: ClassVar[Mapping[str, MetricInfo]] = {
        name: MODEL_METRICS[name] for name in ("accuracy", "train_accuracy", "chance")
    }

    rates: tuple[float, ...] = Field(
        (), description="learning rates to choose from, for every model, on auxiliary images; by default rate alone"
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="the delta at which epsilon is stated")
    deltas: dict[str, float] = Field({}, description="the same for data sets, by label, that have another one")
    shadows: str | None = Field(
        None,
        description="experiment of the same paper whose job 'shadows' trained LiRA's shadow models, on this data set "
        "and model; by default each job trains its own",
    )
    membership: tuple[SerializeAsAny[MembershipAttack], ...] = Field(
        (FourBranch(), Threshold(), LiRA()), description="membership attacks: names with parameters"
    )
    protected_probes: tuple[str, ...] = Field(
        ("four_branch", "threshold"),
        description="those of them that are also given all samples as the defense changes them",
    )
    inversion: SerializeAsAny[ModelInversion] = Field(
        MeanStart(), description="model inversion: a name with parameters"
    )
    pictures: bool = Field(False, description="keep the inverted images and the classes' mean images")

    @field_validator("membership", mode="before")
    @classmethod
    def _attacks(cls, value: Any) -> Any:
        return [_named(MEMBERSHIP_ATTACKS, each) for each in value] if isinstance(value, list | tuple) else value

    @field_validator("inversion", mode="before")
    @classmethod
    def _inversion(cls, value: Any) -> Any:
        return _named(MODEL_INVERSIONS, value)

    @model_validator(mode="after")
    def _consistent(self) -> ReleaseJob:
        names = [attack.name for attack in self.membership]
        if len(set(names)) < len(names):
            raise ValueError(f"membership: an attack is listed twice ({', '.join(names)})")
        if not all(rate > 0 for rate in self.rates):
            raise ValueError(f"rates: learning rates must be positive, found {list(self.rates)}")
        if not all(0 < delta < 1 for delta in self.deltas.values()):
            raise ValueError(f"deltas: they must lie between 0 and 1, found {self.deltas}")
        return self

    def parameters(self) -> dict[str, Any]:
        """The parameters, with versions of the attacks."""
        nested = {"membership": [_described(attack) for attack in self.membership]}
        return super().parameters() | nested | {"inversion": _described(self.inversion)}

    def reads(self, attack: Attack | None) -> Mapping[str, str]:
        return {"shadows": "shadows"} if self.shadows else {}

    @property
    def _probes(self) -> list[str]:
        return [attack.name for attack in self.membership if attack.name in self.protected_probes]

    @property
    def _measured(self) -> dict[str, MetricInfo]:
        """Metrics of every replicate, which depend on the attacks."""
        names = [attack.name for attack in self.membership] + [name + PROTECTED for name in self._probes]
        metrics = dict(MODEL_METRICS)
        for name in names:
            metrics |= auc_metrics(name)
        return metrics

    def metrics_of(self, job: Job) -> Mapping[str, MetricInfo]:
        return self._measured

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        return {"class": job.dataset.single().classes}

    def results(self, job: Job, device: torch.device, kinds: Sequence[ClientTraining]) -> list[Findings]:
        data = self.load(job, device)
        made = [Findings([]) for _ in kinds]
        try:
            client = ClientData(data.members.images[None], job.dataset.single().classes)
            settings = [(setting, calibrated(_feasible(each), client)) for setting, each in job.defense.settings()]
            with torch.no_grad():
                networks = {seed: self.network(job, seed, device) for seed in job.seeds}
                runs = [
                    _Run(seed, place, setting, defense)
                    for seed in job.seeds
                    for place, (setting, defense) in enumerate(settings)
                ]
                together = self._together(networks[job.seeds[0]], data, device)
                for first in range(0, len(runs), together):
                    part = runs[first : first + together]
                    trained = self._train(part, networks, data, [kind.steps for kind in kinds])
                    for kind, models, findings in zip(kinds, trained, made, strict=True):
                        assert isinstance(kind, ReleaseJob)
                        measured, kept = kind._attack_models(job, part, models, data)
                        findings.replicates.extend(measured)
                        findings.tensors.update(kept)
        except Infeasible as error:
            outcome = Outcome(status="infeasible", reason=str(error))
            return [Findings(job.without_numbers(outcome)) for _ in kinds]
        return made

    def training_effort(self, job: Job) -> Effort:
        runs = len(job.seeds) * job.defense.count * max(1, len(self.rates))
        return Effort(self.batch_size, 1).times(self.steps).beside(runs)

    def attack_effort(self, job: Job) -> Effort:
        members, others = self.sizes(job)
        known, target = 2 * (min(members, others) // 3), target_of(job)
        training = self.shadow_training(members, others)
        attacks = {each.name: each if self.shadows else each.knowing(training) for each in self.membership}
        asked = [*attacks.values(), *(attacks[name] for name in self._probes)]
        settings = job.defense.count
        judged = Effort(FORWARD * (members + others), 1).plus(self.inversion.effort(target.classes)).beside(settings)
        attacked = reduce(Effort.plus, (each.effort(known, settings, target) for each in asked), judged)
        return attacked.times(len(job.seeds))

    def _together(self, network: Network, data: ClientImages, device: torch.device) -> int:
        """Number of runs that fit in memory side by side, each with its copy of the training set."""
        size = 4 * (data.members.images.numel() + 6 * network.dimension)
        # Total memory, since what is free may change: an attempt that goes on has to have the same runs side by side.
        budget = GPU_PART * torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else DATA_BUDGET
        return max(1, int(budget / size))

    def _attack_models(
        self, job: Job, runs: Sequence[_Run], trained: _Trained, data: ClientImages
    ) -> tuple[list[Replicate], dict[str, torch.Tensor]]:
        """Judge and attack some models, seed by seed."""
        values: list[dict[str, Value]] = [
            {"rate": rate} if step < 0 else {}
            for rate, step in zip(trained.rates, trained.diverged_at.tolist(), strict=True)
        ]
        reasons: list[dict[str, str]] = [{} for _ in runs]
        tensors: dict[str, torch.Tensor] = {}
        diverged, protected = trained.diverged_at.tolist(), trained.images
        for seed in dict.fromkeys(run.seed for run in runs):
            rows = [row for row, run in enumerate(runs) if run.seed == seed and diverged[row] < 0]
            if not rows:
                continue
            models = _chosen(trained.models, rows)
            of_seed = [runs[row] for row in rows]
            attacks = self._informed(job, data, seed)
            measured: dict[str, torch.Tensor | str] = {}
            measured |= self._utility(models, data)
            measured |= self._inverted(models, data, of_seed, tensors)
            measured |= self._memberships(attacks, models, data, seed)
            probes = protected if protected.dim() == 4 else protected[torch.tensor(rows, device=protected.device)]
            defenses = [run.defense for run in of_seed]
            measured |= self._protected_memberships(attacks, models, data, seed, defenses, probes)
            for name, value in measured.items():
                for place, row in enumerate(rows):
                    if isinstance(value, str):
                        reasons[row][name] = value
                    else:
                        values[row][name] = value[place].tolist()
        replicates = []
        guarantees = [self._guarantee(run.defense, trained.models.network.dimension, data) for run in runs]
        for run, metrics, why, step, known in zip(runs, values, reasons, diverged, guarantees, strict=True):
            outcome = Outcome()
            if step >= 0:
                reason = f"training became non-finite at step {step}"
                outcome = Outcome(status="diverged", reason=reason, step=step)
                why |= dict.fromkeys(self._measured.keys() - set(STATED), reason)
            replicate = self._replicate(run.seed, run.setting, outcome, metrics | known.values, why | known.missing)
            replicate.privacy = known.privacy
            replicates.append(replicate)
        return replicates, tensors

    def _replicate(
        self, seed: int, setting: Setting, outcome: Outcome, values: Mapping[str, Value], reasons: Mapping[str, str]
    ) -> Replicate:
        """Every metric, null with a reason where it has no value."""
        metrics: dict[str, Value] = {}
        why: dict[str, str] = {}
        for name in self._measured:
            metrics[name] = value = _finite(values.get(name))
            if value is None or (isinstance(value, list) and None in value):
                why[name] = reasons.get(name, "not finite")
        return Replicate(seed=seed, setting=dict(setting), outcome=outcome, metrics=metrics, reasons=why)

    def _train(
        self, runs: Sequence[_Run], networks: Mapping[int, Network], data: ClientImages, steps: Sequence[int]
    ) -> list[_Trained]:
        """Models after each of some numbers of steps, at the learning rate that suits each run best."""
        images = _protected_images(runs, data)
        best: list[_Trained] = []
        for rate in self.rates or (self.rate,):
            trained = self._train_at(rate, runs, networks, data, images, sorted(set(steps)))
            candidates = []
            for number in steps:
                diverged = torch.where(trained.diverged_at < number, trained.diverged_at, -1)
                candidates.append(_Trained(trained.snapshots[number], diverged, images, [rate] * len(runs)))
            best = [_better(*pair, data) for pair in zip(best, candidates, strict=True)] if best else candidates
        return best

    def _train_at(
        self,
        rate: float,
        runs: Sequence[_Run],
        networks: Mapping[int, Network],
        data: ClientImages,
        images: torch.Tensor,
        steps: Sequence[int],
    ) -> TrainingRuns:
        defenses = [run.defense for run in runs]
        network = networks[runs[0].seed]
        gradients = batch_gradients(network, images.device)
        if any(defense.acts_on == "samples" for defense in defenses):
            # With `_feasible`, all of them: a job's runs are settings of one mechanism.
            gradients = SampleGradients(PrivateRuns([defense for defense in defenses if isinstance(defense, DPSGD)]))
        return train_runs(
            Start(network, torch.stack([networks[run.seed].parameters for run in runs])),
            TrainingSet(images, data.members.labels),
            Streams([data.key(run.seed) for run in runs]),
            self.training.model_copy(update={"rate": rate}),
            transform=_at_every_step(runs, data),
            gradients=gradients,
            snapshots=steps,
        )

    def _utility(self, models: TrainedModels, data: ClientImages) -> dict[str, torch.Tensor]:
        logits = models.logits(data.members.images)
        labels = data.members.labels.expand(len(models), -1)
        usual = data.members.labels.bincount().argmax()
        return {
            "accuracy": models.accuracy(*data.evaluation),
            "chance": (data.evaluation.labels == usual).float().mean().expand(len(models)),
            "train_accuracy": (logits.argmax(dim=-1) == labels).float().mean(dim=-1),
            "final_loss": torch.nn.functional.cross_entropy(logits.mT, labels, reduction="none").mean(dim=1),
        }

    def _inverted(
        self, models: TrainedModels, data: ClientImages, runs: Sequence[_Run], tensors: dict[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """Metrics of model inversion, against the mean clean training image of every class that has one."""
        images, labels = data.members
        present = labels.unique()
        centres = class_centres(images, labels, data.dataset.classes)[present]
        inverted = self.inversion.invert(models, data.auxiliary.images, present).images
        low, high = image_dataset(data.dataset, "model inversion").pixel_range(images.device)
        metrics = inversion_metrics(inverted, centres, float((high - low).max()))
        if self.pictures:
            pixels = data.dataset.denormalise(inverted).clamp(0, 1)
            tensors |= {f"seed{run.seed}/inverted/{run.place}": image for run, image in zip(runs, pixels, strict=True)}
            tensors[f"seed{runs[0].seed}/centres"] = data.dataset.denormalise(centres)
        per_class = (inverted - centres).square().flatten(2).mean(dim=2)
        return {f"inversion_{name}": value for name, value in metrics.items()} | {"inversion_mse_per_class": per_class}

    def _attack(
        self,
        attack: MembershipAttack,
        label: str,
        models: TrainedModels,
        parts: Sequence[Labelled],
        key: tuple[str | int, ...],
    ) -> dict[str, torch.Tensor | str]:
        """Areas under the ROC curve of one attack, by metric.

        Args:
            attack: one of the protocol's.
            label: its label, which names the metrics.
            models: the released ones.
            parts: known members, known non-members, members and non-members to judge.
            key: words that name the random streams of this data set and seed.
        """
        names = list(auc_metrics(label))
        known, others, members, nonmembers = parts
        candidates = joined(members, nonmembers, len(models))
        inside = torch.arange(candidates.images.shape[-4]) < members.images.shape[-4]
        streams = Streams([(*key, "membership", attack.name)] * len(models))
        try:
            scores = attack.score(models, known, others, candidates, streams)
        except Infeasible as error:
            return dict.fromkeys(names, str(error))
        return dict(zip(names, auc(scores, inside), strict=True))

    def _memberships(
        self, attacks: Sequence[MembershipAttack], models: TrainedModels, data: ClientImages, seed: int
    ) -> dict[str, torch.Tensor | str]:
        """Areas under the ROC curve of all attacks on clean candidates."""
        parts, areas = data.parts(seed), dict[str, torch.Tensor | str]()
        for attack in attacks:
            areas |= self._attack(attack, attack.name, models, parts, data.key(seed))
        return areas

    def _informed(self, job: Job, data: ClientImages, seed: int) -> list[MembershipAttack]:
        """The attacks, which know the undefended training of the victim, and its shadow models if a job has them.

        Raises:
            ConfigError: those are of another protocol.
        """
        training = self.shadow_training(len(data.members.labels), len(data.evaluation.labels))
        attacks = [attack.knowing(training) for attack in self.membership]
        if self.shadows is None:
            return attacks
        confidences = shadow_confidences(job, self, seed)
        return [attack.shadowed(confidences) if isinstance(attack, LiRA) else attack for attack in attacks]

    def _protected_memberships(
        self,
        attacks: Sequence[MembershipAttack],
        models: TrainedModels,
        data: ClientImages,
        seed: int,
        defenses: Sequence[Defense],
        trained_on: torch.Tensor,
    ) -> dict[str, torch.Tensor | str]:
        """Areas under the ROC curve of some attacks when all samples are protected by the defense.

        Members have the noise that they were trained with, if that was drawn once, and others noise of the same law.
        """
        areas: dict[str, torch.Tensor | str] = {}
        if not self._probes:
            return areas
        split = data.split(seed)
        streams = Streams([data.key(seed)])
        images: list[list[torch.Tensor]] = [[] for _ in split]
        for row, defense in enumerate(defenses):
            others, _ = defense.protect_dataset(
                data.evaluation.images[None], data.evaluation.labels[None], streams.child("nonmembers")
            )
            members = trained_on if trained_on.dim() == 4 else trained_on[row]
            for place, rows in enumerate(split):
                chosen, labels = (members if place % 2 == 0 else others[0])[rows], _shared_labels(data, place, rows)
                shown, _ = defense.protect_data(chosen, labels, streams.child("probe", place))
                images[place].append(shown[0])
        parts = [
            Labelled(torch.stack(each), _shared_labels(data, place, rows).expand(len(defenses), -1))
            for place, (each, rows) in enumerate(zip(images, split, strict=True))
        ]
        clean = data.members.images[split.members[0]]
        for attack in attacks:
            if attack.name in self._probes:
                label = attack.name + PROTECTED
                if torch.equal(parts[2].images, clean.expand_as(parts[2].images)):
                    areas |= dict.fromkeys(auc_metrics(label), "the defense leaves images as they are")
                else:
                    areas |= self._attack(attack, label, models, parts, data.key(seed))
        return areas

    def _guarantee(self, defense: Defense, dimension: int, data: ClientImages) -> _Guarantee:
        """The guarantee of a calibrated mechanism."""
        rate = min(1.0, self.batch_size / len(data.members.labels))
        delta = self.deltas.get(data.label, self.delta)
        schedule = Schedule(dimension, rounds=self.steps, delta=delta, sampling_rate=rate)
        statement = defense.privacy(schedule)
        reports: Sequence[ChannelReport] = getattr(defense, "reports", ())  # of channels alone
        values: dict[str, Value] = {"epsilon": statement.epsilon}
        if reports:
            values |= {"capacity": reports[0].capacity, "noise_variance": reports[0].mean_variance}
        missing = dict.fromkeys(("capacity", "noise_variance"), "the defense is no channel on images")
        return _Guarantee(values, missing | {"epsilon": statement.basis}, statement.as_dict())


def _named(registry: Registry[Any], value: Any) -> Any:
    """The component of a name, or of a mapping with a name and parameters."""
    if isinstance(value, str):
        return registry.get(value)()
    if isinstance(value, Mapping):
        given = dict(value)
        given.pop("version", None)
        return registry.get(str(given.pop("name", None)))(**given)
    return value


def _described(component: Component) -> dict[str, Any]:
    return {"name": component.name, "version": component.version, **component.parameters()}


def _feasible(defense: Defense) -> Defense:
    if defense.acts_on == "samples" and not isinstance(defense, DPSGD):
        raise Infeasible(
            f"'{defense.name}' acts on the gradients of samples; training takes such a defense from a subclass of "
            "DPSGD alone, whose verbs bound and release their sum"
        )
    if defense.acts_on == "updates":
        raise Infeasible(
            f"'{defense.name}' changes what a client sends at each step; a released model was trained with a defense "
            "on its images or on the gradients of its samples"
        )
    return defense


def _protected_images(runs: Sequence[_Run], data: ClientImages) -> torch.Tensor:
    """The victim's images, protected before training by the defense of each run, ``[runs, N, C, H, W]``.

    Where no defense changes them, those of all runs: ``[N, C, H, W]``.

    Raises:
        Infeasible: a defense changes labels.
    """
    images, labels = data.members
    for row, run in enumerate(runs):
        victim = DefendedClients(
            run.defense, Streams([data.key(run.seed)]), Examples(data.members.images[None], labels[None])
        )
        _check_labels(run.defense, victim.samples.labels[0], labels)
        if victim.samples.inputs.data_ptr() != data.members.images.data_ptr():
            if images.dim() == 4:
                images = images.repeat(len(runs), 1, 1, 1, 1)
            images[row] = victim.samples.inputs[0]
    return images


def _at_every_step(runs: Sequence[_Run], data: ClientImages) -> Transform | None:
    """The defenses' change of the images of a step; None where there is none."""
    if not any(run.defense.overrides("protect_data") for run in runs):
        return None
    victims = [DefendedClients(run.defense, Streams([data.key(run.seed)])) for run in runs]

    def transform(images: torch.Tensor, labels: torch.Tensor, _: torch.Tensor, streams: Streams) -> torch.Tensor:
        parts = []
        for run, victim in enumerate(victims):
            batch, stream = Examples(images[run : run + 1], labels[run : run + 1]), Streams([streams.keys[run]])
            changed = victim.protect_data(batch, stream.child("defense"))
            _check_labels(victim.defense, changed.labels, batch.labels)
            parts.append(changed.inputs)
        return torch.cat(parts)

    return transform


def _check_labels(defense: Defense, changed: torch.Tensor, labels: torch.Tensor) -> None:
    """Reject a defense that changes labels (both ``[...]``).

    Raises:
        Infeasible: labels differ.
    """
    if not torch.equal(changed, labels):
        raise Infeasible(f"'{defense.name}' changes labels, which membership attacks know")


def _chosen(models: TrainedModels, rows: Sequence[int]) -> TrainedModels:
    """Some of the models."""
    index = torch.tensor(rows, device=models.parameters.device)
    statistics = {name: values[index] for name, values in models.statistics.items()}
    initial = None if models.initial is None else models.initial[index]
    return TrainedModels(models.network, models.parameters[index], statistics, initial)


def _better(first: _Trained, second: _Trained, data: ClientImages) -> _Trained:
    """Choose of each run the model that is more accurate on the auxiliary images; of equals the first.

    A model that diverged is worse than any other.
    """
    scores = [
        each.models.accuracy(*data.auxiliary).where(each.diverged_at.to(each.models.parameters.device) < 0, -1.0)
        for each in (first, second)
    ]
    later = scores[1] > scores[0]

    def chosen(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return torch.where(later.view(-1, *[1] * (one.dim() - 1)).to(one.device), other, one)

    statistics = {
        name: chosen(first.models.statistics[name], second.models.statistics[name]) for name in first.models.statistics
    }
    models = replace(
        first.models, parameters=chosen(first.models.parameters, second.models.parameters), statistics=statistics
    )
    rates = [pair[int(place)] for pair, place in zip(zip(first.rates, second.rates, strict=True), later, strict=True)]
    return _Trained(models, chosen(first.diverged_at, second.diverged_at), first.images, rates)


def _shared_labels(data: ClientImages, place: int, rows: torch.Tensor) -> torch.Tensor:
    """Labels ``[1, k]`` of one part of a split: members and others take turns."""
    return (data.members if place % 2 == 0 else data.evaluation).labels[rows.to(data.members.labels.device)]


def _finite(value: Value) -> Value:
    """Replace numbers that are not finite by null."""
    if isinstance(value, list):
        return [each if each is not None and math.isfinite(each) else None for each in value]
    return value if value is not None and math.isfinite(value) else None
