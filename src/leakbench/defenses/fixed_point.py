"""Updates in fixed point: bounded masks, secret sharing, and the baseline without either."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule
from leakbench.errors import Infeasible
from leakbench.federated.message import Law, Message, RingMessage
from leakbench.federated.ring import Ring
from leakbench.federated.secure_aggregation import additive_shares
from leakbench.federated.step import ClientSteps
from leakbench.lazy import np, torch
from leakbench.randomness import Streams, named_bytes

if TYPE_CHECKING:
    from leakbench.federated.ring import Words

WIDTH: Literal[64] = 64
"""Bits of a coordinate."""


class InFixedPoint(Defense):
    """Mechanisms whose server gets a sum of integers, which is exact: its mean is that of the rounded updates."""

    fraction_bits: int = Field(32, ge=0, le=WIDTH - 2, description="fractional bits that are kept of a coordinate, f")

    @property
    def ring(self) -> Ring:
        """The integers modulo ``2^64``."""
        return Ring(WIDTH, self.fraction_bits)

    def encoded(self, steps: ClientSteps, clients: int) -> Words:
        """The updates, rounded to multiples of ``2^-f``, ``[n, d]``.

        Raises:
            Infeasible: a value is not finite, or so large that a sum over the clients may overflow.
        """
        return self.ring.encode(steps.gradient.detach().cpu().numpy(), clients)

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        """The mean from the sum of all integers, ``[n / clients, d]``.

        Raises:
            Infeasible: another number of clients than the mechanism is for.
        """
        assert isinstance(message, RingMessage)
        return message.mean(clients)


@DEFENSES.register("fixed_point", version=1)
class FixedPointUpdate(InFixedPoint):
    """The undefended update in fixed point: the baseline of exact mechanisms on integers."""

    clients: int = Field(1, ge=1, description="most clients whose updates are summed, K")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        message = RingMessage(self.encoded(steps, self.clients)[:, None], self.ring, steps.gradient)
        values = message.view()
        law = Law(mean=values, passing=torch.ones_like(values, dtype=torch.bool))
        return RingMessage(message.shares, message.ring, message.like, law=law)

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        at_most(self.name, self.clients, clients)
        return super().aggregate(message, clients)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("what is sent is exact")


@DEFENSES.register("masked_pair", version=1)
class MaskedPair(InFixedPoint):
    """Two clients who share a mask: one sends ``W1 + u``, the other ``W2 - u``, u uniform on [-r, r) per coordinate.

    Secret sharing of K = 2 as Zhang, Kang et al. (2023) model it (section 6.3, appendix H): the mask is bounded, so a
    coordinate near the end of its range shows. It is drawn on the multiples of ``2^-f``, and one client sends it to the
    other. The sum is exact.

    Clients 2i and 2i + 1 are a pair, and their mask is drawn from the stream of the first.
    """

    together: ClassVar[int] = 2

    bound: float = Field(gt=0, allow_inf_nan=False, description="largest magnitude of the mask, r")

    @model_validator(mode="after")
    def _on_the_grid(self) -> MaskedPair:
        least, most = 2.0**-self.fraction_bits, 2.0 ** (WIDTH - 2 - self.fraction_bits)
        if not least <= self.bound <= most:
            raise ValueError(
                f"bound is {self.bound:g}; with {self.fraction_bits} fraction_bits it is from {least:g} to {most:g}"
            )
        return self

    @property
    def points(self) -> int:
        """Half the number of values that a coordinate of the mask may have: ``r 2^f``."""
        return round(self.bound * 2.0**self.fraction_bits)

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        gradient = steps.gradient
        words, d = self.encoded(steps, 2), gradient.shape[1]
        masks = streams.shared(2).child("mask").integers(-self.points, self.points, d).numpy().view(words.dtype)
        masks[1::2] = 0 - masks[1::2]
        clear = torch.from_numpy(self.ring.decode(words))
        sign = torch.ones(len(words), 1, dtype=clear.dtype)
        sign[1::2] = -1
        unit = 2.0**-self.fraction_bits
        law = Law(
            mean=(clear - sign * unit / 2).to(gradient),  # [-r, r) has its centre half a unit below zero
            passing=torch.ones_like(gradient, dtype=torch.bool),
            variance=torch.full_like(gradient, (4 * self.points**2 - 1) / 12 * unit**2),
            normal=False,
        )
        beside = math.ceil(d * math.log2(2 * self.points))
        return RingMessage((words + masks)[:, None], self.ring, gradient, beside=beside, law=law)

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        exactly(self.name, 2, clients)
        return super().aggregate(message, clients)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("the mask is bounded, and the update is not")


@DEFENSES.register("additive_sharing", version=1)
class AdditiveSharing(InFixedPoint):
    """Every client splits its update into K shares that add up modulo ``2^64``, one for each of the K clients.

    Any K - 1 of them are uniform, whatever the update. A client sends K - 1 shares to the others and, to the server,
    the sum of those that it received and the one that it kept. The attacker on the server is given more: that share by
    itself.
    """

    fraction_bits: int = Field(20, ge=0, le=WIDTH - 2, description="fractional bits that are kept of a coordinate, f")
    clients: int = Field(ge=2, description="who share and whose updates are summed, K")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        words = self.encoded(steps, self.clients)
        shares = [
            additive_shares(row, self.clients, self.ring, named_bytes(*key, "shares"))
            for row, key in zip(words, streams.keys, strict=True)
        ]
        return RingMessage(np.stack(shares), self.ring, steps.gradient)

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        exactly(self.name, self.clients, clients)
        return super().aggregate(message, clients)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement(
            None,
            None,
            f"no differential privacy: the server learns the sum of {self.clients} clients; of one update nothing, "
            "unless all other clients collude",
        )


def at_most(name: str, limit: int, clients: int) -> None:
    """Reject more clients than a mechanism can sum.

    Raises:
        Infeasible: there are more.
    """
    if clients > limit:
        raise Infeasible(f"'{name}' with clients {limit} sums no more than these, and there are {clients}")


def exactly(name: str, required: int, clients: int) -> None:
    """Reject another number of clients than a mechanism is for.

    Raises:
        Infeasible: there are fewer or more.
    """
    if clients != required:
        raise Infeasible(f"'{name}' is for {required} clients, and there are {clients}")
