"""A normal law of images by class: its moments, its latents, and the search that weighs it against a message."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from tests.attacks.literal import Half, Problem

from leakbench.attacks.engine import TrialData
from leakbench.attacks.gradient_matching import Search
from leakbench.attacks.image_law import SHARED, SHRINKAGE, ImageLaw
from leakbench.attacks.most_probable import MAP
from leakbench.attacks.noisy_images import PRIOR, PosteriorMean
from leakbench.attacks.objectives import NATS
from leakbench.attacks.plug_and_play import Denoising
from leakbench.attacks.presets import DLG
from leakbench.attacks.unknowns import JITTER, NormalImages, Pixels
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


def moments(law: ImageLaw, label: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and covariance of a class, from the derivative of its images by standard normal latents."""
    means, spreads = law.expected(torch.tensor([[label]]), 1)
    latents = law.means.new_zeros(len(law.examples) + law.means.shape[1])
    derivative = torch.func.jacrev(lambda some: law.images(some, means[0, 0], spreads[0, 0]))(latents)
    return law.images(latents, means[0, 0], spreads[0, 0]), derivative @ derivative.T


@pytest.mark.parametrize("label", [0, 1, 2])
def test_standard_normal_latents_make_images_of_these_moments(law: ImageLaw, label: int) -> None:
    """Class 1 has no images, and so the law of all."""
    for found, expected in zip(moments(law, label), literal_moments(label), strict=True):
        torch.testing.assert_close(found, expected)


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
    wide = torch.tensor([-50.0, 50.0]).double().view(2, 1, 1, 1)  # nothing is clipped
    made.knowledge = replace(made.knowledge, auxiliary_labels=torch.tensor([0, 1, 2, 3, 4, 5, 6]), pixel_range=wide)
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
        mean, covariance = moments(law, int(known.labels[trial, 0]))
        gradient = problem.network.gradient(problem.network.parameters, images[trial], known.labels[trial])
        target = problem.observations.gradients[trial]
        cosine = torch.nn.functional.cosine_similarity(gradient, target, dim=0)
        deviation = images[trial].flatten() - mean
        nats = len(target) / 2 * (1e-6 + 1 - cosine.square()).log()
        nats = nats + deviation @ torch.linalg.solve(covariance, deviation) / 2
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
    assert MAP().without_prior().unknown == Pixels() and MAP().needs == {"labels", "auxiliary_images", "pixel_range"}
    assert [MAP().auxiliary(granted) for granted in (100, 5000)] == [100, 512]
    with pytest.raises(ValidationError, match="every search starts at the mean"):
        MAP(restarts=2)


NOISES = [torch.linspace(0.1, 2.0, 64).double(), torch.diag(torch.linspace(0.1, 2.0, 64)).double() + 0.3]


@pytest.mark.parametrize("noise", NOISES, ids=["variances", "covariance"])
def test_noise_on_images_is_searched_for_with_them(problem: Problem, noise: torch.Tensor) -> None:
    """The shortest latents of what two rounds received are the posterior mean of the image, as the law of both has it.

    Each round has noise of its own, so the mean of what was received has half of it.
    """
    known = replace(problem.knowledge, data_noise=[noise] * 2)
    attack = MAP().of_noisy_images
    assert attack is not None and attack.needs == MAP().needs | {"data_noise"}
    search = Search(attack, replace(problem.observations, later=(problem.observations,)), known)  # type: ignore[arg-type]
    (later,) = search.later
    given = search.given(torch.arange(1))
    of_row: TrialData = {"expected": tuple(part[0] for part in given["expected"])}

    def received(latents: torch.Tensor) -> torch.Tensor:
        images, _ = search.candidates(latents, of_row)
        return torch.cat([each.inputs(images, latents, of_row).flatten() for each in (search, later)])

    start = torch.zeros(search.variables).double()
    derivative, about = torch.func.jacrev(received)(start), received(start)
    noisy = torch.randn(2, 64, generator=generator("noisy")).double()
    shortest = torch.linalg.lstsq(derivative, (noisy.flatten() - about)[:, None], driver="gelsd").solution[:, 0]
    found = search.candidates(shortest, of_row)[0].flatten()
    assert known.auxiliary_images is not None and known.auxiliary_labels is not None and known.labels is not None
    law = ImageLaw.of(known.auxiliary_images, known.auxiliary_labels, 10, 0.02)
    mean, covariance = moments(law, int(known.labels[0, 0]))
    torch.testing.assert_close(found, posterior_mean(noisy.mean(dim=0)[None], mean, covariance, noise / 2)[0])


def test_the_posterior_mean_is_of_the_law_inside(problem: Problem) -> None:
    """An attack with a law finds images without noise; one without gets its images denoised; both have identities."""
    known = replace(problem.knowledge, data_noise=[torch.full((64,), 0.5)] * 2)
    inside = MAP(iterations=5)
    searched = PosteriorMean(attack=inside)
    found = searched.reconstruct(problem.observations, known, problem.streams)
    assert inside.of_noisy_images is not None
    expected = inside.of_noisy_images.reconstruct(problem.observations, known, problem.streams)
    torch.testing.assert_close(found.images, expected.images, rtol=0, atol=0)
    denoised = PosteriorMean(attack=inside, joint=False).reconstruct(problem.observations, known, problem.streams)
    assert not torch.equal(denoised.images, found.images)
    assert "joint" in searched.parameters() and "joint" not in PosteriorMean(attack=DLG()).parameters()


def test_what_a_law_searches_for_is_denoised_with_its_noise(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """A denoiser begins at the image; image and noise, in the mean of the rounds, are what was seen."""
    monkeypatch.setattr("leakbench.attacks.restoration.denoiser.trained_denoiser", lambda *_: Half())
    variance = torch.full((64,), 0.5).double()
    known = replace(problem.knowledge, data_noise=[variance] * 2)
    seen = replace(problem.observations, later=(problem.observations,))
    inside, denoising = MAP(iterations=5), Denoising(levels=2, highest=0.4, lowest=0.1, weight=1 / PRIOR)
    found = PosteriorMean(attack=inside, denoising=denoising).reconstruct(seen, known, problem.streams)
    assert inside.of_noisy_images is not None and MAP(denoising=denoising).of_noisy_images == MAP().of_noisy_images
    raw = inside.of_noisy_images.reconstruct(seen, known, problem.streams)
    assert raw.noisy is not None and not torch.equal(raw.noisy, raw.images)
    images = raw.images
    for deviation in (0.4, 0.1):
        images = images / 2 + deviation**2 / (deviation**2 + 0.25) * (raw.noisy - images / 2)
    torch.testing.assert_close(found.images, images)


def test_goes_on_with_a_denoiser(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Level by level, from the denoised images, of which a standard normal latent moves a pixel by the level."""
    monkeypatch.setattr("leakbench.attacks.restoration.denoiser.trained_denoiser", lambda *_: Half())
    attack = MAP(iterations=5, denoising=Denoising(levels=2, highest=0.4, lowest=0.1, evaluations=3, last=4))
    plain = MAP(iterations=5)
    found, images = problem.attack(attack), problem.attack(plain).images
    for deviation, iterations in ((0.4, 3), (0.1, 4)):
        near = NormalImages().near(images / 2, deviation)
        search = Search(plain.model_copy(update={"unknown": near}), problem.observations, problem.knowledge)
        start = search.starts(problem.streams)
        decoded, _ = search.candidates(start, search.given(torch.arange(2)))
        torch.testing.assert_close(decoded, images / 2)
        decoded, _ = search.candidates(start + 1, search.given(torch.arange(2)))
        torch.testing.assert_close(decoded, images / 2 + deviation)
        images = problem.attack(plain.model_copy(update={"unknown": near, "iterations": iterations})).images
    torch.testing.assert_close(found.images, images, rtol=0, atol=0)


def test_images_of_the_law_are_clipped(problem: Problem) -> None:
    """By hand: what lies outside valid pixels counts for a fiftieth of its distance, so that it still has a slope."""
    narrow = replace(problem.knowledge, pixel_range=torch.tensor([-0.1, 0.2]).double().view(2, 1, 1, 1))
    searches = [Search(MAP(), problem.observations, known) for known in (problem.knowledge, narrow)]
    points = torch.randn(2, searches[0].variables, generator=generator("clipped")).double()
    free, clipped = (search.candidates(points, search.given(torch.arange(2)))[0].flatten() for search in searches)
    assert bool((free < -0.1).any() and (free > 0.2).any())
    for before, after in zip(free.tolist(), clipped.tolist(), strict=True):
        near = min(max(before, -0.1), 0.2)
        assert after == pytest.approx(near + 0.02 * (before - near))


def test_several_images_start_apart(problem: Problem) -> None:
    """Equal images of a class have equal gradients, and would stay equal."""
    pair = Problem(LeNet(), (1, 8, 8), batch=2, trials=2)
    known = replace(
        pair.knowledge, auxiliary_labels=torch.tensor([0, 1, 2, 3, 4, 5, 6]), labels=torch.tensor([[1, 1]] * 2)
    )
    starts = Search(MAP(), pair.observations, known).starts(pair.streams).unflatten(1, (2, -1))
    assert not torch.equal(starts[:, 0], starts[:, 1]) and float(starts.std()) == pytest.approx(JITTER, rel=0.2)


def test_rounds_are_added_up(problem: Problem) -> None:
    """Log-likelihoods of independent messages: with a law of images, twice the same message counts twice."""
    known, seen = problem.knowledge, problem.observations
    once, twice = (Search(MAP(), replace(seen, later=later), known) for later in ((), (seen,)))
    point = once.starts(problem.streams)[0] + 0.1
    values = []
    for search in (once, twice):
        data = search.trial_data(torch.arange(1))
        of_row = torch.utils._pytree.tree_map(lambda part: part[0], data)
        values.append(search.cost()(point, of_row))
    price = NormalImages().surprise(point) / once.nats
    torch.testing.assert_close(values[1], 2 * values[0] - price)
