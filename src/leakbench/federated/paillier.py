"""Real vectors under Paillier encryption: the server adds them by multiplying ciphertexts that it cannot read.

A value becomes a fixed-point integer, plus an offset that makes it positive. One plaintext holds one such integer, or
as many as fit beside each other: each in a slot with guard bits, so that the sums of K vectors do not run into the next
slot. ``phe`` has the cryptosystem, with ``g = n + 1``. The clients share a key pair and the server has the public key,
so that one client and the server together read every vector. Clients decrypt, and encrypt modulo ``p^2`` and ``q^2``,
which gives the same ciphertexts in a third of the time.

Source: Paillier (1999), "Public-key cryptosystems based on composite degree residuosity classes"; Zhang, Kang et al.
(2023), appendix G, whose condition on the key has to read ``gcd(pq, (p - 1)(q - 1)) = 1``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import TYPE_CHECKING

from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.ring import Ring
from leakbench.federated.secret_sharing import Entropy
from leakbench.lazy import np
from leakbench.randomness import named_bytes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray
    from phe import PaillierPrivateKey, PaillierPublicKey

    from leakbench.federated.ring import Words

LEAST_BITS, MOST_BITS = 1024, 4096
"""Sizes of a modulus that nobody has factored in public. Below 2048 bits it is no longer held to be safe, and a toy in
all but name: for simulations that save time."""
LEAST_TOY_BITS = 16
SLOT_BITS = 64
"""The widest slot."""


def check_key_bits(bits: int, *, toy: bool = False) -> None:
    """Reject sizes of the modulus that are not supported.

    Raises:
        ConfigError: not a multiple of 8, or out of range.
    """
    least, most = (LEAST_TOY_BITS, LEAST_BITS - 8) if toy else (LEAST_BITS, MOST_BITS)
    if bits % 8 or not least <= bits <= most:
        hint = "" if toy else f"; those of {LEAST_TOY_BITS} to {LEAST_BITS - 8}, which hide nothing, are called toy"
        raise ConfigError(f"a modulus of {bits} bits; it has a multiple of 8, from {least} to {most}{hint}")


def generate_keys(bits: int = 2048, *, entropy: Entropy | None = None, toy: bool = False) -> PaillierPrivateKey:
    """A key pair: the private key, which holds the public one.

    Args:
        bits: of the modulus n.
        entropy: where the primes come from; the operating system by default, as ``phe`` draws them.
        toy: a modulus that anyone can factor, for curves over its size.

    Raises:
        ConfigError: as :func:`check_key_bits`.
    """
    import gmpy2
    import phe

    check_key_bits(bits, toy=toy)
    while True:
        if entropy is None:
            _, private = phe.generate_paillier_keypair(n_length=bits)
        else:
            p, q = (_prime(bits // 2, entropy) for _ in range(2))
            if p == q or (p * q).bit_length() != bits:
                continue
            private = phe.PaillierPrivateKey(phe.PaillierPublicKey(p * q), p, q)
        # With primes of equal length this fails only for toys, where the next prime may be a bit longer.
        if gmpy2.gcd(private.public_key.n, (private.p - 1) * (private.q - 1)) == 1:
            return private


def _prime(bits: int, entropy: Entropy) -> int:
    """The first prime above random bits, the highest of which is one; as ``phe`` draws primes."""
    import gmpy2

    drawn = int.from_bytes(entropy(-(-bits // 8))) % (1 << bits) | 1 << (bits - 1)
    return int(gmpy2.next_prime(drawn))


@lru_cache(maxsize=8)
def simulated_keys(bits: int, *, toy: bool = False) -> PaillierPrivateKey:
    """The key pair that all simulations with a modulus of this size share; no secret (:func:`named_bytes`).

    Raises:
        ConfigError: as :func:`check_key_bits`.
    """
    return generate_keys(bits, entropy=named_bytes("paillier", "keys", bits), toy=toy)


@dataclass(frozen=True)
class Packing:
    """Layout of real numbers in plaintexts.

    Attributes:
        key_bits: of the modulus.
        clients: most vectors that may be added, K.
        fraction_bits: f; a value is rounded to the nearest multiple of ``2^-f``.
        integer_bits: above them, the sign among them; values lie below ``2^(integer_bits - 1)`` in magnitude.
        packed: as many values per plaintext as fit; else one.

    Raises:
        ConfigError: parameters out of range, or slots of more than 64 bits.
        Infeasible: the modulus has no room for a single value.
    """

    key_bits: int
    clients: int
    fraction_bits: int = 32
    integer_bits: int = 8
    packed: bool = True

    def __post_init__(self) -> None:
        if self.clients < 1 or self.fraction_bits < 0 or self.integer_bits < 1:
            raise ConfigError(
                f"{self.clients} clients, {self.fraction_bits} fraction bits, {self.integer_bits} integer bits; they "
                "are at least 1, 0 and 1"
            )
        if self.width > SLOT_BITS:
            raise ConfigError(f"{self._slot_bits}; a slot has at most {SLOT_BITS}")
        if self.width > self.key_bits - 1:
            raise Infeasible(
                f"a modulus of {self.key_bits} bits holds plaintexts of {self.key_bits - 1}, and {self._slot_bits}"
            )

    @property
    def _slot_bits(self) -> str:
        return (
            f"a value takes {self.width} bits: {self.fraction_bits} fraction bits, {self.integer_bits} integer bits "
            f"and {self.guard_bits} for sums of {self.clients}"
        )

    @property
    def guard_bits(self) -> int:
        """``ceil(log2 K)``."""
        return (self.clients - 1).bit_length()

    @property
    def width(self) -> int:
        """Bits of a slot."""
        return self.fraction_bits + self.integer_bits + self.guard_bits

    @property
    def slots(self) -> int:
        """Values in a plaintext: ``floor((key_bits - 1) / width)``, or one."""
        return (self.key_bits - 1) // self.width if self.packed else 1

    @property
    def offset(self) -> int:
        """Constant added to every integer; also the bound on their magnitude."""
        return 1 << (self.fraction_bits + self.integer_bits - 1)

    @property
    def ring(self) -> Ring:
        """The ring in whose fixed point values are encoded."""
        return Ring(64, self.fraction_bits)

    def ciphertexts(self, length: int) -> int:
        """Number of ciphertexts of a vector."""
        return -(-length // self.slots)

    def bits(self, length: int) -> int:
        """Size of an encrypted vector: each ciphertext is a number modulo ``n^2``."""
        return 2 * self.key_bits * self.ciphertexts(length)

    def plaintexts(self, values: ArrayLike) -> list[int]:
        """Integers below n, of a vector ``[d]``.

        Raises:
            Infeasible: values that are not finite, or too large.
        """
        reals = np.asarray(values, dtype=np.float64)
        integers = self.ring.encode(reals, self.clients)
        largest = int(np.abs(integers.view(np.int64)).max(initial=0))
        if largest >= self.offset:
            raise Infeasible(
                f"a value of {largest / 2**self.fraction_bits:.6g} overflows: {self.integer_bits} integer bits, the "
                f"sign among them, hold values below {2 ** (self.integer_bits - 1):g}; raise integer_bits"
            )
        words = np.zeros(self.ciphertexts(len(reals)) * self.slots, dtype="<u8")
        words[: len(reals)] = integers + np.uint64(self.offset)
        bits = np.unpackbits(words.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")[:, : self.width]
        rows = np.packbits(bits.reshape(-1, self.slots * self.width), axis=1, bitorder="little")
        return [int.from_bytes(row.tobytes(), "little") for row in rows]

    def sums(self, plaintexts: Sequence[int], length: int, terms: int) -> Words:
        """The sum of ``terms`` vectors, ``[d]``, as elements of :attr:`ring`.

        Raises:
            Infeasible: a plaintext that is no such sum.
        """
        size = self.slots * self.width
        if any(plaintext >> size for plaintext in plaintexts):
            raise Infeasible(f"a plaintext of more than {size} bits is no sum of vectors in this form")
        data = b"".join(plaintext.to_bytes(-(-size // 8), "little") for plaintext in plaintexts)
        rows = np.frombuffer(data, dtype=np.uint8).reshape(len(plaintexts), -1)
        bits = np.unpackbits(rows, axis=1, bitorder="little")[:, :size].reshape(-1, self.width)
        words = np.packbits(bits, axis=1, bitorder="little")
        words = np.pad(words, ((0, 0), (0, 8 - words.shape[1]))).view("<u8")[:length, 0]
        sums: Words = words - np.uint64(terms * self.offset)
        return sums


@dataclass(frozen=True)
class EncryptedVector:
    """A vector under encryption, or a sum of several.

    Attributes:
        public: the key.
        ciphertexts: integers modulo ``n^2``.
        packing: layout of the plaintexts.
        length: of the vector, d.
        terms: number of vectors in the sum.
    """

    public: PaillierPublicKey
    ciphertexts: tuple[int, ...]
    packing: Packing
    length: int
    terms: int = 1

    @property
    def bits(self) -> int:
        """Size of the encrypted vector."""
        return self.packing.bits(self.length)

    @cached_property
    def serialised(self) -> bytes:
        """The ciphertexts on the wire, each in as many bytes as ``n^2`` has at most."""
        size = self.packing.key_bits // 4
        return b"".join(ciphertext.to_bytes(size) for ciphertext in self.ciphertexts)

    def fractions(self) -> NDArray[np.float64]:
        """The ciphertexts as coordinates ``[d]`` in [0, 1), for an attacker without the key: parts of ``c / n^2``.

        With one value per ciphertext it is ``c / n^2``. Else ``c / n^2`` is written in the base in which it has as many
        digits as there are slots, and the coordinate in slot j gets digit j, over the base. So the coordinates hold all
        that the ciphertext does, and have the same law as without packing.
        """
        slots, square = self.packing.slots, self.public.nsquare
        size = max(8, self.packing.key_bits // (4 * slots))  # bytes of a digit
        digits = ((c << 8 * size * slots) // square for c in self.ciphertexts)
        data = b"".join(digit.to_bytes(size * slots) for digit in digits)
        leading = np.frombuffer(data, dtype=np.uint8).reshape(-1, size)[:, :8]
        words = np.ascontiguousarray(leading).view(">u8")[: self.length, 0]
        fractions: NDArray[np.float64] = np.ldexp((words >> np.uint64(11)).astype(np.float64), -53)
        return fractions


def encrypt(
    values: ArrayLike,
    key: PaillierPublicKey | PaillierPrivateKey,
    packing: Packing,
    entropy: Entropy | None = None,
) -> EncryptedVector:
    """Encrypt a vector ``[d]``.

    Args:
        values: the vector.
        key: with the private key it takes a third of the time; the ciphertexts are the same.
        packing: for moduli of the key's size.
        entropy: where the randomness of ciphertexts comes from; the operating system by default.

    Raises:
        ConfigError: the packing is for another size of the modulus.
        Infeasible: as :meth:`Packing.plaintexts`.
    """
    import phe
    from phe.util import mulmod

    private = key if isinstance(key, phe.PaillierPrivateKey) else None
    public = key if private is None else private.public_key
    if public.n.bit_length() != packing.key_bits:
        raise ConfigError(f"a packing for {packing.key_bits} bits, and a key of {public.n.bit_length()}")
    plaintexts = packing.plaintexts(values)
    units = [_unit(public, entropy) for _ in plaintexts]
    residues = _residues(public, units) if private is None else _residues_of_holder(private, units)
    ciphertexts = tuple(
        mulmod(public.raw_encrypt(plaintext, r_value=1), residue, public.nsquare)
        for plaintext, residue in zip(plaintexts, residues, strict=True)
    )
    return EncryptedVector(public, ciphertexts, packing, np.asarray(values).size)


def _unit(public: PaillierPublicKey, entropy: Entropy | None) -> int:
    """A random number below n without a common divisor, which ``phe`` does not check: toys would often have one."""
    import gmpy2

    while True:
        if entropy is None:
            drawn = public.get_random_lt_n()
        else:  # 16 bytes more than n has: the remainder is uniform up to 2^-128
            drawn = 1 + int.from_bytes(entropy(-(-public.n.bit_length() // 8) + 16)) % (public.n - 1)
        if gmpy2.gcd(drawn, public.n) == 1:
            return int(drawn)


def _residues(public: PaillierPublicKey, units: Sequence[int]) -> list[int]:
    """``r^n`` modulo ``n^2``."""
    import gmpy2

    return [int(residue) for residue in gmpy2.powmod_base_list(list(units), public.n, public.nsquare)]


def _residues_of_holder(key: PaillierPrivateKey, units: Sequence[int]) -> list[int]:
    """The same, from the factors.

    Modulo ``p^2`` it is ``(r^q)^p``, where ``r^q`` modulo p suffices: ``(a + b p)^p = a^p`` modulo ``p^2``.
    """
    import gmpy2

    p, q = gmpy2.mpz(key.p), gmpy2.mpz(key.q)
    parts = []
    for prime, other in ((p, q), (q, p)):
        roots = gmpy2.powmod_base_list([unit % prime for unit in units], other % (prime - 1), prime)
        parts.append(gmpy2.powmod_base_list(roots, prime, prime * prime))
    square, inverse = p * p, gmpy2.invert(p * p, q * q)
    return [int(a + square * ((b - a) * inverse % (q * q))) for a, b in zip(*parts, strict=True)]


def add(vectors: Sequence[EncryptedVector]) -> EncryptedVector:
    """The sum, by multiplying ciphertexts; it takes the public key alone.

    Raises:
        ConfigError: no vectors, or vectors of different keys, packings or lengths.
        Infeasible: more terms than the guard bits are for.
    """
    from phe.util import mulmod

    if not vectors:
        raise ConfigError("a sum of no vectors")
    first = vectors[0]
    for what, same in (
        ("keys", all(vector.public == first.public for vector in vectors)),
        ("packings", all(vector.packing == first.packing for vector in vectors)),
        ("lengths", all(vector.length == first.length for vector in vectors)),
    ):
        if not same:
            raise ConfigError(f"encrypted vectors of different {what} have no sum")
    terms, square = sum(vector.terms for vector in vectors), first.public.nsquare
    if terms > first.packing.clients:
        raise Infeasible(
            f"a sum of {terms} encrypted vectors; their packing has guard bits for {first.packing.clients} (clients)"
        )
    columns = zip(*(vector.ciphertexts for vector in vectors), strict=True)
    products = tuple(reduce(lambda a, b: mulmod(a, b, square), column) for column in columns)
    return EncryptedVector(first.public, products, first.packing, first.length, terms)


def decrypt(vector: EncryptedVector, key: PaillierPrivateKey) -> NDArray[np.float64]:
    """The sum in the clear, ``[d]``: exactly that of the values in fixed point, up to float64's 53 bits.

    Raises:
        ConfigError: it was encrypted with another key.
        Infeasible: as :meth:`Packing.sums`.
    """
    if key.public_key != vector.public:
        raise ConfigError("the vector was encrypted with another key")
    plaintexts = [key.raw_decrypt(ciphertext) for ciphertext in vector.ciphertexts]
    return vector.packing.ring.decode(vector.packing.sums(plaintexts, vector.length, vector.terms))
