"""Long loops of a job that go on where they were when the job was killed.

A loop that may take minutes is opened with :func:`loop`, and says at every step what its state is: tensors, from which
the rest follows. In a job (:func:`opened`) the state is saved every few minutes, in the job's work folder. When the job
runs again, the loop is given its state back and goes on from there, to the same numbers, bit for bit on a device of the
same kind. Outside of a job nothing is saved.

Loops are known by their place: the n-th of its name in the job, or within a step of a loop around it. What one loop
found at its end is saved too, with the next state of any other, so that many short loops are like a long one. A save
writes the loops around as well, each as it was after its last step; so what they save must stay as it is until their
next step. What inner loops saved in earlier steps goes then.

A checkpoint belongs to one job on one kind of device, with one version of the libraries and of our own sources; others
are discarded, and so is a file whose digest is not the one in its name. Files are safetensors; nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn, TypeAlias

from leakbench.errors import ConfigError, WriteError
from leakbench.lazy import torch
from leakbench.records import atomic_write, digest
from leakbench.running.progress import Tick, progress

CHECKPOINT_S = 300.0
"""Seconds of work that a killed job loses at most, but for the step that it was at."""

LARGEST_PART = 0.01
"""Saves are rarer where they would take more than this part of the time."""

EVERY = "LEAKBENCH_CHECKPOINT_S"
"""The environment variable that sets other seconds, which are kept whatever saves take."""

FOLDER = "checkpoint"
IDENTITY = "identity.json"
SPENT = "spent.json"

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""How a job is told to save and end: SLURM's time limit, preemption and scancel, and what ``--signal`` may ask for."""

State: TypeAlias = "Mapping[str, torch.Tensor]"


class Stopped(SystemExit):
    """The job was told to end; it saved its state before, and its exit status says which signal it was."""


class Spent(NamedTuple):
    """What a job took so far: seconds, seconds of its device, and the largest memory in bytes."""

    wall_s: float = 0.0
    device_s: float = 0.0
    memory: int = 0

    def plus(self, other: Spent) -> Spent:
        """Both attempts together."""
        return Spent(self.wall_s + other.wall_s, self.device_s + other.device_s, max(self.memory, other.memory))


def packed(value: Any) -> torch.Tensor:
    """A value of JSON, NaN and infinities included, as bytes ``[length]``; floats come back as they were."""
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def unpacked(content: torch.Tensor) -> Any:
    """The value that :func:`packed` made bytes ``[length]`` of."""
    return json.loads(bytes(content.cpu().numpy()))


class Loop:
    """A loop that is open.

    Attributes:
        done: steps done, those of earlier attempts included.
        total: steps in all.
        saved: the state after ``done`` steps that an earlier attempt saved, on the CPU; empty where none did.
    """

    def __init__(self, key: str, name: str, total: int, show: Tick | None, job: _Job | None, ends: bool) -> None:
        self.key, self.name, self.total, self.ends = key, name, total, ends
        self.done = 0
        self.saved: State = {}
        self.state: Callable[[], State] | None = None  # that is not saved yet
        self._show, self._job = show, job

    @property
    def steps(self) -> range:
        """The numbers of the steps that are left."""
        return range(self.done, self.total)

    def tick(self, state: Callable[[], State], steps: int = 1) -> None:
        """Some steps are done.

        Args:
            state: gives the state after them, until the next call; it is called when it is saved.
            steps: how many.

        Raises:
            Stopped: the job was told to end.
        """
        self.done += steps
        if self._show is not None:
            self._show(steps)
        if self._job is not None:
            self._job.after_step(self, state)

    def stands(self, state: Callable[[], State]) -> None:
        """The state is another one, with no step done: saved with the next state of a loop inside."""
        self.state = state


@contextmanager
def loop(name: str, total: int, *, quiet: bool = False, ends: bool = True) -> Iterator[Loop]:
    """Open a loop of so many steps, and show its progress.

    Args:
        name: what it does; also its place, with the number of loops of this name before it.
        total: its steps.
        quiet: show no progress.
        ends: keep the last state for other loops to save; without it, a loop is done again whose results the loop
            around does not have yet.
    """
    job = _JOB.get()
    with ExitStack() as shown:
        show = None if quiet else shown.enter_context(progress(name, total))
        opened = Loop("", name, total, show, job, ends)
        if job is None:
            yield opened
            return
        job.enter(opened)
        if show is not None and opened.done:
            show(opened.done)
        try:
            yield opened
        finally:
            job.leave(opened)


@contextmanager
def opened(
    folder: Path, identity: Callable[[], Mapping[str, str]], spent: Callable[[], Spent] = Spent
) -> Iterator[_Job]:
    """A job whose loops are saved; its ``earlier`` is what the attempts took whose state it went on from.

    While it is open, SIGTERM and SIGUSR1 save at the next step and end the process; where no loop is open, at once.

    Args:
        folder: the job's work folder.
        identity: what has to be the same for states to be of use, asked for at the first loop.
        spent: what this attempt took so far.
    """
    job = _Job(folder / FOLDER, identity, spent)
    token = _JOB.set(job)
    before = {}
    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, job.told_to_stop) for number in SIGNALS}
    try:
        yield job
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        _JOB.reset(token)


class _Job:
    def __init__(self, folder: Path, identity: Callable[[], Mapping[str, str]], spent: Callable[[], Spent]) -> None:
        self.earlier = Spent()
        self._all, self._identity, self._spent = folder, identity, spent
        self._folder: Path | None = None
        self._every, self._largest_part = _every()
        self._due = time.monotonic() + self._every
        self._open: list[Loop] = []
        self._counts: Counter[str] = Counter()
        self._ended: dict[str, tuple[Loop, dict[str, torch.Tensor]]] = {}
        self._told: signal.Signals | None = None
        self._trouble: str | None = None

    def enter(self, loop: Loop) -> None:
        """Give a loop its place, and its state if there is one."""
        if self._told is not None:  # since the last step of one that ended early
            self._save()
            self._stop(None)
        if self._folder is None:
            self._folder = self._begin()
        inside = f"{self._open[-1].key}.{self._open[-1].done}." if self._open else ""
        name = inside + re.sub(r"[^a-z0-9]+", "-", loop.name.lower())
        loop.key = f"{name}-{self._counts[name]}"
        self._counts[name] += 1
        self._load(loop)
        self._open.append(loop)

    def leave(self, loop: Loop) -> None:
        """It ended, or an error ended it."""
        self._open.remove(loop)

    def after_step(self, loop: Loop, state: Callable[[], State]) -> None:
        """Save, if it is time or the job was told to end."""
        loop.state = state
        inside = f"{loop.key}."  # loops in earlier steps: the state has what they found
        self._ended = {key: end for key, end in self._ended.items() if not key.startswith(inside)}
        if loop.done >= loop.total and loop.ends:
            self._ended[loop.key] = loop, _copied(state())
            loop.state = None
        if self._told is not None or time.monotonic() >= self._due:
            self._save()
        if self._told is not None:
            self._stop(loop)

    def told_to_stop(self, number: int, _: FrameType | None) -> None:
        """A signal came."""
        self._told = signal.Signals(number)
        if not self._open:
            if self._ended:
                self._save()
            self._stop(None)

    def _stop(self, loop: Loop | None) -> NoReturn:
        assert self._told is not None
        where = "between loops" if loop is None else f"after {loop.done} of {loop.total} steps of '{loop.name}'"
        said = f"not saved: {self._trouble}" if self._trouble else f"saved {where}; run it again to go on"
        print(f"leakbench: told to end ({self._told.name}), {said}", file=sys.stderr, flush=True)
        raise Stopped(128 + self._told)

    def _begin(self) -> Path:
        """The folder of this identity; those of others go."""
        mine = dict(self._identity())
        folder = self._all / digest(mine)
        for other in sorted(self._all.iterdir() if self._all.is_dir() else ()):
            if other != folder:
                print(f"leakbench: {other}: {_difference(other, mine)}; discarded", file=sys.stderr)
                shutil.rmtree(other, ignore_errors=True)
        if folder.is_dir():
            try:
                self.earlier = Spent(*json.loads((folder / SPENT).read_bytes()))
            except (OSError, ValueError, TypeError):
                self.earlier = Spent()  # nothing was saved, or not this
        else:
            self._trying(lambda: atomic_write(folder / IDENTITY, json.dumps(mine).encode()))
        return folder

    def _files(self, key: str) -> list[Path]:
        """What was saved of a loop, the newest first."""
        assert self._folder is not None
        return sorted(self._folder.glob(f"{key}=*=*.safetensors"), key=lambda path: -int(path.name.split("=")[1]))

    def _load(self, loop: Loop) -> None:
        from safetensors import SafetensorError
        from safetensors.torch import load

        for path in self._files(loop.key):
            _, done, mark = path.stem.split("=")
            try:
                content = path.read_bytes()
                if hashlib.sha256(content).hexdigest()[:16] != mark:
                    raise ValueError("its digest is another one")
                loop.saved, loop.done = load(content), int(done)
            except (OSError, ValueError, SafetensorError) as error:
                print(f"leakbench: {path}: broken checkpoint ({error}); removed", file=sys.stderr)
                path.unlink(missing_ok=True)
                continue
            where = f"{loop.done} of {loop.total} steps of '{loop.name}'"
            print(f"leakbench: going on after {where}", file=sys.stderr)
            return

    def _save(self) -> None:
        """Write what ended, and the loops that are open from the outside in; what they replace goes."""

        def write() -> None:
            for loop, tensors in self._ended.values():
                self._write(loop, tensors)
            self._ended.clear()
            for loop in self._open:
                if loop.state is not None:
                    self._write(loop, _copied(loop.state()))
                    loop.state = None
            assert self._folder is not None
            spent = self.earlier.plus(self._spent())
            atomic_write(self._folder / SPENT, json.dumps(spent).encode())

        started = time.monotonic()
        self._trying(write)
        ended = time.monotonic()
        self._due = ended + max(self._every, (ended - started) / self._largest_part)

    def _trying(self, write: Callable[[], None]) -> None:
        """A job that cannot save goes on; it says so once."""
        try:
            write()
            self._trouble = None
        except (WriteError, OSError) as error:
            if self._trouble is None:
                print(f"leakbench: no checkpoint: {error}; going on without", file=sys.stderr)
            self._trouble = str(error)

    def _write(self, loop: Loop, tensors: Mapping[str, torch.Tensor]) -> None:
        from safetensors.torch import save

        assert self._folder is not None
        content = save(dict(tensors))
        mark = hashlib.sha256(content).hexdigest()[:16]
        path = self._folder / f"{loop.key}={loop.done}={mark}.safetensors"
        older = [other for other in self._files(loop.key) if other != path]
        atomic_write(path, content)
        inside, now = f"{loop.key}.", f"{loop.key}.{loop.done}."
        older += [
            other
            for other in self._folder.iterdir()
            if other.name.startswith(inside) and not other.name.startswith(now)
        ]
        for other in older:
            other.unlink(missing_ok=True)


_JOB: ContextVar[_Job | None] = ContextVar("job", default=None)


def _every() -> tuple[float, float]:
    """Seconds between saves, and the largest part of the time that they may take."""
    asked = os.environ.get(EVERY)
    if not asked:
        return CHECKPOINT_S, LARGEST_PART
    try:
        return float(asked), math.inf
    except ValueError:
        raise ConfigError(f"{EVERY}={asked}: expected seconds") from None


def _copied(state: State) -> dict[str, torch.Tensor]:
    """On the CPU, none sharing memory with another."""
    return {
        key: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for key, tensor in state.items()
    }


def _difference(folder: Path, mine: Mapping[str, str]) -> str:
    """Why the states in another folder are of no use here."""
    try:
        theirs = json.loads((folder / IDENTITY).read_bytes())
        name = next(name for name in mine if theirs.get(name) != mine[name])
    except (OSError, ValueError, AttributeError, StopIteration):
        return "a checkpoint that does not say what it is of"
    return f"a checkpoint with {name} {theirs.get(name)}, and this is {mine[name]}"
