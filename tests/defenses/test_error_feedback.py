"""Error feedback: what is sent in every round, by literal loops, and nothing of the gradients is lost."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.defenses.tensors import fixed, of_seed, streams

from leakbench.defenses.base import Defense, Round, Schedule
from leakbench.defenses.clients import DefendedClients
from leakbench.defenses.error_feedback import EFSignSGD, ErrorFeedback, GradDropWithResidual
from leakbench.defenses.pruning import GradDrop
from leakbench.defenses.quantised import SignSGD
from leakbench.federated.message import Message

SIZES = [5, 1, 7]
DEFENSES = [
    GradDropWithResidual(fraction=0.6),
    GradDropWithResidual(fraction=0.0),
    EFSignSGD(),
    EFSignSGD(scale="tensor"),
]


def sent(defense: ErrorFeedback, gradients: list[torch.Tensor]) -> tuple[list[Message], torch.Tensor]:
    """The messages of all rounds, and the residual after the last."""
    state = defense.initial_state(fixed(gradients[0], SIZES))
    messages = []
    for number, gradient in enumerate(gradients):
        own = streams(*range(len(gradient)))
        message, state = defense.protect_round(fixed(gradient, SIZES), Round(own, state, number))
        messages.append(message)
    return messages, state["residual"]


def dropped(update: list[float], fraction: float) -> list[float]:
    """A tensor of which the smallest magnitudes are zero, the first ones where they are equal."""
    order = sorted(range(len(update)), key=lambda place: abs(update[place]))
    gone = set(order[: int(fraction * len(update))])
    return [0.0 if place in gone else value for place, value in enumerate(update)]


def signs(update: list[float]) -> list[float]:
    mean = sum(map(abs, update)) / len(update)
    return [mean if value >= 0 else -mean for value in update]


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.6, 1.0])
def test_residuals_by_a_literal_loop(fraction: float) -> None:
    """Aji and Heafield: one client, tensor by tensor, number by number."""
    gradients = [of_seed(1, sum(SIZES), seed) for seed in range(4)]
    messages, residual = sent(GradDropWithResidual(fraction=fraction), gradients)
    kept = [0.0] * sum(SIZES)
    for gradient, message in zip(gradients, messages, strict=True):
        total = [g + r for g, r in zip(gradient[0].tolist(), kept, strict=True)]
        expected, start = [], 0
        for size in SIZES:
            expected += dropped(total[start : start + size], fraction)
            start += size
        assert message.view()[0].tolist() == pytest.approx(expected, abs=1e-6)
        kept = [t - e for t, e in zip(total, expected, strict=True)]
    assert residual[0].tolist() == pytest.approx(kept, abs=1e-6)


@pytest.mark.parametrize("scale", ["update", "tensor"])
def test_error_feedback_by_a_literal_loop(scale: str) -> None:
    """Karimireddy et al., Algorithm 1, with a step size: the error is that of the step, here over the step size."""
    rate = 0.1
    gradients = [of_seed(1, sum(SIZES), seed) for seed in range(4)]
    messages, residual = sent(EFSignSGD.model_validate({"scale": scale}), gradients)
    error = [0.0] * sum(SIZES)
    for gradient, message in zip(gradients, messages, strict=True):
        p = [rate * g + e for g, e in zip(gradient[0].tolist(), error, strict=True)]
        step, start = [], 0
        for size in SIZES if scale == "tensor" else [sum(SIZES)]:
            step += signs(p[start : start + size])
            start += size
        assert (rate * message.view())[0].tolist() == pytest.approx(step, abs=1e-6)
        error = [one - other for one, other in zip(p, step, strict=True)]
    assert (rate * residual)[0].tolist() == pytest.approx(error, abs=1e-6)


@given(
    defense=st.sampled_from(DEFENSES), clients=st.integers(1, 3), rounds=st.integers(1, 6), seed=st.integers(0, 1000)
)
@settings(deadline=None)
def test_nothing_is_lost(defense: ErrorFeedback, clients: int, rounds: int, seed: int) -> None:
    """All that was sent and the residual are all gradients."""
    gradients = [of_seed(clients, sum(SIZES), 1000 * seed + number) for number in range(rounds)]
    messages, residual = sent(defense, gradients)
    total = sum(message.view() for message in messages) + residual
    torch.testing.assert_close(total, torch.stack(gradients).sum(dim=0), rtol=1e-4, atol=1e-5)


def test_what_is_dropped_is_sent_later() -> None:
    small = torch.tensor([[1.0, 0.4, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    messages, _ = sent(GradDropWithResidual(fraction=0.8), [small] * 4)
    assert [message.view()[0, :2].tolist() for message in messages] == [
        pytest.approx(each, abs=1e-6) for each in ([1, 0], [1, 0], [0, 1.2], [2, 0])
    ]


def test_the_first_round_is_that_of_the_compression_alone() -> None:
    gradient = of_seed(3, sum(SIZES))
    steps, own = fixed(gradient, SIZES), streams(0, 1, 2)
    first = GradDropWithResidual(fraction=0.6).protect_update(steps, own)
    plain = GradDrop(fraction=0.6).protect_update(steps, own)
    assert torch.equal(first.view(), plain.view()) and first.bits == plain.bits
    assert first.marked is not None and plain.marked is not None and torch.equal(first.marked, plain.marked)


def test_signs_take_a_bit_and_each_scale_a_float() -> None:
    steps = fixed(of_seed(2, sum(SIZES)), SIZES)
    assert EFSignSGD().protect_update(steps, streams(0, 1)).bits == sum(SIZES) + 32
    assert EFSignSGD(scale="tensor").protect_update(steps, streams(0, 1)).bits == sum(SIZES) + 32 * len(SIZES)


def test_the_server_averages_signs() -> None:
    clients = DefendedClients(EFSignSGD(), streams(0, 1), per_server=2)
    gradient = torch.tensor([[1.0] * 13, [-3.0] * 13])
    message = EFSignSGD().protect_update(fixed(gradient, SIZES), streams(0, 1))
    assert clients.aggregate(message).tolist() == [[-1.0] * 13]


@pytest.mark.parametrize("defense", DEFENSES)
def test_no_guarantee(defense: ErrorFeedback) -> None:
    statement = defense.privacy(Schedule(10))
    assert statement.epsilon is None and statement.basis


@pytest.mark.parametrize(
    ("defense", "plain"),
    [
        (GradDropWithResidual(fraction=0.6), GradDrop(fraction=0.6)),
        (EFSignSGD(scale="tensor"), SignSGD(scale="mean_abs")),
    ],
)
def test_the_likelihood_of_the_first_round_is_that_of_the_compression_alone(
    defense: ErrorFeedback, plain: Defense
) -> None:
    gradient, other = of_seed(3, sum(SIZES)), of_seed(3, sum(SIZES), seed=1)
    received = defense.protect_update(fixed(gradient, SIZES), streams(0, 1, 2)).received
    for candidate in (gradient, other):
        steps = fixed(candidate, SIZES)
        assert torch.equal(defense.log_likelihood(received, steps), plain.log_likelihood(received, steps))
        assert torch.equal(defense.fitted_scale(received, steps), plain.fitted_scale(received, steps))


def test_signs_of_the_whole_update_have_one_magnitude() -> None:
    """Its proportions say nothing, so candidates that differ in size alone are alike."""
    gradient = of_seed(3, sum(SIZES))
    received = EFSignSGD().protect_update(fixed(gradient, SIZES), streams(0, 1, 2)).received
    at, twice = (EFSignSGD().log_likelihood(received, fixed(size * gradient, SIZES)) for size in (1, 2))
    torch.testing.assert_close(at, twice)
    assert bool((at > EFSignSGD().log_likelihood(received, fixed(-gradient, SIZES))).all())
