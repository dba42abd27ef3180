"""The jobs of every configured paper at one scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from leakbench.comparing import Comparison
from leakbench.gates import Gate
from leakbench.jobs.base import Job, Variant
from leakbench.planning.layers import Layer, Layers, read_yaml
from leakbench.planning.mistakes import check_known, place, validated
from leakbench.planning.paper_plan import Listed, PaperPlan
from leakbench.planning.schemas import PaperSpec, ScaleSpec


class Plan:
    """The jobs of every configured paper at one scale.

    Args:
        root: folder that holds ``config/``.
        scale: name of the scale.
        papers: names of the papers.
        compared: the defenses that ``compare`` names.

    Raises:
        ConfigError: a file is missing or does not fit its schema.
    """

    def __init__(self, root: Path, scale: str, papers: Sequence[str], compared: Sequence[Variant[Any]]) -> None:
        self.scale = scale
        scale_file = f"config/scales/{scale}.yaml"
        content = validated(ScaleSpec, read_yaml(root / scale_file), partial(place, scale_file))
        self.description, self.device = content.description, content.device
        known = sorted(path.stem for path in (root / "config" / "papers").glob("*.yaml"))
        for paper in content.papers:
            check_known("paper", paper, known, f"{scale_file}: papers")
        self._plans: dict[str, PaperPlan] = {}
        for paper in papers:
            file = f"config/papers/{paper}.yaml"
            lowest, top = (
                Layer(file, read_yaml(root / file)),
                Layer(scale_file, content.papers.get(paper, {}), ("papers", paper)),
            )
            self._plans[paper] = PaperPlan(scale, paper, Layers([lowest, top]), compared)

    @cached_property
    def papers(self) -> Mapping[str, PaperSpec]:
        """Every configured paper by name, with the scale laid over it."""
        return {name: plan.spec for name, plan in self._plans.items()}

    @cached_property
    def jobs(self) -> dict[str, Job]:
        """Every job by its record's path."""
        return {path: job for paper in self._plans for path, job in self.jobs_of(paper).items()}

    def jobs_of(self, paper: str) -> dict[str, Job]:
        """The jobs of one paper by their records' paths; they use no others."""
        return self._plans[paper].jobs

    def experiment_jobs(self, paper: str, experiment: str) -> list[Job]:
        """The jobs of one experiment, in the order of the grid."""
        return self._plans[paper].experiment_jobs(experiment)

    def experiment_gates(self, paper: str, experiment: str) -> list[Gate]:
        """Requirements on the attacks of one experiment on the undefended gradient, by cell."""
        return self._plans[paper].experiment_gates(experiment)

    def listed(self, paper: str, experiment: str, axis: str) -> Listed:
        """The labels of an experiment on an axis: datasets, models, defenses or attacks."""
        return self._plans[paper].listed(experiment, axis)

    def place(self, paper: str, *keys: str) -> str:
        """The file that has the last word on some keys of a paper's configuration, and the keys there."""
        return self._plans[paper].place(*keys)

    def comparisons(self) -> list[Comparison]:
        """Where the compared defenses belong, and where not and why."""
        return [comparison for plan in self._plans.values() for comparison in plan.comparisons]
