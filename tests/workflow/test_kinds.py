"""The rules of the kinds of job: which paths are theirs, and which device they ask for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

import pytest

from leakbench.errors import ConfigError
from leakbench.jobs.base import JOB_KINDS, JobKind
from leakbench.planning.project import Project
from leakbench.workflow.kinds import KindRule, kind_rules

ROOT = Path(__file__).resolve().parents[2]
BOTH = {"gpu", "turn", "_cores"}


@pytest.mark.parametrize("scale", ["smoke", "laptop", "overnight", "full"])
def test_every_record_is_made_by_the_rule_of_its_kind_alone(scale: str) -> None:
    rules = kind_rules()
    for path, job in Project(ROOT).plan(scale).jobs.items():
        folder = path.split("/")[-2]
        # Snakemake joins the patterns of a path's parts: a pattern that looks ahead sees the slash behind the folder.
        assert [rule.name for rule in rules if re.fullmatch(f"{rule.folders}/", f"{folder}/")] == [job.kind.name], path


def test_a_new_kind_of_job_needs_no_edit_of_the_workflow() -> None:
    @JOB_KINDS.register("audit", version=1)
    class Audit(JobKind):
        """Attacks like no other."""

        memory_mb: ClassVar[int] = 123
        minutes: ClassVar[int] = 45
        on_gpu: ClassVar[bool] = False
        uses_attacks: ClassVar[bool] = True

    rules = {rule.name: rule for rule in kind_rules()}
    assert rules["audit"] == KindRule("audit", "audit-[^/]+", memory_mb=123, minutes=45, on_gpu=False)
    attack = rules["attack"].folders
    assert re.fullmatch(f"{attack}/", "ig/") and re.fullmatch(f"{attack}/", "auditor/")
    assert not re.fullmatch(f"{attack}/", "audit-ig/") and not re.fullmatch(f"{attack}/", "train/")


@pytest.mark.parametrize("offered", [set(), {"_cores"}])
def test_nothing_is_asked_for_where_nothing_is_offered(offered: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as on a laptop, whatever the environment names."""
    monkeypatch.setenv("SLURM_GPU_PARTITION", "gpu")
    assert not [rule.name for rule in kind_rules() if rule.device(offered)]


NAMED = {
    "SLURM_GPU_PARTITION": "slurm_partition",
    "SLURM_GPU_MODEL": "gpu_model",
    "SLURM_GPU_CONSTRAINT": "constraint",
}


@pytest.mark.parametrize("variable", [*NAMED, None])
def test_gpus_are_those_that_the_environment_names(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    for name in NAMED:
        monkeypatch.delenv(name, raising=False)
    if variable is not None:
        monkeypatch.setenv(variable, "a100_3g.20gb")
    for rule in kind_rules():
        of_gpu = {"gpu": 1} | ({NAMED[variable]: "a100_3g.20gb"} if variable else {})
        assert rule.device(BOTH) == (of_gpu if JOB_KINDS.get(rule.name).on_gpu else {"turn": 1})


def test_a_model_that_the_plug_in_refuses_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_GPU_MODEL", "a100-sxm4-80gb")
    (train,) = (rule for rule in kind_rules() if rule.name == "train")
    assert train.device({"turn"}) == {}  # no GPU is asked for
    with pytest.raises(ConfigError, match=r"SLURM_GPU_MODEL=a100-sxm4-80gb: .* SLURM_GPU_CONSTRAINT="):
        train.device(BOTH)
