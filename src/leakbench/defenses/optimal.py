"""The defenses of Chen, Gürsoy and Lei (2024): noise, clipped noise, pruning and rounding by input sensitivity.

Each adapts to the client's own gradient and its estimated sensitivities (the paper's local form, Algorithm 1). The
covariance and the pruned set depend on the data and clipped entries get no noise, so none of them is differentially
private. Rounding is in their released code alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule, least_squares_scale
from leakbench.defenses.densities import (
    LEAST_ESTIMATED,
    exact_variance,
    log_kernel,
    student,
    uncertain_normal,
    widened,
)
from leakbench.defenses.marginals import Marginals
from leakbench.defenses.noise import add_noise, add_noise_clipped
from leakbench.defenses.pruning import marginals_of_largest
from leakbench.federated.message import DenseMessage, Message, Received, SparseMessage
from leakbench.federated.sensitivity import Probes
from leakbench.federated.step import ClientSteps
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.models.base import Network
from leakbench.randomness import Streams
from leakbench.theory.optimal_noise import (
    RATIO_CEILING,
    RATIO_FLOOR,
    SCALE_MODES,
    Form,
    ScaleMode,
    pruned,
    scale_variance,
    unsigned_ratio,
    variance_ratio,
)

STAGED: tuple[Mapping[str, Any], ...] = ({"name": "likelihood", "stages": 2},)
"""The attacker: what is noisy, or pruned, depends on the images, and is taken anew at an estimate of them."""
SOFTNESS = 0.1
"""Width, in logarithms of ratios, in which a coordinate may be pruned or not: sensitivities are estimated."""


class _Sensitive(Defense):
    """Parameters that all share, and the ratio of sensitivity to magnitude."""

    form: Form = Field("corrected", description="of the formulas; see src/leakbench/papers/optimal_defense/page.md")
    per: Literal["coordinate", "tensor"] = Field(
        "coordinate", description="one ratio per coordinate, or per parameter tensor (an option of the released code)"
    )
    probes: int = Field(10, ge=1, description="random directions per sensitivity estimate, k")
    probe_kind: Probes = Field("gaussian", description="distribution of the directions")

    def ratio(self, steps: ClientSteps, released_floor: float = 1e-8) -> torch.Tensor:
        """The ratio of every coordinate, ``[n, d]``; ``released_floor`` is that of the form ``as_released``."""
        return self.ratio_at(steps.gradient, steps, released_floor)

    def ratio_at(self, gradient: torch.Tensor, steps: ClientSteps, released_floor: float = 1e-8) -> torch.Tensor:
        """The ratio of every coordinate, ``[n, d]``, if this was the gradient."""
        sensitivity = steps.sensitivity(self.probes, self.probe_kind)
        if self.per == "tensor":  # of the norms of the tensor's sensitivities and of its gradient
            sensitivity = _total_per_tensor(sensitivity, steps.network)
            gradient = _total_per_tensor(gradient.square(), steps.network).sqrt()
        return variance_ratio(sensitivity, gradient, self.form, released_floor)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("what is sent, and how noisy it is, depends on the data")


def _total_per_tensor(values: torch.Tensor, network: Network) -> torch.Tensor:
    """Every entry of ``[n, d]`` replaced by the sum over its parameter tensor."""
    tensor = torch.arange(len(network.sizes)).repeat_interleave(torch.tensor(network.sizes)).to(values.device)
    totals = values.new_zeros(len(values), len(network.sizes)).index_add(1, tensor, values)
    return totals[:, tensor]


@DEFENSES.register("optimal_noise", version=1)
class OptimalNoise(_Sensitive):
    """Gaussian noise with variance proportional to ``||grad_x g_i|| / |g_i|`` (Chen et al. 2024, eq. 8)."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = STAGED

    scale: float = Field(ge=0, description="size of the noise, as scale_mode measures it")
    scale_mode: ScaleMode = Field("rms", description=SCALE_MODES)

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        variance = scale_variance(self.ratio(steps), steps.gradient, self.scale, self.scale_mode)
        return add_noise(steps.gradient, variance, streams)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """The density around the candidate's gradient, with the variance that its own noise would have, ``[n]``.

        That is an estimate of the variance: hence :func:`uncertain_normal`. It is a constant in the derivative. Where
        there is an estimate of the images, the variance is theirs, the same for all candidates.
        """
        deviation = received.values - steps.gradient
        if steps.estimate is not None:
            return student(deviation, self._estimated(received, steps))
        gradient = steps.gradient.detach()
        variance = scale_variance(self.ratio_at(gradient, steps), gradient, self.scale, self.scale_mode)
        return uncertain_normal(steps.gradient, deviation, widened(variance, received))

    def _estimated(
        self, received: Received, steps: ClientSteps, noisy: torch.Tensor | float = 1.0, released_floor: float = 1e-8
    ) -> torch.Tensor:
        """Variances at the attacker's estimate of the images, ``[n, d]``, of coordinates that are noisy (1; else 0)."""

        def compute() -> torch.Tensor:
            gradient = steps.estimate
            assert gradient is not None
            ratio = noisy * self.ratio_at(gradient, steps, released_floor)
            variance = scale_variance(ratio, gradient, self.scale, self.scale_mode)
            return widened(variance, received, LEAST_ESTIMATED)

        return received.once((self, "estimated"), compute)


@DEFENSES.register("optimal_clipped_noise", version=1)
class OptimalClippedNoise(OptimalNoise):
    """Elementwise clipping, then optimal noise on the coordinates that were not clipped (Chen et al. 2024, eq. 13)."""

    clip: float = Field(1.0, gt=0, description="bound on the absolute value of every coordinate, P")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        magnitude = steps.gradient.abs()
        # At the bound itself the clipped gradient no longer depends on the input; the released code compares strictly.
        clipped = magnitude > self.clip if self.form == "as_released" else magnitude >= self.clip
        ratio = torch.where(clipped, 0.0, self.ratio(steps, released_floor=1e-6))
        variance = scale_variance(ratio, steps.gradient, self.scale, self.scale_mode)
        return add_noise_clipped(steps.gradient, self.clip, clipped, variance, streams)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """The density of optimal noise off the bounds; coordinates received at a bound are beyond it, ``[n]``.

        Clipped coordinates have no noise, so they show that they were clipped.
        """
        values = received.values

        def constants() -> tuple[torch.Tensor, ...]:
            clipped = values.abs() == torch.full_like(values, self.clip)
            least = torch.where(clipped & (values > 0), 0.0, -torch.inf)
            return (~clipped).to(values), least, torch.where(clipped & (values < 0), 0.0, torch.inf)

        noisy, *bounds = received.once((self, "noisy"), constants)
        if steps.estimate is not None:
            return student(
                (values - steps.gradient).clamp(*bounds), self._estimated(received, steps, noisy, released_floor=1e-6)
            )
        gradient = steps.gradient.detach()
        ratio = noisy * self.ratio_at(gradient, steps, released_floor=1e-6)
        variance = scale_variance(ratio, gradient, self.scale, self.scale_mode)
        deviation = (values - gradient).clamp_(*bounds)  # nothing where a bound explains it
        return uncertain_normal(steps.gradient, deviation, widened(variance, received))

    def fitted_scale(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        values = received.values
        below = received.once((self, "below"), lambda: (values.abs() < self.clip).to(values.dtype))
        return least_squares_scale(values, steps.gradient, below)


@DEFENSES.register("optimal_pruning", version=1)
class OptimalPruning(_Sensitive):
    """Prune the coordinates with the largest ``||grad_x g_i|| / |g_i|`` (Chen et al. 2024, eq. 17)."""

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = STAGED

    fraction: float = Field(ge=0, le=1, description="part of the coordinates to prune; exactly floor(fraction * d)")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return SparseMessage(steps.gradient, ~pruned(self.ratio(steps), self.fraction, self.form))

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Kept coordinates are exact, and pruned ones normal, of the size at which the ratio prunes them, ``[n]``."""
        return log_kernel(received.values - steps.gradient, self._precision(received, steps))

    def marginals(self, steps: ClientSteps, streams: Streams, public: Streams | None) -> Marginals:
        """Sent are the coordinates of small ratios, at the sensitivities that the attacker knows."""
        ratio = self.ratio_at(steps.gradient.detach(), steps)
        size = ratio if self.form == "as_printed" else 1 / ratio.clamp(min=1 / RATIO_CEILING)
        return marginals_of_largest(steps.gradient, Tensors([ratio.shape[1]]), self.fraction, size, SOFTNESS)

    def fitted_scale(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        weights = exact_variance(received.values) * self._precision(received, steps)
        return least_squares_scale(received.values, steps.gradient, weights)

    def _precision(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Inverse of :meth:`_variance`, ``[n, d]``; candidates of a search share sensitivities, and so this."""
        return received.once((self, "precision"), lambda: 1 / self._variance(received, steps).detach())

    def _variance(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Variance of the message around the gradient as an attacker knows it, ``[n, d]``.

        The ratio of a pruned coordinate is above that of every kept one, which bounds its square. Sensitivities are
        estimates, so that the bound is no hard one. As printed large coordinates are pruned, and none is bounded.
        """
        values = received.values
        kept, exact = values != 0, exact_variance(values)
        if self.form == "as_printed":
            return torch.where(kept, exact, torch.inf)
        least = torch.where(kept, self.ratio_at(values, steps), 0.0).amax(dim=1, keepdim=True)
        sensitivity = steps.sensitivity(self.probes, self.probe_kind)
        if self.per == "tensor":
            sizes = _total_per_tensor(torch.ones_like(sensitivity), steps.network)
            sensitivity = _total_per_tensor(sensitivity, steps.network) / sizes
        bound = sensitivity / least.square().clamp(min=torch.finfo(values.dtype).tiny)
        return torch.where(kept, exact, exact + bound)


BIASED = "every coordinate is rounded to the nearest multiple, so that small ones vanish"


def round_to(gradient: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """Every coordinate as the nearest multiple of its step, both ``[n, d]``; a step of 0 leaves it as it is."""
    return torch.where(step > 0, torch.round(gradient / step) * step, gradient)


@DEFENSES.register("rounding", version=1)
class Rounding(Defense):
    """Round every coordinate to the nearest multiple of one step (released code of Chen et al. 2024, not in the paper).

    The message is counted as floats, since neither paper nor code encodes the multiples.
    """

    biased: ClassVar[str] = BIASED

    scale: float = Field(ge=0, description="the step")

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        return DenseMessage(round_to(steps.gradient, torch.full_like(steps.gradient, self.scale)))

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("rounding is not random")


@DEFENSES.register("optimal_rounding", version=2)
class OptimalRounding(_Sensitive):
    """Round with steps instead of optimal noise's standard deviations (released code of Chen et al. 2024).

    ``as_released`` is the ratio of :func:`leakbench.theory.optimal_noise.unsigned_ratio`, for single coordinates.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)
    biased: ClassVar[str] = BIASED

    scale: float = Field(ge=0, description="root mean square of the steps")

    def ratio(self, steps: ClientSteps, released_floor: float = 1e-8) -> torch.Tensor:
        if self.form == "as_released" and self.per == "coordinate":
            return unsigned_ratio(steps.sensitivity(self.probes, self.probe_kind), steps.gradient)
        return super().ratio(steps, released_floor=RATIO_FLOOR)

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        squared_step = scale_variance(self.ratio(steps), steps.gradient, self.scale, "rms")
        return DenseMessage(round_to(steps.gradient, squared_step.sqrt()))

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Errors of rounding as noise of one size, that of the root mean square of the steps, ``[n]``.

        Each coordinate's step depends on the data, and an estimate of it misleads a search more than it helps.
        """
        variance = widened(torch.full_like(received.values[:, :1], self.scale**2 / 12), received)
        deviation = received.values - steps.gradient
        return uncertain_normal(steps.gradient, deviation, variance.expand_as(deviation))
