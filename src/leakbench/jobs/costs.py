"""Cost of work on this machine: seconds of its parts, energy, carbon. Not reproducible."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from leakbench.lazy import torch
from leakbench.records import MetricInfo
from leakbench.running.checkpoint import State, packed, unpacked

CARBON_INTENSITY = 0.475
"""kg of CO2 per kWh: the world's mean that Deng et al. (2024) compute with."""


def carbon_kg(power_kw: float, hours: float) -> float:
    """kg of CO2 of a machine of constant power: ``P * hours * 0.475`` (Deng et al. 2024)."""
    return power_kw * hours * CARBON_INTENSITY


def timed(parts: Mapping[str, str]) -> dict[str, MetricInfo]:
    """Metrics ``<part>_wall_s`` and ``<part>_cpu_s``, with a number per repetition, of parts by their descriptions."""
    return {
        f"{part}_{clock}_s": MetricInfo(
            unit=f"seconds of {words}, not reproducible: {what}", direction="lower", axis="repetition"
        )
        for part, what in parts.items()
        for clock, words in {"wall": "wall time", "cpu": "processor time"}.items()
    }


@dataclass
class Times:
    """Seconds by part, added up: wall time and processor time."""

    wall: dict[str, float] = field(default_factory=dict)
    cpu: dict[str, float] = field(default_factory=dict)

    def computing(self, device: torch.device) -> float:
        """Seconds of all parts: processor time on a CPU, where other programs do not count, wall time on a GPU."""
        return sum((self.cpu if device.type == "cpu" else self.wall).values())

    @contextmanager
    def of(self, part: str, device: torch.device) -> Iterator[None]:
        """Time a part; on a GPU, until it has finished."""
        _finish(device)
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        _finish(device)
        self.cpu[part] = self.cpu.get(part, 0.0) + time.process_time() - cpu
        self.wall[part] = self.wall.get(part, 0.0) + time.perf_counter() - wall


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class EnergyMeter:
    """Energy of this process between entering and leaving, by codecarbon.

    codecarbon reads counters of processor and GPU where it may, and estimates from their nominal power elsewhere. It
    hides its errors: the only sign is a missing result.

    Attributes:
        kwh: the energy; None where it is unknown.
        reason: why it is unknown.
        earlier: energy of earlier attempts of a job that continues from a checkpoint.
    """

    def __init__(self) -> None:
        self.kwh: float | None = None
        self.reason = "codecarbon measured nothing"
        self.earlier: float | None = 0.0

    def __enter__(self) -> EnergyMeter:
        self._start()
        return self

    def state(self) -> dict[str, torch.Tensor]:
        """The energy since entering and that of earlier attempts, as bytes."""
        self._stop()
        self._start()
        return {"kwh": packed(self.earlier)}

    def restore(self, saved: State) -> None:
        """Count from the energy of a state."""
        self.earlier = unpacked(saved["kwh"])

    def _start(self) -> None:
        from leakbench.libraries.energy import tracker

        self._tracker = tracker()
        self._tracker.start()

    def _stop(self) -> None:
        """Add the energy since the start to ``earlier``."""
        self._tracker.stop()
        emissions = getattr(self._tracker, "final_emissions_data", None)
        measured = None if emissions is None else float(emissions.energy_consumed)
        self.earlier = None if measured is None or self.earlier is None else self.earlier + measured

    def __exit__(self, *_: object) -> None:
        self._stop()
        self.kwh = self.earlier
