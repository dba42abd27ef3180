"""Costs of jobs estimated from those of others: a rate per kind of job, with its uncertainty (docs/costs.md)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

Device = Literal["cpu", "gpu"]

STEP = 2e7
"""Overhead of one step, whose many small operations have to be started, in multiply-adds of a core; the same on a GPU.
Of 1e6, 5e6, 2e7, 5e7 and 1e8 this predicts the costs of the smoke replication best."""
Z = 1.2816
"""Standard deviations on each side of a normal law's central 80 %."""
PRIOR = math.log(3)
"""Standard deviation of the logarithm of measured over estimated seconds, before anything is measured."""
PRIOR_EXPERIMENTS = 2
"""Weight of the prior, in experiments."""
EXTRAPOLATION = 0.15
"""Standard deviation of the exponent with which seconds grow with the size, around 1."""
FARTHEST = 1.0
"""Largest standard deviation that extrapolation adds: the speed of a processor is bounded."""
ENOUGH = 3
"""Number of records from which a component has a separate rate."""


@dataclass(frozen=True)
class Size:
    """Amount of computation of a job.

    Attributes:
        kind: of job.
        component: name of its attack, or of its defense where it has no attack.
        operations: multiply-adds.
        steps: sequential steps.
    """

    kind: str
    component: str
    operations: float
    steps: float

    def on(self, speed: float = 1.0) -> float:
        """Multiply-adds of a core that take as long as the job on a device ``speed`` times as fast; above zero."""
        return self.operations / speed + STEP * self.steps


@dataclass(frozen=True)
class Measured:
    """Measured cost of a job.

    Attributes:
        experiment: that the job is in; costs within one experiment are correlated.
        device: that it ran on.
        seconds: of that device, above zero.
    """

    size: Size
    experiment: str
    device: Device
    seconds: float


class Speedup(NamedTuple):
    """Assumed ratio of the speed of a GPU to that of a core of a CPU, from ``low`` to ``high``."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        """Their geometric mean."""
        return math.sqrt(self.low * self.high)


class Forecast(NamedTuple):
    """Expected seconds with an 80 % interval.

    ``basis``: the rate that it rests on. ``assumed``: whether it also rests on an assumed speed-up.
    """

    seconds: float
    low: float
    high: float
    basis: str
    assumed: bool = False

    def times(self, part: float) -> Forecast:
        """The forecast of a part of the job."""
        return self._replace(seconds=part * self.seconds, low=part * self.low, high=part * self.high)


@dataclass(frozen=True)
class Rate:
    """Seconds per multiply-add, fitted to some records.

    Attributes:
        rate: seconds per multiply-add of a core, or per as many of a GPU as the speed-up says.
        deviation: standard deviation of the logarithm of measured over estimated seconds.
        least, most: the smallest and the largest measured size, as multiply-adds of a core.
        count: number of records.
    """

    rate: float
    deviation: float
    least: float
    most: float
    count: int

    def spread(self, size: Size) -> float:
        """Ratio of the interval's ends to the estimate; larger beyond the sizes that were measured."""
        amount = size.on()
        beyond = max(0.0, math.log(amount / self.most), math.log(self.least / amount))
        return math.exp(Z * math.hypot(self.deviation, min(EXTRAPOLATION * beyond, FARTHEST)))


class CostModel:
    """Estimates the seconds of jobs: a rate times the size.

    Args:
        measured: costs of jobs, on any device.
        speedup: assumed of a GPU.
    """

    def __init__(self, measured: Iterable[Measured], speedup: Speedup) -> None:
        self.speedup = speedup
        groups: dict[tuple[Device, str, str | None], list[Measured]] = defaultdict(list)
        for each in measured:
            groups[each.device, each.size.kind, None].append(each)
            groups[each.device, each.size.kind, each.size.component].append(each)
        self.rates = {
            key: self._fitted(group) for key, group in groups.items() if key[2] is None or len(group) >= ENOUGH
        }
        """By device, kind, and component; None for all of a kind."""

    def _fitted(self, group: Sequence[Measured]) -> Rate:
        logs = [(each.experiment, math.log(self._rate_of(each))) for each in group]
        squares = [PRIOR**2] * PRIOR_EXPERIMENTS
        for experiment in dict.fromkeys(name for name, _ in logs):
            others = [rate for name, rate in logs if name != experiment]
            if others:
                within = [(rate - median(others)) ** 2 for name, rate in logs if name == experiment]
                squares.append(sum(within) / len(within))
        sizes = [each.size.on() for each in group]
        deviation = math.sqrt(sum(squares) / len(squares))
        return Rate(math.exp(median(rate for _, rate in logs)), deviation, min(sizes), max(sizes), len(group))

    def _rate_of(self, measured: Measured) -> float:
        return measured.seconds / measured.size.on(self.speedup.middle if measured.device == "gpu" else 1.0)

    def estimate(self, size: Size, device: Device) -> Forecast | None:
        """Seconds of a job on a device; None where no record of its kind is known.

        Without records of a GPU, its seconds are those of a CPU with the assumed speed-up.
        """
        for known in (device, "cpu") if device == "gpu" else (device,):
            for component in (size.component, None):
                rate = self.rates.get((known, size.kind, component))
                if rate is not None:
                    return self._estimated(rate, size, known, component, device)
        return None

    def _estimated(self, rate: Rate, size: Size, known: Device, component: str | None, device: Device) -> Forecast:
        name = " ".join(part for part in (size.kind, component) if part)
        basis = f"{name}: {rate.count} records of a {known.upper()}"
        assumed, spread = known != device, rate.spread(size)
        slow, middle, fast = (1.0, 1.0, 1.0)
        if device == "gpu":
            middle = self.speedup.middle
            slow, fast = self.speedup if assumed else (middle, middle)
        return Forecast(
            rate.rate * size.on(middle),
            rate.rate * size.on(fast) / spread,
            rate.rate * size.on(slow) * spread,
            f"{basis}, assumed speed-up" if assumed else basis,
            assumed,
        )


def added(estimates: Iterable[tuple[str, Forecast]]) -> tuple[float, float, float]:
    """The sum of the estimates of jobs, with its interval.

    Errors of one kind of job are fully correlated, as are those of all that rest on the assumed speed-up; errors of
    different kinds are independent.

    Args:
        estimates: with the kind of the job.
    """
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for kind, estimate in estimates:
        group = sums["" if estimate.assumed else kind]
        for place, value in enumerate((estimate.seconds, estimate.low, estimate.high)):
            group[place] += value
    total = sum(seconds for seconds, _, _ in sums.values())
    below = math.hypot(*(seconds - low for seconds, low, _ in sums.values()))
    above = math.hypot(*(high - seconds for seconds, _, high in sums.values()))
    return total, max(0.0, total - below), total + above
