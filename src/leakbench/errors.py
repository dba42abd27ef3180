"""Errors that a user can act on: each message says what was found, where, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LeakbenchError(Exception):
    """Base of all errors that the command line prints without a traceback."""


class ConfigError(LeakbenchError):
    """The configuration, or a path that it has to explain, says something that does not exist or does not fit."""


class UnknownName(ConfigError):
    """A name that no registry or configuration knows.

    Args:
        what: the kind of thing, such as ``"defense"`` or ``"key"``.
        name: the name that was asked for.
        allowed: the names that exist.
        where: the file, path or key that holds the name.
    """

    def __init__(self, what: str, name: str, allowed: Iterable[str], where: str = "") -> None:
        names = sorted(allowed)
        near = _nearest(name, names)
        hint = f"; did you mean '{near}'?" if near else "."
        place = f"{where}: " if where else ""
        super().__init__(f"{place}unknown {what} '{name}'{hint} Allowed: {', '.join(names) or '(none)'}.")


def _nearest(name: str, names: list[str]) -> str | None:
    """The most similar name, the first of equals, or None where all differ too much (fig4: fig04, not figS4)."""
    ratios = {other: difflib.SequenceMatcher(None, other, name).ratio() for other in names}
    nearest = max(names, key=lambda other: ratios[other], default=None)
    return nearest if nearest is not None and ratios[nearest] >= 0.6 else None


class Infeasible(LeakbenchError):
    """This cannot run here, and why; jobs turn it into the outcome infeasible.

    >>> raise Infeasible("the model has no fully connected layer")
    Traceback (most recent call last):
    leakbench.errors.Infeasible: the model has no fully connected layer
    """


class MissingData(LeakbenchError):
    """A data set or a file of weights is not staged."""


class DataChanged(LeakbenchError):
    """The files of a data set are not the ones that something else was computed from."""


class RecordError(LeakbenchError):
    """A record or its tensors cannot be read: half-written, altered, or of another schema."""


class WriteError(LeakbenchError):
    """A file cannot be written."""


class OutOfMemory(LeakbenchError):
    """A job needs more memory than it has."""


class ObservationError(LeakbenchError):
    """Observations do not fit the model, or hold values that are not finite."""
