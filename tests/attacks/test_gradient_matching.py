"""Whole attacks against literal loops per trial; how labels, BatchNorm, noise, weights and restarts enter them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.attacks.literal import Problem, attack_trial

from leakbench.attacks.gradient_matching import GradientMatching
from leakbench.federated.local import LocalTraining
from leakbench.models.base import BatchNorm, Model
from leakbench.models.convnets import ConvNet, SimpleConvNet
from leakbench.models.lenet import LeNet

ADAM = {"kind": "adam", "rate": 0.2, "signed": True, "decay": "steps"}
LBFGS = {"kind": "lbfgs", "tolerance_change": 0.0}
TV = {"kind": "total_variation", "weight": 1e-2}
THREE_STEPS = LocalTraining(steps=3, rate=0.5, batch_size=1)


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
        assert_as_by_hand(matching(regularisers=regularisers), normalised())

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
        problem = Problem(model, shape, batch_norm=mode, local=LocalTraining(**local))
        assert_as_by_hand(matching(optimiser=optimiser, regularisers=[TV], box=True), problem)

    def test_running_statistics_although_the_clients_use_those_of_their_batches(self) -> None:
        assert_as_by_hand(matching(batch_norm="running"), normalised(batch_norm="train"))

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
