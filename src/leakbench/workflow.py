"""What the Snakefile asks: the targets of a scale, the inputs of a rule, and when to run it again."""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from leakbench.errors import LeakbenchError, RecordError
from leakbench.experiments import Project, read_yaml
from leakbench.jobs.base import RESULTS
from leakbench.records import digest, quarantine, read_record
from leakbench.report.artifacts import FIGURES, Artifact, artifact_of, artifacts
from leakbench.report.tidy import missing_path, table_path


class Workflow:
    """A project as Snakemake sees it.

    Args:
        root: the checkout.
        config: Snakemake's configuration: config/config.yaml with the changes of ``--config``.
    """

    def __init__(self, root: Path, config: Mapping[str, Any]) -> None:
        self.project = Project(root, config)
        self.scale = self.project.settings.scale
        file = read_yaml(root / "config" / "config.yaml")
        changed = {key: value for key, value in config.items() if file.get(key) != value and key != "scale"}
        options = [word for key, value in changed.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        self.command = shlex.join([sys.executable, "-m", "leakbench", *options])
        """The command line to start jobs with; it repeats the overrides of this run."""

    def targets(self) -> list[str]:
        """Everything of the configured scale."""
        made = [path for entry in self._artifacts() for path in entry.paths(self.scale)]
        return [*made, self.page(self.scale)]

    def page(self, scale: str) -> str:
        """The HTML report of a scale."""
        return f"{FIGURES}/{scale}/report.html"

    def _artifacts(self) -> list[Artifact]:
        return [entry for entry in artifacts() if entry.paper in self.project.settings.papers]

    def job_digest(
        self, scale: str, paper: str, experiment: str, dataset: str, model: str, defense: str, attack: str, part: str
    ) -> str:
        """Identity of the job with these path parts: when it changes, the job runs again."""
        path = "/".join((RESULTS, scale, paper, experiment, dataset, model, defense, attack, f"{part}.json"))
        return self.project.job(path).digest

    def records(self, scale: str, paper: str, experiment: str) -> list[str]:
        """Paths of an experiment's records."""
        return [job.path for job in self.project.plan(scale).experiment_jobs(paper, experiment)]

    def tables_of(self, artifact: str) -> list[str]:
        """The tidy tables behind the figure or table that a path names."""
        scale = Path(artifact).parts[1]
        self.project.plan(scale, where=artifact)
        return artifact_of(artifact).inputs(scale)

    def page_inputs(self, scale: str) -> list[str]:
        """Pictures, tables and tidy tables that the HTML report shows."""
        shown = [entry.path(scale, "png" if entry.kind == "figure" else "csv") for entry in self._artifacts()]
        plan = self.project.plan(scale)
        tables = [
            table_path(scale, paper, experiment)
            for paper, spec in plan.papers.items()
            for experiment in spec.experiments
        ]
        return [*shown, *tables, *map(missing_path, tables)]

    def drawing_digest(self, scale: str, paper: str = "") -> str:
        """Hash of the code that draws and of the words it prints: editing either redraws, and computes nothing anew."""
        return digest([_sources("report"), _sources(f"papers/{paper}"), self.project.plan(scale).description])

    def quarantine_unreadable(self) -> None:
        """Move unreadable records of the configured scale aside, and say so, before Snakemake looks for them."""
        for path in self.project.plan(self.scale).jobs:
            file = self.project.root / path
            if file.is_file():
                try:
                    read_record(file)
                except RecordError as error:
                    print(f"{error}. Moved aside to {quarantine(file).name}; its job runs again", file=sys.stderr)


@cache
def _sources(folder: str) -> str:
    """Hash of the Python files and templates in a folder of the package."""
    found = hashlib.sha256()
    for path in sorted((Path(__file__).parent / folder).rglob("*")):
        if path.suffix in {".py", ".csv", ".j2"}:
            found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()


__all__ = ["LeakbenchError", "Workflow"]
