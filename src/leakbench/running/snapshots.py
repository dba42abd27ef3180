"""Snapshots of the progress of a job: a file for every state, and a list of them that is replaced as a whole.

States are safetensors files named by the digest of their content; nothing is unpickled. The list is written after the
states that it names, and the states that it no longer names are removed after it, so what is on the disk is one whole
snapshot whenever the process is killed. It belongs to one job on one kind of device, with one version of the libraries
and of the package's sources; a snapshot of anything else is discarded, and so is a file that does not match its name.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from leakbench.lazy import torch
from leakbench.records import atomic_write

PROGRESS = "progress.json"
"""The list, beside the states."""


class Spent(NamedTuple):
    """The cost of a job so far: seconds, seconds of its device, and the largest memory in bytes."""

    wall_s: float = 0.0
    device_s: float = 0.0
    memory: int = 0

    def plus(self, other: Spent) -> Spent:
        """Both attempts together."""
        return Spent(self.wall_s + other.wall_s, self.device_s + other.device_s, max(self.memory, other.memory))


class Entry(NamedTuple):
    """A loop of ``total`` steps, and the file of its state after ``done`` of them; no file if none was saved."""

    name: str
    total: int
    done: int = 0
    file: str | None = None


class Snapshots:
    """The snapshots of one job in one folder, each replacing the one before."""

    def __init__(self, folder: Path, identity: Mapping[str, str]) -> None:
        self._folder, self._identity = folder, dict(identity)

    def read(self) -> tuple[list[Entry], Spent]:
        """The newest snapshot; empty, and its files discarded, if it has another identity or none."""
        if not self._folder.is_dir():
            return [], Spent()
        try:
            content = json.loads((self._folder / PROGRESS).read_bytes())
            identity: dict[str, str] = dict(content["identity"])
            entries, spent = [Entry(*each) for each in content["loops"]], Spent(*content["spent"])
            fault = _difference(identity, self._identity)
        except (OSError, ValueError, TypeError, KeyError):
            fault = "a checkpoint that does not say what it is of"
        if fault is None:
            return entries, spent
        print(f"leakbench: {self._folder}: {fault}; discarded", file=sys.stderr)
        shutil.rmtree(self._folder, ignore_errors=True)
        return [], Spent()

    def write(self, entries: Sequence[Entry], spent: Spent) -> None:
        """Replace the snapshot by one whose states have been stored.

        Raises:
            WriteError: the disk is full, or does not take the list; the snapshot before is whole.
        """
        content = {"identity": self._identity, "spent": spent, "loops": entries}
        atomic_write(self._folder / PROGRESS, json.dumps(content).encode())
        used = {entry.file for entry in entries}
        for path in self._folder.glob("*.safetensors"):
            if path.name not in used:
                path.unlink(missing_ok=True)

    def store(self, state: Mapping[str, torch.Tensor]) -> str:
        """Write a state, tensors by name on the CPU that share no memory; returns the name of its file.

        Raises:
            WriteError: the disk is full, or does not take the file.
        """
        from safetensors.torch import save

        content = save(dict(state))
        name = f"{hashlib.sha256(content).hexdigest()}.safetensors"
        atomic_write(self._folder / name, content)
        return name

    def load(self, name: str) -> Mapping[str, torch.Tensor] | None:
        """The state in that file; None, and the file removed, if it is not what was stored."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = self._folder / name
        try:
            content = path.read_bytes()
            if f"{hashlib.sha256(content).hexdigest()}.safetensors" != name:
                raise ValueError("its digest is another one")
            return load(content)
        except (OSError, ValueError, SafetensorError) as error:
            print(f"leakbench: {path}: broken checkpoint ({error}); removed", file=sys.stderr)
            path.unlink(missing_ok=True)
            return None


def _difference(theirs: Mapping[str, str], ours: Mapping[str, str]) -> str | None:
    """Why a checkpoint of another identity is of no use; None for the same identity."""
    for name, value in ours.items():
        if theirs.get(name) != value:
            return f"a checkpoint with {name} {theirs.get(name)}, and this is {value}"
    return None
