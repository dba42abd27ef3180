"""Vectors under Paillier encryption against ``phe`` itself, Python's integers, and the textbook on a toy modulus."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import cache
from typing import Any

import gmpy2
import numpy as np
import phe
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.paillier import (
    Packing,
    add,
    check_key_bits,
    decrypt,
    encrypt,
    generate_keys,
    simulated_keys,
)
from leakbench.randomness import named_bytes

TOY = 64
SEVEN_ELEVEN = phe.PaillierPrivateKey(phe.PaillierPublicKey(77), 7, 11)


@cache
def key_of(bits: int) -> phe.PaillierPrivateKey:
    return simulated_keys(bits, toy=bits < 1024)


def rounded(value: float, fraction_bits: int) -> Fraction:
    return Fraction(round(Fraction(value) * 2**fraction_bits), 2**fraction_bits)


class TestTextbook:
    def test_seven_times_eleven(self) -> None:
        """By Paillier's formulas: g = 78, lambda = 30, mu = 18."""
        public = SEVEN_ELEVEN.public_key
        assert public.g == 78 and math.lcm(6, 10) == 30
        assert pow((pow(78, 30, 5929) - 1) // 77, -1, 77) == 18
        one, other = public.raw_encrypt(42, r_value=23), public.raw_encrypt(15, r_value=5)
        assert (one, other, one * other % 5929) == (3840, 5162, 1433)
        assert SEVEN_ELEVEN.raw_decrypt(1433) == 57 == (pow(1433, 30, 5929) - 1) // 77 * 18 % 77

    def test_the_condition_as_printed_lets_a_bad_key_through(self) -> None:
        """gcd(pq, (p - q)(q - 1)) = 1 for (7, 3), and there is no mu."""
        p, q = 7, 3
        assert math.gcd(p * q, (p - q) * (q - 1)) == 1 and math.gcd(p * q, (p - 1) * (q - 1)) == 3
        n, order = p * q, math.lcm(p - 1, q - 1)
        with pytest.raises(ValueError, match="not invertible"):
            pow((pow(n + 1, order, n * n) - 1) // n, -1, n)

    def test_few_units_are_generators(self) -> None:
        """That n divides the order of g is a condition: 3600 of the 4620 units modulo 77^2."""
        n, square = 77, 77**2
        units = [g for g in range(1, square) if math.gcd(g, square) == 1]
        good = sum(math.gcd((pow(g, 30, square) - 1) // n, n) == 1 for g in units)
        assert (len(units), good) == (4620, 3600)


class TestKeys:
    @pytest.mark.parametrize("bits", [16, 24, 64, 256, 512])
    def test_derived_toys(self, bits: int) -> None:
        keys = [generate_keys(bits, entropy=named_bytes("test", bits, draw), toy=True) for draw in range(30)]
        for key in keys:
            p, q = key.p, key.q
            assert gmpy2.is_prime(p) and gmpy2.is_prime(q) and p != q and p * q == key.public_key.n
            assert key.public_key.n.bit_length() == bits
            assert math.gcd(p * q, (p - 1) * (q - 1)) == 1
            assert key.raw_decrypt(key.public_key.raw_encrypt(5, r_value=2)) == 5
        assert len({key.public_key.n for key in keys}) > min(20, 2 ** (bits // 4))
        assert generate_keys(bits, entropy=named_bytes("test", bits, 0), toy=True) == keys[0]

    @pytest.mark.parametrize("bits", [16, 32])
    def test_toys_of_the_operating_system(self, bits: int) -> None:
        key = generate_keys(bits, toy=True)
        assert key.public_key.n.bit_length() == bits
        packing = Packing(bits, clients=1, fraction_bits=4, integer_bits=4)
        values = np.linspace(-7.9, 7.9, 200)  # with so small primes, some r would have a divisor in common
        assert np.abs(decrypt(encrypt(values, key, packing), key) - values).max() <= 2**-5

    def test_real_keys(self) -> None:
        one, other = generate_keys(1024), generate_keys(1024)
        assert one != other and one.public_key.n.bit_length() == 1024
        assert simulated_keys(1024) is simulated_keys(1024)
        assert simulated_keys(1024) == generate_keys(1024, entropy=named_bytes("paillier", "keys", 1024))

    @pytest.mark.parametrize(
        ("bits", "toy", "words"),
        [
            (512, False, "multiple of 8, from 1024 to 4096; those of 16 to 1016, which hide nothing, are called toy"),
            (1028, False, "1028 bits"),
            (8192, False, "8192 bits"),
            (8, True, "from 16 to 1016"),
            (1024, True, "from 16 to 1016"),
        ],
    )
    def test_other_sizes(self, bits: int, toy: bool, words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            check_key_bits(bits, toy=toy)
        with pytest.raises(ConfigError, match=words):
            generate_keys(bits, toy=toy)


class TestPacking:
    @pytest.mark.parametrize(
        ("bits", "clients", "slots"), [(1024, 4, 24), (2048, 4, 48), (3072, 4, 73), (2048, 1, 51), (2048, 10, 46)]
    )
    def test_slots_follow_the_formula(self, bits: int, clients: int, slots: int) -> None:
        packing = Packing(bits, clients)
        assert packing.width == 32 + 8 + math.ceil(math.log2(clients))
        assert packing.slots == slots == (bits - 1) // packing.width
        assert packing.bits(2410) == 2 * bits * math.ceil(2410 / slots)
        assert Packing(bits, clients, packed=False).bits(2410) == 2 * bits * 2410

    @settings(max_examples=25)
    @given(st.data())
    def test_slots_do_not_run_into_each_other(self, data: st.DataObject) -> None:
        """Sums of K vectors whose values are at the bound, against Python's integers; no encryption."""
        clients = data.draw(st.integers(1, 9))
        fraction, integer = data.draw(st.integers(0, 40)), data.draw(st.integers(1, 12))
        bits = data.draw(st.sampled_from([128, 256]))
        packed = data.draw(st.booleans())
        packing = Packing(bits, clients, fraction, integer, packed)
        most = packing.offset - 1
        length = data.draw(st.integers(1, 2 * packing.slots + 1))
        one = st.one_of(st.sampled_from([-most, 0, most]), st.integers(-most, most))
        vectors = data.draw(
            st.lists(st.lists(one, min_size=length, max_size=length), min_size=clients, max_size=clients)
        )
        terms = data.draw(st.integers(1, clients))
        plaintexts = [packing.plaintexts([value / 2**fraction for value in vector]) for vector in vectors[:terms]]
        assert {len(row) for row in plaintexts} == {packing.ciphertexts(length)}
        totals = [sum(column) for column in zip(*plaintexts, strict=True)]
        assert max(totals) < 2 ** (bits - 1)  # which every modulus of so many bits exceeds
        sums = packing.sums(totals, length, terms).view(np.int64).tolist()
        assert sums == [sum(column) for column in zip(*vectors[:terms], strict=True)]

    def test_the_bound(self) -> None:
        packing = Packing(1024, 3, fraction_bits=2, integer_bits=4)
        assert packing.sums(packing.plaintexts([7.75, -7.75]), 2, 1).view(np.int64).tolist() == [31, -31]
        for value in (7.9, -8.0, 1e6):
            with pytest.raises(Infeasible, match=r"overflows: 4 integer bits, .* below 8; raise integer_bits"):
                packing.plaintexts([0.0, value])
        for value in (math.nan, math.inf):
            with pytest.raises(Infeasible, match="not finite"):
                packing.plaintexts([value])
        with pytest.raises(Infeasible, match="overflows"):
            packing.plaintexts([1e300])

    def test_no_room(self) -> None:
        with pytest.raises(Infeasible, match=r"32 bits holds plaintexts of 31, and a value takes 42 bits: 32 fraction"):
            Packing(32, clients=4)
        with pytest.raises(Infeasible, match="4 for sums of 16"):
            Packing(16, clients=16, fraction_bits=8, integer_bits=4)
        assert Packing(16, clients=8, fraction_bits=8, integer_bits=4).slots == 1

    @pytest.mark.parametrize(
        ("parameters", "words"),
        [
            ({"clients": 0}, "0 clients"),
            ({"clients": 4, "fraction_bits": -1}, "-1 fraction bits"),
            ({"clients": 4, "integer_bits": 0}, "0 integer bits"),
            ({"clients": 4, "fraction_bits": 55}, "takes 65 bits.*at most 64"),
        ],
    )
    def test_bad_parameters(self, parameters: dict[str, Any], words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            Packing(2048, **parameters)

    def test_widest_slots(self) -> None:
        packing = Packing(1024, clients=1, fraction_bits=56, integer_bits=8)
        values = [127.5, -127.5, 2.0**-50, 0.0]
        assert packing.ring.decode(packing.sums(packing.plaintexts(values), 4, 1)).tolist() == values

    def test_plaintexts_of_something_else(self) -> None:
        packing = Packing(1024, clients=4)
        with pytest.raises(Infeasible, match="no sum of vectors"):
            packing.sums([2**1020], 3, 1)


class TestVectors:
    @settings(max_examples=20)
    @given(
        st.sampled_from([(TOY, 16), (256, 32), (1024, 32)]),
        st.booleans(),
        st.lists(st.lists(st.floats(-127, 127), min_size=7, max_size=7), min_size=1, max_size=4),
    )
    def test_sums_are_those_of_rounded_values(
        self, size: tuple[int, int], packed: bool, vectors: list[list[float]]
    ) -> None:
        bits, fraction = size
        packing, key = Packing(bits, 4, fraction, packed=packed), key_of(bits)
        sent = [encrypt(vector, key, packing, named_bytes("v", index)) for index, vector in enumerate(vectors)]
        total = decrypt(add(sent), key)
        exact = [sum(rounded(value, fraction) for value in column) for column in zip(*vectors, strict=True)]
        assert [Fraction(value) for value in total] == exact
        assert add(sent).terms == len(vectors)

    @pytest.mark.parametrize("packed", [True, False])
    def test_ciphertexts_are_those_of_phe(self, packed: bool) -> None:
        """With and without the private key: ``(n + 1)^m r^n``, for the same r."""
        key, packing = key_of(1024), Packing(1024, 2, packed=packed)
        public, values = key.public_key, np.linspace(-3, 3, 5)
        one = encrypt(values, key, packing, named_bytes("same"))
        other = encrypt(values, public, packing, named_bytes("same"))
        assert one.ciphertexts == other.ciphertexts and len(one.ciphertexts) == (1 if packed else 5)
        draw = named_bytes("same")
        for plaintext, ciphertext in zip(packing.plaintexts(values), one.ciphertexts, strict=True):
            r = 1 + int.from_bytes(draw(128 + 16)) % (public.n - 1)
            assert ciphertext == public.raw_encrypt(plaintext, r_value=r)
            square = public.nsquare
            assert ciphertext == pow(public.g, plaintext, square) * int(gmpy2.powmod(r, public.n, square)) % square
        assert np.array_equal(decrypt(one, key), np.linspace(-3, 3, 5))

    def test_encryption_is_fresh(self) -> None:
        key, packing = key_of(TOY), Packing(TOY, 2, fraction_bits=8)
        first, second = (encrypt(np.zeros(3), key, packing) for _ in range(2))
        assert first.ciphertexts != second.ciphertexts
        assert len(set(first.ciphertexts)) == 3 // packing.slots

    @pytest.mark.parametrize("bits", [TOY, 1024])
    @pytest.mark.parametrize("packed", [True, False])
    def test_what_travels_has_the_stated_size(self, bits: int, packed: bool) -> None:
        key, packing = key_of(bits), Packing(bits, 2, fraction_bits=8, packed=packed)
        sent = encrypt(np.ones(50), key, packing, named_bytes("size"))
        assert 8 * len(sent.serialised) == sent.bits == packing.bits(50)
        size = bits // 4
        found = [int.from_bytes(sent.serialised[at : at + size]) for at in range(0, len(sent.serialised), size)]
        assert tuple(found) == sent.ciphertexts

    def test_fractions_of_one_value_are_ciphertext_over_modulus_squared(self) -> None:
        for bits in (16, TOY, 1024):
            key, packing = key_of(bits), Packing(bits, 2, fraction_bits=8, integer_bits=4, packed=False)
            sent = encrypt(np.linspace(-1, 1, 20), key, packing, named_bytes("view"))
            exact = [ciphertext / key.public_key.nsquare for ciphertext in sent.ciphertexts]
            assert sent.fractions() == pytest.approx(exact, abs=2**-52)

    def test_fractions_of_packed_values_are_digits_of_the_ciphertext(self) -> None:
        key, packing = key_of(1024), Packing(1024, 2)
        sent = encrypt(np.zeros(40), key, packing, named_bytes("digits"))
        base, slots = 256 ** (256 // packing.slots), packing.slots
        for place, found in enumerate(sent.fractions()):
            rest = Fraction(sent.ciphertexts[place // slots], key.public_key.nsquare)
            for _ in range(place % slots):
                rest = rest * base % 1
            assert found == pytest.approx(int(rest * base) / base, abs=2**-52)

    @pytest.mark.parametrize("packed", [True, False])
    def test_fractions_are_uniform_whatever_is_encrypted(self, packed: bool) -> None:
        key, packing = key_of(256), Packing(256, 2, fraction_bits=16, packed=packed)
        for value in (0.0, 100.0):
            found = encrypt(np.full(4000, value), key, packing, named_bytes("law")).fractions()
            assert found.min() >= 0 and found.max() < 1
            counts, _ = np.histogram(found, bins=10, range=(0, 1))
            assert ((counts - 400) ** 2 / 400).sum() < 27.9  # chi-squared of 9 degrees, 0.1 %
            assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < 0.07

    def test_mixed_sums(self) -> None:
        key, other = key_of(TOY), generate_keys(TOY, toy=True)
        packing = Packing(TOY, 2, fraction_bits=8)
        one = encrypt(np.ones(3), key, packing)
        for vector, words in (
            (encrypt(np.ones(3), other, packing), "different keys"),
            (encrypt(np.ones(3), key, Packing(TOY, 2, fraction_bits=9)), "different packings"),
            (encrypt(np.ones(4), key, packing), "different lengths"),
        ):
            with pytest.raises(ConfigError, match=words):
                add([one, vector])
        with pytest.raises(ConfigError, match="no vectors"):
            add([])
        with pytest.raises(Infeasible, match=r"a sum of 3 encrypted vectors; .* guard bits for 2"):
            add([one, one, one])
        with pytest.raises(Infeasible, match="a sum of 4"):
            add([add([one, one]), add([one, one])])
        with pytest.raises(ConfigError, match="another key"):
            decrypt(one, other)
        with pytest.raises(ConfigError, match="packing for 256 bits, and a key of 64"):
            encrypt(np.ones(3), key, Packing(256, 2))
