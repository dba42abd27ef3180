"""Digests of staged files, and the fingerprint of the data that a job reads."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from leakbench.errors import MissingData
from leakbench.staged import manifest
from leakbench.staged.manifest import MANIFEST, Staged, fingerprint, note, note_if_possible, read_manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files, one of them in a folder."""
    root = tmp_path / "lab" / "set"
    (root / "plain").mkdir(parents=True)
    (root / "plain" / "a.parquet").write_bytes(b"PAR1 a PAR1")
    (root / "b.txt").write_bytes(b"bb")
    return root


def paths(folder: Path) -> list[Path]:
    return [folder / "plain" / "a.parquet", folder / "b.txt"]


def test_digests_are_noted_and_compared(folder: Path) -> None:
    note(folder, paths(folder))
    assert json.loads((folder / MANIFEST).read_text()) == {
        "files": {
            "plain/a.parquet": {"size": 11, "sha256": hashlib.sha256(b"PAR1 a PAR1").hexdigest()},
            "b.txt": {"size": 2, "sha256": hashlib.sha256(b"bb").hexdigest()},
        }
    }
    staged = Staged("set", "", None, folder, lambda: paths(folder))
    assert staged.faults() == [] and staged.unnoted() == []
    (folder / "plain" / "a.parquet").write_bytes(b"PAR1 x PAR1")
    (fault,) = staged.faults()
    assert fault.startswith(f"{folder / 'plain' / 'a.parquet'} is not what was staged")


def test_what_is_noted_stays_until_it_is_fetched_again(folder: Path) -> None:
    note(folder, [folder / "b.txt"])
    before = (folder / MANIFEST).stat().st_mtime_ns
    note(folder, [folder / "b.txt"])
    assert (folder / MANIFEST).stat().st_mtime_ns == before
    assert Staged("set", "", None, folder, lambda: paths(folder)).unnoted() == ["a.parquet"]
    (folder / "b.txt").write_bytes(b"longer")
    with pytest.raises(MissingData, match=r"b.txt has 6 bytes, and 2 when it was staged. Delete it and stage it again"):
        note(folder, paths(folder))
    note(folder, [folder / "b.txt"], fetched=True)
    assert read_manifest(folder).files["b.txt"].size == 6


def test_a_broken_manifest(folder: Path) -> None:
    (folder / MANIFEST).write_text("{")
    with pytest.raises(MissingData, match=re.escape(f"{folder / MANIFEST}: not a manifest of staged files; delete it")):
        note(folder, paths(folder))


def test_a_folder_that_cannot_be_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(manifest, "TemporaryDirectory", refuse)
    note_if_possible(folder, paths(folder))
    assert capsys.readouterr().out == f"{folder}: digests cannot be noted (Permission denied)\n"


def test_published_digests_come_before_noted_ones(folder: Path) -> None:
    """A file that is as it was staged, and not as it was published, is named without being read."""
    note(folder, paths(folder))
    staged = Staged("set", "", None, folder, lambda: paths(folder), published={"b.txt": "c" * 64})
    assert staged.unpublished() == ["a.parquet"] and staged.unnoted() == []
    (fault,) = staged.faults()
    assert staged.differing() == [fault]
    assert fault.startswith(f"{folder / 'b.txt'} is not what was published") and fault.endswith(f"not with {'c' * 16}")
    (folder / MANIFEST).unlink()
    assert staged.differing() == [] and staged.faults() == [fault] and staged.unnoted() == ["a.parquet"]


def test_a_known_digest_needs_no_manifest(folder: Path) -> None:
    known = hashlib.sha256(b"bb").hexdigest()
    staged = Staged("one", "", None, folder, lambda: [folder / "b.txt"], digest=known)
    assert staged.faults() == [] and staged.unnoted() == []
    (folder / "b.txt").write_bytes(b"bc")
    assert len(staged.faults()) == 1


def test_copies_have_the_same_fingerprint(folder: Path, tmp_path: Path) -> None:
    copied = tmp_path / "elsewhere"
    shutil.copytree(folder, copied, copy_function=shutil.copyfile)
    os.utime(copied / "b.txt", (0, 0))
    found = fingerprint(paths(folder))
    assert found is not None and re.fullmatch("[0-9a-f]{16}", found)
    assert found == fingerprint(paths(copied)) == fingerprint([*reversed(paths(folder))])
    assert fingerprint([]) is None


@pytest.mark.parametrize("whole", [True, False])
def test_other_content_has_another_fingerprint(folder: Path, whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "WHOLE", 1000 if whole else 10)
    monkeypatch.setattr(manifest, "END", 8)
    file = folder / "large.parquet"
    content = b"0123456789" * 5
    file.write_bytes(content)
    before = fingerprint([file])
    for changed in (b"X" + content[1:], content[:-1] + b"X", content + b"X"):
        file.write_bytes(changed)
        assert fingerprint([file]) != before
    file.write_bytes(content[:25] + b"X" + content[26:])  # the middle of a large file is not read
    assert (fingerprint([file]) != before) == whole
    file.write_bytes(content)
    assert fingerprint([file]) == before
    file.rename(folder / "renamed.parquet")
    assert fingerprint([folder / "renamed.parquet"]) != before
