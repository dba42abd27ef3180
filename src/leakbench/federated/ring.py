"""Real vectors as fixed-point integers modulo a power of two, whose sums do not wrap around.

An integer represents itself over ``2^f``; negative ones are two's complements. Adding modulo ``2^w`` is exact, so
the sum of N vectors decodes to the sum of the rounded vectors, as long as it fits in ``w`` bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from leakbench.errors import ConfigError, Infeasible
from leakbench.lazy import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Words = NDArray[np.unsignedinteger[Any]]
    """Elements of the ring."""


@dataclass(frozen=True)
class Ring:
    """The integers modulo ``2^w``, with a fixed-point encoding of real numbers.

    Attributes:
        width: w, bits of an element: 32 or 64.
        fraction_bits: f; a value is rounded to the nearest multiple of ``2^-f``.
        clip: values are clipped to ``[-clip, clip]`` before they are rounded; None: they are not.

    Raises:
        ConfigError: parameters out of range.
    """

    width: Literal[32, 64] = 32
    fraction_bits: int = 16
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.width not in (32, 64):
            raise ConfigError(f"a ring of {self.width} bits; there are 32 and 64")
        if not 0 <= self.fraction_bits < self.width - 1:
            raise ConfigError(f"{self.fraction_bits} fraction bits of {self.width}; they are 0 to {self.width - 2}")
        if self.clip is not None and not 0 < self.clip < float("inf"):
            raise ConfigError(f"clip {self.clip}; it is positive and finite")

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger[Any]]:
        """Type of elements; little-endian on every machine."""
        return np.dtype(f"<u{self.width // 8}")

    def largest(self, users: int) -> int:
        """The largest integer that each of ``users`` may hold, so that no sum of theirs wraps around."""
        return int((1 << (self.width - 1)) - 1) // users

    def encode(self, values: NDArray[np.floating], users: int) -> Words:
        """Elements of the same shape, for values that are summed with those of ``users - 1`` others.

        Args:
            values: real numbers, of any shape.
            users: number of vectors in the sum, N.

        Raises:
            ConfigError: no users.
            Infeasible: values that are not finite, or so large that a sum of N of them may wrap around.
        """
        if users < 1:
            raise ConfigError(f"a sum of {users} vectors")
        if not np.isfinite(values).all():
            raise Infeasible("a vector holds values that are not finite; they have no fixed-point form")
        reals = np.asarray(values, dtype=np.float64)
        if self.clip is not None:
            reals = reals.clip(-self.clip, self.clip)
        with np.errstate(over="ignore"):
            integers = np.rint(np.ldexp(reals, self.fraction_bits))
        largest, limit = float(np.abs(integers).max(initial=0)), self.largest(users)
        if largest > limit:  # Python compares a float with an integer exactly; in float64 the limit of 64 bits rounds
            raise Infeasible(
                f"a value of {largest / 2**self.fraction_bits:.6g} overflows: a sum of {users} vectors of {self.width} "
                f"bits with {self.fraction_bits} fraction bits holds values up to {limit / 2**self.fraction_bits:.6g}"
            )
        words: Words = integers.astype(np.int64).astype(self.dtype)
        return words

    def decode(self, words: Words) -> NDArray[np.float64]:
        """The real numbers of elements, float64 (whose 53 bits round larger sums of 64)."""
        signed = words.view(f"<i{self.width // 8}")
        reals: NDArray[np.float64] = np.ldexp(signed.astype(np.float64), -self.fraction_bits)
        return reals
