"""The jobs of one paper at one scale."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from leakbench.adapted import AdaptedCell, adapted_cells
from leakbench.comparing import Comparison, left_out
from leakbench.errors import ConfigError, UnknownName
from leakbench.gates import Gate, gates_of
from leakbench.jobs.base import JOB_KINDS, Job, JobKind, Variant
from leakbench.planning.layers import Layers
from leakbench.planning.mistakes import Where, check_known, validated
from leakbench.planning.schemas import ExperimentSpec, KindSpec, PaperSpec
from leakbench.planning.variants import GRID, DeclaredVariants, swept

_Sources = dict[tuple[str, str], dict[str, list[Job]]]
"""Jobs that others may read: by kind and label of the data set, then by experiment."""


class _Axes(NamedTuple):
    """The grid of an experiment, without attacks and without compared defenses."""

    datasets: Sequence[Variant[Any]]
    models: Sequence[Variant[Any]]
    defenses: Sequence[Variant[Any]]


class Listed(NamedTuple):
    """The labels on one axis of an experiment's grid.

    Attributes:
        planned: at this scale.
        known: those, and others in files that lie below and are replaced at this scale.
        place: the file that has the last word, and the keys there.
    """

    planned: frozenset[str]
    known: frozenset[str]
    place: str


class PaperPlan:
    """The jobs of one paper at one scale.

    Args:
        scale: name of the scale.
        name: name of the paper.
        layers: the paper's grid, with everything that lies over it.
        compared: the defenses that ``compare`` names.
        ensemble: the attacks that ``ensemble`` names.
    """

    def __init__(
        self,
        scale: str,
        name: str,
        layers: Layers,
        compared: Sequence[Variant[Any]],
        ensemble: Sequence[Variant[Any]] = (),
    ) -> None:
        self._scale = scale
        self._name = name
        self._layers = layers
        self._where = layers.where
        self._compared, self._ensemble = compared, ensemble
        self._comparisons: list[Comparison] = []
        self._gates: dict[str, list[Gate]] = {}
        self._adapted: dict[str, list[AdaptedCell]] = {}
        self.spec = validated(PaperSpec, layers.merged, self._where())
        self._variants = DeclaredVariants(self.spec.variants, self._where)

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """The jobs by their records' paths.

        Raises:
            ConfigError: the configuration names something that does not exist.
        """
        jobs: dict[str, Job] = {}
        for job in self._grids():
            if job.path in jobs:
                where = self._where("experiments", job.experiment)(self._repeating(job.experiment))
                raise ConfigError(
                    f"{where}: two jobs would write {job.path}; "
                    "a label is listed twice, or an attack is labelled like a kind of job"
                )
            jobs[job.path] = job
        sources: _Sources = {}
        for job in jobs.values():
            of_kind = sources.setdefault((job.kind.name, job.dataset.label), {})
            of_kind.setdefault(job.experiment, []).append(job)
        for job in [*jobs.values()]:
            self._link(job, jobs, sources)
        for experiment in self.spec.experiments:
            self._gates[experiment] = list(self._gates_of(experiment, jobs.values()))  # mistakes surface now
        return jobs

    def _repeating(self, experiment: str) -> str:
        """The key of an experiment that lists a label twice."""
        spec = self.spec.experiments[experiment]
        return next((axis for axis in GRID if len(set(getattr(spec, axis))) < len(getattr(spec, axis))), "jobs")

    def listed(self, experiment: str, axis: str) -> Listed:
        """The labels of an experiment on an axis: a key of :data:`~leakbench.planning.variants.REGISTRIES`.

        Raises:
            KeyError: no such experiment.
        """
        spec = self.spec.experiments[experiment]
        lists: list[tuple[str, ...]] = [("experiments", experiment, axis)]
        if axis in GRID:
            planned = set(getattr(spec, axis))
        else:
            planned = {label for kind in spec.jobs.values() for label in kind.attacks}
            lists = [("experiments", experiment, "jobs", kind, axis) for kind in self._kinds(experiment)]
        below = {label for keys in lists for listed in self._layers.values(*keys) for label in listed}
        keys = next((keys for keys in lists if any(self._layers.values(*keys))), ("experiments", experiment))
        return Listed(frozenset(planned), frozenset(planned | below), self.place(*keys))

    def _kinds(self, experiment: str) -> set[str]:
        """The kinds of job of an experiment in any layer, also those that a scale leaves out."""
        return {kind for jobs in self._layers.values("experiments", experiment, "jobs") for kind in jobs}

    def place(self, *keys: str) -> str:
        """The file that has the last word on some keys, and the keys there."""
        return self._where(*keys)()

    @property
    def comparisons(self) -> list[Comparison]:
        """Placements of the compared defenses, and reasons where there is none."""
        return self._comparisons if self.jobs else []  # which are noted while jobs are made

    @cached_property
    def _by_experiment(self) -> dict[str, list[Job]]:
        by_experiment: dict[str, list[Job]] = {}
        for job in self.jobs.values():
            by_experiment.setdefault(job.experiment, []).append(job)
        return by_experiment

    def experiment_jobs(self, experiment: str) -> list[Job]:
        """The jobs of one experiment, in the order of the grid."""
        return [*self._by_experiment.get(experiment, ())]

    def experiment_gates(self, experiment: str) -> list[Gate]:
        """Requirements on the attacks of one experiment on the undefended gradient, by cell."""
        return [*self._gates[experiment]] if self.jobs else []  # which are made with the jobs

    def adapted_cells(self, experiment: str) -> list[AdaptedCell]:
        """The cells of one experiment in which attacks wrap others, with the jobs to compare."""
        if experiment not in self._adapted:
            gates = self.experiment_gates(experiment)
            self._adapted[experiment] = list(adapted_cells(gates, self.jobs.values(), experiment))
        return [*self._adapted[experiment]]

    def _gates_of(self, experiment: str, jobs: Collection[Job]) -> Iterator[Gate]:
        experiments = self.spec.experiments
        if not all(getattr(experiments[experiment], axis) for axis in GRID):
            return  # the scale leaves the experiment out
        attacks = self.listed(experiment, "attacks")
        kinds = self._kinds(experiment) - experiments[experiment].jobs.keys()
        for attack, spec in experiments[experiment].gates.items():
            if attack in attacks.known - attacks.planned or attack in kinds:
                continue  # this scale alone leaves the attack, or the kind of job, out
            where = self._where("experiments", experiment, "gates", attack)
            if spec.undefended is not None:
                check_known("experiment", spec.undefended, list(experiments), where("undefended"))
            yield from gates_of(experiment, attack, spec, jobs, where)

    def _grids(self) -> Iterator[Job]:
        self._comparisons.clear()
        for name, experiment in self.spec.experiments.items():
            axes = _Axes(*([*self._axis(name, experiment, axis)] for axis in GRID))
            for kind_name, spec in experiment.jobs.items():
                yield from self._cells(name, axes, kind_name, spec)

    def _axis(self, name: str, experiment: ExperimentSpec, axis: str) -> Iterator[Variant[Any]]:
        for label in getattr(experiment, axis):
            yield self._variants.get(axis, label, ("experiments", name, axis))

    def _cells(self, experiment: str, axes: _Axes, kind_name: str, spec: KindSpec) -> Iterator[Job]:
        """The jobs of one kind in one experiment."""
        keys = ("experiments", experiment, "jobs", kind_name)
        where = self._where(*keys)
        kinds = swept(kind_name, JOB_KINDS.get(kind_name, where()), spec.model_extra or {}, where)
        _check_protocol_sweep(kinds, axes.defenses, where)
        kind = kinds.first
        _check_attacks(kind, spec, where)
        attacks: list[Variant[Any] | None] = [
            self._variants.get("attacks", label, (*keys, "attacks")) for label in spec.attacks
        ] or [None]
        if self.spec.experiments[experiment].ensemble and kind.uses_attacks:
            attacks += self._stronger()
        defenses = [*axes.defenses, *self._joining(experiment, axes, kinds)]
        undefended = {variant.label for variant in axes.defenses if variant.component.name == "none"}
        for dataset, model, defense, attack in itertools.product(axes.datasets, axes.models, defenses, attacks):
            if attack and not attack.component.observes and defense.label not in undefended:
                continue  # a reference attacker's numbers are the same for all defenses
            for part, seeds in _parts(kind):
                yield Job(
                    scale=self._scale,
                    paper=self._name,
                    experiment=experiment,
                    dataset=dataset,
                    model=model,
                    defense=defense,
                    attack=attack,
                    kind=kind,
                    part=part,
                    seeds=seeds,
                    kinds=kinds if kinds.sweep else None,
                )

    def _stronger(self) -> Iterator[Variant[Any]]:
        """The attacks of the configuration, which join an ensemble."""
        for attack in self._ensemble:
            if attack.sweep:
                raise ConfigError(
                    f"ensemble: '{attack.label}' sweeps {', '.join(attack.sweep)}; an attack of a track has one "
                    "strength, or chooses it (tuned)"
                )
            if attack.label in self.spec.variants.attacks:
                raise ConfigError(
                    f"ensemble: '{attack.label}' is an attack of paper '{self._name}' already; "
                    f"write {{name: {attack.component.name}, label: another}}"
                )
            yield attack

    def _joining(self, experiment: str, axes: _Axes, kinds: Variant[JobKind]) -> Iterator[Variant[Any]]:
        """The compared defenses that belong to the jobs of one kind of an experiment."""
        taken = {*self.spec.variants.defenses, *(variant.label for variant in axes.defenses)}
        for defense in self._compared:
            if defense.label in taken:
                raise ConfigError(
                    f"compare: '{defense.label}' is a defense of paper '{self._name}' already; "
                    f"write {{name: {defense.component.name}, label: another}}"
                )
            reason = left_out(defense, axes.defenses, axes.datasets, kinds)
            self._comparisons.append(Comparison(defense.label, self._name, experiment, kinds.label, reason))
            if reason is None:
                yield defense

    def _link(self, job: Job, jobs: dict[str, Job], sources: _Sources) -> Job:
        """Give a job those whose records it uses, which may use others in turn; returns it."""
        reads = job.kind.reads(job.attack.first if job.attack else None)
        if reads and not jobs[job.path].uses:
            used = {kind: self._used(job, kind, key, sources) for kind, key in reads.items()}
            uses = {kind: self._link(other, jobs, sources) for kind, other in used.items()}
            jobs[job.path] = replace(job, uses=uses)
        return jobs[job.path]

    def _used(self, job: Job, kind: str, key: str, sources: _Sources) -> Job:
        """The one job of a kind on the data set of ``job``, in the experiment that the field ``key`` names.

        Of several the one with the model of ``job``, and with its defense where that matters; of several of those the
        one with its seeds.
        """
        where = self._where("experiments", job.experiment, "jobs", job.kind.name)(key)
        if job.kinds and key in job.kinds.sweep:
            raise ConfigError(f"{where}: '{key}' cannot be swept; make an experiment of each")
        candidates = sources.get((kind, job.dataset.label), {})
        experiment = str(getattr(job.kind, key))
        if experiment not in candidates:
            what = f"experiment with a job '{kind}' on data set '{job.dataset.label}'"
            raise UnknownName(what, experiment, candidates, where)
        matching = candidates[experiment]
        if len(matching) > 1:
            matching = [other for other in matching if other.model.label == job.model.label]
        if len(matching) > 1 and matching[0].kind.of_cells:
            matching = [other for other in matching if other.defense.label == job.defense.label]
        if len(matching) > 1:
            matching = [other for other in matching if other.part == job.part]
        if len(matching) != 1:
            raise ConfigError(
                f"{where}: experiment '{experiment}' has several jobs '{kind}' on data set '{job.dataset.label}', and "
                f"not one for model '{job.model.label}' and {job.part}; leave it one model and one defense, or the "
                "models and seeds of the jobs that read it"
            )
        if reason := matching[0].kind.mismatch(matching[0], job):
            raise ConfigError(f"{where}: experiment '{experiment}' {reason}")
        return matching[0]


def _check_protocol_sweep(kinds: Variant[JobKind], defenses: Iterable[Variant[Any]], where: Where) -> None:
    """Reject sweeps of seeds, which are no setting, and of names that a defense sweeps too."""
    for key in kinds.sweep:
        if key in JobKind.model_fields:
            allowed = sorted(set(kinds.component.model_fields) - set(JobKind.model_fields))
            raise ConfigError(f"{where(key)}: '{key}' cannot be swept. Allowed: {', '.join(allowed)}.")
        for defense in defenses:
            if key in defense.sweep:
                raise ConfigError(
                    f"{where(key)}: defense '{defense.label}' sweeps a parameter of this name too; "
                    "sweep one of them, and list the values of the other as variants or experiments"
                )


def _check_attacks(kind: JobKind, spec: KindSpec, where: Where) -> None:
    """Reject a kind of job that attacks without a list of attacks, and a list for one that does not."""
    if kind.uses_attacks != bool(spec.attacks):
        needed = "needs a list of attacks" if kind.uses_attacks else "runs no attacks; remove the key 'attacks'"
        raise ConfigError(f"{where('attacks')}: kind '{kind.name}' {needed}")


def _parts(kind: JobKind) -> list[tuple[str, tuple[int, ...]]]:
    """Names of a cell's parts, with the seeds of each."""
    seeds = tuple(range(kind.seeds))
    return [(f"seed{seed}", (seed,)) for seed in seeds] if kind.split_seeds else [("all", seeds)]
