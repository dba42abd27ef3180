"""Random updates orthogonal to the gradient (Zhang et al., NDSS 2025).

Source: "CENSOR: Defense Against Gradient Inversion via Orthogonal Subspace Bayesian Sampling", and its released code,
which is another mechanism.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule
from leakbench.defenses.quantised import SCALE_WIDTH
from leakbench.effort import FORWARD
from leakbench.federated.message import DenseMessage, Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.randomness import Streams

RIGHT_ANGLE = 1e-3
"""Width of a right angle in the eyes of an attacker, as a cosine: without one a search has no slope."""
PARALLEL = 1e-5
"""Length of what is left of a unit vector orthogonal to the gradient that is rounding."""
ROUNDING = 3e-6
"""Relative difference of two losses that is rounding."""


@DEFENSES.register("censor", version=1)
class Censor(Defense):
    """Send a random update that is orthogonal to the gradient, tensor by tensor, and as long as it is.

    Of several draws ``z`` of a random direction, which become ``z - <z, g> g / ||g||^2``, a client sends that which
    lowers its loss most, or raises it least, after a small step. A tensor of one number is sent as zero.

    ``as_released`` is the reading of the authors' code: it divides by ``||g||`` once, so that the update is orthogonal
    if ``||g||`` is one. Of a short gradient it is a random direction, and of a long one the gradient itself, but for
    its sign.

    An orthogonal step changes the loss in second order alone. At the authors' step size float32 does not tell that
    from nothing, so that rounding chooses among the draws; here differences within rounding count as none, and the
    first draw is sent.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)
    scale_free: ClassVar[bool] = True
    biased: ClassVar[str] = "a random direction is sent, whose mean is zero but for the choice among draws"

    form: Literal["as_printed", "as_released"] = Field("as_printed", description="what is subtracted; see the class")
    trials: int = Field(20, ge=1, description="draws, of which the best is sent; one: the first, whatever it does")
    rate: float = Field(1e-4, gt=0, description="size of the step after which losses are compared")

    def passes(self, records: int) -> float:
        return FORWARD * self.trials * records if self.trials > 1 else 0.0

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        best = self._drawn(steps, streams, 0)
        least = self._loss(steps, best)
        for trial in range(1, self.trials):
            update = self._drawn(steps, streams, trial)
            loss = self._loss(steps, update)
            better = loss < (1 - ROUNDING) * least
            best, least = torch.where(better[:, None], update, best), torch.where(better, loss, least)
        return DenseMessage(best)

    def _drawn(self, steps: ClientSteps, streams: Streams, trial: int) -> torch.Tensor:
        """An update, ``[n, d]``."""
        gradient, tensors = steps.gradient, Tensors(steps.network.sizes)
        drawn = streams.child("trial", trial).normal(gradient.shape[1], device=gradient.device)
        drawn = drawn / tensors.spread(_lengths(drawn, tensors))
        length = _lengths(gradient, tensors)
        power = 2 if self.form == "as_printed" else 1
        along = torch.where(length > 0, _products(drawn, gradient, tensors) / length**power, 0.0)
        turned = drawn - tensors.spread(along) * gradient
        left = _lengths(turned, tensors)
        return turned * tensors.spread(torch.where(left > PARALLEL, length / left, 0.0))

    def _loss(self, steps: ClientSteps, update: torch.Tensor) -> torch.Tensor:
        """The clients' losses after a step along an update, ``[n]``; zeros where there is nothing to choose."""
        if self.trials == 1:
            return update.new_zeros(len(update))
        moved = steps.parameters - self.rate * update
        loss: torch.Tensor = torch.func.vmap(steps.network.loss)(moved, steps.images, steps.labels)
        return loss.nan_to_num(nan=torch.finfo(loss.dtype).max)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Density of the directions that were sent, ``[n]``, and of the proportions of their lengths.

        The direction of a linear map of a normal vector has an angular central Gaussian density. With the length ``G``
        of a tensor's gradient, which the message shows, and the cosine ``t`` between gradient and message it is
        ``(1 - G)^-1 (1 + ((1 - G)^-2 - 1) t^2)^(-size / 2)``; as printed ``1 - G`` is zero, and gets the width
        :data:`RIGHT_ANGLE`. As released the best of several draws is that with the largest inner product with the
        gradient, whose law is nearly normal.
        """
        tensors = Tensors(steps.network.sizes)
        tiny = torch.finfo(steps.gradient.dtype).tiny ** 0.5
        sent = received.once("lengths", lambda: _lengths(received.values, tensors))
        shown, sizes = sent > 0, sent.new_tensor(tensors.sizes)
        length = _lengths(steps.gradient, tensors).clamp(min=tiny)
        cosine = _products(steps.gradient, received.values, tensors) / (length * sent.clamp(min=tiny))
        squeezed = 1 - sent if self.form == "as_released" else torch.zeros_like(sent)
        width = squeezed.square().clamp(min=RIGHT_ANGLE**2)
        direction = -0.5 * width.log() - 0.5 * sizes * torch.log1p((1 / width - 1) * cosine.clamp(-1, 1).square())
        share = sent.square() / sent.square().sum(dim=1, keepdim=True).clamp(min=tiny)
        apart = torch.where(shown, length / sent.clamp(min=tiny), 1.0)
        apart = apart / (apart * share).sum(dim=1, keepdim=True).clamp(min=tiny) - 1
        proportions = -0.5 * (apart / SCALE_WIDTH).square()
        value = torch.where(shown, direction + proportions, 0.0).sum(dim=1)
        if self.form == "as_printed" or self.trials == 1:
            return value
        spread = (sent.square() * (width / (width + sizes - 1)).sqrt()).square().sum(dim=1).sqrt().clamp(min=tiny)
        descent = (sent.square() * cosine).sum(dim=1) / spread
        chosen: torch.Tensor = value + (self.trials - 1) * torch.special.log_ndtr(descent)
        return chosen

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("lengths are exact, and directions depend on the data")


def _products(values: torch.Tensor, others: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """Inner products by tensor, ``[n, tensors]``."""
    return tensors.reduce(values * others, lambda part: part.sum(dim=1))


def _lengths(values: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """Euclidean lengths by tensor, ``[n, tensors]``."""

    def length(part: torch.Tensor) -> torch.Tensor:
        norm: torch.Tensor = torch.linalg.vector_norm(part, dim=1)
        return norm

    return tensors.reduce(values, length)
