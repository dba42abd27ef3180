"""Runs one job: times it, notes where it ran, and writes its record."""

from __future__ import annotations

import datetime
import hashlib
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import leakbench
from leakbench.attacks import engine
from leakbench.errors import ConfigError, DataChanged, ObservationError, OutOfMemory, RecordError
from leakbench.jobs.base import Findings, Job, Setting, unable
from leakbench.lazy import torch
from leakbench.libraries.compiler import defer_compiler
from leakbench.libraries.memory import keep_freed_memory, out_of_memory
from leakbench.paper_folders import paper_folders
from leakbench.plugins import PREFIX
from leakbench.records import (
    Cost,
    Outcome,
    Provenance,
    Record,
    Replicate,
    alone,
    digest,
    read_record,
    read_tensors,
    write_record,
    write_tensors,
)
from leakbench.running import checkpoint, work
from leakbench.running.processor import processor
from leakbench.running.snapshots import Spent
from leakbench.staged.manifest import fingerprint

PACKAGES = (
    "leakbench",
    "torch",
    "torchvision",
    "torchmetrics",
    "lpips",
    "opacus",
    "numpy",
    "scikit-learn",
    "scikit-image",
)

BESIDE = {"papers", "leaderboard", "auditing", "publishing", "report", "contract", "workflow", "cli.py"}
"""Parts of the package that do not affect a job's numbers, but for the rooms of papers (``jobs``, ...)."""


@dataclass(frozen=True)
class Placement:
    """Device and numerical options of a job.

    Attributes:
        device: cuda or cpu; by default a GPU where there is one.
        threads: on a CPU; one by default, so that numbers do not depend on the number of cores.
        tf32: let a GPU round the factors of products to ten bits of mantissa.
        compile: attack through torch.compile: minutes to start, then faster. Like tf32 it changes the last digits.
    """

    device: str | None = None
    threads: int = 1
    tf32: bool = False
    compile: bool = False

    def resolve(self, *, on_gpu: bool = True) -> torch.device:
        """The device, after setting up torch for repeatable results in full float32.

        Args:
            on_gpu: where no device is named, whether it is a GPU if there is one.

        Raises:
            ConfigError: there is no such device.
        """
        device = _device(self.device, on_gpu)
        keep_freed_memory()
        defer_compiler()
        engine.COMPILED = self.compile
        torch.set_num_threads(self.threads)
        if device.type == "cuda":  # the CPU's algorithms are deterministic, and this call takes three seconds
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.backends.cuda.matmul.allow_tf32 = self.tf32
            torch.backends.cudnn.allow_tf32 = self.tf32
        return device


def _device(name: str | None, on_gpu: bool) -> torch.device:
    """The device of this name; without one a GPU, where there is one and it is wanted.

    Raises:
        ConfigError: there is none of this name.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    allowed = ["cpu", *(["cuda"] if gpus else []), *(f"cuda:{index}" for index in range(gpus))]
    chosen = name or ("cuda" if gpus and on_gpu else "cpu")
    if chosen not in allowed:
        raise ConfigError(f"--device {chosen}: no such device here. Allowed: {', '.join(allowed)}.")
    return torch.device(chosen)


def run_job(job: Job, root: Path, placement: Placement, *, keep: bool = False, shares: bool = False) -> Record:
    """Run a job and write its record, and its tensors, below ``root``.

    Args:
        job: the job.
        root: the root of the project.
        placement: its device and numerical options.
        keep: leave a copy of the record in the job's work folder, from which :func:`leakbench.running.work.restore`
            brings it back. Else the folder goes when the record is written.
        shares: take from other jobs of the run what they computed alike, and leave them what this one does.

    Raises:
        ConfigError: the placement names a device that is not there.
        DataChanged: the files of the data set were changed meanwhile, or since a record was made that the job uses; no
            record is written.
        ObservationError: what the attacker was given cannot be attacked.
        OutOfMemory: it needs more memory than there is.
        RecordError: a record that the job uses is missing, unreadable, or was made by another configuration.
        WriteError: the disk is full.
    """
    with work.attempt(root, job.path, job.digest) as folder:
        record = _run(job, root, placement, folder, root / work.WORK / work.SHARED if shares else None)
    if keep:
        work.keep(root, job.path)
    else:
        work.remove(root, job.path)
    return record


def _run(job: Job, root: Path, placement: Placement, folder: Path, shared: Path | None) -> Record:
    path = root / job.path
    job = with_kept(job, root)
    data = data_fingerprint(job)
    device = placement.resolve(on_gpu=job.kind.on_gpu)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    wall_started, cpu_started = time.perf_counter(), time.process_time()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)

    def spent() -> Spent:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        wall = time.perf_counter() - wall_started
        if device.type == "cuda":
            return Spent(wall, wall, torch.cuda.max_memory_allocated(device))
        return Spent(wall, time.process_time() - cpu_started, _peak_resident_bytes())

    def identity() -> dict[str, str]:
        return _identity(job, device, placement, data)

    try:
        with checkpoint.opened(folder, identity, spent, shared) as attempt:
            findings = compute(job, device)
            cost = attempt.earlier.plus(spent())
    except ObservationError as error:
        raise ObservationError(f"{job.path}: {error}") from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not out_of_memory(error):
            raise
        raise OutOfMemory(_without_memory(job, device, error)) from error
    if data_fingerprint(job) != data:
        raise DataChanged(
            f"{job.path}: the files of data set '{job.dataset.component.name}' were changed while the job read them, "
            "so no record was written. Leave them alone, and run the same command again"
        )
    record = Record(
        schema="leakbench.record/1",
        job=job.resolved(),
        metrics=job.metrics,
        replicates=findings.replicates,
        outcome=overall_outcome(findings.replicates),
        tensors=None,
        cost=Cost(wall_s=round(cost.wall_s, 3), device_s=round(cost.device_s, 3), peak_memory_bytes=cost.memory),
        provenance=_provenance(job, started, device, placement, root, data),
    )
    with alone(path.parent):  # two processes that make the same record do not mix their files
        if findings.tensors:
            record.tensors = write_tensors(path.with_suffix(".safetensors"), findings.tensors)
        write_record(path, record)
    return record


def _without_memory(job: Job, device: torch.device, error: Exception) -> str:
    """The message of a job that ran out of memory, with a remedy."""
    remedy = "run it on a GPU with more" if device.type == "cuda" else "give it more (mem_mb, docs/slurm.md)"
    reason = str(error).strip().split("\n")[0] or "MemoryError"
    return f"{job.path}: out of memory on {device.type}; {remedy}, or make the job smaller ({reason})"


def _identity(job: Job, device: torch.device, placement: Placement, data: str | None) -> dict[str, str]:
    """Everything that has to match for a job to continue from a checkpoint to the same numbers."""
    kind = f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    if device.type == "cuda":
        kind = f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda}"
    return {
        "job": job.digest,
        "data": str(data),
        "device": f"{device.type} ({kind})",
        "threads": str(placement.threads),
        "tf32": str(placement.tf32),
        "compile": str(placement.compile),
        **{package: version(package) for package in ("torch", "numpy")},
        "sources": _sources(),
    }


@cache
def _sources() -> str:
    """Hash of the package's code that computes, and of plug-ins."""
    package, content = Path(leakbench.__file__).parent, hashlib.sha256()
    files = [path for path in sorted(package.rglob("*.py")) if path.relative_to(package).parts[0] not in BESIDE]
    files += [path for paper in paper_folders().values() for path in sorted(paper.folder.glob("*/**/*.py"))]
    plugins = [module for name, module in sorted(sys.modules.items()) if name.startswith(PREFIX)]
    for path in (*files, *(Path(str(module.__file__)) for module in plugins)):
        content.update(path.name.encode() + path.read_bytes())
    return content.hexdigest()[:16]


def with_kept(job: Job, root: Path) -> Job:
    """A job with the records that it uses, and their tensors.

    Raises:
        RecordError: such a record is missing, unreadable, or was made by another configuration.
        DataChanged: such a record was made from other files of the data set.
    """
    kept, records = {}, {}
    data = data_fingerprint(job) if job.uses else None
    for kind, used in job.uses.items():
        path = root / used.path
        if not path.is_file():
            raise RecordError(f"{used.path}: missing, and {job.path} uses it; make it with `leakbench run {used.path}`")
        record = read_record(path)
        if digest(record.job) != used.digest:
            raise RecordError(
                f"{used.path}: made by another configuration; make it again with `leakbench run {used.path}`"
            )
        if record.provenance.data not in (None, data):
            raise DataChanged(
                f"{used.path}: made from other files of data set '{job.dataset.component.name}' than are there now; "
                f"delete it, and make it again with `leakbench run {used.path}`"
            )
        records[kind] = record
        kept[kind] = read_tensors(path, record.tensors) if record.tensors else {}
    return replace(job, records=records, kept=kept) if kept else job


def compute(job: Job, device: torch.device) -> Findings:
    """The findings of a job, over all combinations of the swept protocol fields.

    Swept fields join the replicates' settings, and prefix the names of tensors.
    """
    merged = Findings([])
    reason = unable(job)
    for setting, findings in _refused(job, reason) if reason else job.kind.run_swept(job, device):
        prefix = "".join(f"{key}={value}/" for key, value in setting.items())
        merged.replicates.extend(
            replicate.model_copy(update={"setting": {**replicate.setting, **setting}})
            for replicate in findings.replicates
        )
        merged.tensors.update({prefix + key: tensor for key, tensor in findings.tensors.items()})
    return merged


def _refused(job: Job, reason: str) -> Iterator[tuple[Setting, Findings]]:
    """Findings without numbers, of every combination of the swept protocol fields."""
    for setting, one in job.combinations():
        yield setting, Findings(one.without_numbers(Outcome(status="infeasible", reason=reason)))


def overall_outcome(replicates: list[Replicate]) -> Outcome:
    """The first outcome that is not ok, with how many share its status; else ok."""
    failed = [replicate.outcome for replicate in replicates if replicate.outcome.status != "ok"]
    if not failed:
        return Outcome()
    first = failed[0]
    same = sum(outcome.status == first.status for outcome in failed)
    return first.model_copy(update={"reason": f"{first.reason} ({same} of {len(replicates)} replicates)"})


def _peak_resident_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def data_fingerprint(job: Job) -> str | None:
    """Fingerprint of the staged files that a job reads; None if there are none.

    Raises:
        DataChanged: one of them cannot be read.
    """
    dataset = job.dataset.first
    try:
        return fingerprint(dataset.files())
    except OSError as error:  # a file went away since it was listed
        raise DataChanged(f"{job.path}: the files of data set '{dataset.name}' cannot be read ({error})") from error


def _provenance(
    job: Job, started: str, device: torch.device, placement: Placement, root: Path, data: str | None
) -> Provenance:
    commit, dirty = _git_state(root)
    return Provenance(
        started=started,
        commit=commit,
        dirty=dirty,
        versions={"python": platform.python_version(), **_versions()},
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu ({platform.machine()})",
        processor=processor(),
        threads=placement.threads,
        tf32=placement.tf32,
        compiled=placement.compile,
        slurm_job_id=os.environ.get("SLURM_JOB_ID"),
        plugins={source.name: dict(source.files) for source in job.plugins},
        data=data,
    )


def _versions() -> dict[str, str]:
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


@cache
def _git_state(root: Path) -> tuple[str | None, bool | None]:
    """The checked-out commit and whether tracked files differ from it; None where there is no git."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True).stdout

    try:
        return git("rev-parse", "HEAD").strip(), bool(
            git("--no-optional-locks", "status", "--porcelain", "--untracked-files=no").strip()
        )
    except (OSError, subprocess.CalledProcessError):
        return None, None
