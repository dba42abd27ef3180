"""Attackers who run the defense on their candidates: against slow references, and that they see more."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from leakbench.attacks.base import ATTACKS, Knowledge, Observations, Reconstruction
from leakbench.attacks.objectives import NATS
from leakbench.attacks.presets import DLGWolfe, IGOptimalDefense
from leakbench.attacks.simulation import Likelihood, Scoring, Simulated, Simulation
from leakbench.attacks.straight_through import Candidates, scored, straight_through
from leakbench.data.embedded import Digits
from leakbench.defenses.base import ClientState, Defense, NoDefense, Round
from leakbench.defenses.clients import PublicMechanism
from leakbench.defenses.laplace import Laplace
from leakbench.defenses.noise import ClippedNoise, GaussianNoise
from leakbench.defenses.pruning import MagnitudePruning
from leakbench.defenses.quantised import QSGD, UNLIKELY, SignSGD
from leakbench.defenses.sdq import SDQ
from leakbench.errors import Infeasible
from leakbench.federated.message import CodedMessage, DenseMessage, Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.jobs.attack import AttackJob
from leakbench.jobs.base import Job, Variant
from leakbench.jobs.runner import Placement, compute
from leakbench.models.base import MODELS, Network
from leakbench.randomness import Streams

N = 3
STREAMS = Streams([("simulation", row) for row in range(N)])


class Noisy(Defense):
    """Random, and of no stated law."""

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return DenseMessage(steps.gradient + streams.normal(steps.gradient.shape[1]))


@pytest.fixture(scope="module")
def seen(tiny_network: Network) -> Observations:
    gradients = torch.randn(N, tiny_network.dimension, generator=torch.Generator().manual_seed(0))
    return Observations(tiny_network, tiny_network.parameters, gradients, (1, 1, 8, 8))


def candidates(seen: Observations, rows: list[int], seed: int = 1) -> Candidates:
    """Candidates for these observations, each of which depends on its row alone."""
    draws = [torch.Generator().manual_seed(100 * seed + row) for row in rows]
    gradients = torch.stack([torch.randn(seen.network.dimension, generator=draw) for draw in draws])
    images = torch.stack([torch.rand(1, 1, 8, 8, generator=draw) for draw in draws])
    return Candidates(gradients, images, torch.tensor([[row] for row in rows]), torch.tensor(rows))


def likelihood(defense: Defense, received: Received, gradients: torch.Tensor, network: Network) -> torch.Tensor:
    steps = ClientSteps(network, network.parameters, torch.zeros(len(gradients), 1, 1, 8, 8), *TWO)
    steps.__dict__["_gradient_and_loss"] = (gradients, None)
    return defense.log_likelihood(received, steps)


def given_steps(seen: Observations, gradients: torch.Tensor) -> ClientSteps:
    steps = ClientSteps(seen.network, seen.parameters, torch.zeros(N, 1, 1, 8, 8), torch.zeros(N, 1).long(), STREAMS)
    steps.__dict__["_gradient_and_loss"] = (gradients, None)
    return steps


TWO: tuple[torch.Tensor, Streams] = (torch.zeros(1, 1, dtype=torch.long), STREAMS)


class TestSimulation:
    def test_each_candidate_goes_through_the_mechanism_of_its_observation(self, seen: Observations) -> None:
        mechanisms = [MagnitudePruning(fraction=0.9), SignSGD(), MagnitudePruning(fraction=0.5)]
        tried = candidates(seen, [2, 1, 0, 1])
        sent = Simulation(seen, [PublicMechanism(each) for each in mechanisms], STREAMS).send(tried, 1)[:, 0]
        assert (sent == 0).sum(dim=1).tolist() == [80, 0, 144, 0]
        assert torch.equal(sent[1], tried.gradients[1].sign())

    def test_draws_are_those_of_the_row_and_of_the_point(self, seen: Observations) -> None:
        simulation = Simulation(seen, [PublicMechanism(Noisy())] * N, STREAMS)
        tried = candidates(seen, [0, 1, 2])
        noise = simulation.send(tried, 2) - tried.gradients[:, None]
        assert torch.equal(simulation.send(tried, 2) - tried.gradients[:, None], noise)
        alone = candidates(seen, [2])
        assert torch.equal(simulation.send(alone, 2) - alone.gradients[:, None], noise[2:])
        moved = tried._replace(gradients=tried.gradients + 1e-3)
        assert not torch.allclose(simulation.send(moved, 2) - moved.gradients[:, None], noise, atol=0.1)
        assert abs(float(noise.std()) - 1) < 0.1 and not torch.allclose(noise[:, 0], noise[:, 1], atol=0.1)

    def test_public_randomness_is_that_of_the_round(self, seen: Observations) -> None:
        class Masked(Defense):
            def protect_round(self, steps: ClientSteps, round: Round) -> tuple[Message, ClientState]:
                return DenseMessage(steps.gradient * (round.public.uniform(steps.gradient.shape[1]) < 0.5)), {}

        true = Round(STREAMS).public
        seen = Observations(seen.network, seen.parameters, seen.gradients, seen.batch_shape, public=true)
        tried = candidates(seen, [2, 0])
        sent = Simulation(seen, [PublicMechanism(Masked())] * N, Streams([("attacker", row) for row in range(N)])).send(
            tried, 1
        )
        mask = Round(STREAMS).public.uniform(seen.network.dimension) < 0.5
        assert torch.equal(sent[:, 0] != 0, mask[[2, 0]])

    def test_derivatives_go_straight_through(self, seen: Observations) -> None:
        simulation = Simulation(seen, [PublicMechanism(SignSGD())] * N, STREAMS)
        tried = candidates(seen, [0, 1, 2])

        def distance(gradient: torch.Tensor, images: torch.Tensor, labels: torch.Tensor, row: torch.Tensor) -> Any:
            candidate = Candidates(gradient, images, labels, row)
            sent = straight_through(candidate, lambda many: simulation.send(many, 1))
            return (sent - 0.5).square().sum()

        derivative = torch.func.vmap(torch.func.grad(distance))(*tried)
        torch.testing.assert_close(derivative, 2 * (tried.gradients.sign() - 0.5))

    def test_of_users_it_is_the_mean_of_their_messages(self, tiny_network: Network) -> None:
        """Each user's gradient goes through the mechanism, and each has its part of the derivative."""
        users, d = 2, tiny_network.dimension
        target = torch.randn(N, d, generator=torch.Generator().manual_seed(0))
        seen = Observations(tiny_network, tiny_network.parameters, target, (users, 1, 8, 8))
        defense = MagnitudePruning(fraction=0.9)
        simulation = Simulation(seen, [PublicMechanism(defense, users)] * N, STREAMS)
        gradients = torch.randn(N, users, d, generator=torch.Generator().manual_seed(1))
        tried = Candidates(
            gradients, torch.zeros(N, users, 1, 8, 8), torch.zeros(N, users, dtype=torch.long), torch.arange(N)
        )
        alone = Simulation(seen, [PublicMechanism(defense)] * N, STREAMS)
        parts = [
            alone.send(
                Candidates(gradients[:, user], tried.images[:, user : user + 1], tried.labels[:, :1], tried.rows), 1
            )
            for user in range(users)
        ]
        sent = simulation.send(tried, 1)
        torch.testing.assert_close(sent, torch.stack(parts).mean(dim=0))

        def distance(*candidate: torch.Tensor) -> Any:
            return straight_through(Candidates(*candidate), lambda many: simulation.send(many, 1)).square().sum()

        derivative = torch.func.vmap(torch.func.grad(distance))(*tried)
        torch.testing.assert_close(derivative, sent.expand(-1, users, -1))

    def test_what_cannot_be_simulated_says_why(self) -> None:
        class Stateful(Defense):
            def initial_state(self, steps: ClientSteps) -> ClientState:
                return {}

        class Blurred(Defense):
            def protect_data(self, images: Any, labels: Any, streams: Streams) -> Any:
                return images, labels

        assert "state" in Stateful().not_simulated and "images" in Blurred().not_simulated
        assert NoDefense().not_simulated == ""


class TestLikelihood:
    @given(st.lists(st.floats(-1, 1), min_size=2, max_size=6), st.integers(1, 4))
    def test_the_probabilities_of_all_levels_add_up(self, values: list[float], levels: int) -> None:
        """Of each coordinate by itself, where none is as unlikely as to be continued."""
        gradient = torch.tensor([values], dtype=torch.float64)
        unit = gradient.norm() / levels
        if not unit:
            return
        for coordinate in range(len(values)):
            total = 0.0
            for level in range(-levels - 1, levels + 2):
                chance = 1 - abs(float(gradient[0, coordinate] / unit) - level)
                one = gradient[:, coordinate : coordinate + 1]
                step = unit.view(1, 1)
                value = float(likelihood_of_qsgd(levels, one, level * step, step))
                if chance > UNLIKELY:
                    assert value == pytest.approx(math.log(chance), abs=1e-6)
                    total += math.exp(value)
                else:
                    assert value == pytest.approx(math.log(UNLIKELY) + chance / UNLIKELY - 1, abs=1e-6)
            assert total == pytest.approx(1, abs=2 * UNLIKELY)

    def test_laplace_is_absolute_deviation(self, tiny_network: Network) -> None:
        """Noise of one scale, as released: the likelihood falls by one per scale and coordinate."""
        defense = Laplace(epsilon=4, form="as_released")
        draw = torch.Generator().manual_seed(0)
        gradients, values = (torch.randn(N, tiny_network.dimension, generator=draw) for _ in range(2))
        found = likelihood(defense, Received(values), gradients, tiny_network)
        torch.testing.assert_close(found, -(values - gradients).abs().sum(dim=1))

    @pytest.mark.parametrize("defense", [Laplace(epsilon=4), Laplace(epsilon=4, bound=0.7), QSGD(levels=7)], ids=repr)
    def test_is_finite_at_the_truth_and_its_derivative_is_right(self, defense: Defense, tiny_network: Network) -> None:
        draw = torch.Generator().manual_seed(0)
        gradient = torch.randn(1, tiny_network.dimension, generator=draw, dtype=torch.float64)
        steps = ClientSteps(tiny_network, tiny_network.parameters, torch.zeros(1, 1, 1, 8, 8), TWO[0], STREAMS)
        steps.__dict__["_gradient_and_loss"] = (gradient, None)
        message = defense.protect_update(steps, Streams([("truth", 0)]))
        received = message.received
        value = likelihood(defense, received, gradient, tiny_network)
        assert bool(value.isfinite().all())
        point = gradient + 0.01 * torch.randn(gradient.shape, generator=draw, dtype=torch.float64)
        derivative = torch.func.grad(lambda g: likelihood(defense, received, g, tiny_network).sum())(point)
        for coordinate in range(0, tiny_network.dimension, 37):
            shift = torch.zeros_like(point)
            shift[0, coordinate] = 1e-7
            sides = [float(likelihood(defense, received, point + sign * shift, tiny_network)) for sign in (1, -1)]
            assert float(derivative[0, coordinate]) == pytest.approx((sides[0] - sides[1]) / 2e-7, rel=1e-3, abs=1e-3)

    def test_scores_are_excesses_in_nats(self, seen: Observations) -> None:
        """Under Laplace noise the excess is the sum of absolute deviations of the scaled candidate, in scales."""
        defense = Laplace(epsilon=4, form="as_released")
        scoring = Scoring(seen, [PublicMechanism(defense)] * N, STREAMS)
        tried = candidates(seen, [2, 0, 1])
        values, derivatives = scoring.score(tried)
        target, d = seen.gradients[[2, 0, 1]], seen.network.dimension
        scale = (tried.gradients * target).sum(dim=1) / tried.gradients.square().sum(dim=1)
        scaled = scale.clamp(min=1e-3)[:, None] * tried.gradients
        excess = (scaled - target).abs().sum(dim=1)
        torch.testing.assert_close(values, d / 2 * (1 + 2 * excess / d).log() / (NATS * 64))

        def objective(*candidate: torch.Tensor) -> torch.Tensor:
            return 3 * scored(Candidates(*candidate), scoring.score)

        torch.testing.assert_close(torch.func.vmap(torch.func.grad(objective))(*tried), 3 * derivatives)
        alone = Scoring(seen, [PublicMechanism(defense)] * N, STREAMS, regularised=False)
        torch.testing.assert_close(alone.score(tried)[0], excess / (NATS * 64))

    def test_a_candidate_alone_is_scored_as_among_others(self, seen: Observations) -> None:
        """Without ``vmap`` the operator runs where autograd records nothing."""
        scoring = Scoring(seen, [PublicMechanism(GaussianNoise(scale=0.1))] * N, STREAMS)
        tried = candidates(seen, [1])

        def objective(*candidate: torch.Tensor) -> torch.Tensor:
            return scored(Candidates(*candidate), scoring.score)

        derivative, value = torch.func.grad_and_value(objective)(*(part[0] for part in tried))
        values, derivatives = scoring.score(tried)
        assert bool(derivative.any())
        torch.testing.assert_close((value, derivative), (values[0], derivatives[0]))

    def test_rows_are_scored_by_their_messages(self, seen: Observations) -> None:
        """Whichever were scored before, and under one mechanism or several."""
        mechanisms = [PublicMechanism(GaussianNoise(scale=scale)) for scale in (0.01, 0.1)]
        scoring = Scoring(seen, [mechanisms[0], mechanisms[1], mechanisms[0]], STREAMS)
        for rows in ([0, 1, 2], [1], [2, 0], [0, 1, 2], [2], [1]):
            fresh = Scoring(seen, [mechanisms[0], mechanisms[1], mechanisms[0]], STREAMS)
            tried = candidates(seen, rows)
            for found, expected in zip(scoring.score(tried), fresh.score(tried), strict=True):
                torch.testing.assert_close(found, expected)

    def test_rows_are_scored_by_their_mechanisms(self, seen: Observations) -> None:
        """As if one mechanism was that of all, in the order of the candidates."""
        mechanisms = [PublicMechanism(GaussianNoise(scale=scale)) for scale in (0.01, 0.1)]
        mixed = Scoring(seen, [mechanisms[0], mechanisms[1], mechanisms[0]], STREAMS)
        alone = [Scoring(seen, [mechanism] * N, STREAMS) for mechanism in mechanisms]
        for rows in ([0, 1, 2], [1, 2, 0], [2, 1, 1, 0]):
            tried = candidates(seen, rows)
            first, second = (scoring.score(tried) for scoring in alone)
            of_second = torch.tensor([row == 1 for row in rows])
            values, derivatives = mixed.score(tried)
            torch.testing.assert_close(values, torch.where(of_second, second[0], first[0]))
            torch.testing.assert_close(derivatives, torch.where(of_second[:, None], second[1], first[1]))

    def test_of_users_it_is_that_of_their_mean(self, tiny_network: Network) -> None:
        """Normal noise on each of three: the score is that of a third of its variance on their mean gradient."""
        users, d = 3, tiny_network.dimension
        target = torch.randn(N, d, generator=torch.Generator().manual_seed(0))
        seen = Observations(tiny_network, tiny_network.parameters, target, (users, 1, 8, 8))
        scoring = Scoring(seen, [PublicMechanism(GaussianNoise(scale=0.1), users)] * N, STREAMS)
        one = Scoring(seen, [PublicMechanism(GaussianNoise(scale=0.1 / users**0.5))] * N, STREAMS)
        gradients = torch.randn(N, users, d, generator=torch.Generator().manual_seed(1))
        images, labels = torch.zeros(N, users, 1, 8, 8), torch.zeros(N, users, dtype=torch.long)
        values, derivatives = scoring.score(Candidates(gradients, images, labels, torch.arange(N)))
        expected, slopes = one.score(Candidates(gradients.mean(dim=1), images, labels, torch.arange(N)))
        torch.testing.assert_close(values, expected)
        torch.testing.assert_close(derivatives, (slopes / users)[:, None].expand(-1, users, -1))

    def test_what_does_not_depend_on_the_gradient_has_no_slope(self, seen: Observations) -> None:
        class Silent(GaussianNoise):
            def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
                return torch.zeros_like(received.values[:, 0])

        values, derivatives = Scoring(seen, [PublicMechanism(Silent(scale=0.1))] * N, STREAMS).score(
            candidates(seen, [0, 1, 2])
        )
        assert not bool(values.any()) and not bool(derivatives.any()) and derivatives.shape == seen.gradients.shape

    def test_of_normal_noise_the_score_is_the_logarithm_of_the_distance(self, seen: Observations) -> None:
        """Far off; near the message it is the distance itself, in nats."""
        scoring = Scoring(seen, [PublicMechanism(GaussianNoise(scale=0.01))] * N, STREAMS)
        tried = candidates(seen, [0, 1, 2])
        d = seen.network.dimension
        for part, expected in (
            (1e-4, lambda square: square / (2 * 0.01**2)),
            (1.0, lambda square: d / 2 * (square / (d * 0.01**2)).log()),
        ):
            near = tried._replace(gradients=seen.gradients + part * tried.gradients)
            inner = (near.gradients * seen.gradients).sum(dim=1)
            square = seen.gradients.square().sum(dim=1) - inner.square() / near.gradients.square().sum(dim=1)
            torch.testing.assert_close(scoring.score(near)[0], expected(square) / (NATS * 64), rtol=2e-2, atol=d * 1e-6)

    @pytest.mark.parametrize(
        "defense", [GaussianNoise(scale=0.1), QSGD(levels=3), Laplace(epsilon=4), MagnitudePruning(fraction=0.5)]
    )
    def test_the_size_of_a_gradient_plays_no_part(self, seen: Observations, defense: Defense) -> None:
        sent = defense.protect_update(given_steps(seen, seen.gradients), STREAMS)
        received = replace(seen, gradients=sent.view(), step=sent.step)
        scoring = Scoring(received, [PublicMechanism(defense)] * N, STREAMS)
        tried = candidates(seen, [0, 1, 2])
        tried = tried._replace(gradients=tried.gradients + seen.gradients)
        values, derivatives = scoring.score(tried)
        scaled, shorter = scoring.score(tried._replace(gradients=4 * tried.gradients))
        torch.testing.assert_close(scaled, values, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(4 * shorter, derivatives, rtol=1e-3, atol=1e-6)
        along = (derivatives * tried.gradients).sum(dim=1).abs()
        assert bool((along < 1e-3 * derivatives.norm(dim=1) * tried.gradients.norm(dim=1)).all())

    def test_derivatives_of_scores(self, seen: Observations) -> None:
        """Against finite differences, the fitted scale included."""
        exact = replace(seen, gradients=seen.gradients.double())
        scoring = Scoring(exact, [PublicMechanism(ClippedNoise(scale=0.3, clip=2.0))] * N, STREAMS)
        tried = candidates(seen, [0, 1, 2])
        tried = tried._replace(gradients=tried.gradients.double() + exact.gradients)
        _, derivatives = scoring.score(tried)
        for coordinate in range(0, seen.network.dimension, 37):
            shift = torch.zeros_like(tried.gradients)
            shift[:, coordinate] = 1e-5
            sides = [scoring.score(tried._replace(gradients=tried.gradients + sign * shift))[0] for sign in (1, -1)]
            torch.testing.assert_close((sides[0] - sides[1]) / 2e-5, derivatives[:, coordinate], rtol=1e-3, atol=1e-7)

    def test_a_mechanism_that_cannot_be_run_says_why(self, seen: Observations) -> None:
        class Numpy(Defense):
            def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
                raise KeyError("table")

            def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
                return torch.from_numpy(steps.gradient.numpy()).sum(dim=1)

        simulation = Simulation(seen, [PublicMechanism(Numpy())] * N, STREAMS)
        with pytest.raises(Infeasible, match="Numpy cannot be run on candidates: KeyError: 'table'"):
            simulation.send(candidates(seen, [0]), 1)
        with pytest.raises(Infeasible, match="Numpy cannot be run on candidates: RuntimeError"):
            Scoring(seen, [PublicMechanism(Numpy())] * N, STREAMS)

    def test_the_step_of_the_code_travels(self, seen: Observations) -> None:
        steps = ClientSteps(
            seen.network, seen.parameters, torch.zeros(N, 1, 1, 8, 8), torch.zeros(N, 1).long(), STREAMS
        )
        message = QSGD(levels=3).protect_update(steps, STREAMS)
        assert isinstance(message, CodedMessage) and message.step is not None
        levels = message.view() / message.step.where(message.step > 0, 1.0)
        torch.testing.assert_close(levels, levels.round(), atol=1e-4, rtol=0)


def likelihood_of_qsgd(levels: int, gradient: torch.Tensor, value: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    class Known:
        pass

    known: Any = Known()
    known.gradient = gradient
    return QSGD(levels=levels).log_likelihood(Received(value, step), known)


class TestStrength:
    """Of single digits under LeNet: the adaptive attacker of a defense sees more than the plain one."""

    def psnr(self, defense: type[Defense], parameters: dict[str, Any], attack: Any) -> float:
        job = Job(
            scale="test",
            paper="test",
            experiment="strength",
            dataset=Variant("digits", Digits, {"size": 16}, {}),
            model=Variant("lenet", MODELS.get("lenet"), {}, {}),
            defense=Variant("defense", defense, parameters, {}),
            attack=Variant("attack", type(attack), attack.parameters(), {}),
            kind=AttackJob(clients=8, batch_size=1, knowledge=("labels", "pixel_range", "mechanism")),
            part="all",
            seeds=(0,),
        )
        values = compute(job, Placement("cpu").resolve()).replicates[0].metrics["psnr"]
        assert isinstance(values, list)
        return statistics.mean(value for value in values if value is not None)

    @pytest.mark.parametrize(
        ("defense", "parameters", "gain"),
        [
            (NoDefense, {}, -0.3),
            (SignSGD, {"scale": "mean_abs"}, 3),
            (MagnitudePruning, {"fraction": 0.95}, 2),
            (ClippedNoise, {"scale": 0.01, "clip": 0.1}, 3),
        ],
        ids=["none", "signs", "pruning", "clipping"],
    )
    def test_simulation(self, defense: type[Defense], parameters: dict[str, Any], gain: float) -> None:
        plain = IGOptimalDefense(iterations=150, **TV)
        assert self.psnr(defense, parameters, Simulated(attack=plain)) > self.psnr(defense, parameters, plain) + gain

    def test_likelihood(self) -> None:
        plain = IGOptimalDefense(iterations=150, **TV)
        assert self.psnr(QSGD, {"levels": 15}, Likelihood(attack=plain)) > self.psnr(QSGD, {"levels": 15}, plain) + 1

    @pytest.mark.parametrize(
        ("defense", "parameters", "gain"),
        [
            (SDQ, {"bits": 8}, 5),
            (SignSGD, {"scale": "mean_abs"}, 2),
            (MagnitudePruning, {"fraction": 0.5}, 5),
            (GaussianNoise, {"scale": 0.01}, 0.5),
            (NoDefense, {}, 10),
        ],
        ids=["lattice", "signs", "pruning", "noise", "none"],
    )
    def test_likelihood_by_line_searches(self, defense: type[Defense], parameters: dict[str, Any], gain: float) -> None:
        plain = DLGWolfe(iterations=80, objective={"kind": "cosine"})
        assert self.psnr(defense, parameters, Likelihood(attack=plain)) > self.psnr(defense, parameters, plain) + gain


def test_a_likelihood_alone_is_searched_from_two_starts(seen: Observations) -> None:
    """One of them is what the attack inside finds when it matches gradients; the likelihood chooses."""
    searched: list[tuple[int, torch.Tensor | None, Reconstruction]] = []

    class Recorded(DLGWolfe):
        def reconstruct(self, observations: Observations, *others: Any) -> Reconstruction:
            found = super().reconstruct(observations, *others)
            searched.append((self.restarts, observations.start, found))
            return found

    known = Knowledge(torch.zeros(N, 1, dtype=torch.long), mechanism=[PublicMechanism(GaussianNoise(scale=0.01))] * N)
    attack = Likelihood(attack=Recorded(iterations=5, labels="known"))
    found = attack.reconstruct(seen, known, STREAMS)
    (plain, nowhere, first), (restarts, start, last) = searched
    assert (plain, restarts) == (1, 2) and nowhere is None and start is not None
    assert torch.equal(start, first.images) and found is last
    from_there = DLGWolfe(iterations=5, labels="known").reconstruct(
        replace(attack.improve(seen, known, STREAMS), start=start), known, STREAMS
    )
    assert found.objective is not None and from_there.objective is not None
    # Two starts side by side are rounded otherwise than one alone.
    assert bool((found.objective <= from_there.objective * (1 + 1e-5)).all())
    assert attack.effort(4).passes == 3 * DLGWolfe(iterations=5, labels="known").effort(4).passes


TV: dict[str, Any] = {"regularisers": [{"kind": "total_variation", "weight": 1e-2}]}


def test_names() -> None:
    assert ATTACKS.get("simulated") is Simulated and ATTACKS.get("likelihood") is Likelihood
    assert Simulated(attack=IGOptimalDefense()).needs >= {"mechanism", "labels"}
    assert Knowledge(mechanism=[PublicMechanism(NoDefense())]).granted() == {"mechanism"}
