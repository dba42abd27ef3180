"""Tensors stored beside records, by the labels of their jobs: for figures that show images or coordinates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from leakbench.errors import RecordError
from leakbench.jobs.base import Job
from leakbench.lazy import torch
from leakbench.records import Record, read_record, read_tensors
from leakbench.report.compared import in_setting, of_setting
from leakbench.report.reconstructions import Row, reconstructions
from leakbench.report.tidy import existing


@dataclass(frozen=True)
class RecordTensors:
    """Tensors beside the records of some experiments; read-only.

    Attributes:
        root: the checkout.
        jobs: experiment -> its jobs, in the order of the grid.
        records: records to read, by their paths; by default all that exist.
    """

    root: Path
    jobs: Mapping[str, Sequence[Job]]
    records: Mapping[str, Record] | None = None

    def tensors(self, experiment: str, defense: str, work: str, seed: int = 0) -> Mapping[str, torch.Tensor]:
        """Every tensor of one record by its key.

        Args:
            experiment: one of those in ``jobs``.
            defense: the defense's label.
            work: the attack's label, or the kind of a job that runs none, as in the record's path.
            seed: one that the record holds; matters where every seed has a record of its own.

        Raises:
            RecordError: there is no such job, its record or its tensors are missing or altered, or it has none.
        """
        path, record = self._record(experiment, defense, work, seed)
        if record.tensors is None:
            raise RecordError(f"{path}: holds no tensors: {record.outcome.reason or 'its kind of job keeps none'}")
        return MappingProxyType(read_tensors(self.root / path, record.tensors))

    def reconstructions(self, experiment: str, defense: str, attack: str, seed: int = 0) -> list[Row]:
        """The victims of a seed and what an attack made of them, one row per setting of the defense.

        Args:
            experiment: one of those in ``jobs``.
            defense: its label, or one of its settings' as :func:`~leakbench.report.compared.in_setting` names them.
            attack: its label.
            seed: one that the record holds.

        Raises:
            RecordError: there is no such job, its record or its tensors are missing or altered, or it has no images.
        """
        path, record = self._record(experiment, defense, attack, seed)
        settings = reconstructions(self.root, path, record, seed, of_setting(defense)[1])
        rows = [row for row in settings if isinstance(row, Row)]
        if not rows:
            raise RecordError(f"{path}: holds sentences, and no images")
        return rows

    def place(self, experiment: str, defense: str, work: str, seed: int = 0) -> int:
        """Index of the setting that a name of :func:`~leakbench.report.compared.in_setting` denotes, in its record.

        Raises:
            RecordError: there is no such job, or its record is missing.
        """
        _, record = self._record(experiment, defense, work, seed)
        _, wanted = of_setting(defense)
        settings = [replicate.setting for replicate in record.replicates if replicate.seed == seed]
        names = list(wanted)
        different = list(dict.fromkeys(in_setting("", {name: each[name] for name in names}) for each in settings))
        return different.index(in_setting("", wanted))

    def _record(self, experiment: str, defense: str, work: str, seed: int) -> tuple[str, Record]:
        """A record and its path; of several data sets or models, that of the first."""
        defense, _ = of_setting(defense)
        for job in self.jobs[experiment]:
            does = job.attack.label if job.attack else job.kind.name
            if (job.defense.label, does) == (defense, work) and seed in job.seeds:
                if self.records is None:
                    return job.path, read_record(existing(self.root, job.path, f"run {job.path}"))
                if job.path not in self.records:
                    raise RecordError(f"{job.path} is missing")
                return job.path, self.records[job.path]
        raise RecordError(f"{experiment}: no job of defense '{defense}' and '{work}' with seed {seed}")
