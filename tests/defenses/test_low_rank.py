"""Updates of low rank, against numpy's singular values and the literal algorithm."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.defenses.tensors import of_seed, streams

from leakbench.defenses.base import Defense, Round, Schedule
from leakbench.defenses.clients import DefendedClients
from leakbench.defenses.low_rank import PowerSGD, TruncatedSVD
from leakbench.federated.matrices import Matrices
from leakbench.federated.message import Message
from leakbench.federated.step import ClientSteps

SHAPES = [(4, 2, 3, 3), (4,), (9, 5), (9,), (3, 9), (3,)]
SIZES = [int(np.prod(shape)) for shape in SHAPES]
D = sum(SIZES)

Array = npt.NDArray[np.float64]


def steps_of(gradient: torch.Tensor, shapes: Sequence[tuple[int, ...]] = SHAPES) -> ClientSteps:
    return cast(ClientSteps, SimpleNamespace(gradient=gradient, network=SimpleNamespace(shapes=shapes)))


def tensors(flat: torch.Tensor) -> list[Array]:
    """A client's vector as matrices, out of channels by all else, and vectors."""
    parts = flat.double().split(SIZES)
    return [
        part.reshape(shape).numpy().reshape(shape[0], -1) if len(shape) > 1 else part.numpy()
        for part, shape in zip(parts, SHAPES, strict=True)
    ]


def best_of_energy(matrix: Array, energy: float) -> tuple[Array, int]:
    """The sum of the first outer products that have the energy, one after the other."""
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    total, kept = np.zeros_like(matrix), 0.0
    for number, value in enumerate(singular):
        total += value * np.outer(left[:, number], right[number])
        kept += value**2
        if kept >= energy * (singular**2).sum():
            return total, number + 1
    return total, len(singular)


@pytest.mark.parametrize("energy", [0.05, 0.5, 0.8, 0.95])
def test_truncation_by_a_literal_loop(energy: float) -> None:
    gradient = of_seed(3, D)
    message = TruncatedSVD(energy=energy).protect_update(steps_of(gradient), streams(0, 1, 2))
    floats = []
    for row, sent in zip(gradient, message.view(), strict=True):
        floats.append(0)
        for exact, actual in zip(tensors(row), tensors(sent), strict=True):
            if exact.ndim == 1:
                assert np.array_equal(actual, exact)
                floats[-1] += exact.size
                continue
            expected, rank = best_of_energy(exact, energy)
            assert actual == pytest.approx(expected, abs=1e-5)
            floats[-1] += min(rank * sum(exact.shape), exact.size)
    assert message.bits == 32 * max(floats) + 2 + 3 + 2  # ranks up to 4, 5 and 3


@given(seed=st.integers(0, 1000), energy=st.floats(0.01, 1.0))
@settings(deadline=None, max_examples=30)
def test_no_matrix_of_less_rank_has_the_energy(seed: int, energy: float) -> None:
    gradient = of_seed(2, D, seed)
    view = TruncatedSVD(energy=energy).protect_update(steps_of(gradient), streams(0, 1)).view()
    for place, rows, columns in Matrices(SHAPES):
        exact, sent = (
            torch.linalg.svdvals(part[:, place].unflatten(1, (rows, columns)).double()).square()
            for part in (gradient, view)
        )
        rank = (sent > 1e-8 * sent[:, :1]).sum(dim=1)
        for squares, count in zip(exact, rank, strict=True):
            assert squares[:count].sum() >= (energy - 1e-6) * squares.sum()
            assert count == 1 or squares[: count - 1].sum() < (energy + 1e-6) * squares.sum()


def test_all_energy_and_rank_one_are_the_gradient() -> None:
    """So that the fully connected layers of one image hide nothing."""
    gradient = of_seed(2, D)
    view = TruncatedSVD(energy=1.0).protect_update(steps_of(gradient), streams(0, 1)).view()
    torch.testing.assert_close(view, gradient)
    outer = torch.outer(of_seed(1, 9)[0], of_seed(1, 5, seed=1)[0]).reshape(1, -1)
    view = TruncatedSVD(energy=0.01).protect_update(steps_of(outer, [(9, 5)]), streams(0)).view()
    torch.testing.assert_close(view, outer)


def test_a_layer_of_zeros_is_sent_as_zeros() -> None:
    for defense in (TruncatedSVD(energy=0.5), PowerSGD(rank=1)):
        steps = steps_of(torch.zeros(2, D))
        message = defense.protect_update(steps, streams(0, 1))
        assert not message.view().any()
        assert bool(defense.log_likelihood(message.received, steps).isfinite().all())


def sent(defense: Defense, gradients: list[torch.Tensor], per_server: int = 1) -> tuple[list[Message], torch.Tensor]:
    """The messages of all rounds, and the residual after the last."""
    state = defense.initial_state(steps_of(gradients[0]))
    messages = []
    for number, gradient in enumerate(gradients):
        own = streams(*range(len(gradient))).child(number)
        round = Round(own, state, number, clients_per_server=per_server)
        message, state = defense.protect_round(steps_of(gradient), round)
        messages.append(message)
    return messages, state["residual"]


def gram_schmidt(columns: Array) -> Array:
    columns = columns.copy()
    for number in range(columns.shape[1]):
        for before in range(number):
            columns[:, number] -= columns[:, before] @ columns[:, number] * columns[:, before]
        columns[:, number] /= np.linalg.norm(columns[:, number])
    return columns


@pytest.mark.parametrize("rank", [1, 2])
def test_power_sgd_by_the_literal_algorithm(rank: int) -> None:
    """Vogels et al., Algorithms 1 and 2, for one worker, with the start that the server knows too."""
    gradients = [of_seed(1, D, seed) for seed in range(4)]
    messages, residual = sent(PowerSGD(rank=rank), gradients)
    columns = [matrix.columns for matrix in Matrices(SHAPES)]
    drawn = Round(streams(0).child(0)).public.child("start").normal(rank * sum(columns))[0].double().numpy()
    starts = np.split(drawn, np.cumsum([rank * each for each in columns])[:-1])
    start = [part.reshape(-1, rank) for part in starts]
    error = [np.zeros_like(part) for part in tensors(gradients[0][0])]
    for gradient, message in zip(gradients, messages, strict=True):
        number = 0
        for place, (exact, actual) in enumerate(zip(tensors(gradient[0]), tensors(message.view()[0]), strict=True)):
            update = exact + error[place]
            if exact.ndim == 1:
                expected = update
            else:
                basis = gram_schmidt(update @ start[number])
                factor = update.T @ basis
                short = rank * sum(update.shape) < update.size
                expected = basis @ factor.T if short else update
                start[number] = factor
                number += 1
            assert actual == pytest.approx(expected, abs=2e-5)
            error[place] = update - expected
    for actual, expected in zip(tensors(residual[0]), error, strict=True):
        assert actual == pytest.approx(expected, abs=1e-4)


@given(rank=st.integers(1, 5), clients=st.integers(1, 3), rounds=st.integers(1, 5), seed=st.integers(0, 1000))
@settings(deadline=None, max_examples=30)
def test_nothing_is_lost(rank: int, clients: int, rounds: int, seed: int) -> None:
    gradients = [of_seed(clients, D, 1000 * seed + number) for number in range(rounds)]
    messages, residual = sent(PowerSGD(rank=rank), gradients)
    total = sum(message.view() for message in messages) + residual
    torch.testing.assert_close(total, torch.stack(gradients).sum(dim=0), rtol=1e-4, atol=1e-4)


def test_warm_starts_find_the_largest_singular_values() -> None:
    gradient, defense = of_seed(1, D), PowerSGD(rank=1)
    steps = steps_of(gradient)
    state = defense.initial_state(steps)
    for number in range(60):
        forgetful = {"residual": torch.zeros_like(gradient), "start": state["start"]}
        message, state = defense.protect_round(steps, Round(streams(0), forgetful, number))
    best = TruncatedSVD(energy=1e-6).protect_update(steps, streams(0)).view()
    torch.testing.assert_close(message.view(), best, rtol=1e-3, atol=1e-3)


def test_layers_that_factors_would_not_shorten_are_sent_whole() -> None:
    gradient = of_seed(1, D)
    message = PowerSGD(rank=3).protect_update(steps_of(gradient), streams(0))
    exact = [bool(torch.equal(message.view()[:, each.place], gradient[:, each.place])) for each in Matrices(SHAPES)]
    assert exact == [False, False, True]  # 3 (4 + 18) < 72, 3 (9 + 5) < 45, 3 (3 + 9) > 27
    assert message.bits == 32 * (66 + 42 + 27 + 4 + 9 + 3)


def test_columns_that_vanish_are_drawn_anew() -> None:
    """The first gradient has rank one; of the second both columns are of use again."""
    outer = torch.outer(of_seed(1, 9)[0], of_seed(1, 20, seed=1)[0]).reshape(1, -1)
    full, shapes, defense = of_seed(1, 180, seed=2), [(9, 20)], PowerSGD(rank=2)
    state = defense.initial_state(steps_of(outer, shapes))
    first, state = defense.protect_round(steps_of(outer, shapes), Round(streams(0), state))
    second, _ = defense.protect_round(steps_of(full, shapes), Round(streams(0).child(1), state, 1))
    torch.testing.assert_close(first.view(), outer)
    assert int(torch.linalg.matrix_rank(second.view().reshape(9, 20), rtol=1e-4)) == 2


def test_clients_of_one_server_share_the_start() -> None:
    gradient = of_seed(1, D).expand(4, -1)
    clients = DefendedClients(PowerSGD(rank=1), streams(0, 1, 2, 3), per_server=2)
    view = clients.send(steps_of(gradient), streams(0, 1, 2, 3)).view()
    assert torch.equal(view[0], view[1]) and torch.equal(view[2], view[3])
    assert not torch.allclose(view[0], view[2])


@pytest.mark.parametrize(
    "defense", [TruncatedSVD(energy=0.6), PowerSGD(rank=1), PowerSGD(rank=2)], ids=lambda one: str(one.name)
)
def test_likelihoods_are_greatest_at_the_truth_and_have_their_derivative(defense: Defense) -> None:
    gradient = of_seed(2, D).double()
    received = defense.protect_update(steps_of(gradient), streams(0, 1)).received
    at_truth = defense.log_likelihood(received, steps_of(gradient))
    assert at_truth.tolist() == pytest.approx([0, 0], abs=1e-5)
    assert defense.fitted_scale(received, steps_of(gradient / 3)).flatten().tolist() == pytest.approx([3, 3])
    near = gradient + 0.3 * of_seed(2, D, seed=1)
    moved = near.clone().requires_grad_()
    value = defense.log_likelihood(received, steps_of(moved))
    assert bool((value < -1).all())
    (slope,) = torch.autograd.grad(value.sum(), moved)
    direction, small = of_seed(2, D, seed=2).double(), 1e-6
    ahead, behind = (defense.log_likelihood(received, steps_of(near + sign * small * direction)) for sign in (1, -1))
    expected = ((ahead - behind) / (2 * small)).tolist()
    assert (slope * direction).sum(dim=1).tolist() == pytest.approx(expected, rel=1e-4)


def test_what_was_dropped_is_free_up_to_the_smallest_singular_value_that_was_sent() -> None:
    basis, singular = torch.eye(4, 6).double(), torch.tensor([5.0, 3.0, 1.0, 0.5]).double()
    matrix = (singular[:, None] * basis).reshape(1, -1)
    defense, shapes = TruncatedSVD(energy=0.9), [(4, 6)]
    received = defense.protect_update(steps_of(matrix, shapes), streams(0)).received  # 5 and 3

    def at(third: float) -> float:
        other = matrix.clone()
        other[0, 14] = third
        return float(defense.log_likelihood(received, steps_of(other, shapes)))

    assert at(2.9) == pytest.approx(0, abs=1e-6)
    mean_square, precision = (25 + 9) / 2, 1e6
    assert at(4.0) == pytest.approx(-0.5 * (4 - 3) ** 2 * precision / mean_square)


@pytest.mark.parametrize("defense", [TruncatedSVD(energy=0.6), PowerSGD(rank=1)])
def test_no_guarantee(defense: Defense) -> None:
    statement = defense.privacy(Schedule(10))
    assert statement.epsilon is None and statement.basis


@pytest.mark.parametrize("defense", [TruncatedSVD(energy=0.8), PowerSGD(rank=2)])
def test_a_client_that_is_not_finite_leaves_the_others(defense: Defense) -> None:
    gradient = of_seed(3, D)
    whole = DefendedClients(defense, streams(0, 1, 2)).send(steps_of(gradient), streams(0, 1, 2)).view()
    gradient[1, 5] = torch.nan
    broken = DefendedClients(defense, streams(0, 1, 2)).send(steps_of(gradient), streams(0, 1, 2)).view()
    assert torch.equal(broken[[0, 2]], whole[[0, 2]]) and broken[1].isnan().any()
