"""Distances between a candidate's gradient and the observed one.

Every objective takes weights, the attacker's trust in each coordinate (0: ignore it). Weights scale squared
differences, so that the inverse of a known noise variance makes ``l2`` a Gaussian log-likelihood.

A search evaluates its objective at every step, over every coordinate of the gradient: the two most used have their
derivatives written out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, ClassVar, Literal, TypeAlias

from pydantic import Field

from leakbench.attacks.parts import Part
from leakbench.lazy import torch
from leakbench.numerics.slopes import with_slope

NATS = 64.0
"""Nats per input that count as one, so that weights of regularisers that suit the cosine distance suit likelihoods."""
EXACT = 1e-3
"""Size of the misfit of an exact message, as a part of the message: with less the likelihood has no bound."""
LEAST_COSINE = 0.1
"""From where down the likelihood goes on as a straight line of the cosine: none has a slope at a right angle."""

Weights: TypeAlias = "torch.Tensor | None"
Sizes: TypeAlias = Sequence[int]


class _Objective(Part):
    in_nats: ClassVar[bool] = False
    """Whether it is a negative log-likelihood, which a prior of its own unit weighs against."""

    def __call__(
        self, gradient: torch.Tensor, target: torch.Tensor, weights: Weights = None, sizes: Sizes = ()
    ) -> torch.Tensor:
        """The distance, a scalar; or one per candidate, ``[k]``.

        Args:
            gradient: of a candidate ``[d]``, or of several ``[k, d]``.
            target: observed, ``[d]``.
            weights: of the coordinates, ``[d]``; all one where None.
            sizes: numbers of coordinates of the model's tensors, in order; they sum to ``d``.
        """
        raise NotImplementedError


# Sums, not torch.dot: that loses two digits under vmap, and other digits when a trial is alone in its batch.
def _inner(a: torch.Tensor, b: torch.Tensor, weights: Weights) -> torch.Tensor:
    # Weights come first: a square could overflow where the weight is zero.
    return (a * b if weights is None else a * weights * b).sum(dim=-1)


def _norm(a: torch.Tensor, weights: Weights) -> torch.Tensor:
    # The square root of a sum has no derivative at zero, the norm has one.
    norm: torch.Tensor = torch.linalg.vector_norm(a if weights is None else a * weights.sqrt(), dim=-1)
    return norm


class L2(_Objective):
    """``sum_i w_i (g_i - t_i)^2`` (Zhu et al. 2019, eq. 4)."""

    kind: Literal["l2"] = "l2"

    def __call__(
        self, gradient: torch.Tensor, target: torch.Tensor, weights: Weights = None, sizes: Sizes = ()
    ) -> torch.Tensor:
        difference = gradient.detach() - target
        weighted = difference if weights is None else difference * weights
        return with_slope(gradient, (weighted * difference).sum(dim=-1), 2 * weighted)


class Cosine(_Objective):
    """``1 - <g, t> / (||g|| ||t||)`` over all parameters (Geiping et al. 2020, eq. 4)."""

    kind: Literal["cosine"] = "cosine"

    def __call__(
        self, gradient: torch.Tensor, target: torch.Tensor, weights: Weights = None, sizes: Sizes = ()
    ) -> torch.Tensor:
        fixed = gradient.detach()
        length, observed = _norm(fixed, weights)[..., None], _norm(target, weights)[..., None]
        weighted = target if weights is None else target * weights
        cosine = (fixed * weighted).sum(dim=-1, keepdim=True) / (length * observed)
        trusted = fixed if weights is None else fixed * weights
        slope = (trusted * (cosine / length.square())).sub_(weighted / (length * observed))
        return with_slope(gradient, 1 - cosine[..., 0], slope)

    @staticmethod
    def of_products(inner: torch.Tensor, square: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The distance, from the gradient's inner products with the target ``[d]`` and with itself; without weights."""
        distance: torch.Tensor = 1 - inner / (square.sqrt() * torch.linalg.vector_norm(target, dim=-1))
        return distance


class CosinePerTensor(_Objective):
    """The mean over the model's tensors of ``1 - cosine`` (Geiping et al.'s ``simlocal``; Balunovic et al. 2022).

    A tensor whose gradient is zero on either side has cosine 0. The exact gradient of some tensors is zero, such as of
    the biases of attention's keys; of these rounding leaves a direction of noise, whose slope is no smaller than that
    of the others. ``floor`` shortens such directions: ``1 - <g, t> / (max(|g|, f |t*|) max(|t|, f |t*|))``, where
    ``t*`` are all tensors.
    """

    kind: Literal["cosine_per_tensor"] = "cosine_per_tensor"
    floor: float = Field(
        0.0, ge=0, description="a tensor whose part of the observed gradient's length is smaller counts less"
    )

    def __call__(
        self, gradient: torch.Tensor, target: torch.Tensor, weights: Weights = None, sizes: Sizes = ()
    ) -> torch.Tensor:
        inner = _per_tensor(_inner, sizes, gradient, target, weights)
        norm, observed = _per_tensor(_norm, sizes, gradient, weights), _per_tensor(_norm, sizes, target, weights)
        if self.floor:
            least = self.floor * _norm(target, weights)[..., None]
            norm, observed = torch.maximum(norm, least), torch.maximum(observed, least)
        lengths = norm * observed
        # Not clamped to a tiny number: its inverse would be the slope, and infinite times zero is not a number.
        return (1 - inner / lengths.where(lengths > torch.finfo(lengths.dtype).tiny, 1.0)).mean(dim=-1)


def _per_tensor(
    reduce: Callable[..., torch.Tensor], sizes: Sequence[int], *operands: torch.Tensor | None
) -> torch.Tensor:
    """``reduce`` over each of the model's tensors, ``[..., tensors]``.

    A few reductions over slices: one reduction by segment has no second derivative under vmap.
    """
    parts = [[None] * len(sizes) if operand is None else operand.split(list(sizes), dim=-1) for operand in operands]
    return torch.stack([reduce(*slices) for slices in zip(*parts, strict=True)], dim=-1)


class Profile(_Objective):
    """``K/2 log(1 - cos^2)`` nats: the negative log-likelihood of normal noise, at the best scale and variance.

    ``cos`` is the cosine of gradient and target, ``K`` the number of coordinates that count: the profile likelihood,
    which asks nothing about how long a gradient is or how noisy.
    """

    kind: Literal["profile"] = "profile"
    in_nats: ClassVar[bool] = True

    def __call__(
        self, gradient: torch.Tensor, target: torch.Tensor, weights: Weights = None, sizes: Sizes = ()
    ) -> torch.Tensor:
        fixed, root = gradient.detach(), None if weights is None else weights.sqrt()
        trusted, seen = (fixed, target) if root is None else (fixed * root, target * root)
        count = gradient.shape[-1] if weights is None else weights.count_nonzero(dim=-1)
        length = torch.linalg.vector_norm(trusted, dim=-1, keepdim=True)
        seen = seen / torch.linalg.vector_norm(seen, dim=-1, keepdim=True)
        cosine = (trusted * seen).sum(dim=-1, keepdim=True) / length
        rest = seen - (cosine / length) * trusted  # its square is 1 - cos^2, without cancellation
        above = cosine.clamp(min=LEAST_COSINE)
        misfit = EXACT**2 + rest.square().sum(dim=-1, keepdim=True) + (cosine - above).square()
        slope = rest * (-count * above[..., 0] / (misfit * length)[..., 0])[..., None]
        value = count / 2 * misfit[..., 0].log()
        return with_slope(gradient, value, slope if root is None else slope * root)


class L1(_Objective):
    """``sum_i sqrt(w_i) |g_i - t_i|``: few coordinates that are far off, such as flipped ones, hardly move it."""

    kind: Literal["l1"] = "l1"

    def __call__(
        self, gradient: torch.Tensor, target: torch.Tensor, weights: Weights = None, sizes: Sizes = ()
    ) -> torch.Tensor:
        return _absolute(gradient - target, weights)


class L1L2(_Objective):
    """``sum_i w_i (g_i - t_i)^2 + l1_weight sum_i sqrt(w_i) |g_i - t_i|`` (TAG, Deng et al. 2021, as LAMP runs it)."""

    kind: Literal["l1_l2"] = "l1_l2"
    l1_weight: float = Field(0.01, ge=0, description="weight of the absolute differences")

    def __call__(
        self, gradient: torch.Tensor, target: torch.Tensor, weights: Weights = None, sizes: Sizes = ()
    ) -> torch.Tensor:
        difference = gradient - target
        return _inner(difference, difference, weights) + self.l1_weight * _absolute(difference, weights)


def _absolute(difference: torch.Tensor, weights: Weights) -> torch.Tensor:
    return (difference.abs() if weights is None else difference.abs() * weights.sqrt()).sum(dim=-1)


Objective = Annotated[L1 | L2 | Cosine | CosinePerTensor | L1L2 | Profile, Field(discriminator="kind")]
