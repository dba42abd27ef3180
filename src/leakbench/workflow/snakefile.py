"""The workflow behind the Snakefile: targets of a scale, inputs of rules, and when to run them again."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from leakbench.errors import ConfigError, LeakbenchError, RecordError
from leakbench.jobs.base import Variant
from leakbench.paper_folders import PaperFolder
from leakbench.planning.layers import below, read_yaml
from leakbench.planning.project import CONFIGURATION, Project
from leakbench.records import RESULTS, digest, quarantine, read_record
from leakbench.report.artifacts import artifact_of, artifacts_at
from leakbench.report.claims import check_readers, claims_of
from leakbench.report.coverage import PAPER_SCALE
from leakbench.report.judging import claims_inputs, claims_path, claims_paths
from leakbench.report.published import published_files
from leakbench.report.recorded import staleness
from leakbench.report.scorecard import scorecard_path
from leakbench.report.tidy import merged_paths, needed, table_path
from leakbench.running.work import KEEP, SHARE, tidy
from leakbench.sources import imported_files, source_digest
from leakbench.workflow import sharing
from leakbench.workflow.caller import RUN
from leakbench.workflow.endings import endings
from leakbench.workflow.kinds import KindRule, kind_rules
from leakbench.workflow.preemption import requeue_preempted
from leakbench.workflow.targets import asked_for, check_targets
from leakbench.workflow.warm import serves, start

INSTALLED = Path(__file__).parents[2]
"""Folder that the package is in."""
REPORT = INSTALLED / "leakbench" / "report"
FORMULAS = ("leakbench.theory.", "leakbench.metrics.", "leakbench.numerics.")
"""Rooms that figures and tables compute with."""
MECHANISMS = ("leakbench.defenses.", "leakbench.federated.", "leakbench.models.", "leakbench.data.")
"""Further rooms, which checks of theorems compute with."""

WORDS = ("title", "citation", "description")
"""Keys of grids and scales that change no number."""

_BESIDE = """\
leakbench: another run works in this folder: {runs}.
Two runs may make different things side by side. If Snakemake refuses this one below ("Directory cannot be locked"),
both would make the same files: wait until the other has ended, or stop it with Ctrl-C or `kill -INT`, and start this
one again then. Do not use --unlock: a lock that nobody holds any more is removed by itself."""


class Persistence(Protocol):
    """Snakemake's memory of the files that it made."""

    def metadata(self, target: str) -> Any:
        """Return what it remembers of a file, with the ``params`` of its job; None if nothing."""
        ...

    def cleanup_metadata(self, target: str) -> bool:
        """Forget it."""
        ...


@contextlib.contextmanager
def last_words() -> Iterator[None]:
    """End Snakemake on an error that a user can act on, with the error's message as the last line on the screen.

    Raises:
        SystemExit: such an error. Snakemake would print the lines of code that any other exception came through.
    """
    try:
        yield
    except LeakbenchError as error:
        raise SystemExit(f"leakbench: {error}") from None


class Workflow:
    """A project as Snakemake sees it.

    Args:
        root: the checkout.
        config: Snakemake's configuration: config/config.yaml with the changes of ``--config``.
    """

    def __init__(self, root: Path, config: Mapping[str, Any]) -> None:
        file = read_yaml(root / CONFIGURATION)
        changed = {key: value for key, value in config.items() if key not in file or file[key] != value}
        self.project = Project(root, changed)
        self.scale = self.project.settings.scale
        repeated = {key: value for key, value in changed.items() if key != "scale"}  # every path names its scale
        options = [word for key, value in repeated.items() for word in ("--set", f"{key}={json.dumps(value)}")]
        self.command = shlex.join([sys.executable, "-m", "leakbench", *options])
        """The command line to start jobs with; it repeats the overrides of this run."""
        self._sizes: dict[str, sharing.CellSize | None] = {}
        self._started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

    def targets(self) -> list[str]:
        """Everything of the configured scale.

        Records are among the targets, since Snakemake does not notice a missing file behind finished ones.

        Raises:
            ConfigError: the configuration, or a claim, figure or table, names something that does not exist.
        """
        check_readers(self.project.plan(self.scale))
        made = [path for entry in artifacts_at(self.project.plan(self.scale)) for path in entry.paths(self.scale)]
        made += [path for paper in self._claiming() for path in claims_paths(self.scale, paper)]
        return [*made, scorecard_path(self.scale), *self.project.plan(self.scale).jobs]

    def check_targets(self) -> None:
        """Refuse targets on the command line that nothing makes.

        Raises:
            ConfigError: the message says what there is.
        """
        check_targets(self.project, asked_for())

    def _claiming(self) -> list[str]:
        """The configured papers that have claims."""
        return [paper for paper in self.project.settings.papers if claims_of(paper)]

    def kinds(self) -> list[KindRule]:
        """One rule per kind of job: of this package, of papers, and of the configured plug-ins."""
        return kind_rules()

    def job_digest(self, **parts: str) -> str:
        """Identity of the job with these path parts: when it changes, the job runs again."""
        return self.project.job(_record_path(**parts)).digest

    def used(self, **parts: str) -> list[str]:
        """Paths of the records that the job with these path parts reads."""
        return [job.path for job in self.project.job(_record_path(**parts)).uses.values()]

    def records(self, scale: str, paper: str, experiment: str) -> list[str]:
        """Paths of an experiment's records, and of those that decide on its marks."""
        return [job.path for job in needed(self.project, table_path(scale, paper, experiment))]

    def tables_of(self, artifact: str) -> list[str]:
        """The tidy tables and verdicts behind the figure or table that a path names."""
        scale = Path(artifact).parts[1]
        plan, entry = self.project.plan(scale, where=artifact), artifact_of(artifact)
        entry.check_made(plan)
        return entry.inputs(scale)

    def tables_of_claims(self, scale: str, paper: str) -> list[str]:
        """The tidy tables behind the verdicts on a paper's claims."""
        self.project.plan(scale, where=claims_path(scale, paper))
        return claims_inputs(self.project, scale, paper)

    def scorecard_inputs(self, scale: str) -> list[str]:
        """Pictures, tables, verdicts, also published ones, and the files beside tidy tables: all that it shows."""
        plan = self.project.plan(scale)
        shown = [entry.path(scale, "png" if entry.kind == "figure" else "csv") for entry in artifacts_at(plan)]
        shown += [claims_path(scale, paper) for paper in self._claiming()]
        merged = [
            path
            for paper, spec in plan.papers.items()
            for experiment in spec.experiments
            for path in merged_paths(scale, paper, experiment)
        ]
        return [*shown, *merged, *self._pages(), *published_files(self.project, plan.papers)]

    def _pages(self) -> list[str]:
        """Replication pages of the configured papers that have one."""
        pages = [self.project.papers[paper].page for paper in self.project.settings.papers]
        return [below(page, self.project.root) for page in pages if page.is_file()]

    def merging_digest(self, scale: str, paper: str, experiment: str) -> str:
        """Hash of the code between records and pictures, and of what decides on the experiment's marks.

        A change of either merges and draws again, and computes nothing.
        """
        table = table_path(scale, paper, experiment)
        gates, cells = self.project.experiment_gates(table), self.project.adapted_cells(table)
        deciding = [each.described() for each in gates] + [each.described() for each in cells]
        return digest([_sources(REPORT), deciding])

    def drawing_digest(self, scale: str, paper: str) -> str:
        """Hash of the code that draws a paper's artifacts, of the formulas in them, and of the scale's description."""
        return digest([_paper_sources(self.project.papers[paper], FORMULAS), self.project.plan(scale).description])

    def judging_digest(self, scale: str, paper: str) -> str:
        """Hash of the code that judges a paper's claims: of the mechanisms too, on which theorems are checked.

        And of the files that the paper's own grid is from, since coverage compares with it.
        """
        paper_folder, config = self.project.papers[paper], (self.project.root / CONFIGURATION).parent
        folder, full = paper_folder.folder, Path("scales", f"{PAPER_SCALE}.yaml")
        files = (folder / "grid.yaml", folder / full, config / full, config / "papers" / f"{paper}.yaml")
        grids = [_without_words(read_yaml(file)) if file.is_file() else {} for file in files]
        return digest([self.drawing_digest(scale, paper), _paper_sources(paper_folder, FORMULAS + MECHANISMS), grids])

    def scorecard_digest(self, scale: str) -> str:
        """Hash of the code that writes the scorecard, and of its texts that are in no picture or table."""
        plan = self.project.plan(scale)
        words = {name: [paper.title, paper.citation] for name, paper in plan.papers.items()}
        return digest([_sources(REPORT), plan.description, words])

    def share(self, **parts: str) -> str | None:
        """The group of small cells with which the job with these path parts shares a SLURM job; None: it runs alone."""
        path = _record_path(**parts)
        size = self._size(path)
        return size.group(self.project.job(path).kind.on_gpu) if size else None

    def minutes(self, declared: int, attempt: int, **parts: str) -> int:
        """The time limit of a job on a cluster; see :func:`leakbench.workflow.sharing.minutes`."""
        return sharing.minutes(self._size(_record_path(**parts)), declared, attempt)

    def _size(self, path: str) -> sharing.CellSize | None:
        if path not in self._sizes:  # once, since a group stays as it is while jobs come and go
            self._sizes[path] = sharing.size_of(self.project.root, self.project.job(path))
        return self._sizes[path]

    def name_run(self) -> None:
        """Name this run for its jobs, which share a warm process on each host, and what they compute alike."""
        os.environ[SHARE] = "1"
        os.environ[RUN] = str(os.getpid()) if self.project.settings.warm else ""

    def name_job(self) -> None:
        """Name the run within a SLURM job, which is a run of its own, and let jobs keep copies of their records.

        In a SLURM job one Snakemake starts a second one for each job in it, as a step. The warm process is the first
        one's, and started by it, because SLURM ends with a step whatever was started there.
        """
        step = KEEP in os.environ and serves(os.environ.get(RUN, ""))
        os.environ[KEEP] = "1"
        if not step:
            self.name_run()
            if os.environ[RUN]:
                start(os.getpid())

    def unlock_if_alone(self, state: Path) -> None:
        """Remove the locks that a killed Snakemake left, so that the same command goes on where it stopped.

        Snakemake's locks are files, which survive a killed process. Every run also holds a shared lock of the kernel,
        which does not. A run that gets this lock exclusively is alone, and lock files of Snakemake are left over.

        Args:
            state: Snakemake's own folder, ``.snakemake``.
        """
        state.mkdir(exist_ok=True)
        self._alive = (state / "leakbench.lock").open("a+")
        if self._lock(fcntl.LOCK_EX):
            self._alive.truncate(0)
            for left in (state / "locks").glob("*.lock"):
                left.unlink(missing_ok=True)
        self._alive.seek(0)
        others = self._alive.read().splitlines()
        if others:
            print(_BESIDE.format(runs="; ".join(others)), file=sys.stderr)
        started = datetime.datetime.now().strftime("%d %B, %H:%M")
        print(f"process {os.getpid()} on {socket.gethostname()}, since {started}", file=self._alive, flush=True)
        self._lock(fcntl.LOCK_SH)

    def _lock(self, kind: int) -> bool:
        """Get the kernel's lock, unless another run or a file system without such locks prevents it."""
        try:
            fcntl.flock(self._alive, kind | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    @last_words()
    def check_compared(self) -> None:
        """End the run before it begins where a user's defense or attack breaks its contract.

        Raises:
            ConfigError: it does, and how; shown as the last words.
        """
        variants: list[Variant[Any]] = [*self.project.compared, *self.project.ensemble]
        if not any(variant.component.source for variant in variants):
            return
        command = [*shlex.split(self.command), "check", CONFIGURATION, "--json"]
        done = subprocess.run(command, cwd=self.project.root, text=True, capture_output=True, check=False)
        if not done.returncode:
            return
        answers = json.loads(done.stdout) if done.stdout else []
        wrong = [
            f"{each['component']}: {each['check']}: {each['message']}" for each in answers if each["verdict"] == "wrong"
        ]
        lines = "\n  ".join(wrong or [done.stderr.strip()])
        raise ConfigError(f"nothing was computed, since a component of yours breaks its contract:\n  {lines}")

    def requeue_preempted(self) -> None:
        """Put jobs back into SLURM's queue that it cancels for others."""
        requeue_preempted()

    def say_endings(self) -> None:
        """Print why jobs of this run left no record."""
        for line in endings(self.project.root, self._started):
            print(line, file=sys.stderr)

    def tidy_work(self) -> None:
        """Remove what jobs left while they ran, and copies of their records, where the records are in place.

        Not beside another run: it may need the copies.
        """
        if self._lock(fcntl.LOCK_EX):
            tidy(self.project.root)
        self._lock(fcntl.LOCK_SH)

    def look_at_record(self, known: Persistence, dryrun: bool, **parts: str) -> None:
        """Make Snakemake run the job with these path parts where its record is not the planned one, and else not.

        A record that cannot be read is moved aside, and so is one of another job that Snakemake knows nothing of, since
        another command wrote it. What Snakemake knows of an earlier record of another job is forgotten.

        Args:
            known: what Snakemake remembers of the files that it made.
            dryrun: only say what would be done.
            parts: of the record's path.
        """
        from snakemake.io import IOFile  # Snakemake itself is here, and nobody else

        path = _record_path(**parts)
        file = self.project.root / path
        if not file.is_file():
            return
        job, made = self.project.job(path), known.metadata(IOFile(path))
        try:
            other, why = staleness(job, read_record(file)), "outdated"
            fault = f"{path}: {other}" if other and made is None else ""
        except RecordError as error:
            other, why, fault = "unreadable", "corrupt", str(error)
        if fault:
            done = "A run moves it aside and makes it again" if dryrun else f"Moved to {quarantine(file, why).name}"
            print(f"{fault}. {done}", file=sys.stderr)
        elif not other and made is not None and not any(job.digest in each for each in made.params) and not dryrun:
            known.cleanup_metadata(IOFile(path))


def _record_path(
    scale: str, paper: str, experiment: str, dataset: str, model: str, defense: str, attack: str, part: str
) -> str:
    return "/".join((RESULTS, scale, paper, experiment, dataset, model, defense, attack, f"{part}.json"))


def _without_words(content: Any) -> Any:
    """A part of a grid or scale without what changes no number, nor mappings that are empty then."""
    if not isinstance(content, Mapping):
        return content
    kept = {key: _without_words(value) for key, value in content.items() if key not in WORDS}
    return {key: value for key, value in kept.items() if value != {}}


def _files(folder: Path) -> list[Path]:
    """Python files, templates, style sheets and printed numbers in a folder."""
    return [path for path in folder.rglob("*") if path.suffix in {".py", ".csv", ".j2", ".css"}]


@cache
def _sources(folder: Path) -> str:
    """Hash of the files in a folder of the package."""
    return source_digest(_files(folder), [INSTALLED])


@cache
def _paper_sources(paper: PaperFolder, rooms: tuple[str, ...]) -> str:
    """Hash of the files of a paper, of the report, and of modules of ``rooms`` that they import.

    For a paper of another distribution, also of the modules of that distribution that it imports.
    """
    top = paper.package.partition(".")[0]
    others = () if top == "leakbench" else (f"{top}.",)
    bases = [INSTALLED, paper.base]
    files = [*_files(REPORT), *_files(paper.folder)]
    modules = [file for file in files if file.suffix == ".py"]
    reached = imported_files(modules, bases, lambda name: name.startswith(rooms + others))
    return source_digest({*files, *reached}, bases)
