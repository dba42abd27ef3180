"""The surrogate model of many local steps, against a literal loop, and what it needs no knowledge of."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from tests.attacks.literal import Problem, penalty
from torch.nn import functional as F

from leakbench.attacks.base import ATTACKS, Reconstruction
from leakbench.attacks.optimisers import Adam
from leakbench.attacks.regularisers import TotalVariation
from leakbench.attacks.surrogate import Surrogate
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.models.convnets import SimpleConvNet

LOCAL = LocalTraining(steps=6, rate=0.2, batch_size=2)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(SimpleConvNet(width=2), (1, 8, 8), batch=4, local=LOCAL)


def literal(problem: Problem, attack: Surrogate, trial: int) -> tuple[torch.Tensor, float, float]:
    """Images, ``a`` and objective of a trial, with an optimiser for the images and one for ``a``, as in the paper."""
    seen, known, n = problem.observations, problem.knowledge, attack.iterations
    assert known.labels is not None and known.pixel_range is not None
    low, high = known.pixel_range
    images = problem.streams.child("start").normal(1, *seen.batch_shape)[trial, 0].double().requires_grad_()
    a = torch.tensor(attack.between, dtype=torch.float64, requires_grad=True)
    before = dict(problem.module.named_parameters())
    flat = torch.cat([tensor.flatten() for tensor in before.values()]).detach()
    after = flat - seen.local.rate * seen.gradients[trial]
    module = copy.deepcopy(problem.module)
    sizes = [tensor.numel() for tensor in before.values()]

    def cost() -> torch.Tensor:
        between = ((1 - a) * flat + a * after).split(sizes)
        tensors = {name: part.view_as(tensor) for (name, tensor), part in zip(before.items(), between, strict=True)}
        loss = F.cross_entropy(torch.func.functional_call(module, tensors, (images,)), known.labels[trial])  # type: ignore[index]
        slopes = torch.autograd.grad(loss, list(tensors.values()), create_graph=True)
        slope = torch.cat([part.flatten() for part in slopes])
        distance: torch.Tensor = 1 - F.cosine_similarity(slope, flat - after, dim=0)
        return distance + 0.01 * penalty(attack.regularisers[0], images, module, known.pixel_range)  # type: ignore[arg-type]

    rate = attack.optimiser.rate
    optimisers = [torch.optim.Adam([images], lr=rate), torch.optim.Adam([a], lr=rate * attack.between_rate)]
    milestones = [3 * n // 8, 5 * n // 8, 7 * n // 8]
    schedules = [torch.optim.lr_scheduler.MultiStepLR(each, milestones, gamma=0.1) for each in optimisers]
    for _ in range(n):
        images.grad, a.grad = torch.autograd.grad(cost(), [images, a])
        for optimiser, schedule in zip(optimisers, schedules, strict=True):
            optimiser.step()
            schedule.step()
        with torch.no_grad():
            images.copy_(torch.maximum(torch.minimum(images, high), low))
            a.clamp_(0, 1)
    return images.detach(), float(a.detach()), float(cost().detach())


@pytest.mark.parametrize("between", [0.5, 0.97])
def test_it_equals_a_literal_loop(problem: Problem, between: float) -> None:
    attack = Surrogate(iterations=24, optimiser=Adam(rate=0.1, decay="steps"), between=between, between_rate=0.1)
    found = problem.attack(attack)
    assert found.objective is not None and found.diverged_at.eq(-1).all()
    moved = []
    for trial in range(len(found.images)):
        images, a, objective = literal(problem, attack, trial)
        torch.testing.assert_close(found.images[trial], images, rtol=0, atol=1e-4)
        assert float(found.objective[trial]) == pytest.approx(objective, rel=1e-5)
        moved.append(abs(a - between))
    assert min(moved) > 0.005  # or the comparison would not see how a moves


def lowest(problem: Problem, **parameters: Any) -> torch.Tensor:
    """The final objective of a search without penalties."""
    found = problem.attack(Surrogate.model_validate({"iterations": 60, "regularisers": [], **parameters}))
    assert found.objective is not None
    return found.objective


def test_a_model_between_explains_what_the_first_one_does_not(problem: Problem) -> None:
    assert (lowest(problem, between_rate=0.1) < 0.7 * lowest(problem, between=0, between_rate=0)).all()


def test_order_and_number_of_steps_play_no_part(problem: Problem) -> None:
    """The same update, said to be of other batches, gives the same images: only its length is in units of the rate."""
    attack = Surrogate(iterations=5)
    seen = replace(problem.observations, local=LocalTraining(steps=60, rate=0.2, batch_size=1))
    expected = problem.attack(attack)
    found = attack.reconstruct(seen, problem.knowledge, problem.streams)
    torch.testing.assert_close(found.images, expected.images, rtol=0, atol=1e-9)


@pytest.mark.parametrize("parameters", [{"labels": "joint"}, {"box": False}, {"labels": "joint", "box": False}])
def test_labels_and_borders(problem: Problem, parameters: dict[str, Any]) -> None:
    found: Reconstruction = problem.attack(Surrogate.model_validate({"iterations": 3, **parameters}))
    assert found.images.isfinite().all() and found.labels is not None and found.labels.shape == (3, 4)
    assert problem.knowledge.pixel_range is not None
    low, high = problem.knowledge.pixel_range
    assert bool(((found.images >= low - 1e-9) & (found.images <= high + 1e-9)).all()) == parameters.get("box", True)


def test_one_step_is_infeasible() -> None:
    problem = Problem(SimpleConvNet(width=2), (1, 8, 8), batch=2)
    with pytest.raises(Infeasible, match=r"attack 'surrogate' .* clients take one; list gradient matching"):
        problem.attack(Surrogate())
    found = problem.attack(Surrogate(iterations=1), local=LocalTraining(steps=1, batch_size=1))
    assert found.images.shape == problem.images.shape


def test_quasi_newton_steps_are_rejected() -> None:
    with pytest.raises(ValidationError, match=r"box: quasi-Newton|optimiser: a is projected"):
        Surrogate.model_validate({"optimiser": {"kind": "lbfgs"}})
    with pytest.raises(ValidationError, match="optimiser: a is projected"):
        Surrogate.model_validate({"optimiser": {"kind": "lbfgs"}, "box": False})


def test_it_is_a_component() -> None:
    assert ATTACKS.get("surrogate") is Surrogate and Surrogate().needs == {"labels", "pixel_range"}
    assert not Surrogate().repeats_steps and Surrogate().regularisers == (TotalVariation(weight=0.01),)
