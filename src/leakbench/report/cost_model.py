"""From what jobs took to what others will take: a rate per kind of job, and how far off it may be (docs/costs.md)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

Device = Literal["cpu", "gpu"]

Z = 1.2816
"""Standard deviations on each side of a normal law's central 80 %."""
PRIOR = math.log(3)
"""Standard deviation of the logarithm of measured over estimated seconds, before anything is measured."""
PRIOR_RECORDS = 2
"""How many experiments' residuals this is worth."""
EXTRAPOLATION = 0.15
"""Standard deviation of the power of the effort that seconds grow with, about 1."""
ENOUGH = 3
"""Records of a component from which it has a rate of its own."""


@dataclass(frozen=True)
class Effort:
    """What a job computes.

    Attributes:
        kind: of job.
        component: name of its attack, or of its defense where it has no attack.
        amount: multiply-adds, above zero.
    """

    kind: str
    component: str
    amount: float


@dataclass(frozen=True)
class Measured:
    """What a job took.

    Attributes:
        experiment: which one it is of; records of one have more in common than others.
        device: that it ran on.
        seconds: of that device, above zero.
    """

    effort: Effort
    experiment: str
    device: Device
    seconds: float


class Estimate(NamedTuple):
    """Seconds, and an interval that holds them four times out of five.

    ``basis``: which rate it rests on. ``assumed``: whether it rests on an assumed speed-up, too.
    """

    seconds: float
    low: float
    high: float
    basis: str
    assumed: bool = False


class Speedup(NamedTuple):
    """How many times as fast as a core of a CPU a GPU is assumed to be, from ``low`` to ``high``."""

    low: float
    high: float


@dataclass(frozen=True)
class _Rate:
    """Of some records.

    Attributes:
        rate: seconds per multiply-add.
        deviation: standard deviation of the logarithm of measured over estimated seconds.
        least, most: efforts that were measured.
        count: of records.
    """

    rate: float
    deviation: float
    least: float
    most: float
    count: int

    def of(self, amount: float) -> tuple[float, float]:
        """Seconds beyond the start, and the standard deviation of their logarithm."""
        beyond = max(0.0, math.log(amount / self.most), math.log(self.least / amount))
        return self.rate * amount, math.hypot(self.deviation, EXTRAPOLATION * beyond)


class CostModel:
    """Seconds of jobs: a start, and a rate times the effort.

    Args:
        measured: what jobs took, on any device.
    """

    def __init__(self, measured: Iterable[Measured]) -> None:
        self.measured = list(measured)
        self.starts = {device: _start([m.seconds for m in self._on(device)]) for device in ("cpu", "gpu")}
        groups: dict[tuple[Device, str, str | None], list[Measured]] = defaultdict(list)
        for each in self.measured:
            groups[each.device, each.effort.kind, None].append(each)
            groups[each.device, each.effort.kind, each.effort.component].append(each)
        self._rates = {
            key: self._fitted(group) for key, group in groups.items() if key[2] is None or len(group) >= ENOUGH
        }

    def _on(self, device: str) -> list[Measured]:
        return [each for each in self.measured if each.device == device]

    def _beyond_start(self, measured: Measured) -> float:
        return max(measured.seconds - self.starts[measured.device], measured.seconds / 2)

    def _fitted(self, group: Sequence[Measured]) -> _Rate:
        logs = [(each.experiment, math.log(self._beyond_start(each) / each.effort.amount)) for each in group]
        squares = [PRIOR**2] * PRIOR_RECORDS
        for experiment in dict.fromkeys(name for name, _ in logs):
            others = [rate for name, rate in logs if name != experiment]
            if others:
                own = [(rate - median(others)) ** 2 for name, rate in logs if name == experiment]
                squares.append(sum(own) / len(own))
        amounts = [each.effort.amount for each in group]
        return _Rate(
            math.exp(median(rate for _, rate in logs)),
            math.sqrt(sum(squares) / len(squares)),
            min(amounts),
            max(amounts),
            len(group),
        )

    def estimate(self, effort: Effort, device: Device, speedup: Speedup) -> Estimate | None:
        """Seconds of a job on a device; None where no record of its kind is known.

        Where none is of a GPU, a GPU's seconds are those of a CPU over an assumed speed-up.
        """
        for own, assumed in ((device, False), ("cpu", True)):
            for component in (effort.component, None):
                rate = self._rates.get((own, effort.kind, component))  # type: ignore[arg-type]
                if rate is None or (assumed and device != "gpu"):
                    continue
                seconds, deviation = rate.of(effort.amount)
                spread = math.exp(Z * deviation)
                slowest, fastest = (speedup.low, speedup.high) if assumed else (1.0, 1.0)
                start = self.starts[own]  # type: ignore[index]
                basis = f"{effort.kind}{f' {component}' if component else ''}, {rate.count} records of a {own}"
                return Estimate(
                    start + seconds / math.sqrt(slowest * fastest),
                    start + seconds / spread / fastest,
                    start + seconds * spread / slowest,
                    f"{basis}, assumed speed-up" if assumed else basis,
                    assumed,
                )
        return None


def _start(seconds: Sequence[float]) -> float:
    """What a job takes that computes next to nothing: the lowest tenth of all."""
    return sorted(seconds)[len(seconds) // 10] if seconds else 0.0


def added(estimates: Iterable[tuple[str, Estimate]]) -> tuple[float, float, float]:
    """The sum of the estimates of jobs, with its interval.

    Errors of one kind of job, and those of all that rest on the assumed speed-up, are taken to be the same error; those
    of different kinds to be independent.

    Args:
        estimates: with the kind of the job.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for kind, estimate in estimates:
        group = sums["" if estimate.assumed else kind]
        for place, value in enumerate(estimate[:3]):
            group[place] += value
    total = sum(seconds for seconds, _, _ in sums.values())
    below = math.hypot(*(seconds - low for seconds, low, _ in sums.values()))
    above = math.hypot(*(high - seconds for seconds, _, high in sums.values()))
    return total, max(0.0, total - below), total + above
