"""A normal law of images by class: its moments, its latents, and the search that weighs it against a message."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from tests.attacks.literal import Problem

from leakbench.attacks.adaptive import PosteriorMean
from leakbench.attacks.gradient_matching import Search
from leakbench.attacks.image_law import SHARED, SHRINKAGE, ImageLaw
from leakbench.attacks.objectives import NATS
from leakbench.attacks.presets import MAP
from leakbench.attacks.unknowns import NormalImages, Pixels
from leakbench.models.lenet import LeNet
from leakbench.randomness import generator
from leakbench.theory.denoising import posterior_mean

LABELS = torch.tensor([0, 0, 0, 2, 2, 0, 2])
FLOOR = 0.05


def images_of(seed: str, count: int = len(LABELS)) -> torch.Tensor:
    return torch.randn(count, 1, 2, 3, generator=generator("law", seed), dtype=torch.float64)


@pytest.fixture(scope="module")
def law() -> ImageLaw:
    return ImageLaw.of(images_of("pool"), LABELS, 3, FLOOR)


def literal_moments(label: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean ``[P]`` and covariance ``[P, P]`` of a class, by sums over the examples one by one."""
    flat = images_of("pool").flatten(1)
    overall = flat.mean(dim=0)
    means = {}
    for kind in range(3):
        own = [image for image, other in zip(flat, LABELS.tolist(), strict=True) if other == kind]
        means[kind] = (sum(own, torch.zeros(6).double()) + SHRINKAGE * overall) / (len(own) + SHRINKAGE)
    deviations = [image - means[other] for image, other in zip(flat, LABELS.tolist(), strict=True)]
    own = [each for each, other in zip(deviations, LABELS.tolist(), strict=True) if other == label]
    shared = SHARED if own else 1.0
    covariance = shared * torch.stack([torch.outer(each, each) for each in deviations]).mean(dim=0)
    if own:
        covariance += (1 - shared) * torch.stack([torch.outer(each, each) for each in own]).mean(dim=0)
    return means[label], covariance + FLOOR * torch.stack(deviations).square().mean() * torch.eye(6)


@pytest.mark.parametrize("label", [0, 1, 2])
def test_moments_are_those_of_the_class_and_of_all(law: ImageLaw, label: int) -> None:
    """Class 1 has no images, and so the law of all."""
    mean, covariance = literal_moments(label)
    moments = law.moments(label)
    torch.testing.assert_close(moments.mean, mean)
    torch.testing.assert_close(moments.covariance, covariance)


@pytest.mark.parametrize("label", [0, 1, 2])
def test_standard_normal_latents_make_images_of_these_moments(law: ImageLaw, label: int) -> None:
    """By the derivative of the images by the latents, whose square is their covariance."""
    means, spreads = law.expected(torch.tensor([[label]]), 1)
    derivative = torch.func.jacrev(lambda latents: law.images(latents, means[0, 0], spreads[0, 0]))(
        torch.zeros(7 + 6).double()
    )
    mean, covariance = literal_moments(label)
    torch.testing.assert_close(derivative @ derivative.T, covariance)
    torch.testing.assert_close(law.images(torch.zeros(13).double(), means[0, 0], spreads[0, 0]), mean)


def test_latents_of_images_are_the_shortest(law: ImageLaw) -> None:
    """Their length is the distance of Mahalanobis, so that searching for them has the density as its price."""
    labels = torch.tensor([[0, 1], [2, 2]])
    means, spreads = law.expected(labels, 2)
    images = images_of("others", 4).flatten(1).unflatten(0, (2, 2))
    latents = law.latents(images, means, spreads)
    torch.testing.assert_close(law.images(latents, means, spreads), images)
    for row in range(2):
        for place in range(2):
            mean, covariance = literal_moments(int(labels[row, place]))
            deviation = images[row, place] - mean
            torch.testing.assert_close(
                latents[row, place].square().sum(), deviation @ torch.linalg.solve(covariance, deviation)
            )


def test_uncertain_labels_have_the_average_law(law: ImageLaw) -> None:
    certain = law.expected(torch.tensor([[2]]), 1)
    hot = law.expected(torch.tensor([[[0.0, 0.0, 1.0]]]).double(), 1)
    for one, other in zip(certain, hot, strict=True):
        torch.testing.assert_close(one, other)
    unknown = law.expected(None, 2)
    assert [part.shape for part in unknown] == [(1, 2, 6), (1, 2, 7)]
    torch.testing.assert_close(unknown[0][0, 1], law.means.mean(dim=0))
    torch.testing.assert_close(unknown[1][0, 1].square(), law.spreads.square().mean(dim=0))


@pytest.fixture(scope="module")
def problem() -> Problem:
    made = Problem(LeNet(), (1, 8, 8), batch=1, trials=2)
    made.knowledge = replace(made.knowledge, auxiliary_labels=torch.tensor([0, 1, 2, 3, 4, 5, 6]))
    return made


def test_the_objective_is_the_profile_and_the_density(problem: Problem) -> None:
    """In nats per 64 an input, against literal sums at an image that is not the mean."""
    attack, known = MAP(), problem.knowledge
    assert known.auxiliary_images is not None and known.auxiliary_labels is not None and known.labels is not None
    images = problem.images + 0.3
    search = Search(attack, replace(problem.observations, start=images), known)
    assert bool((Search(attack, problem.observations, known).starts(problem.streams) == 0).all())
    starts, cost = search.starts(problem.streams), search.cost()
    law = ImageLaw.of(known.auxiliary_images, known.auxiliary_labels, 10, attack.unknown.floor)  # type: ignore[union-attr]
    for trial in range(2):
        data = {name: part[0] for name, part in search.trial_data(torch.tensor([trial])).items() if name != "expected"}  # type: ignore[index]
        data["expected"] = tuple(part[0] for part in search.trial_data(torch.tensor([trial]))["expected"])
        label = int(known.labels[trial, 0])
        moments, gradient = (
            law.moments(label),
            problem.network.gradient(problem.network.parameters, images[trial], known.labels[trial]),
        )
        target = problem.observations.gradients[trial]
        cosine = torch.nn.functional.cosine_similarity(gradient, target, dim=0)
        deviation = images[trial].flatten() - moments.mean
        nats = len(target) / 2 * (1e-6 + 1 - cosine.square()).log()
        nats = nats + deviation @ torch.linalg.solve(moments.covariance, deviation) / 2
        assert float(cosine) > 0.1
        torch.testing.assert_close(cost(starts[trial], data), nats / (NATS * 64), rtol=1e-6, atol=0)  # type: ignore[arg-type]


def test_finds_what_the_law_makes_likely(problem: Problem) -> None:
    """From an exact message the image; and where nothing was received that says anything, the mean of the class."""
    known = problem.knowledge
    assert known.auxiliary_images is not None and known.auxiliary_labels is not None and known.labels is not None
    found = problem.attack(MAP(iterations=400))
    law = ImageLaw.of(known.auxiliary_images, known.auxiliary_labels, 10, 0.02)
    guess = law.expected(known.labels, 1)[0].view_as(problem.images)
    error, blind = ((images - problem.images).square().mean() for images in (found.images, guess))
    assert error < 0.05 * blind
    nothing = replace(
        problem.observations,
        gradients=torch.randn(problem.observations.gradients.shape, generator=generator("nothing")).double(),
    )
    alone = MAP(iterations=50, unknown=NormalImages(weight=1e6)).reconstruct(nothing, known, problem.streams)
    torch.testing.assert_close(alone.images, guess, rtol=0, atol=1e-2)


def test_more_of_the_prior_and_none() -> None:
    strong = MAP().varied(10.0, 1.0)
    assert isinstance(strong.unknown, NormalImages) and strong.unknown.weight == 10.0
    assert MAP().without_prior().unknown == Pixels() and MAP().needs == {"labels", "auxiliary_images"}
    assert [MAP().auxiliary(granted) for granted in (100, 5000)] == [100, 512]
    with pytest.raises(ValidationError, match="every search starts at the mean"):
        MAP(restarts=2)


def test_a_noisy_image_is_denoised_by_the_law_of_its_class(problem: Problem) -> None:
    """Where the attack inside has such a law; one without gets the moments of all auxiliary images."""
    known, noise = problem.knowledge, [torch.full((64,), 0.5)] * 2
    assert known.auxiliary_images is not None and known.auxiliary_labels is not None and known.labels is not None
    inside = MAP(iterations=5)
    found = PosteriorMean(attack=inside, error=0).reconstruct(
        problem.observations, replace(known, data_noise=noise), problem.streams
    )
    noisy = inside.without_prior().reconstruct(problem.observations, known, problem.streams).images
    law = ImageLaw.of(known.auxiliary_images, known.auxiliary_labels, 10, 0.02)
    for row in range(2):
        moments = law.moments(int(known.labels[row, 0]))
        expected = posterior_mean(noisy[row].flatten(1), moments.mean, moments.covariance, noise[0])
        torch.testing.assert_close(found.images[row].flatten(1), expected)
