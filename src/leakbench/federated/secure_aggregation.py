"""Secure aggregation by pairwise masks: the server learns the sum of the users' vectors, and no vector.

Every pair of users agrees on a key (X25519) and expands it to a mask, which one of them adds and the other subtracts;
each user also adds a self mask. Keys of pairwise masks and seeds of self masks are shared among all users (Shamir), so
that the sum of those who sent a vector can be unmasked though others dropped out: users reveal shares of the seeds of
those who sent, and of the keys of those who did not, never both of one user.

Threat model: an honest-but-curious server that colludes with fewer than ``threshold`` honest-but-curious users. They
learn the sum over the other surviving users, and who dropped out. Nothing is signed, and there is no round in which
users agree on the survivors: a server that lies about keys or survivors is out of scope. Keys live for one sum.

Source: Bonawitz et al. (2017), "Practical Secure Aggregation for Privacy-Preserving Machine Learning", figure 4 without
the steps against active adversaries.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.ring import Ring
from leakbench.federated.secret_sharing import SECRET_BYTES, SHARE_BYTES, Entropy, combine, share, weights_at_zero
from leakbench.lazy import np

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from numpy.typing import ArrayLike, NDArray

    from leakbench.federated.ring import Words


@dataclass(frozen=True)
class PublicKeys:
    """The X25519 public keys of a user, 32 bytes each.

    Attributes:
        channel: of the encrypted channels on which users exchange shares.
        mask: of the pairwise masks.
    """

    channel: bytes
    mask: bytes


@dataclass(frozen=True)
class Revealed:
    """The shares that one user hands to the server: exactly one of every user, by user.

    Attributes:
        seeds: of the self masks of those who sent a vector.
        keys: of the mask keys of those who dropped out.
    """

    seeds: dict[int, int]
    keys: dict[int, int]


def private_key(secret: bytes) -> X25519PrivateKey:
    """The private key of 32 random bytes."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(secret)


def agree(private: X25519PrivateKey, public: bytes, purpose: bytes, pair: tuple[int, int]) -> bytes:
    """The key of 32 bytes that a pair of users shares for a purpose: X25519, then HKDF with SHA-256.

    Purpose and pair, in either order, are HKDF's info (RFC 5869, section 3.2): no key serves another pair of users.
    """
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    common = private.exchange(X25519PublicKey.from_public_bytes(public))
    info = purpose + b"".join(user.to_bytes(6) for user in sorted(pair))
    return HKDF(SHA256(), length=SECRET_BYTES, salt=None, info=info).derive(common)


def expand(seed: bytes, length: int, ring: Ring) -> Words:
    """A mask of ``length`` elements, uniform on the ring: the ChaCha20 key stream of a seed that serves once."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    stream = Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(length * ring.dtype.itemsize))
    words: Words = np.frombuffer(stream, dtype=ring.dtype)
    return words


def additive_shares(words: Words, shares: int, ring: Ring, entropy: Entropy = os.urandom) -> Words:
    """Vectors that add up to one, ``[shares, d]``; any ``shares - 1`` of them are uniform on the ring.

    Args:
        words: the vector, ``[d]``.
        shares: their number, at least 1.
        ring: the ring.
        entropy: source of the seeds of all but the first share.

    Raises:
        ConfigError: no shares.
    """
    if shares < 1:
        raise ConfigError(f"{shares} shares of a vector; there is at least one")
    masks = [expand(entropy(SECRET_BYTES), len(words), ring) for _ in range(shares - 1)]
    rest: Words = words - np.sum(masks, axis=0, dtype=ring.dtype) if masks else words
    parts: Words = np.stack([rest, *masks])
    return parts


class User:
    """One user, for one sum. The rounds are :meth:`advertise`, :meth:`share`, :meth:`masked`, :meth:`reveal`.

    Args:
        index: from 0 on; its point as a holder of shares is one more.
        words: its vector, in the ring, ``[d]``.
        ring: the ring.
        threshold: number of users that have to reveal, t.
        entropy: source of keys, seeds and polynomials.
    """

    def __init__(self, index: int, words: Words, ring: Ring, threshold: int, entropy: Entropy = os.urandom) -> None:
        self.index = index
        self._words, self._ring, self._threshold, self._entropy = words, ring, threshold, entropy
        self._channel_key, self._mask_key = (private_key(entropy(SECRET_BYTES)) for _ in range(2))
        self._seed = entropy(SECRET_BYTES)
        self._directory: Mapping[int, PublicKeys] = {}
        self._channels: dict[int, ChaCha20Poly1305] = {}
        self._held: dict[int, tuple[int, int]] = {}
        self._survivors: frozenset[int] | None = None

    def advertise(self) -> PublicKeys:
        """Round 0: public keys."""
        return PublicKeys(*(key.public_key().public_bytes_raw() for key in (self._channel_key, self._mask_key)))

    def share(self, directory: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Round 1: shares of the seed and of the mask key, for every other user, which the server cannot read.

        Args:
            directory: the public keys of all users.

        Raises:
            Infeasible: fewer users than the threshold.
        """
        if len(directory) < self._threshold:
            raise Infeasible(f"{len(directory)} users advertised keys; the threshold is {self._threshold}")
        self._directory = directory
        points = [other + 1 for other in directory]
        seeds = share(self._seed, self._threshold, points, self._entropy)
        keys = share(self._mask_key.private_bytes_raw(), self._threshold, points, self._entropy)
        sealed = {}
        for other, seed, key in zip(directory, seeds, keys, strict=True):
            if other == self.index:
                self._held[other] = seed, key
            else:
                plain = seed.to_bytes(SHARE_BYTES) + key.to_bytes(SHARE_BYTES)
                sealed[other] = self._channel(other).encrypt(_direction(self.index, other), plain, None)
        return sealed

    def masked(self, sealed: Mapping[int, bytes]) -> Words:
        """Round 2: the vector plus all masks, ``[d]``.

        Args:
            sealed: the shares that the others sent to this user; those who sent none take no part.

        Raises:
            Infeasible: with this user fewer than the threshold take part.
        """
        if len(sealed) + 1 < self._threshold:
            raise Infeasible(f"{len(sealed) + 1} users shared their keys; the threshold is {self._threshold}")
        for other, message in sealed.items():
            plain = self._channel(other).decrypt(_direction(other, self.index), message, None)
            self._held[other] = int.from_bytes(plain[:SHARE_BYTES]), int.from_bytes(plain[SHARE_BYTES:])
        words = self._words + expand(self._seed, len(self._words), self._ring)
        for other in sealed:
            key = agree(self._mask_key, self._directory[other].mask, b"mask", (self.index, other))
            _apply(words, expand(key, len(words), self._ring), adds=self.index < other)
        return words

    def reveal(self, survivors: Collection[int]) -> Revealed:
        """Round 3: one share of every user: of its seed if it survived, of its mask key if it did not.

        Raises:
            Infeasible: fewer survivors than the threshold, or other survivors than before.
        """
        if len(survivors) < self._threshold:
            raise Infeasible(
                f"{len(survivors)} of {len(self._held)} users sent a vector; the threshold is {self._threshold}"
            )
        if self._survivors not in (None, frozenset(survivors)):
            raise Infeasible("asked again with other survivors: both kinds of shares would unmask a single vector")
        self._survivors = frozenset(survivors)
        return Revealed(
            {other: seed for other, (seed, _) in self._held.items() if other in self._survivors},
            {other: key for other, (_, key) in self._held.items() if other not in self._survivors},
        )

    def _channel(self, other: int) -> ChaCha20Poly1305:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        if other not in self._channels:
            key = agree(self._channel_key, self._directory[other].channel, b"channel", (self.index, other))
            self._channels[other] = ChaCha20Poly1305(key)
        return self._channels[other]


def _direction(sender: int, receiver: int) -> bytes:
    """Nonce of the only message from one user to another; both directions use the same key."""
    return sender.to_bytes(6) + receiver.to_bytes(6)


def _apply(words: Words, mask: Words, *, adds: bool) -> None:
    if adds:
        words += mask
    else:
        words -= mask


class Server:
    """The server, for one sum: it routes messages, and unmasks the sum.

    Args:
        ring: the ring.
        threshold: number of users that have to reveal, t.

    Attributes:
        directory: public keys, by user.
        sharing: users who shared their keys; nobody applied a mask of the others.
        received: masked vectors, by user: its view of the vectors before it unmasks.
    """

    def __init__(self, ring: Ring, threshold: int) -> None:
        self._ring, self._threshold = ring, threshold
        self.directory: dict[int, PublicKeys] = {}
        self.sharing: frozenset[int] = frozenset()
        self.received: dict[int, Words] = {}

    def collect(self, keys: Mapping[int, PublicKeys]) -> Mapping[int, PublicKeys]:
        """Round 0: the directory of all users' keys."""
        self.directory = dict(keys)
        return self.directory

    def route(self, sealed: Mapping[int, Mapping[int, bytes]]) -> dict[int, dict[int, bytes]]:
        """Round 1: from shares by sender and receiver to shares by receiver and sender, of those who shared.

        Raises:
            Infeasible: fewer than the threshold.
        """
        self.sharing = frozenset(sealed)
        if len(sealed) < self._threshold:
            raise Infeasible(
                f"{len(sealed)} of {len(self.directory)} users shared their keys; the threshold is {self._threshold}"
            )
        return {
            receiver: {sender: letters[receiver] for sender, letters in sealed.items() if receiver in letters}
            for receiver in sealed
        }

    def receive(self, masked: Mapping[int, Words]) -> tuple[int, ...]:
        """Round 2: the surviving users.

        Raises:
            Infeasible: fewer than the threshold.
        """
        self.received = dict(masked)
        if len(masked) < self._threshold:
            raise Infeasible(
                f"{len(masked)} of {len(self.directory)} users sent a vector; the threshold is {self._threshold}"
            )
        return tuple(sorted(masked))

    def unmask(self, revealed: Mapping[int, Revealed]) -> Words:
        """Round 3: the sum of the survivors' vectors, ``[d]``.

        Args:
            revealed: by user.

        Raises:
            Infeasible: fewer users than the threshold revealed, or their shares are not of the keys advertised.
        """
        if len(revealed) < self._threshold:
            raise Infeasible(
                f"{len(revealed)} of {len(self.received)} survivors revealed shares; the threshold is {self._threshold}"
            )
        used = list(revealed)[: self._threshold]
        weights = weights_at_zero([holder + 1 for holder in used])
        total: Words = np.sum(list(self.received.values()), axis=0, dtype=self._ring.dtype)
        for survivor in self.received:
            shares = {holder + 1: revealed[holder].seeds[survivor] for holder in used}
            total -= expand(combine(shares, self._threshold, weights), len(total), self._ring)
        for absent in self.sharing - self.received.keys():
            shares = {holder + 1: revealed[holder].keys[absent] for holder in used}
            key = private_key(combine(shares, self._threshold, weights))
            if key.public_key().public_bytes_raw() != self.directory[absent].mask:
                raise Infeasible(f"the shares of user {absent}'s key are not of the key that it advertised")
            for survivor in self.received:
                pairwise = agree(key, self.directory[survivor].mask, b"mask", (absent, survivor))
                mask = expand(pairwise, len(total), self._ring)
                _apply(total, mask, adds=absent < survivor)  # takes back what the survivor applied
        return total


@dataclass(frozen=True)
class SecureSum:
    """The result of a run of the protocol.

    Attributes:
        total: the sum of the survivors' vectors, each rounded to fixed point, ``[d]``, float64.
        survivors: users who sent a vector.
        bits: sent by the user who sends most: keys, shares, masked vector, revealed shares.
        server: the server, with its view.
    """

    total: NDArray[np.float64]
    survivors: tuple[int, ...]
    bits: int
    server: Server


def majority(users: int) -> int:
    """The least number of users that is more than half of them."""
    return users // 2 + 1


def check_threshold(users: int, threshold: int) -> None:
    """Reject thresholds that a sum of so many users cannot have.

    With half of the users or fewer a server could ask one half for the seeds and the other for the keys of a user, and
    as many colluders rebuild any vector; the paper of Zhang et al. (2024) lets half of them collude.

    Raises:
        ConfigError: fewer than two users, or a threshold that is not more than half of them and at most all.
    """
    if users < 2:
        raise ConfigError(f"secure aggregation of {users} user(s): a sum hides nothing of fewer than two")
    if not majority(users) <= threshold <= users:
        raise ConfigError(
            f"threshold {threshold} of {users} users; it is more than half of them, from {majority(users)} to {users}"
        )


def secure_sum(
    vectors: Sequence[ArrayLike],
    threshold: int,
    dropped: Collection[int] = (),
    *,
    early: Collection[int] = (),
    silent: Collection[int] = (),
    ring: Ring | None = None,
    entropy: Entropy = os.urandom,
) -> SecureSum:
    """Run the whole protocol: the sum of the vectors of those who do not drop out.

    The sum does not depend on keys and masks, so it is the same in every run.

    Args:
        vectors: one per user, ``[N, d]``.
        threshold: number of users that have to stay to the end, t: more than half of N, up to N.
        dropped: users who leave after they have shared their keys, and send no vector.
        early: users who leave after they have advertised their keys, and share nothing.
        silent: users who leave after they have sent their vector, and reveal nothing.
        ring: the fixed point of vectors; by default that of :class:`Ring`.
        entropy: source of keys, seeds and polynomials; another one is for tests.

    Raises:
        ConfigError: fewer than two users, a threshold out of range, vectors of different lengths, no such users.
        Infeasible: fewer users stay than the threshold; values that are not finite or may overflow the ring.
    """
    ring = ring or Ring()
    arrays = [np.asarray(vector) for vector in vectors]
    check_threshold(len(arrays), threshold)
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1 or arrays[0].ndim != 1:
        raise ConfigError(f"vectors of shapes {sorted(shapes)}; all users' are [d]")
    unknown = sorted({*dropped, *early, *silent} - set(range(len(arrays))))
    if unknown:
        raise ConfigError(f"no such users: {unknown}; there are 0 to {len(arrays) - 1}")

    words = ring.encode(np.stack(arrays), users=len(arrays))
    users = {index: User(index, row, ring, threshold, entropy) for index, row in enumerate(words)}
    server = Server(ring, threshold)
    directory = server.collect({index: user.advertise() for index, user in users.items()})
    sealed = {index: user.share(directory) for index, user in users.items() if index not in early}
    letters = server.route(sealed)
    staying = {index: users[index] for index in letters if index not in dropped}
    survivors = server.receive({index: user.masked(letters[index]) for index, user in staying.items()})
    revealed = {index: user.reveal(survivors) for index, user in staying.items() if index not in silent}
    total = ring.decode(server.unmask(revealed))
    sent = 2 * SECRET_BYTES + max(sum(map(len, letter.values())) for letter in sealed.values())
    bits = 8 * (sent + SHARE_BYTES * len(users)) + ring.width * len(total)
    return SecureSum(total, survivors, bits, server)
