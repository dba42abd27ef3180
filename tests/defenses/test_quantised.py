"""signSGD and QSGD against loops, their bits, and what they do on average."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.defenses.tensors import fixed, of_seed, streams

from leakbench.defenses.base import Defense, Schedule
from leakbench.defenses.quantised import QSGD, SignSGD
from leakbench.federated.message import CodedMessage

SIZES = [30, 7, 1]


class TestSigns:
    def test_zero_is_positive_and_a_value_takes_one_bit(self) -> None:
        gradient = torch.tensor([[0.5, -0.0, 0.0, -3.0], [-1e-30, 2.0, -2.0, 0.0]])
        message = SignSGD().protect_update(fixed(gradient, [3, 1]), streams(0, 1))
        assert message.view().tolist() == [[1, 1, 1, -1], [-1, 1, -1, 1]]
        assert message.bits == 4 and message.law is None

    def test_the_mean_magnitude_of_every_tensor(self) -> None:
        gradient = torch.tensor([[0.5, -1.5, 4.0, -3.0]])
        message = SignSGD(scale="mean_abs").protect_update(fixed(gradient, [3, 1]), streams(0))
        assert message.view().tolist() == [[2, -2, 2, -3]]
        assert message.bits == 4 + 2 * 32

    @pytest.mark.parametrize("scale", ["none", "mean_abs"])
    def test_a_step_of_another_size(self, scale: str) -> None:
        """The same signs and the same bits: the server knows the factor."""
        steps = fixed(of_seed(3, 6), [4, 2])
        plain, small = (SignSGD(**{"scale": scale, "factor": factor}) for factor in (1.0, 0.01))
        messages = [defense.protect_update(steps, streams(0, 1, 2)) for defense in (plain, small)]
        torch.testing.assert_close(messages[1].view(), 0.01 * messages[0].view())
        torch.testing.assert_close(small.aggregate(messages[1], 3), 0.01 * plain.aggregate(messages[0], 3))
        assert messages[0].bits == messages[1].bits and "factor" not in plain.parameters()

    def test_majority_and_ties(self) -> None:
        signs = torch.tensor([[1.0, 1.0, -1.0], [1.0, -1.0, -1.0], [-1.0, 1.0, -1.0], [-1.0, 1.0, -1.0]])
        assert SignSGD().aggregate(CodedMessage(signs, 3), 4).tolist() == [[0, 1, -1]]
        assert SignSGD().aggregate(CodedMessage(signs[:3], 3), 3).tolist() == [[1, 1, -1]]
        assert SignSGD().aggregate(CodedMessage(signs, 3), 2).tolist() == [[1, 0, -1], [-1, 1, -1]]

    def test_the_majority_ignores_how_large_a_client_is(self) -> None:
        sent = torch.tensor([[9.0], [-1.0], [-2.0]])
        assert SignSGD(scale="mean_abs").aggregate(CodedMessage(sent, 1), 3).tolist() == [[-4]]

    @given(st.integers(0, 500), st.integers(1, 6))
    def test_aggregate_against_a_loop(self, seed: int, clients: int) -> None:
        gradient = of_seed(2 * clients, 5, seed)
        message = SignSGD().protect_update(fixed(gradient, [5]), streams(*range(2 * clients)))
        found = SignSGD().aggregate(message, clients).tolist()
        for server in range(2):
            for place in range(5):
                own = gradient[server * clients : (server + 1) * clients, place].tolist()
                votes = sum(1 if value >= 0 else -1 for value in own)
                assert found[server][place] == (votes > 0) - (votes < 0)


def literal(gradient: list[float], levels: int, released: bool, draws: list[float]) -> list[float]:
    """One coordinate of one tensor after the other."""
    s = levels - 1 if released else levels
    norm = max(map(abs, gradient)) if released else math.sqrt(sum(value**2 for value in gradient))
    found = []
    for value, draw in zip(gradient, draws, strict=True):
        exact = s * abs(value) / norm if norm else 0.0
        low = math.floor(exact)
        level = low + 1 if draw < exact - low else low
        found.append(norm / s * level * math.copysign(1, value))
    return found


class TestQSGD:
    @pytest.mark.parametrize("form", ["l2", "as_released"])
    @pytest.mark.parametrize("levels", [2, 3, 16, 255])
    def test_against_a_loop(self, form: str, levels: int) -> None:
        gradient = of_seed(3, 38).double()
        gradient[2, 30:37] = 0
        message = QSGD(levels=levels, form=form).protect_update(fixed(gradient, SIZES), streams(0, 1, 2))
        draws = streams(0, 1, 2).uniform(38)
        for row in range(3):
            first = 0
            for size in SIZES:
                part = slice(first, first + size)
                own = literal(gradient[row, part].tolist(), levels, form == "as_released", draws[row, part].tolist())
                assert message.view()[row, part].tolist() == pytest.approx(own, abs=1e-9)
                first += size

    @given(st.integers(0, 500), st.integers(2, 40), st.sampled_from(["l2", "as_released"]))
    def test_the_mean_over_all_draws_is_the_gradient(self, seed: int, levels: int, form: str) -> None:
        """Exactly: a value has two neighbours, and the law's variance is that of choosing the upper one so often."""
        gradient = of_seed(1, 12, seed).double()
        law = QSGD(levels=levels, form=form).protect_update(fixed(gradient, [12]), streams(0)).law
        assert law is not None and law.variance is not None and not law.normal
        norm = float(gradient.norm() if form == "l2" else gradient.abs().max())
        unit = norm / (levels if form == "l2" else levels - 1)
        columns = (each[0].tolist() for each in (gradient, law.mean, law.variance))
        for value, mean, variance in zip(*columns, strict=True):
            low = math.floor(abs(value) / unit) * unit
            up = (abs(value) - low) / unit
            assert mean == value
            assert math.copysign((1 - up) * low + up * (low + unit), value) == pytest.approx(value)
            assert variance == pytest.approx(unit**2 * up * (1 - up), abs=1e-9)

    def test_the_mean_and_variance_of_many_messages(self) -> None:
        many = 5000
        gradient = of_seed(1, 12)
        steps = fixed(gradient.expand(many, -1), [8, 4])
        message = QSGD(levels=3).protect_update(steps, streams(*range(many)))
        law = message.law
        assert law is not None and law.variance is not None
        variance = law.variance[0].double()
        error = (message.view().double().mean(dim=0) - gradient[0]).abs()
        assert bool((error < 5 * (variance / many).sqrt() + 1e-5).all())
        torch.testing.assert_close(message.view().double().var(dim=0), variance, rtol=0.3, atol=1e-6)

    @pytest.mark.parametrize(
        ("levels", "form", "per_value"),
        [
            (1, "l2", 2),
            (2, "l2", 3),
            (3, "l2", 3),
            (4, "l2", 4),
            (255, "l2", 9),
            (2, "as_released", 2),
            (256, "as_released", 9),
        ],
    )
    def test_bits_of_the_fixed_length_code(self, levels: int, form: str, per_value: int) -> None:
        message = QSGD(levels=levels, form=form).protect_update(fixed(of_seed(2, 38), SIZES), streams(0, 1))
        assert message.bits == 38 * per_value + 3 * 32

    @pytest.mark.parametrize("wrong", [{"levels": 0}, {"levels": 1, "form": "as_released"}], ids=str)
    def test_parameters_outside_their_ranges(self, wrong: dict[str, object]) -> None:
        with pytest.raises(ValidationError):
            QSGD(**wrong)


@pytest.mark.parametrize("defense", [SignSGD(), QSGD(levels=4)], ids=repr)
def test_no_guarantee(defense: Defense) -> None:
    statement = defense.privacy(Schedule(10))
    assert statement.epsilon is None and "no guarantee" in statement.basis
