"""Progress of long loops: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Tick(Protocol):
    """Called with the number of steps just done."""

    def __call__(self, steps: int = 1) -> None: ...


LOG_EVERY_SECONDS = 10.0


@contextmanager
def progress(description: str, total: int) -> Iterator[Tick]:
    """A callable that advances the display by the steps just done.

    On a terminal this draws a bar on standard error; elsewhere it prints a line at most every ten seconds,
    and one at the end.
    """
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(description, total=total)
            yield lambda steps=1: bar.advance(task, steps)
        return

    started = last = time.monotonic()
    done = 0

    def report(now: float) -> None:
        print(f"{description}: {done}/{total} steps, {now - started:.0f} s", file=sys.stderr, flush=True)

    def tick(steps: int = 1) -> None:
        nonlocal done, last
        done += steps
        now = time.monotonic()
        if now - last >= LOG_EVERY_SECONDS:
            last = now
            report(now)

    yield tick
    report(time.monotonic())
