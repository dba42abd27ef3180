"""Secure aggregation: exact sums, with and without those who drop out, and what the server sees."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("cryptography")

from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.ring import Ring
from leakbench.federated.secret_sharing import combine
from leakbench.federated.secure_aggregation import Server, User, agree, expand, majority, private_key, secure_sum

if TYPE_CHECKING:
    from leakbench.federated.ring import Words


def entropy(seed: int = 0) -> Callable[[int], bytes]:
    return random.Random(seed).randbytes


def vectors(users: int, length: int = 7, seed: int = 0) -> NDArray[np.float64]:
    values: NDArray[np.float64] = np.random.default_rng(seed).normal(size=(users, length))
    return values


def rounded(values: NDArray[np.float64], ring: Ring) -> NDArray[np.float64]:
    found: NDArray[np.float64] = np.rint(values * 2**ring.fraction_bits) / 2**ring.fraction_bits
    return found


@pytest.mark.parametrize("width", [32, 64])
@pytest.mark.parametrize(
    ("users", "threshold", "dropped", "silent"),
    [
        (2, 2, [], []),
        (5, 3, [], []),
        (5, 3, [0], []),
        (5, 3, [1, 4], []),
        (5, 3, [], [0, 2]),
        (7, 4, [5], [0, 2]),
        (4, 4, [], []),
    ],
)
def test_the_sum_of_the_survivors(
    users: int, threshold: int, dropped: list[int], silent: list[int], width: Literal[32, 64]
) -> None:
    ring = Ring(width=width, fraction_bits=18)
    values = vectors(users)
    found = secure_sum(list(values), threshold, dropped, silent=silent, ring=ring)
    staying = [index for index in range(users) if index not in dropped]
    assert found.survivors == tuple(staying)
    assert np.array_equal(found.total, rounded(values[staying], ring).sum(axis=0))  # exact, in any ring
    np.testing.assert_allclose(found.total, values[staying].sum(axis=0), atol=users * 2**-19)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 6), st.data())
def test_any_users_may_drop_out_down_to_the_threshold(users: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(majority(users), users))
    order = data.draw(st.permutations(range(users)))
    leaving = data.draw(st.integers(0, users - threshold))
    first, second = sorted(data.draw(st.tuples(st.integers(0, leaving), st.integers(0, leaving))))
    values, ring = vectors(users, 3), Ring()
    early, dropped, silent = order[:first], order[first:second], order[second:leaving]
    found = secure_sum(list(values), threshold, dropped, early=early, silent=silent, ring=ring)
    assert found.survivors == tuple(sorted(set(range(users)) - {*early, *dropped}))
    assert np.array_equal(found.total, rounded(values[list(found.survivors)], ring).sum(axis=0))
    many = order[: users - threshold + 1]
    ways: list[tuple[list[int], list[int], list[int]]] = [(many, [], []), ([], many, []), ([], [], many)]
    for dropped, early, silent in ways:
        with pytest.raises(Infeasible, match=rf"the threshold is {threshold}"):
            secure_sum(list(values), threshold, dropped, early=early, silent=silent)


def test_users_who_share_nothing_leave_no_masks() -> None:
    """They are in the directory alone: nobody applies a mask of theirs, and nobody holds a share of their keys."""
    values = vectors(6)
    found = secure_sum(list(values), 4, [5], early=[0], ring=Ring(fraction_bits=18))
    assert found.survivors == (1, 2, 3, 4) and set(found.server.directory) == set(range(6))
    assert found.server.sharing == {1, 2, 3, 4, 5}
    np.testing.assert_allclose(found.total, values[1:5].sum(axis=0), atol=6 * 2**-19)
    with pytest.raises(Infeasible, match="3 of 6 users shared their keys; the threshold is 4"):
        secure_sum(list(values), 4, early=[0, 1, 2])


def test_a_user_counts_who_shared() -> None:
    """A server cannot have a vector that is masked towards fewer users than the threshold."""
    users = [User(index, np.zeros(2, dtype=np.uint32), Ring(), 3, entropy()) for index in range(4)]
    directory = {user.index: user.advertise() for user in users}
    sealed = {user.index: user.share(directory) for user in users}
    with pytest.raises(Infeasible, match="2 users shared their keys; the threshold is 3"):
        users[0].masked({1: sealed[1][0]})


def test_keys_are_of_a_pair_and_a_purpose() -> None:
    """HKDF's info: the same two X25519 keys give another key for another pair of users, or another purpose."""
    random_bytes = entropy()
    one, other = private_key(random_bytes(32)), private_key(random_bytes(32))
    public = [key.public_key().public_bytes_raw() for key in (one, other)]
    key = agree(one, public[1], b"mask", (3, 1))
    assert key == agree(other, public[0], b"mask", (1, 3))
    assert len({key, agree(one, public[1], b"mask", (2, 3)), agree(one, public[1], b"channel", (1, 3))}) == 3


def test_masks_by_hand() -> None:
    """A masked vector is the vector, a mask of one's own, and one per pair with opposite signs."""
    ring, random_bytes = Ring(), entropy()
    users = [User(index, np.full(4, index, dtype=np.uint32), ring, 2, random_bytes) for index in range(3)]
    directory = {user.index: user.advertise() for user in users}
    sealed = {user.index: user.share(directory) for user in users}
    letters = Server(ring, 2).route(sealed)
    assert letters == {0: {1: sealed[1][0], 2: sealed[2][0]}, 1: {0: sealed[0][1], 2: sealed[2][1]}, 2: letters[2]}
    masked = [user.masked(letters[user.index]) for user in users]

    def pair(one: int, other: int) -> Words:
        return expand(agree(users[one]._mask_key, directory[other].mask, b"mask", (one, other)), 4, ring)

    assert np.array_equal(pair(0, 2), pair(2, 0)) and not np.array_equal(pair(0, 1), pair(0, 2))
    own = [expand(user._seed, 4, ring) for user in users]
    assert np.array_equal(masked[0], own[0] + pair(0, 1) + pair(0, 2))
    assert np.array_equal(masked[1], 1 + own[1] - pair(0, 1) + pair(1, 2))
    assert np.array_equal(masked[2], 2 + own[2] - pair(0, 2) - pair(1, 2))


def chi_square(words: Words) -> float:
    """Of the highest and of the lowest byte of every word, each against 256 equal bins: about 510 in all."""
    statistic = 0.0
    for shift in (0, 24):
        counts = np.bincount((words >> shift) & 255, minlength=256)
        statistic += float(((counts - len(words) / 256) ** 2).sum() / (len(words) / 256))
    return statistic


class TestWhatTheServerSees:
    LENGTH = 65_536

    def views(self, values: NDArray[np.float64], seed: int) -> dict[int, Words]:
        return secure_sum(list(values), 3, [2], silent=[0], entropy=entropy(seed)).server.received

    def test_a_masked_vector_is_uniform(self) -> None:
        """Though all vectors are zero; 510 degrees of freedom have a standard deviation of 32."""
        received = self.views(np.zeros((5, self.LENGTH)), 1)
        assert set(received) == {0, 1, 3, 4}
        for words in received.values():
            assert abs(chi_square(words) - 510) < 5 * 32
        assert chi_square(np.zeros(self.LENGTH, dtype=np.uint32)) > 1e6  # the statistic sees what is not uniform
        assert abs(chi_square(received[0] - received[1]) - 510) < 5 * 32

    def test_it_changes_with_the_keys_alone(self) -> None:
        values = vectors(5, self.LENGTH)
        one, same, other = (self.views(values, seed)[1] for seed in (1, 1, 2))
        assert np.array_equal(one, same)
        assert np.mean(one == other) < 1e-3
        assert abs(chi_square(one - other) - 510) < 5 * 32

    def test_no_partial_sum_shows(self) -> None:
        """The own masks of survivors come off in the whole sum alone: without one vector, the rest stays uniform."""
        received = self.views(np.zeros((5, self.LENGTH)), 3)
        assert abs(chi_square(received[0] + received[3] + received[4]) - 510) < 5 * 32

    def test_a_late_vector_stays_masked(self) -> None:
        """The server that rebuilt a dropped user's pairwise masks still lacks its own mask when its vector arrives."""
        ring, random_bytes = Ring(), entropy()
        users = [User(index, np.zeros(self.LENGTH, np.uint32), ring, 2, random_bytes) for index in range(3)]
        directory = {user.index: user.advertise() for user in users}
        letters = Server(ring, 2).route({user.index: user.share(directory) for user in users})
        late = users[2].masked(letters[2])
        for user in users[:2]:
            user.masked(letters[user.index])
        revealed = [user.reveal((0, 1)) for user in users[:2]]
        key = combine({index + 1: revealed[index].keys[2] for index in (0, 1)}, 2)
        assert key == users[2]._mask_key.private_bytes_raw()
        for other in (0, 1):
            late += expand(agree(private_key(key), directory[other].mask, b"mask", (2, other)), self.LENGTH, ring)
        assert np.array_equal(late, expand(users[2]._seed, self.LENGTH, ring))
        assert abs(chi_square(late) - 510) < 5 * 32


class TestShares:
    def ready(self, threshold: int = 3) -> tuple[Server, list[User]]:
        """Four users of whom the last dropped out."""
        ring, random_bytes = Ring(), entropy()
        users = [
            User(index, np.full(2, index + 1, dtype=np.uint32), ring, threshold, random_bytes) for index in range(4)
        ]
        server = Server(ring, threshold)
        directory = server.collect({user.index: user.advertise() for user in users})
        letters = server.route({user.index: user.share(directory) for user in users})
        server.receive({user.index: user.masked(letters[user.index]) for user in users[:3]})
        return server, users

    def test_one_share_fewer_than_the_threshold(self) -> None:
        server, users = self.ready()
        revealed = {user.index: user.reveal((0, 1, 2)) for user in users[:3]}
        with pytest.raises(Infeasible, match="2 of 3 survivors revealed shares; the threshold is 3"):
            server.unmask({index: revealed[index] for index in (0, 2)})
        with pytest.raises(Infeasible, match=r"2 share\(s\) of a secret that takes 3"):
            combine({index + 1: revealed[index].seeds[1] for index in (0, 2)}, 3)
        assert server.unmask(revealed).tolist() == [6, 6]

    def test_an_altered_share_of_a_key_is_noticed(self) -> None:
        server, users = self.ready()
        revealed = {user.index: user.reveal((0, 1, 2)) for user in users[:3]}
        revealed[1].keys[3] ^= 1
        with pytest.raises(Infeasible, match=r"not of the key that it advertised|not of one secret"):
            server.unmask(revealed)

    def test_users_reveal_one_kind_of_each(self) -> None:
        _, users = self.ready()
        revealed = users[0].reveal((0, 1, 2))
        assert set(revealed.seeds) == {0, 1, 2} and set(revealed.keys) == {3}
        assert users[0].reveal((2, 1, 0)) == revealed
        with pytest.raises(Infeasible, match="would unmask a single vector"):
            users[0].reveal((0, 1, 3))
        with pytest.raises(Infeasible, match="2 of 4 users sent a vector; the threshold is 3"):
            users[1].reveal((0, 1))

    def test_the_server_cannot_read_shares(self) -> None:
        from cryptography.exceptions import InvalidTag

        ring, random_bytes = Ring(), entropy()
        users = [User(index, np.zeros(2, dtype=np.uint32), ring, 2, random_bytes) for index in range(3)]
        directory = {user.index: user.advertise() for user in users}
        sealed = {user.index: user.share(directory) for user in users}
        seed, key = users[0]._held[0]
        assert seed.to_bytes(33) not in sealed[0][1] and key.to_bytes(33) not in sealed[0][1]
        with pytest.raises(InvalidTag):  # nor may it hand a letter to somebody else, or back
            users[1].masked({0: sealed[0][2]})
        with pytest.raises(InvalidTag):
            users[0].masked({1: sealed[0][1]})


@pytest.mark.parametrize(
    ("values", "threshold", "options", "message"),
    [
        (vectors(1), 2, {}, r"secure aggregation of 1 user\(s\)"),
        ([], 2, {}, r"secure aggregation of 0 user\(s\)"),
        (vectors(3), 1, {}, "threshold 1 of 3 users; it is more than half of them, from 2 to 3"),
        (vectors(4), 2, {}, "threshold 2 of 4 users; it is more than half of them, from 3 to 4"),
        (vectors(3), 4, {}, "threshold 4 of 3 users"),
        ([np.zeros(2), np.zeros(3)], 2, {}, r"vectors of shapes \[\(2,\), \(3,\)\]"),
        ([np.zeros((2, 2))] * 2, 2, {}, r"all users' are \[d\]"),
        (vectors(3), 2, {"dropped": [3]}, r"no such users: \[3\]; there are 0 to 2"),
        (vectors(3), 2, {"silent": [-1]}, r"no such users: \[-1\]"),
        (vectors(3), 2, {"early": [4]}, r"no such users: \[4\]"),
    ],
)
def test_bad_input(
    values: list[NDArray[np.float64]], threshold: int, options: dict[str, Collection[int]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        secure_sum(list(values), threshold, **options)  # type: ignore[arg-type]


def test_vectors_that_have_no_sum() -> None:
    broken = vectors(3)
    broken[1, 2] = np.nan
    with pytest.raises(Infeasible, match="not finite"):
        secure_sum(list(broken), 2)
    with pytest.raises(Infeasible, match=r"a value of 20000 overflows: .* holds values up to 10922\.7"):
        secure_sum([np.full(2, 20_000.0)] * 3, 2)
    assert secure_sum([np.full(2, 20_000.0)] * 3, 2, ring=Ring(clip=10.0)).total.tolist() == [30.0, 30.0]


def test_bits_of_the_user_who_sends_most() -> None:
    """Two keys, two letters of two shares with a tag, the masked vector, three shares."""
    found = secure_sum(list(vectors(3, 100)), 2)
    assert found.bits == 8 * (2 * 32 + 2 * (2 * 33 + 16) + 3 * 33) + 32 * 100
