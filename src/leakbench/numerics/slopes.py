"""Functions whose derivative is written out, inside of what is differentiated automatically."""

from __future__ import annotations

from functools import cache
from typing import Any

from leakbench.lazy import torch


def with_slope(point: torch.Tensor, value: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """The value as a function of the point, whose derivative is the slope.

    It has no second derivative. Under ``torch.compile``, which cannot look into it, it is spelt out.

    Args:
        point: ``[..., d]``, with any number of last axes.
        value: at the point, ``[...]``, each of its entries depending on the last axes alone.
        slope: derivatives of the values, of the shape of ``point``.
    """
    if torch.compiler.is_compiling():
        moved = slope.detach() * (point - point.detach())
        return value.detach() + moved.sum(dim=tuple(range(value.dim(), point.dim())))
    given: torch.Tensor = _function().apply(point, value.detach(), slope.detach())
    return given


@cache
def _function() -> Any:
    """The operator, made at the first call: its base loads torch."""

    class WithSlope(torch.autograd.Function):
        generate_vmap_rule = False

        @staticmethod
        def forward(point: torch.Tensor, value: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return value.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
            ctx.save_for_backward(inputs[2])

        @staticmethod
        def backward(ctx: Any, derivative: Any) -> Any:
            (slope,) = ctx.saved_tensors
            return slope * derivative[(..., *[None] * (slope.dim() - derivative.dim()))], None, None

        @staticmethod
        def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
            moved = (
                each.expand(info.batch_size, *each.shape) if dim is None else each.movedim(dim, 0)
                for each, dim in zip(inputs, in_dims, strict=True)
            )
            return WithSlope.apply(*moved), 0

    return WithSlope
