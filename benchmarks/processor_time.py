"""Processor time of tests, with that of the processes that they start: ``pytest -p benchmarks.processor_time``.

Prints the total, and the tests and the files that take most. Wall times say little here: tests run side by side, and
those on SLURM wait. What a daemon of SLURM starts counts nowhere.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Generator

import psutil
import pytest

SHOWN = 20
SHORT = 0.05
"""Seconds; a shorter test counts with the next one, since a look at all processes takes a few milliseconds."""
PROPERTY = "processor time"


def used() -> float:
    """Processor time of this process and of all below it, those that ended too, in seconds."""
    total, this = 0.0, psutil.Process()
    for process in (this, *this.children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])  # user and system, of the process and of its ended children
        except psutil.NoSuchProcess:
            continue
    return total


class ProcessorTime:
    """Measures in each process of pytest-xdist, and adds up in the one that prints."""

    def __init__(self) -> None:
        self._used = 0.0
        self._taken: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        """Note when a test starts."""
        self._used = self._used or used()
        self._started = time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach to the last report of a test what it took."""
        report = yield
        if call.when == "teardown" and time.monotonic() - self._started > SHORT:
            before, self._used = self._used, used()
            report.user_properties.append((PROPERTY, self._used - before))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect the reports of all processes."""
        if report.when == "teardown":
            for name, value in report.user_properties:
                if name == PROPERTY:
                    self._taken[report.nodeid.partition("@")[0]] += float(str(value))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the tables."""
        files: dict[str, float] = defaultdict(float)
        for test, seconds in self._taken.items():
            files[test.partition("::")[0]] += seconds
        terminalreporter.section(f"processor time: {sum(files.values()):.0f} s")
        for taken in (self._taken, files):
            for name in sorted(taken, key=lambda name: -taken[name])[:SHOWN]:
                terminalreporter.line(f"{taken[name]:7.1f} s  {name}")
            terminalreporter.line("")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plug-in."""
    config.pluginmanager.register(ProcessorTime())
