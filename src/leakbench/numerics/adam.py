"""Adam on a stack of independent problems.

Every operation is elementwise, so rows never mix, and returns the step instead of taking it, so that the caller can
project it or freeze the rows that diverged. Equal to ``torch.optim.Adam`` otherwise.
"""

from __future__ import annotations

from leakbench.lazy import torch
from leakbench.numerics.stateful import Stateful

BETAS = (0.9, 0.999)
EPSILON = 1e-8


class Adam(Stateful):
    """Moments of one tensor (Kingma and Ba 2015), with the usual constants."""

    def __init__(self, like: torch.Tensor) -> None:
        self._first = torch.zeros_like(like)
        self._second = torch.zeros_like(like)
        self._steps = 0

    def direction(self, gradient: torch.Tensor) -> torch.Tensor:
        """The step to subtract, before the learning rate; the shape of ``gradient``."""
        self._steps += 1
        self._first.lerp_(gradient, 1 - BETAS[0])
        self._second.lerp_(gradient.square(), 1 - BETAS[1])
        scale = (self._second / (1 - BETAS[1] ** self._steps)).sqrt_().add_(EPSILON)
        return self._first / (1 - BETAS[0] ** self._steps) / scale
