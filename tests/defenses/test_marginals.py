"""Marginal laws of messages, and the likelihood of means of several: against literal references and by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from leakbench.defenses import low_rank, marginals
from leakbench.defenses.base import Defense
from leakbench.defenses.cafl import CAFL
from leakbench.defenses.clients import PublicMechanism
from leakbench.defenses.densities import EXACT, LEAST
from leakbench.defenses.dp_sgd import DPSGD
from leakbench.defenses.error_feedback import EFSignSGD, GradDropWithResidual
from leakbench.defenses.laplace import Laplace
from leakbench.defenses.low_rank import PowerSGD, TruncatedSVD
from leakbench.defenses.marginals import MOST_USERS, STEPS, STRIDE, Marginals, likelihood_of_mean
from leakbench.defenses.noise import GaussianNoise
from leakbench.defenses.optimal import OptimalPruning
from leakbench.defenses.pruning import GradDrop, MagnitudePruning, RandomMask
from leakbench.defenses.quantised import QSGD
from leakbench.defenses.soteria import Soteria
from leakbench.federated.message import Received
from leakbench.federated.step import ClientSteps
from leakbench.models.base import Network
from leakbench.randomness import Streams

N, USERS, D = 2, 3, 40


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def users_of(*, noisy: bool, others: bool) -> Marginals:
    return Marginals(
        drawn(N, USERS, D),
        0.1 * drawn(N, USERS, D, seed=1).square() if noisy else None,
        drawn(N, USERS, D, seed=2).sigmoid(),
        drawn(N, USERS, D, seed=3) if others else None,
    )


def literal(received: torch.Tensor, users: Marginals) -> list[float]:
    """Coordinate by coordinate, and combination by combination."""
    result = []
    values, chance = users.values.numpy(), users.chance.numpy()  # type: ignore[union-attr]
    others = np.zeros_like(values) if users.others is None else users.others.numpy()
    for row in range(N):
        sent = received[row].numpy()
        exact = EXACT**2 * float((sent**2).sum()) / np.count_nonzero(sent)
        noise = np.zeros(D) if users.variance is None else users.variance[row].numpy().sum(axis=0) / USERS**2
        variance = np.maximum(noise, LEAST * noise.mean() or exact)
        prior, squares = np.empty((2**USERS, D)), np.empty((2**USERS, D))
        for number, first in enumerate(itertools.product([False, True], repeat=USERS)):
            for at in range(D):
                chances = [chance[row, u, at] if first[u] else 1 - chance[row, u, at] for u in range(USERS)]
                mean = sum(values[row, u, at] if first[u] else others[row, u, at] for u in range(USERS)) / USERS
                prior[number, at], squares[number, at] = math.log(math.prod(chances)), (sent[at] - mean) ** 2
        likely, misfit = np.exp(prior), 0.0
        for step in range(STEPS):
            misfit = float((likely * squares).sum(axis=0)[::STRIDE].mean())
            if step < STEPS - 1:
                likely = prior - 0.5 * squares / (variance + misfit)
                likely = np.exp(likely - logsumexp(likely, axis=0))
        wide = variance + misfit
        result.append(float((logsumexp(prior - 0.5 * squares / wide, axis=0) - 0.5 * np.log(wide)).sum()))
    return result


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("others", [False, True])
def test_the_likelihood_is_that_of_the_mixture(noisy: bool, others: bool) -> None:
    users, received = users_of(noisy=noisy, others=others), drawn(N, D, seed=4)
    found = likelihood_of_mean(Received(received), users)
    assert found.tolist() == pytest.approx(literal(received, users), rel=1e-9)


def test_without_a_choice_it_is_the_normal_law_of_the_sum() -> None:
    users, received = users_of(noisy=True, others=False)._replace(chance=None), drawn(N, D, seed=4)
    found = likelihood_of_mean(Received(received), users)
    assert users.variance is not None
    noise = users.variance.sum(dim=1) / USERS**2
    noise = torch.maximum(noise, LEAST * noise.mean(dim=1, keepdim=True))
    deviation = received - users.values.mean(dim=1)
    expected = -0.5 * (deviation.square() / noise + noise.log()).sum(dim=1)
    torch.testing.assert_close(found, expected)


def test_many_users_are_normal_with_the_variance_of_their_choices() -> None:
    """The law of a mean of more than :data:`MOST_USERS` has the moments of what is drawn."""
    many, draws = MOST_USERS + 3, 20_000
    users = Marginals(drawn(1, many, 5), None, drawn(1, many, 5, seed=2).sigmoid(), drawn(1, many, 5, seed=3))
    assert users.chance is not None and users.others is not None
    uniform = torch.rand(draws, many, 5, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    sent = torch.where(uniform < users.chance, users.values, users.others).mean(dim=1)
    torch.testing.assert_close(sent.mean(dim=0), users.expected().mean(dim=1)[0], atol=0.02, rtol=0)
    spread = marginals._of_choice(users)
    assert isinstance(spread, torch.Tensor)
    torch.testing.assert_close(sent.var(dim=0), spread[0], rtol=0.05, atol=0)
    assert bool(likelihood_of_mean(Received(sent[:1]), users).isfinite().all())


def test_its_derivative_holds_the_variance(monkeypatch: pytest.MonkeyPatch) -> None:
    users, received = users_of(noisy=True, others=True), Received(drawn(N, D, seed=4))
    assert users.chance is not None
    point = torch.cat([users.values, users.chance.logit()]).requires_grad_()

    def value(point: torch.Tensor) -> torch.Tensor:
        values, logits = point.chunk(2)
        return likelihood_of_mean(received, users._replace(values=values, chance=logits.sigmoid())).sum()

    squares, prior = (part.detach() for part in _squares_and_prior(users, received))
    kept = marginals._misfit(squares, prior, torch.zeros(N, 1, dtype=torch.float64))
    monkeypatch.setattr(marginals, "_misfit", lambda *_: kept)
    (found,) = torch.autograd.grad(value(point), point)
    for place in [(0, 0, 0), (1, 2, 7), (2, 1, 3), (3, 0, 39)]:
        shift = torch.zeros_like(point)
        shift[place] = 1e-6
        with torch.no_grad():
            slope = (value(point + shift) - value(point - shift)) / 2e-6
        assert float(found[place]) == pytest.approx(float(slope), rel=1e-4, abs=1e-6)


def _squares_and_prior(users: Marginals, received: Received) -> tuple[torch.Tensor, torch.Tensor]:
    prior, means = marginals._combinations(users)
    return (received.values[:, None] - means).square(), prior


CLIENTS = 4


@pytest.fixture(scope="module")
def steps(tiny_network: Network) -> ClientSteps:
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(CLIENTS, 1, 1, 8, 8, generator=draw)
    labels = torch.randint(10, (CLIENTS, 1), generator=draw)
    streams = Streams([("marginals", client) for client in range(CLIENTS)])
    return ClientSteps(tiny_network, tiny_network.parameters, images, labels, streams)


RANDOM = [
    RandomMask(probability=0.6),
    RandomMask(probability=0.6, rescale=True),
    GaussianNoise(scale=0.01),
    Laplace(epsilon=7),
    QSGD(levels=3),
    DPSGD(clip=0.5, multiplier=0.02),
    CAFL(epsilon=3, fraction=0.7, form="as_printed"),
]
FIXED = [
    MagnitudePruning(fraction=0.8),
    GradDrop(fraction=0.8),
    GradDropWithResidual(fraction=0.8),
    EFSignSGD(),
    EFSignSGD(scale="tensor"),
    TruncatedSVD(energy=0.9),
    PowerSGD(rank=1),
    OptimalPruning(fraction=0.6),
    OptimalPruning(fraction=0.6, form="as_printed"),
    Soteria(fraction=0.5),
]


@pytest.mark.parametrize("defense", RANDOM, ids=repr)
def test_random_messages_have_the_stated_moments(defense: Defense, steps: ClientSteps) -> None:
    draws = 2_000
    stated = defense.marginals(steps, steps.streams, None)
    every = [defense.simulate(steps, steps.streams.child(draw), None).view() for draw in range(draws)]
    sent = torch.stack([stated.in_basis(message).double() for message in every])
    variance = torch.zeros_like(stated.values).double() if stated.variance is None else stated.variance.double()
    variance = variance + marginals._of_choice(stated.of_users(1))
    said = torch.ones_like(stated.values) if stated.compared is None else stated.compared.to(stated.values)
    spread = (said * variance).mean().sqrt()
    apart = said * (sent.mean(dim=0) - stated.expected())
    assert float(apart.abs().max()) < 6 * float(variance.max().sqrt()) / draws**0.5
    assert float((said * sent.var(dim=0)).mean().sqrt()) == pytest.approx(float(spread), rel=0.05)


@pytest.mark.parametrize("defense", FIXED, ids=repr)
def test_a_message_without_randomness_is_what_is_expected(defense: Defense, steps: ClientSteps) -> None:
    """But for coordinates near a threshold, about which an attacker with an estimate cannot be sure."""
    message = defense.simulate(steps, steps.streams, steps.streams.child("public")).view()
    stated = defense.marginals(steps, steps.streams, steps.streams.child("public"))
    apart = (stated.expected() - message).norm(dim=1) / message.norm(dim=1)
    assert float(apart.max()) < 0.6
    if stated.chance is not None:
        nearer = torch.where(stated.chance >= 0.5, stated.values, 0.0 if stated.others is None else stated.others)
        assert float((nearer != message).double().mean()) < 0.02


@pytest.mark.parametrize("defense", RANDOM + FIXED, ids=repr)
def test_of_a_mean_the_truth_is_likelier_than_what_is_near(defense: Defense, steps: ClientSteps) -> None:
    mechanism = PublicMechanism(defense, users=CLIENTS)
    public = Streams([("public",)]).repeat(CLIENTS)
    received = mechanism.simulate(steps, Streams([("sent", client) for client in range(CLIENTS)]), public).received
    draw = torch.Generator().manual_seed(9)

    def likelihood(part: float) -> float:
        moved = ClientSteps(steps.network, steps.parameters, steps.images, steps.labels, steps.streams)
        size = part * steps.gradient.square().mean().sqrt()
        noise = size * torch.randn(steps.gradient.shape, generator=draw)
        moved.__dict__["_gradient_and_loss"] = (steps.gradient + noise, None)
        return float(mechanism.log_likelihood(received, moved, public))

    truth = likelihood(0.0)
    assert truth > max(likelihood(0.5) for _ in range(3)) and math.isfinite(truth)
    scale = float(mechanism.fitted_scale(received, steps, public))
    assert scale == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("defense", [TruncatedSVD(energy=0.9), PowerSGD(rank=1), PowerSGD(rank=2)], ids=repr)
def test_laws_of_low_rank_have_their_own_derivatives(
    defense: Defense, steps: ClientSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against differences, in double precision; and sharp ones are the message."""
    public = Streams([("public",)]).repeat(CLIENTS)
    draw = torch.Generator().manual_seed(3)
    noise, way = (torch.randn(steps.gradient.shape, generator=draw, dtype=torch.float64) for _ in range(2))
    size = steps.gradient.std(dim=1, keepdim=True)
    point, way = steps.gradient.double() + 0.3 * size * noise, size * way

    def at(gradient: torch.Tensor) -> ClientSteps:
        moved = ClientSteps(steps.network, steps.parameters, steps.images, steps.labels, steps.streams)
        moved.__dict__["_gradient_and_loss"] = (gradient, None)
        return moved

    def stated(gradient: torch.Tensor) -> torch.Tensor:
        return defense.marginals(at(gradient), steps.streams, public).values

    found: torch.Tensor = torch.func.jvp(stated, (point,), (way,))[1]
    slope = (stated(point + 1e-6 * way) - stated(point - 1e-6 * way)) / 2e-6
    assert float((found - slope).norm() / slope.norm()) < 1e-4
    assert float((way - slope).norm() / slope.norm()) > 0.3  # which is what passes straight through
    monkeypatch.setattr(low_rank, "SOFTNESS", 1e-9)
    torch.testing.assert_close(stated(point), defense.simulate(at(point), steps.streams, public).view())


@pytest.mark.parametrize("chosen", [False, True])
def test_coordinates_that_say_nothing_play_no_part(chosen: bool) -> None:
    users, received = users_of(noisy=True, others=False), drawn(N, D, seed=4)
    if not chosen:
        users = users._replace(chance=None)
    compared = torch.arange(D) % 3 > 0
    some, rest = (users._replace(compared=part.expand(N, USERS, D)) for part in (compared, ~compared))
    found = likelihood_of_mean(Received(received), some)
    whole = likelihood_of_mean(Received(received), users)
    torch.testing.assert_close(found + likelihood_of_mean(Received(received), rest), whole)
    received[:, ~compared] += 7
    assert users.variance is not None
    if not chosen:  # the width of the mixture is that of all
        torch.testing.assert_close(likelihood_of_mean(Received(received), some), found)
    assert bool(((found - whole).abs() > 1).all())


def test_of_several_users_soteria_tells_everything_but_its_layer(steps: ClientSteps) -> None:
    defense = Soteria(fraction=0.5)
    stated = defense.marginals(steps, steps.streams, None)
    sent = defense.protect_update(steps, steps.streams).view()
    assert stated.compared is not None
    layer = steps.network.linear_layers["fc_layers.3"].weight
    assert bool(stated.compared[:, : layer.start].all()) and bool(stated.compared[:, layer.stop :].all())
    assert not bool(stated.compared[:, layer].any())
    assert torch.equal(sent[stated.compared], stated.values[stated.compared])


def test_cafl_in_other_forms_states_no_law_of_its_own(steps: ClientSteps) -> None:
    stated = CAFL(epsilon=3, fraction=0.7, iterations=5).marginals(steps, steps.streams, None)
    assert stated.chance is None and stated.basis is None


def test_a_mechanism_of_users_averages_their_messages(steps: ClientSteps) -> None:
    """Users whom an attacker makes up are averaged, as those are whom the server sees."""
    mechanism = PublicMechanism(MagnitudePruning(fraction=0.8), users=2)
    images, labels = (part.unflatten(0, (2, 2)).flatten(1, 2) for part in (steps.images, steps.labels))

    def compute(images: torch.Tensor, labels: torch.Tensor) -> ClientSteps:
        return ClientSteps(steps.network, steps.parameters, images, labels, steps.streams)

    streams = Streams([("server", 0), ("server", 1)])
    computed, message, public = mechanism.defend(images, labels, compute, streams)
    single = MagnitudePruning(fraction=0.8).protect_update(steps, steps.streams).view()
    torch.testing.assert_close(message.view(), single.unflatten(0, (2, 2)).mean(dim=1))
    assert len(computed) == 4 and len(public) == 2
    assert torch.equal(mechanism.protected(images, labels, streams), images)
