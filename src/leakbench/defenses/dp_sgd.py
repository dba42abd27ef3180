"""Differentially private SGD: the gradient of every image is bounded, then normal noise is added to the sum.

Sources: Abadi et al. (2016) for clipping; Xia et al. (2023), "Differentially Private Learning with Per-Sample Adaptive
Clipping", for DP-PSAC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule
from leakbench.defenses.densities import normal, widened
from leakbench.defenses.marginals import Marginals
from leakbench.defenses.noise import add_noise
from leakbench.federated.message import Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.lazy import torch
from leakbench.randomness import Streams


class ClippedGradients(Defense):
    """Base class of mechanisms that bound the gradient of every image."""

    acts_on: ClassVar[Literal["data", "samples", "updates"]] = "samples"

    clip: float = Field(1.0, gt=0, description="bound on the norm of an image's gradient, C")

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        """Factors that bound gradients of norms ``[...]``, ``[...]``."""
        return (self.clip / norms).clamp(max=1.0)  # a gradient of zero: infinity, then one

    def bounded_sum(self, gradients: torch.Tensor) -> torch.Tensor:
        """The sum of gradients after each is bounded, ``[n, b, d] -> [n, d]``."""
        factors = self.factors(torch.linalg.vector_norm(gradients, dim=2))
        return torch.einsum("nb,nbd->nd", factors, gradients)

    def bounded_mean(self, steps: ClientSteps) -> torch.Tensor:
        """The mean of every client's gradients after each is bounded, ``[n, d]``."""
        total = torch.cat([self.bounded_sum(part) for _, part in steps.sample_gradients()])
        return total / steps.images.shape[1]

    def log_density(self, received: Received, steps: ClientSteps, variance: float) -> torch.Tensor:
        """Log-likelihood ``[n]`` of messages with normal noise around the bounded mean of candidates.

        The derivative is that of a single image. Of several images' mean it takes the factors for constants, and their
        mean for each.

        Args:
            received: of each row's client.
            steps: the local computation on the candidates.
            variance: of the noise in every coordinate.
        """
        mean = self._differentiable_mean(steps)
        return normal(received.values - mean, widened(torch.full_like(mean[:, :1], variance), received))

    def fitted_scale(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """By least squares, ``[n, 1]``; ones for several images, where the factors make the size of the mean."""
        if steps.images.shape[1] == 1:
            return super().fitted_scale(received, steps)
        return torch.ones_like(received.values[:, :1])

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        return super().marginals(steps, streams, public)._replace(values=self._differentiable_mean(steps))

    def _differentiable_mean(self, steps: ClientSteps) -> torch.Tensor:
        """:meth:`bounded_mean` as a function of ``steps.gradient``, ``[n, d]``; see :meth:`log_density`."""
        if steps.images.shape[1] > 1:
            return self._linear_mean(steps)
        norms = torch.linalg.vector_norm(steps.gradient, dim=1, keepdim=True)
        return self.factors(norms) * steps.gradient

    def _linear_mean(self, steps: ClientSteps) -> torch.Tensor:
        """The bounded mean, ``[n, d]``, as a linear function of the mean gradient."""
        plain, bounded, shares = [], [], []
        for _, gradients in steps.sample_gradients():
            factors = self.factors(torch.linalg.vector_norm(gradients, dim=2))
            plain.append(gradients.mean(dim=1))
            bounded.append(torch.einsum("nb,nbd->nd", factors, gradients) / gradients.shape[1])
            shares.append(factors.mean(dim=1, keepdim=True))
        return torch.cat(bounded) + torch.cat(shares) * (steps.gradient - torch.cat(plain))


@DEFENSES.register("dp_sgd", version=1)
class DPSGD(ClippedGradients):
    """Clip each image's gradient to a norm of at most C, and add noise of standard deviation z C to their sum.

    The message is the mean of B images, with noise of variance ``(z C / B)^2`` in every coordinate.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    multiplier: float = Field(ge=0, description="standard deviation of the noise over C, z")

    def noisy_mean(self, total: torch.Tensor, batch: int, streams: Streams) -> Message:
        """The message for bounded sums ``[n, d]`` of ``batch`` gradients each."""
        return self._noisy(total / batch, batch, streams)

    def _noisy(self, mean: torch.Tensor, batch: int, streams: Streams) -> Message:
        return add_noise(mean, torch.full_like(mean, self._variance(batch)), streams)

    def _variance(self, batch: int) -> float:
        return (self.multiplier * self.clip / batch) ** 2

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return self._noisy(self.bounded_mean(steps), steps.images.shape[1], streams)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        return self.log_density(received, steps, self._variance(steps.images.shape[1]))

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """Renyi DP of the subsampled Gaussian mechanism, composed over rounds (Mironov et al. 2019), as Opacus counts.

        Neighbours differ in one image that one of them lacks. Without a sampling rate each release uses every image.
        """
        if self.multiplier == 0:
            return PrivacyStatement.none("the noise is zero")
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
        from dp_accounting.rdp import RdpAccountant

        event = GaussianDpEvent(self.multiplier)
        sampling = "every image in every batch"
        if schedule.sampling_rate is not None:
            event = PoissonSampledDpEvent(schedule.sampling_rate, event)
            sampling = f"Poisson sampling at rate {schedule.sampling_rate:g}"
        accountant = RdpAccountant().compose(SelfComposedDpEvent(event, schedule.rounds))
        return PrivacyStatement(
            float(accountant.get_epsilon(schedule.delta)),
            schedule.delta,
            f"RDP of {schedule.rounds} round(s), {sampling}; neighbours differ in one image, which is there or is not",
        )


@DEFENSES.register("dp_psac", version=1)
class DPPSAC(DPSGD):
    """DP-SGD that scales gradients to norms just below C, small ones less, instead of clipping them."""

    r: float = Field(0.1, gt=0, description="how small a gradient is before it counts less")

    def factors(self, norms: torch.Tensor) -> torch.Tensor:
        return self.clip / (norms + self.r / (norms + self.r))


@dataclass(frozen=True)
class PrivateRuns:
    """Clipping and noise of runs, a DP-SGD each; see :class:`~leakbench.federated.gradients.SampleGradients`."""

    defenses: Sequence[DPSGD]

    def factors(self, norms: torch.Tensor, runs: slice) -> torch.Tensor:
        """Factors that bound gradients of norms ``[m, b]`` of some runs, ``[m, b]``."""
        pairs = zip(self.defenses[runs], norms, strict=True)
        return torch.stack([defense.factors(row) for defense, row in pairs])

    def release(self, total: torch.Tensor, batch_size: int, streams: Streams, runs: slice) -> torch.Tensor:
        """The noisy means ``[m, d]`` of batches with sums ``[m, d]``."""
        rows = zip(self.defenses[runs], total.split(1), streams.keys, strict=True)
        return torch.cat([defense.noisy_mean(part, batch_size, Streams([key])).view() for defense, part, key in rows])
