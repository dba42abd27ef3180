"""Functions whose derivative is written out, inside of what is differentiated automatically."""

from __future__ import annotations

from functools import cache
from typing import Any

from leakbench.lazy import torch


def with_slope(point: torch.Tensor, value: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """The value as a function of the point, whose derivative is the slope.

    Args:
        point: ``[n, ...]``.
        value: at the point, ``[n]``, of which row ``i`` depends on the point's row ``i`` alone.
        slope: derivatives of the values, of the shape of ``point``.
    """
    given: torch.Tensor = _function().apply(point, value.detach(), slope.detach())
    return given


@cache
def _function() -> Any:
    """The operator, made at the first call: its base loads torch."""

    class WithSlope(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(point: torch.Tensor, value: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return value.clone()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
            ctx.save_for_backward(inputs[2])

        @staticmethod
        def backward(ctx: Any, derivative: Any) -> Any:
            (slope,) = ctx.saved_tensors
            return slope * derivative.view(-1, *[1] * (slope.dim() - 1)), None, None

    return WithSlope
