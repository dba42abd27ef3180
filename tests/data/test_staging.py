"""Fetching from the Hub; here a folder stands in for it."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pytest
import torch
from pyarrow import parquet

from leakbench.data import staging
from leakbench.data.base import DATASETS
from leakbench.data.sentences import Sentences
from leakbench.data.staged import Mnist, StagedImages
from leakbench.data.staging import stage
from leakbench.data.text import BERT, BertVocabulary, StagedText
from leakbench.errors import MissingData, UnknownName
from leakbench.staged import pins
from leakbench.staged.manifest import read_manifest
from leakbench.staged.pins import Pin

Fake = Callable[..., StagedImages]


@pytest.fixture
def hub(tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the Hub's libraries take for the Hub at the pinned revisions. Afterwards the data root is empty."""
    folder, cache, load_dataset = tmp_path / "hub", tmp_path / "cache", datasets.load_dataset

    def load(path: str, *, revision: str, **options: Any) -> datasets.Dataset:
        assert revision == pins.pin(path).revision
        return load_dataset(str(folder / path), cache_dir=str(cache), **options)

    def names(hub_id: str, *, repo_type: str, revision: str) -> list[str]:
        assert (repo_type, revision) == ("dataset", pins.pin(hub_id).revision)
        repository = folder / hub_id
        return [path.relative_to(repository).as_posix() for path in repository.rglob("*") if path.is_file()]

    def download(hub_id: str, name: str, *, repo_type: str, revision: str) -> str:
        assert (repo_type, revision) == ("dataset", pins.pin(hub_id).revision)
        return str(folder / hub_id / name)

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", names)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return folder


@pytest.fixture
def publish(hub: Path, root: Path, fake: Fake) -> Fake:
    """``fake``, but the files lie on the stand-in for the Hub."""

    def move(name: str, **layout: Any) -> StagedImages:
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


@pytest.mark.parametrize("name", ["mnist", "cifar10", "cifar100", "celeba", "imagenet"])
def test_staged_files_have_the_layout_that_is_read(
    name: str, publish: Fake, root: Path, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = publish(name, train=5, files=2)
    assert stage(name) == root / dataset.hub_id / dataset.folder
    prefix = f"{dataset.hub_id}/{dataset.folder}"
    splits = sorted(dataset.splits.values())
    names = [f"{prefix}/{split}-{number:05d}-of-00002.parquet" for split in splits for number in range(2)]
    assert tree(root) == sorted([*names, f"{dataset.hub_id}/manifest.json"])
    noted = read_manifest(root / dataset.hub_id).files
    assert {f"{dataset.hub_id}/{key}": entry.sha256 for key, entry in noted.items()} == {
        name: hashlib.sha256((root / name).read_bytes()).hexdigest() for name in names
    }
    assert all((root / name).read_bytes() == (hub / name).read_bytes() for name in names)
    staged = dataset.load("train", range(5))
    monkeypatch.setenv("LEAKBENCH_DATA", str(hub))
    original = dataset.load("train", range(5))
    assert torch.equal(staged.values, original.values) and torch.equal(staged.labels, original.labels)


def test_large_splits_of_repositories_with_other_files_become_several(
    hub: Path,
    root: Path,
    fake_text: Callable[..., type[StagedText]],
    vocabulary: object,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(f"dog {number}", number % 2) for number in range(25)]
    dataset = fake_text("rotten_tomatoes", rows)
    root.rename(hub)
    root.mkdir()
    monkeypatch.setattr(staging, "_SHARD_BYTES", 200)
    stage("rotten_tomatoes")
    shards = dataset.shards("train")
    assert [shard.path.name for shard in shards] == [
        f"train-{number:05d}-of-{len(shards):05d}.parquet" for number in range(len(shards))
    ]
    assert len(shards) > 2
    read = [(each["text"], each["label"]) for shard in shards for each in parquet.read_table(shard.path).to_pylist()]
    assert read == rows


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

    monkeypatch.setattr(huggingface_hub, "list_repo_files", None)
    stage("mnist")


def test_files_that_somebody_put_there_are_noted(publish: Fake, root: Path, hub: Path) -> None:
    publish("mnist")
    root.rmdir()
    hub.rename(root)
    stage("mnist")
    noted = read_manifest(root / "ylecun/mnist").files
    assert sorted(noted) == [f"mnist/{split}-00000-of-00001.parquet" for split in ("test", "train")]


def test_a_file_of_another_size_than_was_staged(publish: Fake, root: Path) -> None:
    publish("mnist")
    stage("mnist")
    (root / "ylecun/mnist/mnist/train-00000-of-00001.parquet").write_bytes(
        (root / "ylecun/mnist/mnist/test-00000-of-00001.parquet").read_bytes()
    )
    with pytest.raises(
        MissingData, match=r"train-00000-of-00001.parquet has [\d,]+ bytes, and [\d,]+ when it was staged"
    ):
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

    monkeypatch.setattr(huggingface_hub, "list_repo_files", refuse)
    with pytest.raises(MissingData, match=f"cannot fetch flwrlabs/celeba .*{error}") as caught:
        stage("celeba")
    message = str(caught.value)
    assert "network access" in message and "https://huggingface.co/datasets/flwrlabs/celeba" in message
    assert f"{root}/flwrlabs/celeba/img_align+identity+attr/train-*-of-*.parquet" in message
    assert tree(root) == []


def test_a_failed_write_leaves_nothing(publish: Fake, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish("mnist", train=25, files=3)
    copy, calls = shutil.copyfile, []

    def fail_late(source: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 3:
            raise OSError("No space left on device")
        return copy(source, target)

    monkeypatch.setattr(shutil, "copyfile", fail_late)
    with pytest.raises(OSError, match="No space left"):
        stage("mnist")
    assert tree(root) == ["ylecun/mnist/mnist"]
    with pytest.raises(MissingData, match="is not staged"):
        Mnist().length("train")


def test_a_repository_without_such_files(publish: Fake, hub: Path, root: Path) -> None:
    publish("mnist")
    for path in hub.rglob("*.parquet"):
        path.rename(path.with_suffix(".csv"))
    with pytest.raises(MissingData, match=re.escape("no file matches mnist/train-*-of-*.parquet")):
        stage("mnist")


def test_other_files_than_were_published_are_not_staged(
    publish: Fake, hub: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish("mnist")
    file = "mnist/train-00000-of-00001.parquet"
    digest = hashlib.sha256((hub / "ylecun/mnist" / file).read_bytes()).hexdigest()
    known = {"ylecun/mnist": Pin(revision="a" * 40, sha256={file: digest})}
    monkeypatch.setattr(pins, "_pins", lambda: known)
    stage("mnist")

    (root / "ylecun/mnist" / file).unlink()
    monkeypatch.setattr(pins, "_pins", lambda: {"ylecun/mnist": Pin(revision="a" * 40, sha256={file: "b" * 64})})
    with pytest.raises(MissingData, match=f"{file} of ylecun/mnist, .* is not the file of revision {'a' * 40}: "):
        stage("mnist")
    assert not (root / "ylecun/mnist" / file).exists()


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
    assert capsys.readouterr().out == f"{name}: ships with the installation; nothing to stage\n"


def test_an_unknown_name() -> None:
    with pytest.raises(UnknownName, match="leakbench stage: unknown dataset 'cifar'; did you mean 'cifar10'"):
        stage("cifar")
    assert "cifar10" in DATASETS


@pytest.fixture
def vocabulary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """A small vocabulary on the stand-in for the Hub; returns what was asked for there."""
    file = tmp_path / "cached"
    asked: list[tuple[str, str]] = []
    of_others: Callable[..., str] = huggingface_hub.hf_hub_download
    file.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ndog\n")

    def download(repository: str, name: str, **options: str) -> str:
        if repository != BERT:
            return of_others(repository, name, **options)
        assert options == {"revision": pins.pin(BERT).revision}
        asked.append((repository, name))
        return str(file)

    of_others = huggingface_hub.hf_hub_download

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    return asked


@pytest.mark.parametrize("name", ["cola", "rotten_tomatoes"])
def test_text_comes_with_its_vocabulary(
    name: str,
    hub: Path,
    root: Path,
    fake_text: Callable[..., type[StagedText]],
    vocabulary: list[tuple[str, str]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    dataset = fake_text(name, [("A dog", 1), ("Dog", 0), ("Dog dog", 0)])
    root.rename(hub)
    root.mkdir()
    assert stage(name) == root / dataset.hub_id / dataset.folder
    files = 2 if dataset.folder else 1  # where they have other names than ours, they are written anew
    splits = [dataset.pattern("test").replace("*-of-*", "00000-of-00001")]
    splits += [dataset.pattern("train").replace("*-of-*", f"{each:05d}-of-{files:05d}") for each in range(files)]
    file = "google-bert/bert-base-uncased/vocab.txt"
    manifests = ["google-bert/bert-base-uncased/manifest.json", f"{dataset.hub_id}/manifest.json"]
    assert tree(root) == sorted([file, *manifests, *(f"{dataset.hub_id}/{split}" for split in splits)])
    assert f"{name}: wrote train, 3 sentences, to" in capsys.readouterr().out
    staged = dataset.model_validate({"tokens": 5})
    assert staged.load("train", [2, 0]).values.tolist() == [[2, 4, 4, 3, 0], [2, 1, 4, 3, 0]]
    stage(name)
    printed = capsys.readouterr().out
    assert "train is there, 3 sentences" in printed and f"bert_vocabulary: is there, {root / file}" in printed
    assert vocabulary == [("google-bert/bert-base-uncased", "vocab.txt")]


def test_the_vocabulary_alone(root: Path, vocabulary: list[tuple[str, str]]) -> None:
    assert stage("bert_vocabulary") == root / "google-bert/bert-base-uncased"
    folder = "google-bert/bert-base-uncased"
    assert tree(root) == [f"{folder}/manifest.json", f"{folder}/vocab.txt"]
    assert BertVocabulary().tokenizer(Sentences(), root).vocabulary_size == 5


def test_no_vocabulary_from_an_unreachable_hub(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", refuse)
    with pytest.raises(MissingData, match=r"bert_vocabulary: cannot fetch vocab.txt of .*no route.*network") as caught:
        stage("bert_vocabulary")
    assert f"copy the file to {root}/google-bert/bert-base-uncased/vocab.txt" in str(caught.value)
    assert tree(root) == []
