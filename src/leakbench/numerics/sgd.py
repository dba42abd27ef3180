"""Stochastic gradient descent on a stack of independent problems, with the interface of :class:`Adam`."""

from __future__ import annotations

from collections.abc import Mapping

from leakbench.lazy import torch
from leakbench.numerics.stateful import Stateful


class SGD(Stateful):
    """Without momentum: the step is the gradient."""

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """The step to subtract, before the learning rate; the shape of ``gradient``."""
        return gradient


class Momentum(SGD):
    """With momentum: the step is the velocity.

    Args:
        velocity: to start with, the shape of a gradient; changed in place.
        momentum: in [0, 1).
    """

    def __init__(self, velocity: torch.Tensor, momentum: float) -> None:
        self._velocity = velocity
        self._momentum = momentum

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        return self._velocity.mul_(self._momentum).add_(gradient)

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        self._velocity.copy_(saved["_velocity"])  # it may be a part of a larger tensor
