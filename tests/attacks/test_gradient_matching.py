"""Whole attacks against literal loops per trial; how labels, BatchNorm, noise, weights and restarts enter them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.attacks.literal import Problem, attack_trial

from leakbench.attacks import engine, gradient_matching
from leakbench.attacks.base import Knowledge, KnownInputs, Observations, Reconstruction
from leakbench.attacks.batch_norm import Anchored, estimated_statistics
from leakbench.attacks.engine import Minimum, TrialData
from leakbench.attacks.gradient_matching import GradientMatching, Search
from leakbench.attacks.labels import infer_labels
from leakbench.data.embedded import Digits
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.models.base import BatchNorm, Model, build_network
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.models.lenet import LeNet
from leakbench.randomness import Streams

ADAM = {"kind": "adam", "rate": 0.2, "signed": True, "decay": "steps"}
LBFGS = {"kind": "lbfgs", "tolerance_change": 0.0}
TV = {"kind": "total_variation", "weight": 1e-2}


def matching(**fields: Any) -> GradientMatching:
    """Gradient matching from plain values, as YAML gives them; a few iterations of Inverting Gradients by default."""
    return GradientMatching(**{"objective": {"kind": "cosine"}, "optimiser": ADAM, "iterations": 8} | fields)


def simple(**options: Any) -> Problem:
    return Problem(SimpleConvNet(width=2), (1, 8, 8), **options)


def normalised(**options: Any) -> Problem:
    return Problem(ConvNet(width=1), (3, 9, 9), **options)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return simple()


def assert_as_by_hand(attack: GradientMatching, problem: Problem, weights: torch.Tensor | None = None) -> None:
    found = problem.attack(attack, weights=weights)
    assert found.objective is not None and found.labels is not None
    assert found.diverged_at.eq(-1).all()
    assert (found.images - problem.streams.child("start").normal(*found.images.shape[1:])).abs().max() > 0.1
    for trial in range(len(found.images)):
        images, labels, objective = attack_trial(attack, problem, trial, None if weights is None else weights[trial])
        torch.testing.assert_close(found.images[trial], images, rtol=0, atol=1e-5)
        torch.testing.assert_close(found.objective[trial], objective, rtol=1e-5, atol=1e-5)
        assert torch.equal(found.labels[trial], labels)


class TestEqualsALiteralLoop:
    @pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
    @pytest.mark.parametrize("kind", ["l2", "cosine", "cosine_per_tensor", "l1_l2"])
    def test_objectives(self, problem: Problem, kind: str, weighted: bool) -> None:
        attack = matching(objective={"kind": kind}, regularisers=[TV], box=True)
        assert_as_by_hand(attack, problem, problem.weights if weighted else None)

    @pytest.mark.parametrize("box", [True, False], ids=["box", "free"])
    @pytest.mark.parametrize("decay", ["none", "steps", "cosine"])
    @pytest.mark.parametrize("signed", [True, False], ids=["signed", "plain"])
    def test_adam(self, problem: Problem, signed: bool, decay: str, box: bool) -> None:
        attack = matching(optimiser=ADAM | {"signed": signed, "decay": decay}, box=box, iterations=16)
        assert_as_by_hand(attack, problem)

    @pytest.mark.parametrize(
        "regularisers",
        [
            [TV | {"form": "isotropic"}],
            [TV | {"form": "squared"}, {"kind": "pixel_box", "weight": 0.1}],
            [{"kind": "batch_norm", "weight": 0.01}],
            [TV, {"kind": "pixel_box", "weight": 0}, {"kind": "batch_norm", "weight": 0.001}],
        ],
        ids=["isotropic", "squared and pixel box", "statistics", "several"],
    )
    def test_regularisers(self, regularisers: list[dict[str, Any]]) -> None:
        assert_as_by_hand(matching(regularisers=regularisers), normalised(trials=2))

    @pytest.mark.parametrize("optimiser", [ADAM, ADAM | {"signed": False}], ids=["signed", "plain"])
    @pytest.mark.parametrize(
        ("model", "shape", "mode", "local"),
        [
            (ConvNet(width=1), (3, 9, 9), "eval", {}),
            (ConvNet(width=1), (3, 9, 9), "train", {}),
            (LeNet(width=2), (1, 8, 8), "eval", {}),
            (SimpleConvNet(width=2), (1, 8, 8), "eval", {"steps": 3, "rate": 0.5, "batch_size": 1}),
            (SimpleConvNet(width=2), (1, 8, 8), "eval", {"steps": 3, "rate": 0.5}),
            (ConvNet(width=1), (3, 9, 9), "train", {"steps": 3, "rate": 0.01, "batch_size": 1}),
        ],
        ids=["normalised", "normalised by the batch", "sigmoids", "minibatches", "three steps", "all"],
    )
    def test_networks_and_local_training(
        self, model: Model, shape: tuple[int, int, int], mode: BatchNorm, local: dict[str, Any], optimiser: Any
    ) -> None:
        problem = Problem(model, shape, trials=2, batch_norm=mode, local=LocalTraining(**local))
        assert_as_by_hand(matching(optimiser=optimiser, regularisers=[TV], box=True), problem)

    def test_running_statistics_although_the_clients_use_those_of_their_batches(self) -> None:
        assert_as_by_hand(matching(batch_norm="running"), normalised(batch_norm="train", trials=2))

    @pytest.mark.parametrize("labels", ["joint", "known"])
    @pytest.mark.parametrize("kind", ["l2", "cosine"])
    def test_lbfgs(self, kind: str, labels: str) -> None:
        """Deep Leakage from Gradients, on the network that it was shown on."""
        attack = matching(objective={"kind": kind}, optimiser=LBFGS, labels=labels, iterations=25)
        assert_as_by_hand(attack, Problem(LeNet(width=2), (1, 8, 8), batch=1))

    def test_lbfgs_with_a_line_search_until_it_converges(self) -> None:
        attack = matching(
            objective={"kind": "l2"},
            regularisers=[TV | {"form": "squared", "weight": 0.1}],
            optimiser={"kind": "lbfgs", "line_search": "strong_wolfe", "history": 10},
            iterations=1500,
        )
        assert_as_by_hand(attack, Problem(LeNet(width=2), (1, 8, 8), batch=1))

    def test_adam_on_joint_labels(self) -> None:
        assert_as_by_hand(matching(labels="joint", box=True), Problem(LeNet(width=2), (1, 8, 8)))


def cost_at(attack: GradientMatching, problem: Problem, images: torch.Tensor, **seen: Any) -> torch.Tensor:
    """The objective of every client at given images, ``[n]``, by the attack's own cost."""
    observations = replace(problem.observations, **seen)
    search = Search(attack, observations, problem.knowledge)
    data, cost = search.trial_data(torch.arange(len(images))), search.cost()
    return torch.func.vmap(cost)(images.flatten(1), data)


class TestBatchNorm:
    @pytest.mark.parametrize("kind", ["l2", "cosine"])
    def test_the_truth_explains_the_gradient(self, kind: str) -> None:
        """As the clients computed, or with the statistics of their batches; and not with any others."""
        problem = normalised(batch_norm="train")

        def at_truth(batch_norm: str) -> torch.Tensor:
            attack = matching(objective={"kind": kind}, batch_norm=batch_norm)
            return cost_at(attack, problem, problem.images)

        for exact in ("as_client", "known"):
            torch.testing.assert_close(at_truth(exact), torch.zeros(3).double(), rtol=0, atol=1e-12)
        for other in ("running", "estimated"):
            assert (at_truth(other) > 1e-3).all()

    def test_clients_in_evaluation_mode(self) -> None:
        problem = normalised()
        for exact in ("as_client", "running"):
            attack = matching(batch_norm=exact)
            torch.testing.assert_close(
                cost_at(attack, problem, problem.images), torch.zeros(3).double(), rtol=0, atol=1e-12
            )

    def test_known_statistics_are_each_client_s_own(self) -> None:
        problem = normalised(batch_norm="train")
        known = problem.knowledge.batch_statistics
        assert known is not None
        turned = {name: tensor.roll(1, dims=0) for name, tensor in known.items()}
        problem.knowledge = replace(problem.knowledge, batch_statistics=turned)
        assert (cost_at(matching(batch_norm="known"), problem, problem.images) > 1e-3).all()

    def test_whole_attack_with_known_statistics(self) -> None:
        """By hand, where clients are in evaluation mode: running statistics that are those of the client's batch."""
        problem = normalised()
        attack = matching(batch_norm="known")
        found, known = problem.attack(attack), problem.knowledge.batch_statistics
        assert known is not None and found.objective is not None
        for trial in range(3):
            for name, buffer in problem.module.named_buffers():
                if name in known:
                    buffer.copy_(known[name][trial])
            images, _, objective = attack_trial(attack, problem, trial)
            torch.testing.assert_close(found.images[trial], images, rtol=0, atol=1e-5)
            torch.testing.assert_close(found.objective[trial], objective, rtol=0, atol=1e-5)

    @pytest.mark.parametrize("batch_norm", ["known", "estimated"])
    def test_given_statistics_do_not_move_with_the_candidate(self, batch_norm: str) -> None:
        """In training mode the parameters' gradient flows through the batch's statistics, and their values are given.

        So the logits are those of constant statistics, and the objective's derivative is that of what it computes.
        """
        problem = normalised(batch_norm="train", trials=1, batch=3)
        attack = matching(batch_norm=batch_norm, regularisers=[TV])
        search = Search(attack, problem.observations, problem.knowledge)
        data, cost = search.trial_data(torch.arange(1)), search.cost()
        row: TrialData = {"target": data["target"][0], "labels": data["labels"][0]}
        row["statistics"] = {name: tensor[0] for name, tensor in data["statistics"].items()}
        draw = torch.Generator().manual_seed(4)
        point, direction = torch.randn(2, search.variables, generator=draw).double()
        images = search.candidates(point, {})[0]
        parameters, given = problem.observations.parameters, row["statistics"]
        assert isinstance(search.network, Anchored)
        _, still = search.network._run(parameters, images, given)
        logits, _ = search.network._run(parameters, images, given, still)
        torch.testing.assert_close(logits, problem.network.logits(parameters, images, given))
        step = 1e-6
        difference = (cost(point + step * direction, row) - cost(point - step * direction, row)) / (2 * step)
        slope = torch.func.grad(cost)(point, row) @ direction
        assert slope.abs() > 1e-3
        torch.testing.assert_close(slope, difference, rtol=1e-5, atol=1e-8)

    @pytest.mark.parametrize("mode", ["eval", "train"])
    def test_estimated_statistics(self, mode: BatchNorm) -> None:
        """The mean over batches of two; the seventh image makes no batch."""
        problem = normalised(batch_norm=mode)
        auxiliary = problem.knowledge.auxiliary_images
        assert auxiliary is not None
        network, parameters = problem.network, problem.observations.parameters
        each = [network.batch_statistics(parameters, auxiliary[first : first + 2]) for first in (0, 2, 4)]
        found = estimated_statistics(network, parameters, auxiliary, 2)
        assert set(found) == set(network.running_statistics)
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, (each[0][name] + each[1][name] + each[2][name]) / 3)
        attack = matching(batch_norm="estimated")
        data = Search(attack, problem.observations, problem.knowledge).trial_data(torch.tensor([2, 0]))
        for name, tensor in data["statistics"].items():
            torch.testing.assert_close(tensor, torch.stack([found[name]] * 2))

    def test_too_few_auxiliary_images(self) -> None:
        problem = normalised(batch=8, trials=1)
        with pytest.raises(Infeasible, match="7 auxiliary images make no batch of 8"):
            problem.attack(matching(batch_norm="estimated"))

    @pytest.mark.parametrize("batch_norm", ["known", "estimated", "running"])
    def test_networks_without_batch_norm_do_not_care(self, problem: Problem, batch_norm: str) -> None:
        plain = problem.attack(matching(iterations=2))
        assert torch.equal(problem.attack(matching(iterations=2, batch_norm=batch_norm)).images, plain.images)

    def test_the_penalty_is_zero_where_the_statistics_are_from(self) -> None:
        """Known statistics are matched exactly by the truth; as the client, the running ones are the target."""
        problem = normalised(batch_norm="train")

        def penalty(batch_norm: str) -> torch.Tensor:
            regularisers = [{"kind": "batch_norm", "weight": 1.0}]
            plain = cost_at(matching(batch_norm=batch_norm), problem, problem.images)
            attack = matching(batch_norm=batch_norm, regularisers=regularisers)
            return cost_at(attack, problem, problem.images) - plain

        torch.testing.assert_close(penalty("known"), torch.zeros(3).double(), rtol=0, atol=1e-12)
        assert (penalty("as_client") > 1).all() and (penalty("estimated") > 0.1).all()


class TestLabels:
    @pytest.mark.parametrize(("method", "batch"), [("idlg", 1), ("distinct", 2), ("repeated", 2), ("counts", 2)])
    def test_inferred_ones_are_used_and_returned(self, method: Any, batch: int) -> None:
        problem = simple(batch=batch)
        inferred = infer_labels(problem.observations, method)
        truth, problem.knowledge = problem.knowledge, replace(problem.knowledge, labels=None)
        found = problem.attack(matching(labels=method, iterations=3))
        assert found.labels is not None and torch.equal(found.labels, inferred)
        problem.knowledge = replace(truth, labels=inferred)
        told = problem.attack(matching(iterations=3))
        assert torch.equal(told.images, found.images)
        problem.knowledge = replace(truth, labels=(inferred + 1) % 10)
        wrong = problem.attack(matching(iterations=3))
        assert wrong.labels is not None and torch.equal(wrong.labels, (inferred + 1) % 10)
        assert not torch.allclose(wrong.images, found.images, atol=0.05)

    def test_joint_ones_are_the_optimised_scores(self, monkeypatch: pytest.MonkeyPatch) -> None:
        problem = Problem(LeNet(width=2), (1, 8, 8))
        problem.knowledge = replace(problem.knowledge, labels=None)
        minima = recorded(monkeypatch)
        found = problem.attack(matching(objective={"kind": "l2"}, optimiser=LBFGS, labels="joint", iterations=30))
        points = minima[0].points
        assert points.shape == (3, 2 * 64 + 2 * 10)
        torch.testing.assert_close(found.images.flatten(1), points[:, :128], rtol=0, atol=0)
        assert found.labels is not None
        assert torch.equal(found.labels, points[:, 128:].view(3, 2, 10).argmax(dim=2))
        starts = problem.streams.child("labels").normal(1, 20).view(3, 2, 10)
        assert not torch.equal(found.labels, starts.argmax(dim=2))

    def test_scores_are_not_projected(self) -> None:
        problem = Problem(LeNet(width=2), (1, 8, 8))
        search = Search(matching(labels="joint", box=True), problem.observations, problem.knowledge)
        low, high = search.bounds() or (None, None)
        assert low is not None and high is not None
        assert low.tolist() == pytest.approx([-0.9] * 128 + [-torch.inf] * 20)
        assert high.tolist() == pytest.approx([1.1] * 128 + [torch.inf] * 20)


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Minimum]:
    """What the engine returns, as it does."""
    minima: list[Minimum] = []

    def watched(*given: Any, **options: Any) -> Minimum:
        minima.append(engine.minimise(*given, **options))
        return minima[-1]

    monkeypatch.setattr(gradient_matching, "minimise", watched)
    return minima


class TestStarts:
    @staticmethod
    def starts(problem: Problem, **fields: Any) -> torch.Tensor:
        search = Search(matching(**fields), problem.observations, problem.knowledge)
        found = search.starts(problem.streams)
        assert found.dtype == torch.float64
        return found

    def test_normal(self, problem: Problem) -> None:
        draws = problem.streams.child("start").normal(4, 2, 1, 8, 8).double()
        assert torch.equal(self.starts(problem, restarts=4), draws.flatten(0, 1).flatten(1))

    def test_uniform_over_valid_pixels(self) -> None:
        problem = normalised()
        draws = problem.streams.child("start").uniform(200, 2, 3, 9, 9).double().flatten(0, 1)
        found = self.starts(problem, start="uniform", restarts=200).view(600, 2, 3, 9, 9)
        low, high = problem.knowledge.pixel_range  # type: ignore[misc]
        torch.testing.assert_close(found, draws * high + (1 - draws) * low)
        for channel in range(3):
            pixels = found[:, :, channel]
            assert float(pixels.min()) == pytest.approx(float(low[channel]), abs=1e-2) and pixels.min() >= low[channel]
            assert float(pixels.max()) == pytest.approx(float(high[channel]), abs=1e-2)
            assert pixels.max() <= high[channel]

    def test_grey(self) -> None:
        problem = normalised()
        found = self.starts(problem, start="grey", restarts=2).view(6, 2, 3, 9, 9)
        for channel, grey in enumerate((0.1, 0.2, 0.3)):
            torch.testing.assert_close(found[:, :, channel], torch.full((6, 2, 9, 9), grey).double())

    def test_scores_follow_the_images(self) -> None:
        problem = Problem(LeNet(width=2), (1, 8, 8))
        scores = problem.streams.child("labels").normal(3, 20).double()
        found = self.starts(problem, labels="joint", restarts=3, start="grey")
        assert torch.equal(found[:, 128:], scores.flatten(0, 1)) and found[:, :128].unique().numel() == 1

    @pytest.mark.parametrize("fields", [{}, {"labels": "joint", "restarts": 2}, {"start": "uniform", "box": True}])
    def test_a_victim_s_result_does_not_depend_on_its_batch_mates(
        self, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In float32, where a lone trial's kernels round otherwise: so it runs beside its copy."""
        problem = Problem(LeNet(width=2), (1, 8, 8))
        seen = problem.observations
        assert problem.knowledge.pixel_range is not None
        known = replace(problem.knowledge, pixel_range=problem.knowledge.pixel_range.float())
        problem.network._module.float()
        observations = replace(seen, parameters=seen.parameters.float(), gradients=seen.gradients.float())
        attack = matching(iterations=10, **fields)
        together = attack.reconstruct(observations, known, problem.streams)
        assert known.labels is not None and together.labels is not None

        def agree(one: Reconstruction, other: Reconstruction) -> None:
            torch.testing.assert_close(one.images, other.images, rtol=0, atol=1e-5)
            torch.testing.assert_close(one.objective, other.objective, rtol=0, atol=1e-5)
            assert torch.equal(one.labels, other.labels)  # type: ignore[arg-type]

        for client in range(3):
            row = slice(client, client + 1)
            alone = attack.reconstruct(
                replace(observations, gradients=observations.gradients[row]),
                replace(known, labels=known.labels[row]),
                Streams(problem.streams.keys[row]),
            )
            chosen = Reconstruction(
                *(getattr(together, name)[row] for name in ("images", "objective", "diverged_at", "labels"))
            )
            agree(alone, chosen)
        for chunk in (1, 2):
            monkeypatch.setattr(engine, "chunk_size", lambda *_, size=chunk: size)
            agree(attack.reconstruct(observations, known, problem.streams), together)


class TestRestarts:
    def test_the_lowest_objective_of_its_own_wins(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        """A restart that diverged loses to any that did not, whatever its objective."""
        nan, inf = torch.nan, torch.inf
        objective = torch.tensor([0.3, 0.1, 0.2, nan, 0.9, 0.05, nan, nan, inf])
        diverged_at = torch.tensor([-1, -1, -1, 4, -1, 2, 0, 1, 2])
        seen: dict[str, Any] = {}

        def stand_in(cost: object, points: torch.Tensor, data: Any, *rest: Any, **more: Any) -> Minimum:
            seen.update(data(torch.arange(9)))
            return Minimum(points, objective, diverged_at)

        monkeypatch.setattr(gradient_matching, "minimise", stand_in)
        found = problem.attack(matching(restarts=3), weights=problem.weights)
        rows = [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert torch.equal(seen["target"], problem.observations.gradients[rows])
        assert torch.equal(seen["weights"], problem.weights[rows])
        assert problem.knowledge.labels is not None
        assert torch.equal(seen["labels"], problem.knowledge.labels[rows])
        starts = problem.streams.child("start").normal(3, 2, 1, 8, 8).double()
        assert torch.equal(found.images, starts[[0, 1, 2], [1, 1, 0]])
        assert found.diverged_at.tolist() == [-1, -1, 0]
        assert found.objective is not None and found.objective[:2].tolist() == pytest.approx([0.1, 0.9])

    def test_each_observation_keeps_its_best(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        minima = recorded(monkeypatch)
        found = problem.attack(matching(restarts=4, regularisers=[TV]))
        objectives = minima[0].objective.view(3, 4)
        assert len(objectives.unique()) == 12
        assert found.objective is not None and torch.equal(found.objective, objectives.amin(dim=1))
        first = problem.attack(matching(regularisers=[TV]))
        assert first.objective is not None
        torch.testing.assert_close(first.objective, objectives[:, 0], rtol=0, atol=1e-9)
        assert (found.objective < first.objective).any()

    def test_a_broken_observation_is_marked_alone(self, problem: Problem) -> None:
        gradients = problem.observations.gradients.clone()
        gradients[1, 0] = torch.nan
        whole, broken = problem.attack(matching(restarts=2)), problem.attack(matching(restarts=2), gradients=gradients)
        assert broken.diverged_at.tolist() == [-1, 0, -1]
        torch.testing.assert_close(broken.images[[0, 2]], whole.images[[0, 2]], rtol=0, atol=1e-9)
        assert broken.images.isfinite().all()


class TestTrust:
    @pytest.mark.parametrize("kind", ["l2", "cosine", "cosine_per_tensor", "l1_l2"])
    def test_a_coordinate_of_weight_zero_has_no_say(self, problem: Problem, kind: str) -> None:
        attack = matching(objective={"kind": kind}, iterations=4)
        ignored = problem.weights == 0
        gradients = torch.where(ignored, -1e200, problem.observations.gradients)
        plain = problem.attack(attack, weights=problem.weights)
        huge = problem.attack(attack, weights=problem.weights, gradients=gradients)
        torch.testing.assert_close(huge.images, plain.images, rtol=0, atol=0)
        torch.testing.assert_close(huge.objective, plain.objective, rtol=0, atol=0)
        assert huge.diverged_at.eq(-1).all()
        trusted = problem.attack(attack, gradients=problem.observations.gradients + 3 * ignored)
        assert not torch.allclose(trusted.images, plain.images, atol=0.05)


class TestOptions:
    def test_projected_quasi_newton_steps_are_refused(self) -> None:
        with pytest.raises(ValidationError, match="quasi-Newton steps cannot be projected"):
            matching(optimiser=LBFGS, box=True)

    @pytest.mark.parametrize(
        ("fields", "needs"),
        [
            ({}, {"labels"}),
            ({"labels": "joint"}, set()),
            *(({"labels": method}, set()) for method in ("idlg", "distinct", "repeated", "counts")),
            ({"box": True}, {"labels", "pixel_range"}),
            ({"start": "uniform"}, {"labels", "pixel_range"}),
            ({"start": "grey", "labels": "joint"}, {"pixel_range"}),
            ({"batch_norm": "as_client"}, {"labels"}),
            ({"batch_norm": "running"}, {"labels"}),
            ({"batch_norm": "known"}, {"labels", "batch_statistics"}),
            ({"batch_norm": "estimated"}, {"labels", "auxiliary_images"}),
            ({"regularisers": [TV, {"kind": "batch_norm", "weight": 1}]}, {"labels"}),
            ({"regularisers": [TV, {"kind": "pixel_box", "weight": 1}]}, {"labels", "pixel_range"}),
        ],
    )
    def test_needs(self, fields: dict[str, Any], needs: set[str]) -> None:
        """Exactly what is declared is looked at: the attack runs on that alone."""
        attack = matching(iterations=1, **fields)
        assert attack.needs == needs
        problem = Problem(SimpleConvNet(width=2), (1, 8, 8), batch=1, trials=1)
        if attack.batch_norm != "as_client" or attack.regularisers:
            problem = normalised(trials=1)
        granted = Knowledge(**{name: getattr(problem.knowledge, name) for name in needs})
        problem.knowledge = granted
        assert problem.attack(attack).images.isfinite().all()

    def test_the_engine_gets_the_options(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        seen: dict[str, Any] = {}

        def stand_in(cost: object, points: torch.Tensor, data: Any, *rest: Any, **more: Any) -> Minimum:
            seen.update(more, rest=rest)
            return Minimum(points, torch.zeros(3), torch.full((3,), -1))

        monkeypatch.setattr(gradient_matching, "minimise", stand_in)
        attack = matching(box=True, keep="best", stop_below=0.1, iterations=7)
        problem.attack(attack)
        low, high = seen.pop("bounds")
        assert low.tolist() == pytest.approx([-0.9] * 128) and high.tolist() == pytest.approx([1.1] * 128)
        assert seen == {"rest": (attack.optimiser, 7), "stop_below": 0.1, "keep": "best", "interlude": None}
        problem.attack(matching())
        assert seen == {
            "rest": (attack.optimiser, 8),
            "stop_below": None,
            "keep": "last",
            "bounds": None,
            "interlude": None,
        }

    def test_penalties_of_weight_zero_are_not_computed(self, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = problem.attack(matching(iterations=2))
        attack = matching(iterations=2, regularisers=[TV | {"weight": 0}])
        monkeypatch.setattr(type(attack.regularisers[0]), "__call__", None)
        assert torch.equal(problem.attack(attack).images, plain.images)

    @pytest.mark.slow
    def test_recovers_digits(self) -> None:
        """Without a defense, single digits come back far clearer than the mean of other digits."""
        digits = Digits(size=16)
        network = build_network(SimpleConvNet(width=16), digits.shape, digits.classes, seed=0)
        samples = digits.load("test", range(1, 5))
        pixels, labels = samples.values[:, None], samples.labels[:, None]
        inputs = digits.normalise(pixels)
        gradients = torch.func.vmap(network.gradient, in_dims=(None, 0, 0))(network.parameters, inputs, labels)
        observations = Observations(network, network.parameters, gradients, (1, *digits.shape))
        knowledge = Knowledge(labels, digits.normalise(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1)))
        attack = matching(regularisers=[TV | {"weight": 1e-6}], iterations=200, box=True)
        found = attack.reconstruct(observations, knowledge, Streams([("digits", trial) for trial in range(4)]))

        def psnr(images: torch.Tensor) -> torch.Tensor:
            return -10 * (images - pixels).square().flatten(1).mean(dim=1).log10()

        recovered = psnr(digits.denormalise(found.images).clamp(0, 1)).median()
        assert recovered > 20
        assert recovered > psnr(digits.load("train", range(512)).values.mean(dim=0)).median() + 6


class TestKnownInputs:
    @staticmethod
    def known(problem: Problem) -> KnownInputs:
        """The first third of every image's pixels, of the second client two thirds; elsewhere there is no value."""
        pixel = torch.arange(problem.images[0, 0].numel()).view(problem.images.shape[2:])
        parts = torch.tensor([1, 2, 1]).view(-1, 1, 1, 1, 1) / 3
        where = (pixel < parts * pixel.numel()).expand_as(problem.images)
        return KnownInputs(where, problem.images.where(where, torch.nan))

    @staticmethod
    def attack(problem: Problem, known: KnownInputs, iterations: int, rows: slice = slice(None)) -> Reconstruction:
        seen = replace(problem.observations, gradients=problem.observations.gradients[rows])
        assert problem.knowledge.labels is not None
        labels = problem.knowledge.labels[rows]
        knowledge = replace(problem.knowledge, labels=labels, inputs=KnownInputs(*(part[rows] for part in known)))
        streams = Streams(problem.streams.keys[rows])
        return matching(iterations=iterations).reconstruct(seen, knowledge, streams)

    def test_are_kept_and_the_others_searched_for(self, problem: Problem) -> None:
        known = self.known(problem)
        first, last = (self.attack(problem, known, iterations) for iterations in (1, 60))
        assert torch.equal(last.images[known.where], problem.images[known.where])
        assert first.objective is not None and last.objective is not None
        assert (last.objective < 0.7 * first.objective).all()

    def test_all_of_them_leave_nothing_to_match(self, problem: Problem) -> None:
        everything = KnownInputs(torch.ones_like(problem.images, dtype=torch.bool), problem.images)
        found = self.attack(problem, everything, 1)
        assert torch.equal(found.images, problem.images)
        assert found.objective is not None and found.objective.abs().max() < 1e-9

    def test_are_those_of_their_observation(self, problem: Problem) -> None:
        known = self.known(problem)
        together = self.attack(problem, known, 8)
        alone = self.attack(problem, known, 8, slice(1, 2))
        torch.testing.assert_close(together.images[1:2], alone.images, rtol=0, atol=1e-9)

    def test_of_every_setting_of_a_defense(self, problem: Problem) -> None:
        known = self.known(problem)
        twice = known.repeat(2)
        assert torch.equal(twice.where, torch.cat([known.where] * 2)) and len(twice.values) == 2 * len(known.values)
