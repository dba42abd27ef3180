"""Facts about kinds of job for the rules of the workflow."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass

from leakbench.errors import ConfigError
from leakbench.jobs.base import JOB_KINDS

_LABEL = "[^/]+"
"""Regular expression of an attack's label."""

_NAMED = {
    "gpu_model": "SLURM_GPU_MODEL",
    "constraint": "SLURM_GPU_CONSTRAINT",
    "slurm_partition": "SLURM_GPU_PARTITION",
}
"""Resources of jobs on a GPU, and the environment variables that name them."""


@dataclass(frozen=True)
class KindRule:
    """The rule that makes the records of one kind of job.

    Attributes:
        name: of the kind, and of the rule.
        folders: regular expression of the folders that hold its records: the attack's part of paths.
        memory_mb: memory of a first attempt, in MB.
        minutes: time limit of a first attempt.
        on_gpu: whether it computes on a GPU where there is one.
    """

    name: str
    folders: str
    memory_mb: int
    minutes: int
    on_gpu: bool

    def device(self, offered: Collection[str]) -> dict[str, int | str]:
        """Resources that a job requests for its device.

        A GPU, of the model, on nodes with the feature and in the partition that the environment names; or a turn: jobs
        without a GPU that share a SLURM job take turns.

        Args:
            offered: names of the resources that the run has; nothing else is requested.

        Raises:
            ConfigError: Snakemake's SLURM plug-in would refuse the model.
        """
        if not self.on_gpu:
            return {"turn": 1} if "turn" in offered else {}
        if "gpu" not in offered:
            return {}
        named = {name: os.environ[variable] for name, variable in _NAMED.items() if os.environ.get(variable)}
        model = named.get("gpu_model", "")
        if re.search(r"[^A-Za-z0-9_.]", model):
            raise ConfigError(
                f"SLURM_GPU_MODEL={model}: Snakemake's SLURM plug-in takes letters, digits, _ and . alone. Unset it; "
                "name a feature of the nodes with such GPUs instead (`sinfo -o '%G %f'`): SLURM_GPU_CONSTRAINT=..."
            )
        return {"gpu": 1, **named}


def kind_rules() -> list[KindRule]:
    """The rules of all registered kinds of job.

    Paths of ``attack`` have the attack's label where others have the name of the kind, and a label behind it if they
    run an attack, too; so its rule excludes the folders of all others.
    """
    kinds = [JOB_KINDS.get(name) for name in JOB_KINDS]
    folders = {kind.name: kind.folder(_LABEL) for kind in kinds}
    others = "|".join(folder for folder in folders.values() if folder != _LABEL)
    folders = {name: f"(?!({others})/){_LABEL}" if folder == _LABEL else folder for name, folder in folders.items()}
    return [KindRule(kind.name, folders[kind.name], kind.memory_mb, kind.minutes, kind.on_gpu) for kind in kinds]
