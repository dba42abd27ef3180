"""Clients that the attacker makes up: auxiliary images under the attacked models, defended by the attacker's own copy.

An attacker who may run the mechanism sees what it makes of images that he knows. On these he trains an inverse map, or
tries how strong an attack should be. The victims' images are not among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from leakbench.attacks.base import Knowledge, Mechanism, Observations, observed
from leakbench.errors import Infeasible
from leakbench.federated.message import Message, stacked
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams


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


def made_up(observations: Observations, knowledge: Knowledge, streams: Streams, each: int, first: int = 0) -> MadeUp:
    """Make up ``each`` clients per observation, with batches of auxiliary images one after the other.

    All mechanisms get the same images: they are compared on these, and none depends on how many others there are.

    Args:
        observations: the victims', whose model, batch size, local training and number of messages the clients share.
        knowledge: with auxiliary images and the mechanisms.
        streams: the attacker's randomness, one stream per observation.
        each: clients per observation, ``m``.
        first: the auxiliary image to begin with; after the last one follows the first.

    Raises:
        Infeasible: the attacker lacks images, or the mechanism, or the victims hold no images.
    """
    images, labels, mechanisms = knowledge.auxiliary_images, knowledge.auxiliary_labels, knowledge.mechanism
    if images is None or labels is None or mechanisms is None:
        raise Infeasible("clients of the attacker's own need auxiliary images and the mechanism")
    batch, device = observations.batch_shape[0], images.device
    groups = same_mechanism(mechanisms)
    victim = torch.tensor([row for rows in groups for row in rows], device=device).repeat_interleave(each)
    taken = torch.cat([first + torch.arange(len(rows) * each * batch, device=device) for rows in groups]) % len(images)
    held, of_them = images[taken].unflatten(0, (-1, batch)), labels[taken].unflatten(0, (-1, batch))
    keys = [(*streams.keys[row], "made up", number) for rows in groups for row in rows for number in range(each)]
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
        noises = [mechanism.image_noise()[:1] for mechanism in copies]
        known = replace(known, data_noise=list(chain.from_iterable(noises)) or None)
    return MadeUp(victim, held, seen, known)


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
    def compute(images: torch.Tensor, labels: torch.Tensor) -> ClientSteps:
        return ClientSteps(victims.network, parameters, images, labels, streams, victims.local)

    messages = 1 if victims.repeats is None else victims.repeats.shape[1]
    rounds = [mechanism.defend(images, labels, compute, streams.child("message", number)) for number in range(messages)]
    repeats = torch.stack([message.view() for _, message, _ in rounds], dim=1) if messages > 1 else None
    return _Sent(*rounds[0], repeats)
