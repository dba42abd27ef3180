"""Fetch data sets from the Hugging Face Hub into the data root. For login nodes: jobs run offline."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from leakbench.data.base import DATASETS, Split, data_root
from leakbench.data.staged import StagedDataset, StagedImages
from leakbench.data.text import BERT, BERT_FILE, VOCABULARY, StagedText
from leakbench.errors import MissingData
from leakbench.staged.manifest import Staged, note, note_if_possible, put
from leakbench.staged.pins import check_fetched, pin

if TYPE_CHECKING:
    import datasets

_SHARD_BYTES = 500_000_000


def staged_dataset(name: str) -> Staged | None:
    """A data set as something to stage; None for one that ships inside a dependency or the package itself.

    Raises:
        UnknownName: no such data set.
    """
    dataset = DATASETS.get(name, "leakbench stage")
    if not issubclass(dataset, StagedDataset):
        return None

    def files() -> list[Path]:
        return [shard.path for split in dataset.splits for shard in dataset.shards(split)]

    page = f"https://huggingface.co/datasets/{dataset.hub_id}" if dataset.gated else ""
    folder, pinned = data_root() / dataset.hub_id, pin(dataset.hub_id)
    contents: dict[str, Callable[[], bool]] = {}
    for split in dataset.splits:
        if issubclass(dataset, StagedImages) and split in pinned.idx:
            holds = cache(partial(_holds, dataset, split, pinned.idx[split]))  # once for the files of a split
            contents |= {path.relative_to(folder).as_posix(): holds for path in dataset.paths(split)}
    terms, published = dataset.terms, pinned.sha256
    return Staged(name, terms, dataset.download, folder, files, page, published=published, contents=contents)


def _holds(dataset: type[StagedImages], split: Split, idx: tuple[str, str]) -> bool:
    """Whether a split holds the images and labels with these digests."""
    return dataset.model_validate({}).idx_digests(split) == idx


def staged_vocabulary() -> Staged:
    """BERT's vocabulary as something to stage."""
    path = data_root() / BERT / BERT_FILE

    def files() -> list[Path]:
        if not path.is_file():
            raise MissingData(f"{VOCABULARY}: no file {path}. Run `leakbench stage {VOCABULARY}`")
        return [path]

    return Staged(VOCABULARY, "Apache-2.0", 232_000, path.parent, files, published=pin(BERT).sha256)


def stage(name: str) -> Path | None:
    """Fetch what is missing of the data set ``name`` and print what was done. Splits that are there are kept.

    With a data set of text comes BERT's vocabulary, which its tokenizer reads by default; as :data:`VOCABULARY` it
    comes alone.

    The download passes through the caches of the Hub's libraries, which the variable ``HF_HOME`` moves.

    Returns:
        The folder that holds the files; None for a data set that ships inside a dependency or the package itself.

    Raises:
        UnknownName: no such data set.
        MissingData: the Hub cannot be reached, refuses, or gives other files than were published, or the data root
            holds broken files.
    """
    if name == VOCABULARY:
        return _stage_vocabulary().parent
    dataset = DATASETS.get(name, "leakbench stage")
    if not issubclass(dataset, StagedDataset):
        print(f"{name}: ships with the installation; nothing to stage")
        return None
    root = data_root()
    folder = root / dataset.hub_id / dataset.folder
    for split in dataset.splits:
        if any(root.glob(f"{dataset.hub_id}/{dataset.pattern(split)}")):
            print(f"{name}: {split} is there, {dataset.count(split):,} {dataset.unit} in {folder}")
            note_if_possible(root / dataset.hub_id, dataset.paths(split))
            continue
        print(f"{name}: fetching {split} from {dataset.hub_id} on the Hub", flush=True)
        if dataset.folder:
            _put(_files(dataset, split), root / dataset.hub_id)
        else:  # such repositories name their files as they like
            _write(_rows(dataset, split), folder, dataset.splits[split])
        note(root / dataset.hub_id, dataset.paths(split), fetched=True)
        print(f"{name}: wrote {split}, {dataset.count(split):,} {dataset.unit}, to {folder}")
    if issubclass(dataset, StagedText):
        _stage_vocabulary()
    return folder


def _stage_vocabulary() -> Path:
    """Fetch the vocabulary of BERT where it is not there yet; returns where it lies.

    Raises:
        MissingData: the Hub cannot be reached, refuses, or gives another file than was published.
    """
    path = data_root() / BERT / BERT_FILE
    if path.is_file():
        print(f"{VOCABULARY}: is there, {path}")
        note_if_possible(path.parent, [path])
        return path
    import huggingface_hub

    print(f"{VOCABULARY}: fetching {BERT_FILE} of {BERT} on the Hub", flush=True)
    try:
        fetched = Path(huggingface_hub.hf_hub_download(BERT, BERT_FILE, revision=pin(BERT).revision))
    except Exception as error:  # the library passes on whatever its layers raise
        raise MissingData(
            f"{VOCABULARY}: cannot fetch {BERT_FILE} of {BERT} from the Hub ({type(error).__name__}: {error}). Run "
            f"`leakbench stage {VOCABULARY}` on a machine with network access, or copy the file to {path}."
        ) from error
    check_fetched(BERT, BERT_FILE, fetched)
    put(fetched, path)
    print(f"{VOCABULARY}: wrote {path}")
    return path


def _files(dataset: type[StagedDataset], split: Split) -> dict[str, Path]:
    """The files of a split in the cache of the Hub's library, by their paths in the repository; of no other split.

    Raises:
        MissingData: the Hub cannot be reached, refuses, has no such files, or gives others than were published.
    """
    import huggingface_hub

    hub_id, revision = dataset.hub_id, pin(dataset.hub_id).revision
    with _reaching(dataset, split):
        names = huggingface_hub.list_repo_files(hub_id, repo_type="dataset", revision=revision)
        chosen = sorted(name for name in names if PurePosixPath(name).match(dataset.pattern(split)))
        if not chosen:
            raise FileNotFoundError(f"no file matches {dataset.pattern(split)}")
        fetched = {
            name: Path(huggingface_hub.hf_hub_download(hub_id, name, repo_type="dataset", revision=revision))
            for name in chosen
        }
    for name, path in fetched.items():
        check_fetched(hub_id, name, path)
    return fetched


def _rows(dataset: type[StagedDataset], split: Split) -> datasets.Dataset:
    """One split of a repository without such files.

    Raises:
        MissingData: the Hub cannot be reached, or refuses.
    """
    from datasets import load_dataset

    with _reaching(dataset, split):
        return load_dataset(dataset.hub_id, split=dataset.splits[split], revision=pin(dataset.hub_id).revision)


@contextmanager
def _reaching(dataset: type[StagedDataset], split: Split) -> Iterator[None]:
    """Say what to do where the Hub cannot be reached, or refuses.

    Raises:
        MissingData: whatever the Hub's libraries raise; they pass on the errors of their many layers.
    """
    try:
        yield
    except Exception as error:
        raise MissingData(
            f"data set '{dataset.name}': cannot fetch {dataset.hub_id} from the Hub ({type(error).__name__}: {error}). "
            f"Run `leakbench stage {dataset.name}` on a machine with network access (for a set with terms of use: "
            f"accept them at https://huggingface.co/datasets/{dataset.hub_id}, then `hf auth login`), or copy its "
            f"parquet files to {data_root() / dataset.hub_id / dataset.pattern(split)}."
        ) from error


def _put(fetched: Mapping[str, Path], folder: Path) -> None:
    """Copy fetched files to their paths below a folder, where all appear when all are complete.

    Raises:
        OSError: the folder cannot be written.
    """
    for target in {(folder / name).parent for name in fetched}:
        target.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder, prefix=".staging-") as temporary:
        for number, path in enumerate(fetched.values()):
            shutil.copyfile(path, Path(temporary, str(number)))
        for number, name in enumerate(fetched):  # a crash among these leaves an incomplete set, which the reader names
            Path(temporary, str(number)).replace(folder / name)


def _write(rows: datasets.Dataset, folder: Path, split: str) -> None:
    """Write ``{split}-{k}-of-{n}.parquet`` files; each appears only when it is complete.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    count = math.ceil(max(rows.data.nbytes, 1) / _SHARD_BYTES)
    with TemporaryDirectory(dir=folder, prefix=".staging-") as temporary:
        names = [f"{split}-{number:05d}-of-{count:05d}.parquet" for number in range(count)]
        for number, file in enumerate(names):
            rows.shard(count, number, contiguous=True).to_parquet(Path(temporary, file))
        for file in names:  # a crash among these leaves an incomplete set, which the reader names
            Path(temporary, file).replace(folder / file)
