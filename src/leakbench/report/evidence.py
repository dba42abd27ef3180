"""The numbers that claims read from tidy tables, as arrays, with notes on what weakens them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from leakbench.errors import ConfigError
from leakbench.lazy import np, pd
from leakbench.report.artifacts import Tables
from leakbench.report.inference import FEWEST_SEEDS, Jackknife
from leakbench.report.labels import AXES, Reads
from leakbench.report.tidy import SETTING, cells_of, of_cell
from leakbench.report.under_attacked import COLUMN, under_attacked
from leakbench.report.units import SAMPLE_AXES, batch_means, known_means, of_one_seed
from leakbench.report.wording import numbers

if TYPE_CHECKING:
    from leakbench.report.inference import Array


class NotRun(Exception):
    """The tables do not hold what a claim speaks of; the message says what is missing."""


@dataclass(frozen=True, eq=False)
class Series:
    """A metric of one defense.

    Attributes:
        name: for messages.
        points: values of the swept parameter, or numbers of steps, ascending.
        seeds: ascending.
        values: ``[points, seeds, batches]``: images or sentences are averaged over their batch, and a number that no
            batch changes has one batch. NaN where there is no number.
        exact: whether the values have no sampling error, as printed numbers that are taken as they are.
    """

    name: str
    points: tuple[float, ...]
    seeds: tuple[int, ...]
    values: Array
    exact: bool = False

    def at(self, points: Sequence[float]) -> Series:
        """The series at some of its points.

        Raises:
            NotRun: one of them was not computed.
        """
        rows = [self._row(point) for point in points]
        return replace(self, points=tuple(points), values=self.values[rows])

    def _row(self, point: float) -> int:
        near = np.flatnonzero(np.isclose(self.points, point, rtol=1e-9, atol=0))
        if not len(near):
            raise NotRun(f"the grid of {self.name} has no {point:g}; it has {numbers(self.points)}")
        return int(near[0])

    def measured_seeds(self) -> set[int]:
        """Seeds of which some number is known."""
        return {seed for i, seed in enumerate(self.seeds) if np.isfinite(self.values[:, i]).any()}

    def by_point(self) -> list[tuple[float, Series]]:
        """Every point, with the series at it alone."""
        return [(point, self.at([point])) for point in self.points]

    def of_seeds(self, seeds: Sequence[int]) -> Series:
        """The series of some of its seeds."""
        return replace(self, seeds=tuple(seeds), values=self.values[:, [self.seeds.index(seed) for seed in seeds]])


def same_seeds(*series: Series) -> list[Series]:
    """The seeds of which all have a number, so that comparisons are paired.

    Raises:
        NotRun: they share none.
    """
    shared = sorted(set.intersection(*(one.measured_seeds() for one in series)))
    if not shared:
        raise NotRun(f"{' and '.join(one.name for one in series)} share no seed")
    return [one.of_seeds(shared) for one in series]


def same_points(*series: Series) -> list[Series]:
    """The points and seeds that all have.

    Raises:
        NotRun: they share none.
    """
    shared = [point for point in series[0].points if all(_has(one, point) for one in series[1:])]
    if not shared:
        raise NotRun(f"the grids of {' and '.join(one.name for one in series)} share no point")
    return same_seeds(*(one.at(shared) for one in series))


def _has(series: Series, point: float) -> bool:
    return bool(np.isclose(series.points, point, rtol=1e-9, atol=0).any())


def jackknife_of(*series: Series) -> Jackknife:
    """Seeds and batches of these series, which have the same seeds, to be left out in turn.

    Raises:
        NotRun: they were measured on different batches.
    """
    batches = {one.values.shape[-1] for one in series} - {1}
    if len(batches) > 1:
        names = " and ".join(one.name for one in series)
        raise NotRun(f"{names} have different numbers of batches: {numbers(sorted(batches))}")
    return Jackknife(len(series[0].seeds), max(batches, default=1), exact=all(one.exact for one in series))


@dataclass
class _Read:
    """Counts of the numbers that a claim has read, and void attacks and under-attacked cells among them."""

    seeds: set[int] = field(default_factory=set)
    batches: set[int] = field(default_factory=set)
    each: set[int] = field(default_factory=set)
    lost: int = 0
    void: list[str] = field(default_factory=list)
    under_attacked: list[str] = field(default_factory=list)


class Evidence:
    """Tidy tables as a claim reads them, with counts of what it has read.

    Args:
        tables: by the name of their experiment. Where an experiment has several data sets or models, the first pair
            is judged, and the notes say so, unless the claim goes through the :meth:`cells`.
        declared: the labels that the claim declares, of every experiment; None admits all.
        exact: whether the tables hold printed numbers, each of which is taken as exact: nothing is tested.

    Two seeds of a metric of two clients:

    >>> from leakbench.lazy import pd
    >>> table = pd.DataFrame({"seed": [0, 0, 1, 1], "index": [0, 1, 0, 1], "value": [21.0, 25.0, 18.0, 24.0]})
    >>> table = table.assign(dataset="cifar10", model="lenet5", defense="none", attack="ig", metric="psnr")
    >>> table = table.assign(void=False, distinct=False, axis="victim", status="ok")
    >>> evidence = Evidence({"noise": table})
    >>> evidence.series("noise", "psnr", defense="none", attack="ig").values.tolist()
    [[[21.0, 25.0], [18.0, 24.0]]]
    >>> evidence.notes()
    ['2 seeds x 2 batches: fewer than 3 seeds decide nothing']
    """

    def __init__(self, tables: Tables, declared: Iterable[Reads] | None = None, *, exact: bool = False) -> None:
        self._tables, self._exact = tables, exact
        self._declared = None if declared is None else {entry.experiment: entry for entry in declared}
        self._cell: tuple[str, str] | None = None
        self._several = False
        self._judged: dict[str, pd.DataFrame] = {}
        self._read = _Read()

    @property
    def void(self) -> list[str]:
        """Notes on attacks that missed their gate."""
        return self._read.void

    def cells(self, *experiments: str) -> dict[str, Evidence]:
        """The evidence of every data set and model that all these experiments hold, by their names in words.

        Raises:
            NotRun: there are none.
        """
        held = [cells_of(self._tables[name]) for name in experiments]
        shared = {}
        for cell in held[0]:
            if all(cell in others for others in held):
                one = copy.copy(self)
                one._cell, one._judged = cell, {}
                shared[f"{cell[0]} with {cell[1]}"] = one
        if not shared:
            raise NotRun(f"{' and '.join(experiments)} share no data set with a model")
        return shared

    def aside(self) -> Evidence:
        """The same tables, read without counting, to choose what is judged."""
        one = copy.copy(self)
        one._read, one._judged = _Read(), {}
        return one

    def notes(self, *, tested: bool = True) -> list[str]:
        """Notes on under-attacked cells, the size of the sample and missing numbers.

        Args:
            tested: whether seeds decide; False where all that counts is computed.
        """
        notes = [*self._read.under_attacked]
        if self._read.seeds and not self._exact:
            batches = f" x {max(self._read.batches)} batches" if self._read.batches else ""
            each = f", {max(self._read.each)} batches each" if max(self._read.each, default=1) > 1 else ""
            seeds = len(self._read.seeds)
            notes.append(f"{seeds} seed{'s' * (seeds > 1)}{batches or each}")
            if tested and seeds < FEWEST_SEEDS:
                notes[-1] += f": fewer than {FEWEST_SEEDS} seeds decide nothing"
        if lost := self._read.lost:
            notes.append(f"{lost} number{'s' * (lost > 1)} lost (diverged or infeasible)")
        if self._several and self._cell:
            notes.append(f"judged on {self._cell[0]} with {self._cell[1]}, the first of several")
        return notes

    def series(
        self,
        experiment: str,
        metric: str,
        *,
        defense: str,
        attack: str | None = None,
        sweep: str | None = None,
        where: Mapping[str, str | float] | None = None,
    ) -> Series:
        """A metric of a defense.

        Args:
            experiment: whose table is read.
            metric: as the table names it.
            defense: its label.
            attack: its label; None for training, which no attack sees.
            sweep: the parameter whose values are the points; without one, and for a curve over steps, there is one
                setting.
            where: values of other swept parameters.

        Raises:
            NotRun: there are no such numbers.
            ConfigError: the claim does not declare a label.
        """
        self._check(experiment, "defenses", defense)
        if attack is not None:
            self._check(experiment, "attacks", attack)
        name = f"{metric} of {defense} in {experiment}" + (f" under {attack}" if attack else "")
        name += "".join(f", {key} {wanted}" for key, wanted in (where or {}).items())
        rows = self._rows(experiment)
        attacked = rows["attack"].isna() if attack is None else rows["attack"] == attack
        rows = rows[(rows["defense"] == defense) & attacked]
        for key, wanted in (where or {}).items():
            rows = rows[rows[SETTING + key] == wanted] if SETTING + key in rows else rows[:0]
        measured = rows[rows["metric"] == metric]
        if measured.empty:
            raise NotRun(f"there is no {name}")
        if sweep and measured[SETTING + sweep].isna().all():
            raise NotRun(f"{name} sweeps no {sweep}")
        if measured["void"].any():
            self._note_void(attack)
        if under_attacked(measured):
            self._note_under_attacked(measured, defense, sweep)
        axis = measured["axis"].iloc[0]
        on_curve = axis in ("step", "round")
        point = np.asarray(measured["index"] if on_curve or not sweep else measured[SETTING + sweep], dtype=float)
        unit = np.zeros(len(measured), dtype=int) if on_curve else np.asarray(measured["index"], dtype=int)
        seed, value = np.asarray(measured["seed"]), np.asarray(measured["value"], dtype=float)
        if not np.isfinite(value).any():
            raise NotRun(f"{name} holds no number (status: {', '.join(sorted(set(measured['status'])))})")
        if not on_curve and not sweep:
            point = np.zeros(len(measured))
        (points, p), (seeds, s) = (np.unique(part, return_inverse=True) for part in (point, seed))
        cube = np.full((len(points), len(seeds), unit.max() + 1), np.nan)
        if len(set(zip(p.tolist(), s.tolist(), unit.tolist(), strict=True))) < len(measured):
            raise NotRun(f"{name} is swept over more than this claim knows")
        cube[p, s, unit] = value
        self._read.lost += int(np.isnan(value).sum())
        if axis in SAMPLE_AXES:
            cube = _per_batch(cube, _clients(rows), name)
        self._read.seeds.update(seeds.tolist())
        units = cube.shape[-1]
        if of_one_seed(axis, bool(measured["distinct"].all())):
            cube = known_means(cube)
            self._read.each.add(units)
        elif units > 1:
            self._read.batches.add(units)
        return Series(name, tuple(points.tolist()), tuple(seeds.tolist()), cube, self._exact)

    def series_if_any(self, experiment: str, metric: str, **which: Any) -> Series | None:
        """Read :meth:`series`, or None where there are no such numbers."""
        try:
            return self.series(experiment, metric, **which)
        except NotRun:
            return None

    def swept(self, experiment: str, parameter: str, *, defense: str | None = None) -> list[float]:
        """The values of a swept parameter, of one defense or of all, ascending; empty where nothing sweeps it."""
        rows, column = self._rows(experiment), SETTING + parameter
        if defense is not None:
            self._check(experiment, "defenses", defense)
            rows = rows[rows["defense"] == defense]
        return sorted(float(value) for value in rows[column].dropna().unique()) if column in rows else []

    def metrics(self, experiment: str, prefix: str, *, defense: str) -> list[str]:
        """Names of a defense's metrics that start with ``prefix``."""
        self._check(experiment, "defenses", defense)
        rows = self._rows(experiment)
        names = rows["metric"][rows["defense"] == defense].unique()
        return [name for name in names if name.startswith(prefix)]

    def _check(self, experiment: str, axis: str, label: str) -> None:
        """Reject a label that the claim does not declare, so that planning would not look it up in the grid."""
        if self._declared is not None and not self._declared[experiment].has(axis, label):
            raise ConfigError(f"the claim reads {AXES[axis]} '{label}' of experiment '{experiment}' undeclared")

    def _rows(self, experiment: str) -> pd.DataFrame:
        if experiment not in self._judged:
            frame = self._tables[experiment]
            cells = cells_of(frame)
            self._several |= len(cells) > 1
            self._cell = self._cell or cells[0]
            if self._cell not in cells:
                raise NotRun(f"{experiment} holds no {self._cell[0]} with {self._cell[1]}")
            self._judged[experiment] = of_cell(frame, *self._cell)
        return self._judged[experiment]

    def _note_void(self, attack: str | None) -> None:
        dataset, model = self._cell or ("", "")
        what = "its errors rank" if attack else "numbers of defended ones rank"
        note = f"void: {attack or 'the undefended model'} missed its gate on {dataset} with {model}, so {what} nothing"
        if note not in self.void:
            self.void.append(note)

    def _note_under_attacked(self, measured: pd.DataFrame, defense: str, sweep: str | None) -> None:
        """Note a defense whose adaptive attackers are too weak, with the points at which they are."""
        points = sorted(measured.loc[measured[COLUMN], SETTING + sweep].unique()) if sweep else []
        at = f" at {sweep} {numbers(points)}" if points else ""
        dataset, model = self._cell or ("", "")
        note = (
            f"under-attacked: {defense}{at} on {dataset} with {model}: attackers who know it do worse than those who "
            "ignore it, so its numbers flatter it"
        )
        if note not in self._read.under_attacked:
            self._read.under_attacked.append(note)


def _clients(rows: pd.DataFrame) -> int:
    """Clients per seed, from a metric that has one value per victim."""
    victims = rows[rows["metric"] == "alignment"]
    return 1 if victims.empty else int(victims["index"].max()) + 1


def _per_batch(cube: Array, clients: int, name: str) -> Array:
    """Means over each client's samples, ``[points, seeds, clients]``."""
    if cube.shape[-1] % clients:
        raise NotRun(f"{name}: {cube.shape[-1]} samples are no whole batches of {clients} clients")
    return batch_means(cube, clients)
