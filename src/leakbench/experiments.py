"""Configuration to jobs, and paths to jobs: what the project would compute, without computing anything.

``config/papers/<paper>.yaml`` names variants of components (a label for a set of parameters) and experiments (grids of
variants). ``config/scales/<scale>.yaml`` lies over it: mappings merge, everything else replaces. A parameter given as
``{sweep: [...]}`` makes one variant stand for several settings, which one job computes together. So does a field of a
kind of job's protocol.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from leakbench.attacks.adaptive import Wrapper
from leakbench.attacks.base import ATTACKS
from leakbench.comparing import ComparedSpec, Comparison, defense_named, left_out
from leakbench.data.base import DATASETS
from leakbench.defenses.base import DEFENSES
from leakbench.errors import ConfigError, UnknownName
from leakbench.gates import Gate, GateSpec, gates_of
from leakbench.jobs.base import JOB_KINDS, Job, JobKind, Variant
from leakbench.models.base import MODELS
from leakbench.records import RESULTS
from leakbench.registry import Component, Registry, load_plugin

C = TypeVar("C", bound=Component)
M = TypeVar("M", bound=BaseModel)

Where = Callable[..., str]
"""From keys to words: the file that has the last word on them, and the keys."""

REGISTRIES: dict[str, Registry[Any]] = {
    "datasets": DATASETS,
    "models": MODELS,
    "defenses": DEFENSES,
    "attacks": ATTACKS,
}


GRID = ("datasets", "models", "defenses")
"""What every job has one of."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Settings(_Strict):
    """config/config.yaml."""

    scale: str = Field("smoke", description="which file of config/scales to lay over the papers")
    papers: list[str] = Field(description="which files of config/papers to replicate")
    data_root: str | None = Field(None, description="folder of staged data sets; the variable LEAKBENCH_DATA wins")
    plugins: list[str] = Field(
        [], description="modules (package.module) or files (path/to/file.py) of your own components"
    )
    compare: list[str | ComparedSpec] = Field(
        [], description="defenses (module:Class, path/to/file.py:Class, a name) to put into every applicable experiment"
    )
    warm: bool = Field(True, description="fork jobs from a process that has imported the libraries already")

    @field_validator("compare", mode="before")
    @classmethod
    def _one_is_a_list(cls, given: Any) -> Any:
        """``--config compare=my_defense.py:MyDefense`` names one."""
        return [given] if isinstance(given, str | Mapping) else given


class VariantSpec(BaseModel):
    """A component with parameters. Any parameter may be ``{sweep: [values]}``."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="registered name of the component; the other keys are its parameters")


Label = Annotated[str, Field(pattern="^[A-Za-z0-9][A-Za-z0-9._+=-]*$")]
"""A part of a path."""


class Variants(_Strict):
    """Labels that experiments, paths and figures use."""

    datasets: dict[Label, VariantSpec] = {}
    models: dict[Label, VariantSpec] = {}
    defenses: dict[Label, VariantSpec] = {}
    attacks: dict[Label, VariantSpec] = {}


class KindSpec(BaseModel):
    """One kind of job of an experiment: the attacks it runs, if it runs any, and its protocol.

    Any field of the protocol may be ``{sweep: [values]}``, but for those that say which seeds there are.
    """

    model_config = ConfigDict(extra="allow")

    attacks: list[str] = Field([], description="attack variants; for the kinds 'attack' and 'leakage'")


class ExperimentSpec(_Strict):
    """A grid: datasets x models x defenses, for every kind of job."""

    title: str
    datasets: list[str]
    models: list[str]
    defenses: list[str]
    jobs: dict[str, KindSpec] = Field(description="kinds of job (attack, train, fisher, ...) with their protocols")
    gates: dict[str, GateSpec] = Field({}, description="per attack, what it must reach on the undefended gradient")


class PaperSpec(_Strict):
    """config/papers/<paper>.yaml, with a scale laid over it."""

    title: str
    citation: str
    variants: Variants = Variants()
    experiments: dict[Label, ExperimentSpec]


class ScaleSpec(_Strict):
    """config/scales/<scale>.yaml."""

    description: str
    device: Literal["cpu", "gpu"] = Field("cpu", description="what `leakbench cost` reckons with by default")
    papers: dict[str, dict[str, Any]] = Field({}, description="per paper, what to lay over its file")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises:
        ConfigError: missing, not YAML, or not a mapping.
    """
    try:
        content = yaml.load(path.read_text(), yaml.CSafeLoader)  # libyaml: eight times as fast
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values")
    return content


def overlay(base: Any, top: Any) -> Any:
    """``top`` over ``base``: mappings merge key by key, everything else is replaced."""
    if isinstance(base, dict) and isinstance(top, dict):
        return base | {key: overlay(base[key], value) if key in base else value for key, value in top.items()}
    return top


def place(file: str, *keys: str | int) -> str:
    """``file: key.key``, as error messages name a place."""
    return f"{file}: {'.'.join(map(str, keys))}" if keys else file


def validated(model: type[M], content: Mapping[str, Any], where: Where) -> M:
    """``content`` as ``model``.

    Raises:
        ConfigError: naming the file, the key, the value and what is allowed.
    """
    try:
        return model.model_validate(dict(content))
    except ValidationError as error:
        raise explain(error, model, where) from None


def explain(error: ValidationError, model: type[BaseModel], where: Where) -> ConfigError:
    """The fault that says most, in one line that names the place, the key, the value and what would fit."""
    faults = error.errors()
    # A key that is misspelt is missing too, and where it is says more.
    fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    keys, holder = _keys_and_holder(model, fault["loc"])
    if fault["type"] == "extra_forbidden":
        return UnknownName("key", str(keys[-1]), getattr(holder, "model_fields", ()), where(*keys))
    if fault["type"] == "union_tag_invalid":
        return UnknownName("kind", fault["ctx"]["tag"], _kinds(holder), where(*keys, "kind"))
    if fault["type"] == "union_tag_not_found":
        kinds = ", ".join(sorted(_kinds(holder)))
        return ConfigError(f"{where(*keys, 'kind')}: this key is missing. Allowed: {kinds}.")
    if fault["type"] == "missing":
        return ConfigError(f"{where(*keys)}: this key is missing")
    found = f" (found: {fault['input']!r})" if keys else ""
    return ConfigError(f"{where(*keys)}: {fault['msg'].removeprefix('Value error, ')}{found}")


def _keys_and_holder(model: Any, place: Iterable[str | int]) -> tuple[list[str | int], Any]:
    """A place as pydantic names it in keys of the file, and the annotation that was to fit there.

    Below a union of parts pydantic also names the part by its ``kind``, which is no key. For a key that is unknown, the
    annotation is that of the mapping that holds it.
    """
    keys: list[str | int] = []
    for key in place:
        kinds = _kinds(model)
        if key in kinds:
            model = kinds[str(key)]
            continue
        keys.append(key)
        if not hasattr(model, "model_fields"):
            model = next((part for part in reversed(get_args(model)) if part not in (Ellipsis, NoneType)), None)
        elif key in model.model_fields:
            model = model.model_fields[key].annotation
    return keys, model


def _kinds(annotation: Any) -> dict[str, Any]:
    """The members of a union of parts, by their ``kind``; empty for anything else."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    members = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else ()
    parts = [part for part in members if "kind" in getattr(part, "model_fields", ())]
    return {kind: part for part in parts for kind in get_args(part.model_fields["kind"].annotation)}


def find_root(start: Path | None = None) -> Path:
    """The nearest folder, from ``start`` upwards, that holds ``config/config.yaml``.

    Args:
        start: the current folder by default.

    Raises:
        ConfigError: none of them does.
    """
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / "config" / "config.yaml").is_file():
            return folder
    raise ConfigError(
        f"no config/config.yaml in {start} or above it; run from a checkout of the project, or give --root"
    )


class Project:
    """A checkout's configuration.

    Args:
        root: folder that holds ``config/``.
        overrides: keys of ``config.yaml`` with values that replace the file's.
    """

    def __init__(self, root: Path, overrides: Mapping[str, Any] | None = None) -> None:
        self.root = root
        self._overrides = dict(overrides or {})
        content = read_yaml(root / "config" / "config.yaml") | self._overrides
        self.settings = validated(Settings, content, self._where)
        for plugin in self.settings.plugins:
            load_plugin(str(root / plugin) if plugin.endswith(".py") else plugin, self._where("plugins"))
        self.compared = list(self._compared())
        for paper in self.settings.papers:
            self._known("paper", paper, self._files("papers"), self._where("papers"))
        self._known("scale", self.settings.scale, self.scales, self._where("scale"))
        self._plans: dict[str, Plan] = {}

    def _where(self, *keys: str | int) -> str:
        """What has the last word on a key of config.yaml: the file, or the command line."""
        return place("command line" if set(keys[:1]) & set(self._overrides) else "config/config.yaml", *keys)

    def _compared(self) -> Iterator[Variant[Any]]:
        """The defenses that ``compare`` names, under labels that differ."""
        labels: set[str] = set()
        for number, given in enumerate(self.settings.compare):
            spec = ComparedSpec(name=given) if isinstance(given, str) else given
            where = partial(self._where, "compare", number)
            component = defense_named(spec.name, self.root, where())
            variant = _swept(spec.label or component.name, component, spec.model_extra or {}, where)
            if variant.label in labels:
                raise ConfigError(f"{where()}: '{variant.label}' is compared twice; give one of them another 'label'")
            labels.add(variant.label)
            yield variant

    @property
    def scales(self) -> list[str]:
        """Names of the files in ``config/scales``."""
        return self._files("scales")

    def _files(self, folder: str) -> list[str]:
        return sorted(path.stem for path in (self.root / "config" / folder).glob("*.yaml"))

    @staticmethod
    def _known(what: str, name: str, allowed: Sequence[str], where: str) -> None:
        if name not in allowed:
            raise UnknownName(what, name, allowed, where)

    def plan(self, scale: str, where: str = "scale") -> Plan:
        """All jobs of a scale.

        Raises:
            ConfigError: the configuration names something that does not exist.
        """
        self._known("scale", scale, self.scales, where)
        if scale not in self._plans:
            self._plans[scale] = Plan(self, scale)
        return self._plans[scale]

    def job(self, path: str) -> Job:
        """The job that a record's path names.

        Raises:
            ConfigError: no such job; the message names the part of the path at fault and what would fit there.
        """
        parts = PurePosixPath(path).parts
        if len(parts) != 9 or parts[0] != RESULTS or not parts[-1].endswith(".json"):
            raise ConfigError(
                f"{path}: not a record's path; expected "
                f"{RESULTS}/<scale>/<paper>/<experiment>/<dataset>/<model>/<defense>/<attack>/<part>.json"
            )
        plan = self.plan(parts[1], where=path)
        jobs = plan.jobs_of(parts[2]) if parts[2] in plan.papers else plan.jobs
        if path in jobs:
            return jobs[path]
        names = ("scale", "paper", "experiment", "dataset", "model", "defense", "attack", "part")
        for depth in range(2, 9):
            allowed = {
                candidate[depth] for job in jobs if (candidate := PurePosixPath(job).parts)[:depth] == parts[:depth]
            }
            if parts[depth] not in allowed:
                raise UnknownName(names[depth - 1], parts[depth], allowed, path)
        raise AssertionError("a path whose every part is known is a job's path")

    def experiment_jobs(self, table: str) -> list[Job]:
        """The jobs of the experiment whose tidy table a path names, in the order of the grid.

        Raises:
            ConfigError: no such experiment; the message names the part of the path at fault.
        """
        plan, paper, experiment = self._experiment(table)
        return plan.experiment_jobs(paper, experiment)

    def experiment_gates(self, table: str) -> list[Gate]:
        """The gates of the experiment whose tidy table a path names.

        Raises:
            ConfigError: no such experiment; the message names the part of the path at fault.
        """
        plan, paper, experiment = self._experiment(table)
        return plan.experiment_gates(paper, experiment)

    def _experiment(self, table: str) -> tuple[Plan, str, str]:
        parts = PurePosixPath(table).parts
        if len(parts) != 5 or parts[0] != RESULTS or parts[4] != "records.parquet":
            raise ConfigError(
                f"{table}: not a tidy table's path; expected {RESULTS}/<scale>/<paper>/<experiment>/records.parquet"
            )
        _, scale, paper, experiment, _ = parts
        plan = self.plan(scale, where=table)
        self._known("paper", paper, list(plan.papers), table)
        self._known("experiment", experiment, list(plan.papers[paper].experiments), table)
        return plan, paper, experiment


class Plan:
    """The jobs of every configured paper at one scale."""

    def __init__(self, project: Project, scale: str) -> None:
        self.scale = scale
        self._scale_file = f"config/scales/{scale}.yaml"
        content = validated(ScaleSpec, read_yaml(project.root / self._scale_file), partial(place, self._scale_file))
        self.description, self.device = content.description, content.device
        for paper in content.papers:
            Project._known("paper", paper, project._files("papers"), f"{self._scale_file}: papers")
        self._overlays = content.papers
        self._compared = project.compared
        self._comparisons: dict[str, list[Comparison]] = {}
        self.papers: dict[str, PaperSpec] = {}
        self._jobs: dict[str, dict[str, Job]] = {}
        for paper in project.settings.papers:
            merged = overlay(read_yaml(project.root / _paper_file(paper)), self._overlays.get(paper, {}))
            self.papers[paper] = validated(PaperSpec, merged, self._where(paper))

    def _where(self, paper: str, *prefix: str) -> Where:
        """From keys below ``prefix`` to the file that has the last word on them, and the keys."""

        def where(*keys: str | int) -> str:
            node: Any = self._overlays.get(paper, {})
            for key in (*prefix, *keys):
                if not isinstance(node, dict):
                    break  # the overlay replaced all of this
                if key not in node:
                    return place(_paper_file(paper), *prefix, *keys)
                node = node[key]
            return place(self._scale_file, "papers", paper, *prefix, *keys)

        return where

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """Every job by its record's path."""
        return {path: job for paper in self.papers for path, job in self.jobs_of(paper).items()}

    def jobs_of(self, paper: str) -> dict[str, Job]:
        """The jobs of one paper by their records' paths; they use no others."""
        if paper not in self._jobs:
            self._jobs[paper] = self._planned(paper)
        return self._jobs[paper]

    def _planned(self, paper: str) -> dict[str, Job]:
        jobs: dict[str, Job] = {}
        for job in self._grids_of(paper):
            if job.path in jobs:
                raise ConfigError(
                    f"{place(_paper_file(paper), 'experiments', job.experiment)}: two jobs would write {job.path}; "
                    "a label is listed twice, or an attack is labelled like a kind of job"
                )
            jobs[job.path] = job
        jobs = {path: self._linked(job, jobs.values()) for path, job in jobs.items()}
        for experiment in self.papers[paper].experiments:
            list(self._gates_of(paper, experiment, jobs.values()))  # mistakes are told before anything runs
        return jobs

    def _linked(self, job: Job, jobs: Iterable[Job]) -> Job:
        """A job with those whose records it uses."""
        uses: dict[str, Job] = {}
        attack = next(iter(job.attack.settings()))[1] if job.attack else None
        for kind, key in job.kind.reads(attack).items():
            where = self._where(job.paper, "experiments", job.experiment, "jobs", job.kind.name)
            if job.kinds and key in job.kinds.sweep:
                raise ConfigError(f"{where(key)}: '{key}' cannot be swept; make an experiment of each")
            found: dict[str, list[Job]] = {}
            for other in jobs:
                if (other.kind.name, other.dataset.label) == (kind, job.dataset.label):
                    found.setdefault(other.experiment, []).append(other)
            experiment = str(getattr(job.kind, key))
            if experiment not in found:
                what = f"experiment with a job '{kind}' on data set '{job.dataset.label}'"
                raise UnknownName(what, experiment, found, where(key))
            if len(found[experiment]) > 1:
                raise ConfigError(
                    f"{where(key)}: experiment '{experiment}' has several jobs '{kind}' on data set "
                    f"'{job.dataset.label}'; leave it one model and one defense, which play no part in them"
                )
            (uses[kind],) = found[experiment]
        return replace(job, uses=uses) if uses else job

    def experiment_jobs(self, paper: str, experiment: str) -> list[Job]:
        """The jobs of one experiment, in the order of the grid."""
        return [job for job in self.jobs_of(paper).values() if job.experiment == experiment]

    def experiment_gates(self, paper: str, experiment: str) -> list[Gate]:
        """What the attacks of one experiment must reach on the undefended gradient, by cell."""
        return list(self._gates_of(paper, experiment, self.jobs_of(paper).values()))

    def _gates_of(self, paper: str, experiment: str, jobs: Collection[Job]) -> Iterator[Gate]:
        experiments = self.papers[paper].experiments
        if not experiments[experiment].gates:
            return
        for attack, spec in experiments[experiment].gates.items():
            where = self._where(paper, "experiments", experiment, "gates", attack)
            if spec.undefended is not None:
                Project._known("experiment", spec.undefended, list(experiments), where("undefended"))
            yield from gates_of(experiment, attack, spec, jobs, where)

    def comparisons(self) -> list[Comparison]:
        """Where the compared defenses belong, and where not and why."""
        return [found for paper in self.papers if self.jobs_of(paper) for found in self._comparisons[paper]]

    def _joining(
        self, paper: str, experiment: str, grid: Sequence[Sequence[Variant[Any]]], kinds: Variant[JobKind]
    ) -> list[Variant[Any]]:
        """The compared defenses that belong to the jobs of one kind of an experiment."""
        datasets, _, listed = grid
        joining = []
        for defense in self._compared:
            if defense.label in {*self.papers[paper].variants.defenses, *(variant.label for variant in listed)}:
                raise ConfigError(
                    f"compare: '{defense.label}' is a defense of {_paper_file(paper)} already; "
                    f"write {{name: {defense.component.name}, label: another}}"
                )
            reason = left_out(defense, listed, datasets, kinds)
            self._comparisons[paper].append(Comparison(defense.label, paper, experiment, kinds.label, reason))
            if reason is None:
                joining.append(defense)
        return joining

    def _grids_of(self, paper: str) -> Iterator[Job]:
        self._comparisons[paper] = []
        for name, experiment in self.papers[paper].experiments.items():
            grid = [
                [self._variant(paper, kind, label, ("experiments", name, kind)) for label in getattr(experiment, kind)]
                for kind in GRID
            ]
            for kind_name, spec in experiment.jobs.items():
                keys = ("experiments", name, "jobs", kind_name)
                where = self._where(paper, *keys)
                kinds = _swept(kind_name, JOB_KINDS.get(kind_name, where()), spec.model_extra or {}, where)
                _check_protocol_sweep(kinds, grid[2], where)
                kind = next(iter(kinds.settings()))[1]
                if kind.uses_attacks != bool(spec.attacks):
                    raise ConfigError(
                        f"{where('attacks')}: kind '{kind_name}' "
                        + (
                            "needs a list of attacks"
                            if kind.uses_attacks
                            else "runs no attacks; remove the key 'attacks'"
                        )
                    )
                attacks: list[Variant[Any] | None] = [
                    self._variant(paper, "attacks", label, (*keys, "attacks")) for label in spec.attacks
                ] or [None]
                defenses = [*grid[2], *self._joining(paper, name, grid, kinds)]
                undefended = {variant.label for variant in grid[2] if variant.component.name == "none"}
                for (dataset, model, defense), attack in itertools.product(
                    itertools.product(*grid[:2], defenses), attacks
                ):
                    if attack and not attack.component.observes and defense.label not in undefended:
                        continue  # a reference attacker says the same whatever the defense
                    for part, seeds in _parts(kind):
                        yield Job(
                            self.scale,
                            paper,
                            name,
                            dataset,
                            model,
                            defense,
                            attack,
                            kind,
                            part,
                            seeds,
                            kinds if kinds.sweep else None,
                        )

    def _variant(
        self, paper: str, kind: str, label: str, asked: tuple[str, ...], wrappers: tuple[str, ...] = ()
    ) -> Variant[Any]:
        """The variant that a label names: a declared one, or a component by its own name and with its defaults.

        Args:
            paper: whose variants are declared.
            kind: of component: dataset, model, defense, attack or job.
            label: as the experiment names it.
            asked: the keys that hold the label.
            wrappers: labels of the attacks around this one.
        """
        registry: Registry[Component] = REGISTRIES[kind]
        declared: dict[str, VariantSpec] = getattr(self.papers[paper].variants, kind)
        if label in wrappers:
            circle = " -> ".join((*wrappers, label))
            raise ConfigError(f"{self._where(paper, *asked)()}: the attacks {circle} wrap each other")
        if label in declared:
            keys = ("variants", kind, label)
            component = registry.get(declared[label].name, self._where(paper, *keys)("name"))
            return self._made(paper, label, component, declared[label].model_extra or {}, keys, (*wrappers, label))
        if label in set(registry):
            return _swept(label, registry.get(label), {}, self._where(paper, *asked))
        raise UnknownName(registry.kind, label, {*declared, *registry}, self._where(paper, *asked)())

    def _made(
        self,
        paper: str,
        label: str,
        component: type[Component],
        given: Mapping[str, Any],
        keys: tuple[str, ...],
        wrappers: tuple[str, ...],
    ) -> Variant[Any]:
        """A component with the parameters that stand below ``keys``.

        A wrapper's parameter ``attack`` is the label of another variant, or itself a name with parameters.
        """
        where, inside = self._where(paper, *keys), given.get("attack")
        if not issubclass(component, Wrapper) or not isinstance(inside, str | Mapping):
            return _swept(label, component, given, where)
        here = (*keys, "attack")
        if isinstance(inside, str):
            wrapped = self._variant(paper, "attacks", inside, here, wrappers)
            wraps = (inside, *wrapped.wraps)
        elif set(inside) == {"sweep"}:
            raise ConfigError(f"{where('attack')}: a wrapped attack cannot be swept; make a variant of each")
        else:
            spec = validated(VariantSpec, inside, self._where(paper, *here))
            attack = ATTACKS.get(spec.name, where("attack", "name"))
            wrapped = self._made(paper, spec.name, attack, spec.model_extra or {}, here, wrappers)
            wraps = wrapped.wraps
        if wrapped.sweep:
            raise ConfigError(f"{where('attack')}: '{wrapped.label}' sweeps parameters, and a wrapped attack cannot")
        inner = {"name": wrapped.component.name, **wrapped.parameters}
        return replace(_swept(label, component, {**given, "attack": inner}, where), wraps=wraps)


def _swept(label: str, component: type[C], given: Mapping[str, Any], where: Where) -> Variant[C]:
    """A component with parameters, of which each may be ``{sweep: [values]}``.

    Raises:
        ConfigError: naming the file, the key, the value and what is allowed.
    """
    sweep = {key: value["sweep"] for key, value in given.items() if isinstance(value, dict) and set(value) == {"sweep"}}
    for key, values in sweep.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{where(key)}: a sweep needs a list of values (found: {values!r})")
        for value in values:
            if not isinstance(value, (str, int, float)):
                raise ConfigError(f"{where(key)}: a sweep takes numbers, words, true and false (found: {value!r})")
    variant = Variant(label, component, {k: v for k, v in given.items() if k not in sweep}, sweep)
    try:
        list(variant.settings())
    except ValidationError as error:
        raise explain(error, component, where) from None
    return variant


def job_of(resolved: Mapping[str, Any]) -> Job:
    """The job that a record says it is of, but for the records that it used: the inverse of :meth:`Job.resolved`.

    Raises:
        ConfigError: its components are not registered, or have other parameters by now.
    """

    def variant(registry: Registry[Any], of: Mapping[str, Any]) -> Variant[Any]:
        return Variant(of["label"], registry.get(of["name"]), of["parameters"], of["sweep"])

    try:
        kind = resolved["kind"]
        protocol = {"seeds": len(resolved["seeds"])} if resolved["seeds"] else {}
        kinds: Variant[JobKind] = Variant(
            kind["name"], JOB_KINDS.get(kind["name"]), kind["protocol"] | protocol, kind.get("sweep", {})
        )
        dataset, model, defense = (variant(REGISTRIES[name], resolved[name.removesuffix("s")]) for name in GRID)
        return Job(
            resolved["scale"],
            resolved["paper"],
            resolved["experiment"],
            dataset,
            model,
            defense,
            variant(ATTACKS, resolved["attack"]) if resolved["attack"] else None,
            next(iter(kinds.settings()))[1],
            resolved["part"],
            tuple(resolved["seeds"]),
            kinds if kinds.sweep else None,
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise ConfigError(
            f"a record of {resolved.get('experiment')}: not a job of today's components: {error}"
        ) from None


def _check_protocol_sweep(kinds: Variant[JobKind], defenses: Iterable[Variant[Any]], where: Where) -> None:
    """Which seeds there are is no setting, and a setting has one value under each name."""
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


def _paper_file(paper: str) -> str:
    return f"config/papers/{paper}.yaml"


def _parts(kind: JobKind) -> list[tuple[str, tuple[int, ...]]]:
    """Names of a cell's parts, with the seeds of each."""
    seeds = tuple(range(kind.seeds))
    return [(f"seed{seed}", (seed,)) for seed in seeds] if kind.split_seeds else [("all", seeds)]
