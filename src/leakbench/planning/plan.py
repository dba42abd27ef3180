"""The jobs of every configured paper at one scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

from leakbench.adapted import AdaptedCell
from leakbench.comparing import Comparison
from leakbench.gates import Gate
from leakbench.jobs.base import Job, Variant
from leakbench.paper_folders import PaperFolder
from leakbench.planning.paper_plan import Listed, PaperPlan
from leakbench.planning.scales import Scale
from leakbench.planning.schemas import PaperSpec

T = TypeVar("T")


class Lazily(Mapping[str, T], Generic[T]):
    """A mapping whose values are made when they are first asked for.

    >>> lengths = Lazily(["smoke", "full"], len)
    >>> lengths["full"], list(lengths)
    (4, ['smoke', 'full'])
    """

    def __init__(self, names: Iterable[str], make: Callable[[str], T]) -> None:
        self._names, self._make = dict.fromkeys(names), make
        self._made: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        if name not in self._made:
            if name not in self._names:
                raise KeyError(name)
            self._made[name] = self._make(name)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Plan:
    """The jobs of every configured paper at one scale. A paper's files are read when something of it is asked for.

    Args:
        scale: the layers over the papers' grids.
        papers: the configured ones.
        compared: the defenses that ``compare`` names.
        ensemble: the attacks that ``ensemble`` names.

    Raises:
        ConfigError: by all methods, if a file of the paper is missing or does not fit its schema.
    """

    def __init__(
        self,
        scale: Scale,
        papers: Iterable[PaperFolder],
        compared: Sequence[Variant[Any]],
        ensemble: Sequence[Variant[Any]] = (),
    ) -> None:
        self.scale, self.description, self.device = scale.name, scale.description, scale.device
        folders = {paper.name: paper for paper in papers}
        self._plans: Mapping[str, PaperPlan] = Lazily(
            folders, lambda name: PaperPlan(scale.name, name, scale.layers(folders[name]), compared, ensemble)
        )

    @property
    def caption(self) -> str:
        """The sentence on the scale in captions."""
        return f"Scale '{self.scale}': {self.description}."

    @cached_property
    def papers(self) -> Mapping[str, PaperSpec]:
        """Every configured paper by name, with the scale laid over it."""
        return Lazily(self._plans, lambda name: self._plans[name].spec)

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

    def leaves_out(self, paper: str, experiment: str) -> bool:
        """Whether the scale has no job of an experiment."""
        return not self.experiment_jobs(paper, experiment)

    def experiment_gates(self, paper: str, experiment: str) -> list[Gate]:
        """Requirements on the attacks of one experiment on the undefended gradient, by cell."""
        return self._plans[paper].experiment_gates(experiment)

    def adapted_cells(self, paper: str, experiment: str) -> list[AdaptedCell]:
        """The cells of one experiment in which attacks wrap others, with the jobs to compare."""
        return self._plans[paper].adapted_cells(experiment)

    def listed(self, paper: str, experiment: str, axis: str) -> Listed:
        """The labels of an experiment on an axis: datasets, models, defenses or attacks."""
        return self._plans[paper].listed(experiment, axis)

    def place(self, paper: str, *keys: str) -> str:
        """The file that has the last word on some keys of a paper's configuration, and the keys there."""
        return self._plans[paper].place(*keys)

    def comparisons(self) -> list[Comparison]:
        """Placements of the compared defenses, and reasons where there is none."""
        return [comparison for plan in self._plans.values() for comparison in plan.comparisons]
