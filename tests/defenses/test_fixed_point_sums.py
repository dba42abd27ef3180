"""Updates in fixed point, shared masks, additive shares and ciphertexts: what travels, and exact sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.defenses.tensors import fixed, of_seed, streams

from leakbench.defenses.base import Defense, Schedule
from leakbench.defenses.fixed_point import AdditiveSharing, FixedPointUpdate, InFixedPoint, MaskedPair
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.paillier import Paillier
from leakbench.defenses.pruning import RandomMask
from leakbench.errors import ConfigError, Infeasible
from leakbench.federated.message import EncryptedMessage, RingMessage
from leakbench.federated.paillier import Packing
from leakbench.federated.ring import Ring
from leakbench.federated.secure_aggregation import additive_shares
from leakbench.randomness import named_bytes
from leakbench.theory.protection_bits import (
    index_bits,
    mask_bits,
    paillier_bits,
    paillier_slots,
    plain_bits,
    sharing_bits,
    sparse_bits,
)


def mean_of(defense: Defense, gradient: torch.Tensor, clients: int) -> torch.Tensor:
    message = defense.protect_update(fixed(gradient, [gradient.shape[1]]), streams(*range(len(gradient))))
    return defense.aggregate(message, clients)


def toy(clients: int, **parameters: Any) -> Paillier:
    return Paillier(**{"key_bits": 128, "toy": True, "clients": clients, **parameters})


class TestExactSums:
    """Claim: encryption and shares cost no utility against the same fixed point."""

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("fraction_bits", [20, 32])
    def test_all_have_the_mean_of_fixed_point(self, dtype: torch.dtype, fraction_bits: int) -> None:
        gradient = of_seed(4, 60).to(dtype)
        bits = {"fraction_bits": fraction_bits}
        wanted = mean_of(FixedPointUpdate(clients=2, **bits), gradient, 2)
        assert wanted.shape == (2, 60) and wanted.dtype == dtype
        unit = 2.0**-fraction_bits
        rounded = (gradient.double() / unit).round() * unit
        assert torch.equal(wanted, rounded.unflatten(0, (2, 2)).mean(dim=1).to(dtype))
        assert float((wanted.double() - gradient.double().unflatten(0, (2, 2)).mean(dim=1)).abs().max()) <= 1.1 * (
            max(unit / 2, 1e-7 if dtype == torch.float32 else 0)
        )
        others: list[Defense] = [
            MaskedPair(bound=0.25, **bits),
            MaskedPair(bound=30.0, **bits),
            AdditiveSharing(clients=2, **bits),
            toy(2, **bits),
            toy(2, packed=False, **bits),
            toy(3, **bits),
        ]
        for defense in others:
            assert torch.equal(mean_of(defense, gradient, 2), wanted), defense

    @pytest.mark.parametrize("clients", [1, 3, 5])
    def test_of_any_number_of_clients(self, clients: int) -> None:
        gradient = of_seed(2 * clients, 11)
        wanted = mean_of(FixedPointUpdate(clients=clients, fraction_bits=20), gradient, clients)
        assert torch.equal(mean_of(toy(clients, fraction_bits=20), gradient, clients), wanted)
        if clients > 1:
            assert torch.equal(mean_of(AdditiveSharing(clients=clients), gradient, clients), wanted)

    def test_real_keys(self) -> None:
        gradient = of_seed(2, 50)
        wanted = mean_of(FixedPointUpdate(clients=2), gradient, 2)
        assert torch.equal(mean_of(Paillier(key_bits=1024, clients=2), gradient, 2), wanted)

    def test_utility_loss_of_masks_in_float64(self) -> None:
        gradient = of_seed(2, 2000).double()
        found = mean_of(MaskedPair(bound=100.0), gradient, 2)
        assert float((found[0] - gradient.mean(dim=0)).abs().max()) <= 1e-9


class TestWhatTravels:
    @pytest.mark.parametrize("defense", [FixedPointUpdate(), MaskedPair(bound=0.5), AdditiveSharing(clients=3)])
    @pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
    def test_values_without_a_fixed_point_form(self, defense: InFixedPoint, bad: float) -> None:
        with pytest.raises(Infeasible, match=r"not finite|overflows"):
            defense.protect_update(fixed(torch.tensor([[0.0, bad]]), [2]), streams(0))

    def test_fixed_point_is_seen_as_it_is(self) -> None:
        gradient = of_seed(3, 40)
        message = FixedPointUpdate(fraction_bits=3).protect_update(fixed(gradient, [40]), streams(0, 1, 2))
        assert torch.equal(message.view(), (gradient * 8).round() / 8)
        assert message.bits == 64 * 40 and message.law is not None
        assert torch.equal(message.law.mean, message.view()) and bool(message.law.passing.all())

    def test_decimals_of_half_a_unit_go_to_even(self) -> None:
        message = FixedPointUpdate(fraction_bits=0).protect_update(
            fixed(torch.tensor([[0.5, 1.5, -0.5, -2.5]]), [4]), streams(0)
        )
        assert message.view().tolist() == [[0.0, 2.0, 0.0, -2.0]]

    def test_a_pair_shares_a_mask(self) -> None:
        gradient = of_seed(4, 5000)
        message = MaskedPair(bound=0.5).protect_update(fixed(gradient, [5000]), streams(0, 1, 2, 3))
        mask = message.view().double() - gradient.double()
        assert float(mask.abs().max()) <= 0.5 + 1e-6
        assert float((mask[0] + mask[1]).abs().max()) <= 1e-6 and float((mask[2] + mask[3]).abs().max()) <= 1e-6
        assert not torch.allclose(mask[0], mask[2], atol=1e-3)
        assert float(mask[0].mean()) == pytest.approx(0, abs=0.02)
        law = message.law
        assert law is not None and law.variance is not None and not law.normal
        assert float(law.variance[0, 0]) == pytest.approx(0.25 / 3, rel=1e-6)
        assert float(mask[0].var()) == pytest.approx(0.25 / 3, rel=0.05)

    def test_the_mask_covers_the_grid(self) -> None:
        """From -r on, below r: with two fraction bits and r = 1/2 the four values -1/2, -1/4, 0, 1/4."""
        defense = MaskedPair(bound=0.5, fraction_bits=2)
        message = defense.protect_update(fixed(torch.zeros(2, 400), [400]), streams(0, 1))
        assert message.view()[0].unique().tolist() == [-0.5, -0.25, 0.0, 0.25]
        assert torch.equal(message.view()[1], -message.view()[0])
        law = message.law
        assert law is not None and law.variance is not None
        assert law.mean[:, 0].tolist() == [-0.125, 0.125] and float(law.variance[0, 0]) == 0.078125  # 5 / 64

    def test_a_client_without_a_partner_masks_all_the_same(self) -> None:
        gradient = of_seed(3, 50)
        three = MaskedPair(bound=1).protect_update(fixed(gradient, [50]), streams(0, 1, 2)).view()
        one = MaskedPair(bound=1).protect_update(fixed(gradient[2:], [50]), streams(2)).view()
        assert torch.equal(three[2:], one)

    def test_shares_are_uniform_whatever_the_update(self) -> None:
        for value in (0.0, 3.0):
            message = AdditiveSharing(clients=3).protect_update(fixed(torch.full((1, 6000), value), [6000]), streams(0))
            assert isinstance(message, RingMessage) and message.shares.shape == (1, 3, 6000)
            for share in message.shares[0]:
                counts, _ = np.histogram(share / 2.0**64, bins=10, range=(0, 1))
                assert ((counts - 600) ** 2 / 600).sum() < 27.9  # chi-squared of 9 degrees, 0.1 %
            total = message.shares[0].sum(axis=0, dtype=np.uint64)
            assert set(total.tolist()) == {round(value * 2**20)}
            assert torch.equal(message.view()[0], torch.from_numpy(message.ring.decode(message.shares[0, 0])).float())

    @settings(max_examples=30)
    @given(st.integers(1, 6), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=5))
    def test_additive_shares(self, shares: int, values: list[int]) -> None:
        words = np.array(values, dtype=np.uint64)
        parts = additive_shares(words, shares, Ring(64, 20), named_bytes("shares"))
        assert [sum(column) % 2**64 for column in parts.T.tolist()] == values
        assert parts.shape == (shares, len(values))

    def test_no_shares(self) -> None:
        with pytest.raises(ConfigError, match="0 shares"):
            additive_shares(np.zeros(2, dtype=np.uint64), 0, Ring(64))

    @pytest.mark.parametrize("packed", [True, False])
    def test_the_server_sees_ciphertexts(self, packed: bool) -> None:
        gradient = of_seed(2, 30)
        message = toy(2, packed=packed).protect_update(fixed(gradient, [30]), streams(0, 1))
        assert isinstance(message, EncryptedMessage)
        view = message.view()
        assert view.shape == (2, 30) and view.dtype == gradient.dtype and bool(((view >= 0) & (view <= 1)).all())
        assert not torch.equal(view[0], view[1]) and message.law is None and message.marked is None
        if not packed:
            square = message.vectors[0].public.nsquare
            exact = [[c / square for c in vector.ciphertexts] for vector in message.vectors]
            assert torch.equal(view, torch.tensor(exact, dtype=torch.float64).float())

    def test_a_row_depends_on_its_stream_alone(self) -> None:
        gradient = of_seed(2, 9)
        for defense in (toy(2), AdditiveSharing(clients=2), MaskedPair(bound=1)):
            both = defense.protect_update(fixed(gradient, [9]), streams(0, 1)).view()
            again = defense.protect_update(fixed(gradient, [9]), streams(0, 1)).view()
            alone = defense.protect_update(fixed(gradient[:1], [9]), streams(0)).view()
            assert torch.equal(both, again) and torch.equal(both[:1], alone)


class TestBits:
    """The formulas against the messages."""

    D, K = 130, 3

    def message_bits(self, defense: Defense) -> int:
        gradient = of_seed(2, self.D)
        return defense.protect_update(fixed(gradient, [self.D]), streams(0, 1)).bits

    def test_noise_costs_none(self) -> None:
        assert self.message_bits(GaussianNoise(scale=0.1)) == plain_bits(self.D) == 32 * self.D

    @pytest.mark.parametrize("packed", [True, False])
    @pytest.mark.parametrize("key_bits", [128, 256])
    def test_ciphertexts(self, key_bits: int, packed: bool) -> None:
        slots = paillier_slots(key_bits, self.K) if packed else 1
        assert slots == Packing(key_bits, self.K, packed=packed).slots
        found = self.message_bits(toy(self.K, key_bits=key_bits, packed=packed))
        assert found == paillier_bits(self.D, key_bits, slots) == 2 * key_bits * math.ceil(self.D / slots)

    @pytest.mark.parametrize("clients", [2, 3, 10])
    def test_shares(self, clients: int) -> None:
        assert (
            self.message_bits(AdditiveSharing(clients=clients))
            == sharing_bits(self.D, clients)
            == 64 * self.D * (clients)
        )

    @pytest.mark.parametrize("bound", [0.1, 0.5, 3.0])
    def test_masks(self, bound: float) -> None:
        found = self.message_bits(MaskedPair(bound=bound)) - 64 * self.D
        assert found == math.ceil(mask_bits(self.D, bound)) and mask_bits(self.D, 0.5) == 32 * self.D

    @pytest.mark.parametrize("keep", [0.001, 0.5, 0.9, 1.0])
    def test_sparse_updates(self, keep: float) -> None:
        """What is kept is random, and bits are affine in it in each of the two cases."""
        d = 4000
        message = RandomMask(probability=1 - keep, positions="seed").protect_update(
            fixed(of_seed(1, d), [d]), streams(0)
        )
        assert message.marked is not None
        kept = d - int(message.marked.sum())
        assert message.bits == pytest.approx(sparse_bits(d, kept / d), rel=1e-12)
        assert message.bits == min(kept * (32 + 12), 32 * kept + 64)
        assert index_bits(d) == 12 and index_bits(1) == 1


class TestRescaledMask:
    def test_is_right_on_average(self, fixed_steps: Callable[..., Any]) -> None:
        gradient = of_seed(1, 12).expand(4000, -1)
        steps = fixed_steps(gradient, gradient)
        plain, scaled = (
            RandomMask(probability=0.4, rescale=rescale).protect_update(steps, streams(*range(4000)))
            for rescale in (False, True)
        )
        assert torch.equal(scaled.view(), plain.view() * (1 / (1 - 0.4)))
        assert (plain.gain, scaled.gain) == (1, 1 / (1 - 0.4))
        assert plain.marked is not None and scaled.marked is not None and torch.equal(plain.marked, scaled.marked)
        error = (scaled.view().mean(dim=0) - gradient[0]).abs()
        assert bool((error <= 5 * gradient[0].abs() * (0.4 / 0.6 / 4000) ** 0.5).all())

    def test_masks_differ_by_client_and_round(self) -> None:
        steps = fixed(torch.ones(2, 100), [100])
        rounds = [RandomMask(probability=0.5).protect_update(steps, streams(0, 1).child("step", t)) for t in (0, 1)]
        kept = [message.view() != 0 for message in rounds]
        assert not torch.equal(kept[0][0], kept[0][1]) and not torch.equal(kept[0], kept[1])

    def test_nothing_left(self) -> None:
        with pytest.raises(ValidationError, match="rescale divides by 1 - probability, which is 0"):
            RandomMask(probability=1, rescale=True)
        assert RandomMask(probability=0.5).parameters() == {"probability": 0.5}


class TestClients:
    @pytest.mark.parametrize(
        ("defense", "words"),
        [
            (FixedPointUpdate(clients=3), "'fixed_point' with clients 3 sums no more"),
            (toy(3), "'paillier' with clients 3 sums no more"),
            (AdditiveSharing(clients=3), "'additive_sharing' is for 3 clients, and there are 4"),
            (MaskedPair(bound=1), "'masked_pair' is for 2 clients, and there are 4"),
        ],
    )
    def test_too_many(self, defense: Defense, words: str) -> None:
        with pytest.raises(Infeasible, match=words):
            mean_of(defense, of_seed(4, 5), 4)

    def test_a_modulus_without_room(self) -> None:
        with pytest.raises(Infeasible, match="a modulus of 32 bits holds plaintexts of 31"):
            mean_of(toy(2, key_bits=32), of_seed(2, 5), 2)
        with pytest.raises(Infeasible, match="overflows: 2 integer bits"):
            mean_of(toy(2, integer_bits=2), 10 * torch.ones(2, 5), 2)

    @pytest.mark.parametrize(
        ("cls", "parameters", "words"),
        [
            (Paillier, {"clients": 2, "key_bits": 512}, "are called toy"),
            (Paillier, {"clients": 2, "key_bits": 2048, "toy": True}, "from 16 to 1016"),
            (Paillier, {"clients": 0}, "greater than or equal to 1"),
            (MaskedPair, {"bound": 1e-12}, r"from 2\.32831e-10 to 1\.07374e\+09"),
            (MaskedPair, {"bound": 2e9}, "bound is 2e"),
            (AdditiveSharing, {"clients": 1}, "greater than or equal to 2"),
            (FixedPointUpdate, {"fraction_bits": 63}, "less than or equal to 62"),
        ],
    )
    def test_parameters_outside_their_ranges(self, cls: type[Defense], parameters: dict[str, Any], words: str) -> None:
        with pytest.raises(ValidationError, match=words):
            cls(**parameters)

    @pytest.mark.parametrize("defense", [toy(2), FixedPointUpdate(), MaskedPair(bound=1), AdditiveSharing(clients=2)])
    def test_no_differential_privacy(self, defense: Defense) -> None:
        statement = defense.privacy(Schedule(10))
        assert statement.epsilon is None and statement.basis.startswith(("no guarantee", "no differential privacy"))


def test_randomisation_by_variance(fixed_steps: Callable[..., Any]) -> None:
    """Noise of a given variance is gaussian_noise whose scale is its root; it states its law."""
    gradient = of_seed(2, 7)
    message = GaussianNoise(scale=math.sqrt(4.8e-4)).protect_update(fixed_steps(gradient, gradient), streams(0, 1))
    law = message.law
    assert law is not None and law.variance is not None and law.normal
    assert law.variance.flatten().tolist() == pytest.approx([4.8e-4] * 14)
    assert torch.equal(law.mean, gradient)
