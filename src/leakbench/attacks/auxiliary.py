"""Clients that the attacker makes up: auxiliary images under the attacked models, defended by the attacker's own copy.

An attacker who may run the mechanism sees what it makes of images that he knows. On these he trains an inverse map, or
tries how strong an attack should be. The victims' images are not among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from leakbench.attacks.base import Knowledge, Mechanism, Observations, observed
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
        knowledge: the attacker's knowledge of them, of the kinds that he has of the victims.
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
    n, batch, device = len(observations), observations.batch_shape[0], images.device
    groups = same_mechanism(mechanisms)
    victim = torch.tensor([row for rows in groups for row in rows], device=device).repeat_interleave(each)
    taken = (first + torch.arange(n * each * batch, device=device)) % len(images)
    held = images[taken].unflatten(0, (-1, batch))
    of_them = classes[taken].unflatten(0, (-1, batch)) if labels is None else labels[victim]
    numbers = range(first // batch, first // batch + each)
    keys = [(*streams.keys[row], "made up", number) for rows in groups for row in rows for number in numbers]
    model = observations.parameters
    parameters = model if model.dim() == 1 else model[victim]
    sent: list[_Sent] = []
    start = 0
    for rows in groups:
        part = slice(start, start := start + len(rows) * each)
        sent.append(
            _send(
                mechanisms[rows[0]],
                observations,
                model if model.dim() == 1 else parameters[part],
                held[part],
                of_them[part],
                Streams(keys[part]),
            )
        )
    repeats = [one.repeats for one in sent if one.repeats is not None]
    seen = observed(
        observations.network,
        parameters,
        [one.message for one in sent],
        observations.batch_shape,
        observations.local,
        repeats=torch.cat(repeats) if repeats else None,
        public=Streams([key for one in sent for key in one.public.keys]),
    )
    copies = [mechanisms[row] for rows in groups for row in rows for _ in range(each)]
    known = replace(knowledge, mechanism=copies)
    if knowledge.inverter is not None:
        known = replace(known, inverter=[knowledge.inverter[row] for row in victim.tolist()])
    if knowledge.labels is not None:
        known = replace(known, labels=of_them)
    if knowledge.noise_variance is not None:
        known = replace(known, noise_variance=stacked([one.message.noise_variance for one in sent]))
    if knowledge.batch_statistics is not None:
        each_group = [one.steps.batch_statistics for one in sent]
        known = replace(
            known, batch_statistics={name: torch.cat([of[name] for of in each_group]) for name in each_group[0]}
        )
    if knowledge.data_noise is not None:
        known = replace(known, data_noise=[mechanism.image_noise()[0] for mechanism in copies])
    return MadeUp(victim, held, seen, known)


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
    """Messages of made-up clients in the place of one victim, in parts that fit in memory: ``[part, draws, d]``.

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
    seen = replace(victim, repeats=received[:, None].expand(-1, draws, -1))
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


def same_mechanism(mechanisms: Sequence[Mechanism]) -> list[list[int]]:
    """The observations of each mechanism."""
    rows: dict[int, list[int]] = {}
    for row, mechanism in enumerate(mechanisms):
        rows.setdefault(id(mechanism), []).append(row)
    return list(rows.values())


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
        return ClientSteps(victims.network, parameters, inputs, classes, streams, victims.local)

    messages = 1 if victims.repeats is None else victims.repeats.shape[1]
    rounds = [mechanism.defend(images, labels, compute, streams.child("message", number)) for number in range(messages)]
    repeats = torch.stack([message.view() for _, message, _ in rounds], dim=1) if messages > 1 else None
    return _Sent(*rounds[0], repeats)
