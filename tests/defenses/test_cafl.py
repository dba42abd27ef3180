"""CAFL: the perturbation, what is measured, and what the server decodes."""

from __future__ import annotations

import math

import pytest
import scipy.fft
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.defenses.tensors import fixed, of_seed, streams

from leakbench.defenses.base import Round, Schedule
from leakbench.defenses.cafl import CAFL, perturb, two_point, two_point_variance
from leakbench.randomness import generator
from leakbench.theory.sparse_recovery import dct, idct

FORMS = [
    {"block": 8},
    {"block": 8, "sensing": "gaussian"},
    {"form": "as_printed"},
    {"form": "as_released"},
]


def test_by_hand() -> None:
    factor, probability = two_point(2.0)
    assert (factor, 1 / factor, probability) == pytest.approx((1.3130353, 0.7615942, 0.4323324), abs=5e-8)


@given(st.floats(1e-3, 50))
def test_the_perturbation_is_unbiased_with_the_stated_variance(epsilon: float) -> None:
    factor, probability = two_point(epsilon)
    assert factor == pytest.approx((math.exp(epsilon) + 1) / (math.exp(epsilon) - 1))
    assert probability * factor + (1 - probability) / factor == pytest.approx(1, rel=1e-9)
    second = probability * factor**2 + (1 - probability) / factor**2
    assert second - 1 == pytest.approx(two_point_variance(epsilon), rel=1e-6, abs=1e-12)


@given(st.floats(0.1, 10), st.integers(0, 100))
def test_every_value_is_one_of_two(epsilon: float, seed: int) -> None:
    draw = generator("two points", seed)
    values = torch.randn(2, 50, generator=draw, dtype=torch.float64)
    draws = torch.rand(2, 50, generator=draw)
    sent = perturb(values, epsilon, draws)
    factor, probability = two_point(epsilon)
    for row in range(2):
        low, high = min(values[row].tolist()), max(values[row].tolist())
        for place in range(50):
            deviation = float(values[row, place]) - (low + high) / 2
            times = factor if float(draws[row, place]) < probability else 1 / factor
            assert float(sent[row, place]) == pytest.approx((low + high) / 2 + deviation * times)


def test_the_mean_of_many_draws() -> None:
    many = 4000
    values = torch.randn(1, 20, generator=generator("mean"))
    draws = torch.rand(many, 20, generator=generator("draws"))
    sent = perturb(values.expand(many, -1), 1.0, draws)
    centre = (values.max() + values.min()) / 2
    deviation = 5 * (two_point_variance(1.0) / many) ** 0.5 * (values[0] - centre).abs()
    assert bool(((sent.mean(dim=0) - values[0]).abs() <= deviation + 1e-5).all())


def test_what_is_sparse_is_recovered_and_the_rest_is_not() -> None:
    """Two blocks of 64 with four of 64 coefficients; a tensor of one value; hardly any perturbation."""
    spectrum = torch.zeros(2, 2, 64)
    spectrum[..., [1, 5, 6, 40]] = torch.tensor([3.0, -2.0, 1.5, 1.0])
    gradient = torch.cat([idct(spectrum).flatten(1), torch.tensor([[0.5], [-2.0]])], dim=1)
    steps = fixed(gradient, [128, 1])
    for sensing in ("dct_rows", "gaussian"):
        message = CAFL(epsilon=30, fraction=0.5, block=64, iterations=400, sensing=sensing).protect_update(
            steps, streams(0, 1)
        )
        error = (message.view() - gradient)[:, :128].norm(dim=1) / gradient[:, :128].norm(dim=1)
        assert bool((error < 0.03).all())
        assert message.bits == 32 * (32 + 32 + 1)
    dense = fixed(torch.randn(2, 129, generator=generator("dense")), [128, 1])
    sent = CAFL(epsilon=30, fraction=0.5, block=64).protect_update(dense, streams(0, 1)).view()
    assert float((sent - dense.gradient).norm() / dense.gradient.norm()) > 0.4


def test_as_printed_sends_a_contiguous_block_of_coefficients() -> None:
    """Four of ten coefficients: the first tensor's are 0 to 3, the second's 4 to 7, the third's 6 to 9."""
    gradient = of_seed(1, 30)
    for number, moved in ((0, 0), (1, 0), (0, 4)):
        sent = CAFL(epsilon=40, fraction=0.4, form="as_printed", round=moved).protect_update(
            fixed(gradient, [10, 10, 10]), streams(0)
        )
        assert sent.bits == 32 * 12
        for tensor in range(3):
            part = slice(10 * tensor, 10 * tensor + 10)
            expected = scipy.fft.dct(gradient[0, part].double().numpy(), norm="ortho")
            start = min((tensor + moved) % 3 * 4, 6)
            outside = [place for place in range(10) if not start <= place < start + 4]
            expected[outside] = 0
            found = scipy.fft.dct(sent.view()[0, part].double().numpy(), norm="ortho")
            assert found == pytest.approx(expected, abs=1e-5), (number, tensor)


def test_as_printed_perturbs_what_is_sent_alone() -> None:
    gradient = of_seed(1, 10)
    sent = CAFL(epsilon=1, fraction=0.4, form="as_printed").protect_update(fixed(gradient, [10]), streams(0)).view()
    exact = scipy.fft.dct(gradient[0].double().numpy(), norm="ortho")
    found = scipy.fft.dct(sent[0].double().numpy(), norm="ortho")
    assert found[4:] == pytest.approx([0] * 6, abs=1e-6)
    centre = (exact[:4].max() + exact[:4].min()) / 2
    times = (found[:4] - centre) / (exact[:4] - centre)
    factor, _ = two_point(1)
    assert all(min(abs(each - factor), abs(each - 1 / factor)) < 1e-4 for each in times)


def test_as_released_doubles_perturbs_zeros_and_transforms_nothing_back() -> None:
    """The transform of the released code: of an (N, 1) array along its last axis."""
    gradient = torch.tensor([[1.0, -2.0, 3.0, 4.0, 5.0, -6.0]])
    assert torch.equal(torch.from_numpy(scipy.fft.dct(gradient.T.numpy())).T, 2 * gradient)
    message = CAFL(epsilon=1, fraction=0.5, form="as_released").protect_update(fixed(gradient, [6]), streams(0))
    masked = [2.0, -4.0, 6.0, 0.0, 0.0, 0.0]
    factor, _ = two_point(1)
    for value, before in zip(message.view()[0].tolist(), masked, strict=True):
        either = [1 + (before - 1) * times for times in (factor, 1 / factor)]  # the centre of -4 and 6
        assert any(value == pytest.approx(each, abs=1e-5) for each in either)
    assert message.bits == 32 * 6
    assert bool((message.view()[0, 3:] != 0).all())


@pytest.mark.parametrize("choice", FORMS, ids=str)
def test_a_row_does_not_depend_on_the_batch_it_is_in(choice: dict[str, object]) -> None:
    defense = CAFL(**{"epsilon": 2, "fraction": 0.6, **choice})
    sizes = [20, 3, 1]
    gradient = of_seed(4, 24)
    together = defense.protect_update(fixed(gradient, sizes), streams(*range(4)))
    for row in range(4):
        alone = defense.protect_update(fixed(gradient[row : row + 1], sizes), streams(row))
        torch.testing.assert_close(alone.view()[0], together.view()[row], rtol=1e-5, atol=1e-6)
    assert bool(together.view().isfinite().all()) and together.law is None


@pytest.mark.parametrize("choice", FORMS, ids=str)
@pytest.mark.parametrize("epsilon", [1e-3, 1, 1000])
def test_a_gradient_of_zero(choice: dict[str, object], epsilon: float) -> None:
    defense = CAFL(**{"epsilon": epsilon, "fraction": 0.6, **choice})
    assert defense.protect_update(fixed(torch.zeros(2, 12), [11, 1]), streams(0, 1)).view().eq(0).all()


@pytest.mark.parametrize(
    "wrong",
    [{"epsilon": 0}, {"fraction": 0}, {"fraction": 1.1}, {"block": 1}, {"iterations": 0}, {"round": -1}],
    ids=str,
)
def test_parameters_outside_their_ranges(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        CAFL(**{"epsilon": 1, "fraction": 0.5, **wrong})


def test_no_guarantee() -> None:
    statement = CAFL(epsilon=1, fraction=0.5).privacy(Schedule(10))
    assert statement.epsilon is None and "no guarantee" in statement.basis and "mu k or mu / k" in statement.basis


@pytest.mark.parametrize("form", ["as_printed", "as_released"])
def test_without_moving_all_rounds_send_the_same_block(form: str) -> None:
    steps = fixed(of_seed(2, 20), [16, 4])
    defense = CAFL(**{"epsilon": 2, "fraction": 0.25, "form": form, "round": 1})
    expected = defense.protect_update(steps, streams(0, 1)).view()
    for number in range(3):
        message, _ = defense.protect_round(steps, Round(streams(0, 1), number=number))
        assert torch.equal(message.view(), expected)


def test_a_moving_block_is_drawn_from_public_randomness() -> None:
    """Clients of a server send the same coefficients; over the rounds all are sent, about equally often."""
    steps = fixed(of_seed(4, 20), [16, 4])
    defense = CAFL(epsilon=40, fraction=0.25, form="as_printed", moving=True)
    counts = torch.zeros(2, 16)
    for number in range(200):
        drawn = streams(0, 1, 2, 3).child("round", number)
        message, _ = defense.protect_round(steps, Round(drawn, number=number, clients_per_server=2))
        spectrum = dct(message.view()[:, :16])
        sent = spectrum.abs() > 1e-5
        assert (sent.sum(dim=1) == 4).all() and torch.equal(sent[::2], sent[1::2])
        torch.testing.assert_close(spectrum[sent], dct(steps.gradient[:, :16])[sent])
        counts += sent[::2]
    assert float(counts.min()) > 30 and float(counts.max()) < 70  # 50 of 200 each
    assert not torch.equal(counts[0], counts[1])
    assert "moving" not in CAFL(epsilon=2, fraction=0.25).parameters()
