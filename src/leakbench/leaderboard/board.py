"""The leaderboard's numbers: what every defense leaks and costs in settings that were computed, at an allowed loss.

*Leakage* is the mean over victims of the PSNR of the best reconstruction, or of the part of the tokens that it holds:
by the attack of the track's ensemble that is strongest on a setting, or by the best guess that ignores the gradient.
Where an attack fails on a victim, its attacker guesses. *Loss* is the accuracy that undefended training of the same
seed reaches, minus that under the defense.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from leakbench.errors import RecordError
from leakbench.jobs.strengths import LOST
from leakbench.lazy import np, pd
from leakbench.leaderboard.tiers import Level, interpolated, mean_of, smallest_gap, tier_by_mean, tiers
from leakbench.leaderboard.tracks import ALLOWED, TRACKS, Measure, Track
from leakbench.report.artifacts import Tables
from leakbench.report.inference import Estimate
from leakbench.report.plots import values_of
from leakbench.report.tidy import SECONDS, SETTING, of_cell, setting_columns
from leakbench.report.under_attacked import COLUMN, DAGGER, under_attacked
from leakbench.report.wording import setting_in_words

if TYPE_CHECKING:
    from leakbench.report.inference import Array

IDENTIFIED = "identified"
COHORT, STATE = SETTING + "clients", SETTING + "epoch"
"""Columns of what protocols sweep: clients per round of training, and epochs of training before an attack."""
OF_ATTACKS = (IDENTIFIED, "evaluations", "auxiliary", SECONDS)
"""Metrics of attacks beside the leakage."""
COSTS = ("accuracy", LOST, "bits", "overhead")
"""Metrics of training, and of what a step takes."""
WORDS = ("dataset", "model", "defense", "mechanism", "attack", "kind", "metric")
KEPT = (*WORDS, "void", COLUMN, "seed", "index", "value")
"""Columns of tidy tables that count here, beside those of settings."""
WORST = 0.1
"""Part of the victims whose mean is the worst case."""
UNKNOWN = Estimate(math.nan)

SettingItems = tuple[tuple[str, Any], ...]
"""Swept parameters with their values."""


Reached: TypeAlias = "Callable[[str, SettingItems], tuple[dict[str, Leakage], bool]]"
"""From a setting of a defense to what attacks on it reach, by label, and whether it is under-attacked."""


class Budget(NamedTuple):
    """The budget of an attack per victim; NaN where that is not known.

    Attributes:
        evaluations: gradients.
        auxiliary: samples of no client that it may read, one set for all victims.
        seconds: of the processor or GPU.
    """

    evaluations: float
    auxiliary: float
    seconds: float

    @classmethod
    def of(cls, metrics: Mapping[str, _Numbers], victims: int) -> Budget:
        """The budget of an attack whose replicates have so many victims."""
        evaluations, auxiliary, seconds = (
            float(pd.Series(metrics[name].values).mean()) if name in metrics else math.nan
            for name in ("evaluations", "auxiliary", SECONDS)
        )
        return cls(evaluations, auxiliary, seconds / victims)


class Leakage(NamedTuple):
    """Reconstructions of victims by one attack.

    Attributes:
        attack: its label, with the state of training where a track has several.
        values: in the track's unit, ``[S, K]``: of victims that each seed has of its own.
        identified: part of the victims that are picked out of a line-up, by the attack that identifies most; NaN where
            there is none.
        budget: of the attack.
    """

    attack: str
    values: Array
    identified: float
    budget: Budget

    @property
    def by_seed(self) -> Array:
        """Means over the victims of each seed, ``[S]``."""
        means: Array = self.values.mean(axis=1)
        return means

    @property
    def mean(self) -> Estimate:
        """Over all victims."""
        return mean_of(self.by_seed)

    @property
    def worst(self) -> float:
        """Mean over the tenth of the victims that leaks most, at least one."""
        every = np.sort(self.values.ravel())
        return float(every[-max(1, math.ceil(WORST * every.size)) :].mean())


@dataclass(frozen=True, eq=False)
class Computed:
    """A setting of a defense, as computed.

    Attributes:
        items: its swept parameters.
        loss: of accuracy; infinite where a training diverged, NaN where none is known.
        lost: the same, by the seed of training.
        leakage: by the strongest attack or the best guess; None where no attack was run, or none applies.
        attacks: leakage by each attack of the ensemble that applies, by its label.
        bits: over those of the undefended message; NaN where unknown.
        time: of a step over that of an undefended one: the median over seeds and repetitions; NaN where unknown.
        under_attacked: whether the attacks that know the defense do worse than those inside them.
    """

    items: SettingItems
    loss: Estimate
    lost: Mapping[int, float]
    leakage: Leakage | None
    attacks: Mapping[str, Leakage]
    bits: float
    time: float
    under_attacked: bool

    @property
    def words(self) -> str:
        """``scale 0.01``."""
        return setting_in_words(self.items)


@dataclass(frozen=True, eq=False)
class Entry:
    """A defense in all of its settings, from weak to strong."""

    label: str
    mechanism: str
    settings: tuple[Computed, ...]

    @property
    def shown(self) -> Computed | None:
        """The strongest attacked setting within the allowed loss; without one, the attacked one that loses least."""
        attacked = [one for one in self.settings if one.leakage is not None]
        within = [one for one in attacked if one.loss.value <= ALLOWED]
        if within:
            return within[-1]
        return min(attacked, key=lambda one: np.nan_to_num(one.loss.value, nan=np.inf), default=None)

    @property
    def beyond(self) -> Computed | None:
        """The attacked setting on the other side of the allowed loss; None for excluded defenses, and without one."""
        if self.excluded or self.shown is None:
            return None
        after = self.settings[self.settings.index(self.shown) + 1 :]
        return next((one for one in after if one.leakage is not None), None)

    @property
    def level(self) -> Level | None:
        """Leakage in the setting shown and, between that and :attr:`beyond`, at the allowed loss."""
        shown, beyond = self.shown, self.beyond
        if shown is None or shown.leakage is None:
            return None
        if beyond is None or beyond.leakage is None:
            return Level.of(shown.leakage.by_seed)
        seeds = sorted(shown.lost.keys() & beyond.lost.keys())
        lost, lost_beyond = (np.array([one.lost[seed] for seed in seeds]) for one in (shown, beyond))
        return interpolated(shown.leakage.by_seed, lost, beyond.leakage.by_seed, lost_beyond, ALLOWED)

    @property
    def excluded(self) -> str:
        """Why it is not ranked; empty if it is."""
        if self.shown is None:
            return "no attack applies"
        loss = self.shown.loss.value
        if math.isnan(loss):
            return "training is missing"
        if math.isinf(loss):
            return "training diverges"
        return "" if loss <= ALLOWED else f"loses {100 * loss:.1f} points"

    @property
    def name(self) -> str:
        """The label, with a mark where the shown setting is under-attacked."""
        return f"{self.label} {DAGGER}" if self.shown and self.shown.under_attacked else self.label


class Row(NamedTuple):
    """A line of the leaderboard.

    Attributes:
        entry: a defense.
        tier: None where nothing is known of what it leaks.
        beyond_tier: where the mean of its next setting lies among the tiers; None where there is none.
    """

    entry: Entry
    tier: int | None
    beyond_tier: int | None = None


@dataclass(frozen=True, eq=False)
class Board:
    """All defenses under one threat model, on one data set and model, with cohorts of one size.

    Attributes:
        cohort: clients per round of training, where the protocol sweeps them.
        undefended: by the strongest attack.
        bare: by each attack, without a defense.
        guess: by the best attacker who ignores the gradient.
        accuracy: of undefended training.
        void: attacks that are too weak without a defense, and so left out.
    """

    track: Track
    dataset: str
    model: str
    cohort: int | None
    entries: tuple[Entry, ...]
    undefended: Leakage
    bare: Mapping[str, Leakage]
    guess: Leakage
    accuracy: Estimate
    void: tuple[str, ...]

    @property
    def title(self) -> str:
        """The track, the data, the model and the cohort."""
        cohort = f", {self.cohort} clients a round" if self.cohort else ""
        return f"{self.track.title}; {self.dataset}, {self.model}{cohort}"

    @cached_property
    def rows(self) -> list[Row]:
        """Ranked defenses by leakage, least first; then those that lose too much, and those of which nothing is known.

        Ranked ones alone make the tiers; those that lose too much are placed among them by their means.
        """
        levels = {one.label: one.level for one in self.entries if one.level}
        out = {one.label for one in self.entries if one.excluded}
        ranked = {label: level for label, level in levels.items() if label not in out}
        makers = list(ranked.values())
        of_makers = tiers(makers)
        tier_of = dict(zip(ranked, of_makers, strict=True))
        tier_of |= {label: tier_by_mean(levels[label].mean, makers, of_makers) for label in levels.keys() & out}
        beyond = {one.label: one.beyond.leakage.mean.value for one in self.entries if one.beyond and one.beyond.leakage}
        next_of = {label: tier_by_mean(mean, makers, of_makers) for label, mean in beyond.items()}

        def place(entry: Entry) -> tuple[bool, bool, float]:
            level = levels.get(entry.label)
            return level is None, entry.label in out, 0.0 if level is None else level.mean

        ordered = sorted(self.entries, key=place)
        return [Row(entry, tier_of.get(entry.label), next_of.get(entry.label)) for entry in ordered]

    @cached_property
    def gap(self) -> float:
        """The smallest difference of leakages that can be told apart (:func:`smallest_gap`)."""
        return smallest_gap([row.entry.level for row in self.rows if row.entry.level and not row.entry.excluded])

    @property
    def victims(self) -> tuple[int, int]:
        """Seeds, and victims of each."""
        seeds, each = self.undefended.values.shape
        return seeds, each

    @property
    def noise(self) -> float:
        """Half the width of the 95 % interval of a loss, the median over shown settings; NaN where unknown."""
        widths = [row.entry.shown.loss.high - row.entry.shown.loss.value for row in self.rows if row.entry.shown]
        known = [width for width in widths if math.isfinite(width)]
        return float(np.median(known)) if known else math.nan


class Cell(NamedTuple):
    """A track on one data set and model, with the numbers that count in it.

    Attributes:
        rows: of its attacks on defenses.
        bare: of its attacks without a defense.
        trained: of training, with and without defenses.
    """

    track: Track
    dataset: str
    model: str
    rows: pd.DataFrame
    bare: pd.DataFrame
    trained: pd.DataFrame

    @property
    def title(self) -> str:
        """The track, the data and the model."""
        return f"{self.track.title}; {self.dataset}, {self.model}"

    @property
    def unjudged(self) -> str:
        """Why nothing can be said of defenses here; empty if something can."""
        values = values_of(self.bare[~self.bare["void"]], self.track.measure.metric)
        references = values["attack"].isin(list(self.track.measure.references))
        if values[references].empty:
            return "no guess to compare with"
        return "no attack passes its gate without a defense" if values[~references].empty else ""


def cells(tables: Tables) -> Iterator[Cell]:
    """The tracks, data sets and models that the scale computes."""
    costs = cache(lambda name: _few(tables[name], *COSTS))
    for track in TRACKS:
        attacks = cache(lambda name, metric=track.measure.metric: _few(tables[name], metric, *OF_ATTACKS))
        trained = pd.concat([costs(name) for name in track.training], ignore_index=True)
        for place, rows in attacks(track.defended).groupby(["dataset", "model"], sort=False):
            dataset, model = map(str, place)
            bare, paid = (of_cell(frame, dataset, model) for frame in (attacks(track.undefended), trained))
            if track.weaker:
                bare, rows = (
                    pd.concat([frame, of_cell(attacks(name), dataset, model)], ignore_index=True)
                    for frame, name in zip((bare, rows), track.weaker, strict=True)
                )
            yield Cell(track, dataset, model, rows, bare, paid)


def _few(frame: pd.DataFrame, *metrics: str) -> pd.DataFrame:
    """The rows and columns that count here: boards take thousands of parts of a table, and copy each."""
    settings = [name for name in setting_columns(frame) if frame[name].notna().any()]
    some = frame.loc[frame["metric"].isin(metrics), [*(name for name in KEPT if name in frame), *settings]]
    return some.astype(dict.fromkeys(WORDS, object))


def boards(tables: Tables) -> list[Board]:
    """The leaderboard of every track, data set, model and cohort where something can be said of defenses.

    Raises:
        RecordError: there is none.
    """
    every = list(cells(tables))
    made = [board for cell in every if not cell.unjudged for board in _of_cell(cell)]
    if not made:
        reasons = "; ".join(f"{cell.track.title}: {cell.unjudged}" for cell in every)
        raise RecordError(f"leaderboard: nothing can be said of any defense: {reasons or 'no attack was run'}")
    return made


def unjudged(tables: Tables) -> list[Cell]:
    """Cells in which nothing can be said of defenses."""
    return [cell for cell in cells(tables) if cell.unjudged]


def _of_cell(cell: Cell) -> Iterator[Board]:
    """The boards of a track on one data set and model: one for each size of the cohort."""
    track, dataset, model, rows, bare, trained = cell
    void = {str(label) for part in (bare, rows) for label in _attacks(part[part["void"]]).dropna()}
    cubes = _Cubes.of(values_of(bare[~bare["void"]], track.measure.metric), track.measure)
    guess = strongest(cubes.leakages(bare[bare["attack"].isin(list(track.measure.references))]))
    without = {each.attack: each for each in cubes.leakages(bare[~bare["void"]], guess)}
    undefended = strongest([guess, *without.values()])
    attacked = dict(iter(rows.groupby("defense", sort=False)))

    @cache
    def reached(label: str, items: SettingItems) -> tuple[dict[str, Leakage], bool]:
        """Leakage by each attack on a setting of a defense, and whether it is under-attacked, whatever the cohort."""
        part = _at(attacked.get(label, rows[:0]), items)
        return {each.attack: each for each in cubes.leakages(part[~part["void"]], guess)}, under_attacked(part)

    for cohort, of_cohort in _cohorts(trained):
        plain = of_cohort[of_cohort["mechanism"] == "none"]
        measured = dict(iter(of_cohort[of_cohort["mechanism"] != "none"].groupby("defense", sort=False)))
        entries = tuple(
            _entry(measured.get(label, of_cohort[:0]), attacked.get(label, rows[:0]), reached, guess, _bits(plain))
            for label in dict.fromkeys([*measured, *attacked])
        )
        accuracy = mean_of(values_of(plain, "accuracy")["value"].to_numpy(float)) if len(plain) else UNKNOWN
        yield Board(track, dataset, model, cohort, entries, undefended, without, guess, accuracy, tuple(sorted(void)))


def _cohorts(trained: pd.DataFrame) -> list[tuple[int | None, pd.DataFrame]]:
    """Training by clients per round; all as one where the protocol does not sweep them."""
    if COHORT not in trained or trained[COHORT].isna().all():
        return [(None, trained)]
    sizes = sorted(trained[COHORT].dropna().unique())
    return [(int(size), trained[(trained[COHORT] == size) | trained[COHORT].isna()]) for size in sizes]


class _Numbers(NamedTuple):
    """A metric of an attack: values of the victims of seeds."""

    seeds: Array
    victims: Array
    values: Array


@dataclass(frozen=True)
class _Cubes:
    """Arranges numbers per victim by seed and victim."""

    seeds: Array
    victims: Array
    measure: Measure

    @classmethod
    def of(cls, rows: pd.DataFrame, measure: Measure) -> _Cubes:
        seeds, victims = (np.sort(rows[column].unique()) for column in ("seed", "index"))
        return cls(seeds, victims, measure)

    def leakages(self, rows: pd.DataFrame, guess: Leakage | None = None) -> Iterator[Leakage]:
        """The leakage by each attack with a number in rows of one setting; failed trials guess, if there is a guess."""
        for label, numbers in _by_attack(rows).items():
            reached = self.measure.factor * self.cube(numbers[self.measure.metric])
            values = np.minimum(reached, self.measure.most)
            if np.isfinite(values).any():
                yield Leakage(
                    label,
                    values if guess is None else np.where(np.isfinite(values), values, guess.values),
                    float(np.nan_to_num(self.cube(numbers[IDENTIFIED])).mean()) if IDENTIFIED in numbers else math.nan,
                    Budget.of(numbers, len(self.victims)),
                )

    def cube(self, numbers: _Numbers) -> Array:
        """``[S, K]``; NaN where a trial failed.

        Raises:
            RecordError: the numbers are of other victims than those of the undefended updates.
        """
        if not (np.isin(numbers.seeds, self.seeds).all() and np.isin(numbers.victims, self.victims).all()):
            raise RecordError("leaderboard: attacks on a defense have victims that those without a defense lack")
        cube = np.full((len(self.seeds), len(self.victims)), np.nan)
        places = (np.searchsorted(self.seeds, numbers.seeds), np.searchsorted(self.victims, numbers.victims))
        cube[places] = numbers.values
        return cube


def _attacks(rows: pd.DataFrame) -> pd.Series[str]:
    """The attack of every row, with the state of training where a track has several."""
    return rows["attack"] + rows[STATE].map(", epoch {:g}".format) if STATE in rows else rows["attack"]


def _by_attack(rows: pd.DataFrame) -> dict[str, dict[str, _Numbers]]:
    """Numbers by attack, with the state of training where a track has several, and by metric."""
    labels = _attacks(rows)
    columns = [rows[column].to_numpy() for column in ("seed", "index", "value")]
    numbers: dict[str, dict[str, _Numbers]] = {str(label): {} for label in labels.unique()}
    parts: Mapping[Any, Any] = rows.groupby([labels, rows["metric"]]).indices
    for (label, metric), places in parts.items():
        numbers[label][metric] = _Numbers(*(column[places] for column in columns))
    return numbers


def strongest(leakages: Iterable[Leakage]) -> Leakage:
    """The one with the largest mean, of several states of training on the worst; identified is by any of them."""
    every = list(leakages)
    # Where the strongest has no line-up, `max` keeps its NaN, which comes first, and else passes over those of others.
    best = max(every, key=lambda one: float(one.values.mean()))
    return best._replace(identified=max([best.identified, *(one.identified for one in every)]))


def _entry(costs: pd.DataFrame, attacked: pd.DataFrame, reached: Reached, guess: Leakage, bits: float) -> Entry:
    """One defense, from its training and the attacks on it; ``bits`` are those of an undefended message."""
    both = pd.concat([costs, attacked], ignore_index=True)
    names = [name for name in setting_columns(both) if name not in (COHORT, STATE) and both[name].notna().any()]
    settings = both[names].drop_duplicates().to_dict("records") if names else [{}]
    label = str(both["defense"].iloc[0])
    computed: list[Computed] = []
    for setting in settings:
        items = tuple((str(name).removeprefix(SETTING), value) for name, value in setting.items())
        of_costs, (attacks, weak) = _at(costs, items), reached(label, items)
        lost = _lost(of_costs)
        computed.append(
            Computed(
                items,
                _loss(lost),
                lost,
                strongest([guess, *attacks.values()]) if attacks else None,
                attacks,
                _bits(of_costs) / bits,
                1 + float(values_of(of_costs, "overhead")["value"].median()),
                weak,
            )
        )
    return Entry(label, str(both["mechanism"].iloc[0]), tuple(computed))


def _at(rows: pd.DataFrame, items: SettingItems) -> pd.DataFrame:
    for name, value in items:
        rows = rows[rows[SETTING + name] == value]
    return rows


def _lost(rows: pd.DataFrame) -> dict[int, float]:
    """Accuracy lost, by seed."""
    values = values_of(rows, LOST)
    return dict(zip(values["seed"], values["value"], strict=True))


def _loss(lost: Mapping[int, float]) -> Estimate:
    """Accuracy lost, over seeds; infinite where one diverged."""
    values = np.array(list(lost.values()))
    if not values.size:
        return UNKNOWN
    return mean_of(values) if np.isfinite(values).all() else Estimate(math.inf)


def _bits(rows: pd.DataFrame) -> float:
    """Bits of a message of training; NaN if nothing is known."""
    return float(values_of(rows, "bits", kind="train")["value"].mean())
