"""The way back from images that a defense has changed, learned from auxiliary images that the attacker changes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import ClassVar, NamedTuple

from pydantic import Field

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS, Grant, Knowledge, Mechanism, Observations, Reconstruction
from leakbench.attacks.rows import rows_of_each
from leakbench.lazy import torch
from leakbench.randomness import Streams


@ATTACKS.register("undone", version=2)
class Undone(Wrapper):
    """Turn reconstructed images back into what they were before a defense changed them.

    The attack inside finds the images that clients computed on. The attacker changes auxiliary images by its copy of
    the mechanism, all of them with the same randomness, and that several times. Each reconstruction is taken to be of
    the randomness under which it is likeliest, by the normal law of the images that were changed so, and goes back by
    the linear regression of the images on the changed ones; or stays, if that errs less on auxiliary images that were
    left out.

    Made for few ways of changing an image, of which one is among those tried: noise it takes for a shift.
    """

    adds: ClassVar[frozenset[Grant]] = frozenset({"auxiliary_images", "mechanism"})

    draws: int = Field(128, ge=1, description="ways of changing images that are tried")
    images: int = Field(512, ge=2, description="most auxiliary images to learn from")
    error: float = Field(
        0.01, gt=0, description="variance of what the attack inside errs by, as a part of the images' mean variance"
    )

    def reconstruct(self, observations: Observations, knowledge: Knowledge, streams: Streams) -> Reconstruction:
        assert knowledge.mechanism is not None
        changed = self.attack
        if changed.image_law(observations, knowledge) is not None:
            changed = changed.without_prior()  # the law is that of the images before
        reconstruction = changed.reconstruct(observations, knowledge, streams)
        images = reconstruction.images.clone()
        for rows in rows_of_each(knowledge.mechanism):
            # The same for all rows, whatever is attacked beside them.
            ways = self._ways(knowledge, knowledge.mechanism[rows[0]], Streams([("undone",)]))
            flat = images[rows].flatten(0, 1).flatten(1)
            likely = torch.stack([way.log_density(flat) for way in ways]).argmax(dim=0)
            for number, way in enumerate(ways):
                flat = torch.where((likely == number)[:, None], way.back(flat), flat)
            images[rows] = flat.view_as(images[rows])
        if knowledge.pixel_range is not None:
            images = images.clamp(*knowledge.pixel_range)
        return replace(reconstruction, images=images)

    def _ways(self, knowledge: Knowledge, mechanism: Mechanism, streams: Streams) -> list[_Way]:
        """The ways of changing images that one mechanism was seen to take."""
        assert knowledge.auxiliary_images is not None and knowledge.auxiliary_labels is not None
        clean = knowledge.auxiliary_images[: self.images]
        alone = clean[:, None].expand(-1, mechanism.users, *clean.shape[1:])  # an image is the first user's
        labels = knowledge.auxiliary_labels[: self.images, None].expand(-1, mechanism.users)
        ways = []
        for draw in range(self.draws):
            alike = streams.child(draw).repeat(len(clean))
            changed = mechanism.protected(alone, labels, alike)[:, 0]
            ways.append(_Way.of(clean.flatten(1), changed.flatten(1), self.error))
        return ways


class _Way(NamedTuple):
    """A normal law of changed images, and the regression of images on them; in the span of ``m`` of both.

    Attributes:
        clean_mean: ``[pixels]``.
        mean: of the changed images, ``[pixels]``.
        clean: deviations from the mean over the root of ``m``, ``[m, pixels]``.
        changed: likewise.
        factor: Cholesky factor of the inner products of ``changed``, with the noise on the diagonal, ``[m, m]``.
        noise: variance of a pixel's noise.
        stays: whether changed images are nearer to the images than the regression.
    """

    clean_mean: torch.Tensor
    mean: torch.Tensor
    clean: torch.Tensor
    changed: torch.Tensor
    factor: torch.Tensor
    noise: torch.Tensor
    stays: bool

    @classmethod
    def of(cls, clean: torch.Tensor, changed: torch.Tensor, error: float) -> _Way:
        count = len(clean)
        clean, before = clean.double(), changed.double()
        clean_mean, mean = clean.mean(dim=0), before.mean(dim=0)
        noise = (error * clean.var(dim=0).mean()).clamp(min=torch.finfo(torch.float32).tiny)
        targets, inputs = ((part - part.mean(dim=0)) / math.sqrt(count) for part in (clean, before))
        products = inputs @ inputs.T
        factor = torch.linalg.cholesky(products + noise * torch.eye(count).to(products))
        hat = torch.cholesky_solve(products, factor)
        left_out = (targets - hat.T @ targets) / (1 - hat.diagonal()).clamp(min=1e-6)[:, None]
        stays = (clean - before).square().mean() <= left_out.square().sum(dim=1).mean() * count / clean.shape[1]
        return cls(clean_mean, mean, targets, inputs, factor, noise, bool(stays))

    def _weights(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Inner products of images ``[k, pixels]`` with the changed ones, and their weights, ``[m, k]`` each."""
        along = self.changed @ (images.double() - self.mean).T
        return along, torch.cholesky_solve(along, self.factor)

    def log_density(self, images: torch.Tensor) -> torch.Tensor:
        """Log-density of images ``[k, pixels]`` under the normal law, up to a constant, ``[k]``."""
        along, weights = self._weights(images)
        squares = (images.double() - self.mean).square().sum(dim=1)
        count, pixels = self.changed.shape
        spread = 2 * self.factor.diagonal().log().sum() + (pixels - count) * self.noise.log()
        return -0.5 * ((squares - (along * weights).sum(dim=0)) / self.noise + spread)

    def back(self, images: torch.Tensor) -> torch.Tensor:
        """The images before, ``[k, pixels]``."""
        if self.stays:
            return images
        _, weights = self._weights(images)
        return (self.clean_mean + weights.T @ self.clean).to(images)
