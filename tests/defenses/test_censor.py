"""Random updates at right angles to the gradient, against literal loops, and the released code, which sends others."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.defenses.tensors import fixed, of_seed, streams

from leakbench.defenses.base import Schedule
from leakbench.defenses.censor import ROUNDING, Censor
from leakbench.federated.message import Received
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import SimpleConvNet

SIZES = [40, 1, 25]
FORMS = ["as_printed", "as_released"]

Array = npt.NDArray[np.float64]


def censor(form: str, trials: int = 1, rate: float = 1e-4) -> Censor:
    return Censor.model_validate({"form": form, "trials": trials, "rate": rate})


def turned(drawn: Array, gradient: Array, form: str) -> Array:
    """The update of one tensor, as the paper has it, or its code."""
    drawn = drawn / np.linalg.norm(drawn)
    length = np.linalg.norm(gradient)
    along = drawn @ gradient / (length**2 if form == "as_printed" else length) * gradient
    left = drawn - along
    if np.linalg.norm(left) < 1e-5:
        return np.zeros_like(gradient)
    update: Array = left / np.linalg.norm(left) * length
    return update


def cosines(one: torch.Tensor, other: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """By tensor, ``[n, tensors]``."""
    parts = zip(one.split(sizes, dim=1), other.split(sizes, dim=1), strict=True)
    return torch.stack([torch.nn.functional.cosine_similarity(*pair, dim=1) for pair in parts], dim=1)


@pytest.fixture(scope="module")
def network() -> Network:
    return build_network(SimpleConvNet(width=2), (1, 8, 8), 10, seed=0)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("trials", "rate"), [(1, 1e-4), (6, 1e-4), (6, 3.0)])
def test_the_best_draw_by_a_literal_loop(network: Network, form: str, trials: int, rate: float) -> None:
    images, labels = of_seed(3, 2 * 64).unflatten(1, (2, 1, 8, 8)), torch.tensor([[0, 1], [2, 3], [4, 5]])
    steps = ClientSteps(network, network.parameters, images, labels, streams(0, 1, 2))
    message = censor(form, trials, rate).protect_update(steps, streams(0, 1, 2))
    assert message.bits == 32 * network.dimension
    for client, gradient in enumerate(steps.gradient.double()):
        best, least = torch.zeros(0), math.inf
        for trial in range(trials):
            drawn = streams(client).child("trial", trial).normal(network.dimension)[0].double()
            pairs = zip(drawn.split(network.sizes), gradient.split(network.sizes), strict=True)
            update = torch.from_numpy(np.concatenate([turned(z.numpy(), g.numpy(), form) for z, g in pairs])).float()
            loss = float(network.loss(network.parameters - rate * update, images[client], labels[client]))
            if loss < (1 - ROUNDING) * least:
                best, least = update, loss
        torch.testing.assert_close(message.view()[client], best, rtol=1e-4, atol=1e-5)


@given(seed=st.integers(0, 1000), size=st.floats(0.01, 100))
@settings(deadline=None, max_examples=30)
def test_as_printed_every_tensor_is_turned_by_a_right_angle_and_keeps_its_length(seed: int, size: float) -> None:
    gradient = size * of_seed(3, sum(SIZES), seed)
    view = censor("as_printed").protect_update(fixed(gradient, SIZES), streams(0, 1, 2)).view()
    assert float(cosines(view, gradient, SIZES).abs().max()) < 1e-4
    for part, exact in zip(view.split(SIZES, dim=1), gradient.split(SIZES, dim=1), strict=True):
        if exact.shape[1] == 1:
            assert not part.any()
        else:
            torch.testing.assert_close(part.norm(dim=1), exact.norm(dim=1))


def test_as_released_it_is_a_right_angle_for_gradients_of_length_one_alone() -> None:
    """A short gradient hardly matters, and a long one is sent itself, but for its sign."""
    sizes = [400, 300]
    unit = torch.cat([part / part.norm(dim=1, keepdim=True) for part in of_seed(16, 700).split(sizes, dim=1)], dim=1)

    def angle(length: float) -> torch.Tensor:
        gradient = length * unit
        view = censor("as_released").protect_update(fixed(gradient, sizes), streams(*range(16))).view()
        return cosines(view, gradient, sizes).abs()

    assert float(angle(1.0).max()) < 1e-4
    assert 0.3 < float(angle(0.01).mean()) / (math.sqrt(2 / math.pi / 350)) < 3  # of random directions
    assert float(angle(20.0).mean()) > 0.4 and float(angle(1e4).min()) > 0.99


@pytest.mark.parametrize("form", FORMS)
def test_a_gradient_of_zeros_is_sent_as_zeros(form: str) -> None:
    steps = fixed(torch.zeros(2, sum(SIZES)), SIZES)
    message = censor(form).protect_update(steps, streams(0, 1))
    assert not message.view().any()
    assert censor(form).log_likelihood(message.received, steps).tolist() == [0, 0]


@pytest.mark.parametrize("length", [0.3, 0.9, 1.5, 6.0])
def test_the_density_of_directions_is_one(length: float) -> None:
    """On a circle, by quadrature; and it is that of the mechanism, by counting."""
    around = torch.arange(720) * (2 * math.pi / 720)
    values = length * torch.stack([around.cos(), around.sin()], dim=1).double()
    gradient = torch.tensor([[length, 0.0]]).double().expand(720, 2)
    defense = censor("as_released")
    density = defense.log_likelihood(Received(values), fixed(gradient, [2])).exp()
    assert float(density.mean()) == pytest.approx(1, abs=1e-6)
    many = gradient[:1].expand(4000, 2).float()
    view = defense.protect_update(fixed(many, [2]), streams(*range(4000))).view() / length
    near = values[:, 0].abs() > 0.8 * length
    assert float((view[:, 0].abs() > 0.8).float().mean()) == pytest.approx(float(density[near].sum()) / 720, abs=0.03)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("trials", [1, 5])
def test_the_likelihood_prefers_the_truth_whatever_its_length_and_has_its_derivative(form: str, trials: int) -> None:
    gradient, defense = 3 * of_seed(4, sum(SIZES)).double(), censor(form, trials)
    values = censor(form).protect_update(fixed(gradient, SIZES), streams(0, 1, 2, 3)).view()
    received = Received(values * torch.where((values * gradient).sum(dim=1, keepdim=True) < 0, -1, 1))
    at, twice, other = (
        defense.log_likelihood(received, fixed(each, SIZES)) for each in (gradient, 2 * gradient, gradient.roll(1, 0))
    )
    torch.testing.assert_close(at, twice)
    assert bool((at > other).all())
    near = (gradient + of_seed(4, sum(SIZES), seed=1)).requires_grad_()
    (slope,) = torch.autograd.grad(defense.log_likelihood(received, fixed(near, SIZES)).sum(), near)
    direction, small = of_seed(4, sum(SIZES), seed=2).double(), 1e-6
    ahead, behind = (
        defense.log_likelihood(received, fixed(near.detach() + sign * small * direction, SIZES)) for sign in (1, -1)
    )
    expected = ((ahead - behind) / (2 * small)).tolist()
    assert (slope * direction).sum(dim=1).tolist() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_the_choice_among_draws_tells_the_sign() -> None:
    """As released the update that descends most is sent: the gradient is likelier than its reverse."""
    gradient = 5 * of_seed(2, sum(SIZES)).double()
    values = censor("as_released").protect_update(fixed(gradient, SIZES), streams(0, 1)).view()
    values = values * torch.where((values * gradient).sum(dim=1, keepdim=True) < 0, -1, 1)
    for trials, right in ((1, False), (20, True)):
        defense = censor("as_released", trials)
        both = [defense.log_likelihood(Received(values), fixed(sign * gradient, SIZES)) for sign in (1, -1)]
        assert bool((both[0] > both[1] + 0.1).all()) == right


def test_no_guarantee() -> None:
    statement = Censor().privacy(Schedule(10))
    assert statement.epsilon is None and statement.basis


def test_trials_are_paid_in_forward_passes() -> None:
    assert Censor(trials=1).passes(5) == 0 and Censor(trials=6).passes(5) == pytest.approx(10)
