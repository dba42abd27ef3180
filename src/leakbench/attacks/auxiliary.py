"""Clients that the attacker makes up: auxiliary images under the attacked models, defended by the attacker's own copy.

An attacker who may run the mechanism sees what it makes of images that it knows. On these it trains an inverse map, or
tries how strong an attack should be. The victims' images are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from leakbench.attacks.base import Knowledge, Mechanism, Observations, OfRound, each_round, observed
from leakbench.attacks.rows import joined, picked, rows_of_each
from leakbench.errors import Infeasible
from leakbench.federated.message import Message, stacked
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams

MEMORY_BUDGET = 256 * 2**20
"""Bytes of the messages of made-up clients that compute side by side. Only speed depends on it, up to rounding."""


@dataclass(frozen=True)
class MadeUp:
    """Made-up clients, ``m`` for each of ``n`` observations, those of one mechanism in consecutive rows.

    Attributes:
        victim: the observation whose model and mechanism each client has, int64 ``[n m]``.
        images: what they hold, network inputs ``[n m, B, C, H, W]``.
        observations: what a server would see of them.
        knowledge: the attacker's knowledge of them, of the kinds that it has of the victims.
    """

    victim: torch.Tensor
    images: torch.Tensor
    observations: Observations
    knowledge: Knowledge


def made_up(
    observations: Observations,
    knowledge: Knowledge,
    streams: Streams,
    each: int,
    first: int = 0,
    labels: torch.Tensor | None = None,
) -> MadeUp:
    """Make up ``each`` clients per observation, with batches of auxiliary images one after the other.

    All mechanisms get the same images: they are compared on these, and none depends on how many others there are.

    Args:
        observations: the victims', whose model, batch size, local training and number of messages the clients share.
        knowledge: with auxiliary images and the mechanisms.
        streams: the attacker's randomness, one stream per observation.
        each: clients per observation, ``m``.
        first: the auxiliary image to begin with; after the last one follows the first. Clients that begin elsewhere
            have randomness of their own.
        labels: of the batches of every client of an observation, ``[n, B]``, whatever its images show; by default the
            images' own.

    Raises:
        Infeasible: the attacker lacks images, or the mechanism, or the victims hold no images.
    """
    images, classes, mechanisms = knowledge.auxiliary_images, knowledge.auxiliary_labels, knowledge.mechanism
    if images is None or classes is None or mechanisms is None:
        raise Infeasible("clients of the attacker's own need auxiliary images and the mechanism")
    batch = observations.batch_shape[0]
    groups = rows_of_each(mechanisms)
    rows = [row for group in groups for row in group for _ in range(each)]
    taken = [(first + number) % len(images) for group in groups for number in range(len(group) * each * batch)]
    at = torch.tensor(taken, device=images.device)
    numbers = [first // batch + place % each for place in range(len(rows))]
    clients = _Clients(
        images=images[at].unflatten(0, (-1, batch)),
        labels=classes[at].unflatten(0, (-1, batch)) if labels is None else picked(labels, rows),
        mechanisms=[mechanisms[row] for row in rows],
        streams=Streams([(*streams.keys[row], "made up", number) for row, number in zip(rows, numbers, strict=True)]),
        sizes=[len(group) * each for group in groups],
    )
    rounds = [
        clients.send(seen, known, rows, number)
        for number, (seen, known) in enumerate(each_round(observations, knowledge))
    ]
    (seen, known), *later = rounds
    noises = [mechanism.image_noise()[:1] for mechanism in clients.mechanisms]
    return MadeUp(
        torch.tensor(rows, device=images.device),
        clients.images,
        replace(seen, later=tuple(seen for seen, _ in later)),
        replace(
            knowledge,
            labels=None if knowledge.labels is None else clients.labels,
            data_noise=None if knowledge.data_noise is None else list(chain.from_iterable(noises)) or None,
            mechanism=clients.mechanisms,
            inverter=picked(knowledge.inverter, rows),
            of_later=tuple(known for _, known in later) or None,
            **known._asdict(),
        ),
    )


def messages_of(
    victim: Observations,
    knowledge: Knowledge,
    streams: Streams,
    clients: int,
    *,
    first: int = 0,
    draws: int = 1,
    labels: torch.Tensor | None = None,
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Messages of made-up clients instead of one victim, in parts that fit in memory: ``[part, draws, d]``.

    Args:
        victim: its observation alone.
        knowledge: auxiliary images, their labels, and the victim's mechanism.
        streams: the attacker's randomness, one stream.
        clients: how many.
        first: as for :func:`made_up`.
        draws: messages of each, with fresh randomness of the mechanism.
        labels: of every client's batch, ``[1, B]``, as for :func:`made_up`.

    Yields:
        Places of the clients, and their messages.
    """
    received, batch = victim.gradients, victim.batch_shape[0]
    seen = replace(victim, repeats=received[:, None].expand(-1, draws, -1), later=())
    lean = Knowledge(
        auxiliary_images=knowledge.auxiliary_images,
        auxiliary_labels=knowledge.auxiliary_labels,
        mechanism=knowledge.mechanism,
    )
    size = max(1, MEMORY_BUDGET // (4 * draws * received.shape[1]))
    for start in range(0, clients, size):
        part = slice(start, min(start + size, clients))
        some = made_up(seen, lean, streams, part.stop - start, first + start * batch, labels).observations
        yield part, some.gradients[:, None] if some.repeats is None else some.repeats


def is_random(victim: Observations, knowledge: Knowledge, streams: Streams) -> bool:
    """Whether a mechanism makes two messages of the same client: arguments as for :func:`messages_of`."""
    ((_, trial),) = messages_of(victim, knowledge, streams, 1, draws=2)
    return not torch.equal(trial[:, 0], trial[:, 1])


@dataclass(frozen=True)
class _Clients:
    """Made-up clients: images ``[m, B, C, H, W]``, labels ``[m, B]``, and ``sizes`` of those of each mechanism."""

    images: torch.Tensor
    labels: torch.Tensor
    mechanisms: list[Mechanism]
    streams: Streams
    sizes: list[int]

    def send(
        self, victims: Observations, known: Knowledge, rows: list[int], number: int
    ) -> tuple[Observations, OfRound]:
        """The observations of a server in a round, ``number`` from 0 on, and what an attacker knows of it.

        Args:
            victims: the round's observations, in whose ``rows`` are the models of the clients.
            known: what is known in the round.
            rows: one for each client.
            number: of the round.
        """
        streams = self.streams.child("round", number) if number else self.streams
        shared = victims.parameters.dim() == 1
        parameters = victims.parameters if shared else picked(victims.parameters, rows)
        sent: list[_Sent] = []
        start = 0
        for size in self.sizes:
            part = slice(start, start := start + size)
            model = parameters if shared else parameters[part]
            sent.append(
                _send(
                    self.mechanisms[part.start],
                    victims,
                    model,
                    self.images[part],
                    self.labels[part],
                    Streams(streams.keys[part]),
                )
            )
        repeats = [one.repeats for one in sent if one.repeats is not None]
        observations = observed(
            victims.network,
            parameters,
            [one.message for one in sent],
            victims.batch_shape,
            victims.local,
            repeats=torch.cat(repeats) if repeats else None,
            public=joined([one.public for one in sent]),
        )
        variance = None if known.noise_variance is None else stacked([one.message.noise_variance for one in sent])
        statistics = None if known.batch_statistics is None else joined([one.steps.batch_statistics for one in sent])
        return observations, OfRound(variance, statistics)


class _Sent(NamedTuple):
    """The clients of one mechanism: their first round and, of several messages, all, ``[k, messages, d]``."""

    steps: ClientSteps
    message: Message
    public: Streams
    repeats: torch.Tensor | None


def _send(
    mechanism: Mechanism,
    victims: Observations,
    parameters: torch.Tensor,
    images: torch.Tensor,
    labels: torch.Tensor,
    streams: Streams,
) -> _Sent:
    undefended = ClientSteps(victims.network, parameters, images, labels, streams, victims.local)

    def compute(inputs: torch.Tensor, classes: torch.Tensor) -> ClientSteps:
        if inputs is images and classes is labels:
            return undefended  # which all messages share
        of_users = streams.of_users(mechanism.users)
        return ClientSteps(victims.network, parameters, inputs, classes, of_users, victims.local)

    messages = 1 if victims.repeats is None else victims.repeats.shape[1]
    rounds = [mechanism.defend(images, labels, compute, streams.child("message", number)) for number in range(messages)]
    repeats = torch.stack([message.view() for _, message, _ in rounds], dim=1) if messages > 1 else None
    return _Sent(*rounds[0], repeats)
