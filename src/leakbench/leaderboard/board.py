"""The leaderboard's numbers: what every defense leaks, loses and costs in every setting, and at an equal loss.

*Leakage* is the quality of the best reconstruction that any attacker makes: the interquartile mean over victims of its
PSNR, of the strongest attack. An attacker may also ignore the gradient, so that no defense leaks less than the best
guess. *Loss* is the accuracy that undefended training of the same seed reaches, minus that under the defense.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from leakbench.errors import RecordError
from leakbench.lazy import np, pd
from leakbench.report.artifacts import Tables
from leakbench.report.labels import reads
from leakbench.report.plots import values_of
from leakbench.report.statistics import (
    CrossedBootstrap,
    Estimate,
    at_loss,
    holm,
    interquartile_mean,
    paired_differences,
    probability_of_improvement,
)
from leakbench.report.style import IMAGE_REFERENCES
from leakbench.report.tidy import SETTING, setting_columns
from leakbench.report.under_attacked import DAGGER, under_attacked

if TYPE_CHECKING:
    from leakbench.report.statistics import Array

UNDEFENDED, DEFENDED = "undefended", "defended"
READ = (reads(UNDEFENDED, attacks=IMAGE_REFERENCES), DEFENDED)
"""Experiments that are read."""
METRIC = "psnr"
"""Quality of reconstructions; higher means more leakage."""
LOSSES = (0.01, 0.02, 0.05)
"""Allowed losses of accuracy, as fractions of the test images."""
HEADLINE = 0.02
"""The loss at which defenses are ranked."""
RESAMPLES = 1000
PROBABILITY_SEED = 0

SettingItems = tuple[tuple[str, Any], ...]
"""Swept parameters with their values."""


@dataclass(frozen=True, eq=False)
class Defended:
    """A defense in all of its settings.

    Attributes:
        label: of the defense.
        mechanism: its registered name.
        settings: in the order of the sweep, P of them.
        quality: per attack, the victims' PSNR, ``[P, S, K]``; -inf where a trial failed or an attack is infeasible.
        leakage: by the strongest attack or the best guess, ``[1 + R, P]``: of the sample, then of every resample; NaN
            where no attack applies, since nothing is known then.
        strongest: label of that attack in the sample, per setting.
        loss: of accuracy, ``[1 + R, P]``; inf where training diverged, NaN where it is missing.
        bits: over those of the undefended message, ``[P]``.
        under_attacked: whether the attacks that know the defense do worse than those inside them, per setting.
        overhead: time of a step under the defense over that of an undefended one, minus one, ``[P]``: the median over
            seeds and repetitions; NaN if not known.
    """

    label: str
    mechanism: str
    settings: tuple[SettingItems, ...]
    quality: Mapping[str, Array]
    leakage: Array
    strongest: tuple[str, ...]
    loss: Array
    bits: Array
    overhead: Array
    under_attacked: tuple[bool, ...]

    @property
    def between(self) -> bool:
        """Whether there are settings between those that were computed: one parameter is swept, and it is a number."""
        names = {name for setting in self.settings for name, _ in setting}
        return len(names) == 1 and all(isinstance(value, int | float) for ((_, value),) in self.settings)

    @property
    def unattacked(self) -> bool:
        """Whether no attack applies to it, in any setting."""
        return bool(np.isnan(self.leakage[0]).all())

    @property
    def least_loss(self) -> float:
        """Loss of the setting that loses least; inf if every training diverged or is missing."""
        known = self.loss[0][~np.isnan(self.loss[0])]
        return float(known.min(initial=np.inf))

    def at(self, allowed: float) -> Array:
        """The least leakage at no more than this loss, ``[1 + R]``."""
        return at_loss(self.loss, self.leakage, allowed, between=self.between)

    def chosen(self, allowed: float) -> int | None:
        """The computed setting that leaks least at no more than this loss; None if all lose more."""
        within = np.flatnonzero((self.loss[0] <= allowed) & np.isfinite(self.leakage[0]))
        return int(within[np.argmin(self.leakage[0, within])]) if len(within) else None


class Place(NamedTuple):
    """A line of the leaderboard.

    Attributes:
        leakage: at each of :data:`LOSSES`.
        setting: place of the chosen setting at :data:`HEADLINE`; None if every setting loses more.
        above_best: leakage minus that of the first, in dB; NaN for those that have none.
        p_value: of a difference of zero, after Holm's correction over all comparisons.
        guessed: probability that the strongest attack shows a victim better than the best guess does, in the chosen
            setting; ties count half.
    """

    defense: Defended
    leakage: Mapping[float, Estimate]
    setting: int | None
    above_best: Estimate
    p_value: float
    guessed: Estimate

    @property
    def under_attacked(self) -> bool:
        """Whether attacks that know the defense do worse than those inside them, in the chosen setting."""
        return self.setting is not None and self.defense.under_attacked[self.setting]

    @property
    def name(self) -> str:
        """The defense's label; with a mark where it is under-attacked."""
        return f"{self.defense.label} {DAGGER}" if self.under_attacked else self.defense.label


@dataclass(frozen=True, eq=False)
class Board:
    """All defenses on one data set and model.

    Attributes:
        undefended: leakage without a defense, by the strongest attack.
        guess: PSNR of the best attacker who ignores the gradient; ``guesses`` are those of its victims, ``[S, K]``.
        accuracy: of undefended training.
        void: attacks that are too weak without a defense, and so left out.
    """

    dataset: str
    model: str
    defenses: tuple[Defended, ...]
    undefended: Estimate
    guess: Estimate
    guesses: Array
    accuracy: Estimate
    void: tuple[str, ...]
    bootstrap: CrossedBootstrap = field(repr=False)

    @cached_property
    def places(self) -> list[Place]:
        """Defenses by leakage at :data:`HEADLINE`, least first.

        Then those whose every setting loses more, by that loss, and last those that no attack applies to.
        """
        at = {defense.label: defense.at(HEADLINE) for defense in self.defenses}
        known = {label: not np.isnan(leakage[0]) for label, leakage in at.items()}
        ranked = sorted(
            self.defenses,
            key=lambda one: (0, at[one.label][0]) if known[one.label] else (1 + one.unattacked, one.least_loss),
        )
        best = at[ranked[0].label]
        behind = [self.bootstrap.estimate(at[one.label] - best) for one in ranked]
        tested = [np.nan, *(one.p_value(0.0) for one in behind[1:])]
        return [
            Place(
                one,
                {allowed: self.bootstrap.estimate(one.at(allowed)) for allowed in LOSSES},
                one.chosen(HEADLINE),
                distance,
                p_value,
                self._guessed(one),
            )
            for one, distance, p_value in zip(ranked, behind, holm(tested), strict=True)
        ]

    def _guessed(self, defense: Defended) -> Estimate:
        setting = defense.chosen(HEADLINE)
        if setting is None:
            return Estimate(np.nan, np.nan, np.nan)
        strongest = defense.strongest[setting]
        shown = self.guesses if strongest in IMAGE_REFERENCES else defense.quality[strongest][setting]
        generator = np.random.default_rng(PROBABILITY_SEED)
        return probability_of_improvement(shown.ravel(), self.guesses.ravel(), generator, RESAMPLES)


def boards(tables: Tables) -> Iterator[Board]:
    """The leaderboard of every data set and model.

    Raises:
        RecordError: there is no undefended attack, guess or training to compare with.
    """
    frame = pd.concat([tables[UNDEFENDED], tables[DEFENDED]], ignore_index=True)
    for (dataset, model), rows in frame.groupby(["dataset", "model"], sort=False):
        yield _board(str(dataset), str(model), rows)


def _board(dataset: str, model: str, frame: pd.DataFrame) -> Board:
    void = tuple(sorted(frame["attack"][frame["void"]].dropna().unique()))
    attacked = values_of(frame[~frame["void"]], METRIC)
    seeds, victims = (np.sort(attacked[column].unique()) for column in ("seed", "index"))
    bootstrap = CrossedBootstrap(len(seeds), len(victims), RESAMPLES)
    cubes = _Cubes(seeds, victims)
    bare = frame[frame["mechanism"] == "none"]
    without = {str(name): cubes.of(rows) for name, rows in attacked[attacked["mechanism"] == "none"].groupby("attack")}
    reached = {name: interquartile_mean(bootstrap.drawn(values)) for name, values in without.items()}
    guesses = {name: values for name, values in reached.items() if name in IMAGE_REFERENCES}
    trained = values_of(_trained(bare), "accuracy")
    if not guesses or len(guesses) == len(reached) or trained.empty:
        raise RecordError(f"{dataset} with {model}: an attack without a defense, a guess and a training must be there")
    guess = max(guesses, key=lambda name: float(guesses[name][0]))
    defenses = tuple(
        _defended(rows, bare, bootstrap, cubes, (guess, guesses[guess]))
        for _, rows in frame[frame["mechanism"] != "none"].groupby("defense", sort=False)
    )
    accuracy = bootstrap.mean(_by_seed(trained, seeds)[:, None])
    return Board(
        dataset,
        model,
        defenses,
        bootstrap.estimate(np.max(list(reached.values()), axis=0)),
        bootstrap.estimate(guesses[guess]),
        without[guess],
        bootstrap.estimate(accuracy),
        void,
        bootstrap,
    )


@dataclass(frozen=True)
class _Cubes:
    """Converts numbers per victim to arrays."""

    seeds: Array
    victims: Array

    def of(self, rows: pd.DataFrame) -> Array:
        """``[S, K]``; -inf where there is no number."""
        cube = np.full((len(self.seeds), len(self.victims)), -np.inf)
        values = rows["value"].to_numpy(dtype=float)
        places = (np.searchsorted(self.seeds, rows["seed"]), np.searchsorted(self.victims, rows["index"]))
        cube[places] = np.where(np.isnan(values), -np.inf, values)
        return cube


def _by_seed(rows: pd.DataFrame, seeds: Array) -> Array:
    """A number per seed, ``[S]``; NaN where there is none."""
    return rows.set_index("seed")["value"].reindex(seeds).to_numpy(dtype=float)


def _defended(
    rows: pd.DataFrame, bare: pd.DataFrame, bootstrap: CrossedBootstrap, cubes: _Cubes, guess: tuple[str, Array]
) -> Defended:
    """One defense, from its rows and those without a defense."""
    settings = _settings(rows)
    parts = [_at_setting(rows, setting) for setting in settings]
    attacks = list(dict.fromkeys(rows["attack"][~rows["void"]].dropna()))
    quality = {
        attack: np.stack([cubes.of(values_of(part[~part["void"]], METRIC, attack=attack)) for part in parts])
        for attack in attacks
    }
    # Of a failed trial, -inf, more than a quarter takes the mean along: then another attack is the strongest.
    reached = {name: interquartile_mean(bootstrap.drawn(values)) for name, values in quality.items()}
    guessed, floor = guess
    every = np.stack([*reached.values(), np.broadcast_to(floor[:, None], (len(floor), len(settings)))])
    names = [*reached, guessed]
    attacked = np.isfinite(list(quality.values())).any(axis=(0, 2, 3))
    losses = np.stack([_losses(part, bare, cubes.seeds) for part in parts])
    return Defended(
        label=str(rows["defense"].iloc[0]),
        mechanism=str(rows["mechanism"].iloc[0]),
        settings=settings,
        quality=quality,
        leakage=np.where(attacked, every.max(axis=0), np.nan),
        strongest=tuple(names[place] for place in every[:, 0].argmax(axis=0)),
        loss=_mean_loss(bootstrap.drawn(losses[..., None])),
        bits=np.array([_mean(_trained(part), "bits") for part in parts]) / _mean(_trained(bare), "bits"),
        overhead=np.array([float(values_of(part, "overhead")["value"].median()) for part in parts]),
        under_attacked=tuple(under_attacked(part) for part in parts),
    )


def _settings(rows: pd.DataFrame) -> tuple[SettingItems, ...]:
    """The settings of a defense, in the order of the sweep."""
    columns = [name for name in setting_columns(rows) if rows[name].notna().any()]
    settings = rows[columns].drop_duplicates().to_dict("records") if columns else [{}]
    return tuple(tuple((str(name).removeprefix(SETTING), value) for name, value in one.items()) for one in settings)


def _at_setting(rows: pd.DataFrame, setting: SettingItems) -> pd.DataFrame:
    for name, value in setting:
        rows = rows[rows[SETTING + name] == value]
    return rows


def _losses(part: pd.DataFrame, bare: pd.DataFrame, seeds: Array) -> Array:
    """Accuracy lost against undefended training of the same seed, ``[S]``; inf where training diverged."""
    first, second = (values_of(_trained(rows), "accuracy") for rows in (bare, part))
    difference = paired_differences(first, second, by=["seed"]).rename(columns={"difference": "value"})
    return _by_seed(difference.fillna({"value": np.inf}), seeds)


def _mean_loss(drawn: Array) -> Array:
    """Means over the seeds that were trained, since more may be attacked; inf where one diverged, NaN without any."""
    known = ~np.isnan(drawn)
    counts = known.sum(axis=-1)
    sums = np.where(known, drawn, 0.0).sum(axis=-1)
    means: Array = np.divide(sums, counts, out=np.full(counts.shape, np.nan), where=counts > 0)
    return means


def _trained(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[rows["kind"] == "train"]


def _mean(rows: pd.DataFrame, metric: str) -> float:
    """The mean of a metric; NaN if nothing is known."""
    return float(values_of(rows, metric)["value"].mean())
