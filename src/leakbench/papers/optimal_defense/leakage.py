"""Leakage of a reconstruction: its error, as far as it stays below the best guess without a gradient."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from leakbench.lazy import np
from leakbench.report.evidence import Evidence, NotRun, Series, jackknife_of, same_seeds
from leakbench.report.style import IMAGE_REFERENCES

if TYPE_CHECKING:
    from leakbench.report.inference import Array

SAME = 1e-9
"""Relative difference of two mean errors that is rounding alone."""
NO_REFERENCE = "no reference attacker was measured"


@dataclass(frozen=True)
class BlindGuess:
    """The best guess without a gradient: an error beyond it leaks nothing.

    Attributes:
        error: of the reference attacker that errs least on average, on the victims of the defenses; None where none
            was measured.
    """

    error: Series | None

    @property
    def note(self) -> str:
        """A remark where errors cannot be capped; else empty."""
        return "" if self.error else f"{NO_REFERENCE}, so that errors are not capped"

    def cap(self, errors: Series) -> Series:
        """The errors of an attack, none beyond the guess, batch by batch, or seed by seed where batches are averaged.

        Raises:
            NotRun: the reference attackers saw other victims.
        """
        if self.error is None:
            return errors
        errors, guess = same_seeds(errors, self.error)
        jackknife_of(errors, guess)  # the same number of batches
        return replace(errors, values=np.minimum(errors.values, guess.values))

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


def blind_guess(evidence: Evidence, experiment: str, metric: str) -> BlindGuess:
    """The best guess of the reference attackers, of whom an experiment on the undefended gradient has some, or none."""
    guesses = []
    for attack in IMAGE_REFERENCES:
        try:
            guesses.append(evidence.series(experiment, metric, defense="none", attack=attack))
        except NotRun:
            continue
    return BlindGuess(min(same_seeds(*guesses), key=lambda one: float(np.nanmean(one.values))) if guesses else None)
