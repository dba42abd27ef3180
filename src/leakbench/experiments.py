"""Configuration to jobs, and paths to jobs: what the project would compute, without computing anything.

``config/papers/<paper>.yaml`` names variants of components (a label for a set of parameters) and experiments (grids of
variants). ``config/scales/<scale>.yaml`` lies over it: mappings merge, everything else replaces. A parameter given as
``{sweep: [...]}`` makes one variant stand for several settings, which one job computes together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leakbench.attacks.base import ATTACKS
from leakbench.data.base import DATASETS
from leakbench.defenses.base import DEFENSES
from leakbench.errors import ConfigError, UnknownName
from leakbench.jobs.base import JOB_KINDS, RESULTS, Job, JobKind, Variant
from leakbench.models.base import MODELS
from leakbench.registry import Component, Registry, load_plugin

C = TypeVar("C", bound=Component)
M = TypeVar("M", bound=BaseModel)

REGISTRIES: dict[str, Registry[Any]] = {
    "datasets": DATASETS,
    "models": MODELS,
    "defenses": DEFENSES,
    "attacks": ATTACKS,
}


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


class VariantSpec(BaseModel):
    """A component with parameters. Any parameter may be ``{sweep: [values]}``."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(description="registered name of the component; the other keys are its parameters")


class Variants(_Strict):
    """Labels that experiments, paths and figures use."""

    datasets: dict[str, VariantSpec] = {}
    models: dict[str, VariantSpec] = {}
    defenses: dict[str, VariantSpec] = {}
    attacks: dict[str, VariantSpec] = {}


class KindSpec(BaseModel):
    """One kind of job of an experiment: the attacks it runs, if it runs any, and its protocol."""

    model_config = ConfigDict(extra="allow")

    attacks: list[str] = Field([], description="attack variants; for the kind 'attack' alone")


class ExperimentSpec(_Strict):
    """A grid: datasets x models x defenses, for every kind of job."""

    title: str
    datasets: list[str]
    models: list[str]
    defenses: list[str]
    jobs: dict[str, KindSpec] = Field(description="kinds of job (attack, train, inventory) with their protocols")


class PaperSpec(_Strict):
    """config/papers/<paper>.yaml, with a scale laid over it."""

    title: str
    citation: str
    variants: Variants = Variants()
    experiments: dict[str, ExperimentSpec]


class ScaleSpec(_Strict):
    """config/scales/<scale>.yaml."""

    description: str
    papers: dict[str, dict[str, Any]] = Field({}, description="per paper, what to lay over its file")


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds a mapping.

    Raises:
        ConfigError: missing, not YAML, or not a mapping.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: expected a mapping of keys to values")
    return content


def overlay(base: Any, top: Any) -> Any:
    """``top`` over ``base``: mappings merge key by key, everything else is replaced."""
    if isinstance(base, dict) and isinstance(top, dict):
        return base | {key: overlay(base[key], value) if key in base else value for key, value in top.items()}
    return top


def validated(model: type[M], content: Mapping[str, Any], where: str) -> M:
    """``content`` as ``model``.

    Raises:
        ConfigError: naming ``where``, the key, the value and what is allowed.
    """
    try:
        return model.model_validate(dict(content))
    except ValidationError as error:
        raise explain(error, model, where) from None


def explain(error: ValidationError, model: type[BaseModel], where: str) -> ConfigError:
    """The first fault that pydantic found, in one line that names the place, the key, the value and what would fit."""
    fault = error.errors()[0]
    key = ".".join(map(str, fault["loc"]))
    if fault["type"] == "extra_forbidden" and len(fault["loc"]) == 1:
        return UnknownName("key", key, model.model_fields, where)
    if fault["type"] == "missing":
        return ConfigError(f"{where}: key '{key}' is missing")
    found = f" (found: {fault['input']!r})" if fault["type"] != "extra_forbidden" else ""
    return ConfigError(f"{where}: key '{key}': {fault['msg']}{found}" if key else f"{where}: {fault['msg']}")


def find_root(start: Path | None = None) -> Path:
    """The nearest folder, from ``start`` upwards, that holds ``config/config.yaml``."""
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
        path = root / "config" / "config.yaml"
        self.settings = validated(Settings, overlay(read_yaml(path), dict(overrides or {})), "config/config.yaml")
        for plugin in self.settings.plugins:
            load_plugin(str(root / plugin) if plugin.endswith(".py") else plugin, "config/config.yaml: plugins")
        for paper in self.settings.papers:
            self._known("paper", paper, self._files("papers"), "config/config.yaml: papers")
        self._known("scale", self.settings.scale, self.scales, "config/config.yaml: scale")
        self._plans: dict[str, Plan] = {}

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
        jobs = self.plan(parts[1], where=path).jobs
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


class Plan:
    """The jobs of every configured paper at one scale."""

    def __init__(self, project: Project, scale: str) -> None:
        self.scale = scale
        self._scale_file = f"config/scales/{scale}.yaml"
        content = validated(ScaleSpec, read_yaml(project.root / self._scale_file), self._scale_file)
        self.description = content.description
        for paper in content.papers:
            Project._known("paper", paper, project._files("papers"), f"{self._scale_file}: papers")
        self._overlays = content.papers
        self.papers: dict[str, PaperSpec] = {}
        for paper in project.settings.papers:
            file = f"config/papers/{paper}.yaml"
            merged = overlay(read_yaml(project.root / file), self._overlays.get(paper, {}))
            where = f"{file} with {self._scale_file}" if paper in self._overlays else file
            self.papers[paper] = validated(PaperSpec, merged, where)

    def _where(self, paper: str, *keys: str) -> str:
        """The file that has the last word on a key, and the key."""
        node: Any = self._overlays.get(paper, {})
        in_overlay = True
        for key in keys:
            in_overlay = in_overlay and isinstance(node, dict) and key in node
            node = node[key] if in_overlay else None
        file = f"{self._scale_file}: papers.{paper}" if in_overlay else f"config/papers/{paper}.yaml"
        return f"{file}: {'.'.join(keys)}"

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """Every job by its record's path."""
        return {job.path: job for paper in self.papers for job in self._jobs_of(paper)}

    def experiment_jobs(self, paper: str, experiment: str) -> list[Job]:
        """The jobs of one experiment, in the order of the grid."""
        return [job for job in self.jobs.values() if (job.paper, job.experiment) == (paper, experiment)]

    def _jobs_of(self, paper: str) -> Iterator[Job]:
        for name, experiment in self.papers[paper].experiments.items():
            grid = [
                [self._variant(paper, kind, label, name) for label in getattr(experiment, kind)]
                for kind in ("datasets", "models", "defenses")
            ]
            for kind_name, spec in experiment.jobs.items():
                keys = ("experiments", name, "jobs", kind_name)
                kind_class = JOB_KINDS.get(kind_name, self._where(paper, *keys[:-1]))
                where = self._where(paper, *keys)
                kind: JobKind = validated(kind_class, spec.model_extra or {}, where)
                if kind.uses_attacks != bool(spec.attacks):
                    raise ConfigError(
                        f"{where}: kind '{kind_name}' "
                        + (
                            "needs a list of attacks"
                            if kind.uses_attacks
                            else "runs no attacks; remove the key 'attacks'"
                        )
                    )
                attacks: list[Variant[Any] | None] = [
                    self._variant(paper, "attacks", label, name) for label in spec.attacks
                ] or [None]
                undefended = {variant.label for variant in grid[2] if variant.component.name == "none"}
                for (dataset, model, defense), attack in itertools.product(itertools.product(*grid), attacks):
                    if attack and not attack.component.observes and defense.label not in undefended:
                        continue  # a reference attacker says the same whatever the defense
                    for part, seeds in _parts(kind):
                        yield Job(self.scale, paper, name, dataset, model, defense, attack, kind, part, seeds)

    def _variant(self, paper: str, kind: str, label: str, experiment: str) -> Variant[Any]:
        """The variant that a label names: a declared one, or a component by its own name and with its defaults."""
        registry: Registry[Component] = REGISTRIES[kind]
        declared: dict[str, VariantSpec] = getattr(self.papers[paper].variants, kind)
        if label in declared:
            where = self._where(paper, "variants", kind, label)
            component = registry.get(declared[label].name, f"{where}.name")
            given = declared[label].model_extra or {}
        elif label in set(registry):
            where = self._where(paper, "experiments", experiment)
            component, given = registry.get(label), {}
        else:
            where = self._where(paper, "experiments", experiment, kind if kind != "attacks" else "jobs")
            raise UnknownName(registry.kind, label, {*declared, *registry}, where)
        sweep = {
            key: value["sweep"] for key, value in given.items() if isinstance(value, dict) and set(value) == {"sweep"}
        }
        for key, values in sweep.items():
            if not isinstance(values, list) or not values:
                raise ConfigError(f"{where}.{key}: a sweep needs a list of values (found: {values!r})")
        variant = Variant(label, component, {k: v for k, v in given.items() if k not in sweep}, sweep)
        try:
            list(variant.settings())
        except ValidationError as error:
            raise explain(error, component, where) from None
        return variant


def _parts(kind: JobKind) -> list[tuple[str, tuple[int, ...]]]:
    """Names of a cell's parts, with the seeds of each."""
    seeds = tuple(range(kind.seeds))
    return [(f"seed{seed}", (seed,)) for seed in seeds] if kind.split_seeds else [("all", seeds)]
