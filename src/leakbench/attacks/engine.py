"""Batched gradient matching: one loop optimises many independent trials of one model.

A trial is one observation with one starting point. Everything in the loop is either vectorised over trials
(``torch.func.vmap`` of the objective's gradient) or elementwise (the optimiser), so a trial takes the same path
whatever else shares its batch. A trial that becomes non-finite is frozen and marked; it neither stops nor touches the
others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from leakbench.adam import Adam
from leakbench.lazy import torch
from leakbench.progress import progress

MEMORY_BUDGET = 1024 * 2**20
"""Working memory of one vectorised step, in bytes. Only speed depends on it."""

TrialCost: TypeAlias = "Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]"
"""``cost(images [B, C, H, W], target [d], labels [B]) -> scalar`` of one trial."""


def cosine_distance(gradient: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """``1 - <g, t> / (||g|| ||t||)`` over all parameters (Geiping et al. 2020, eq. 4): ``[d], [d] -> scalar``."""
    # A sum, not torch.dot: that loses two digits under vmap, and other digits when a trial is alone in its batch.
    distance: torch.Tensor = 1 - (gradient * target).sum() / (gradient.norm() * target.norm())
    return distance


def total_variation(images: torch.Tensor) -> torch.Tensor:
    """Anisotropic: the mean absolute difference of horizontal neighbours plus that of vertical ones."""
    horizontal = images[..., :, 1:] - images[..., :, :-1]
    vertical = images[..., 1:, :] - images[..., :-1, :]
    return horizontal.abs().mean() + vertical.abs().mean()


@dataclass(frozen=True)
class StepSchedule:
    """Step size ``rate``, times 0.1 after 3/8, 5/8 and 7/8 of the iterations (Geiping et al. 2020)."""

    rate: float
    iterations: int

    def __getitem__(self, iteration: int) -> float:
        return float(self.rate * 0.1 ** sum(iteration >= part * self.iterations / 8 for part in (3, 5, 7)))


@dataclass(frozen=True)
class Matched:
    """Final ``images [n, B, C, H, W]``, ``objective [n]`` and ``diverged_at [n]`` (-1: never) of each trial."""

    images: torch.Tensor
    objective: torch.Tensor
    diverged_at: torch.Tensor


def match_gradients(
    cost: TrialCost,
    starts: torch.Tensor,
    targets: torch.Tensor,
    labels: torch.Tensor,
    schedule: StepSchedule,
    *,
    signed: bool,
    box: torch.Tensor | None,
    chunk: int,
) -> Matched:
    """Minimise ``cost`` over the images of every trial by Adam.

    Args:
        cost: objective of one trial.
        starts: starting points, ``[n, B, C, H, W]``.
        targets: observed gradients, ``[n, d]``.
        labels: ``[n, B]``.
        schedule: step sizes and number of iterations.
        signed: feed Adam the sign of the gradient (Geiping et al. 2020) instead of the gradient.
        box: smallest and largest valid input, ``[2, C, 1, 1]``; every step projects onto it.
        chunk: trials per vectorised step. The results do not depend on it, but for a chunk of one: other kernels then
            round in other places, which hundreds of signed steps can amplify.
    """
    value_and_gradient = torch.func.vmap(torch.func.grad_and_value(cost))
    parts = []
    with progress("matching gradients", schedule.iterations * len(starts)) as tick:
        for rows in torch.arange(len(starts)).split(chunk):
            # Kernels round a batch of one differently, and signs amplify that: a lone trial runs beside its own copy.
            computed = rows.repeat(2) if len(rows) == 1 < chunk else rows
            images, target, label = starts[computed], targets[computed], labels[computed]
            adam = Adam(images)
            diverged_at = torch.full((len(images),), -1, device=images.device)
            for iteration in range(schedule.iterations):
                gradient, value = value_and_gradient(images, target, label)
                finite = value.isfinite() & gradient.flatten(1).isfinite().all(dim=1)
                diverged_at = torch.where((diverged_at < 0) & ~finite, iteration, diverged_at)
                direction = adam.direction(gradient.sign() if signed else gradient)
                moved = images - schedule[iteration] * direction
                if box is not None:
                    moved = moved.clamp(box[0], box[1])
                images = torch.where((diverged_at < 0).view(-1, 1, 1, 1, 1), moved, images)
                tick(len(rows))
            _, value = value_and_gradient(images, target, label)
            diverged_at = torch.where((diverged_at < 0) & ~value.isfinite(), schedule.iterations, diverged_at)
            parts.append([tensor[: len(rows)] for tensor in (images, value, diverged_at)])
    return Matched(*(torch.cat(tensors) for tensors in zip(*parts, strict=True)))
