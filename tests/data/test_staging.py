"""Fetching from the Hub; here a folder stands in for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from leakbench.data import staging
from leakbench.data.base import DATASETS
from leakbench.data.staged import Mnist, StagedDataset
from leakbench.data.staging import stage
from leakbench.errors import MissingData, UnknownName

Fake = Callable[..., StagedDataset]


@pytest.fixture
def hub(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that ``datasets.load_dataset`` takes for the Hub. Afterwards the data root is empty again."""
    folder, cache, load_dataset = tmp_path / "hub", tmp_path / "cache", datasets.load_dataset

    def load(path: str, **options: Any) -> datasets.Dataset:
        return load_dataset(str(folder / path), cache_dir=str(cache), **options)

    monkeypatch.setattr(datasets, "load_dataset", load)
    return folder


@pytest.fixture
def publish(hub: Path, root: Path, fake: Fake) -> Fake:
    """``fake``, but the files lie on the stand-in for the Hub."""

    def move(name: str, **layout: Any) -> StagedDataset:
        dataset = fake(name, **layout)
        root.rename(hub)
        root.mkdir()
        return dataset

    return move


def tree(folder: Path) -> list[str]:
    """All files and folders but for the parents of others."""
    return sorted(
        str(path.relative_to(folder)) for path in folder.rglob("*") if not (path.is_dir() and any(path.iterdir()))
    )


@pytest.mark.parametrize("name", ["mnist", "cifar10", "celeba", "imagenet"])
def test_staged_files_have_the_layout_that_is_read(
    name: str, publish: Fake, root: Path, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = publish(name, train=5, files=2)
    assert stage(name) == root / dataset.hub_id / dataset.folder
    prefix = f"{dataset.hub_id}/{dataset.folder}"
    names = [f"{prefix}/{split}-00000-of-00001.parquet" for split in sorted(dataset.splits.values())]
    assert tree(root) == sorted(names)
    staged = dataset.load("train", range(5))
    monkeypatch.setenv("LEAKBENCH_DATA", str(hub))
    original = dataset.load("train", range(5))
    assert torch.equal(staged.values, original.values) and torch.equal(staged.labels, original.labels)


def test_large_splits_become_several_files(
    publish: Fake, root: Path, monkeypatch: pytest.MonkeyPatch, noise: Any
) -> None:
    mnist = publish("mnist", train=25)
    monkeypatch.setattr(staging, "_SHARD_BYTES", 8_000)
    stage("mnist")
    assert [shard.path.name for shard in mnist.shards("train")] == [
        f"train-{number:05d}-of-00003.parquet" for number in range(3)
    ]
    expected = torch.stack([torch.from_numpy(pixels) for pixels in noise(25, "mnist")])
    assert torch.equal((mnist.load("train", range(25)).values[:, 0] * 255).round().byte(), expected)


def test_what_is_there_is_kept(
    publish: Fake, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish("mnist")
    stage("mnist")
    assert "mnist: wrote train, 6 images, to " in capsys.readouterr().out
    test_file = root / "ylecun/mnist/mnist/test-00000-of-00001.parquet"
    before = test_file.stat().st_mtime_ns
    (root / "ylecun/mnist/mnist/train-00000-of-00001.parquet").unlink()
    stage("mnist")
    printed = capsys.readouterr().out
    assert "wrote train" in printed and "test is there, 2 images" in printed
    assert test_file.stat().st_mtime_ns == before

    monkeypatch.setattr(datasets, "load_dataset", None)
    stage("mnist")


def test_only_the_splits_that_are_read_are_fetched(publish: Fake, hub: Path) -> None:
    publish("svhn")
    folder = hub / "ufldl-stanford/svhn/cropped_digits"
    (folder / "extra-00000-of-00001.parquet").write_bytes(b"would fail if it were read")
    stage("svhn")


@pytest.mark.parametrize("error", [ConnectionError("Couldn't reach the Hub"), FileNotFoundError("gated")])
def test_an_unreachable_hub(root: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    with pytest.raises(MissingData, match=f"cannot fetch flwrlabs/celeba .*{error}") as caught:
        stage("celeba")
    message = str(caught.value)
    assert "network access" in message and "https://huggingface.co/datasets/flwrlabs/celeba" in message
    assert f"{root}/flwrlabs/celeba/img_align+identity+attr/train-*-of-*.parquet" in message
    assert tree(root) == []


def test_a_failed_write_leaves_nothing(publish: Fake, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("mnist", train=25)
    monkeypatch.setattr(staging, "_SHARD_BYTES", 8_000)
    write, calls = datasets.Dataset.to_parquet, []

    def fail_late(self: datasets.Dataset, path: Path) -> int:
        calls.append(path)
        if len(calls) == 3:
            raise OSError("No space left on device")
        written: int = write(self, path)
        return written

    monkeypatch.setattr(datasets.Dataset, "to_parquet", fail_late)
    with pytest.raises(OSError, match="No space left"):
        stage("mnist")
    assert tree(root) == ["ylecun/mnist/mnist"]
    with pytest.raises(MissingData, match="is not staged"):
        Mnist().length("train")


def test_broken_files_are_not_silently_replaced(publish: Fake, root: Path) -> None:
    publish("mnist")
    stage("mnist")
    path = root / "ylecun/mnist/mnist/train-00000-of-00001.parquet"
    path.rename(path.with_name("train-00000-of-00002.parquet"))
    with pytest.raises(MissingData, match=re.escape("Delete the file(s), then run `leakbench stage mnist`")):
        stage("mnist")


@pytest.mark.parametrize("name", ["digits", "photos"])
def test_embedded_sets_need_no_staging(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert stage(name) is None
    assert capsys.readouterr().out == f"{name}: ships inside a dependency; nothing to stage\n"


def test_an_unknown_name() -> None:
    with pytest.raises(UnknownName, match="leakbench stage: unknown dataset 'cifar'; did you mean 'cifar10'"):
        stage("cifar")
    assert "cifar10" in DATASETS
