"""The mean of several users' messages, as a server sees it under secure aggregation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from leakbench.federated.message import CodedMessage, Law, Message
from leakbench.lazy import torch

if TYPE_CHECKING:
    from leakbench.federated.secure_training import SecureAggregation


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
