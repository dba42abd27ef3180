"""Laplace noise on normalised updates: the "LDP" of Deng et al. (2024), Section 6 and Appendix N."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule
from leakbench.federated.message import DenseMessage, Law, Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.randomness import Streams

SPREAD = 3.0
"""Standard deviations of a tensor that are normalised to one."""

SENSITIVITY = 2.0
"""Sensitivity of a coordinate in [-1, 1]."""


def laplace(streams: Streams, size: int, device: torch.device | None = None) -> torch.Tensor:
    """Laplace draws of mean 0 and scale 1, ``[rows, size]``; row ``i`` draws from stream ``i``."""
    doubled = 2 * streams.uniform(size, device=device)
    magnitude = -torch.log1p(-doubled.frac())  # frac() is in [0, 1) exactly, so this is finite
    return torch.where(doubled < 1, -magnitude, magnitude)


@DEFENSES.register("laplace", version=1)
class Laplace(Defense):
    """Normalise every tensor, clip to [-1, 1], add Laplace noise of scale 2 / epsilon, and undo the normalisation.

    A coordinate in [-1, 1] moves by at most 2, so epsilon is that of *one coordinate*. It holds where the
    normalisation is a constant (``bound``). By default it is the tensor's own mean and three standard deviations, which
    depend on the data, and then nothing is guaranteed.

    The two routines of the paper's released code, neither of which clips: ``as_released`` adds noise of scale
    ``4 / epsilon`` to the raw gradient; ``as_released_normaliser`` normalises by mean and three standard deviations,
    and adds noise of scale ``2 / epsilon``.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    epsilon: float = Field(gt=0, description="of local differential privacy, per coordinate and round")
    bound: float | None = Field(
        None,
        gt=0,
        description="clip coordinates of the update to [-bound, bound], which is known beforehand, instead of to three "
        "standard deviations around the tensor's mean",
    )
    form: Literal["clipped", "as_released", "as_released_normaliser"] = Field(
        "clipped", description="real clipping, or one of the released code's routines without any; see the class"
    )

    @model_validator(mode="after")
    def _bound_clips(self) -> Laplace:
        if self.bound is not None and self.form != "clipped":
            raise ValueError(f"form '{self.form}' clips nothing; leave out 'bound'")
        return self

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        mean, passing, spread = self._sent(steps)
        noise = laplace(streams, mean.shape[1], mean.device)
        law = Law(mean=mean, passing=passing, variance=2 * spread.square().expand_as(mean), normal=False)
        return DenseMessage(mean + spread * noise, law=law)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Laplace's density around what the candidate would send, with the scale of its own tensors, ``[n]``."""
        mean = self._sent(steps)[0] if self.form == "clipped" else steps.gradient
        tensors = Tensors(steps.network.sizes)
        spread = self._noise_scale * self._normaliser(steps)[1]
        spread = spread.clamp(min=torch.finfo(spread.dtype).tiny)
        apart = tensors.reduce(received.values - mean, partial(torch.linalg.vector_norm, ord=1, dim=1))
        return -(apart / spread + spread.new_tensor(tensors.sizes) * spread.log()).sum(dim=1)

    def _sent(self, steps: ClientSteps) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The values that noise is added to, the coordinates that are not clipped, and the scale of the noise."""
        gradient = steps.gradient
        centre, scale = map(Tensors(steps.network.sizes).spread, self._normaliser(steps))
        spread = scale * self._noise_scale
        if self.form != "clipped":
            return gradient, torch.ones_like(gradient, dtype=torch.bool), spread
        normalised = torch.where(scale > 0, (gradient - centre) / scale, 0.0)  # a constant tensor is its mean
        return centre + scale * normalised.clamp(-1, 1), normalised.abs() < 1, spread

    @property
    def _noise_scale(self) -> float:
        """Scale of the noise on normalised coordinates."""
        return SENSITIVITY * (SENSITIVITY if self.form == "as_released" else 1.0) / self.epsilon

    def _normaliser(self, steps: ClientSteps) -> tuple[torch.Tensor, torch.Tensor]:
        """Centre and scale of every tensor: ``[n, tensors]``, or ``[1, tensors]`` where they are constants."""
        gradient, tensors = steps.gradient, Tensors(steps.network.sizes)
        if self.bound is not None or self.form == "as_released":
            return gradient.new_zeros(1, len(tensors)), gradient.new_full((1, len(tensors)), self.bound or 1.0)
        return tensors.mean(gradient), SPREAD * tensors.std(gradient)

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        """Pure epsilon of the whole update: coordinates and rounds add, ``d * rounds * epsilon``.

        Two updates may differ in every coordinate by the whole range, so no smaller epsilon of the mechanism holds.
        """
        if self.form != "clipped":
            return PrivacyStatement.none("nothing is clipped, so the sensitivity is infinite")
        if self.bound is None:
            return PrivacyStatement.none(
                "mean and standard deviation of every tensor depend on the data; with constants instead, "
                f"epsilon would be {self.epsilon:g} per coordinate and {self._total(schedule):g} in all",
            )
        return PrivacyStatement(
            self._total(schedule),
            0.0,
            f"epsilon {self.epsilon:g} per coordinate and round, added over {schedule.dimension} coordinates and "
            f"{schedule.rounds} round(s); neighbours differ in one client's whole batch",
        )

    def _total(self, schedule: Schedule) -> float:
        return self.epsilon * schedule.dimension * schedule.rounds
