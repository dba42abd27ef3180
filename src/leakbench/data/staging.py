"""Fetch a data set from the Hugging Face Hub into the data root. For login nodes: jobs run offline."""

from __future__ import annotations

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from leakbench.data.base import DATASETS, Split
from leakbench.data.staged import StagedDataset
from leakbench.errors import MissingData
from leakbench.root import data_root

if TYPE_CHECKING:
    import datasets

_SHARD_BYTES = 500_000_000


def stage(name: str) -> Path | None:
    """Fetch what is missing of the data set ``name`` and print what was done. Splits that are there are kept.

    The download passes through the cache of the ``datasets`` library, which the variable ``HF_HOME`` moves.

    Returns:
        The folder that holds the files; None for a data set that ships inside a dependency.

    Raises:
        UnknownName: no such data set.
        MissingData: the Hub cannot be reached or refuses, or the data root holds broken files.
    """
    dataset = DATASETS.get(name, "leakbench stage")
    if not issubclass(dataset, StagedDataset):
        print(f"{name}: ships inside a dependency; nothing to stage")
        return None
    root = data_root()
    folder = root / dataset.hub_id / dataset.folder
    for split in dataset.splits:
        if any(root.glob(f"{dataset.hub_id}/{dataset.pattern(split)}")):
            print(f"{name}: {split} is there, {dataset.shards(split)[-1].stop:,} images in {folder}")
            continue
        print(f"{name}: fetching {split} from {dataset.hub_id} on the Hub", flush=True)
        _write(_fetch(dataset, split), folder, dataset.splits[split])
        print(f"{name}: wrote {split}, {dataset.shards(split)[-1].stop:,} images, to {folder}")
    return folder


def _fetch(dataset: type[StagedDataset], split: Split) -> datasets.Dataset:
    """One split. The files are named, so that no other split is fetched along with it.

    Raises:
        MissingData: the Hub cannot be reached, or refuses.
    """
    from datasets import load_dataset

    try:
        return load_dataset(dataset.hub_id, data_files={split: dataset.pattern(split)}, split=split)
    except Exception as error:  # `datasets` passes on whatever its many layers raise
        raise MissingData(
            f"data set '{dataset.name}': cannot fetch {dataset.hub_id} from the Hub ({type(error).__name__}: {error}). "
            f"Run `leakbench stage {dataset.name}` on a machine with network access (for a set with terms of use: "
            f"accept them at https://huggingface.co/datasets/{dataset.hub_id}, then `hf auth login`), or copy its "
            f"parquet files to {data_root() / dataset.hub_id / dataset.pattern(split)}."
        ) from error


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
