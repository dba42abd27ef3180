"""Isotropic Gaussian noise on gradients, plain and after elementwise clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule, least_squares_scale
from leakbench.defenses.densities import IMPROBABLE, clipped_normal, normal, widened
from leakbench.federated.message import DenseMessage, Law, Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams
from leakbench.theory.optimal_noise import SCALE_MODES, ScaleMode, scale_variance


def add_noise(gradient: torch.Tensor, variance: torch.Tensor, streams: Streams) -> DenseMessage:
    """``gradient + N(0, variance)``, both ``[n, d]``; row ``i`` draws from stream ``i``."""
    normal = streams.normal(gradient.shape[1], device=gradient.device)
    law = Law(mean=gradient, passing=torch.ones_like(gradient, dtype=torch.bool), variance=variance)
    return DenseMessage(gradient + variance.sqrt() * normal, law=law)


def add_noise_clipped(
    gradient: torch.Tensor, clip: float, clipped: torch.Tensor, variance: torch.Tensor, streams: Streams
) -> DenseMessage:
    """The gradient clipped elementwise to ``[-clip, clip]``, with noise.

    The message marks coordinates at the bound or, by noise, beyond it; its law marks those that were clipped.

    Args:
        gradient: ``[n, d]``.
        clip: the bound on every coordinate.
        clipped: the coordinates that no longer follow the gradient, boolean ``[n, d]``.
        variance: of the noise, ``[n, d]``.
        streams: one per client; they draw the noise.
    """
    message = add_noise(gradient.clamp(-clip, clip), variance, streams)
    assert message.law is not None
    return replace(message, marked=message.values.abs() >= clip, law=replace(message.law, passing=~clipped))


def isotropic_variance(gradient: torch.Tensor, scale: float, mode: ScaleMode) -> torch.Tensor:
    """The same variance of every coordinate, ``[n, d]``; see :func:`~leakbench.theory.optimal_noise.scale_variance`."""
    ones = gradient.new_ones(1, gradient.shape[1])
    return scale_variance(ones, gradient, scale, mode).expand_as(gradient)


@DEFENSES.register("gaussian_noise", version=1)
class GaussianNoise(Defense):
    """Isotropic Gaussian noise on the client's gradient."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    scale: float = Field(ge=0, description="size of the noise, as scale_mode measures it")
    scale_mode: ScaleMode = Field("rms", description=SCALE_MODES)

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return add_noise(steps.gradient, self._variance(steps.gradient), streams)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """The normal density around the candidate's gradient, with the variance of its own noise, ``[n]``.

        The variance is a constant in the derivative, as in that of ``optimal_noise``.
        """
        variance = widened(self._variance(steps.gradient.detach())[:, :1], received)
        return normal(received.values - steps.gradient, variance)

    def _variance(self, gradient: torch.Tensor) -> torch.Tensor:
        return isotropic_variance(gradient, self.scale, self.scale_mode)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("the gradient is not bounded, so its sensitivity is infinite")


@DEFENSES.register("clipped_noise", version=1)
class ClippedNoise(Defense):
    """Elementwise clipping of the batch gradient, then isotropic noise: the "DP-SGD" of Chen et al. (2024)."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    scale: float = Field(ge=0, description="size of the noise, as scale_mode measures it")
    scale_mode: ScaleMode = Field("rms", description=SCALE_MODES)
    clip: float = Field(1.0, gt=0, description="bound on the absolute value of every coordinate, P")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        variance = self._variance(steps.gradient)
        return add_noise_clipped(steps.gradient, self.clip, steps.gradient.abs() >= self.clip, variance, streams)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """The normal density around the candidate's clipped gradient, ``[n]``: see :func:`clipped_normal`."""
        variance = self._variance(steps.gradient.detach())[:, :1]
        wide = widened(variance, received)
        return clipped_normal(received.values, steps.gradient, self.clip, wide, variance.sqrt())

    def fitted_scale(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """By least squares over what is below the bound by more than noise explains, ``[n, 1]``."""
        noise = self._variance(steps.gradient.detach())[:, :1].sqrt()
        below = received.values.abs() < self.clip - IMPROBABLE * noise
        return least_squares_scale(received.values, steps.gradient, below.to(noise.dtype))

    def _variance(self, gradient: torch.Tensor) -> torch.Tensor:
        """Variance of the noise; the budget ``u2`` is of the unclipped gradient (eq. 11)."""
        return isotropic_variance(gradient, self.scale, self.scale_mode)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """Zero-concentrated DP against replacing a client's whole batch.

        The clipped gradient moves by at most ``2 P sqrt(d)``, so each round is ``rho = (2 P sqrt(d))^2 / (2 sigma^2)``-
        zCDP, rounds add, and ``epsilon = rho + 2 sqrt(rho ln(1 / delta))`` (Bun and Steinke 2016, Prop. 1.3, 1.6).
        """
        if self.scale == 0 or self.scale_mode == "u2":
            return PrivacyStatement.none("the noise is zero, or its size depends on the data")
        d = schedule.dimension
        sigma = self.scale if self.scale_mode == "rms" else math.sqrt(self.scale / math.sqrt(d))
        rho = schedule.rounds * (2 * self.clip) ** 2 * d / (2 * sigma**2)
        epsilon = rho + 2 * math.sqrt(rho * math.log(1 / schedule.delta))
        return PrivacyStatement(
            epsilon,
            schedule.delta,
            f"zCDP of {schedule.rounds} round(s); neighbours differ in one client's whole batch",
        )
