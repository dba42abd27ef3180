"""Noise on images is taken off: by a linear estimate, with a denoiser as the prior, in one round and several."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import pytest
import torch
from tests.attacks.literal import Half

from leakbench.attacks.adaptive import Masked
from leakbench.attacks.base import Attack, Knowledge, Observations, Reconstruction
from leakbench.attacks.noisy_images import PRIOR, PosteriorMean
from leakbench.attacks.plug_and_play import Denoising
from leakbench.attacks.presets import IGOptimalDefense
from leakbench.data.covariance import moments_of
from leakbench.data.embedded import Digits
from leakbench.defenses.channel import NaturalChannel, PersonalizedChannel, WhiteChannel
from leakbench.errors import Infeasible
from leakbench.federated.client_data import ClientData
from leakbench.randomness import Streams
from leakbench.theory.denoising import posterior_mean

STREAMS = Streams([("adaptive", row) for row in range(3)])


class Oracle(Attack):
    """Finds the noisy images exactly."""

    name: ClassVar[str] = "oracle"
    version: ClassVar[int] = 1
    found: ClassVar[list[torch.Tensor]] = []

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        (images,) = self.found
        return Reconstruction(images, None, torch.full((len(observations),), -1))


def test_helps_against_channels(observations: Observations) -> None:
    """Even a perfect reconstruction is a noisy image; mean and covariance of other digits take most noise off."""
    data = Digits(size=8)
    auxiliary = data.normalise(data.load("train", range(500)).values)
    clean = data.normalise(data.load("test", range(6)).values).view(3, 2, 1, 8, 8)
    victims = ClientData(data.normalise(data.load("train", range(500, 1000)).values)[None])
    for kind in (NaturalChannel, WhiteChannel, PersonalizedChannel):
        channel = kind(kappa=20).calibrate(victims)
        assert isinstance(channel, NaturalChannel | WhiteChannel | PersonalizedChannel)
        noisy = channel.protect_dataset(clean, torch.zeros(3, 2), STREAMS)[0]
        noise = channel.data_noise[0].covariance
        Oracle.found[:] = [noisy]
        knowledge = Knowledge(auxiliary_images=auxiliary, data_noise=[noise, noise, noise.clone()])
        attack = PosteriorMean(attack=Oracle(), error=0)
        assert attack.needs == {"auxiliary_images", "data_noise"}
        found = attack.reconstruct(observations, knowledge, STREAMS).images
        moments = moments_of(auxiliary)
        literal = posterior_mean(noisy.flatten(2), moments.mean, moments.covariance, noise)
        torch.testing.assert_close(found.flatten(2), literal)
        before, after = ((images - clean).square().mean() for images in (noisy, found))
        assert float(after) < 0.75 * float(before), kind


def test_an_attack_that_errs_trusts_no_direction_for_its_lack_of_variance(observations: Observations) -> None:
    """Noise that vanishes where images hardly differ: what the attack errs by there must not be blown up."""
    data = Digits(size=8)
    auxiliary = data.normalise(data.load("train", range(150)).values)
    clean = data.normalise(data.load("test", range(6)).values).view(3, 2, 1, 8, 8)
    channel = WhiteChannel(kappa=50).calibrate(
        ClientData(data.normalise(data.load("train", range(500, 1000)).values)[None])
    )
    assert isinstance(channel, WhiteChannel)
    noisy = channel.protect_dataset(clean, torch.zeros(3, 2), STREAMS)[0]
    Oracle.found[:] = [noisy + 0.3 * torch.randn(noisy.shape, generator=torch.Generator().manual_seed(0))]
    knowledge = Knowledge(auxiliary_images=auxiliary, data_noise=[channel.data_noise[0].covariance] * 3)

    def error(share: float) -> float:
        found = PosteriorMean(attack=Oracle(), error=share).reconstruct(observations, knowledge, STREAMS).images
        return float((found - clean).square().mean())

    assert error(0.1) < 0.5 * error(0)


def test_the_search_is_for_noisy_images(observations: Observations) -> None:
    data = Digits(size=8)
    auxiliary = data.normalise(data.load("train", range(150)).values)
    noise = 0.3 * torch.eye(64, dtype=torch.float64)
    bounds = data.normalise(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1))
    knowledge = Knowledge(torch.tensor([[1], [2], [3]]), bounds, auxiliary, data_noise=[noise] * 3)
    boxed = IGOptimalDefense(iterations=5)
    free = boxed.model_copy(update={"box": False, "regularisers": ()})
    attack = PosteriorMean(attack=Masked(attack=boxed), error=0)
    assert attack.needs == {"labels", "auxiliary_images", "data_noise"}
    found = attack.reconstruct(observations, knowledge, STREAMS).images
    noisy = Masked(attack=free).reconstruct(observations, knowledge, STREAMS).images
    assert bool((noisy > bounds[1]).any()) and attack.attack == Masked(attack=boxed)
    moments = moments_of(auxiliary)
    expected = posterior_mean(noisy.flatten(2), moments.mean, moments.covariance, noise)
    torch.testing.assert_close(found.flatten(2), expected)


def test_a_denoiser_does_better_than_the_linear_estimate(observations: Observations) -> None:
    """Exact noisy images: its squared error is a twentieth less, or better, though the linear estimate is clipped."""
    data = Digits(size=8)
    auxiliary = data.normalise(data.load("train", range(500)).values)
    bounds = data.normalise(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1))
    clean = data.normalise(data.load("test", range(150)).values).view(3, 50, 1, 8, 8)
    victims = ClientData(data.normalise(data.load("train", range(500, 1000)).values)[None])
    for kind in (NaturalChannel, WhiteChannel):
        channel = kind(kappa=20).calibrate(victims)
        assert isinstance(channel, NaturalChannel | WhiteChannel)
        noise = channel.data_noise[0].covariance
        Oracle.found[:] = [channel.protect_dataset(clean, torch.zeros(3, 50), STREAMS)[0]]
        known = Knowledge(auxiliary_images=auxiliary, pixel_range=bounds, data_noise=[noise] * 3)

        def found(attack: Attack, known: Knowledge = known) -> torch.Tensor:
            return attack.reconstruct(observations, known, STREAMS).images

        learned = PosteriorMean(attack=Oracle(), error=0, denoising=Denoising(training=200))
        assert learned.needs == {"auxiliary_images", "data_noise", "pixel_range"}
        denoised, linear = found(learned), found(PosteriorMean(attack=Oracle(), error=0)).clamp(*bounds)
        before, after = (float((images.clamp(*bounds) - clean).square().mean()) for images in (linear, denoised))
        assert after < 0.95 * before, kind
        torch.testing.assert_close(found(learned), denoised, rtol=0, atol=0)


def test_noisy_images_pull_by_the_size_of_their_noise(
    observations: Observations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand, with a denoiser that halves: a mean of what it expects and what was seen, weighed by variances."""
    monkeypatch.setattr("leakbench.attacks.restoration.denoiser.trained_denoiser", lambda *_: Half())
    noisy = torch.randn(3, 1, 1, 8, 8, generator=torch.Generator().manual_seed(0)).double()
    Oracle.found[:] = [noisy]
    noises = [torch.full((64,), 0.5).double(), torch.eye(64).double()]
    auxiliary = Digits(size=8).load("train", range(150)).values.double()
    known = Knowledge(
        pixel_range=torch.tensor([-9.0, 9.0]).view(2, 1, 1, 1),
        auxiliary_images=auxiliary,
        data_noise=[noises[0], noises[1], noises[0]],
    )
    denoising = Denoising(levels=2, highest=0.4, lowest=0.1, weight=0.25 / PRIOR)
    found = PosteriorMean(attack=Oracle(), error=0, denoising=denoising).reconstruct(observations, known, STREAMS)
    first = PosteriorMean(attack=Oracle(), error=0).reconstruct(observations, known, STREAMS).images
    for row, variance in enumerate((0.5, 1.0, 0.5)):
        image = first[row]
        for deviation in (0.8, 0.2):  # over the root of the weight
            expected = image / 2
            share = deviation**2 / (deviation**2 + variance)
            image = expected + share * (noisy[row] - expected)
        torch.testing.assert_close(found.images[row], image)


def test_rounds_have_noise_of_their_own(observations: Observations) -> None:
    """Single images of several rounds are denoised in their mean, as if the noise had that part of its variance."""
    data = Digits(size=8)
    auxiliary = data.normalise(data.load("train", range(150)).values)
    noise = 0.3 * torch.eye(64, dtype=torch.float64)
    known = Knowledge(auxiliary_images=auxiliary, data_noise=[noise] * 3)
    first, second = torch.randn(2, 3, 1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    single = replace(observations, batch_shape=(1, 1, 8, 8))
    rounds = replace(single, later=(replace(single, gradients=single.gradients + 1),))

    class OfRound(Attack):
        """Finds another image in each round."""

        def reconstruct(self, seen: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
            assert not seen.later
            images = first if torch.equal(seen.gradients, single.gradients) else second
            return Reconstruction(images, None, torch.full((len(seen),), -1))

    OfRound.name, OfRound.version = "of_round", 1
    found = PosteriorMean(attack=OfRound(), error=0).reconstruct(rounds, known, STREAMS).images
    moments = moments_of(auxiliary)
    expected = posterior_mean(((first + second) / 2).flatten(2), moments.mean, moments.covariance, noise / 2)
    torch.testing.assert_close(found.flatten(2), expected)


def test_needs_noise_on_the_images(observations: Observations) -> None:
    with pytest.raises(Infeasible, match="no noise of a known covariance to the images"):
        PosteriorMean(attack=Oracle()).reconstruct(observations, Knowledge(), STREAMS)
