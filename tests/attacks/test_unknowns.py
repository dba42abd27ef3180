"""Latents that become images, and ROG against a literal loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.attacks.literal import Problem
from torch.nn import functional as F

from leakbench.attacks.engine import TrialData
from leakbench.attacks.gradient_matching import GradientMatching, Search
from leakbench.attacks.interpolation import Interpolation, downfit, upsample
from leakbench.attacks.presets import ROG
from leakbench.attacks.unknowns import Upsampled
from leakbench.errors import Infeasible
from leakbench.federated.local import LocalTraining
from leakbench.models.convnets import SimpleConvNet

MODES: list[Interpolation] = ["bicubic", "bilinear", "nearest"]
LOCAL = LocalTraining(steps=3, rate=0.3, batch_size=2)


def draws(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(SimpleConvNet(width=2), (1, 8, 8), batch=4, local=LOCAL)


@given(
    mode=st.sampled_from(MODES),
    h=st.integers(1, 9),
    w=st.integers(1, 9),
    up=st.integers(1, 5),
    across=st.integers(1, 5),
)
def test_upsampling_is_that_of_torch(mode: Interpolation, h: int, w: int, up: int, across: int) -> None:
    images, side = draws(2, 3, h, w), (up * h, across * w)
    expected = F.interpolate(images, side, mode=mode)
    torch.testing.assert_close(upsample(images, side, mode), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(upsample(images.float(), side, mode), expected.float(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_fit_finds_the_latent_and_else_the_nearest(mode: Interpolation) -> None:
    latents = draws(2, 1, 3, 4)
    images = upsample(latents, (9, 12), mode)
    torch.testing.assert_close(downfit(images, 3, mode), latents, rtol=0, atol=1e-12)
    images = draws(2, 1, 9, 12)
    found = downfit(images, 3, mode)
    rest = images - upsample(found, (9, 12), mode)
    for _ in range(3):  # orthogonal to whatever upsampling makes
        other = upsample(torch.randn_like(found), (9, 12), mode)
        assert abs(float((rest * other).sum())) < 1e-10
    assert downfit(images, 3, "nearest")[0, 0, 0, 0] == pytest.approx(float(images[0, 0, :3, :3].mean()))


def test_latents_are_pixels() -> None:
    """Whatever the normalisation: black is 0, and white is 1."""
    unknown, box = Upsampled(factor=2), torch.tensor([[-2.0, -1.0], [3.0, 5.0]]).view(2, 2, 1, 1)
    decode = unknown.decoder((1, 2, 4, 4), box, torch.zeros(1))
    for value in (0.0, 1.0, 0.25):
        images = decode(torch.full((1, 2, 2, 2), value))
        expected = (box[0] + value * (box[1] - box[0])).expand(2, 4, 4)
        torch.testing.assert_close(images[0], expected)
        torch.testing.assert_close(unknown.encode(images[:, :, :2, :2], box), torch.full((1, 2, 2, 2), value))


def literal(problem: Problem, attack: GradientMatching, trial: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images and objective of one trial of ROG, with torch's own Adam, schedule and interpolation."""
    seen, known = problem.observations, problem.knowledge
    assert known.pixel_range is not None and known.labels is not None
    low, high = known.pixel_range
    stream = problem.streams.child("start").uniform(1, seen.batch_shape[0], 1, 2, 2)
    latent = stream[trial, 0].double().requires_grad_()
    names = [name for name, _ in problem.module.named_parameters()]

    def images() -> torch.Tensor:
        made: torch.Tensor = low + (high - low) * F.interpolate(latent, scale_factor=4, mode="bicubic")
        return made

    def cost() -> torch.Tensor:
        first = now = [parameter.detach().requires_grad_() for parameter in problem.module.parameters()]
        for step in range(3):
            part = slice(2 * (step % 2), 2 * (step % 2) + 2)
            logits = torch.func.functional_call(problem.module, dict(zip(names, now, strict=True)), (images()[part],))
            loss = F.cross_entropy(logits, known.labels[trial][part])  # type: ignore[index]
            slopes = torch.autograd.grad(loss, now, create_graph=True)
            now = [tensor - 0.3 * slope for tensor, slope in zip(now, slopes, strict=True)]
        update = torch.cat([((a - b) / 0.3).flatten() for a, b in zip(first, now, strict=True)])
        value: torch.Tensor = (update - seen.gradients[trial]).square().sum()
        return value

    optimiser = torch.optim.Adam([latent], lr=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, attack.iterations, eta_min=0.005)
    for _ in range(attack.iterations):
        (latent.grad,) = torch.autograd.grad(cost(), latent)
        optimiser.step()
        schedule.step()
    return images().detach(), cost().detach()


def test_rog_equals_a_literal_loop(problem: Problem) -> None:
    attack = ROG(iterations=12)
    found = problem.attack(attack)
    assert found.objective is not None and found.diverged_at.eq(-1).all()
    for trial in range(len(found.images)):
        images, objective = literal(problem, attack, trial)
        torch.testing.assert_close(found.images[trial], images, rtol=0, atol=1e-6)
        torch.testing.assert_close(found.objective[trial], objective, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("parts", [{}, {"labels": "joint"}, {"regularisers": [{"kind": "pixel_box", "weight": 0.1}]}])
def test_the_unrolled_gradient_is_that_of_finite_differences(problem: Problem, parts: dict[str, Any]) -> None:
    search = Search(ROG.model_validate(parts), problem.observations, problem.knowledge)
    point = search.starts(problem.streams)[0]
    assert point.shape == (4 * 4 + (40 if parts.get("labels") else 0),)
    data, cost = search.trial_data(torch.arange(1)), search.cost()
    row: TrialData = {"target": data["target"][0]}
    if "labels" in data:
        row["labels"] = data["labels"][0]
    slope = torch.func.grad(cost)(point, row)
    step = 1e-5
    for direction in torch.eye(len(point), dtype=torch.float64)[::3]:
        difference = (cost(point + step * direction, row) - cost(point - step * direction, row)) / (2 * step)
        torch.testing.assert_close(slope @ direction, difference, rtol=1e-4, atol=1e-8)


def test_a_search_may_begin_where_another_ended(problem: Problem) -> None:
    begun = ROG(iterations=5)
    first = problem.attack(begun)
    search = Search(ROG(restarts=2), replace(problem.observations, start=first.images), problem.knowledge)
    starts = search.candidates(search.starts(problem.streams), {})[0].unflatten(0, (-1, 2))
    torch.testing.assert_close(starts[:, 0], first.images)
    fresh = Search(ROG(restarts=2), problem.observations, problem.knowledge)
    others = fresh.candidates(fresh.starts(problem.streams), {})[0].unflatten(0, (-1, 2))
    assert torch.equal(starts[:, 1], others[:, 1]) and not torch.allclose(starts[:, 0], others[:, 0])


def test_images_that_have_no_such_latents(problem: Problem) -> None:
    with pytest.raises(Infeasible, match="8x8 have no latents that are 3 times smaller"):
        problem.attack(ROG(unknown=Upsampled(factor=3)))
    assert ROG().needs == {"labels", "pixel_range"}
