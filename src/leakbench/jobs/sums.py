"""Users under secure aggregation: which defenses allow it, and their batches as one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from leakbench.defenses.aggregate import SummedUsers
from leakbench.defenses.base import Defense
from leakbench.errors import Infeasible
from leakbench.jobs.victims import Victims
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
