"""Under-attacked cells: the best attack that knows the defense does worse than the best that it wraps, beyond noise.

Of several adaptive attacks the best counts, since one that works is enough, and whoever tries several takes the best.
Of the plain attacks those count that an adaptive one wraps: what nobody adapted says nothing of how well attacks adapt.
Their means say which are the best; the mean difference of the two, on the same seeds and victims, is decided by the
rule of claims, at 2.5 %. So about one cell in forty that is attacked no worse is marked, and none with fewer than three
seeds.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from leakbench.adapted import AdaptedCell
from leakbench.gates import value_of
from leakbench.jobs.base import Job, Setting
from leakbench.lazy import np, pd
from leakbench.records import Record
from leakbench.report.gate_verdicts import Judge, as_sample, is_void, listed, paired_difference
from leakbench.report.inference import FEWEST_SEEDS, LEVEL, Estimate
from leakbench.report.units import SAMPLE_AXES, batch_means, known_means
from leakbench.report.wording import setting_in_words

if TYPE_CHECKING:
    from leakbench.report.inference import Array

COLUMN = "under_attacked"
"""Column of tidy tables, and of tables and figures that show defenses."""
DAGGER = "†"
"""Mark of under-attacked defenses in figures and tables."""
CELL = ["dataset", "model", "defense", "setting"]
COLUMNS = [
    *CELL,
    "metric",
    "adaptive",
    "plain",
    "adaptive_quality",
    "plain_quality",
    "difference",
    "low",
    "high",
    COLUMN,
]
"""Columns of adaptive.csv. ``setting`` is JSON; ``difference`` is negative where the adaptive attack is worse."""
ROUNDING = 1e-3
"""Part of the plain attack's quality below which a difference is none: searches for the same image carry on rounding,
and end a hundredth of a decibel apart, all in one direction."""
MOST_NOTES = 6
"""Largest number of cells that a caption names."""


@dataclass(frozen=True)
class Adaptation:
    """The best adaptive attack beside the best plain one.

    Attributes:
        adaptive: label of the attack that knows the defense.
        plain: label of the attack that ignores it.
        adaptive_quality: mean of the metric, over the victims on which both have a number.
        plain_quality: the same of the plain attack.
        difference: by which the adaptive attack is better.
    """

    adaptive: str
    plain: str
    adaptive_quality: float
    plain_quality: float
    difference: Estimate

    @property
    def under_attacked(self) -> bool:
        """Whether the adaptive attack is worse beyond noise and rounding: the interval lies below zero by that much."""
        return self.difference.p_below(-ROUNDING * abs(self.plain_quality)) <= LEVEL / 2

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the difference; NaN where too few seeds decide nothing."""
        one = self.difference
        return (one.low, one.high) if one.seeds >= FEWEST_SEEDS else (math.nan, math.nan)


def compared(
    adaptive: Mapping[str, Array],
    plain: Mapping[str, Array],
    direction: str,
    as_units: Callable[[Array], Array] | None = None,
) -> Adaptation | None:
    """Compare the best attack that knows a defense with the best that does not.

    >>> plain, adaptive = np.array([[20.0], [21.0], [19.0], [22.0]]), np.array([[16.0], [16.5], [15.5], [17.0]])
    >>> found = compared({"ig-adaptive": adaptive}, {"ig": plain}, "higher")
    >>> found.difference.value, found.under_attacked
    (-4.25, True)

    Args:
        adaptive: numbers of each by its label, per seed and victim ``[S, K]``; NaN where a trial failed.
        plain: the same of the attacks inside, on the same seeds and victims.
        direction: in which the metric is better for the attacker, ``higher`` or ``lower``.
        as_units: from numbers of both attacks on what both have, ``[2, S, K]``, to the units of inference; as they are
            by default.

    Returns:
        None where one side has no number, such as an attack that is infeasible, or both have none in common.
    """
    first, second = (_best(side, direction) for side in (adaptive, plain))
    if first is None or second is None:
        return None
    pair = np.stack([adaptive[first], plain[second]])
    pair[:, ~np.isfinite(pair).all(axis=0)] = math.nan
    paired = paired_difference(as_units(pair) if as_units else pair, direction)
    return Adaptation(first, second, *paired) if paired else None


def _best(side: Mapping[str, Array], direction: str) -> str | None:
    """The label with the best mean; None where none has a number."""
    means = {label: float(known_means(values.reshape(1, -1))[0, 0]) for label, values in side.items()}
    known = {label: mean for label, mean in means.items() if math.isfinite(mean)}
    if not known:
        return None
    return (max if direction == "higher" else min)(known, key=lambda label: known[label])


@dataclass(frozen=True)
class CellJudge:
    """A cell with its verdicts, by setting: values of what the defense and the protocol sweep."""

    cell: AdaptedCell
    verdicts: Mapping[tuple[Any, ...], Adaptation]

    @classmethod
    def of(cls, cell: AdaptedCell, records: Mapping[str, Record], judges: Sequence[Judge]) -> CellJudge:
        """The judge of the records that exist, by their paths; an attack that missed its gate takes no part."""
        sides = [_qualities(cell, jobs, records, judges) for jobs in (cell.adaptive, cell.plain)]
        info, verdicts = cell.kind.gated_metrics[cell.metric], {}
        for setting in sides[0].keys() & sides[1].keys():
            held = [sides[side][setting] for side in (0, 1)]
            seeds = sorted({seed for side in held for of_seed in side.values() for seed in of_seed})
            adaptive, plain = (
                {label: _by_seed(of_seed, seeds, _width(held)) for label, of_seed in side.items()} for side in held
            )
            units = partial(as_sample, jobs=cell.adaptive, axis=info.axis)
            if verdict := compared(adaptive, plain, info.direction, units):
                verdicts[setting] = verdict
        return cls(cell, verdicts)

    def verdict(self, job: Job, setting: Setting) -> Adaptation | None:
        """The verdict on a job's replicates with this setting; None where nothing could be compared."""
        return self.verdicts.get(_key(job, setting))


Qualities = dict[tuple[Any, ...], dict[str, dict[int, "Array"]]]
"""Numbers per victim, ``[K]``, by setting, attack and seed."""


def _qualities(
    cell: AdaptedCell, jobs: Iterable[Job], records: Mapping[str, Record], judges: Sequence[Judge]
) -> Qualities:
    qualities: Qualities = {}
    for job in jobs:
        for replicate in records[job.path].replicates if job.path in records else ():
            values = listed(replicate.metrics.get(cell.metric))
            if not values or is_void(judges, job, replicate.setting):
                continue
            assert job.attack is not None
            swept = {key: replicate.setting[key] for key in job.attack.sweep}
            label = ", ".join(filter(None, (job.attack.label, setting_in_words(swept))))
            numbers = np.array(values, dtype=float)
            if cell.kind.gated_metrics[cell.metric].axis in SAMPLE_AXES:
                numbers = batch_means(numbers, value_of(job, replicate.setting, "clients"))
            of_attack = qualities.setdefault(_key(job, replicate.setting), {}).setdefault(label, {})
            of_attack[replicate.seed] = numbers
    return qualities


def _key(job: Job, setting: Setting) -> tuple[Any, ...]:
    """Values of what a job's defense and protocol sweep, which all attacks on the cell share."""
    swept = [*job.defense.sweep, *(job.kinds.sweep if job.kinds else ())]
    return tuple((name, setting.get(name)) for name in swept)


def _width(sides: Iterable[Mapping[str, Mapping[int, Array]]]) -> int:
    return max(len(numbers) for side in sides for of_seed in side.values() for numbers in of_seed.values())


def _by_seed(of_seed: Mapping[int, Array], seeds: Sequence[int], width: int) -> Array:
    """``[S, K]``; NaN where a seed has no number."""
    return np.stack([of_seed.get(seed, np.full(width, math.nan)) for seed in seeds])


def is_under_attacked(judges: Iterable[CellJudge], job: Job, setting: Setting) -> bool:
    """Whether a job attacks a cell whose adaptive attacks do worse than the plain ones."""
    verdicts = (judge.verdict(job, setting) for judge in judges if judge.cell.concerns(job))
    return any(verdict is not None and verdict.under_attacked for verdict in verdicts)


def adaptive_table(judges: Iterable[CellJudge]) -> pd.DataFrame:
    """adaptive.csv: a row per defended cell in which an adaptive attack and the one inside it have numbers."""
    rows = []
    for judge in judges:
        job = judge.cell.adaptive[0]
        labels = (job.dataset.label, job.model.label, job.defense.label)
        for setting, one in sorted(judge.verdicts.items(), key=lambda item: str(item[0])):
            measured = (one.adaptive_quality, one.plain_quality, one.difference.value, *one.interval)
            cells = (*labels, json.dumps(dict(setting)), judge.cell.metric, one.adaptive, one.plain)
            rows.append(dict(zip(COLUMNS, (*cells, *measured, one.under_attacked), strict=True)))
    return pd.DataFrame(rows, columns=COLUMNS)


def under_attacked(rows: pd.DataFrame) -> bool:
    """Whether rows of a tidy table hold some of an under-attacked cell; printed numbers have no such column."""
    return COLUMN in rows and bool(rows[COLUMN].eq(True).any())  # NaN beside rows of no attack


def marked(name: str, rows: pd.DataFrame) -> str:
    """A name with the mark of under-attacked defenses, where rows hold some."""
    return f"{name} {DAGGER}" if under_attacked(rows) else name


def in_words(row: Mapping[Any, Any]) -> str:
    """A row of adaptive.csv: the cell, both attacks, and by how much the adaptive one is worse."""
    setting = setting_in_words(json.loads(row["setting"]))
    cell = f"{row['defense']}" + (f" ({setting})" if setting else "")
    worse = (
        f"{row['adaptive']} {row['adaptive_quality']:.3g}, {row['plain']} {row['plain_quality']:.3g} {row['metric']}"
    )
    return f"{cell}: {worse}, a difference of {row['difference']:.2g} [{row['low']:.2g}, {row['high']:.2g}]"


def under_attacked_notes(verdicts: pd.DataFrame) -> list[str]:
    """A line for a caption that explains the mark and names the cells; nothing where there is none.

    Args:
        verdicts: rows of adaptive.csv, of one or more experiments.
    """
    marks = verdicts[verdicts[COLUMN].astype(bool)].drop_duplicates(CELL)
    if marks.empty:
        return []
    several = len(marks[["dataset", "model"]].drop_duplicates()) > 1
    cells = [
        (f"{row['dataset']} with {row['model']}, " if several else "") + in_words(row)
        for row in marks.head(MOST_NOTES).to_dict("records")
    ]
    more = f"; and {len(marks) - MOST_NOTES} more (adaptive.csv)" if len(marks) > MOST_NOTES else ""
    return [
        f"{DAGGER} under-attacked: attackers who know the defense do worse than those who ignore it, beyond noise, so "
        f"that its numbers flatter it. {'; '.join(cells)}{more}."
    ]
