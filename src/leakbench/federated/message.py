"""Messages from clients to the server: their size, and the gradients that the server decodes from them.

A message is the wall between the attacker and the truth: attacks see :meth:`Message.view` and nothing of the client.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from leakbench.lazy import np, torch

if TYPE_CHECKING:
    from leakbench.federated.paillier import EncryptedVector
    from leakbench.federated.ring import Ring, Words

FLOAT_BITS = 32
T = TypeVar("T")


def mebi_elements(bits: float) -> float:
    """Units of ``2^20`` 32-bit floats: what the tables of Deng et al. (2024) call "Mb".

    It is neither megabits nor megabytes: ResNet18 with its BatchNorm statistics, 11,183,582 numbers, is 10.6655, and
    the same in 16 bits half of it.
    """
    return bits / FLOAT_BITS / 2**20


@dataclass(frozen=True)
class Law:
    """The distribution of a message's coordinates, given the gradient.

    It does not travel. The cost of a defense (utility) and the Fisher information of a message are computed from it.

    >>> gradient = torch.tensor([[0.5, -2.0]])
    >>> law = Law(mean=gradient, passing=gradient.abs() < 1, variance=torch.full_like(gradient, 0.01))
    >>> law.passing
    tensor([[ True, False]])

    Attributes:
        mean: mean of the decoded gradient, ``[n, d]``.
        passing: coordinates whose mean follows the gradient, boolean ``[n, d]``: neither pruned nor clipped.
        variance: of the noise in each coordinate, ``[n, d]``; None without noise.
        normal: whether the noise is normal.
        independent: whether the noise of one coordinate is independent of that of the others.
    """

    mean: torch.Tensor
    passing: torch.Tensor
    variance: torch.Tensor | None = None
    normal: bool = True
    independent: bool = True


@dataclass(frozen=True, eq=False)
class Received:
    """``n`` messages as an attacker has them: the decoded gradients, and the code that they came in.

    Attributes:
        values: :meth:`Message.view`, ``[n, d]``.
        step: distance between neighbouring values of the code at each coordinate, ``[n, d]``, from scales that travel;
            None where values are not coded in steps.
        beyond: at the ends of the code, ``[n, d]``: 1 where everything above a value is sent as it, -1 where
            everything below is, else 0; None where the code has no ends. On a lattice, of the lattice's coordinates.
    """

    values: torch.Tensor
    step: torch.Tensor | None = None
    beyond: torch.Tensor | None = None
    _kept: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False)

    def once(self, key: Hashable, compute: Callable[[], T]) -> T:
        """Compute something of the messages alone, once for all the candidates that they are compared with.

        Args:
            key: names it, with everything else that it depends on.
            compute: makes it; from what was received, and from what all candidates of a search share.
        """
        if key not in self._kept:
            self._kept[key] = compute()
        kept: T = self._kept[key]
        return kept


class Message(ABC):
    """The messages of ``n`` clients, one row each."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Size of one client's message, in bits."""

    @abstractmethod
    def view(self) -> torch.Tensor:
        """The gradients that an honest-but-curious server decodes, ``[n, d]``."""

    @property
    def marked(self) -> torch.Tensor | None:
        """Coordinates that the message shows to be altered, boolean ``[n, d]``; None where it shows none."""
        return None

    @property
    def coded(self) -> torch.Tensor | None:
        """Value of one unit of each coordinate's fixed-point word, ``[n, d]``, which the server needs to decode.

        Positive; 0 where a coordinate is no such word, None where none is.
        """
        return None

    @property
    def gain(self) -> float:
        """Public scale factor of the whole message; an attacker can divide by it."""
        return 1.0

    @property
    def step(self) -> torch.Tensor | None:
        """Distance between neighbouring values of the code, ``[n, d]``; see :class:`Received`."""
        return None

    @property
    def beyond(self) -> torch.Tensor | None:
        """Ends of the code that values are at, ``[n, d]``; see :class:`Received`."""
        return None

    @property
    def received(self) -> Received:
        """The decoded gradients with their code, for likelihoods."""
        return Received(self.view(), self.step, self.beyond)

    @property
    def law(self) -> Law | None:
        """The message's distribution given the gradient; None where the defense does not state it."""
        return None

    @property
    def noise_variance(self) -> torch.Tensor | None:
        """Variance of the noise in each coordinate, ``[n, d]``, for threat models that grant it; None without noise."""
        return None if self.law is None else self.law.variance


@dataclass(frozen=True)
class DenseMessage(Message):
    """Every coordinate as a 32-bit float.

    >>> message = DenseMessage(torch.tensor([[0.5, -2.0, 0.0]]))
    >>> message.view(), message.bits
    (tensor([[ 0.5000, -2.0000,  0.0000]]), 96)

    Attributes:
        values: ``[n, d]``.
        marked: see :class:`Message`.
        law: see :class:`Message`.
    """

    values: torch.Tensor
    marked: torch.Tensor | None = None
    law: Law | None = None

    @property
    def bits(self) -> int:
        return FLOAT_BITS * self.values.shape[1]

    def view(self) -> torch.Tensor:
        return self.values


def gains(messages: Sequence[Message], views: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Scale factors of messages, ``[n, 1]``; None where all are one."""
    if all(message.gain == 1 for message in messages):
        return None
    pairs = zip(messages, views, strict=True)
    return torch.cat([torch.full_like(view[:, :1], message.gain) for message, view in pairs])


def stacked(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Concatenate attributes ``[n, d]`` of messages, with zero (False) for None; None if all are."""
    given = next((part for part in parts if part is not None), None)
    if given is None:
        return None
    zero = torch.zeros_like(given)
    return torch.cat([zero if part is None else part for part in parts])


def position_bits(count: int, places: int) -> int:
    """Bits that encode ``count`` out of ``places`` places: as a bitmap, or as indices if they are shorter."""
    return min(places, count * max(1, math.ceil(math.log2(places))))


@dataclass(frozen=True)
class CodedMessage(Message):
    """Values in a mechanism's code.

    Attributes:
        values: the decoded gradients, ``[n, d]``.
        size: of one client's message, in bits.
        law: see :class:`Message`.
        step: see :class:`Message`.
    """

    values: torch.Tensor
    size: int
    law: Law | None = None
    step: torch.Tensor | None = None

    @property
    def bits(self) -> int:
        return self.size

    def view(self) -> torch.Tensor:
        return self.values


@dataclass(frozen=True)
class SparseMessage(Message):
    """Some coordinates; the others decode as zero.

    >>> gradient = torch.tensor([[0.5, -2.0, 0.0, 1.5]])
    >>> message = SparseMessage(gradient, kept=gradient.abs() > 1)
    >>> message.view()
    tensor([[ 0.0000, -2.0000,  0.0000,  1.5000]])
    >>> message.bits  # two floats, and a bitmap of four coordinates
    68
    >>> SparseMessage(gradient.sign(), kept=gradient.abs() > 1, value_bits=1).bits
    6

    Attributes:
        values: ``[n, d]``; entries outside ``kept`` do not travel.
        kept: boolean ``[n, d]``. The positions travel as a bitmap or as indices, whichever is shorter.
        positions: bits of the positions, where the mechanism's pattern has a shorter code.
        gain: see :class:`Message`.
        value_bits: bits of one value, where values travel in a shorter code than floats.
        step: see :class:`Message`.
        altered: coordinates that are marked beside those that do not travel, boolean ``[n, d]``.
        stated: the law, where kept values are more than a function of the gradient, such as noisy or rounded at random.
    """

    values: torch.Tensor
    kept: torch.Tensor
    positions: int | None = None
    gain: float = 1.0
    value_bits: int = FLOAT_BITS
    step: torch.Tensor | None = None
    altered: torch.Tensor | None = None
    stated: Law | None = None

    @property
    def bits(self) -> int:
        """Size of the largest client's message, in bits."""
        kept = int(self.kept.sum(dim=1).max())
        positions = position_bits(kept, self.kept.shape[1]) if self.positions is None else self.positions
        return self.value_bits * kept + positions

    @property
    def marked(self) -> torch.Tensor:
        return ~self.kept if self.altered is None else ~self.kept | self.altered

    @property
    def law(self) -> Law:
        return self.stated or Law(mean=self.view(), passing=self.kept)

    def view(self) -> torch.Tensor:
        return torch.where(self.kept, self.values, 0.0)


@dataclass(frozen=True)
class RingMessage(Message):
    """Fixed-point numbers modulo a power of two, whole or in shares that add up to them.

    Attributes:
        shares: ``[n, s, d]``; the first of each client goes to the server, the others to other clients.
        ring: their ring.
        like: a tensor of the type and device of decoded values.
        beside: further bits to other clients, of the client that sends most.
        law: see :class:`Message`.
    """

    shares: Words
    ring: Ring
    like: torch.Tensor
    beside: int = 0
    law: Law | None = None

    @property
    def bits(self) -> int:
        return self.server_bits * int(self.shares.shape[1]) + self.beside

    @property
    def server_bits(self) -> int:
        """The part of :attr:`bits` that goes to the server."""
        return self.ring.width * int(self.shares.shape[2])

    def view(self) -> torch.Tensor:
        return torch.from_numpy(self.ring.decode(np.ascontiguousarray(self.shares[:, 0]))).to(self.like)

    def mean(self, clients: int) -> torch.Tensor:
        """Mean of consecutive clients, from the sum of all their shares, ``[n / clients, d]``."""
        groups = self.shares.reshape(-1, clients, *self.shares.shape[1:])
        total = groups.sum(axis=(1, 2), dtype=self.ring.dtype)
        return torch.from_numpy(self.ring.decode(total) / clients).to(self.like)


@dataclass(frozen=True)
class EncryptedMessage(Message):
    """Vectors under encryption, one per client.

    Attributes:
        vectors: of the same key, packing and length.
        like: a tensor of the type and device of views, of any shape.
    """

    vectors: tuple[EncryptedVector, ...]
    like: torch.Tensor

    @property
    def bits(self) -> int:
        return self.vectors[0].bits

    def view(self) -> torch.Tensor:
        """Ciphertexts instead of gradients ``[n, d]``, without the key: see :meth:`EncryptedVector.fractions`."""
        return torch.from_numpy(np.stack([vector.fractions() for vector in self.vectors])).to(self.like)
