"""A checkout's configuration: its settings, its scales, and the jobs that paths name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from leakbench.adapted import AdaptedCell
from leakbench.attacks.base import ATTACKS, Attack
from leakbench.comparing import ComparedSpec, component_named
from leakbench.defenses.base import DEFENSES, Defense
from leakbench.errors import ConfigError, UnknownName
from leakbench.gates import Gate
from leakbench.jobs.base import Job, Variant
from leakbench.paper_folders import paper_folders
from leakbench.planning.layers import read_yaml
from leakbench.planning.mistakes import check_known, place, validated
from leakbench.planning.plan import Plan
from leakbench.planning.scales import PAPERS, SCALES, read_scale, stems
from leakbench.planning.schemas import Settings
from leakbench.planning.variants import swept
from leakbench.plugins import load_plugin
from leakbench.records import RESULTS
from leakbench.registry import Component, Registry

C = TypeVar("C", bound=Component)

CONFIGURATION = "config/config.yaml"
PARTS = ("scale", "paper", "experiment", "dataset", "model", "defense", "attack", "part")
"""Names of the parts of a record's path, below the folder of results."""


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

    Raises:
        ConfigError: the configuration does not fit its schema, or names something that does not exist.
    """

    def __init__(self, root: Path, overrides: Mapping[str, Any] | None = None) -> None:
        self.root = root
        self.papers = paper_folders()
        self.overrides = dict(overrides or {})
        content = read_yaml(root / CONFIGURATION) | self.overrides
        self.settings = validated(Settings, content, self._where)
        for plugin in self.settings.plugins:
            load_plugin(str(root / plugin) if plugin.endswith(".py") else plugin, self._where("plugins"))
        self.compared: list[Variant[Defense]] = list(self._given("compare", DEFENSES, Defense))
        self.ensemble: list[Variant[Attack]] = list(self._given("ensemble", ATTACKS, Attack))
        for paper in self.settings.papers:
            check_known("paper", paper, self.papers, self._where("papers"))
        for paper in stems(root / PAPERS):
            check_known("paper", paper, self.papers, f"{PAPERS}/{paper}.yaml")
        check_known("scale", self.settings.scale, self.scales, self._where("scale"))
        self._plans: dict[str, Plan] = {}

    def _where(self, *keys: str | int) -> str:
        """The file that has the last word on a key of config.yaml, or the command line."""
        return place("command line" if set(keys[:1]) & set(self.overrides) else CONFIGURATION, *keys)

    def _given(self, key: str, registry: Registry[C], base: type[C]) -> Iterator[Variant[C]]:
        """The components that a key of the configuration names, under labels that differ."""
        labels: set[str] = set()
        given: list[ComparedSpec] = getattr(self.settings, key)
        for number, spec in enumerate(given):
            where = partial(self._where, key, number)
            component = component_named(registry, base, spec.name, self.root, where())
            variant = swept(spec.label or component.name, component, spec.model_extra or {}, where)
            if variant.label in labels:
                raise ConfigError(f"{where()}: '{variant.label}' is there twice; give one of them another 'label'")
            labels.add(variant.label)
            yield variant

    @property
    def scales(self) -> list[str]:
        """Names of the files in ``config/scales``."""
        return stems(self.root / SCALES)

    def plan(self, scale: str, where: str = "scale") -> Plan:
        """All jobs of a scale.

        Args:
            scale: name of the scale.
            where: what names it, for the error message.

        Raises:
            ConfigError: the configuration names something that does not exist.
        """
        check_known("scale", scale, self.scales, where)
        if scale not in self._plans:
            papers = [self.papers[name] for name in self.settings.papers]
            self._plans[scale] = Plan(read_scale(self.root, scale, self.papers), papers, self.compared, self.ensemble)
        return self._plans[scale]

    def job(self, path: str) -> Job:
        """The job that a record's path names.

        Raises:
            ConfigError: no such job; the message names the part of the path at fault and what would fit there.
        """
        parts = PurePosixPath(path).parts
        if len(parts) != 1 + len(PARTS) or parts[0] != RESULTS or not parts[-1].endswith(".json"):
            pattern = "/".join(f"<{part}>" for part in PARTS)
            raise ConfigError(f"{path}: not a record's path; expected {RESULTS}/{pattern}.json")
        plan = self.plan(parts[1], where=path)
        jobs = plan.jobs_of(parts[2]) if parts[2] in plan.papers else plan.jobs
        if path in jobs:
            return jobs[path]
        for depth, name in enumerate(PARTS[1:], start=2):
            siblings = [other for job in jobs if (other := PurePosixPath(job).parts)[:depth] == parts[:depth]]
            allowed = {other[depth] for other in siblings}
            if parts[depth] not in allowed:
                raise UnknownName(name, parts[depth], allowed, path)
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

    def adapted_cells(self, table: str) -> list[AdaptedCell]:
        """The cells of the experiment whose tidy table a path names in which attacks wrap others.

        Raises:
            ConfigError: no such experiment; the message names the part of the path at fault.
        """
        plan, paper, experiment = self._experiment(table)
        return plan.adapted_cells(paper, experiment)

    def _experiment(self, table: str) -> tuple[Plan, str, str]:
        parts = PurePosixPath(table).parts
        if len(parts) != 5 or parts[0] != RESULTS or parts[4] != "records.parquet":
            raise ConfigError(
                f"{table}: not a tidy table's path; expected {RESULTS}/<scale>/<paper>/<experiment>/records.parquet"
            )
        _, scale, paper, experiment, _ = parts
        plan = self.plan(scale, where=table)
        check_known("paper", paper, list(plan.papers), table)
        check_known("experiment", experiment, list(plan.papers[paper].experiments), table)
        return plan, paper, experiment
