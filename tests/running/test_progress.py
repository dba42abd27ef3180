from __future__ import annotations

import io
import sys

import pytest

from leakbench.running import progress as module
from leakbench.running.progress import LOG_EVERY_SECONDS, progress


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def test_a_log_gets_a_line_now_and_then_and_one_at_the_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("training", 40) as tick:
        for _ in range(40):
            clock.now += LOG_EVERY_SECONDS / 8
            tick()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        *(f"training: {8 * n}/40 steps, {10 * n} s" for n in range(1, 6)),
        "training: 40/40 steps, 50 s",
    ]


def test_short_work_prints_one_line(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress("matching", 10) as tick:
        tick(4)
        tick(6)
    assert capsys.readouterr().err == "matching: 10/10 steps, 0 s\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with progress("training", 3) as tick:
        for _ in range(3):
            tick()
    shown = terminal.getvalue()
    assert "training" in shown and "100%" in shown
    assert "steps" not in shown
