"""Which file decides on a key of a paper, scales that extend others, and the examples of config/README.md."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.planning.checkout import OVERLAY, PAPER, PAPER_SMOKE, ROOT, SMOKE, Checkout, put

from leakbench.jobs.base import Job
from leakbench.planning.project import Project

OVERLAID = "config/papers/optimal_defense.yaml"
IG = ("variants", "attacks", "ig")
CELL = "results/smoke/optimal_defense/pruning/digits16/small/gp/ig/all.json"


def iterations(job: Job) -> int:
    assert job.attack is not None
    return int(job.attack.single().parameters()["iterations"])


def test_the_last_of_four_files_decides(checkout: Checkout) -> None:
    """And is named where the value is wrong."""
    for value, (file, prefix) in enumerate(
        [(PAPER, ()), (PAPER_SMOKE, ()), (OVERLAID, ()), (SMOKE, OVERLAY.split("."))], start=1000
    ):
        keys = (*prefix, *IG, "iterations")
        checkout.edit(file, put(*keys, value=0))
        lowest = file == PAPER  # over which the paper's scale has a value already
        if not lowest:
            assert checkout.fault().startswith(f"{file}: {'.'.join(keys)}: ")
        checkout.edit(file, put(*keys, value=value))
        assert iterations(checkout.jobs()[CELL]) == (120 if lowest else value)


def test_an_overlay_holds_at_every_scale(checkout: Checkout) -> None:
    before = {scale: checkout.digests(scale) for scale in ("full", "smoke")}
    checkout.edit(OVERLAID, put("variants", "defenses", "gp-80", "fraction", value=0.7))
    for scale, digests in before.items():
        after = checkout.digests(scale)
        changed = {path for path in digests if digests[path] != after[path]}
        assert changed and all("/optimal_defense/" in path and "/gp-80/" in path for path in changed)


def test_a_key_of_an_overlay_that_does_not_exist(checkout: Checkout) -> None:
    checkout.edit(OVERLAID, put("experiments", "noise", "modles", value=[]))
    assert checkout.fault().startswith(f"{OVERLAID}: experiments.noise.modles: unknown key 'modles'; did you mean")


def test_an_overlay_of_no_paper(checkout: Checkout) -> None:
    checkout.edit("config/papers/optimal.yaml", put("title", value="x"))
    assert checkout.fault().startswith("config/papers/optimal.yaml: unknown paper 'optimal'; did you mean 'optimal_def")


def test_a_paper_without_a_file_for_the_scale_computes_its_grid(checkout: Checkout) -> None:
    checkout.edit("config/scales/mine.yaml", put("description", value="mine"))
    full, mine = checkout.jobs("full"), checkout.jobs("mine")
    assert [path.replace("/full/", "/mine/") for path in full] == list(mine)
    assert Project(checkout.root).plan("mine").device == "cpu"


def test_a_scale_extends_another(checkout: Checkout) -> None:
    """Its jobs are those of the other scale, but for what it changes."""
    checkout.edit("config/scales/mine.yaml", lambda scale: scale.update(description="mine", extends="smoke"))
    checkout.edit(SMOKE, lambda scale: scale.update(device="gpu"))
    checkout.edit(SMOKE, put(*OVERLAY.split("."), *IG, "iterations", value=7))
    smoke, mine = checkout.jobs("smoke"), checkout.jobs("mine")

    def resolved(job: Job) -> dict[str, object]:
        return {key: value for key, value in job.resolved().items() if key not in ("scale", "uses")}

    assert [resolved(job) for job in smoke.values()] == [resolved(job) for job in mine.values()]
    assert {job.scale for job in mine.values()} == {"mine"}
    plan = Project(checkout.root).plan("mine")
    assert (plan.description, plan.device) == ("mine", "gpu")

    checkout.edit("config/scales/mine.yaml", put("device", value="cpu"))
    checkout.edit("papers/optimal_defense/scales/mine.yaml", put(*IG, "iterations", value=8))  # below the checkout's
    assert iterations(checkout.jobs("mine")[CELL.replace("smoke", "mine")]) == 7
    checkout.edit("config/scales/mine.yaml", put(*OVERLAY.split("."), *IG, "iterations", value=9))
    assert iterations(checkout.jobs("mine")[CELL.replace("smoke", "mine")]) == 9
    assert iterations(checkout.jobs("smoke")[CELL]) == 7
    assert Project(checkout.root).plan("mine").device == "cpu"


def test_scales_that_cannot_be_extended(checkout: Checkout) -> None:
    mine = "config/scales/mine.yaml"
    checkout.edit(mine, lambda scale: scale.update(description="mine", extends="smoek"))
    assert checkout.fault("mine").startswith(f"{mine}: extends: unknown scale 'smoek'; did you mean 'smoke'?")
    checkout.edit(mine, put("extends", value="smoke"))
    checkout.edit(SMOKE, put("extends", value="mine"))
    assert checkout.fault("mine") == f"{SMOKE}: extends: the scales mine -> smoke -> mine extend each other"


README = (ROOT / "config" / "README.md").read_text()
EXAMPLES = re.findall(r"^```yaml\n(# (config/\S+)\n.*?)^```", README, flags=re.MULTILINE | re.DOTALL)


def test_the_readme_has_examples_of_every_file() -> None:
    assert {str(Path(file).parent) for _, file in EXAMPLES} == {"config/papers", "config/scales"}
    for name in re.findall(r"schemas?/(\w+\.schema\.json)", README):
        assert (ROOT / "workflow" / "schemas" / name).is_file()


@pytest.mark.parametrize(("text", "file"), EXAMPLES, ids=[file for _, file in EXAMPLES])
def test_an_example_changes_jobs(text: str, file: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    scale = Path(file).stem if "scales" in file else "smoke"
    before = Project(tmp_path).plan(scale).jobs if scale != "mine" else {}
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    after = Project(tmp_path).plan(scale).jobs
    changed = [path for path, job in after.items() if path not in before or before[path].digest != job.digest]
    assert changed and before.keys() <= after.keys()
    assert all(Project(tmp_path).plan(other).jobs for other in ("smoke", "laptop", "full"))
    for path in re.findall(r"^(results/smoke/\S+\.json)$", README, flags=re.MULTILINE):
        if scale == "smoke" and f"/{Path(file).stem}/" in path:
            assert path in changed


def whole(job: Job) -> dict[str, Any]:
    """All that decides on a job's numbers, but for which seeds and settings there are, and of which records."""
    resolved = {key: value for key, value in job.resolved().items() if key not in ("scale", "seeds", "part", "uses")}
    for axis in ("dataset", "model", "defense", "attack"):
        if resolved.get(axis):
            resolved[axis] = {key: value for key, value in resolved[axis].items() if key != "sweep"}
    return resolved


def test_overnight_has_the_papers_own_parameters() -> None:
    """Every cell is one of ``full``, though it may have fewer seeds and fewer settings of what is swept."""
    project = Project(ROOT)
    overnight, full = project.plan("overnight").jobs, project.plan("full").jobs
    assert {job.paper for job in overnight.values()} == {job.paper for job in full.values()} - {"leaderboard"}
    for path, job in overnight.items():
        twin = full[path.replace("/overnight/", "/full/")]
        assert whole(job) == whole(twin), path
        assert set(job.seeds) <= set(twin.seeds), path
        for mine, theirs in ((job.defense, twin.defense), (job.dataset, twin.dataset), (job.model, twin.model)):
            assert mine.sweep.keys() == theirs.sweep.keys(), path
            assert all(set(values) <= set(theirs.sweep[name]) for name, values in mine.sweep.items()), path


def test_a_scale_leaves_out_a_kind_of_job_with_its_gates() -> None:
    project = Project(ROOT)
    jobs = project.plan("overnight").experiment_jobs("optimal_defense", "readings")
    assert {job.kind.name for job in jobs} == {"fisher", "train"}
    assert project.experiment_gates("results/overnight/optimal_defense/readings/records.parquet") == []
