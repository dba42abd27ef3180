"""Gates: the quality that an attack must reach on the undefended gradient before its numbers may rank defenses.

A weak attack flatters every defense. So an experiment may ask for a quality per attack; a cell whose attack misses it
is void: its numbers are shown, and marked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from leakbench.attacks.adaptive import Adaptive
from leakbench.errors import ConfigError, UnknownName
from leakbench.jobs.base import Job, Variant


class GateSpec(BaseModel):
    """The bound that the median of a metric must reach on the undefended gradient."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    metric: str = Field(description="metric of attack jobs; its median over seeds and samples, or victims, is judged")
    at_least: float | None = Field(None, description="smallest median that passes; this or at_most")
    at_most: float | None = Field(None, description="largest median that passes; this or at_least")
    undefended: str | None = Field(None, description="experiment that holds the undefended cells (default: this one)")

    @model_validator(mode="after")
    def _one_bound(self) -> GateSpec:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("a gate needs exactly one of at_least and at_most")
        return self

    @property
    def bound(self) -> str:
        """``>= 18``, or ``<= 0.05``."""
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"

    def passes(self, quality: float) -> bool:
        """Whether a quality reaches the bound; NaN does not."""
        if self.at_least is not None:
            return quality >= self.at_least
        assert self.at_most is not None
        return quality <= self.at_most


@dataclass(frozen=True)
class Gate:
    """The gate of one cell, ``dataset`` x ``model`` x ``attack`` (all labels), of one kind of job.

    Attributes:
        undefended: the jobs whose records decide; several if seeds are separate jobs.
    """

    dataset: str
    model: str
    attack: str
    spec: GateSpec
    undefended: tuple[Job, ...]
    kind: str

    def concerns(self, job: Job) -> bool:
        """Whether a job's numbers are void when the gate is missed."""
        attack = job.attack.label if job.attack else None
        return (job.kind.name, job.dataset.label, job.model.label, attack) == (
            self.kind,
            self.dataset,
            self.model,
            self.attack,
        )

    def described(self) -> dict[str, Any]:
        """Everything but the records that affects a verdict, in JSON types."""
        return {
            "cell": [self.dataset, self.model, self.attack],
            "asked": [self.spec.metric, self.spec.at_least, self.spec.at_most],
            "of": [job.path for job in self.undefended],
        }


def gates_of(
    experiment: str, attack: str, spec: GateSpec, jobs: Iterable[Job], where: Callable[..., str]
) -> Iterator[Gate]:
    """The gates of an experiment's cells with one attack.

    Args:
        experiment: name of the experiment that asks for the gate.
        attack: label of the attack that the gate is for.
        spec: the gate's configuration.
        jobs: of every experiment of the paper.
        where: names a place below the gate, from keys, for error messages.

    Raises:
        ConfigError: the experiment does not run this attack, the attack ignores the gradient, the metric does not exist
            or is bounded from the wrong side, or there is no undefended cell.
    """
    attacking = [job for job in jobs if job.kind.gated_metrics]
    cells = [job for job in attacking if job.experiment == experiment]
    attacks = {job.attack.label: job.attack for job in cells if job.attack}
    observing = {label for label, variant in attacks.items() if variant.component.observes}
    if attack not in attacks:
        raise UnknownName("attack", attack, observing, where())
    if attack not in observing:
        raise ConfigError(f"{where()}: a reference attacker ignores the gradient and has no gate; remove this key")
    kind, *others = {job.kind.name: type(job.kind) for job in cells}.values()
    if others:
        raise ConfigError(
            f"{where()}: kinds '{kind.name}' and '{others[0].name}' both attack; give each an experiment of its own"
        )
    metrics = kind.gated_metrics
    if spec.metric not in metrics:
        raise UnknownName("metric", spec.metric, metrics, where("metric"))
    given, other, wrong = (
        ("at_least", "at_most", "lower") if spec.at_most is None else ("at_most", "at_least", "higher")
    )
    if metrics[spec.metric].direction == wrong:
        raise ConfigError(f"{where(given)}: attacks are better where {spec.metric} is {wrong}; give {other}")
    for dataset, model in dict.fromkeys((job.dataset.label, job.model.label) for job in cells):
        same = [job for job in attacking if job.kind.name == kind.name]
        beside = _undefended(attacks[attack], dataset, model, same)
        name = spec.undefended or experiment
        if name not in beside:
            raise ConfigError(
                f"{where('undefended')}: experiment '{name}' attacks no undefended gradient of dataset '{dataset}' and "
                f"model '{model}' with '{attack}'. Allowed: {', '.join(sorted(beside)) or '(none)'}."
            )
        yield Gate(dataset, model, attack, spec, tuple(beside[name]), kind.name)


def _undefended(attack: Variant[Any], dataset: str, model: str, jobs: Iterable[Job]) -> dict[str, list[Job]]:
    """Per experiment, the jobs that run an attack on the undefended gradient; else, those of the attack it wraps."""
    by_experiment: dict[str, dict[str, list[Job]]] = {}
    for job in jobs:
        if (job.dataset.label, job.model.label, job.defense.component.name) != (dataset, model, "none"):
            continue
        if job.attack and not issubclass(job.attack.component, Adaptive):  # there is no defense to adapt to
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
