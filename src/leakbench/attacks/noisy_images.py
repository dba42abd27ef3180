"""Images of clients that add noise of a known covariance to them: found with the noise, then without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

from pydantic import Field

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS, Attack, Grant, Knowledge, Observations, Reconstruction, each_round
from leakbench.attacks.plug_and_play import Denoising
from leakbench.attacks.rows import rows_of_each
from leakbench.data.covariance import moments_of
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.theory.denoising import WhitePrior, posterior_mean

PRIOR = 0.5
"""Factor of what deviations from denoised images cost, beside that of ``denoising``. Ours: given exact noisy images of
training data, it did best of 0.2 to 1.5 under the natural and the personalized channel."""


@ATTACKS.register("posterior_mean", version=3)
class PosteriorMean(Wrapper):
    """Denoise the reconstruction: noise was on the images, so a perfect reconstruction is noisy.

    The attack inside searches for the noisy images, so without a box of valid pixels and without penalties that clean
    images alone keep small. The linear estimate is the one of least mean squared error, which no other beats on normal
    images: what it errs by given the exact noisy images is
    :func:`leakbench.theory.reconstruction_bound.gaussian_error`. Mean and covariance come from auxiliary images. A
    denoiser knows more of images: where it is the prior, that estimate is the first one.

    Noise is drawn anew in every round, so that single images are reconstructed from each, and their mean is denoised.
    An attack inside that has a law of images searches for images and noise at once, under the law of both, with noise
    of its own in every round (``joint``): its images are the estimate, and with their noise the noisy ones.
    """

    adds: ClassVar[frozenset[Grant]] = frozenset({"auxiliary_images", "data_noise"})
    added: ClassVar[tuple[str, ...]] = ("denoising",)

    error: float = Field(
        0.1,
        ge=0,
        description="variance of what the attack inside errs by, as a part of the images' mean variance per pixel; "
        "with none, directions in which images hardly differ would be taken at their word",
    )
    joint: bool = Field(
        True,
        description="of an attack with a law of images: search for images and noise at once, without such errors",
    )
    denoising: Denoising | None = Field(None, description="go on with a denoiser as the prior; by default do not")

    def parameters(self) -> dict[str, Any]:
        parameters = super().parameters()
        if self.attack.of_noisy_images is None:
            parameters.pop("joint")  # which then says nothing
        return parameters

    @property
    def _searched(self) -> Attack | None:
        """The attack inside that searches for the noise, too; None where it leaves noise on its images."""
        return self.attack.of_noisy_images if self.joint else None

    def varied(self, prior: float, rate: float) -> Attack:
        # The more the reconstruction is believed to err, the more the images' distribution counts.
        return self.model_copy(update={"attack": self.attack.varied(prior, rate), "error": prior * self.error})

    @property
    def needs(self) -> frozenset[Grant]:
        needed = (self._searched or self.attack.without_prior()).needs | self.adds
        return needed if self.denoising is None else needed | {"pixel_range"}

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        if knowledge.data_noise is None:
            raise Infeasible("the defense adds no noise of a known covariance to the images")
        assert knowledge.auxiliary_images is not None
        moments = moments_of(knowledge.auxiliary_images)
        if (attack := self._searched) is not None:
            reconstruction = attack.reconstruct(observations, knowledge, streams)
            images, noisy = reconstruction.images, reconstruction.noisy
            assert noisy is not None
            noises = _shared(knowledge.data_noise, 1 + len(observations.later), 0.0, moments.covariance)
        else:
            reconstruction, rounds = self._noisy(observations, knowledge, streams)
            noisy = reconstruction.images
            error = self.error * float(moments.covariance.diagonal().mean())
            noises = _shared(knowledge.data_noise, rounds, error, moments.covariance)
            flat = noisy.flatten(-3).clone()
            for rows, covariance in noises:
                flat[rows] = posterior_mean(flat[rows], moments.mean, moments.covariance, covariance)
            images = flat.view_as(noisy)
        if self.denoising is not None:
            images = self._refined(self.denoising, images, noisy, noises, knowledge)
        return replace(reconstruction, images=images, noisy=None)

    def _noisy(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> tuple[Reconstruction, int]:
        """Noisy images, the means of so many rounds."""
        attack = self.attack.without_prior()
        if not observations.later or observations.batch_shape[0] > 1:  # each round orders a batch anew
            return attack.reconstruct(observations, knowledge, streams), 1
        rounds = [
            attack.reconstruct(*each, streams.child("round", number) if number else streams)
            for number, each in enumerate(each_round(observations, knowledge))
        ]
        return replace(rounds[0], images=torch.stack([each.images for each in rounds]).mean(dim=0)), len(rounds)

    @staticmethod
    def _refined(
        denoising: Denoising,
        images: torch.Tensor,
        noisy: torch.Tensor,
        noises: Sequence[_Noise],
        knowledge: Knowledge,
    ) -> torch.Tensor:
        """Estimates ``[n, B, C, H, W]`` of noisy images, with a denoiser as the prior, from first ones."""
        seen, spectra = noisy.flatten(-3), [WhitePrior.of(each.covariance) for each in noises]
        for stage in denoising.stages(knowledge):
            flat = stage.denoised(images).flatten(-3)
            for (rows, _), white in zip(noises, spectra, strict=True):
                flat[rows] = white.posterior_mean(seen[rows], flat[rows], stage.deviation**2 / PRIOR)
            images = flat.view_as(images)
        return images


class _Noise(NamedTuple):
    """Noise of one covariance on the images of several observations.

    Attributes:
        rows: these observations: clients of one setting.
        covariance: ``[d]`` if it is diagonal, else ``[d, d]``.
    """

    rows: list[int]
    covariance: torch.Tensor


def _shared(noises: Sequence[torch.Tensor], rounds: int, error: float, like: torch.Tensor) -> list[_Noise]:
    """Covariances of the means of so many rounds, and white noise of the variance ``error`` beside it."""
    shared = []
    for rows in rows_of_each(noises):
        covariance = noises[rows[0]].to(like) / rounds
        white = covariance.new_full((len(covariance),), error)
        shared.append(_Noise(rows, covariance + (white if covariance.dim() == 1 else white.diag())))
    return shared
