"""Optimisers of candidates: one step of every trial per evaluation of every trial.

The engine asks a :class:`Descent` for points, evaluates them all together, and tells it values and gradients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Annotated, Literal, Self

from pydantic import Field

from leakbench.attacks.parts import Part
from leakbench.lazy import torch
from leakbench.numerics import adam, lbfgs
from leakbench.numerics.stateful import Stateful

Bounds = tuple["torch.Tensor", "torch.Tensor"]
"""Smallest and largest valid value of every variable, ``[D]`` each."""


class Descent(Stateful, ABC):
    """The state of ``n`` trials."""

    points: torch.Tensor
    """Points to evaluate next, ``[n, D]``."""

    @property
    @abstractmethod
    def accepted(self) -> torch.Tensor:
        """The iterate of every trial, ``[n, D]``."""

    @abstractmethod
    def tell(self, value: torch.Tensor, gradient: torch.Tensor, moving: torch.Tensor) -> torch.Tensor:
        """Move on from the values ``[n]`` and gradients ``[n, D]`` at :attr:`points`.

        Args:
            value: of the objective.
            gradient: of the objective, by the points.
            moving: boolean ``[n]``; the other trials stay where they are.

        Returns:
            The trials that have converged, boolean ``[n]``.
        """


class _Adam(Part):
    rate: float = Field(gt=0, description="first step size, in network inputs")
    signed: bool = Field(False, description="feed Adam the sign of the gradient (Geiping et al. 2020)")

    def step_size(self, iteration: int, iterations: int) -> float:
        """The step size at an iteration, from 0 on."""
        raise NotImplementedError

    def times(self, factor: float) -> Self:
        """The optimiser with step sizes that are so many times as large."""
        return self.model_copy(update={"rate": factor * self.rate})

    def start(self, points: torch.Tensor, iterations: int, bounds: Bounds | None) -> Descent:
        """Begin at ``points`` ``[n, D]``; every step projects onto ``bounds``."""
        return _AdamDescent(self, points, iterations, bounds)


class Adam(_Adam):
    """Adam (Kingma and Ba 2015) with a step schedule."""

    kind: Literal["adam"] = "adam"
    decay: Literal["none", "steps", "cosine"] = Field(
        "none", description="steps: times 0.1 after 3/8, 5/8 and 7/8 of the iterations; cosine: down to rate / 10"
    )

    def step_size(self, iteration: int, iterations: int) -> float:
        if self.decay == "steps":
            return self.rate * 0.1 ** sum(iteration >= part * iterations / 8 for part in (3, 5, 7))
        if self.decay == "cosine":
            return self.rate * (0.55 + 0.45 * math.cos(math.pi * iteration / iterations))
        return self.rate


class StaircaseAdam(_Adam):
    """Adam whose step size shrinks by a factor every so many iterations (Balunovic et al. 2022, as released)."""

    kind: Literal["staircase_adam"] = "staircase_adam"
    factor: float = Field(0.89, gt=0, le=1, description="what the step size is multiplied with")
    every: int = Field(50, ge=1, description="iterations between that")

    def step_size(self, iteration: int, iterations: int) -> float:
        return self.rate * self.factor ** (iteration // self.every)


class _AdamDescent(Descent):
    def __init__(self, settings: _Adam, points: torch.Tensor, iterations: int, bounds: Bounds | None) -> None:
        self.points = points
        self._settings, self._iterations, self._bounds = settings, iterations, bounds
        self._moments = adam.Adam(points)
        self._iteration = 0
        self._converged = torch.zeros(len(points), dtype=torch.bool, device=points.device)

    @property
    def accepted(self) -> torch.Tensor:
        return self.points

    def tell(self, value: torch.Tensor, gradient: torch.Tensor, moving: torch.Tensor) -> torch.Tensor:
        direction = self._moments.direction(gradient.sign() if self._settings.signed else gradient)
        moved = self.points - self._settings.step_size(self._iteration, self._iterations) * direction
        if self._bounds is not None:
            moved = moved.clamp(*self._bounds)
        self.points = torch.where(moving[:, None], moved, self.points)
        self._iteration += 1
        return self._converged


class LBFGS(Part):
    """L-BFGS as in ``torch.optim``, with a line search and a history of its own for every trial."""

    kind: Literal["lbfgs"] = "lbfgs"
    rate: float = Field(1.0, gt=0, description="step size, or the first one that a line search tries")
    history: int = Field(100, ge=1, description="curvature pairs to remember")
    line_search: Literal["none", "strong_wolfe"] = Field("none", description="none: every step is as long as rate says")
    tolerance_gradient: float = Field(1e-7, ge=0, description="stop where no gradient entry is larger")
    tolerance_change: float = Field(1e-9, ge=0, description="stop where neither value nor variables change more")

    def times(self, factor: float) -> LBFGS:
        """The optimiser with steps that are so many times as long; itself where a line search decides."""
        return self if self.line_search != "none" else self.model_copy(update={"rate": factor * self.rate})

    def start(self, points: torch.Tensor, iterations: int, bounds: Bounds | None) -> Descent:
        """Begin at ``points`` ``[n, D]``."""
        assert bounds is None, "quasi-Newton steps are not projected"
        return _LBFGSDescent(self, points)


class _LBFGSDescent(Descent):
    def __init__(self, settings: LBFGS, points: torch.Tensor) -> None:
        self._state = lbfgs.LBFGS(points, **settings.model_dump(exclude={"kind"}))

    @property
    def points(self) -> torch.Tensor:  # type: ignore[override]
        return self._state.points

    @property
    def accepted(self) -> torch.Tensor:
        return self._state.accepted

    def tell(self, value: torch.Tensor, gradient: torch.Tensor, moving: torch.Tensor) -> torch.Tensor:
        self._state.finished = self._state.finished | ~moving
        self._state.tell(value, gradient)
        return self._state.finished


Optimiser = Annotated[Adam | StaircaseAdam | LBFGS, Field(discriminator="kind")]
