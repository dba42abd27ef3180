"""Cells whose attackers know the defense, beside the attacks that they wrap.

A weak adaptive attack flatters its defense. Whoever knows a defense may also ignore it, so an adaptive attack that does
worse than the plain one inside it leaves a better one to be found, and the cell is *under-attacked*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from leakbench.attacks.adaptive import Wrapper
from leakbench.gates import Gate
from leakbench.jobs.base import Job, JobKind

OF_THE_ATTACKER = ("knowledge", "messages", "auxiliary", "prior", "language_model", "inverter")
"""Fields of a protocol that say what attackers are granted; the attacks on a cell may differ in them."""


@dataclass(frozen=True)
class AdaptedCell:
    """The attacks on one defended model that wrap others, and those others.

    Attributes:
        adaptive: jobs of the wrappers, of one experiment.
        plain: jobs of the attacks inside them that wrap nothing; of another experiment where this one has none.
        metric: of their gates, by which both are compared.
        kind: of all these jobs.
    """

    adaptive: tuple[Job, ...]
    plain: tuple[Job, ...]
    metric: str
    kind: type[JobKind]

    def concerns(self, job: Job) -> bool:
        """Whether a job's numbers flatter the defense if the cell is under-attacked: it attacks the same cell."""
        observes = job.attack is not None and job.attack.component.observes
        return observes and _cell(job) == _cell(self.adaptive[0])

    def described(self) -> dict[str, Any]:
        """Everything but the records that affects a verdict, in JSON types."""
        return {
            "adaptive": [job.path for job in self.adaptive],
            "plain": [job.path for job in self.plain],
            "metric": self.metric,
        }


def adapted_cells(gates: Iterable[Gate], jobs: Iterable[Job], experiment: str) -> Iterator[AdaptedCell]:
    """The cells of an experiment with gates in which attacks wrap others that run on the same victims.

    The plain attacks are looked for in the experiment, then in the paper's others with the same protocol, but for
    :data:`OF_THE_ATTACKER`.

    Args:
        gates: of the experiment; an attack without one, whose inside has none either, is not compared.
        jobs: of every experiment of the paper.
        experiment: its name.
    """
    metrics = {gate.attack: gate.spec.metric for gate in gates}
    attacking = [job for job in jobs if job.attack and job.defense.component.name != "none"]
    wrappers: dict[Any, list[Job]] = {}
    for job in attacking:
        assert job.attack is not None
        metric = next((metrics[label] for label in (job.attack.label, *job.attack.wraps) if label in metrics), None)
        if job.experiment == experiment and metric and _adapts(job):
            wrappers.setdefault((*_cell(job), metric), []).append(job)
    for (*_, metric), adaptive in wrappers.items():
        if plain := _inside(adaptive, attacking):
            yield AdaptedCell(tuple(adaptive), tuple(plain), metric, type(adaptive[0].kind))


def _inside(adaptive: Sequence[Job], attacking: Iterable[Job]) -> list[Job]:
    """The jobs of the attacks inside wrappers: of their experiment, or else of another one; none where nobody has any.

    Args:
        adaptive: the wrappers' jobs, of one cell.
        attacking: attacks on defended models, of every experiment.
    """
    labels = {label for job in adaptive if job.attack for label in job.attack.wraps}
    first = adaptive[0]
    by_experiment: dict[str, list[Job]] = {first.experiment: []}
    for job in attacking:
        assert job.attack is not None
        if job.attack.label in labels and not job.attack.wraps and _cell(job)[1:] == _cell(first)[1:]:
            by_experiment.setdefault(job.experiment, []).append(job)
    alike = [each for each in by_experiment.values() if each and _protocol(each[0]) == _protocol(first)]
    return next(iter(alike), [])


def _adapts(job: Job) -> bool:
    """Whether a job's attack wraps a labelled one because of a defense."""
    attack = job.attack
    return (
        attack is not None and bool(attack.wraps) and issubclass(attack.component, Wrapper) and attack.component.adapts
    )


def _cell(job: Job) -> tuple[Any, ...]:
    return job.experiment, type(job.kind), job.dataset.label, job.model.label, job.defense.label


def _protocol(job: Job) -> dict[str, Any]:
    """The protocol that both attackers of a cell face, in JSON types."""
    fixed = job.kind.model_dump(mode="json", exclude={"seeds", "split_seeds", *OF_THE_ATTACKER})
    return {**fixed, "swept": job.kinds.sweep if job.kinds else {}}
