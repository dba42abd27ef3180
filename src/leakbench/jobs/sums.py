"""Users under secure aggregation, as an attacker sees them: their messages as one mean, their batches as one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from leakbench.defenses.aggregate import SummedUsers
from leakbench.defenses.base import Defense
from leakbench.errors import Infeasible
from leakbench.federated.message import CodedMessage, Law, Message
from leakbench.federated.secure_training import SecureAggregation
from leakbench.jobs.victims import Victims
from leakbench.lazy import torch
from leakbench.randomness import Streams


def only_sums(defenses: Iterable[Defense]) -> None:
    """Reject defenses whose server needs individual messages.

    Raises:
        Infeasible: a defense aggregates in a way of its own.
    """
    for defense in defenses:
        if defense.overrides("aggregate"):
            raise Infeasible(
                f"'{defense.name}' aggregates messages in a way of its own; secure aggregation gives their sum alone"
            )


def match_users(defenses: Iterable[Defense], users: int) -> None:
    """Reject defenses whose guarantee is for another number of users than are summed.

    Raises:
        Infeasible: the numbers differ.
    """
    for defense in defenses:
        if isinstance(defense, SummedUsers) and defense.users not in (None, users):
            raise Infeasible(f"'{defense.name}' is told of {defense.users} users, and the protocol sums {users}")


def averaged(message: Message, users: int, secure: SecureAggregation | None = None) -> Message:
    """The means ``[n, d]`` of messages of consecutive ``users`` rows, ``[n * users, d]``, as the server sees them.

    Users draw their noise independently, so that the variance of a mean is that of one user over their number. Marks
    of single messages do not reach the server.

    Args:
        message: of all users of all servers.
        users: number of users of each mean; one: the message itself.
        secure: the protocol of the sums, with fresh keys for each; in the clear by default.

    Raises:
        Infeasible: a value is not finite, or may overflow the protocol's ring.
    """
    if users == 1:
        return message
    values = message.view().unflatten(0, (-1, users))
    law = None if message.law is None else _law_of_mean(message.law, users)
    if secure is None:
        return CodedMessage(values.mean(dim=1), message.bits, law)
    means, sizes = zip(*(secure.mean(each) for each in values), strict=True)
    return CodedMessage(torch.stack(means), max(sizes), law)


def _law_of_mean(law: Law, users: int) -> Law:
    def grouped(tensor: torch.Tensor) -> torch.Tensor:
        groups: torch.Tensor = tensor.unflatten(0, (-1, users))
        return groups

    variance = None if law.variance is None else grouped(law.variance).mean(dim=1) / users
    mean, passing = grouped(law.mean).mean(dim=1), grouped(law.passing).all(dim=1)
    return Law(mean, passing, variance, law.normal, law.independent)


def together(victims: Victims, users: int) -> Victims:
    """Consecutive ``users`` clients as one with all their samples: ``n * users`` clients of ``B`` become ``n``.

    A mean of gradients of equal batches is the gradient of all samples. The streams are those of the first ``n``
    clients: an attacker's randomness does not depend on the number of users.
    """
    if users == 1:
        return victims
    values, inputs, labels = (
        part.unflatten(0, (-1, users)).flatten(1, 2) for part in (victims.values, victims.inputs, victims.labels)
    )
    streams = Streams(victims.streams.keys[: len(labels)])
    return replace(victims, values=values, inputs=inputs, labels=labels, streams=streams)
