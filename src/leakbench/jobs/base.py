"""Jobs: cells of an experiment's grid, their paths, and the kinds of work that turn them into records."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import Field

from leakbench.effort import Effort, Unit
from leakbench.errors import Infeasible
from leakbench.lazy import torch
from leakbench.models.sizes import parameter_counts
from leakbench.records import RESULTS, MetricInfo, Outcome, Record, Replicate, digest
from leakbench.registry import Component, Registry, components_in

if TYPE_CHECKING:
    from leakbench.attacks.base import Attack, Grant
    from leakbench.data.base import Dataset
    from leakbench.defenses.base import ActsOn, Defense
    from leakbench.models.base import Model
    from leakbench.plugins import Source

C = TypeVar("C", bound=Component)
S = TypeVar("S")
Setting = Mapping[str, float | int | str | bool]


@dataclass(frozen=True)
class Variant(Generic[C]):
    """A component with parameters, under the label that paths, tables and figures use.

    ``sweep`` maps parameters to lists of values; the variant stands for every combination of them. ``wraps`` holds the
    labels of the attacks inside a wrapper, from the outside in.
    """

    label: str
    component: type[C]
    parameters: Mapping[str, Any]
    sweep: Mapping[str, list[Any]]
    wraps: tuple[str, ...] = ()

    def settings(self) -> Iterator[tuple[Setting, C]]:
        """Every combination of the swept parameters, with the component it makes."""
        for values in itertools.product(*self.sweep.values()):
            setting = dict(zip(self.sweep, values, strict=True))
            yield setting, self.component(**self.parameters, **setting)

    @cached_property
    def first(self) -> C:
        """The component with the first combination of the swept parameters."""
        return next(self.settings())[1]

    @property
    def count(self) -> int:
        """Number of combinations of the swept parameters."""
        return math.prod(map(len, self.sweep.values()))

    def single(self) -> C:
        """The component of a variant that sweeps nothing."""
        ((_, component),) = self.settings()
        return component

    def resolved(self) -> dict[str, Any]:
        """Everything that affects numbers, in JSON types; defaults are filled in."""
        fixed = {key: value for key, value in self.first.parameters().items() if key not in self.sweep}
        return {
            "label": self.label,
            "name": self.component.name,
            "version": self.component.version,
            "parameters": fixed,
            "sweep": {key: list(values) for key, values in self.sweep.items()},
        }

    @property
    def digest(self) -> str:
        """Digest of everything that affects numbers."""
        return digest(self.resolved())


@dataclass(frozen=True, kw_only=True)
class Job:
    """One cell: dataset x model x defense x attack, with the kind of work and its protocol.

    >>> from leakbench.data.embedded import Digits
    >>> from leakbench.defenses.noise import GaussianNoise
    >>> from leakbench.jobs.fisher import FisherJob
    >>> from leakbench.models.convnets import SimpleConvNet
    >>> job = Job(
    ...     scale="smoke",
    ...     paper="example",
    ...     experiment="noise",
    ...     dataset=Variant("digits16", Digits, {"size": 16}, {}),
    ...     model=Variant("small", SimpleConvNet, {"width": 2}, {}),
    ...     defense=Variant("gn", GaussianNoise, {}, {"scale": [0.01, 0.1]}),
    ...     attack=None,
    ...     kind=FisherJob(clients=4, batch_size=2),
    ...     part="all",
    ...     seeds=(0, 1),
    ... )
    >>> job.path
    'results/smoke/example/noise/digits16/small/gn/fisher/all.json'
    >>> list(job.kind.settings_of(job))
    [{'scale': 0.01}, {'scale': 0.1}]

    Attributes:
        kind: the kind of work; where the protocol sweeps fields, their first combination.
        kinds: all combinations, where the protocol sweeps fields.
        uses: other jobs, by their kind, whose records this one reads; they are a part of its identity.
        records: those records, by kind, while the job runs.
        kept: their tensors, likewise.
    """

    scale: str
    paper: str
    experiment: str
    dataset: Variant[Dataset]
    model: Variant[Model]
    defense: Variant[Defense]
    attack: Variant[Attack] | None
    kind: JobKind
    part: str
    seeds: tuple[int, ...]
    kinds: Variant[JobKind] | None = None
    uses: Mapping[str, Job] = field(default_factory=dict)
    records: Mapping[str, Record] = field(default_factory=dict)
    kept: Mapping[str, Mapping[str, torch.Tensor]] = field(default_factory=dict)

    def combinations(self) -> Iterator[tuple[Setting, Job]]:
        """Every combination of the swept protocol fields, with a job whose protocol sweeps nothing."""
        if self.kinds is None:
            yield {}, self
            return
        for setting, kind in self.kinds.settings():
            yield setting, replace(self, kind=kind, kinds=None)

    @property
    def metrics(self) -> dict[str, MetricInfo]:
        """Metrics of all combinations, by name: see :meth:`JobKind.metrics_of`."""
        return {name: info for _, job in self.combinations() for name, info in job.kind.metrics_of(job).items()}

    @property
    def effort(self) -> Effort:
        """The effort of all combinations: see :meth:`JobKind.effort_swept`."""
        return self.kind.effort_swept(self)

    @property
    def shared_effort(self) -> dict[str, Effort]:
        """The parts that other jobs share, of all combinations: see :meth:`JobKind.shared_effort`."""
        return {work: effort for _, job in self.combinations() for work, effort in job.kind.shared_effort(job).items()}

    @property
    def volume(self) -> float:
        """The volume of its record and tensors, over all combinations: see :meth:`JobKind.volume`."""
        return sum(job.kind.volume(job) for _, job in self.combinations())

    def parameter_counts(self) -> dict[str, int]:
        """Number of parameters in each tensor of its model, in the model's order; allocates none of them."""
        dataset = self.dataset.single()
        return parameter_counts(self.model.single(), dataset.shape, dataset.classes)

    def attack_effort(self, samples: int) -> Effort:
        """The effort of one reconstruction: see :meth:`~leakbench.attacks.base.Attack.effort`.

        Zero where the attack cannot face the defense.
        """
        assert self.attack is not None
        try:
            return self.attack.single().against(self.defense.first.adaptive).effort(samples)
        except Infeasible:
            return Effort(0, 0)

    def faced(self, defenses: Mapping[int, Defense]) -> Iterator[tuple[Attack, list[int]]]:
        """The attack as it is adapted to settings of the defense, and the places of these; one for most defenses.

        Args:
            defenses: settings by their places among all.

        Raises:
            Infeasible: it cannot face the defense.
        """
        assert self.attack is not None
        attack = self.attack.single()
        rest = dict(defenses)
        while rest:
            declared = next(iter(rest.values())).adaptive
            places = [place for place, defense in rest.items() if defense.adaptive == declared]
            yield attack.against(declared), places
            rest = {place: defense for place, defense in rest.items() if place not in places}

    def of_one_model(self, settings: list[S]) -> list[list[S]]:
        """Settings of the defense, in groups under which clients hold one model: each alone if it makes one."""
        return [[each] for each in settings] if self.defense.component.overrides("extend") else [settings]

    def without_numbers(
        self, outcome: Outcome, *, seeds: Iterable[int] | None = None, settings: Iterable[Setting] | None = None
    ) -> list[Replicate]:
        """Replicates without metrics, for the reason in their outcome: seed after seed.

        Args:
            outcome: of all of them; diverged or infeasible.
            seeds: all of the job's by default.
            settings: of every seed; those of :meth:`JobKind.settings_of` by default.
        """
        chosen = list(self.kind.settings_of(self) if settings is None else settings)
        metrics = self.kind.metrics_of(self)
        return [
            Replicate(
                seed=seed,
                setting=dict(setting),
                outcome=outcome,
                metrics=dict.fromkeys(metrics),
                reasons=dict.fromkeys(metrics, outcome.reason or ""),
            )
            for seed, setting in itertools.product(self.seeds if seeds is None else seeds, chosen)
        ]

    @cached_property
    def path(self) -> str:
        """Path of the record, relative to the root of the project."""
        parts = (
            self.scale,
            self.paper,
            self.experiment,
            self.dataset.label,
            self.model.label,
            self.defense.label,
            self.kind.folder(self.attack.label if self.attack else ""),
        )
        return str(PurePosixPath(RESULTS, *parts, f"{self.part}.json"))

    def resolved(self) -> dict[str, Any]:
        """All parameters, in JSON types: the job's identity.

        The seeds are those of this part alone, so more seeds leave the parts of split cells as they are.
        """
        swept = self.kinds.sweep if self.kinds else {}
        fixed = {
            key: value
            for key, value in self.kind.parameters().items()
            if key not in JobKind.model_fields and key not in swept
        }
        kind = {"name": self.kind.name, "version": self.kind.version, "protocol": fixed}
        if swept:
            kind["sweep"] = {key: list(values) for key, values in swept.items()}
        resolved: dict[str, Any] = {
            "scale": self.scale,
            "paper": self.paper,
            "experiment": self.experiment,
            "part": self.part,
            "seeds": list(self.seeds),
            "kind": kind,
            "dataset": self.dataset.resolved(),
            "model": self.model.resolved(),
            "defense": self.defense.resolved(),
            "attack": self._resolved_attack(),
        }
        if self.plugins:
            resolved["plugins"] = sorted([source.name, source.digest] for source in self.plugins)
        if self.uses:
            resolved["uses"] = {kind: {"path": job.path, "digest": job.digest} for kind, job in self.uses.items()}
        return resolved

    def _resolved_attack(self) -> dict[str, Any] | None:
        """The attack; where it adapts to the defense, also the adapted one (``against``), with versions of wrappers."""
        if self.attack is None:
            return None
        resolved = self.attack.resolved()
        facing = self._facing
        if facing and facing != self.attack.first:
            resolved["against"] = {"name": facing.name, "version": facing.version, **facing.parameters()}
        return resolved

    @cached_property
    def _facing(self) -> Attack | None:
        """The attack adapted to the defense; None where none exists."""
        try:
            return self.attack.first.against(self.defense.first.adaptive) if self.attack else None
        except Infeasible:
            return None

    @cached_property
    def plugins(self) -> list[Source]:
        """The plug-ins, each once, that registered components of the job, nested ones included."""
        variants: list[Variant[Any] | None] = [self.dataset, self.model, self.defense, self.attack]
        used = components_in([self.kind, self._facing, *(variant.first for variant in variants if variant)])
        sources = [component.source for component in used if component.source]
        return [*{(source.name, source.digest): source for source in sources}.values()]

    @cached_property
    def digest(self) -> str:
        """Short hash of :meth:`resolved`; a job is rerun when it changes."""
        return digest(self.resolved())


@dataclass(frozen=True)
class Findings:
    """The replicates of a job, and tensors to keep beside its record, which the runner writes.

    >>> replicate = Replicate(seed=0, metrics={"psnr": [18.2, 21.7]})
    >>> Findings([replicate], {"seed0/victims": torch.zeros(2, 1, 8, 8)}).replicates[0].outcome.status
    'ok'
    """

    replicates: list[Replicate]
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)


EVERYTHING: frozenset[ActsOn] = frozenset({"data", "samples", "updates", "model"})
"""Every part of a step that defenses change."""


class JobKind(Component):
    """A kind of work, with its protocol as fields.

    Override :meth:`run`, and :attr:`metrics`:

    >>> class Flips(JobKind):
    ...     metrics = {"heads": MetricInfo(unit="part of the flips", direction="none")}
    ...     flips: int = Field(ge=1, description="flips per seed")
    ...
    ...     def run(self, job, device):
    ...         draws = {seed: torch.Generator().manual_seed(seed) for seed in job.seeds}
    ...         heads = {seed: torch.rand(self.flips, generator=draw) < 0.5 for seed, draw in draws.items()}
    ...         return Findings([Replicate(seed=seed, metrics={"heads": float(each.float().mean())})
    ...                          for seed, each in heads.items()])
    >>> Flips(flips=10, seeds=3).parameters()
    {'seeds': 3, 'split_seeds': False, 'flips': 10}
    """

    memory_mb: ClassVar[int] = 8000
    """Memory that a cluster gives to the first attempt at such a job, in MB."""
    minutes: ClassVar[int] = 60
    """Time limit of that attempt."""
    on_gpu: ClassVar[bool] = True
    """Whether a cluster gives such a job a GPU."""
    uses_attacks: ClassVar[bool] = False
    """Whether such a job runs an attack; experiments list attacks for these kinds and for no others."""
    metrics: ClassVar[Mapping[str, MetricInfo]] = {}
    """Metrics of every job of the kind; see :meth:`metrics_of`."""
    unit: ClassVar[Unit] = "passes"
    """Unit of :meth:`effort`."""
    faces: ClassVar[frozenset[ActsOn]] = frozenset({"data", "samples", "updates"})
    """Values of :attr:`~leakbench.defenses.base.Defense.acts_on` that such a job can judge: ``compare`` puts defenses
    there. Others that an experiment lists run anyway, and may be infeasible; those of models are (:func:`unable`)."""
    gated_metrics: ClassVar[Mapping[str, MetricInfo]] = {}
    """Metrics that gates may ask of such jobs; empty for kinds that do not attack."""
    victim_fields: ClassVar[tuple[str, ...]] = ()
    """Fields of the protocol that decide whom a seed's attack faces, ``clients`` among them; of kinds that attack."""
    grants: ClassVar[Grant | None] = None
    """Side knowledge that such jobs train for attackers; see :meth:`granted`."""
    of_cells: ClassVar[bool] = False
    """Whether it is of one model and one defense, and serves attackers of these alone."""

    seeds: int = Field(1, ge=1, description="number of repetitions; seed s is repetition s of every cell")
    split_seeds: bool = Field(False, description="one job per seed instead of one for all")

    @classmethod
    def folder(cls, attack: str) -> str:
        """Name of the folder of a record, within that of the defense: the kind, and the attack where it runs one.

        Args:
            attack: label of the attack; empty for kinds that run none.
        """
        return f"{cls.name}-{attack}" if cls.uses_attacks else cls.name

    def reads(self, attack: Attack | None) -> Mapping[str, str]:
        """Kinds of other jobs whose records are read, with the field that names their experiment.

        They are jobs of the same paper on the same data set.
        """
        return {}

    def granted(
        self, kept: Mapping[str, torch.Tensor], dataset: Dataset, rows: Sequence[tuple[int, int]], device: torch.device
    ) -> Any:
        """The side knowledge :attr:`grants`, for attackers.

        Args:
            kept: tensors of the job's record, by name.
            dataset: of the job.
            rows: of every observation the seed, and the place of its setting among those of the defense.
            device: of the attackers.

        Raises:
            Infeasible: some of it is missing, since its training diverged.
        """
        raise NotImplementedError

    def mismatch(self, source: Job, reader: Job) -> str:
        """Why what ``source``, a job of this kind, trains does not serve ``reader``; empty if it does."""
        return ""

    @property
    def distinct_victims(self) -> bool:
        """Whether each seed has victims of its own, so that they are no factor beside seeds."""
        return False

    def metrics_of(self, job: Job) -> Mapping[str, MetricInfo]:
        """Metrics of the replicates of ``job``, by name: :attr:`metrics`, unless they depend on the protocol."""
        return self.metrics

    def settings_of(self, job: Job) -> Iterator[Setting]:
        """Settings of the replicates of ``job``, for each of its seeds: by default those of its defense."""
        for setting, _ in job.defense.settings():
            yield setting

    def lengths_of(self, job: Job) -> Mapping[str, int]:
        """Maximum lengths of lists of values, by the axis of their metrics; by metric where one has its own."""
        return {}

    def effort(self, job: Job) -> Effort:
        """The effort of ``job``, which sweeps no field of the protocol: positive, from the plan alone.

        Constant factors need not be counted, since measured rates contain them: how often an attack differentiates,
        the overhead of a defense. By default one pass for every seed and setting.
        """
        return Effort(1, 1).times(len(job.seeds) * job.defense.count)

    @property
    def counts_seconds(self) -> bool:
        """Whether tables hold the seconds of its replicates beside their metrics."""
        return False

    def shared_effort(self, job: Job) -> dict[str, Effort]:
        """The parts of :meth:`effort` that the first of several jobs does for all, each under what names the work."""
        return {}

    def volume(self, job: Job) -> float:
        """Amount of numbers in its record and its tensors, up to a factor, which is measured.

        By default one for every seed and setting.
        """
        return float(len(job.seeds) * job.defense.count)

    def effort_swept(self, job: Job) -> Effort:
        """The effort of all combinations of the swept fields: the sum, unless :meth:`run_swept` shares work."""
        return reduce(Effort.plus, (one.kind.effort(one) for _, one in job.combinations()))

    def run_swept(self, job: Job, device: torch.device) -> Iterator[tuple[Setting, Findings]]:
        """The findings of every combination of the swept fields: one after the other, unless they share work."""
        for setting, one in job.combinations():
            yield setting, one.kind.run(one, device)

    def run(self, job: Job, device: torch.device) -> Findings:
        """Do the work of ``job``, which sweeps no field of the protocol, on ``device``."""
        raise NotImplementedError


def unable(job: Job) -> str:
    """Why a job of this kind cannot train the model that its defense makes; empty if it can, or there is none."""
    if "model" in job.kind.faces or not job.defense.component.overrides("extend"):
        return ""
    name, kind = job.defense.component.name, job.kind.name
    return f"'{name}' changes the model that clients train, and jobs of kind '{kind}' train a given one"


JOB_KINDS: Registry[JobKind] = Registry("kind of job", "leakbench.jobs")
