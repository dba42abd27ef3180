"""The loop that every training is: models are updated side by side, and a killed job continues where it was.

:func:`run_updates` owns the loop and its checkpoints, :class:`Runs` the models, their losses and divergence. An update
itself (batches, messages, the server's step) belongs to its caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from leakbench.lazy import torch
from leakbench.models.base import Statistics
from leakbench.numerics.stateful import Stateful, named, part_of
from leakbench.running.checkpoint import loop


class Hook(Stateful):
    """Code that runs before or after every update, such as an evaluation; override either method.

    Its attributes that are tensors or integers are saved with the loop, see :class:`Stateful`; those that others save
    are ``borrowed``. Keep data sets in objects of another class.

    >>> class Count(Hook):
    ...     def __init__(self):
    ...         self.updates = 0
    ...
    ...     def after(self, step):
    ...         self.updates += 1
    >>> count = Count()
    >>> run_updates("counting", 3, update=lambda step: None, parts={}, hooks=[count], quiet=True)
    >>> count.updates
    3
    """

    def before(self, step: int) -> None:
        """Run before an update.

        Args:
            step: the number of the update, from 0.
        """

    def after(self, step: int) -> None:
        """Run after an update, and before the state is saved.

        Args:
            step: the number of the update, from 0.
        """


class Part(Protocol):
    """A part of the state of a loop."""

    def state(self) -> dict[str, torch.Tensor]:
        """The state by name; tensors are not copied."""
        ...

    def restore(self, saved: Mapping[str, torch.Tensor]) -> None:
        """Return to a state of :meth:`state`."""
        ...


def run_updates(
    name: str,
    total: int,
    update: Callable[[int], None],
    parts: Mapping[str, Part],
    hooks: Sequence[Hook] = (),
    *,
    quiet: bool = False,
    shared: str | None = None,
) -> None:
    """Take the remaining updates of ``total``: all, or those after the last checkpoint of an earlier attempt.

    Args:
        name: of the loop, shown with its progress.
        total: number of updates.
        update: takes the update of a number, from 0; all state that it changes is in ``parts``.
        parts: the state, by name.
        hooks: run around every update, in this order.
        quiet: show no progress, for a loop inside another.
        shared: as for :func:`leakbench.running.checkpoint.loop`.
    """
    parts = {**parts, **{f"hook{number}": hook for number, hook in enumerate(hooks)}}

    def state() -> dict[str, torch.Tensor]:
        return {key: value for part in parts for key, value in named(part, parts[part].state()).items()}

    with loop(name, total, quiet=quiet, ends=not quiet, shared=shared) as steps:
        if steps.saved:
            for part in parts:
                parts[part].restore(part_of(steps.saved, part))
        for step in steps.steps:
            for hook in hooks:
                hook.before(step)
            update(step)
            for hook in hooks:
                hook.after(step)
            steps.tick(state)


class Runs(Stateful):
    """Models of one architecture that are updated side by side, each until it diverges.

    Args:
        parameters: to start with, ``[runs, d]``; changed in place.
        steps: number of updates.
        statistics: running statistics of BatchNorm, each ``[runs, channels]``; changed in place.

    Attributes:
        parameters: ``[runs, d]``; a run that ended early keeps the last that were finite.
        statistics: likewise.
        losses: the loss before each update, ``[runs, steps]``; NaN from the one at which a run ended.
        diverged_at: that update, ``[runs]``; -1 where a run did not diverge.
        stopped: runs that ended for another reason, boolean ``[runs]``.
    """

    def __init__(self, parameters: torch.Tensor, steps: int, statistics: Statistics | None = None) -> None:
        self.parameters = parameters
        self.statistics = statistics or {}
        self.losses = torch.full((len(parameters), steps), torch.nan, device=parameters.device)
        self.diverged_at = torch.full((len(parameters),), -1, device=parameters.device)
        self.stopped = torch.zeros(len(parameters), dtype=torch.bool, device=parameters.device)

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def alive(self) -> torch.Tensor:
        """Runs that continue, boolean ``[runs]``."""
        return (self.diverged_at < 0) & ~self.stopped

    def advance(
        self,
        step: int,
        moved: torch.Tensor,
        loss: torch.Tensor,
        finite: torch.Tensor,
        statistics: Statistics | None = None,
        rows: slice = slice(None),
    ) -> None:
        """Replace the models of the runs that are alive; those that are no longer finite end before this update.

        Args:
            step: number of the update.
            moved: parameters after it, ``[k, d]``.
            loss: before it, ``[k]``.
            finite: whether a run is still finite, boolean ``[k]``.
            statistics: BatchNorm's after it, each ``[k, channels]``; those before it by default.
            rows: the runs that ``k`` counts; all by default.
        """
        self.diverged_at[rows] = torch.where(self.alive[rows] & ~finite, step, self.diverged_at[rows])
        alive = self.alive[rows]
        self.losses[rows, step] = torch.where(alive, loss, torch.nan)
        self.parameters[rows] = torch.where(alive[:, None], moved, self.parameters[rows])
        for name, values in (statistics or {}).items():
            self.statistics[name][rows] = torch.where(alive[:, None], values, self.statistics[name][rows])


def finite_rows(loss: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Mask of the rows of a loss ``[k]`` and of values ``[k, d]`` that are finite throughout, boolean ``[k]``."""
    return loss.isfinite() & values.isfinite().all(dim=1)
