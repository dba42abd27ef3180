"""The same batches seen under several models: against a literal sum, through wrappers, and in stacks of seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from leakbench.attacks.adaptive import DroppedLayers, Imputed, Masked, Weighted, Wrapper
from leakbench.attacks.analytic import Analytic
from leakbench.attacks.base import Attack, Knowledge, Observations, OfRound, each_round
from leakbench.attacks.bits import Averaged, ClearedBits, Robust
from leakbench.attacks.gradient_matching import GradientMatching, Search
from leakbench.attacks.noisy_images import PosteriorMean
from leakbench.attacks.objectives import L1L2, L2, Cosine, CosinePerTensor, Objective
from leakbench.attacks.one_image import OneImage
from leakbench.attacks.optimisers import Adam
from leakbench.attacks.presets import DLG, IGOptimalDefense, LAMPCosine
from leakbench.attacks.regularisers import TotalVariation
from leakbench.attacks.simulation import Likelihood, Simulated
from leakbench.attacks.straight_through import Candidates
from leakbench.defenses.base import Defense, Round
from leakbench.defenses.clients import PublicMechanism
from leakbench.defenses.error_feedback import EFSignSGD, GradDropWithResidual
from leakbench.defenses.laplace import Laplace
from leakbench.defenses.low_rank import PowerSGD
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.defenses.quantised import SignSGD
from leakbench.federated.step import ClientSteps
from leakbench.jobs.stacked import joint_knowledge, side_by_side
from leakbench.models.base import Network, build_network
from leakbench.models.convnets import ConvNet
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams

SHAPE, CLASSES, BATCH, N = (1, 9, 9), 4, 2, 3
STREAMS = Streams([("rounds", row) for row in range(N)])
IMAGES = torch.rand(N, BATCH, *SHAPE, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(N * BATCH).remainder(CLASSES).view(N, BATCH)
BOUNDS = torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)
PLAIN = GradientMatching(objective=L2(), optimiser=Adam(rate=0.1), iterations=4)


def seen_by(network: Network, number: int) -> Observations:
    """Observes the clients under one model, with trust in coordinates and marks of its own."""
    draw = torch.Generator().manual_seed(number)
    gradients = ClientSteps(network, network.parameters, IMAGES, LABELS, STREAMS).gradient
    noisy = gradients + 0.01 * torch.randn(gradients.shape, generator=draw)
    weights = torch.rand(gradients.shape, generator=draw)
    return Observations(network, network.parameters, noisy, (BATCH, *SHAPE), marked=weights < 0.2, weights=weights)


def observed(rounds: int, models: int = 3) -> Observations:
    networks = [build_network(LeNet(width=2), SHAPE, CLASSES, seed) for seed in range(models)]
    first, *later = (seen_by(network, number) for number, network in enumerate(networks[:rounds]))
    return replace(first, later=tuple(later))


KNOWN = Knowledge(labels=LABELS, pixel_range=BOUNDS)


@pytest.mark.parametrize("objective", [L2(), Cosine(), CosinePerTensor(), L1L2()])
def test_the_objective_is_the_mean_of_those_of_the_rounds(objective: Objective) -> None:
    """By hand: for every trial the gradient at every round's model, and the objective's own formula once per round."""
    attack = PLAIN.model_copy(
        update={"objective": objective, "restarts": 2, "regularisers": (TotalVariation(weight=1),)}
    )
    seen = observed(3)
    search = Search(attack, seen, KNOWN)
    points, trials = search.starts(STREAMS), torch.arange(2 * N)
    values = torch.func.vmap(search.cost())(points, search.trial_data(trials))
    for trial in range(2 * N):
        images, row = points[trial].view(BATCH, *SHAPE), trial // 2
        total = torch.zeros(())
        for each in (seen, *seen.later):
            assert each.weights is not None
            gradient = each.network.gradient(each.parameters, images, LABELS[row])
            total += objective(gradient, each.gradients[row], each.weights[row], each.network.sizes)
        horizontal, vertical = images.diff(dim=-1), images.diff(dim=-2)
        expected = total / 3 + horizontal.abs().mean() + vertical.abs().mean()
        torch.testing.assert_close(values[trial], expected, rtol=1e-4, atol=1e-6)


def test_one_round_is_as_without_the_field() -> None:
    """A round that is seen twice leaves the objective as it is; one alone leaves every bit as it is."""
    once = observed(1)
    alone = PLAIN.reconstruct(once, KNOWN, STREAMS)
    assert once.later == () and alone.objective is not None
    literal = Search(PLAIN, once, KNOWN)
    assert "later" not in literal.trial_data(torch.arange(N)) and literal.later == []
    twice = PLAIN.reconstruct(replace(once, later=(once,)), KNOWN, STREAMS)
    torch.testing.assert_close(twice.images, alone.images, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(twice.objective, alone.objective, rtol=1e-3, atol=1e-6)


def test_joint_labels_are_those_of_all_rounds() -> None:
    found = DLG(iterations=5).reconstruct(observed(2), Knowledge(), STREAMS)
    assert found.labels is not None and found.labels.shape == (N, BATCH)


class Keep(Attack):
    """Remembers what it sees."""

    name = "keep"
    version = 1

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Any:
        SEEN[:] = [observations]


SEEN: list[Observations] = []


@pytest.mark.parametrize(
    "wrapper",
    [
        Masked(attack=Keep()),
        DroppedLayers(attack=Keep(), layers=("body.0",)),
        Imputed(attack=Keep(), outliers="marked"),
        Weighted(attack=Keep()),
        Masked(attack=Weighted(attack=Keep())),
        ClearedBits(attack=Keep()),
        Averaged(attack=Keep(), statistic="mean"),
    ],
)
def test_wrappers_improve_every_round_by_itself(wrapper: Wrapper) -> None:
    seen = observed(3)
    name = seen.network.names[0].rpartition(".")[0]
    if isinstance(wrapper, DroppedLayers):
        wrapper = DroppedLayers(attack=Keep(), layers=(name,))
    rounds = [seen, *seen.later]
    rounds = [
        replace(each, later=(), repeats=torch.stack([each.gradients, 3 * each.gradients], dim=1)) for each in rounds
    ]
    variances = [each.gradients.abs() + 0.1 * (1 + number) for number, each in enumerate(rounds)]
    first, *later = (OfRound(variance) for variance in variances)
    known = Knowledge(noise_variance=first.noise_variance, of_later=tuple(later))
    wrapper.reconstruct(replace(rounds[0], later=tuple(rounds[1:])), known, STREAMS)
    (together,) = SEEN
    assert len(together.later) == 2
    for each, variance, found in zip(rounds, variances, (together, *together.later), strict=True):
        wrapper.reconstruct(each, Knowledge(noise_variance=variance), STREAMS)
        (alone,) = SEEN
        assert torch.equal(found.gradients, alone.gradients) and found.network is each.network
        assert found.weights is not None and alone.weights is not None and torch.equal(found.weights, alone.weights)


def test_known_of_rounds() -> None:
    seen, variance = observed(3), torch.ones(N, 5)
    rounds = each_round(seen, Knowledge(labels=LABELS, noise_variance=variance, of_later=(OfRound(2 * variance),) * 2))
    assert [known.noise_variance is variance for _, known in rounds] == [True, False, False]
    assert all(known.labels is LABELS and known.of_later is None and each.later == () for each, known in rounds)
    (_, first), (_, second), (_, third) = each_round(seen, Knowledge(noise_variance=variance))
    assert first.noise_variance is variance and second.noise_variance is None and third.noise_variance is None
    assert "of_later" not in Knowledge(of_later=(OfRound(),)).granted()


class TestSimulation:
    """The mechanism is run on the candidate's gradient under the model of every round."""

    def test_send(self) -> None:
        seen = observed(2)
        mechanism = PublicMechanism(MagnitudePruning(fraction=0.7))
        known = replace(KNOWN, mechanism=[mechanism] * N)
        Simulated(attack=Keep()).reconstruct(seen, known, STREAMS)
        (sent,) = SEEN
        search = Search(PLAIN, sent, known)
        points = search.starts(STREAMS)
        values = torch.func.vmap(search.cost())(points, search.trial_data(torch.arange(N)))
        for row in range(N):
            total = torch.zeros(())
            for each in (seen, *seen.later):
                gradient = each.network.gradient(each.parameters, points[row].view(BATCH, *SHAPE), LABELS[row])
                kept = torch.where(gradient.abs() > gradient.abs().quantile(0.7), gradient, 0.0)
                assert each.weights is not None
                total += (each.weights[row] * (kept - each.gradients[row]).square()).sum()
            torch.testing.assert_close(values[row], total / 2, rtol=1e-3, atol=1e-6)

    def test_likelihood(self) -> None:
        seen = observed(2)
        laplace = Laplace(epsilon=2, form="as_released")
        known = replace(KNOWN, mechanism=[PublicMechanism(laplace)] * N)
        Likelihood(attack=Keep()).reconstruct(seen, known, STREAMS)
        search = Search(PLAIN, SEEN[0], known)
        points = search.starts(STREAMS)
        values = torch.func.vmap(search.cost())(points, search.trial_data(torch.arange(N)))
        for row in range(N):
            total, images = torch.zeros(()), points[row].view(BATCH, *SHAPE)
            for each in (SEEN[0], *SEEN[0].later):
                gradient = each.network.gradient(each.parameters, images, LABELS[row])
                assert each.score is not None
                alone = Candidates(gradient[None], images[None], LABELS[row : row + 1], torch.tensor([row]))
                total += each.score(alone)[0][0]
            torch.testing.assert_close(values[row], total / 2, rtol=1e-4, atol=1e-6)

    def test_rounds_have_draws_of_their_own(self) -> None:
        seen = observed(1)
        known = replace(KNOWN, mechanism=[PublicMechanism(SignSGD())] * N)
        Simulated(attack=Keep()).reconstruct(replace(seen, later=(seen,)), known, STREAMS)
        (sent,) = SEEN
        first, second = (each.send.func.__self__._keys for each in (sent, *sent.later))  # type: ignore[union-attr]
        assert first != second and [key[:2] for key in first] == [key[:2] for key in second]


@pytest.mark.parametrize(
    "defense",
    [GradDropWithResidual(fraction=0.9), EFSignSGD(scale="tensor"), PowerSGD(rank=1)],
    ids=lambda one: one.name,
)
def test_residuals_are_those_that_a_candidate_would_have(defense: Defense) -> None:
    """By hand: in the second round the likelihood is that of both gradients less the first message."""
    networks = [build_network(LeNet(width=2), SHAPE, CLASSES, seed) for seed in range(2)]
    steps = [ClientSteps(network, network.parameters, IMAGES, LABELS, STREAMS) for network in networks]
    state, rounds = defense.initial_state(steps[0]), []
    for number, step in enumerate(steps):
        of_round = Round(STREAMS.child("sent", number), state, number)
        message, state = defense.protect_round(step, of_round)
        seen = Observations(step.network, step.parameters, message.view(), (BATCH, *SHAPE), public=of_round.public)
        rounds.append(seen)
    known = replace(KNOWN, mechanism=[PublicMechanism(defense)] * N)
    Likelihood(attack=Keep()).reconstruct(replace(rounds[0], later=(rounds[1],)), known, STREAMS)
    (together,) = SEEN
    assert together.carried and together.later[0].carried
    search = Search(PLAIN, together, known)
    for images in (IMAGES, IMAGES + 0.1):
        values = torch.func.vmap(search.cost())(images.flatten(1), search.trial_data(torch.arange(N)))
        gradients = [ClientSteps(one, one.parameters, images, LABELS, STREAMS).gradient for one in networks]
        update = gradients[0] + gradients[1] - rounds[0].gradients
        expected = torch.zeros(N)
        for each, gradient in zip((together, *together.later), (gradients[0], update), strict=True):
            assert each.score is not None
            expected += each.score(Candidates(gradient, images, LABELS, torch.arange(N)))[0]
        torch.testing.assert_close(values, expected / 2, rtol=1e-3, atol=1e-5)
    Likelihood(attack=Keep()).reconstruct(rounds[0], known, STREAMS)
    assert not SEEN[0].carried  # one round has no residual


def test_robust_trusts_coordinates_of_every_round() -> None:
    """Each round has its own coordinate that is far off; both are ignored in the second search."""
    seen = replace(observed(1), weights=None)
    other = replace(observed(2).later[0], weights=None)
    for each, place in ((seen, 3), (other, 7)):
        each.gradients[:, place] += 50
    searches: list[Observations] = []

    class Watched(GradientMatching):
        name = "watched"
        version = 1

        def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Any:
            searches.append(observations)
            return super().reconstruct(observations, knowledge, streams)

    inside = Watched(objective=L2(), optimiser=Adam(rate=0.1), iterations=3)
    Robust(attack=inside, iterations=5, residual=20).reconstruct(replace(seen, later=(other,)), KNOWN, STREAMS)
    first, second = searches
    assert first.weights is None and len(first.later) == 1
    for each, place in ((second, 3), (second.later[0], 7)):
        assert each.weights is not None
        assert (each.weights == 0).nonzero()[:, 1].unique().tolist() == [place]
    assert second.start is not None and second.later[0].start is None


def test_one_image_stands_for_the_batch_in_every_round() -> None:
    seen = observed(2)
    found = OneImage(attack=PLAIN).reconstruct(seen, KNOWN, STREAMS)
    assert found.images.shape == (N, 1, *SHAPE)


@pytest.mark.parametrize(("mode", "normalised"), [("eval", "as_client"), ("train", "as_client"), ("eval", "known")])
def test_batch_norm_is_that_of_each_round(mode: Any, normalised: Any) -> None:
    """Running statistics are those of a round's network; known ones those of the batch under its model."""
    networks = [build_network(ConvNet(width=2), SHAPE, CLASSES, seed).in_mode(mode) for seed in range(2)]
    for scale, network in enumerate(networks, 1):
        for statistic in network.running_statistics.values():
            statistic += 0.3 * scale
    rounds = [replace(seen_by(network, number), weights=None) for number, network in enumerate(networks)]
    statistics = [
        ClientSteps(each.network, each.parameters, IMAGES, LABELS, STREAMS).batch_statistics for each in rounds
    ]
    known = replace(KNOWN, batch_statistics=statistics[0], of_later=(OfRound(batch_statistics=statistics[1]),))
    attack = PLAIN.model_copy(update={"batch_norm": normalised})
    search = Search(attack, replace(rounds[0], later=(rounds[1],)), known)
    points = search.starts(STREAMS)
    values = torch.func.vmap(search.cost())(points, search.trial_data(torch.arange(N)))
    for row in range(N):
        total = torch.zeros(())
        for each, of in zip(rounds, statistics, strict=True):
            given = {name: part[row] for name, part in of.items()} if normalised == "known" else None
            flat = each.parameters.clone().requires_grad_()
            logits = each.network.logits(flat, points[row].view(BATCH, *SHAPE), given)
            (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(logits, LABELS[row]), flat)
            total += (gradient - each.gradients[row]).square().sum()
        torch.testing.assert_close(values[row], total / 2, rtol=1e-3, atol=1e-5)


def test_seeds_side_by_side() -> None:
    """Rounds of stacked seeds are those that each seed has alone."""
    networks = [
        [build_network(LeNet(width=2), SHAPE, CLASSES, 10 * seed + number) for number in range(2)] for seed in range(2)
    ]
    alone = []
    for pair in networks:
        first, second = (replace(seen_by(network, 5 + number), weights=None) for number, network in enumerate(pair))
        alone.append(replace(first, later=(second,)))
    variances = [OfRound(torch.full_like(each.gradients, 1.0 + seed)) for seed, each in enumerate(alone)]
    known = [replace(KNOWN, noise_variance=variance.noise_variance, of_later=(variance,)) for variance in variances]
    together, joint = side_by_side(alone), joint_knowledge(known)
    (later,) = together.later
    later.check()
    assert joint.of_later is not None and len(joint.of_later) == 1
    assert (
        joint.of_later[0].noise_variance is not None
        and joint.of_later[0].noise_variance[:, 0].tolist() == [1] * N + [2] * N
    )
    streams = Streams([("stacked", row) for row in range(2 * N)])
    attack = Weighted(attack=PLAIN)
    stacked = attack.reconstruct(together, joint, streams)
    for seed, (one, of) in enumerate(zip(alone, known, strict=True)):
        rows = slice(seed * N, (seed + 1) * N)
        found = attack.reconstruct(one, of, Streams(streams.keys[rows]))
        torch.testing.assert_close(stacked.images[rows], found.images, rtol=1e-3, atol=1e-3)
    assert (
        joint_knowledge([KNOWN, KNOWN]).of_later is None
        and side_by_side([observed_alone(), observed_alone()]).later == ()
    )


def observed_alone() -> Observations:
    return replace(observed(1), weights=None)


def test_who_uses_them() -> None:
    assert IGOptimalDefense().several_rounds and Masked(attack=PLAIN).several_rounds
    assert PosteriorMean(attack=PLAIN).several_rounds and not PosteriorMean(attack=Analytic()).several_rounds
    assert not LAMPCosine().several_rounds
