"""Verdicts on attacks by their gates, per cell, as a table and in words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from leakbench.gates import Gate, value_of, victims_of
from leakbench.jobs.base import Job, Setting
from leakbench.lazy import np, pd
from leakbench.records import Record, Replicate, Value, canonical
from leakbench.report.inference import FEWEST_SEEDS, LEVEL, Estimate, Jackknife
from leakbench.report.units import SAMPLE_AXES, batch_means, known_means, of_one_seed

if TYPE_CHECKING:
    from leakbench.report.inference import Array

CELL = ["dataset", "model", "attack", "setting"]
COLUMNS = [
    *CELL,
    "metric",
    "reference",
    "margin",
    "quality",
    "reference_quality",
    "difference",
    "low",
    "high",
    "passed",
]
"""Columns of gates.csv. ``setting`` is JSON, and empty unless the undefended protocol is swept. ``difference`` is
positive where the attack is better."""

VOID = "void: attack too weak"
"""Suffix in legends of the names of void series."""
VOID_MODEL = "void: model near chance"
"""The same of models that missed their gate."""


@dataclass(frozen=True)
class GateVerdict:
    """Comparison of an attack with a blind guess, on the undefended gradient, in a setting of the protocol.

    Attributes:
        gate: the margin that is asked for.
        setting: of the undefended cell.
        quality: mean of the attack; NaN if there is no number.
        reference_quality: mean of the reference attacker on the same victims.
        difference: by which the attack is better.
    """

    gate: Gate
    setting: Setting
    quality: float = math.nan
    reference_quality: float = math.nan
    difference: Estimate = Estimate(math.nan)  # noqa: RUF009

    @property
    def passed(self) -> bool:
        """Whether the cell counts: the interval of the difference lies above the margin."""
        return self.difference.p_above(self.gate.spec.margin) <= LEVEL / 2

    def row(self) -> dict[str, Any]:
        """The columns of gates.csv."""
        gate, better = self.gate, self.difference
        interval = (better.low, better.high) if better.seeds >= FEWEST_SEEDS else (math.nan, math.nan)
        cell = (gate.dataset, gate.model, gate.attack, json.dumps(self.setting))
        asked = (gate.spec.metric, gate.spec.reference, gate.spec.margin)
        measured = (self.quality, self.reference_quality, better.value, *interval, self.passed)
        return dict(zip(COLUMNS, (*cell, *asked, *measured), strict=True))


@dataclass(frozen=True)
class Judge:
    """A gate, and the replicates that decide, with their jobs: of the attack and of the reference attacker."""

    gate: Gate
    undefended: Sequence[tuple[Job, Replicate]]
    reference: Sequence[tuple[Job, Replicate]]
    _verdicts: dict[str, GateVerdict] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, gate: Gate, records: Mapping[str, Record]) -> Judge:
        """The judge with the records that exist, by their paths."""

        def held(jobs: Iterable[Job]) -> list[tuple[Job, Replicate]]:
            return [(job, each) for job in jobs if job.path in records for each in records[job.path].replicates]

        return cls(gate, held(gate.undefended), held(gate.reference))

    def verdict(self, job: Job, setting: Setting) -> GateVerdict:
        """The verdict on a job's replicates with this setting.

        Where the undefended protocol is swept, what agrees with the job in the swept fields decides. Seeds and batches
        are the sample, as in claims; where the protocol has one seed, its batches are.
        """
        same = {key: value_of(job, setting, key) for key in self._swept}
        decided = canonical(same)
        if decided not in self._verdicts:
            self._verdicts[decided] = self._verdict(same)
        return self._verdicts[decided]

    @cached_property
    def _swept(self) -> list[str]:
        """Fields of the undefended protocol that are swept."""
        return sorted({key for each, _ in self.undefended if each.kinds for key in each.kinds.sweep})

    def _verdict(self, same: Setting) -> GateVerdict:
        info = self.gate.kind.gated_metrics[self.gate.spec.metric]
        by_seed = self._pairs(same)
        if not by_seed:
            return GateVerdict(self.gate, same)
        values = np.stack([np.mean(by_seed[seed], axis=0) for seed in sorted(by_seed)], axis=1)  # [2, S, K]
        paired = paired_difference(as_sample(values, self.gate.undefended, info.axis), info.direction)
        return GateVerdict(self.gate, same, *paired) if paired else GateVerdict(self.gate, same)

    def _pairs(self, same: Setting) -> dict[int, list[Array]]:
        """Per seed, the qualities of attack and reference on each batch, ``[2, K]``: NaN where either has none.

        Settings in which the protocol does not differ, such as thresholds, are listed beside each other.
        """
        metric, reference = self.gate.spec.metric, self.gate.reference_metric
        guesses = {(guess.seed, victims_of(job, guess.setting)): guess for job, guess in self.reference}
        pairs: dict[int, list[Array]] = {}
        for job, replicate in self.undefended:
            guess = guesses.get((replicate.seed, victims_of(job, replicate.setting)))
            if guess is None or not same.items() <= replicate.setting.items():
                continue
            pair = [listed(replicate.metrics.get(metric)), listed(guess.metrics.get(reference))]
            if all(pair):
                values = np.array(pair, dtype=float)
                values[:, np.isnan(values).any(axis=0)] = math.nan
                if self.gate.kind.gated_metrics[metric].axis in SAMPLE_AXES:
                    values = batch_means(values, value_of(job, replicate.setting, "clients"))
                pairs.setdefault(replicate.seed, []).append(values)
        return pairs


def listed(value: Value) -> list[float | None]:
    """A metric's values on its axis; none of a metric that is missing."""
    return value if isinstance(value, list) else [] if value is None else [value]


def as_sample(values: Array, jobs: Sequence[Job], axis: str | None) -> Array:
    """Numbers of seeds and batches ``[..., S, K]`` as the sample: batches where the protocol has one seed.

    Args:
        values: NaN where there is no number.
        jobs: of the protocol.
        axis: of the metric; where each seed has victims of its own, their mean is the seed's number.
    """
    if len({seed for job in jobs for seed in job.seeds}) == 1:
        return values.swapaxes(-2, -1)
    return known_means(values) if of_one_seed(axis, jobs[0].kind.distinct_victims) else values


def paired_difference(pair: Array, direction: str) -> tuple[float, float, Estimate] | None:
    """Means of two attackers on the same victims, and by how much the first is better, with the jackknife's error.

    Args:
        pair: sample of both, ``[2, S, K]``; NaN, in both alike, where either has no number.
        direction: of the metric.

    Returns:
        None where neither has a number.
    """
    pair = pair[:, np.isfinite(pair[0]).any(axis=1)]
    if not pair.size:
        return None
    jackknife = Jackknife(*pair.shape[1:])
    means = jackknife.mean(pair)
    better = means[:, 0] - means[:, 1]
    difference = jackknife.estimate(better if direction == "higher" else -better)
    return float(means[0, 0]), float(means[0, 1]), difference


def is_void(judges: Iterable[Judge], job: Job, setting: Setting) -> bool:
    """Whether a gate of the job's cell is missed."""
    return any(not judge.verdict(job, setting).passed for judge in judges if judge.gate.concerns(job))


def verdict_table(judges: Iterable[Judge], records: Iterable[tuple[Job, Record]]) -> pd.DataFrame:
    """gates.csv: a row per cell, and per setting of the undefended protocol if it has several."""
    table = {}
    for job, record in records:
        for judge in judges:
            if judge.gate.concerns(job):
                for replicate in record.replicates:
                    row = judge.verdict(job, replicate.setting).row()
                    table[tuple(row[column] for column in CELL)] = row
    return pd.DataFrame(table.values(), columns=COLUMNS)


def void_notes(verdicts: pd.DataFrame, units: dict[str, str]) -> list[str]:
    """A sentence for every void cell.

    Args:
        verdicts: rows of gates.csv, of one or more experiments.
        units: metric -> unit, as records have it.
    """
    notes = []
    for row in verdicts[~verdicts["passed"].astype(bool)].to_dict("records"):
        unit = "dB" if units.get(row["metric"], "").startswith("dB") else f"of {row['metric']}"
        cell = f"without a defense on {row['dataset']} with {row['model']}{setting_behind(row['setting'])}"
        asked = f"this experiment asks for {row['margin']:.3g} {unit}"
        if math.isnan(row["difference"]):
            notes.append(f"void: {row['attack']} has no number beside {row['reference']}'s {cell}; {asked}.")
        else:
            better = f"{row['attack']} is {over_reference(row, unit)} better than {row['reference']} {cell}"
            notes.append(f"void: {better}; {asked}.")
    return list(dict.fromkeys(notes))


def over_reference(row: Mapping[Any, Any], unit: str = "") -> str:
    """The difference in a row of gates.csv with its interval: ``1.2 dB [0.3, 2.1]``."""
    difference = f"{row['difference']:.3g} {unit}".strip()
    if math.isnan(row["low"]):
        return f"{difference} (too few seeds or victims for an interval)"
    return f"{difference} [{row['low']:.3g}, {row['high']:.3g}]"


def setting_behind(setting: str) -> str:
    """A setting of gates.csv as a suffix of the name of a cell."""
    return "".join(f", {key} {value}" for key, value in json.loads(setting).items())
