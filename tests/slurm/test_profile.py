"""The SLURM profile against Snakemake, against the workflow's rules, and as sbatch sees it. Needs no cluster."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from tests.forking import snakemake
from tests.workflow.conftest import JOB, OUTPUT
from tests.workflow.test_dry_runs import check_counts

from leakbench.jobs.base import JOB_KINDS
from leakbench.planning.project import Project
from leakbench.workflow.kinds import kind_rules
from leakbench.workflow.sharing import SIZES

if TYPE_CHECKING:
    from tests.slurm.conftest import FakeSlurm

ROOT = Path(__file__).resolve().parents[2]
PROFILE = ROOT / "slurm" / "config.yaml"


def written_profile() -> dict[str, Any]:
    """The profile as it stands in the file, with its conditional entries not evaluated."""
    profile = yaml.safe_load(PROFILE.read_text())
    assert isinstance(profile, dict)
    return profile


def read_profile() -> Any:
    """The profile as Snakemake reads it, in the environment of this moment."""
    from snakemake.cli import parse_args

    return parse_args(["--profile", str(PROFILE.parent)])[1]


def test_every_rule_named_in_the_profile_exists(rules_of_workflow: set[str]) -> None:
    """Snakemake ignores settings of rules that do not exist."""
    named = {*read_profile().set_resources, *written_profile()["groups"]}
    assert named <= rules_of_workflow


def test_what_records_ask_for_is_offered_and_counts_within_each_job() -> None:
    """Nothing is asked for that has no limit: under a misspelt one, GPU jobs would run without a GPU."""
    asked = {name for rule in kind_rules() for name in rule.device({"gpu", "turn"})} & {"gpu", "turn"}
    assert asked == set(written_profile()["resources"]) == set(written_profile()["set-resource-scopes"])
    assert set(written_profile()["set-resource-scopes"].values()) == {"local"}


def test_groups_of_cells_are_those_of_the_workflow() -> None:
    expected = {size.group(on_gpu): size.members for size in SIZES for on_gpu in (True, False)}
    assert written_profile()["group-components"] == expected


def test_artifacts_of_a_group_are_made_one_by_one() -> None:
    asked = {rule: set(resources) & {"gpu", "turn"} for rule, resources in read_profile().set_resources.items()}
    assert asked == {rule: {"turn"} for rule in written_profile()["groups"]}


def test_every_key_of_the_profile_is_an_argument_of_snakemake() -> None:
    """Snakemake ignores keys that it does not know, too."""
    from snakemake.cli import get_argument_parser

    options = {option for action in get_argument_parser()._actions for option in action.option_strings}
    assert {"--slurm-status-command", "--executor"} <= options
    keys = {key for key in written_profile() if not key.startswith("__")}
    assert {f"--{key}" for key in keys} <= options


def test_no_value_of_the_profile_is_taken_for_a_file() -> None:
    """Snakemake turns a value that is the name of a file beside the profile into that file's path."""
    files = {path.name for path in PROFILE.parent.iterdir()}
    assert not files & {str(value) for value in written_profile().values()}


def test_squeue_is_never_asked_too_late() -> None:
    """The plug-in trusts squeue where ended jobs stay visible for three first pauses; its longest pause is 180 s."""
    read = read_profile()
    assert read.slurm_status_command == "squeue"
    assert 3 * read.slurm_init_seconds_before_status_checks >= 180


def test_a_controller_that_restarts_is_waited_for() -> None:
    """After its last failed look at the jobs the plug-in forgets them, and waits for ever."""
    read = read_profile()
    assert read.slurm_status_attempts / read.max_status_checks_per_second >= 300  # seconds


@pytest.mark.parametrize("name", ["SLURM_ACCOUNT", "SLURM_PARTITION"])
def test_account_and_partition_come_from_the_environment_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Those of GPU jobs: tests/workflow/test_kinds.py."""
    for one in ("SLURM_ACCOUNT", "SLURM_PARTITION"):
        monkeypatch.delenv(one, raising=False)
    without = read_profile()
    for resources in (without.default_resources, *without.set_resources.values()):
        assert not {"slurm_account", "slurm_partition", "gpu_model"} & set(resources)
    monkeypatch.setenv(name, "lab-7")
    given = read_profile()
    assert ("slurm_account" in given.default_resources) == (name == "SLURM_ACCOUNT")
    assert ("slurm_partition" in given.default_resources) == (name == "SLURM_PARTITION")


def dry_run(*arguments: str) -> list[tuple[str, str]]:
    """What Snakemake would run, from the repository root: rules, and what is printed of their jobs."""
    status, output = snakemake(["--dry-run", "--forceall", "--nocolor", *arguments], ROOT)
    assert status == 0, output
    return JOB.findall(re.sub(r"^ {4}(?=rule| {4})", "", output, flags=re.M))  # members of a group stand further in


def test_dry_run_with_the_profile_plans_the_full_scale_with_gpus() -> None:
    """Every cell of a group asks for the group's one GPU or for its one turn, as its kind of job says."""
    blocks = dry_run("--profile", "slurm")
    kinds = {job.kind.name for job in Project(ROOT).plan("full").jobs.values()}
    assert {rule for rule, _ in blocks} >= kinds >= {"attack", "train", "fisher", "spectrum"}
    for rule, block in blocks:
        asked = set(re.findall(r"(gpu|turn)=1\b", block))
        if rule in kinds:
            assert asked == ({"gpu"} if JOB_KINDS.get(rule).on_gpu else {"turn"}), block
        else:
            assert "gpu" not in asked, block
        assert "/smoke/" not in block.replace("published/smoke/", "")
    outputs = [(rule, OUTPUT.search(block)) for rule, block in blocks]
    check_counts(ROOT, "full", {output[1]: rule for rule, output in outputs if output})


def test_dry_run_without_the_profile_asks_for_neither_gpus_nor_turns() -> None:
    """A laptop has no GPU."""
    blocks = dry_run()
    assert {rule for rule, _ in blocks} >= {"attack", "train", "fisher", "spectrum"}
    assert not [block for _, block in blocks if re.search(r"\b(gpu|turn)=", block)]


# One rule of each kind. The jobs themselves are played by PLAYED below: the end-to-end test runs real ones.
SNAKEFILE = """
from leakbench.workflow.kinds import kind_rules

localrules: all
attack_rule, = (rule for rule in kind_rules() if rule.name == "attack")
assert config == {"scale": "full"}, config

rule all:
    input: "figure.png", "table.csv", "cell.json", "inventory.json"

rule inventory:
    output: "inventory.json"
    shell: "exit 1"

rule attack:
    output: "cell.json"
    threads: 2
    resources:
        mem_mb=lambda wildcards, attempt: 1000 * attempt,
        runtime=lambda wildcards, attempt: 10 * attempt,
        **attack_rule.device(workflow.global_resources),
    shell: "exit 1"

rule merge:
    output: "records.parquet"
    resources: mem_mb=700, runtime=5
    shell: "exit 1"

rule draw:
    input: "records.parquet"
    output: "figure.png"
    resources: mem_mb=800, runtime=6
    shell: "exit 1"

rule tabulate:
    input: "records.parquet"
    output: "table.csv"
    resources: mem_mb=600, runtime=7
    shell: "exit 1"
"""

# Makes the outputs; the first attempt of the attack fails.
PLAYED = """
case $FAKESLURM_COMMENT in
    rule_attack) [ -e tried ] || { touch tried; exit 1; }; touch cell.json;;
    rule_inventory) touch inventory.json;;
    *) touch records.parquet; sleep 0.1; touch figure.png table.csv;;
esac
"""


def test_what_sbatch_is_asked_for(tmp_path: Path, fake_slurm: FakeSlurm) -> None:
    """GPUs, memory, time, cores and partition of each kind of job; more of them on a second attempt."""
    work = tmp_path / "work"
    shutil.copytree(PROFILE.parent, work / "slurm")
    (work / "Snakefile").write_text(SNAKEFILE)
    (fake_slurm.state / "accounts").write_text("lab-7")
    (fake_slurm.state / "instead").write_text(PLAYED)
    chosen = {"SLURM_ACCOUNT": "lab-7", "SLURM_GPU_PARTITION": "gpu", "SLURM_GPU_MODEL": "a100"}
    chosen["SLURM_GPU_CONSTRAINT"] = "80gb"
    quick = ["--slurm-init-seconds-before-status-checks", "1"]
    result = subprocess.run(
        [sys.executable, "-m", "snakemake", "--profile", "slurm", *quick],
        cwd=work,
        env=fake_slurm.environment | chosen,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr

    jobs: dict[str, list[list[str]]] = {}
    for number in sorted(int(path.stem) for path in fake_slurm.state.glob("*.json")):
        flags = json.loads((fake_slurm.state / f"{number}.json").read_text())
        jobs.setdefault(flags[flags.index("--comment") + 1], []).append(flags)
    first, second = jobs.pop("rule_attack")
    (inventory,) = jobs.pop("rule_inventory")
    ((_, (group,)),) = jobs.items()  # one job for merge, draw and tabulate

    def value(flags: list[str], name: str) -> str:
        return flags[flags.index(name) + 1]

    for flags in (first, second):
        assert "--gpus=a100:1" in flags
        assert "--cpus-per-task=2" in flags
        assert (value(flags, "-p"), value(flags, "-C")) == ("gpu", "80gb")
    for flags in (inventory, group):
        assert not [flag for flag in flags if "gpu" in flag]
        assert "--cpus-per-task=1" in flags
        assert value(flags, "-p") == "main"
    for flags in (first, second, inventory, group):
        assert value(flags, "-A") == "lab-7"
        assert "--requeue" in flags
        assert value(flags, "--job-name").startswith("leakbench_")
    assert (value(first, "--mem"), value(first, "-t")) == ("1000", "10")
    assert (value(second, "--mem"), value(second, "-t")) == ("2000", "20")
    # What the profile says for rules that say nothing.
    assert (value(inventory, "--mem"), value(inventory, "-t")) == ("2000", "30")
    # One member after the other: the memory of the largest, the sum of the times.
    assert (value(group, "--mem"), value(group, "-t")) == ("800", "18")
