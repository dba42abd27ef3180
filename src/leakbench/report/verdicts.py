"""Verdicts on attacks by their gates, per cell, as a table and in words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from leakbench.gates import Gate
from leakbench.jobs.base import Job, Setting
from leakbench.lazy import pd
from leakbench.records import Record, Replicate, Value

COLUMNS = ["dataset", "model", "attack", "setting", "metric", "bound", "quality", "passed"]
"""Columns of gates.csv. ``setting`` is JSON, and empty unless the undefended cell has settings."""

VOID = "void: attack too weak"
"""Suffix in legends of the names of void series."""


@dataclass(frozen=True)
class GateVerdict:
    """Quality that an attack reached on the undefended gradient, in a setting of the protocol; NaN if none."""

    gate: Gate
    setting: Setting
    quality: float

    @property
    def passed(self) -> bool:
        """Whether the cell counts."""
        return self.gate.spec.passes(self.quality)

    def row(self) -> dict[str, Any]:
        """The columns of gates.csv."""
        gate, setting = self.gate, json.dumps(self.setting)
        values = (gate.dataset, gate.model, gate.attack, setting, gate.spec.metric, gate.spec.bound)
        return dict(zip(COLUMNS, (*values, self.quality, self.passed), strict=True))


@dataclass(frozen=True)
class Judge:
    """A gate, and the undefended replicates that decide."""

    gate: Gate
    undefended: Sequence[Replicate]

    def verdict(self, setting: Setting) -> GateVerdict:
        """The verdict on replicates with this setting.

        If the undefended replicates have settings, and this one has the same parameters, those that agree in them
        decide; otherwise all do. Nulls (diverged trials) are left out, as of every mean.
        """
        keys = sorted({key for replicate in self.undefended for key in replicate.setting})
        same = {key: setting[key] for key in keys} if set(keys) <= set(setting) else {}
        metric = self.gate.spec.metric
        values = [
            number
            for replicate in self.undefended
            if same.items() <= replicate.setting.items()
            for number in _listed(replicate.metrics.get(metric))
            if number is not None
        ]
        return GateVerdict(self.gate, same, median(values) if values else math.nan)


def _listed(value: Value) -> list[float | None]:
    return value if isinstance(value, list) else [value]


def is_void(judges: Iterable[Judge], job: Job, setting: Setting) -> bool:
    """Whether a gate of the job's cell is missed."""
    return any(not judge.verdict(setting).passed for judge in judges if judge.gate.concerns(job))


def verdict_table(judges: Iterable[Judge], records: Iterable[tuple[Job, Record]]) -> pd.DataFrame:
    """gates.csv: a row per cell, and per setting of the undefended gradient if it has several."""
    table = {}
    for job, record in records:
        for judge in judges:
            if judge.gate.concerns(job):
                for replicate in record.replicates:
                    row = judge.verdict(replicate.setting).row()
                    table[tuple(row[column] for column in COLUMNS[:6])] = row
    return pd.DataFrame(table.values(), columns=COLUMNS)


def void_notes(verdicts: pd.DataFrame, units: dict[str, str]) -> list[str]:
    """A sentence for every void cell.

    Args:
        verdicts: rows of gates.csv, of one or more experiments.
        units: metric -> unit, as records have it.
    """
    notes = []
    for row in verdicts[~verdicts["passed"].astype(bool)].to_dict("records"):
        sign, bound = row["bound"].split()
        unit = units.get(row["metric"], "")
        asked = _quantity(float(bound), row["metric"], unit)
        cell = f"{row['dataset']} with {row['model']}{setting_behind(row['setting'])}"
        if math.isnan(row["quality"]):
            reached, asked = (
                "has no number",
                f"and this experiment asks for at {'least' if sign == '>=' else 'most'} {asked}",
            )
        else:
            reached = f"reaches {_quantity(row['quality'], row['metric'], unit)}"
            asked = f"{'below' if sign == '>=' else 'above'} the {asked} that this experiment asks for"
        notes.append(f"void: {row['attack']} {reached} without a defense on {cell}, {asked}.")
    return list(dict.fromkeys(notes))


def setting_behind(setting: str) -> str:
    """A setting of gates.csv as a suffix of the name of a cell."""
    return "".join(f", {key} {value}" for key, value in json.loads(setting).items())


def _quantity(value: float, metric: str, unit: str) -> str:
    """``9.1 dB``, or with the name of the metric, ``mse 0.05``."""
    return f"{value:.3g} dB" if unit.startswith("dB") else f"{metric} {value:.3g}"
