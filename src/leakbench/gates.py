"""Gates: how much better than a blind guess an attack, or a model, must be before its numbers may rank defenses.

A weak attack flatters every defense. So an experiment may ask for a margin per attack, on the undefended gradient, over
an attacker who never looks at it; a cell whose attack misses it is void: its numbers are shown, and marked. A model
that did not learn hides its data, too: kinds of job that train and list no attacks have a gate of their own, under the
kind's name, on a metric of the undefended model over another one of the same record, such as accuracy over chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from leakbench.errors import ConfigError, UnknownName
from leakbench.jobs.base import Job, JobKind, Setting, Variant


class GateSpec(BaseModel):
    """The margin by which an attack must beat a reference attacker on the same victims, without a defense.

    Of a kind of job that runs no attacks: the margin of its metric over another one.

    >>> GateSpec(metric="accuracy", reference="chance", margin=0.1).undefended is None
    True
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    metric: str = Field(description="metric of the jobs that is compared, in its own direction")
    margin: float = Field(
        gt=0, description="in the metric's unit; the 95 % interval of the mean paired difference must lie above"
    )
    reference: str = Field(
        "mean_image",
        description="reference attacker, which runs on the same undefended victims; of a kind of job that runs no "
        "attacks: the metric of the same record that is compared with",
    )
    undefended: str | None = Field(None, description="experiment that holds the undefended cells (default: this one)")


@dataclass(frozen=True)
class Gate:
    """The gate of one cell, ``dataset`` x ``model`` x ``attack`` (all labels), of one kind of job.

    Attributes:
        attack: its label; the name of a kind of job that runs no attacks.
        undefended: the jobs whose records decide; several if seeds are separate jobs.
        reference: those of the reference attacker on the same victims; the same jobs where there is no attacker.
        kind: of all these jobs.
    """

    dataset: str
    model: str
    attack: str
    spec: GateSpec
    undefended: tuple[Job, ...]
    reference: tuple[Job, ...]
    kind: type[JobKind]

    @property
    def reference_metric(self) -> str:
        """The metric of the reference's records that the gate's metric is compared with."""
        return self.spec.metric if self.kind.uses_attacks else self.spec.reference

    def concerns(self, job: Job) -> bool:
        """Whether a job's numbers are void when the gate is missed."""
        attack = job.attack.label if job.attack else job.kind.name
        return (type(job.kind), job.dataset.label, job.model.label, attack) == (
            self.kind,
            self.dataset,
            self.model,
            self.attack,
        )

    def described(self) -> dict[str, Any]:
        """Everything but the records that affects a verdict, in JSON types."""
        return {
            "cell": [self.dataset, self.model, self.attack],
            "asked": [self.spec.metric, self.spec.margin],
            "of": [job.path for job in self.undefended],
            "reference": [job.path for job in self.reference],
        }


def gates_of(
    experiment: str, attack: str, spec: GateSpec, jobs: Iterable[Job], where: Callable[..., str]
) -> Iterator[Gate]:
    """The gates of an experiment's cells with one attack.

    Args:
        experiment: name of the experiment that asks for the gate.
        attack: label of the attack that the gate is for, or the name of a kind of job that runs none.
        spec: the gate's configuration.
        jobs: of every experiment of the paper.
        where: names a place below the gate, from keys, for error messages.

    Raises:
        ConfigError: the experiment does not run this attack, the attack ignores the gradient, the metric does not exist
            or knows no better, or there is no undefended cell, or no reference attacker on its victims.
    """
    gated = [job for job in jobs if job.kind.gated_metrics]
    training = [job for job in gated if job.attack is None and job.kind.name == attack]
    if any(job.experiment == experiment for job in training):
        yield from _of_models(experiment, spec, training, where)
        return
    attacking = [job for job in gated if job.attack]
    cells = [job for job in attacking if job.experiment == experiment]
    attacks = {job.attack.label: job.attack for job in cells if job.attack}
    observing = {label for label, variant in attacks.items() if variant.component.observes}
    if attack not in attacks:
        raise UnknownName("attack", attack, observing, where())
    if attack not in observing:
        raise ConfigError(f"{where()}: a reference attacker ignores the gradient and has no gate; remove this key")
    kind, *others = {type(job.kind): None for job in cells}
    if others:
        raise ConfigError(
            f"{where()}: kinds '{kind.name}' and '{others[0].name}' both attack; give each an experiment of its own"
        )
    _check_metric(kind, spec.metric, where)
    for dataset, model in dict.fromkeys((job.dataset.label, job.model.label) for job in cells):
        beside = [
            job
            for job in attacking
            if (type(job.kind), job.dataset.label, job.model.label) == (kind, dataset, model)
            and job.defense.component.name == "none"
        ]
        judging = _undefended(attacks[attack], beside)
        name = spec.undefended or experiment
        if name not in judging:
            raise ConfigError(
                f"{where('undefended')}: experiment '{name}' attacks no undefended gradient of dataset '{dataset}' and "
                f"model '{model}' with '{attack}'. Allowed: {', '.join(sorted(judging)) or '(none)'}."
            )
        undefended = judging[name]
        reference = _reference(spec.reference, undefended, beside, where("reference"))
        yield Gate(dataset, model, attack, spec, tuple(undefended), tuple(reference), kind)


def _check_metric(kind: type[JobKind], metric: str, where: Callable[..., str]) -> None:
    metrics = {name for name, info in kind.gated_metrics.items() if info.direction != "none"}
    if metric not in metrics:
        raise UnknownName("metric", metric, metrics, where("metric"))


def _of_models(experiment: str, spec: GateSpec, jobs: Sequence[Job], where: Callable[..., str]) -> Iterator[Gate]:
    """The gates of an experiment's cells on their undefended models.

    Args:
        experiment: name of the experiment that asks for the gates.
        spec: their configuration.
        jobs: of one kind that runs no attacks, of every experiment.
        where: names a place below the gate, from keys, for error messages.

    Raises:
        ConfigError: a metric does not exist, or there is no undefended model.
    """
    kind = type(jobs[0].kind)
    _check_metric(kind, spec.metric, where)
    others = kind.gated_metrics.keys() - {spec.metric}
    if spec.reference not in others:
        raise UnknownName("metric", spec.reference, others, where("reference"))
    name = spec.undefended or experiment
    cells = [(job.dataset.label, job.model.label) for job in jobs if job.experiment == experiment]
    for dataset, model in dict.fromkeys(cells):
        undefended = [
            job
            for job in jobs
            if (job.dataset.label, job.model.label) == (dataset, model) and job.defense.component.name == "none"
        ]
        judging = [job for job in undefended if job.experiment == name]
        if not judging:
            allowed = ", ".join(sorted({job.experiment for job in undefended})) or "(none)"
            raise ConfigError(
                f"{where('undefended')}: experiment '{name}' trains no undefended model '{model}' on data set "
                f"'{dataset}'. Allowed: {allowed}."
            )
        yield Gate(dataset, model, kind.name, spec, tuple(judging), tuple(judging), kind)


def _undefended(attack: Variant[Any], jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Per experiment, the jobs that run an attack on the undefended gradient; else those of the attack it wraps."""
    by_experiment: dict[str, dict[str, list[Job]]] = {}
    for job in jobs:
        if job.attack:
            by_experiment.setdefault(job.experiment, {}).setdefault(job.attack.label, []).append(job)
    labels = judged_by(attack)
    return {
        name: next(cells[label] for label in labels if label in cells)
        for name, cells in by_experiment.items()
        if cells.keys() & set(labels)
    }


def judged_by(attack: Variant[Any]) -> list[str]:
    """Labels of the attacks whose undefended cell judges the strength of ``attack``, the best choice first.

    A wrapper that adapts another attack to a defense may have no undefended cell.
    """
    return [attack.label, *attack.wraps]


def _reference(label: str, undefended: Sequence[Job], jobs: Sequence[Job], where: str) -> list[Job]:
    """The jobs that run a reference attacker on the victims of others: in their experiment, or else in another.

    Raises:
        ConfigError: it looks at the gradient, or nobody runs it on these victims.
    """
    name, cell = undefended[0].experiment, undefended[0]
    by_experiment: dict[str, list[Job]] = {name: []}
    for job in jobs:
        if job.attack and job.attack.label == label:
            if job.attack.component.observes:
                raise ConfigError(f"{where}: attack '{label}' looks at the gradient, and is no blind guess")
            by_experiment.setdefault(job.experiment, []).append(job)
    wanted = _faced(undefended)
    for candidates in by_experiment.values():
        if wanted <= _faced(candidates):
            return candidates
    raise ConfigError(
        f"{where}: experiment '{name}' lacks attack '{label}' on the undefended gradient of dataset "
        f"'{cell.dataset.label}' and model '{cell.model.label}', and no other experiment has it on the same victims "
        f"({', '.join(['seeds', *cell.kind.victim_fields])})"
    )


def _faced(jobs: Iterable[Job]) -> set[tuple[int, Victims]]:
    """Seeds with the victims that jobs attack."""
    return {(seed, victims_of(job, setting)) for job in jobs for setting, _ in job.combinations() for seed in job.seeds}


Victims = tuple[Any, ...]


def victims_of(job: Job, setting: Setting) -> Victims:
    """The values, swept or fixed, of the fields that decide the victims of a job's replicates with a setting."""
    return tuple(value_of(job, setting, name) for name in job.kind.victim_fields)


def value_of(job: Job, setting: Setting, name: str) -> Any:
    """The value of a field of a job's protocol, which a setting may sweep."""
    return setting.get(name, getattr(job.kind, name))
