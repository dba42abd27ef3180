"""Code of a mechanism inside a search: it gets all candidates at once, outside of any transformation, so may be any."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeAlias

from leakbench.lazy import torch


class Candidates(NamedTuple):
    """Candidates of a search, ``k`` of them, or one without the leading axis.

    Attributes:
        gradients: of their loss, or their updates, ``[k, d]``; of each of several users, ``[k, users, d]``.
        images: ``[k, *batch_shape]``.
        labels: ``[k, B]``, or probabilities ``[k, B, classes]``.
        rows: the observation that each is a candidate for, ``[k]``.
    """

    gradients: torch.Tensor
    images: torch.Tensor
    labels: torch.Tensor
    rows: torch.Tensor


Sending: TypeAlias = "Callable[[Candidates], torch.Tensor]"
"""Messages ``[k, draws, d]`` of candidates."""

Scoring: TypeAlias = "Callable[[Candidates], tuple[torch.Tensor, torch.Tensor]]"
"""Objectives ``[k]`` of candidates, and their derivatives by the gradients, of the gradients' shape."""


def straight_through(candidate: Candidates, send: Sending) -> torch.Tensor:
    """Messages of one candidate, ``[draws, d]``, with the derivative of its gradient, or of the mean of its users'."""
    sent: torch.Tensor = _functions()[0].apply(candidate.gradients, *_fixed(candidate), send)
    return sent


def scored(candidate: Candidates, score: Scoring) -> torch.Tensor:
    """The objective of one candidate, a scalar, with the derivative that comes with it."""
    value: torch.Tensor = _functions()[1].apply(candidate.gradients, *_fixed(candidate), score)[0]
    return value


def _fixed(candidate: Candidates) -> list[torch.Tensor]:
    return [part.detach() for part in candidate[1:]]


@cache
def _functions() -> tuple[Any, Any]:
    """Both operators, made at the first call: their base loads torch."""

    class OfMany(torch.autograd.Function):
        generate_vmap_rule = False

        @staticmethod
        def rows(info: Any, in_dims: Any, inputs: Any) -> Candidates:
            return Candidates(
                *(
                    tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
                    for tensor, dim in zip(inputs, in_dims, strict=False)
                )
            )

    class StraightThrough(OfMany):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            return inputs[-1](Candidates(*(tensor[None] for tensor in inputs[:-1])))[0]

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
            ctx.shape, ctx.users = inputs[0].shape, math.prod(inputs[0].shape[:-1])

        @staticmethod
        def backward(ctx: Any, derivative: Any) -> Any:
            derivative = derivative.sum(dim=0)
            return derivative.expand(ctx.shape) / ctx.users, None, None, None, None

        @staticmethod
        def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
            return inputs[-1](OfMany.rows(info, in_dims, inputs[:-1])), 0

    class Scored(OfMany):
        @staticmethod
        def forward(*inputs: Any) -> Any:
            values, derivatives = inputs[-1](Candidates(*(tensor[None] for tensor in inputs[:-1])))
            return values[0], derivatives[0]

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(output[1])

        @staticmethod
        def backward(ctx: Any, derivative: Any, _: Any) -> Any:
            return derivative * ctx.saved_tensors[0], None, None, None, None

        @staticmethod
        def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
            return inputs[-1](OfMany.rows(info, in_dims, inputs[:-1])), (0, 0)

    return StraightThrough, Scored
