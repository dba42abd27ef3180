"""Words, flips and votes against strings of digits, and what flips do on average."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from leakbench.federated.fixed_point import FixedPoint, unbiased_mean, vote
from leakbench.randomness import Streams
from leakbench.theory.bit_votes import least_ones

FORM = FixedPoint()
WORDS = st.integers(-32767, 32767)


def streams(n: int, name: str = "words") -> Streams:
    return Streams([(name, index) for index in range(n)])


def text(word: int, width: int = 16) -> str:
    """The digits of a word."""
    return format(word & (2**width - 1), f"0{width}b")


def words_of(*integers: int) -> torch.Tensor:
    """Words of integers, ``[R, 1]``."""
    words, saturated = FORM.encode(torch.tensor(integers, dtype=torch.float64)[:, None] / 10**4)
    assert not saturated.any()
    return words


def literal_words(integers: list[int], width: int) -> list[str]:
    return ["01"[integer < 0] + format(abs(integer), f"0{width - 1}b") for integer in integers]


def literal_vote(words: list[str], keep: float) -> int:
    digits = ""
    for column in zip(*words, strict=True):
        digits += "0" if column.count("1") / (keep * len(words)) < 0.5 else "1"
    magnitude = int(digits[1:], 2)
    return -magnitude if digits[0] == "1" else magnitude


def voted(integers: tuple[int, ...], keep: float) -> int:
    return int(FORM.integers(vote(words_of(*integers), least_ones(len(integers), keep))))


class TestWords:
    @pytest.mark.parametrize(
        ("value", "decimals", "digits"),
        [
            (2.781314, 4, "0110110010100101"),
            (-0.1234, 4, "1000010011010010"),
            (-3.2767, 4, "1111111111111111"),
            (3.2768, 4, "0111111111111111"),
            (-99.0, 4, "1111111111111111"),
            (float("inf"), 4, "0111111111111111"),
            (float("nan"), 4, "0000000000000000"),
            (0.32767, 5, "0111111111111111"),
            (0.00004, 4, "0000000000000000"),
            (-0.00004, 4, "0000000000000000"),
        ],
    )
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_by_hand(self, value: float, decimals: int, digits: str, dtype: torch.dtype) -> None:
        words, saturated = FixedPoint(decimals).encode(torch.tensor([value], dtype=dtype))
        assert words.dtype == torch.int16 and text(int(words)) == digits
        assert bool(saturated) == (abs(value) * 10**decimals > 32767.5)

    def test_the_input_is_left_alone(self) -> None:
        values = torch.tensor([5.0, torch.nan])
        FORM.encode(values)
        assert values[0] == 5 and values[1].isnan()

    @settings(max_examples=40)
    @given(integers=st.lists(WORDS, min_size=1, max_size=30), decimals=st.integers(0, 6))
    def test_what_is_encoded_decodes(self, integers: list[int], decimals: int) -> None:
        form = FixedPoint(decimals)
        values = torch.tensor(integers, dtype=torch.float64).div(10**decimals).float()
        words, saturated = form.encode(values)
        assert form.integers(words).tolist() == integers and not saturated.any()
        assert torch.equal(form.decode(words), values)
        assert [text(word) for word in words.tolist()] == literal_words(integers, 16)

    @settings(max_examples=40)
    @given(width=st.integers(2, 16), values=st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=20))
    def test_every_width(self, width: int, values: list[float]) -> None:
        form = FixedPoint(2, width)
        limit = 2 ** (width - 1) - 1
        products = [float(np.float32(value) * np.float32(100)) for value in values]
        expected = [max(-limit, min(limit, round(product))) for product in products]
        words, saturated = form.encode(torch.tensor(values))
        assert [text(word, width) for word in words.tolist()] == literal_words(expected, width)
        assert form.integers(words).tolist() == expected
        assert saturated.tolist() == [abs(round(product)) > limit for product in products]

    def test_the_nearest_float16_is_another_thing(self) -> None:
        assert text(int(torch.tensor(2.781314).half().view(torch.int16))) == "0100000110010000"


class TestReleasedEncoder:
    @staticmethod
    def literal(value: float, decimals: int) -> str:
        """What the public code writes, by its rules: rounding, truncation, no bound, a sign over the first digit."""
        integer = int(round(value, decimals) * 10**decimals)
        digits = bin(abs(integer))[2:].zfill(16)
        return digits if integer >= 0 else "1" + digits[1:]

    @pytest.mark.parametrize(
        ("decimals", "count", "first"), [(4, 2289, [3, 6, 12, 24, 29, 48]), (5, 2680, [7, 13, 14, 15, 26, 28])]
    )
    def test_truncation_loses_a_unit(self, decimals: int, count: int, first: list[int]) -> None:
        integers = torch.arange(1, 32768)
        values = integers.double() / 10**decimals
        form = FixedPoint(decimals)
        wrong = integers[form.integers(form.encode_released(values)[0]) != integers]
        assert len(wrong) == count and wrong[:6].tolist() == first
        assert torch.equal(form.integers(form.encode(values)[0]).long(), integers)

    @given(value=st.floats(-30, 30, width=32), decimals=st.sampled_from([4, 5]))
    def test_first_digits(self, value: float, decimals: int) -> None:
        words, beyond = FixedPoint(decimals).encode_released(torch.tensor([value]))
        expected = self.literal(value, decimals)
        assert text(int(words)) == expected[:16]
        assert bool(beyond) == (abs(int(round(value, decimals) * 10**decimals)) > 32767)

    @pytest.mark.parametrize(
        ("value", "decoded", "literal"),
        [
            (3.2767, 32767, "0111111111111111"),
            (3.2768, 0, "1000000000000000"),  # minus zero
            (4.0, -7232, "1001110001000000"),
            (-4.0, -7232, "1001110001000000"),  # loses 2^15 of its magnitude
            (6.5535, -32767, "1111111111111111"),
            (6.5536, 0, "10000000000000000"),  # 17 digits
            (7.0, -2232, "10001000101110000"),  # the first 16: 1000100010111000
        ],
    )
    def test_beyond_the_range(self, value: float, decoded: int, literal: str) -> None:
        words, beyond = FORM.encode_released(torch.tensor([value], dtype=torch.float64))
        assert self.literal(value, 4) == literal
        assert int(FORM.integers(words)) == decoded and bool(beyond) == (abs(value) > 3.2767)


class TestFlips:
    @pytest.mark.parametrize(
        ("integer", "positions", "flipped"),
        [
            (27813, (2,), 19621),
            (27813, (3,), 31909),
            (27813, (2, 3), 23717),
            (-1234, (2,), -9426),
            (-1234, (3,), -5330),
            (-1234, (2, 3), -13522),
            (-1234, (0,), 1234),
        ],
    )
    def test_by_hand(self, integer: int, positions: tuple[int, ...], flipped: int) -> None:
        words = words_of(integer)
        assert FORM.flip(words, positions, 0.0, streams(1)).item() == words_of(flipped).item()
        assert FORM.flip(words, positions, 1.0, streams(1)).item() == words.item()

    def test_each_masked_bit_flips_by_itself(self) -> None:
        n, d, p = 3, 40_000, 0.9
        words = torch.randint(-(2**15), 2**15, (n, d), generator=torch.Generator().manual_seed(0)).to(torch.int16)
        changed = FORM.flip(words, (0, 2, 3), p, streams(n)) ^ words
        bits = torch.stack([changed >> (15 - position) & 1 for position in range(16)]).double()
        rates = bits.mean(dim=2)
        assert rates[[1, *range(4, 16)]].eq(0).all()
        error = (p * (1 - p) / d) ** 0.5
        assert (rates[[0, 2, 3]] - (1 - p)).abs().max() < 4.5 * error
        correlations = torch.corrcoef(bits[[0, 2, 3]].flatten(1)).fill_diagonal_(0)
        assert correlations.abs().max() < 4.5 / (n * d) ** 0.5
        assert torch.corrcoef(torch.stack([bits[2, 0, :-1], bits[2, 0, 1:]]))[0, 1].abs() < 4.5 / d**0.5

    def test_a_row_depends_on_its_stream_alone(self) -> None:
        words = torch.arange(4 * 500, dtype=torch.int16).view(4, 500)
        together = FORM.flip(words, (2, 3), 0.9, streams(4))
        for index in range(4):
            alone = FORM.flip(words[index : index + 1], (2, 3), 0.9, Streams([("words", index)]))
            assert torch.equal(alone[0], together[index])
        assert not torch.equal(words, together)

    def test_nothing_to_flip(self) -> None:
        assert FORM.flip(torch.zeros(2, 0, dtype=torch.int16), (2, 3), 0.9, streams(2)).shape == (2, 0)
        words = torch.ones(2, 5, dtype=torch.int16)
        assert torch.equal(FORM.flip(words, (), 0.9, streams(2)), words)

    @pytest.mark.parametrize("positions", [(2, 3), (0,), (0, 2, 15)])
    def test_law(self, positions: tuple[int, ...]) -> None:
        """All ways to flip, weighted by their probabilities."""
        words, keep = words_of(0, 5, -1234, 27813, -32767, 8191), 0.85
        mean, second = torch.zeros(6, 1, dtype=torch.float64), torch.zeros(6, 1, dtype=torch.float64)
        for flips in itertools.product((False, True), repeat=len(positions)):
            probability = math.prod(1 - keep if flip else keep for flip in flips)
            chosen = [position for position, flip in zip(positions, flips, strict=True) if flip]
            value = FORM.decode(FORM.flip(words, chosen, 0.0, streams(6))).double()
            mean += probability * value
            second += probability * value.square()
        found = FORM.flip_law(words, positions, keep)
        torch.testing.assert_close(found[0].double(), mean, rtol=1e-5, atol=1e-7)
        torch.testing.assert_close(found[1].double(), second - mean.square(), rtol=1e-4, atol=1e-7)


class TestVotes:
    @pytest.mark.parametrize(
        ("integers", "keep", "result"),
        [
            ((27813, 27813, 27813, 19621), 0.98, 27813),
            ((127, 127, 128, 128), 0.98, 255),
            ((1, 2, 4), 0.98, 0),
            ((3, 5, 6), 0.98, 7),
            ((7, 8, 9), 0.98, 9),
            ((100, 200, 300, 400), 0.98, 492),
            ((-5, 5, 5, -5), 0.98, -5),
            ((-1000,) * 8 + (1000,) * 12, 0.8, -1000),
            ((-1000,) * 8 + (1000,) * 12, 0.98, 1000),
            ((19621,) * 10 + (27813,) * 10, 0.98, 27813),
            ((19621,) * 11 + (27813,) * 9, 0.98, 19621),
            ((19621,) * 11 + (27813,) * 9, 0.8, 27813),
            ((19621,) * 12 + (27813,) * 8, 0.8, 27813),
            ((31909,) * 8 + (27813,) * 12, 0.98, 27813),
            ((31909,) * 8 + (27813,) * 12, 0.8, 31909),
            ((31909,) * 10 + (27813,) * 10, 0.98, 31909),
        ],
    )
    def test_by_hand(self, integers: tuple[int, ...], keep: float, result: int) -> None:
        assert voted(integers, keep) == result == literal_vote(literal_words(list(integers), 16), keep)

    @settings(max_examples=40)
    @given(
        integers=st.lists(st.lists(WORDS, min_size=3, max_size=3), min_size=1, max_size=40),
        keep=st.sampled_from([0.51, 0.8, 0.9, 0.95, 0.98, 1.0]),
    )
    def test_against_digits(self, integers: list[list[int]], keep: float) -> None:
        words = FORM.encode(torch.tensor(integers, dtype=torch.float64) / 10**4)[0]
        found = FORM.integers(vote(words, least_ones(len(integers), keep))).tolist()
        columns = [literal_words(list(column), 16) for column in zip(*integers, strict=True)]
        assert found == [literal_vote(column, keep) for column in columns]

    @given(integer=WORDS, clients=st.integers(1, 70), keep=st.floats(0.5001, 1))
    def test_identical_words_come_back(self, integer: int, clients: int, keep: float) -> None:
        assert voted((integer,) * clients, keep) == integer

    @pytest.mark.parametrize("clients", [1, 2, 3, 4, 7, 8, 9])
    def test_every_count_and_every_threshold(self, clients: int) -> None:
        """Coordinate c holds c ones in every bit."""
        words = torch.where(torch.arange(clients)[:, None] < torch.arange(clients + 1), -1, 0).to(torch.int16)
        for least in range(1, clients + 3):
            expected = torch.where(torch.arange(clients + 1) >= least, -1, 0).to(torch.int16)
            assert torch.equal(vote(words, least), expected)

    def test_servers_side_by_side(self) -> None:
        words = torch.randint(-(2**15), 2**15, (3, 5, 40), generator=torch.Generator().manual_seed(1)).to(torch.int16)
        before = words.clone()
        together = vote(words, 3)
        assert torch.equal(together, torch.stack([vote(server, 3) for server in words]))
        assert torch.equal(words, before)


class TestUnbiasedMean:
    @settings(max_examples=40)
    @given(
        integers=st.lists(st.lists(WORDS, min_size=2, max_size=2), min_size=1, max_size=12),
        positions=st.sets(st.integers(0, 15), max_size=4).map(tuple),
    )
    def test_without_flips_it_is_the_mean(self, integers: list[list[int]], positions: tuple[int, ...]) -> None:
        values = torch.tensor(integers, dtype=torch.float64)
        words = FORM.encode(values / 10**4)[0]
        expected = (values.mean(dim=0) / 10**4).float()
        torch.testing.assert_close(unbiased_mean(words, FORM, positions, 1.0), expected, rtol=1e-6, atol=1e-8)

    @pytest.mark.parametrize("positions", [(2, 3), (1, 2, 3), (0,), (0, 2)])
    def test_over_all_ways_to_flip_it_is_unbiased(self, positions: tuple[int, ...]) -> None:
        """Two clients; every pattern of flips with its probability."""
        words, keep = words_of(-1234, 27813), 0.8
        mean = 0.0
        for flips in itertools.product((False, True), repeat=2 * len(positions)):
            probability = math.prod(1 - keep if flip else keep for flip in flips)
            rows = [flips[: len(positions)], flips[len(positions) :]]
            masks = [[place for place, flip in zip(positions, row, strict=True) if flip] for row in rows]
            sent = torch.cat(
                [FORM.flip(word[None], mask, 0.0, streams(1)) for word, mask in zip(words, masks, strict=True)]
            )
            mean += probability * float(unbiased_mean(sent, FORM, positions, keep))
        assert mean == pytest.approx((27813 - 1234) / 2 / 10**4, rel=1e-6)

    def test_by_the_formula(self) -> None:
        """Positive values: masked bits by ``(count / R - (1 - p)) / (2 p - 1)``, the others by their mean."""
        clients, keep, positions = 5, 0.9, (2, 3)
        values = torch.rand(clients, 50, generator=torch.Generator().manual_seed(2)) * 3
        words = FORM.flip(FORM.encode(values)[0], positions, keep, streams(clients))
        mask = FORM.mask(positions)
        expected = (words & ~mask).double().mean(dim=0)
        for position in positions:
            weight = FORM.mask([position])
            expected += weight * (((words & weight) != 0).sum(dim=-2) / clients - (1 - keep)) / (2 * keep - 1)
        found = unbiased_mean(words, FORM, positions, keep)
        torch.testing.assert_close(found.double(), expected / 10**4, rtol=1e-5, atol=1e-6)

    def test_sampled(self) -> None:
        clients, d, keep = 20, 20_000, 0.8
        values = torch.full((clients, d), -0.01)
        words = FORM.flip(FORM.encode(values)[0], (2, 3), keep, streams(clients))
        found = unbiased_mean(words, FORM, (2, 3), keep)
        error = (keep * (1 - keep) * (0.8192**2 + 0.4096**2) / clients / d) ** 0.5 / (2 * keep - 1)
        assert float(found.mean()) == pytest.approx(-0.01, abs=4 * error)
        plain = FORM.decode(words).mean()
        assert abs(float(plain) + 0.01) > 100 * error  # flips make magnitudes larger


class TestTwosComplement:
    @given(st.lists(st.integers(-127, 127), min_size=1, max_size=20))
    def test_words_of_eight_bits_are_those_of_python(self, integers: list[int]) -> None:
        form = FixedPoint(0, 8, "twos_complement")
        words, saturated = form.encode(torch.tensor(integers, dtype=torch.float64))
        assert [text(word, 8) for word in words.tolist()] == [format(each % 256, "08b") for each in integers]
        assert form.integers(words).tolist() == integers and not saturated.any()

    def test_by_hand(self) -> None:
        """-0.1234 of sixteen bits; what is flipped in it; what is too large."""
        form = FixedPoint(negatives="twos_complement")
        words, saturated = form.encode(torch.tensor([-0.1234, 0.1234, -9.0]))
        assert text(int(words[0])) == "1111101100101110"
        torch.testing.assert_close(form.decode(words), torch.tensor([-0.1234, 0.1234, -3.2767]))
        assert saturated.tolist() == [False, False, True]
        flipped = words ^ form.mask([2])
        torch.testing.assert_close(form.decode(flipped[:2]), torch.tensor([-0.1234 - 0.8192, 0.1234 + 0.8192]))
        assert not form.shown(words[:2], (0, 2, 3)).any() and form.shown(flipped[:2], (0, 2, 3)).all()

    @given(st.integers(-127, 127), st.sets(st.integers(0, 7), min_size=1, max_size=3))
    def test_the_law_of_flips_by_enumeration(self, integer: int, positions: set[int]) -> None:
        form, keep = FixedPoint(0, 8, "twos_complement"), 0.8
        word, _ = form.encode(torch.tensor([float(integer)]))
        outcomes = []
        for bits in itertools.product([False, True], repeat=len(positions)):
            chosen = [place for place, bit in zip(sorted(positions), bits, strict=True) if bit]
            value = int(form.integers((word ^ form.mask(chosen)) & 255))
            outcomes.append((value, (1 - keep) ** len(chosen) * keep ** (len(positions) - len(chosen))))
        expected = sum(value * chance for value, chance in outcomes)
        variance = sum((value - expected) ** 2 * chance for value, chance in outcomes)
        mean, spread = form.flip_law(word, sorted(positions), keep)
        assert float(mean) == pytest.approx(expected, rel=1e-5, abs=1e-4)
        assert float(spread) == pytest.approx(variance, rel=1e-5)

    def test_the_vote_of_clients_who_differ_is_further_from_the_mean(self) -> None:
        """20 clients around means of as large a spread, no flips: the relative error is 0.98, of magnitudes 0.54."""
        draw = torch.Generator().manual_seed(0)
        means = 0.02 * torch.randn(1, 20000, generator=draw)
        for negatives, error in (("sign_magnitude", 0.543), ("twos_complement", 0.978)):
            values = means + 0.02 * torch.randn(20, 20000, generator=torch.Generator().manual_seed(1))
            form = FixedPoint(negatives=negatives)  # type: ignore[arg-type]
            voted = form.decode(vote(form.encode(values)[0], least_ones(20, 1.0)))
            distance = (voted - values.mean(dim=0)).norm() / values.mean(dim=0).norm()
            assert float(distance) == pytest.approx(error, abs=0.03)
