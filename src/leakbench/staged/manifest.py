"""Digests of staged files, noted beside them when they are fetched, and fingerprints of a job's data.

``<data root>/<hub id>/manifest.json`` holds the size and SHA-256 of every file, by its path relative to that folder.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from leakbench.errors import MissingData

MANIFEST = "manifest.json"

WHOLE = 32 << 20
"""Files up to this size, in bytes, are read whole for a fingerprint; of larger ones both ends."""
END = 64 << 10
"""Bytes of an end. The last ones of a parquet file say where its last columns begin, behind all others."""


class Entry(BaseModel):
    """A file as it was staged."""

    model_config = ConfigDict(extra="forbid")

    size: int = Field(ge=0, description="bytes")
    sha256: str


class Manifest(BaseModel):
    """manifest.json."""

    model_config = ConfigDict(extra="forbid")

    files: dict[str, Entry] = {}


@dataclass(frozen=True)
class Staged:
    """Files that have to be staged: a data set, a vocabulary, weights.

    Attributes:
        name: its name for ``leakbench stage``.
        terms: its licence, or the terms of its use.
        download: bytes to fetch, about; None where nobody noted them.
        folder: where its files and their manifest lie.
        files: all its files. Raises MissingData if they are not all there, or unusable.
        accept: the page where terms have to be accepted before anything can be fetched.
        digest: the SHA-256 of its only file, or how it begins, where it is known without a manifest.
        published: digests of its files that are known without a manifest, by the path relative to the folder.
        contents: by the same paths, for files that may be encoded in several ways: whether what they hold is what was
            published. Asked of files with another digest, or none; reads them.
    """

    name: str
    terms: str
    download: int | None
    folder: Path
    files: Callable[[], Sequence[Path]]
    accept: str = ""
    digest: str = ""
    published: Mapping[str, str] = field(default_factory=dict)
    contents: Mapping[str, Callable[[], bool]] = field(default_factory=dict)

    def faults(self) -> list[str]:
        """Faults of its files, which are all there; reads them whole.

        Raises:
            MissingData: files are missing, or the manifest cannot be read.
        """
        known = {} if self.digest else read_manifest(self.folder).files
        faults = []
        for path in self.files():
            key, digest = _key(self.folder, path), sha256(path)
            published, entry = self.digest or self.published.get(key, ""), known.get(key)
            as_published = bool(published) and digest.startswith(published)
            if not as_published and key in self.contents:
                if not self.contents[key]():
                    faults.append(f"{path} holds other values than were published")
            elif published and not as_published:
                faults.append(_differs(path, "published", digest, published))
            elif entry and digest != entry.sha256:
                faults.append(_differs(path, "staged", digest, entry.sha256))
        return faults

    def differing(self) -> list[str]:
        """Files whose digest was noted, and is not the one that was published; reads no file.

        Files that may be encoded in several ways are left out.

        Raises:
            MissingData: files are missing, or the manifest cannot be read.
        """
        known = {} if self.digest else read_manifest(self.folder).files
        keys = {_key(self.folder, path): path for path in self.files()} if known else {}
        return [
            _differs(path, "published", known[key].sha256, self.published[key])
            for key, path in keys.items()
            if key in known
            and key not in self.contents
            and known[key].sha256 != self.published.get(key, known[key].sha256)
        ]

    def unpublished(self) -> list[str]:
        """Files of which no digest was published: what was noted at a first staging is all that is known of them.

        Raises:
            MissingData: files are missing.
        """
        known = {*self.published, *self.contents}
        return [] if self.digest else [path.name for path in self.files() if _key(self.folder, path) not in known]

    def unnoted(self) -> list[str]:
        """Files whose digest nobody knows.

        Raises:
            MissingData: files are missing, or the manifest cannot be read.
        """
        known = {} if self.digest else {*read_manifest(self.folder).files, *self.published, *self.contents}
        return [] if self.digest else [path.name for path in self.files() if _key(self.folder, path) not in known]


def _differs(path: Path, what: str, digest: str, wanted: str) -> str:
    return f"{path} is not what was {what}: its SHA-256 begins with {digest[:16]}, and not with {wanted[:16]}"


def read_manifest(folder: Path) -> Manifest:
    """The digests that were noted in a folder; none if there is no manifest.

    Raises:
        MissingData: the file cannot be read.
    """
    path = folder / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes()) if path.is_file() else Manifest()
    except (ValidationError, OSError) as error:
        raise MissingData(
            f"{path}: not a manifest of staged files; delete it, and stage again to note what is there"
        ) from error


def note(folder: Path, paths: Iterable[Path], *, fetched: bool = False) -> None:
    """Note the digests of files below a folder in its manifest. Those that it has are kept.

    Args:
        folder: that holds the manifest.
        paths: files below it.
        fetched: the files are new, so what the manifest says of them is replaced.

    Raises:
        MissingData: a file has another size than when it was staged, or the manifest cannot be read.
        OSError: the folder cannot be written.
    """
    manifest = read_manifest(folder)
    before = dict(manifest.files)
    for path in paths:
        key, size = _key(folder, path), path.stat().st_size
        if fetched or key not in before:
            manifest.files[key] = Entry(size=size, sha256=sha256(path))
        elif before[key].size != size:
            raise MissingData(
                f"{path} has {size:,} bytes, and {before[key].size:,} when it was staged. Delete it and stage it "
                f"again; if it is what you want, delete its entry in {folder / MANIFEST}"
            )
    if manifest.files != before:
        with TemporaryDirectory(dir=folder, prefix=".staging-") as temporary:  # the file appears when it is complete
            written = Path(temporary, MANIFEST)
            written.write_text(manifest.model_dump_json(indent=1) + "\n")
            written.replace(folder / MANIFEST)


def put(fetched: Path, path: Path) -> None:
    """Copy a fetched file into its folder, where it appears when it is complete, and :func:`note` it.

    Raises:
        MissingData: the folder's manifest cannot be read.
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent, prefix=".staging-") as temporary:
        shutil.copyfile(fetched, Path(temporary, path.name)).replace(path)
    note(path.parent, [path], fetched=True)


def note_if_possible(folder: Path, paths: Iterable[Path]) -> None:
    """:func:`note` files; print a line where the folder cannot be written.

    Raises:
        MissingData: as there.
    """
    try:
        note(folder, paths)
    except OSError as error:
        print(f"{folder}: digests cannot be noted ({error.strerror})")


def _key(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def sha256(path: Path) -> str:
    """Hexadecimal digest of a whole file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fingerprint(paths: Iterable[Path]) -> str | None:
    """16 hexadecimal digits that stand for the content of files; None if there are none.

    Names, sizes, and the bytes: all of them, or both ends of large files. Neither where files lie nor when they were
    written plays a part, so that copies on two machines have the same.
    """
    digest, files = hashlib.sha256(), sorted(paths)
    for path in files:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            digest.update(f"{path.name}/{size}/".encode())
            if size <= WHOLE:
                digest.update(hashlib.file_digest(file, "sha256").digest())
            else:
                digest.update(file.read(END))
                file.seek(-END, os.SEEK_END)
                digest.update(file.read())
    return digest.hexdigest()[:16] if files else None
