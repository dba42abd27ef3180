"""What a job leaves behind: its record, what it cost and where it came from; and the inventory of a model."""

from __future__ import annotations

import io
import random
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow
import pytest
import torch
from PIL import Image
from pyarrow import parquet

from leakbench.data.staged import Mnist, _count
from leakbench.defenses.noise import GaussianNoise
from leakbench.errors import ConfigError, DataChanged
from leakbench.jobs.base import Findings, Job, Variant
from leakbench.jobs.inventory import InventoryJob
from leakbench.jobs.runner import Placement, _device, data_fingerprint, overall_outcome, run_job
from leakbench.jobs.train import TrainJob
from leakbench.models.convnets import SimpleConvNet
from leakbench.records import Outcome, Replicate, read_record, read_tensors

Jobs = Callable[..., Job]


def test_record_and_tensors(attack_job: Jobs, tmp_path: Path) -> None:
    job = attack_job(GaussianNoise, {}, {"scale": [0.01, 0.1]}, seeds=(0, 1))
    record = run_job(job, tmp_path, Placement(device="cpu"))
    path = tmp_path / "results/test/paper/experiment/digits8/tiny/defense/attack/all.json"
    assert path == tmp_path / job.path
    assert read_record(path) == record
    assert record.job == job.resolved() and record.outcome == Outcome()
    assert record.tensors is not None and record.tensors.file == "all.safetensors"
    tensors = read_tensors(path, record.tensors)
    assert sorted(tensors) == [
        f"seed{seed}/{what}" for seed in (0, 1) for what in ("assignment", "reconstructions", "victims")
    ]
    assert tensors["seed0/victims"].shape == (3, 2, 1, 8, 8)
    assert tensors["seed0/reconstructions"].shape == (2, 3, 2, 1, 8, 8)
    assert {child.name for child in path.parent.iterdir()} == {"all.json", "all.safetensors"}


@pytest.mark.parametrize(
    ("name", "gpus", "allowed"), [("foo", 0, "cpu"), ("cuda", 0, "cpu"), ("cuda:1", 1, "cpu, cuda, cuda:0")]
)
def test_a_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch, name: str, gpus: int, allowed: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(ConfigError, match=f"^--device {name}: no such device here. Allowed: {allowed}.$"):
        Placement(device=name).resolve()


def test_kinds_without_a_gpu_stay_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert _device(None, on_gpu=False).type == "cpu" and _device(None, on_gpu=True).type == "cuda"
    assert _device("cuda", on_gpu=False).type == "cuda"


def test_cost_and_provenance(train_job: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    record = run_job(train_job(), tmp_path, Placement(device="cpu"))
    assert 0 < record.cost.wall_s < 60 and 0 < record.cost.device_s < 60
    assert 5e7 < record.cost.peak_memory_bytes < 2**34
    where = record.provenance
    assert (where.commit, where.dirty, where.threads, where.slurm_job_id) == (None, None, 1, "4711")
    assert where.device.startswith("cpu (") and where.started.endswith("+00:00")
    assert where.versions["torch"] == torch.__version__ and {"python", "leakbench", "numpy"} <= set(where.versions)
    assert record.tensors is None


@pytest.mark.parametrize("dirty", [False, True])
def test_the_commit_is_noted(train_job: Jobs, tmp_path: Path, dirty: bool) -> None:
    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "file").write_text("one")
    git("init")
    git("add", "file")
    git("commit", "--message", "first")
    if dirty:
        (tmp_path / "file").write_text("two")
    provenance = run_job(train_job(steps=1), tmp_path, Placement(device="cpu")).provenance
    assert provenance.commit == git("rev-parse", "HEAD") and provenance.dirty is dirty


def test_diverged_and_infeasible_jobs_leave_records(attack_job: Jobs, train_job: Jobs, tmp_path: Path) -> None:
    diverged = run_job(train_job(rate=1e30, seeds=(0, 1)), tmp_path, Placement(device="cpu"))
    assert diverged.outcome.status == "diverged" and diverged.outcome.step == 1
    assert "(2 of 2 replicates)" in (diverged.outcome.reason or "")
    infeasible = run_job(attack_job(knowledge=()), tmp_path, Placement(device="cpu"))
    assert infeasible.outcome.status == "infeasible" and infeasible.tensors is None
    assert read_record(tmp_path / attack_job(knowledge=()).path) == infeasible


def test_overall_outcome_is_the_first_that_is_not_ok() -> None:
    replicates = [
        Replicate(seed=0, metrics={}),
        Replicate(seed=1, metrics={}, outcome=Outcome(status="diverged", reason="x", step=4)),
        Replicate(seed=2, metrics={}, outcome=Outcome(status="diverged", reason="y", step=1)),
    ]
    assert overall_outcome(replicates) == Outcome(status="diverged", reason="x (2 of 3 replicates)", step=4)
    assert overall_outcome(replicates[:1]) == Outcome()


def test_inventory_counts_tensor_by_tensor(train_job: Jobs) -> None:
    job = replace(train_job(), kind=InventoryJob(), model=Variant("small", SimpleConvNet, {"width": 4}, {}))
    findings = job.kind.run(job, torch.device("cpu"))
    (replicate,) = findings.replicates
    assert replicate.metrics == {
        "conv_layers.0.weight": 36,
        "conv_layers.0.bias": 4,
        "conv_layers.3.weight": 288,
        "conv_layers.3.bias": 8,
        "fc_layers.1.weight": 128,
        "fc_layers.1.bias": 4,
        "fc_layers.3.weight": 40,
        "fc_layers.3.bias": 10,
    }
    assert list(job.metrics) == list(replicate.metrics) and findings.tensors == {}
    assert {info.unit for info in job.metrics.values()} == {"parameters"}


Rewrite = Callable[[str], None]


@pytest.fixture
def mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rewrite:
    """``mnist("seed")`` writes a staged MNIST of images that follow from a word."""
    root = tmp_path / "data"
    monkeypatch.setenv("LEAKBENCH_DATA", str(root))
    folder = root / "ylecun/mnist/mnist"
    folder.mkdir(parents=True)

    def write(word: str) -> None:
        draw = random.Random(word)
        for split in ("train", "test"):
            images = []
            for _ in range(40):
                stream = io.BytesIO()
                Image.frombytes("L", (28, 28), draw.randbytes(28 * 28)).save(stream, "PNG")
                images.append({"bytes": stream.getvalue(), "path": None})
            kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
            table = pyarrow.table({"image": pyarrow.array(images, kind), "label": [i % 10 for i in range(40)]})
            parquet.write_table(table, folder / f"{split}-00000-of-00001.parquet")
        _count.cache_clear()

    write("first")
    return write


def on_mnist(job: Job) -> Job:
    return replace(job, dataset=Variant("mnist", Mnist, {}, {}))


def test_records_say_which_data_they_were_made_from(train_job: Jobs, tmp_path: Path, mnist: Rewrite) -> None:
    job = on_mnist(train_job(steps=1))
    first, again = (run_job(job, tmp_path, Placement(device="cpu")).provenance.data for _ in range(2))
    assert first is not None and first == again == data_fingerprint(job)
    mnist("second")
    assert run_job(job, tmp_path, Placement(device="cpu")).provenance.data != first
    assert run_job(train_job(steps=1), tmp_path, Placement(device="cpu")).provenance.data is None


def test_data_that_changes_while_a_job_reads_it(
    train_job: Jobs, tmp_path: Path, mnist: Rewrite, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = on_mnist(train_job(steps=1))
    run = type(job.kind).run

    def change(kind: TrainJob, job: Job, device: torch.device) -> Findings:
        findings = run(kind, job, device)
        mnist("second")
        return findings

    with monkeypatch.context() as patch:
        patch.setattr(TrainJob, "run", change)
        with pytest.raises(
            DataChanged, match="the files of data set 'mnist' were changed while the job read them, so no "
        ):
            run_job(job, tmp_path, Placement(device="cpu"))
    assert not (tmp_path / job.path).exists()
    assert run_job(job, tmp_path, Placement(device="cpu")).outcome.status == "ok"
