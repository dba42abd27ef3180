"""Labels of a paper's grid that claims, figures and tables read by name, and their lookup in the configuration.

A renamed label would leave a claim without numbers, and a figure would take the paper's defense for a user's. So
everything that reads a label declares it, and planning a run looks it up.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from leakbench.errors import UnknownName

if TYPE_CHECKING:
    from leakbench.planning.plan import Plan

AXES = {"datasets": "data set", "models": "model", "defenses": "defense", "attacks": "attack"}
"""Axes of a grid, as the configuration calls them, with the word for one label."""


@dataclass(frozen=True)
class Reads:
    """An experiment whose table is read, and the labels of its grid that are read by name.

    A label may be a pattern in which ``*`` stands for any characters, such as ``resnet*``.
    """

    experiment: str
    datasets: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    defenses: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()

    def labels(self) -> Iterator[tuple[str, str]]:
        """Every axis, a key of :data:`AXES`, with each of the labels on it."""
        for axis in AXES:
            for label in getattr(self, axis):
                yield axis, label

    def has(self, axis: str, label: str) -> bool:
        """Whether a label of the grid is declared."""
        return any(fnmatchcase(label, declaration) for declaration in getattr(self, axis))


def reads(
    experiment: str,
    *,
    defenses: Iterable[str] = (),
    attacks: Iterable[str] = (),
    models: Iterable[str] = (),
    datasets: Iterable[str] = (),
) -> Reads:
    """A declaration of the labels that are read of an experiment; a string is one label.

    >>> reads("pruning", defenses={"gp": "gradient pruning", "op": "optimal pruning"}, attacks="ig").defenses
    ('gp', 'op')
    """
    axes = (datasets, models, defenses, attacks)
    return Reads(experiment, *((labels,) if isinstance(labels, str) else tuple(labels) for labels in axes))


def declared(experiments: Iterable[str | Reads]) -> tuple[Reads, ...]:
    """Declarations; of an experiment that is named alone no label is read."""
    return tuple(Reads(each) if isinstance(each, str) else each for each in experiments)


def fits(declaration: str, labels: Iterable[str]) -> bool:
    """Whether one of the labels is the declared one, or fits the declared pattern."""
    return any(fnmatchcase(label, declaration) for label in labels)


def check_labels(plan: Plan, paper: str, reader: str, read: Iterable[Reads]) -> None:
    """Look up the labels that a claim, figure or table reads. One that this scale alone leaves out is known.

    Args:
        plan: of any scale.
        paper: one of the plan's.
        reader: name of the claim, figure or table, for the error message.
        read: its declarations.

    Raises:
        UnknownName: the paper's grid has no such experiment, or an experiment no such label; the message names the
            reader, the label, the file, and the nearest label that exists.
    """
    experiments = plan.papers[paper].experiments
    for entry in read:
        if entry.experiment not in experiments:
            place = plan.place(paper, "experiments", entry.experiment)
            raise UnknownName("experiment", entry.experiment, experiments, f"{place}, read by {reader}")
        for axis, label in entry.labels():
            listed = plan.listed(paper, entry.experiment, axis)
            if not fits(label, listed.known):
                raise UnknownName(AXES[axis], label, listed.known, f"{listed.place}, read by {reader}")


def left_out(plan: Plan, paper: str, read: Iterable[Reads]) -> Iterator[str]:
    """The declared labels that the plan leaves out at its scale, a sentence each."""
    for entry in read:
        for axis, label in entry.labels():
            listed = plan.listed(paper, entry.experiment, axis)
            if not fits(label, listed.planned):
                yield f"the configuration leaves out {AXES[axis]} '{label}' ({listed.place})"
