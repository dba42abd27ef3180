"""Fetch trained weights from the Hugging Face Hub into the data root. For login nodes: jobs run offline."""

from __future__ import annotations

from pathlib import Path

from leakbench.errors import MissingData
from leakbench.models.bert import WEIGHT_FILES, transformers_library
from leakbench.staged.manifest import Staged, note_if_possible, put
from leakbench.staged.pins import check_fetched, pin
from leakbench.staged.root import data_root

KNOWN = {
    "google-bert/bert-base-uncased": ("Apache-2.0", 440_000_000),
    "distilbert/distilbert-base-uncased": ("Apache-2.0", 268_000_000),
}
"""Licence of weights on the Hub, and bytes to fetch, about."""


def staged_model(hub_id: str) -> Staged:
    """A model's weights as something to stage."""
    folder = data_root() / hub_id

    def files() -> list[Path]:
        missing = [file for file in WEIGHT_FILES if not (folder / file).is_file()]
        if missing:
            raise MissingData(
                f"weights '{hub_id}': {folder} lacks {' and '.join(missing)}. Run `leakbench stage {hub_id}`"
            )
        return [folder / file for file in WEIGHT_FILES]

    terms, download = KNOWN.get(hub_id, ("", None))
    return Staged(hub_id, terms, download, folder, files, published=pin(hub_id).sha256)


def stage_model(hub_id: str) -> Path:
    """Fetch what is missing of a model's weights and print what was done. Files that are there are kept.

    The download passes through the cache of ``huggingface_hub``, which the variable ``HF_HOME`` moves.

    Args:
        hub_id: the repository, such as ``google-bert/bert-base-uncased``.

    Returns:
        The folder that holds the files.

    Raises:
        MissingData: the Hub cannot be reached, refuses, has no such files, or gives others than were published.
        OSError: the folder cannot be written.
    """
    cached_file = transformers_library().utils.cached_file
    folder = data_root() / hub_id
    for file in WEIGHT_FILES:
        if (folder / file).is_file():
            print(f"{hub_id}: {file} is there, in {folder}")
            note_if_possible(folder, [folder / file])
            continue
        print(f"{hub_id}: fetching {file} from the Hub", flush=True)
        try:
            cached = cached_file(hub_id, file, revision=pin(hub_id).revision)
        except OSError as error:
            raise MissingData(
                f"weights '{hub_id}': cannot fetch {file} from the Hub ({error}). Run `leakbench stage {hub_id}` on a "
                f"machine with network access, or copy {' and '.join(WEIGHT_FILES)} to {folder}"
            ) from error
        check_fetched(hub_id, file, Path(cached))
        put(Path(cached), folder / file)
        print(f"{hub_id}: wrote {file} to {folder}")
    return folder
