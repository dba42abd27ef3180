"""Scenes of attacks: clients compute and send under a defense, a server observes, and metrics compare.

:class:`AttackProtocol` states which clients, how they send, and what is granted; :class:`Scene` is one repetition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.attacks.base import Attack, Grant, Knowledge, Observations, OfRound, Reconstruction, observed
from leakbench.data.base import Dataset
from leakbench.defenses.base import Defense, PrivacyStatement, Round, Schedule
from leakbench.defenses.clients import DefendedClients, Examples, PublicMechanism
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.local import ONE_STEP, LocalTraining
from leakbench.federated.means import averaged
from leakbench.federated.message import Message, stacked
from leakbench.federated.secure_training import SecureAggregation
from leakbench.federated.step import ClientSteps
from leakbench.jobs.base import Job, JobKind, Setting
from leakbench.jobs.pretraining import Pretraining, trajectory
from leakbench.jobs.subjects import Subject
from leakbench.jobs.sums import together
from leakbench.jobs.victims import SAME_OR_DISTINCT, OfSeeds, Victims, gather_victims
from leakbench.lazy import torch
from leakbench.metrics.assignment import reorder
from leakbench.metrics.image import identified
from leakbench.metrics.labels import label_accuracy
from leakbench.metrics.visibility import visibility
from leakbench.models.base import BatchNorm, Network, Statistics
from leakbench.randomness import Streams
from leakbench.records import Outcome, Replicate, digest

ROWS = 4096
"""Images that are loaded at a time for their mean. Only memory depends on it."""


class AttackProtocol(JobKind):
    """The clients that are attacked, what they compute and send, and what the attacker is granted."""

    victim_fields: ClassVar[tuple[str, ...]] = (
        "clients",
        "batch_size",
        "first_index",
        "victims",
        "unlike",
        "users",
        "target",
    )
    added: ClassVar[tuple[str, ...]] = (
        "users",
        "secure_aggregation",
        "victims",
        "unlike",
        "rounds",
        "rounds_apart",
        "inverter",
        "utility",
        "allowed",
        "line_up",
        "budget",
    )

    clients: int = Field(ge=1, description="victim batches per seed")
    batch_size: int = Field(ge=1, description="samples per victim batch, B")
    first_index: int = Field(1, ge=0, description="where the victims start in the test split")
    victims: OfSeeds = Field("same", description=SAME_OR_DISTINCT)
    unlike: bool = Field(
        False,
        description="pass over samples whose label their batch has already, as code of Geiping et al. (2020) does",
    )
    auxiliary: int = Field(512, ge=1, description="training samples, of no client, that may be granted")
    knowledge: tuple[Grant, ...] = Field(
        ("labels", "pixel_range", "auxiliary_images", "auxiliary_sentences"),
        description="side knowledge that the threat model grants; some is of images alone, some of sentences",
    )
    batch_norm: BatchNorm = Field("eval", description="what the clients' BatchNorm layers normalise with")
    local: LocalTraining = Field(ONE_STEP, description="the clients' local training: one gradient, or FedAvg")
    epoch: int = Field(0, ge=0, description="how many epochs the model was trained, undefended, before the attack")
    pretraining: Pretraining = Field(Pretraining(), description="how it was trained")
    calibration: int | None = Field(
        5000,
        ge=2,
        description="training images, none of them auxiliary, that calibrate a defense which looks at its clients' "
        "data; null: all of them",
    )
    messages: int = Field(
        1,
        ge=1,
        description="messages of each client about the same images and model, with fresh randomness of the defense; "
        "attacks see the first, 'averaged' all of them",
    )
    rounds: int = Field(
        1,
        ge=1,
        description="rounds in which each client sends an update of the same images, each under the model of its round "
        "and with fresh randomness of the defense; attacks that know one round look at the first",
    )
    rounds_apart: int = Field(
        10,
        ge=1,
        description="steps of undefended training, as pretraining has them, from one round's model to the next",
    )
    prior: str | None = Field(
        None,
        description="experiment of the same paper whose job 'prior' trained networks that are granted on this data set",
    )
    language_model: str | None = Field(
        None,
        description="experiment of the same paper whose job 'language_model' trained a model that is granted on this "
        "data set of sentences",
    )
    inverter: str | None = Field(
        None,
        description="experiment of the same paper whose job 'inverter' trained networks that are granted on this data "
        "set, for this model and this defense",
    )
    utility: str | None = Field(
        None,
        description="experiment of the same paper whose jobs 'train' say what accuracy settings of a defense cost: "
        "those that bracket the allowed loss are attacked, by default all",
    )
    allowed: float | None = Field(
        None, ge=0, description="allowed loss of accuracy, as a part of the evaluation images; with utility"
    )
    line_up: int | None = Field(
        None,
        ge=2,
        description="images of the test split, the last ones, among which each victim is picked out by its "
        "reconstruction, the victim included; by default none is",
    )
    budget: bool = Field(
        False,
        description="whether the record says how many gradients the attack evaluates per victim, and how many "
        "auxiliary samples it reads",
    )
    target: Literal["images", "batch_mean", "dataset_mean"] = Field(
        "images",
        description="what reconstructions are compared with: every image, or, by their mean, the mean of the batch, or "
        "that of the training images",
    )

    users: int = Field(
        1,
        ge=1,
        description="users whose updates secure aggregation averages before the server sees them, each with batch_size "
        "samples; clients counts such means",
    )
    secure_aggregation: SecureAggregation | None = Field(
        None,
        description="the protocol by which the server gets the sum of two or more users, all of whom stay; by default "
        "it is computed in the clear",
    )

    @model_validator(mode="after")
    def _nobody_drops_out(self) -> AttackProtocol:
        secure = self.secure_aggregation
        if secure is not None and (secure.dropout or secure.early):
            raise ValueError("secure_aggregation.dropout, early: no user drops out here, since all are reconstructed")
        _ = self._honest
        return self

    @model_validator(mode="after")
    def _of_utility(self) -> AttackProtocol:
        if (self.utility is None) != (self.allowed is None):
            raise ValueError("utility, allowed: the loss that is allowed, and where it is measured, go together")
        if self.line_up is not None and self.target != "images":
            raise ValueError("line_up: means of images are in no line-up; target: images")
        return self

    @model_validator(mode="after")
    def _one_way_to_choose(self) -> AttackProtocol:
        if self.unlike and self.victims == "distinct":
            raise ValueError("unlike: where samples are passed over, seeds cannot count off their own; victims: same")
        return self

    @model_validator(mode="after")
    def _whole_local_batches(self) -> AttackProtocol:
        size = self.local.batch_size
        if size is not None and self.batch_size % size:
            raise ValueError(f"local.batch_size ({size}) must divide batch_size ({self.batch_size})")
        return self

    @property
    def _honest(self) -> int:
        """Users of a sum who do not collude with the server.

        Raises:
            ValueError: the protocol does not fit their number.
        """
        if self.secure_aggregation is None or self.users == 1:
            return self.users
        try:
            return self.secure_aggregation.honest(self.users)
        except ConfigError as error:
            raise ValueError(f"secure_aggregation: {error}") from error

    def schedule(self, dimension: int) -> Schedule:
        """The release of a user's data: of all that it holds here."""
        secure = self.secure_aggregation
        return Schedule(
            dimension,
            clients=self._honest,
            records=self.batch_size,
            batch=self.batch_size,
            sampling="all",
            rounds=self.rounds,
            clipped=secure is not None and secure.clip is not None,
            places=None if secure is None else secure.fraction_bits,
        )

    @property
    def malicious_server(self) -> bool:
        """Whether attackers may change the model, and records say how visible that is."""
        return "modified_model" in self.knowledge


@dataclass(frozen=True, kw_only=True)
class _Round:
    """The messages of all clients in one round.

    Attributes:
        message: the first message of each server's clients, as the server gets it.
        view: the gradients decoded from it, ``[n, d]``.
        repeats: those decoded from all messages, ``[n, messages, d]``; None where each client sent one.
        statistics: of the batches, for BatchNorm; empty where they are not granted.
    """

    message: Message
    view: torch.Tensor
    repeats: torch.Tensor | None
    statistics: Statistics


@dataclass(frozen=True, kw_only=True)
class _Sent(_Round):
    """The first round under one setting of the defense, later ones, and the side knowledge that may be granted.

    Attributes:
        setting: values of the swept parameters.
        later: the later rounds.
        image_noise: covariance of the noise on each observation's images; empty where it is not granted.
        privacy: the mechanism's guarantee.
        mechanism: the defense, if an attacker may run it; None where it is not granted, or is not one client's.
    """

    setting: Setting
    later: list[_Round]
    image_noise: list[torch.Tensor]
    privacy: PrivacyStatement
    mechanism: PublicMechanism | None


@dataclass(frozen=True)
class Scene:
    """One repetition: clients compute and send, the attacker reconstructs, and metrics compare.

    Attributes:
        kind: the protocol.
        subject: images or sentences.
        clients: all of them; each ``users`` consecutive ones are averaged before the server sees them.
        undefended: their step without a defense, which the settings of a defense share.
        models: those of all rounds.
        agreed: number of parameters of the model that clients agreed to train.
    """

    kind: AttackProtocol
    subject: Subject
    clients: Victims
    undefended: ClientSteps
    models: list[Network]
    agreed: int

    @classmethod
    def of(
        cls,
        kind: AttackProtocol,
        job: Job,
        subject: Subject,
        attack: Attack,
        defense: Defense,
        seed: int,
        device: torch.device,
    ) -> Scene:
        """Gather the victims, with the model that they hold when they are attacked: the attacker's, if it sends one.

        Args:
            kind: the protocol.
            job: whose data set and model these are.
            subject: images or sentences.
            attack: as it faces the defense.
            defense: which makes the model that clients train; of one setting for all that make the same.
            seed: of the repetition.
            device: of the computation.

        Raises:
            Diverged: pretraining became non-finite.
            Infeasible: the attacker has no model to send.
        """
        dataset, label = subject.dataset, job.dataset.label
        clients = gather_victims(
            dataset,
            label,
            job.model.single(),
            seed,
            clients=kind.clients * kind.users,
            batch_size=kind.batch_size,
            first_index=kind.first_index,
            of_seeds=kind.victims,
            unlike=kind.unlike,
            device=device,
        ).under(defense, label, seed)
        states = trajectory(
            clients.network,
            dataset,
            label,
            seed,
            kind.epoch,
            kind.pretraining,
            device,
            states=kind.rounds,
            apart=kind.rounds_apart,
            of=_origin(job, defense),
        )
        honest = states[0].dimension
        if attack.changes_model:
            known = Knowledge(**subject.beforehand(kind.knowledge, kind.auxiliary, device))
            shape = (kind.batch_size * kind.users, *clients.inputs.shape[2:])
            with torch.no_grad():
                states = [attack.prepare(state, shape, known) for state in states]
        network, *later = (state.in_mode(kind.batch_norm) for state in states)
        inputs = subject.inputs(network, network.parameters, clients.values)
        clients = replace(clients, network=network, parameters=network.parameters, inputs=inputs)
        undefended = _steps(kind, clients, Examples(inputs, clients.labels))
        return cls(kind, subject, clients, undefended, [network, *later], honest)

    @cached_property
    def victims(self) -> Victims:
        """The clients whose samples are reconstructed: all users of a mean are one victim."""
        return together(self.clients, self.kind.users)

    def sent(self, setting: Setting, mechanism: PublicMechanism) -> _Sent:
        """The clients' messages under a calibrated defense, in the protocol's number.

        Raises:
            Infeasible: the defense cannot protect such clients, secure aggregation fails, or users' noise on images
                differs where it is granted.
        """
        kind, clients, defense = self.kind, self.clients, mechanism.defense
        samples = Examples(clients.inputs, clients.labels)
        defended = DefendedClients(defense, clients.streams, samples, per_server=kind.users)
        first, *later = [self._round(defended, number) for number in range(kind.rounds)]
        return _Sent(
            **vars(first),
            setting=setting,
            later=later,
            image_noise=self._image_noise(defense),
            privacy=defense.privacy(kind.schedule(clients.network.dimension)),
            mechanism=mechanism if "mechanism" in kind.knowledge and defense.together == 1 else None,
        )

    def _round(self, defended: DefendedClients, number: int) -> _Round:
        """The messages of a round, from 0 on."""
        kind = self.kind
        sent = [defended.step(partial(self._computed, number), streams) for streams in self._mechanism_streams(number)]
        messages = [averaged(each.message, kind.users, kind.secure_aggregation) for each in sent]
        views = [message.view() for message in messages]
        return _Round(
            message=messages[0],
            view=views[0],
            repeats=torch.stack(views, dim=1) if len(views) > 1 else None,
            statistics=sent[0].steps.batch_statistics if self._grants_statistics else {},
        )

    def _computed(self, number: int, batch: Examples) -> ClientSteps:
        """The clients' computation on a batch; shared with the undefended step where model and batch are unchanged."""
        clients = self.clients
        if number:
            model, streams = self.models[number], clients.streams.child("round", number)
            return _steps(
                self.kind, replace(clients, network=model, parameters=model.parameters, streams=streams), batch
            )
        same = batch.inputs is clients.inputs and batch.labels is clients.labels
        return self.undefended if same else _steps(self.kind, clients, batch)

    def _mechanism_streams(self, number: int = 0) -> Iterator[Streams]:
        """The mechanism's randomness for each message of the clients in a round."""
        streams = self.clients.streams.child("round", number) if number else self.clients.streams
        yield streams.child("defense")
        for message in range(1, self.kind.messages):
            yield streams.child("defense", message)

    def _image_noise(self, defense: Defense) -> list[torch.Tensor]:
        """Covariance of the noise on the images of each observation, if granted; empty without noise.

        Raises:
            Infeasible: the users of a mean have noise of different covariances.
        """
        if "data_noise" not in self.kind.knowledge:
            return []
        covariances = defense.image_noise()
        if len(covariances) > 1 and self.kind.users > 1:
            raise Infeasible("users' images have noise of different covariances, and attackers know one")
        # One object where clients share it: attackers group by it.
        return covariances * self.kind.clients if len(covariances) == 1 else covariances

    @property
    def _grants_statistics(self) -> bool:
        return "batch_statistics" in self.kind.knowledge and self.kind.users == 1

    def observations(self, sent: Sequence[_Sent]) -> Observations:
        """The server's observations under all settings, one setting after the other.

        Raises:
            ObservationError: a value is not finite, or does not fit the model.
        """
        first, *later = (self._observed(number, of_round) for number, of_round in enumerate([sent, *_rounds_of(sent)]))
        return replace(first, later=tuple(later))

    def _observed(self, number: int, sent: Sequence[_Round]) -> Observations:
        """The observations of a round."""
        victims, users, model = self.victims, self.kind.users, self.models[number]
        public = Round(next(self._mechanism_streams(number)), clients_per_server=users).public
        repeats = [each.repeats for each in sent if each.repeats is not None]
        return observed(
            model,
            model.parameters,
            [each.message for each in sent],
            tuple(victims.inputs.shape[1:]),
            self.kind.local,
            repeats=torch.cat(repeats) if repeats else None,
            public=Streams(public.keys[::users]).repeat(len(sent)),
        )

    def knowledge(self, sent: Sequence[_Sent]) -> Knowledge:
        """The granted knowledge of the victims and of the messages of all settings."""
        granted, settings = set(self.kind.knowledge), len(sent)
        first, *later = (self._known_in(of_round) for of_round in [sent, *_rounds_of(sent)])
        knowledge = Knowledge(
            labels=self.victims.labels.repeat(settings, 1) if "labels" in granted else None,
            of_later=tuple(later) or None,
            **first._asdict(),
            data_noise=[noise for each in sent for noise in each.image_noise] or None,
            mechanism=[each.mechanism for each in sent if each.mechanism for _ in range(self.kind.clients)] or None,
            **self.subject.knowledge(self.victims, self.kind.knowledge, self.kind.auxiliary),
        )
        if knowledge.words is None or knowledge.inputs is None:
            return knowledge
        return replace(knowledge, words=knowledge.words.repeat(settings), inputs=knowledge.inputs.repeat(settings))

    def _known_in(self, sent: Sequence[_Round]) -> OfRound:
        """The granted knowledge that differs between rounds."""
        statistics = [each.statistics for each in sent]
        variance = stacked([each.message.noise_variance for each in sent])
        return OfRound(
            variance if "noise_variance" in self.kind.knowledge else None,
            {name: torch.cat([each[name] for each in statistics]) for name in statistics[0]} or None,
        )

    def judged(
        self, seed: int, sent: Sequence[_Sent], reconstruction: Reconstruction
    ) -> tuple[list[Replicate], dict[str, torch.Tensor]]:
        """A replicate of each setting, which compares reconstructions with their victims, and the tensors to keep."""
        victims = self.victims
        if self.kind.target != "images":
            mean = _means(victims.values)
            if self.kind.target == "dataset_mean":
                mean = _training_mean(self.subject.dataset).to(mean).expand_as(mean).clone()
            victims = replace(victims, values=mean, inputs=self.subject.dataset.normalise(mean))
            reconstruction = replace(reconstruction, images=_means(reconstruction.images))
        replicates, every = [], []
        for index, each in enumerate(sent):
            rows = reconstruction.rows(index * self.kind.clients, (index + 1) * self.kind.clients)
            compared = self.subject.compare(victims, rows)
            values = compared.values | self._victim_metrics(rows, each.view)
            if self.kind.line_up:
                pixels = reorder(compared.shown, compared.order).flatten(0, 1)
                values |= {"identified": identified(pixels, victims.values.flatten(0, 1), self._line_up)}
            replicate = _replicate(seed, each.setting, values, rows.diverged_at)
            replicate.metrics["bits"] = float(each.message.bits)
            if self.kind.malicious_server:
                model = self.models[0]
                replicate.metrics |= visibility(model.unflatten(model.parameters), self.agreed)
            replicate.privacy = each.privacy.as_dict()
            replicates.append(replicate)
            every.append(compared)
        tensors = {
            "victims": self.subject.shown(victims),
            "reconstructions": _beside([compared.shown for compared in every]),
        }
        order = torch.stack([compared.order for compared in every])
        if order.shape[2] > 1:
            tensors["assignment"] = order
        return replicates, tensors

    @cached_property
    def _line_up(self) -> torch.Tensor:
        """The images beside the victim in a line-up, ``[m, C, H, W]``."""
        assert self.kind.line_up is not None
        dataset, rivals = self.subject.dataset, self.kind.line_up - 1
        count = dataset.length("test")
        return dataset.load("test", range(max(0, count - rivals), count)).values.to(self.victims.values.device)

    @cached_property
    def _gradient(self) -> torch.Tensor:
        """The server's undefended view, ``[n, d]``."""
        gradient, users = self.undefended.gradient, self.kind.users
        return gradient if users == 1 else gradient.unflatten(0, (-1, users)).mean(dim=1)

    def _victim_metrics(self, reconstruction: Reconstruction, view: torch.Tensor) -> dict[str, torch.Tensor | str]:
        """Metrics of one setting with one value per client, ``[n]``, or the reason why there is none."""
        gradient = self._gradient
        values: dict[str, torch.Tensor | str] = {
            "objective": "the attack has no objective",
            "alignment": (gradient * view).sum(dim=1) / gradient.square().sum(dim=1),
            "distortion": (view - gradient).square().mean(dim=1).sqrt(),
        }
        if reconstruction.objective is not None:
            values["objective"] = reconstruction.objective
        values |= reconstruction.chosen
        values["label_accuracy"] = "the attack uses no labels"
        if reconstruction.labels is not None:
            classes = self.victims.network.head.outputs
            values["label_accuracy"] = label_accuracy(reconstruction.labels, self.victims.labels, classes)
        return values


def _origin(job: Job, defense: Defense) -> str:
    """Digest of what the clients' model is made of, beside data and seed."""
    if not defense.overrides("extend"):
        return job.model.digest
    return digest([job.model.digest, defense.name, defense.version, defense.parameters()])


def _rounds_of(sent: Sequence[_Sent]) -> list[tuple[_Round, ...]]:
    """The later rounds of all settings, round after round."""
    return list(zip(*(each.later for each in sent), strict=True))


def _steps(kind: AttackProtocol, victims: Victims, batch: Examples) -> ClientSteps:
    """The clients' step on a batch."""
    return ClientSteps(victims.network, victims.parameters, *batch, victims.streams, kind.local)


def _replicate(
    seed: int, setting: Setting, values: Mapping[str, torch.Tensor | str], diverged_at: torch.Tensor
) -> Replicate:
    """The metrics of one setting; a diverged trial's values are null, with the reason.

    Args:
        seed: of the repetition.
        setting: values of the swept parameters.
        values: per metric one value per client ``[n]`` or per sample ``[n * B]``, or the reason why there is none.
        diverged_at: ``[n]``.
    """
    diverged, n = diverged_at >= 0, len(diverged_at)
    replicate = Replicate(seed=seed, setting=dict(setting), metrics={})
    if bool(diverged.any()):
        step = int(diverged_at[diverged].min())
        reason = f"{int(diverged.sum())} of {n} trials became non-finite"
        replicate.outcome = Outcome(status="diverged", reason=reason, step=step)
    for name, value in values.items():
        if isinstance(value, str):
            replicate.metrics[name], replicate.reasons[name] = None, value
            continue
        lost = diverged.repeat_interleave(len(value) // n).to(value.device)
        valid = (value.isfinite() & ~lost).tolist()
        replicate.metrics[name] = [number if ok else None for number, ok in zip(value.tolist(), valid, strict=True)]
        if not all(valid):
            replicate.reasons[name] = replicate.outcome.reason or "not finite"
    return replicate


def _beside(parts: list[torch.Tensor]) -> torch.Tensor:
    """The reconstructions of all settings, ``[settings, n, B, ...]``; shorter sentences are padded with zeros."""
    widest = max(part.shape[-1] for part in parts)
    return torch.stack([torch.nn.functional.pad(part, (0, widest - part.shape[-1])) for part in parts])


@cache
def _training_mean(dataset: Dataset) -> torch.Tensor:
    """The mean training image, float32 ``[C, H, W]`` in [0, 1]."""
    total, count = torch.zeros(dataset.shape, dtype=torch.float64), dataset.length("train")
    for first in range(0, count, ROWS):
        total += dataset.load("train", range(first, min(first + ROWS, count))).values.sum(dim=0, dtype=torch.float64)
    return (total / count).float()


def _means(images: torch.Tensor) -> torch.Tensor:
    """The mean of every batch, ``[n, B, C, H, W] -> [n, 1, C, H, W]``."""
    return images.mean(dim=1, keepdim=True)
