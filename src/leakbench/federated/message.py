"""What travels from clients to the server, what it costs, and what the server can decode from it.

A message is the wall between the attacker and the truth: attacks see :meth:`Message.view` and nothing of the client.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakbench.lazy import np, torch

if TYPE_CHECKING:
    from leakbench.federated.paillier import EncryptedVector
    from leakbench.federated.ring import Ring, Words

FLOAT_BITS = 32


@dataclass(frozen=True)
class Law:
    """How the coordinates of a message are distributed, given the gradient.

    It does not travel. It says what the defense costs (utility) and what the message can reveal (Fisher information).

    Attributes:
        mean: what the server decodes on average, ``[n, d]``.
        passing: the coordinates whose mean follows the gradient, boolean ``[n, d]``: neither pruned nor clipped.
        variance: of the noise in each coordinate, ``[n, d]``; None without noise.
        normal: whether the noise is normal.
        independent: whether the noise of one coordinate is independent of that of the others.
    """

    mean: torch.Tensor
    passing: torch.Tensor
    variance: torch.Tensor | None = None
    normal: bool = True
    independent: bool = True


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
        """Coordinates that the message itself shows to be changed, boolean ``[n, d]``; None where it shows nothing."""
        return None

    @property
    def gain(self) -> float:
        """What the defense multiplied all that it sends by, as everyone knows; an attacker can take it back."""
        return 1.0

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
    """What messages were multiplied by, ``[n, 1]``; None where it is one for all."""
    if all(message.gain == 1 for message in messages):
        return None
    both = zip(messages, views, strict=True)
    return torch.cat([torch.full_like(view[:, :1], message.gain) for message, view in both])


def stacked(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """What messages say of their coordinates, ``[n, d]``; nothing (zero, False) where one says nothing, None if all."""
    known = next((part for part in parts if part is not None), None)
    if known is None:
        return None
    nothing = torch.zeros_like(known)
    return torch.cat([nothing if part is None else part for part in parts])


def position_bits(count: int, places: int) -> int:
    """Bits that tell ``count`` places out of ``places``: a bitmap, or indices of fixed length if they are shorter."""
    return min(places, count * max(1, math.ceil(math.log2(places))))


@dataclass(frozen=True)
class CodedMessage(Message):
    """Values in a code of the mechanism's own.

    Attributes:
        values: what the server decodes, ``[n, d]``.
        size: of one client's message, in bits.
        law: see :class:`Message`.
    """

    values: torch.Tensor
    size: int
    law: Law | None = None

    @property
    def bits(self) -> int:
        return self.size

    def view(self) -> torch.Tensor:
        return self.values


@dataclass(frozen=True)
class SparseMessage(Message):
    """Some coordinates, the others decode as zero.

    Attributes:
        values: ``[n, d]``; entries outside ``kept`` do not travel.
        kept: boolean ``[n, d]``. The positions travel as a bitmap or as indices, whichever is shorter.
        positions: bits that the positions take where a mechanism's pattern says them shorter.
        gain: see :class:`Message`.
    """

    values: torch.Tensor
    kept: torch.Tensor
    positions: int | None = None
    gain: float = 1.0

    @property
    def bits(self) -> int:
        """Size of the largest client's message, in bits."""
        kept = int(self.kept.sum(dim=1).max())
        positions = position_bits(kept, self.kept.shape[1]) if self.positions is None else self.positions
        return FLOAT_BITS * kept + positions

    @property
    def marked(self) -> torch.Tensor:
        return ~self.kept

    @property
    def law(self) -> Law:
        return Law(mean=self.view(), passing=self.kept)

    def view(self) -> torch.Tensor:
        return torch.where(self.kept, self.values, 0.0)


@dataclass(frozen=True)
class RingMessage(Message):
    """Fixed-point numbers modulo a power of two, whole or in shares that add up to them.

    Attributes:
        shares: ``[n, s, d]``; of every client the server sees the first, and the others go to other clients.
        ring: their ring.
        like: what decoded values are like: their type and device.
        beside: bits that the client who sends most sends besides, to other clients.
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
        """Of consecutive clients, from the sum of all their shares, ``[n / clients, d]``."""
        groups = self.shares.reshape(-1, clients, *self.shares.shape[1:])
        total = groups.sum(axis=(1, 2), dtype=self.ring.dtype)
        return torch.from_numpy(self.ring.decode(total) / clients).to(self.like)


@dataclass(frozen=True)
class EncryptedMessage(Message):
    """Vectors under encryption, one per client.

    Attributes:
        vectors: of the same key, packing and length.
        like: what views are like, of any shape: their type and device.
    """

    vectors: tuple[EncryptedVector, ...]
    like: torch.Tensor

    @property
    def bits(self) -> int:
        return self.vectors[0].bits

    def view(self) -> torch.Tensor:
        """What one without the key has for gradients ``[n, d]``: see :meth:`EncryptedVector.fractions`."""
        return torch.from_numpy(np.stack([vector.fractions() for vector in self.vectors])).to(self.like)
