"""Named, independent random streams.

A stream is derived from words and numbers (data set, repetition, purpose, index), never from the defense and never
from a position in a batch. Comparisons are therefore paired, and a trial draws the same numbers whatever else is
computed beside it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from leakbench.lazy import np, torch


def stream_seed(*key: str | int) -> int:
    """A 63-bit seed for the stream that ``key`` names.

    Words enter as their CRC-32, so that the seed is the same in every process and Python version.
    """
    words = [zlib.crc32(part.encode()) if isinstance(part, str) else part for part in key]
    state = np.random.SeedSequence(entropy=0x1EAC, spawn_key=words).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(1))


def generator(*key: str | int) -> torch.Generator:
    """A CPU generator for the stream that ``key`` names. CPU, so that every device sees the same numbers."""
    return torch.Generator().manual_seed(stream_seed(*key))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's global generator, of which modules draw their initial weights; it is as before afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def named_bytes(*key: str | int) -> Callable[[int], bytes]:
    """A function of a number of bytes that draws them from the stream ``key``: SHAKE-256 of its seed and call number.

    It replaces ``os.urandom`` where a simulation has to repeat. The seed has 63 bits and anyone can compute it, so
    these bytes protect no secret outside a simulation.
    """
    seed, calls = stream_seed(*key).to_bytes(8), itertools.count()
    return lambda size: hashlib.shake_256(seed + next(calls).to_bytes(8)).digest(size)


class Streams:
    """One generator per row of a batch: row ``i`` of every draw depends on ``keys[i]`` alone.

    >>> streams = Streams([("digits", 0), ("digits", 1)])
    >>> streams.normal(3).shape
    torch.Size([2, 3])
    >>> alone = Streams([("digits", 1)])
    >>> torch.equal(alone.child("noise").normal(3), streams.child("noise").normal(3)[1:])
    True

    Args:
        keys: one key per row, each a tuple of words and numbers.
    """

    def __init__(self, keys: Sequence[tuple[str | int, ...]]) -> None:
        self.keys = [tuple(key) for key in keys]

    @cached_property
    def _generators(self) -> list[torch.Generator]:
        """Made at the first draw, since many streams only name others."""
        return [generator(*key) for key in self.keys]

    def __len__(self) -> int:
        return len(self.keys)

    def child(self, *name: str | int) -> Streams:
        """Fresh streams, one per row, that are independent of these and of every other child."""
        return Streams([(*key, *name) for key in self.keys])

    def of_users(self, users: int) -> Streams:
        """Fresh streams of so many users of each row, one user after the other; of one user, those of the row."""
        return self if users == 1 else Streams([(*key, "user", user) for key in self.keys for user in range(users)])

    def at(self, rows: Iterable[int]) -> Streams:
        """Fresh streams of these rows."""
        return Streams([self.keys[row] for row in rows])

    def shared(self, rows: int) -> Streams:
        """Fresh streams of which each ``rows`` consecutive ones are equal: those of the first of them."""
        return Streams([self.keys[row - row % rows] for row in range(len(self.keys))])

    def repeat(self, times: int) -> Streams:
        """Fresh streams for ``times`` copies of the rows, one copy after the other; copies draw the same numbers."""
        return Streams(self.keys * times)

    def normal(self, *shape: int, device: torch.device | None = None) -> torch.Tensor:
        """Standard normal draws, ``[rows, *shape]``, float32."""
        return torch.stack([torch.randn(shape, generator=g) for g in self._generators]).to(device)

    def uniform(self, *shape: int, device: torch.device | None = None) -> torch.Tensor:
        """Uniform draws on [0, 1), ``[rows, *shape]``, float32."""
        return torch.stack([torch.rand(shape, generator=g) for g in self._generators]).to(device)

    def integers(self, low: int, high: int, *shape: int, device: torch.device | None = None) -> torch.Tensor:
        """Uniform draws on ``low, ..., high - 1``, ``[rows, *shape]``, int64; both ends fit in 64 bits with a sign."""
        return torch.stack([torch.randint(low, high, shape, generator=g) for g in self._generators]).to(device)

    def successes(self, trials: int, probability: float, device: torch.device | None = None) -> list[torch.Tensor]:
        """Places of the successes among ``trials`` independent trials: one rising int64 tensor per row.

        Only successes are drawn: the gaps between them are geometric. Exact in law to float64's resolution.

        Args:
            trials: how many trials each row has.
            probability: of a success, in [0, 1].
            device: where the places are put; the CPU by default.
        """
        return [_successes(trials, probability, g).to(device) for g in self._generators]

    def discrete_normal(self, scale: float, size: int) -> torch.Tensor:
        """Draws from the discrete Gaussian, ``P(x) ~ exp(-x^2 / (2 s^2))`` on the integers, float64 ``[rows, size]``.

        By rejection from a discrete Laplace distribution, in float64: a draw is within 2^-47 of the law in total
        variation. Source: Canonne, Kamath and Steinke (2020), "The Discrete Gaussian for Differential Privacy",
        algorithms 2 and 3.

        Args:
            scale: s, positive, up to 2^40.
            size: draws per row.
        """
        return torch.stack([_discrete_normal(scale, size, g) for g in self._generators])


def _discrete_normal(scale: float, size: int, generator: torch.Generator) -> torch.Tensor:
    width, kept = math.floor(scale) + 1, torch.empty(0, dtype=torch.float64)
    while len(kept) < size:
        count = 3 * (size - len(kept)) + 16  # about half are rejected
        uniform = torch.rand(3, count, generator=generator, dtype=torch.float64)
        rest = torch.randint(width, (count,), generator=generator)
        distance = rest + width * (-torch.log1p(-uniform[0])).floor()
        negative = torch.randint(2, (count,), generator=generator).bool()
        laplace = (uniform[1] < (-rest / width).exp()) & ~(negative & (distance == 0))
        normal = uniform[2] < (-((distance - scale**2 / width) ** 2) / (2 * scale**2)).exp()
        kept = torch.cat([kept, torch.where(negative, -distance, distance)[laplace & normal]])
    return kept[:size]


def _successes(trials: int, probability: float, generator: torch.Generator) -> torch.Tensor:
    if probability in (0, 1):
        return torch.arange(trials if probability else 0)
    parts, last = [torch.empty(0, dtype=torch.float64)], -1.0
    while last < trials - 1:
        expected = (trials - 1 - last) * probability
        count = int(expected + 4 * math.sqrt(expected)) + 16  # rarely too few
        gaps = torch.empty(count, dtype=torch.float64).geometric_(probability, generator=generator)
        parts.append(last + gaps.clamp_(1, trials + 1).cumsum(0))
        last = float(parts[-1][-1])
    places = torch.cat(parts)
    return places[places < trials].long()
