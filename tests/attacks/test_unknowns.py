"""Latents and networks that become images; ROG and the untrained decoder against literal loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.attacks.literal import Problem
from torch.nn import functional as F

from leakbench.attacks.engine import TrialData
from leakbench.attacks.gradient_matching import GradientMatching, Search
from leakbench.attacks.interpolation import Interpolation, downfit, upsample
from leakbench.attacks.presets import ROG, UntrainedDecoder
from leakbench.attacks.unknowns import Decoder, Upsampled
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


class Network(torch.nn.Module):
    """The decoder of one image, of torch's own layers, with variables in the order of :class:`Decoder`."""

    def __init__(self, settings: Decoder, channels: int, side: int) -> None:
        super().__init__()
        width, self.sides = settings.channels, [-(-side // 2**level) for level in range(settings.levels, -1, -1)]
        self.latent = torch.nn.Parameter(torch.zeros(1, width, self.sides[0], self.sides[0]))
        layers: list[torch.nn.Module] = []
        for _ in range(settings.levels):
            layers += [torch.nn.Conv2d(width, width, 3, padding=1, bias=False), torch.nn.GroupNorm(width, width)]
        self.layers = torch.nn.ModuleList([*layers, torch.nn.Conv2d(width, channels, 1)])

    def forward(self) -> torch.Tensor:
        maps: torch.Tensor = self.latent
        for level, side in enumerate(self.sides[1:]):
            maps = F.interpolate(maps, (side, side), mode="bilinear")
            maps = self.layers[2 * level + 1](self.layers[2 * level](maps)).relu()
        pixels: torch.Tensor = self.layers[-1](maps).sigmoid()[0]
        return pixels


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(channels=3, levels=2)


def networks(decoder: Decoder, variables: torch.Tensor, channels: int, side: int) -> list[Network]:
    """Networks with the variables ``[B, P]`` of a trial, in float64."""
    made = [Network(decoder, channels, side).double() for _ in variables]
    for network, row in zip(made, variables, strict=True):
        torch.nn.utils.vector_to_parameters(row, network.parameters())
    return made


@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 10), (2, 13)])
def test_decoders_are_those_of_torch(decoder: Decoder, channels: int, side: int) -> None:
    shape, box = (2, channels, side, side), torch.stack([-draws(channels).abs(), draws(channels).abs() + 1])
    box = box[..., None, None]
    variables = decoder.encode(draws(4, *decoder.shape(shape)), box)
    images = decoder.decoder(shape, box, variables)(variables)
    assert images.shape == (4, *shape)
    for trial in range(4):
        for image, network in enumerate(networks(decoder, variables[trial], channels, side)):
            expected = box[0] + (box[1] - box[0]) * network()
            torch.testing.assert_close(images[trial, image], expected.detach(), rtol=0, atol=1e-10)


def test_decoders_start_as_he_et_al_draw_them() -> None:
    decoder, box = Decoder(channels=16, levels=1), torch.tensor([0.0, 1.0]).view(2, 1, 1, 1).double()
    shape = decoder.shape((5, 1, 8, 8))
    (network, *_) = networks(decoder, decoder.encode(draws(*shape), box), 1, 8)
    network.requires_grad_(False)
    convolution, norm, last = network.layers
    assert float(network.latent.std()) == pytest.approx(1, rel=0.1)
    assert float(convolution.weight.std()) == pytest.approx((2 / (9 * 16)) ** 0.5, rel=0.1)  # type: ignore[operator]
    assert norm.weight.eq(1).all() and norm.bias.eq(0).all() and last.bias.eq(0).all()  # type: ignore[operator]


def test_a_search_for_decoders_equals_a_literal_loop(decoder: Decoder) -> None:
    problem = Problem(SimpleConvNet(width=2), (1, 8, 8), batch=2)
    attack = UntrainedDecoder(iterations=6, unknown=decoder, keep="last")
    found, known = problem.attack(attack), problem.knowledge
    assert found.objective is not None and known.pixel_range is not None and known.labels is not None
    low, high = known.pixel_range
    start = problem.streams.child("start").normal(1, *decoder.shape((2, 1, 8, 8))).double()
    for trial in range(len(found.images)):
        made = networks(decoder, decoder.encode(start[trial, 0], known.pixel_range), 1, 8)
        variables = [tensor for network in made for tensor in network.parameters()]
        names = [name for name, _ in problem.module.named_parameters()]
        weights = [parameter.detach().requires_grad_() for parameter in problem.module.parameters()]

        def cost(trial: int = trial, made: list[Network] = made, weights: list[torch.Tensor] = weights) -> torch.Tensor:
            images = torch.stack([low + (high - low) * network() for network in made])
            logits = torch.func.functional_call(problem.module, dict(zip(names, weights, strict=True)), (images,))  # noqa: B023
            loss = F.cross_entropy(logits, known.labels[trial])  # type: ignore[index]
            slopes = torch.autograd.grad(loss, weights, create_graph=True)
            slope = torch.cat([part.flatten() for part in slopes])
            return 1 - F.cosine_similarity(slope, problem.observations.gradients[trial], dim=0)

        optimiser = torch.optim.Adam(variables, lr=0.01)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 6, eta_min=0.001)
        for _ in range(6):
            for variable, slope in zip(variables, torch.autograd.grad(cost(), variables), strict=True):
                variable.grad = slope
            optimiser.step()
            schedule.step()
        images = torch.stack([low + (high - low) * network() for network in made]).detach()
        torch.testing.assert_close(found.images[trial], images, rtol=0, atol=1e-6)
        assert float(found.objective[trial]) == pytest.approx(float(cost().detach()), rel=1e-6)


def test_a_decoder_may_begin_near_images() -> None:
    decoder, box = Decoder(channels=6, levels=2), torch.tensor([-1.0, 2.0]).view(2, 1, 1, 1).double()
    side = torch.linspace(-1, 2, 8, dtype=torch.float64)
    images = torch.stack([side.expand(8, 8), side.expand(8, 8).T])[:, None].expand(2, 2, 1, 8, 8)
    points = decoder.fit(images, box)
    assert points.shape == (2, *decoder.shape((2, 1, 8, 8)))
    assert (decoder.decoder((2, 1, 8, 8), box, points)(points) - images).abs().mean() < 0.1


def test_decoders_that_cannot_be(problem: Problem) -> None:
    with pytest.raises(Infeasible, match="images of 8x8 are too small for 4 levels"):
        problem.attack(UntrainedDecoder(unknown=Decoder(levels=4)))
    with pytest.raises(ValidationError, match="start: the weights of an untrained decoder"):
        UntrainedDecoder(start="grey")
    assert UntrainedDecoder().needs == {"labels", "pixel_range"}
