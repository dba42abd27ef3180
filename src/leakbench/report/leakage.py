"""Leakage of a reconstruction: its quality, as far as it is better than the best guess without a gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from leakbench.lazy import np
from leakbench.metrics.assignment import ASSIGNED_METRICS
from leakbench.metrics.image import IMAGE_METRICS
from leakbench.report.evidence import Evidence, Series, jackknife_of, same_points, same_seeds
from leakbench.report.style import IMAGE_REFERENCES

if TYPE_CHECKING:
    from leakbench.report.inference import Array

SAME = 1e-9
"""Relative difference of two mean errors that is rounding alone."""
NO_REFERENCE = "no reference attacker was measured"


@dataclass(frozen=True)
class BlindGuess:
    """The best guess without a gradient: what is no better leaks nothing.

    Attributes:
        series: numbers of the reference attacker that is best on average, on the victims of the defenses, at one point
            for all settings or at each; None where none was measured.
        higher: whether more of the metric is a better reconstruction, as of PSNR and not of errors.
    """

    series: Series | None
    higher: bool = False

    @property
    def note(self) -> str:
        """A remark where numbers cannot be capped; else empty."""
        return "" if self.series else f"{NO_REFERENCE}, so that nothing is capped"

    def cap(self, measured: Series) -> Series:
        """The numbers of an attack, none worse than the guess: batch by batch, or by seed where batches are averaged.

        Raises:
            NotRun: the reference attackers saw other victims.
        """
        if self.series is None:
            return measured
        same = same_seeds if len(self.series.points) == 1 else same_points
        measured, guess = same(measured, self.series)
        jackknife_of(measured, guess)  # the same number of batches
        better = np.maximum if self.higher else np.minimum
        return replace(measured, values=better(measured.values, guess.values))

    def leaks(self, measured: Series) -> bool:
        """Whether an attack on one setting does better than the guess, on average; True where there is no guess."""
        if self.series is None:
            return True
        capped, guess = same_seeds(self.cap(measured), self.series)
        better, blind = (float(np.nanmean(each.values)) for each in (capped, guess))
        return abs(better - blind) > SAME * abs(blind)

    def merge(self, means: Array, losses: Array, guess: Array) -> Array:
        """Mean errors in which the settings that leak nothing are one: that of the lowest loss. The others are NaN.

        A defender would take no other of them, and lines between them would hang on rounding.

        Args:
            means: capped errors, ``[R, P]``.
            losses: of the same settings, ``[R, P]``.
            guess: mean error of the guess, ``[R]``.
        """
        blind = means >= guess[:, None] * (1 - SAME)
        best = np.where(blind, np.nan_to_num(losses, nan=np.inf), np.inf).argmin(axis=1)
        kept = ~blind
        kept[np.arange(len(means)), best] = True
        return np.where(kept, np.where(blind, guess[:, None], means), np.nan)


def blind_guess(
    evidence: Evidence,
    experiment: str,
    metric: str,
    *,
    attacks: Iterable[str] = IMAGE_REFERENCES,
    sweep: str | None = None,
) -> BlindGuess:
    """The best guess of the reference attackers, of whom an experiment on the undefended gradient has some, or none.

    Args:
        evidence: the tables.
        experiment: with the reference attackers.
        metric: of images, raw or assigned.
        attacks: labels of reference attackers.
        sweep: the parameter of the protocol that changes what is guessed; then each of its values has a guess.
    """
    higher = (IMAGE_METRICS | ASSIGNED_METRICS)[metric].direction == "higher"
    read = partial(evidence.series_if_any, experiment, metric, defense="none", sweep=sweep)
    known = [guess for attack in attacks if (guess := read(attack=attack)) is not None]
    if not known:
        return BlindGuess(None, higher)
    guesses = same_points(*known)
    best = [_best([one.at([point]) for one in guesses], higher) for point in guesses[0].points]
    values = np.concatenate([one.values for one in best])
    return BlindGuess(replace(best[0], points=guesses[0].points, values=values), higher)


def _best(guesses: Sequence[Series], higher: bool) -> Series:
    """The one that is best on average, each of one point."""
    return (max if higher else min)(guesses, key=lambda one: float(np.nanmean(one.values)))
