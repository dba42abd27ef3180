"""Federated averaging without its order: against a literal loop, and on clients that shuffle in every epoch."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from tests.attacks.literal import Problem, penalty
from torch.nn import functional as F

from leakbench.attacks.base import ATTACKS, Knowledge, Observations
from leakbench.attacks.labels import infer_labels
from leakbench.attacks.optimisers import Adam
from leakbench.attacks.unordered import SameImages, Unordered, averaged_copies
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.models.convnets import SimpleConvNet
from leakbench.models.lenet import LeNet
from leakbench.randomness import generator

EPOCHS, IMAGES, SIZE = 3, 4, 2
LOCAL = LocalTraining(steps=EPOCHS * IMAGES // SIZE, rate=0.2, batch_size=SIZE)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(SimpleConvNet(width=2), (1, 8, 8), batch=IMAGES, local=LOCAL)


def shuffled(problem: Problem, client: int, orders: torch.Tensor) -> torch.Tensor:
    """The update of a client that goes through its images in these orders, ``[E, N]``."""
    assert problem.knowledge.labels is not None
    images, labels, now = problem.images[client], problem.knowledge.labels[client], problem.network.parameters
    for place in orders.flatten().split(SIZE):
        now = now - LOCAL.rate * problem.network.gradient(now, images[place], labels[place])
    return (problem.network.parameters - now) / LOCAL.rate


def same_images(epochs: list[torch.Tensor], settings: SameImages) -> torch.Tensor:
    """The mean over pairs of epochs of squared differences of a function of their images."""
    values = epochs
    if settings.filters:
        drawn = torch.randn(settings.filters, 1, 3, 3, generator=generator("filters of epochs")).double() / 3
        values = [F.conv2d(images, drawn, padding=1) for images in epochs]
    sets = [each.mean(dim=0) if settings.over == "mean" else each.max(dim=0).values for each in values]
    return torch.stack([(a - b).pow(2).mean() for a in sets for b in sets]).mean()


def literal(problem: Problem, attack: Unordered, trial: int) -> tuple[torch.Tensor, float]:
    """Images and objective of one trial: a list of epochs, steps one by one, and all permutations at last."""
    seen, known, n = problem.observations, problem.knowledge, attack.iterations
    assert known.labels is not None and known.pixel_range is not None
    low, high = known.pixel_range
    streams = problem.streams.at([trial])
    start = streams.child("start").normal(1, EPOCHS * IMAGES, 1, 8, 8)[0, 0].double()
    epochs = [images.clone().requires_grad_() for images in start.split(IMAGES)]
    keys = streams.child("places").uniform(1, IMAGES)[0, 0]
    labels = known.labels[trial].sort().values[keys.argsort()]
    parameters = dict(problem.module.named_parameters())

    def cost() -> torch.Tensor:
        now = {name: tensor.detach().requires_grad_() for name, tensor in parameters.items()}
        first = torch.cat([tensor.flatten() for tensor in now.values()])
        for images in epochs:
            for place in torch.arange(IMAGES).split(SIZE):
                logits = torch.func.functional_call(problem.module, now, (images[place],))
                loss = F.cross_entropy(logits, labels[place])
                slopes = torch.autograd.grad(loss, list(now.values()), create_graph=True)
                now = {name: now[name] - LOCAL.rate * slope for name, slope in zip(now, slopes, strict=True)}
        moved = first - torch.cat([tensor.flatten() for tensor in now.values()])
        value = 1 - F.cosine_similarity(moved, seen.gradients[trial], dim=0)
        smooth = penalty(attack.regularisers[0], torch.cat(epochs), problem.module, known.pixel_range)  # type: ignore[arg-type]
        return value + 0.01 * smooth + attack.same_images.weight * same_images(epochs, attack.same_images)

    optimiser = torch.optim.Adam(epochs, lr=0.1)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [3 * n // 8, 5 * n // 8, 7 * n // 8], gamma=0.1)
    for _ in range(n):
        for images, slope in zip(epochs, torch.autograd.grad(cost(), epochs), strict=True):
            images.grad = slope.sign()
        optimiser.step()
        schedule.step()
        with torch.no_grad():
            for images in epochs:
                images.copy_(torch.maximum(torch.minimum(images, high), low))
    objective = float(cost().detach())
    return matched([images.detach() for images in epochs], labels), objective


def matched(epochs: list[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
    """The first epoch, averaged with each of the others in its best order, of all that keep the labels."""
    total = epochs[0].clone()
    orders = [torch.tensor(order) for order in itertools.permutations(range(len(labels)))]
    for images in epochs[1:]:
        fitting = [order for order in orders if torch.equal(labels[order], labels)]
        total += min((images[order] for order in fitting), key=lambda each: float((each - epochs[0]).pow(2).sum()))
    return total / len(epochs)


@pytest.mark.parametrize("settings", [SameImages(), SameImages(over="mean", filters=0, weight=1.0)])
def test_it_equals_a_literal_loop(problem: Problem, settings: SameImages) -> None:
    attack = Unordered(iterations=8, labels="known", same_images=settings)
    found = problem.attack(attack)
    assert found.objective is not None
    for trial in range(len(found.images)):
        images, objective = literal(problem, attack, trial)
        torch.testing.assert_close(found.images[trial], images, rtol=0, atol=1e-6)
        assert float(found.objective[trial]) == pytest.approx(objective, rel=1e-5)


def test_epochs_in_any_order_explain_a_client_that_shuffles(problem: Problem) -> None:
    """The images in the orders that the client drew have distance and penalty zero; in one order they have not."""
    draw = torch.Generator().manual_seed(0)
    orders = torch.stack([torch.randperm(IMAGES, generator=draw) for _ in range(EPOCHS)])
    seen = replace(problem.observations, gradients=shuffled(problem, 0, orders)[None])
    knowledge = problem.knowledge.at([0])
    attack = Unordered(regularisers=(), labels="known", same_images=SameImages(weight=1.0))
    search = attack._search(seen, knowledge)
    search.starts(problem.streams.at([0]))
    data = search.trial_data(torch.tensor([0]))
    assert knowledge.labels is not None

    def cost(places: torch.Tensor) -> float:
        point = problem.images[0][places].flatten()
        row = {"target": data["target"][0], "labels": knowledge.labels[0][places]}  # type: ignore[index]
        return float(search.cost()(point, row))  # type: ignore[arg-type]

    assert cost(orders.flatten()) == pytest.approx(0, abs=1e-9)
    assert cost(torch.arange(IMAGES).repeat(EPOCHS)) > 1e-6


def test_no_order_is_granted(problem: Problem) -> None:
    """Labels in another order give the same images: those that are known are a set."""
    assert problem.knowledge.labels is not None
    attack = Unordered(iterations=3, labels="known", restarts=2)
    other = Knowledge(labels=problem.knowledge.labels.flip(1), pixel_range=problem.knowledge.pixel_range)
    expected = problem.attack(attack)
    found = attack.reconstruct(problem.observations, other, problem.streams)
    assert torch.equal(found.images, expected.images)
    assert expected.labels is not None and expected.labels.shape == (3, IMAGES)
    assert torch.equal(expected.labels.sort(dim=1).values, problem.knowledge.labels.sort(dim=1).values)


def test_restarts_place_labels_otherwise(problem: Problem) -> None:
    attack = Unordered(labels="known", restarts=6)
    search = attack._search(problem.observations, problem.knowledge)
    points = search.starts(problem.streams)
    placed = search.trial_data(torch.arange(len(points)))["labels"].unflatten(0, (3, 6))
    assert placed.shape == (3, 6, EPOCHS * IMAGES)
    assert torch.equal(placed[..., :IMAGES].repeat(1, 1, EPOCHS), placed)
    assert all(len(client.unique(dim=0)) > 1 for client in placed)


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [5, 5, 5, 5], [5, 5, 1, 1]])
def test_copies_are_assigned_as_by_all_permutations(labels: list[int]) -> None:
    epochs = torch.randn(3, 4, 1, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = averaged_copies(epochs, torch.tensor(labels))
    torch.testing.assert_close(found, matched(list(epochs), torch.tensor(labels)), rtol=0, atol=1e-12)
    shuffled_copies = torch.stack([epochs[0], epochs[0].flip(0)])
    if len(set(labels)) == 1:
        torch.testing.assert_close(averaged_copies(shuffled_copies, torch.tensor(labels)), epochs[0])


def test_one_epoch_has_no_copies() -> None:
    local = LocalTraining(steps=2, rate=0.2, batch_size=2)
    problem = Problem(SimpleConvNet(width=2), (1, 8, 8), batch=4, local=local)
    light, heavy = (
        problem.attack(Unordered(iterations=3, labels="known", same_images=SameImages(weight=weight)))
        for weight in (0, 9)
    )
    assert torch.equal(light.images, heavy.images)


def test_parts_of_epochs_are_infeasible(problem: Problem) -> None:
    attack = Unordered(labels="known")
    with pytest.raises(Infeasible, match=r"attack 'unordered' needs whole epochs: .* are 1.50 epochs of 4"):
        problem.attack(attack, local=LocalTraining(steps=3, batch_size=2))
    with pytest.raises(ValidationError, match="labels: 'joint' scores belong to places"):
        Unordered(labels="joint")


def test_interpolated_labels_are_literal() -> None:
    """Counts from the mean softmax output along the way: at least as many right as with that of the first model."""
    problem = Problem(LeNet(width=4, activation="relu", initialisation="default"), (1, 8, 8), batch=8, trials=8)
    local = LocalTraining(steps=4, rate=2.0)
    assert problem.knowledge.labels is not None
    pairs = list(zip(problem.images, problem.knowledge.labels, strict=True))
    gradients = torch.stack([local.update(problem.network, problem.network.parameters, *pair) for pair in pairs])
    seen = Observations(problem.network, problem.network.parameters, gradients, (8, 1, 8, 8), local)
    inputs = torch.randn(64, 1, 8, 8, generator=generator("label inference")).double()
    expected = []
    for gradient in gradients:
        models = [problem.network.parameters - step / 4 * 2.0 * gradient for step in range(4)]
        softmax = torch.stack([problem.network.logits(model, inputs).softmax(1).mean(0) for model in models]).mean(0)
        counts = 8 * (softmax - gradient[problem.network.head.bias] / 4)
        present = gradient[problem.network.head.bias] < 0
        labels = []
        for _ in range(8):
            allowed = counts.where(present, -torch.inf) if present.any() else counts
            labels.append(int(allowed.argmax()))
            counts[labels[-1]] -= 1
            present[labels[-1]] = False
        expected.append(sorted(labels))
    found = infer_labels(seen, "interpolated")
    assert found.tolist() == expected
    truth = problem.knowledge.labels.sort(dim=1).values

    def right(labels: torch.Tensor) -> int:
        return sum(
            int(torch.minimum(a.bincount(minlength=10), b.bincount(minlength=10)).sum())
            for a, b in zip(labels, truth, strict=True)
        )

    assert right(found) >= right(infer_labels(seen, "counts"))
    own = replace(seen, parameters=seen.parameters.expand(8, -1))
    assert torch.equal(infer_labels(own, "interpolated"), found)


def test_it_is_a_component() -> None:
    assert ATTACKS.get("unordered") is Unordered and Unordered().needs == {"pixel_range"}
    assert Unordered(optimiser=Adam(rate=0.2)).varied(2.0, 0.5).optimiser == Adam(rate=0.1)
