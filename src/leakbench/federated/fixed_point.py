"""Values as binary words of a fixed number of decimals, flips of some of their bits, and the server's vote on them.

A word is sign and magnitude: bit 0, the leftmost, is the sign (one: negative), the others are ``|x| 10^z``, rounded. Or
it is the two's complement of ``x 10^z``, rounded, in which bit 0 weighs ``-2^(b - 1)``.
Words are int16 tensors that hold the ``width`` bits at their low end.
Source: Deng et al. (2024), section 4.3 to 4.5, eqs. 1 and 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from leakbench.lazy import torch
from leakbench.randomness import Streams

BLOCK = 2**18
"""Words processed together, so that intermediate results stay in the cache. Only speed depends on it."""


Negatives = Literal["sign_magnitude", "twos_complement"]


@dataclass(frozen=True)
class FixedPoint:
    """Format of words.

    Attributes:
        decimals: number of decimals, z.
        width: bits of a word, the sign among them, b; 2 to 16.
        negatives: how words hold negative values.
    """

    decimals: int = 4
    width: int = 16
    negatives: Negatives = "sign_magnitude"

    @property
    def scale(self) -> int:
        """``10^z``."""
        return int(10**self.decimals)

    @property
    def limit(self) -> int:
        """The largest magnitude, ``2^(b - 1) - 1``."""
        return int(2 ** (self.width - 1) - 1)

    def mask(self, positions: Sequence[int]) -> int:
        """The word whose ones are at ``positions``, from the left."""
        return sum(1 << (self.width - 1 - position) for position in set(positions))

    def encode(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Words of the nearest multiples of ``10^-z``; values too large saturate.

        There is no negative zero. NaN becomes zero.

        Args:
            values: of any shape, float32 or float64.

        Returns:
            Words, int16, and which values saturate, boolean.
        """
        words = torch.empty_like(values, dtype=torch.int16, memory_format=torch.contiguous_format)
        saturated = torch.empty_like(words, dtype=torch.bool)
        parts = (tensor.reshape(-1).split(BLOCK) for tensor in (values, words, saturated))
        for part, word, beyond in zip(*parts, strict=True):
            integers = (part * self.scale).nan_to_num_(nan=0.0).round_()
            torch.gt(integers.abs(), self.limit, out=beyond)
            integers = integers.clamp_(-self.limit, self.limit).to(torch.int16)
            if self.negatives == "twos_complement":
                torch.bitwise_and(integers, -1 if self.width == 16 else 2**self.width - 1, out=word)
            else:
                torch.abs(integers, out=word)
                word |= (integers < 0).to(torch.int16) << (self.width - 1)
        return words, saturated

    def encode_released(self, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Words as the public code writes them, with its overflows. Width 16 alone.

        It rounds to z decimals, multiplies, truncates: ``int(round(x, z) * 10^z)``, which loses one unit for some
        values. There is no bound. A positive integer from 32,768 on sets the sign bit; a negative one loses its bit of
        that weight. From 65,536 on a word has more than 16 digits, of which the server reads the first 16, and they
        begin with a one. (The public code's decoder of a single client's words reads all digits.)

        Args:
            values: finite, of any shape.

        Returns:
            Words, int16, and where the integer exceeds 32,767, boolean.
        """
        exact = values.double() * self.scale
        # In float64 both round as Python's round and product do: a float32 times 10^z is exact.
        integers = (exact.round() / self.scale * self.scale).trunc().long()
        magnitude = integers.abs()
        beyond = magnitude > self.limit
        digits = torch.frexp(magnitude.double()).exponent.clamp(min=16)  # length of the word
        read = magnitude >> (digits - 16)
        read = torch.where(integers < 0, read | 0x8000, read)
        return read.to(torch.int32).to(torch.int16), beyond

    def magnitude(self, words: torch.Tensor) -> torch.Tensor:
        """All bits but the sign, int16, of words of any shape."""
        return words & self.limit

    def sign(self, words: torch.Tensor) -> torch.Tensor:
        """1 or -1, int16, for words of any shape."""
        return 1 - 2 * ((words >> (self.width - 1)) & 1)

    def integers(self, words: torch.Tensor) -> torch.Tensor:
        """The integers of words of any shape, int16; a negative zero is zero."""
        if self.negatives == "twos_complement":
            top = 0 if self.width == 16 else 1 << (self.width - 1)
            return (words ^ top) - top
        return self.sign(words).mul_(self.magnitude(words))

    def decode(self, words: torch.Tensor) -> torch.Tensor:
        """The values of words of any shape, float32."""
        return self.integers(words).float().div_(self.scale)

    def shown(self, words: torch.Tensor, positions: Sequence[int]) -> torch.Tensor:
        """Whether a masked bit is not a small value's, boolean of the shape of ``words``; the sign shows nothing."""
        mask = self.mask([position for position in positions if position])
        complement = self.negatives == "twos_complement"
        small = torch.where(self.integers(words) < 0, mask, 0).to(words) if complement else 0
        return (words ^ small) & mask != 0

    def flip(self, words: torch.Tensor, positions: Sequence[int], keep: float, streams: Streams) -> torch.Tensor:
        """Flip each of the bits at ``positions`` with probability ``1 - keep``, independently (eq. 1).

        The positions of flips are drawn, rather than a coin for every bit.

        Args:
            words: ``[n, d]``, int16.
            positions: from the left, distinct.
            keep: p.
            streams: one per row.
        """
        n, d = words.shape
        chosen = streams.successes(len(positions) * d, 1 - keep, words.device)
        rows = torch.arange(n, device=words.device).repeat_interleave(
            torch.tensor([len(row) for row in chosen], device=words.device)
        )
        places = torch.cat(chosen)
        shifts = torch.tensor(
            [self.width - 1 - position for position in positions], dtype=torch.int64, device=words.device
        )
        ones = (1 << shifts[places // max(d, 1)]).to(torch.int16)  # 2^15 wraps to the sign bit of an int16
        flips = torch.zeros_like(words).view(-1).index_add_(0, rows * d + places % max(d, 1), ones)
        return words ^ flips.view(n, d)

    def flip_law(self, words: torch.Tensor, positions: Sequence[int], keep: float) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of decoded words after :meth:`flip`, float32, of the shape of ``words``.

        Masked magnitude bits add independent noise to the magnitude; a masked sign multiplies by an independent one. In
        two's complement every masked bit adds independent noise to the value.
        """
        flip, sign = 1 - keep, 0 in positions
        if self.negatives == "twos_complement":
            weights = {place: (1 if place else -1) * 2.0 ** (self.width - 1 - place) for place in positions}
            shift = torch.zeros_like(words, dtype=torch.float32)
            for place, weight in weights.items():
                shift += weight * (1 - 2 * ((words >> (self.width - 1 - place)) & 1).float())
            noise = flip * keep * sum(weight**2 for weight in weights.values())
            mean = self.integers(words).float() + flip * shift
            return mean / self.scale, torch.full_like(mean, noise / self.scale**2)
        mask = self.mask([position for position in positions if position])
        square = sum(4 ** (self.width - 1 - position) for position in positions if position)
        magnitude = self.magnitude(words)
        mean = magnitude.float() + flip * (mask - 2 * (magnitude & mask).float())
        variance = torch.full_like(mean, flip * keep * square)
        shrink = 2 * keep - 1 if sign else 1.0
        variance += (1 - shrink**2) * mean.square()
        return self.sign(words) * shrink * mean / self.scale, variance / self.scale**2


def vote(words: torch.Tensor, least: int) -> torch.Tensor:
    """The word whose every bit is one where at least ``least`` clients sent a one (eq. 2 counts all bits alike).

    All bits of all words are counted at once: digit k of all counters is a word itself, and a client's word is added by
    carrying through them, so R words cost some ``2 R log2 R`` operations on whole words.

    Args:
        words: ``[..., R, d]``, int16.
        least: number of ones required, at least 1; see :func:`leakbench.theory.bit_votes.least_ones`.

    Returns:
        ``[..., d]``, int16.
    """
    size = max(1, BLOCK // words.shape[-2])
    return torch.cat([_vote(part, least) for part in words.split(size, dim=-1)], dim=-1)


def _vote(words: torch.Tensor, least: int) -> torch.Tensor:
    digits: list[torch.Tensor] = []
    for added, carry in enumerate(words.unbind(dim=-2), start=1):
        for digit in digits:
            following = digit & carry
            digit ^= carry
            carry = following
        if added.bit_length() > len(digits):
            digits.append(carry.clone())
    above = torch.zeros_like(digits[0])
    if least.bit_length() > len(digits):
        return above
    level = torch.full_like(above, -1)  # all bits whose counts agree with `least` so far
    for place, digit in reversed(list(enumerate(digits))):
        if least >> place & 1:
            level &= digit
        else:
            above |= level & digit
            level &= ~digit
    return above | level


def unbiased_mean(words: torch.Tensor, form: FixedPoint, positions: Sequence[int], keep: float) -> torch.Tensor:
    """The mean of the clients' values, from words with flipped bits: unbiased, and exact without flips.

    A masked bit ``b`` that was flipped with probability ``1 - p`` has the unbiased estimate
    ``(b - (1 - p)) / (2 p - 1)``; the others are as they are. Sums are of integers, so their order does not matter.

    Args:
        words: ``[..., R, d]``, int16.
        form: how they encode.
        positions: the masked bits.
        keep: p, above 0.5.

    Returns:
        ``[..., d]``, float32.
    """
    mask = form.mask([position for position in positions if position])
    excess = (1 - keep) / (2 * keep - 1)  # b / (2p - 1) = b + 2 excess b, and a zero stands for -excess
    factor = 1 + 2 * excess if 0 in positions else 1.0
    means = []
    for part in words.split(max(1, BLOCK // words.shape[-2]), dim=-1):
        sign, magnitude = form.sign(part), form.magnitude(part)
        masked = (2 * (magnitude & mask)).sub_(mask).mul_(sign).sum(dim=-2, dtype=torch.int32)
        total = sign.mul_(magnitude).sum(dim=-2, dtype=torch.int32)
        means.append((total.double() + excess * masked.double()).mul_(factor / words.shape[-2] / form.scale).float())
    return torch.cat(means, dim=-1)
