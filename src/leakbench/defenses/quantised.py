"""Gradients in few bits: their signs (signSGD), and random rounding to few levels (QSGD)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from leakbench.defenses.base import DEFENSES, Defense, PrivacyStatement, Schedule
from leakbench.defenses.marginals import Marginals
from leakbench.federated.message import FLOAT_BITS, CodedMessage, Law, Message, Received
from leakbench.federated.step import ClientSteps
from leakbench.federated.tensors import Tensors
from leakbench.lazy import torch
from leakbench.numerics.slopes import with_slope
from leakbench.randomness import Streams

UNLIKELY = 0.01
"""Probability of a level below which its logarithm goes on as a straight line."""


SOFTNESS = 0.1
"""Width over which a sign turns, as a part of its tensor's mean magnitude, in the eyes of an attacker."""
SOFTNESS_IN_SUMS = 0.01
"""The same of users' signs that are seen as a sum, a mixture that is smooth by itself."""
SCALE_WIDTH = 0.1
"""Relative width of a tensor's mean magnitude, which is sent exactly, in the eyes of an attacker."""


@DEFENSES.register("sign_sgd", version=1)
class SignSGD(Defense):
    """Send the sign of every coordinate, one bit; the server takes the majority (Bernstein et al. 2018).

    A gradient of zero counts as positive, as in the code of Deng et al. (2024), which sends signs without a scale.
    BatchNorm's running statistics are no part of the update.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)
    scale_free: ClassVar[bool] = True
    biased: ClassVar[str] = "signs alone are sent, and the server takes the majority"
    added: ClassVar[tuple[str, ...]] = ("factor",)

    scale: Literal["none", "mean_abs"] = Field(
        "none", description="what signs are multiplied by: nothing, or each tensor's mean magnitude, one float more"
    )
    factor: float = Field(
        1.0, gt=0, description="besides, times this, which everyone knows: the server's step over its learning rate"
    )

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        signs = torch.where(steps.gradient >= 0, 1.0, -1.0).to(steps.gradient)
        d = signs.shape[1]
        if self.scale == "none":
            return CodedMessage(self.factor * signs, size=d)
        tensors = Tensors(steps.network.sizes)
        magnitude = tensors.spread(tensors.mean(steps.gradient.abs()))
        return CodedMessage(self.factor * signs * magnitude, size=d + FLOAT_BITS * len(tensors))

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Logarithms of the received signs' probabilities, summed, ``[n]``, and of the magnitudes if they travel.

        A sign is not random: that of a coordinate ``g`` is positive with the probability ``1 / (1 + exp(-g / tau))``,
        so that a search has a slope. The width ``tau`` is :data:`SOFTNESS` times the mean magnitude of its tensor. Of
        magnitudes that travel the proportions count, so that nothing depends on the size of the candidate's gradient.
        """
        return likelihood_of_signs(
            received, steps.gradient, Tensors(steps.network.sizes), magnitudes=self.scale != "none"
        )

    def aggregate(self, message: Message, clients: int) -> torch.Tensor:
        """The majority's sign times the clients' mean magnitude, ``[n / clients, d]``; a tie is no step."""
        sent = message.view().unflatten(0, (-1, clients))
        update: torch.Tensor = sent.sign().sum(dim=1).sign() * sent.abs().mean(dim=1)
        return update

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("signs are exact")


def likelihood_of_signs(
    received: Received, gradient: torch.Tensor, tensors: Tensors, *, magnitudes: bool
) -> torch.Tensor:
    """Log-likelihood of signs, and of the mean magnitudes of tensors if they travel: see :class:`SignSGD`, ``[n]``."""
    tiny = torch.finfo(gradient.dtype).tiny
    norms = tensors.reduce(gradient, partial(torch.linalg.vector_norm, ord=1, dim=1))
    magnitude = (norms / norms.new_tensor(tensors.sizes)).clamp(min=tiny)
    value = _of_signs(received, gradient, SOFTNESS * magnitude, tensors)
    if not magnitudes:
        return value
    sent = received.once("magnitudes", lambda: tensors.mean(received.values.abs()).clamp(min=tiny))
    share = magnitude.new_tensor(tensors.sizes) / sum(tensors.sizes)
    apart = magnitude / sent
    apart = apart / (apart * share).sum(dim=1, keepdim=True) - 1
    return value - 0.5 * (apart / SCALE_WIDTH).square().sum(dim=1)


def marginals_of_signs(gradient: torch.Tensor, tensors: Tensors) -> Marginals:
    """Signs of gradients ``[n, d]`` times mean magnitudes of tensors."""
    magnitude = tensors.spread(tensors.mean(gradient.abs()))
    width = (SOFTNESS_IN_SUMS * magnitude).clamp(min=torch.finfo(gradient.dtype).tiny)
    return Marginals(magnitude, chance=torch.sigmoid(gradient / width), others=-magnitude)


def _of_signs(received: Received, gradient: torch.Tensor, widths: torch.Tensor, tensors: Tensors) -> torch.Tensor:
    """The signs' part, ``[n]``, of a gradient ``[n, d]`` and widths ``[n, tensors]``."""
    signs = received.once("signs", received.values.sign)
    # A tensor without any gradient, such as that of words where sentences are embedded already, says nothing.
    held = widths.detach().masked_fill(widths.detach() <= 16 * torch.finfo(widths.dtype).tiny, torch.inf)
    inverse = 1 / tensors.spread(held)
    turned = gradient.detach() * signs * inverse
    slope = torch.sigmoid(-turned)  # of the logarithm of the sigmoid
    value = torch.nn.functional.logsigmoid(turned).sum(dim=1)
    by_widths = tensors.reduce(turned.mul_(slope), lambda part: part.sum(dim=1)) / -held
    return with_slope(gradient, value, slope.mul_(signs).mul_(inverse)) + with_slope(
        widths, torch.zeros_like(value), by_widths
    )


@DEFENSES.register("qsgd", version=1)
class QSGD(Defense):
    """Round every coordinate at random to multiples of its tensor's norm over s, without bias (Alistarh et al. 2017).

    Of a tensor of norm ``N``, ``|g| s / N`` is rounded up with the probability of its fractional part, else down. The
    code has a fixed length: a sign and ``ceil(log2(s + 1))`` bits per value, and the norm as a float per tensor.

    ``as_released`` is the reading of the code of Deng et al. (2024): the norm is the largest magnitude, and ``levels``
    counts zero, so ``s = levels - 1``.
    """

    adaptive: ClassVar[tuple[Mapping[str, Any], ...]] = ({"name": "likelihood"},)

    levels: int = Field(ge=1, description="positive levels, s; as_released: all that are not negative, s + 1")
    form: Literal["l2", "as_released"] = Field("l2", description="which norm, and what levels counts; see the class")

    @model_validator(mode="after")
    def _some_level(self) -> QSGD:
        if self.steps_to_norm < 1:
            raise ValueError("form 'as_released' needs levels of at least 2: zero is one of them")
        return self

    @property
    def steps_to_norm(self) -> int:
        """Levels above zero, s."""
        return self.levels - 1 if self.form == "as_released" else self.levels

    def protect_update(self, steps: ClientSteps, streams: Streams) -> Message:
        gradient, s = steps.gradient, self.steps_to_norm
        tensors = Tensors(steps.network.sizes)

        def norm(part: torch.Tensor) -> torch.Tensor:
            order = torch.inf if self.form == "as_released" else 2
            norms: torch.Tensor = torch.linalg.vector_norm(part, ord=order, dim=1)
            return norms

        unit = tensors.spread(tensors.reduce(gradient, norm)) / s
        exact = torch.where(unit > 0, gradient.abs() / unit, 0.0).clamp(max=s)  # division may round beyond s
        low = exact.floor()
        above = exact - low
        level = low + (streams.uniform(gradient.shape[1], device=gradient.device) < above)
        law = Law(
            mean=gradient,
            passing=torch.ones_like(gradient, dtype=torch.bool),
            variance=unit.square() * above * (1 - above),
            normal=False,
        )
        size = gradient.shape[1] * (1 + math.ceil(math.log2(s + 1))) + FLOAT_BITS * len(tensors)
        return CodedMessage(gradient.sign() * level * unit, size=size, law=law, step=unit)

    def log_likelihood(self, received: Received, steps: ClientSteps) -> torch.Tensor:
        """Logarithms of the received levels' probabilities, summed, ``[n]``.

        Rounding at random sends the level ``l`` with the probability ``max(0, 1 - |g / u - l|)``, ``u`` a step. Below
        :data:`UNLIKELY` the logarithm goes on as its tangent.
        """
        step = received.step
        assert step is not None
        # A tensor of zeros has one outcome: no step at all, by which nothing is improbable.
        inverse = received.once("inverse step", lambda: torch.where(step > 0, 1 / step, 0.0))
        apart = (steps.gradient.detach() - received.values).mul_(inverse)
        chance = 1 - apart.abs()
        likely = chance.clamp(min=UNLIKELY)
        value = likely.log().add_(chance.sub_(likely), alpha=1 / UNLIKELY).sum(dim=1)
        return with_slope(steps.gradient, value, apart.sign_().mul_(inverse).div_(likely).neg_())

    def privacy(self, schedule: Schedule) -> PrivacyStatement:
        return PrivacyStatement.none("which levels are possible depends on the data")
