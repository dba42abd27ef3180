"""Long loops of a job that resume where a killed attempt left off.

A loop that may take minutes is opened with :func:`loop`, and every step ends with :meth:`Loop.tick`, which names the
state: tensors, from which the rest follows. In a job (:func:`opened`) the state is saved every few minutes, in the
job's work folder. When the job runs again, the loop resumes from it, to the same numbers, bit for bit on a device of
the same kind. Outside of a job nothing is saved.

The progress of a job is a list of loops, in the order in which they were opened: those that ended, and at the end of
the list the one that is open, after the loops around it. Every attempt opens its loops in the same order, so each takes
the next entry of the list. A completed step removes the entries of the loops inside it, as the state now holds their
results. A loop that has ended stays in the list with its last state, so that many short loops are like a long one.

A save writes the whole list, every open loop as it was after its last step; so a state must not change between steps,
while loops inside are at work.

What many jobs of a run compute alike, such as the training of a model that all of them attack, is a shared loop: the
first job that ends it leaves its last state for the others, which begin there as if they had computed it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeAlias

from leakbench.errors import ConfigError, WriteError
from leakbench.lazy import torch
from leakbench.records import digest
from leakbench.running.progress import Tick, progress
from leakbench.running.snapshots import Entry, Snapshots, Spent

CHECKPOINT_S = 300.0
"""Seconds of work that a killed job loses at most, but for the step that it was at."""

LARGEST_PART = 0.01
"""Maximum fraction of the run time spent saving; saves are rarer where they would take more."""

EVERY = "LEAKBENCH_CHECKPOINT_S"
"""The environment variable that overrides :data:`CHECKPOINT_S`, however long saves take."""

FOLDER = "checkpoint"

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Signals that ask a job to save and end: those of SLURM's time limit, preemption and scancel, and of ``--signal``."""

State: TypeAlias = "Mapping[str, torch.Tensor]"
"""The state of a loop: tensors by name."""


class Stopped(SystemExit):
    """A signal ended the job, which saved its state before; the exit status encodes the signal."""


def packed(value: Any) -> torch.Tensor:
    """A value of JSON, NaN and infinities included, as bytes ``[length]``; floats come back as they were."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def unpacked(content: torch.Tensor) -> Any:
    """The value that :func:`packed` turned into bytes ``[length]``."""
    return json.loads(bytes(content.cpu().numpy()))


class Loop:
    """A loop that is open.

    Attributes:
        done: steps done, those of earlier attempts included.
        total: steps in all.
        saved: the state after ``done`` steps that an earlier attempt saved, on the CPU; empty where none did.
    """

    def __init__(
        self, name: str, total: int, ends: bool, show: Tick | None, job: _Job | None, shared: str | None = None
    ) -> None:
        self.name, self.total, self.ends, self.shared = name, total, ends, shared
        self.done = 0
        self.saved: State = {}
        self.entry = Entry(name, total)  # as of the last save
        self.unsaved: Callable[[], State] | None = None  # the state since then
        self._show, self._job = show, job

    @property
    def steps(self) -> range:
        """The numbers of the remaining steps."""
        return range(self.done, self.total)

    def tick(self, state: Callable[[], State], steps: int = 1) -> None:
        """Complete some steps.

        Args:
            state: returns the state after them, until the next call; called when it is saved.
            steps: their number; 0 replaces the state without completing a step, which then begins again.

        Raises:
            Stopped: a signal asked the job to end.
        """
        self.done += steps
        if self._show is not None:
            self._show(steps)
        if self._job is not None:
            self._job.after_step(self, state)


@contextmanager
def loop(name: str, total: int, *, quiet: bool = False, ends: bool = True, shared: str | None = None) -> Iterator[Loop]:
    """Open a loop of ``total`` steps, and show its progress.

    Args:
        name: of the loop, for messages.
        total: number of steps.
        quiet: show no progress.
        ends: keep the last state when the loop has ended. Without, the results of a loop inside another one are
            computed again if the job is killed before the step around has ended; nothing is copied then.
        shared: all that decides on the numbers, beside the data's files, the device and the sources, if other jobs of
            the run open the same loop; it ends with its state then.
    """
    job = _JOB.get()
    with ExitStack() as shown:
        show = None if quiet else shown.enter_context(progress(name, total))
        new = Loop(name, total, ends, show, job, shared)
        if job is None:
            yield new
            return
        job.enter(new)
        if show is not None and new.done:
            show(new.done)
        try:
            yield new
        finally:
            job.leave(new)


@contextmanager
def opened(
    folder: Path,
    identity: Callable[[], Mapping[str, str]],
    spent: Callable[[], Spent] = Spent,
    shared: Path | None = None,
) -> Iterator[_Job]:
    """A job whose loops are saved; its ``earlier`` is the cost of the attempts that it resumed from.

    While it is open, SIGTERM and SIGUSR1 save at the next step and end the process; where no loop is open, at once.

    Args:
        folder: the job's work folder.
        identity: values that have to match for a state to be used, by name; called at the first loop. Jobs share
            loops if all but ``job`` match.
        spent: the cost of this attempt so far.
        shared: the folder of shared loops; without one, none is shared.
    """
    job = _Job(folder / FOLDER, identity, spent, shared)
    token = _JOB.set(job)
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, job.on_signal) for number in SIGNALS}
    try:
        yield job
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _JOB.reset(token)


class _Job:
    """The list of loops, and the schedule of saves."""

    def __init__(
        self,
        folder: Path,
        identity: Callable[[], Mapping[str, str]],
        spent: Callable[[], Spent],
        shared: Path | None,
    ) -> None:
        self.earlier = Spent()
        self._folder, self._identity, self._spent, self._shared = folder, identity, spent, shared
        self._snapshots: Snapshots | None = None  # since the first loop
        self._loops: list[Loop] = []
        self._ahead: list[Entry] = []  # saved by an earlier attempt, of loops that this one has not opened yet
        self._open = 0
        self._every, self._largest_part = _every()
        self._due = time.monotonic() + self._every
        self._signal: signal.Signals | None = None
        self._trouble: str | None = None

    def enter(self, loop: Loop) -> None:
        """Append a loop to the list, and hand it its saved state."""
        if self._signal is not None:  # since the last step of one that ended early
            self._save()
            self._stop(None)
        if self._snapshots is None:
            self._snapshots = Snapshots(self._folder, self._identity())
            self._ahead, self.earlier = self._snapshots.read()
        self._loops.append(loop)
        self._open += 1
        if self._ahead:
            self._resume(loop, self._ahead.pop(0), self._snapshots)
        if not loop.done:
            self._borrow(loop)

    def _resume(self, loop: Loop, entry: Entry, snapshots: Snapshots) -> None:
        if (entry.name, entry.total) != (loop.name, loop.total):  # later entries are useless, too
            self._ahead.clear()
        elif entry.file is not None:
            state = snapshots.load(entry.file)
            if state is None:
                self._ahead.clear()
                return
            loop.entry, loop.done, loop.saved = entry, entry.done, state
            print(f"leakbench: going on after {loop.done} of {loop.total} steps of '{loop.name}'", file=sys.stderr)

    def _of_all(self, loop: Loop) -> Snapshots | None:
        """The snapshot of a shared loop's last state; None of other loops."""
        if self._shared is None or loop.shared is None:
            return None
        identity = {name: value for name, value in self._identity().items() if name != "job"}
        identity["loop"] = f"{loop.name}, {loop.total}, {loop.shared}"
        return Snapshots(self._shared / digest(identity), identity)

    def _borrow(self, loop: Loop) -> None:
        """Take the last state that another job left, if there is one."""
        snapshots = self._of_all(loop)
        entries = snapshots.read()[0] if snapshots else []
        state = snapshots.load(entries[0].file) if snapshots and entries and entries[0].file else None
        if state is not None:
            loop.done, loop.saved, loop.unsaved = entries[0].done, state, partial(dict, state)

    def _lend(self, loop: Loop, state: State) -> None:
        """Leave the last state to other jobs, which compute it themselves where that fails."""
        snapshots = self._of_all(loop)
        if snapshots is not None:
            with suppress(WriteError, OSError):
                entry = Entry(loop.name, loop.total, loop.done, snapshots.store(state))
                snapshots.write([entry], Spent())

    def leave(self, loop: Loop) -> None:
        """Close a loop that ended, or that an error ended, in which case its last state may be gone."""
        self._open -= 1
        loop.saved = {}
        if loop.done < loop.total or not loop.ends:
            loop.unsaved = None

    def after_step(self, loop: Loop, state: Callable[[], State]) -> None:
        """Save, if it is time or a signal came."""
        while self._loops[-1] is not loop:  # of this step, whose state has their results
            self._loops.pop()
        self._ahead.clear()
        loop.unsaved = lambda: _on_cpu(state())
        if loop.done >= loop.total and loop.ends:
            final = loop.unsaved()
            loop.unsaved = lambda: final
            self._lend(loop, final)
        if self._signal is not None or time.monotonic() >= self._due:
            self._save()
        if self._signal is not None:
            self._stop(loop)

    def on_signal(self, number: int, _: FrameType | None) -> None:
        """Save and end: after the step of the open loop, or now."""
        self._signal = signal.Signals(number)
        if not self._open:
            if any(loop.unsaved for loop in self._loops):
                self._save()
            self._stop(None)

    def _stop(self, loop: Loop | None) -> NoReturn:
        assert self._signal is not None
        where = "between loops" if loop is None else f"after {loop.done} of {loop.total} steps of '{loop.name}'"
        outcome = f"not saved: {self._trouble}" if self._trouble else f"saved {where}; run it again to go on"
        print(f"leakbench: told to end ({self._signal.name}), {outcome}", file=sys.stderr, flush=True)
        raise Stopped(128 + self._signal)

    def _save(self) -> None:
        """Write a snapshot; failing to save is not fatal, and warned of once."""
        started = time.monotonic()
        try:
            self._write()
            self._trouble = None
        except (WriteError, OSError) as error:
            if self._trouble is None:
                print(f"leakbench: no checkpoint: {error}; going on without", file=sys.stderr)
            self._trouble = str(error)
        ended = time.monotonic()
        self._due = ended + max(self._every, (ended - started) / self._largest_part)

    def _write(self) -> None:
        assert self._snapshots is not None
        for loop in self._loops:
            if loop.unsaved is not None:
                file = self._snapshots.store(loop.unsaved())
                loop.entry = Entry(loop.name, loop.total, loop.done, file)
                loop.unsaved = None
        entries = [loop.entry for loop in self._loops] + self._ahead
        self._snapshots.write(entries, self.earlier.plus(self._spent()))


_JOB: ContextVar[_Job | None] = ContextVar("job", default=None)


def _every() -> tuple[float, float]:
    """Seconds between saves, and the maximum fraction of the run time spent saving."""
    asked = os.environ.get(EVERY)
    if not asked:
        return CHECKPOINT_S, LARGEST_PART
    try:
        return float(asked), math.inf
    except ValueError:
        raise ConfigError(f"{EVERY}={asked}: expected seconds") from None


def _on_cpu(state: State) -> State:
    """Copies on the CPU, none sharing memory with another."""
    return {
        key: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for key, tensor in state.items()
    }
