"""Revisions and published digests of what is staged from the Hugging Face Hub (``pins.toml``)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from leakbench.errors import MissingData
from leakbench.staged.manifest import sha256


class Pin(BaseModel):
    """A repository on the Hub.

    Attributes:
        revision: the commit that is staged; None for a repository that nobody pinned, of which the newest is.
        sha256: published digests, by the file's path in the repository.
        idx: published MD5 digests of the images and of the labels of a split, as files of the format IDX.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    revision: str | None = Field(None, pattern="^[0-9a-f]{40}$")
    sha256: Mapping[str, str] = {}
    idx: Mapping[str, tuple[str, str]] = {}


def pin(hub_id: str) -> Pin:
    """The pin of a repository; an empty one if it has none."""
    return _pins().get(hub_id, Pin())


@cache
def _pins() -> dict[str, Pin]:
    content = tomllib.loads(Path(__file__).with_name("pins.toml").read_text())
    return TypeAdapter(dict[str, Pin]).validate_python(content)


def check_fetched(hub_id: str, file: str, path: Path) -> None:
    """Compare a fetched file with its published digest, if it has one.

    Args:
        hub_id: its repository.
        file: its path there.
        path: where it lies now.

    Raises:
        MissingData: it is another file.
    """
    pinned = pin(hub_id)
    wanted = pinned.sha256.get(file)
    if wanted is not None and (digest := sha256(path)) != wanted:
        raise MissingData(
            f"{file} of {hub_id}, fetched to {path}, is not the file of revision {pinned.revision}: its SHA-256 is "
            f"{digest}, not {wanted}. Nothing was staged. Delete what was fetched, and try again; if it stays so, what "
            f"stands between this machine and the Hub (HF_ENDPOINT, a proxy) gives other files"
        )
