"""What a scale takes, as the command says it: from records that are there, of jobs that are left."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.report.records import empty_project, write_bare_record

from leakbench.cli import main
from leakbench.effort import Effort
from leakbench.errors import ConfigError
from leakbench.models.base import MODELS
from leakbench.planning.project import Project
from leakbench.report import costs as module
from leakbench.report.artifacts import artifacts
from leakbench.report.cost_model import Speedup
from leakbench.report.costs import cost_report, costs, costs_path, planned_seconds, size_of, write_costs

SMOKE = "results/smoke/optimal_defense"
SMALL = f"{SMOKE}/undefended/digits16/small/none"
KNOWN = (f"{SMALL}/ig/all.json", f"{SMALL}/train/all.json", f"{SMALL}/grey/all.json")
OPERATIONS = 1e6


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """One paper with three records; all models are of one size, so that nothing is built."""
    monkeypatch.setattr(module, "_size_of_model", lambda *_: (OPERATIONS, 1000))
    monkeypatch.chdir(tmp_path)
    found = empty_project(tmp_path, "optimal_defense")
    for path in KNOWN:
        write_bare_record(found, path)
    return found


def reported(project: Project, **options: Any) -> dict[str, Any]:
    return cost_report(project, costs(project, "smoke", **options), 8)


def test_what_is_there_is_not_counted_again(project: Project) -> None:
    found = reported(project)
    total = found["total"]
    assert (total["jobs"], total["done"], total["left"]) == (len(project.plan("smoke").jobs), 3, total["jobs"] - 3)
    assert found["records"] == {"cpu": 3, "gpu": 0} and found["assumed_speedup"] is None
    for path in project.plan("smoke").jobs:
        if path not in KNOWN:
            write_bare_record(project, path)
    total = reported(project)["total"]
    assert (total["left"], total["unknown"], total["cpu_hours"], total["wall_hours"]) == (0, 0, None, 0)
    assert total["bytes"] == sum(path.stat().st_size for path in project.root.glob("results/*/*/*/*/*/*/*/*.json"))


def test_seconds_are_those_of_the_same_kind_in_proportion(project: Project) -> None:
    jobs = costs(project, "smoke").jobs
    one, other = jobs[f"{SMALL}/train/all.json"], jobs[f"{SMOKE}/pruning_training/digits16/small/none/train/all.json"]
    assert other.estimate is not None and other.estimate.basis == "train: 1 records of a CPU"
    ratio = size_of(other.job).on() / size_of(one.job).on()
    assert other.estimate.seconds == pytest.approx(1.5 * ratio)
    assert size_of(one.job).operations == pytest.approx(OPERATIONS * one.job.effort.passes)


def test_kinds_without_records_are_named_and_have_no_estimate(project: Project) -> None:
    found = reported(project)
    assert found["without_estimate"]["fisher"] == "no record of a job of kind 'fisher', at any scale"
    (fisher,) = (row for row in found["kinds"] if row["name"] == "fisher")
    assert fisher["cpu_hours"] is None and fisher["unknown"] == fisher["left"] == fisher["jobs"] > 0
    assert fisher["wall_hours"] is None and fisher["bytes"] is None


def test_rows_add_up(project: Project) -> None:
    found = reported(project)
    (paper,) = found["papers"]
    assert {key: paper[key] for key in found["total"]} == found["total"]
    for key in ("jobs", "done", "left", "unknown"):
        assert sum(row[key] for row in found["kinds"]) == found["total"][key]
    hours = [row["cpu_hours"][0] for row in found["kinds"] if row["cpu_hours"]]
    assert sum(hours) == pytest.approx(found["total"]["cpu_hours"][0])


def test_what_jobs_share_the_first_of_them_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the training of the model that they attack: in what is left, and in what was measured."""
    monkeypatch.setattr(module, "_size_of_model", lambda *_: (OPERATIONS, 1000))
    project = empty_project(tmp_path, "channel")
    jobs = [job for job in project.plan("smoke").jobs.values() if job.shared_effort and job.attack]
    first, second = next((a, b) for a, b in itertools.pairwise(jobs) if a.shared_effort == b.shared_effort)
    alone, both = module.size_of(second), list(module.done_in_turn([first, second]))
    part = Effort(alone.operations / OPERATIONS, alone.steps)
    for trained in second.shared_effort.values():
        part = part.less(trained)
    assert both[0] == module.size_of(first)
    assert (both[1].operations, both[1].steps) == pytest.approx((OPERATIONS * part.passes, part.steps))
    assert 0 < both[1].on() < alone.on()

    write_bare_record(project, next(job.path for job in jobs if not {first.path, second.path} & {job.path}))
    left = [costs(project, "smoke").jobs[job.path] for job in (first, second)]
    assert left[1].estimate is not None
    hours = [module.summary(some, 1)["cpu_hours"][0] for some in (left, left[:1], left[1:])]
    assert hours[0] == pytest.approx(hours[1] + hours[2] * both[1].on() / alone.on())
    assert hours[2] == pytest.approx(left[1].estimate.seconds / 3600)


def test_a_figure_needs_its_experiments_and_what_they_are_judged_by(project: Project) -> None:
    plan = project.plan("smoke")
    (entry,) = (each for each in artifacts() if (each.paper, each.name) == ("optimal_defense", "fig02"))
    needed = entry.records(project, "smoke")
    assert {plan.jobs[path].experiment for path in needed} >= {"undefended", "pruning"}
    (row,) = (row for row in reported(project)["artifacts"] if row["name"] == "optimal_defense fig02")
    assert row["jobs"] == len(needed) < len(plan.jobs) and row["done"] == len({*needed} & {*KNOWN})


def test_what_fits_into_a_time(project: Project) -> None:
    """Cheapest first; what figures share is counted once; what nobody knows is not proposed."""
    estimates = costs(project, "smoke")
    jobs = estimates.jobs
    chain = [path for path, each in jobs.items() if each.estimate and not each.done][:4]
    seconds = [each.estimate.seconds for each in map(jobs.__getitem__, chain) if each.estimate]
    unknown = next(path for path, each in jobs.items() if each.estimate is None and not each.done)
    groups = {"all": chain, "two": chain[:2], "one": chain[:1], "unknown": [unknown], "done": [KNOWN[0]]}
    every = module.within(groups, jobs, sum(seconds))
    assert list(every) == ["done", "one", "two", "all"] and every["done"] == 0
    assert sum(every.values()) == pytest.approx(sum(seconds)) and every["two"] == pytest.approx(seconds[1])
    assert list(module.within(groups, jobs, sum(seconds[:2]) * 1.001)) == ["done", "one", "two"]
    fitting = cost_report(project, estimates, 2, wall_seconds=3600.0)["within"]
    assert fitting["wall_hours"] == 1 and sum(each["hours"] for each in fitting["artifacts"]) <= 2


def test_on_a_gpu_the_speed_up_is_assumed_until_a_gpu_was_measured(project: Project) -> None:
    found = reported(project, device="gpu", speedup=Speedup(10, 40))
    assert found["assumed_speedup"] == [10, 40]
    assert found["total"]["gpu_hours"] and found["total"]["cpu_hours"] is None  # inventory is of a CPU, and unknown
    cpu = reported(project, device="cpu")["total"]["cpu_hours"]
    assert found["total"]["gpu_hours"][0] < cpu[0]
    for path in KNOWN:
        write_bare_record(project, path, seconds=0.1, device="NVIDIA H200")
    again = reported(project, device="gpu", speedup=Speedup(10, 40))
    assert again["assumed_speedup"] is None and again["records"] == {"cpu": 0, "gpu": 3}


def test_the_scale_says_what_it_runs_on(project: Project) -> None:
    assert costs(project, "full").device == "gpu" and costs(project, "smoke").device == "cpu"


def test_the_file_that_the_workflow_reads(project: Project) -> None:
    assert planned_seconds(project.root, "smoke") == {}
    found = costs(project, "smoke")
    write_costs(project.root, found)
    with (project.root / costs_path("smoke")).open() as file:
        rows = {row["record"]: row for row in csv.DictReader(file)}
    assert set(rows) == set(project.plan("smoke").jobs)
    planned = planned_seconds(project.root, "smoke")
    assert set(planned) == {path for path, each in found.jobs.items() if each.estimate}
    for path, seconds in planned.items():
        assert float(rows[path]["low"]) <= seconds <= float(rows[path]["high"])
    fisher = rows[f"{SMOKE}/information/digits16/small/gp/fisher/all.json"]
    assert (fisher["seconds"], fisher["low"], fisher["basis"], fisher["state"]) == ("", "", "", "missing")
    assert rows[KNOWN[0]]["state"] == "done" and int(rows[KNOWN[0]]["bytes"]) > 0


@pytest.mark.parametrize("content", ["record,kind\na,b\n", "record,seconds\na,soon\n"])
def test_a_file_that_somebody_changed(tmp_path: Path, content: str) -> None:
    path = tmp_path / costs_path("smoke")
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"costs\.csv: was changed; delete it, or run"):
        planned_seconds(tmp_path, "smoke")


def test_records_that_say_nothing_are_counted(project: Project) -> None:
    write_bare_record(project, KNOWN[0], status="infeasible")
    write_bare_record(project, KNOWN[1], seconds=0)
    broken = project.root / KNOWN[2]
    broken.write_text(broken.read_text()[:100])
    found = reported(project)
    assert found["records"] == {"cpu": 0, "gpu": 0}
    assert found["unused_records"] == {"infeasible: not all was computed": 1, "without a measured cost": 1}
    assert found["total"]["done"] == 2 and found["total"]["unknown"] == found["total"]["left"]


def test_the_command(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost"]) == 0
    printed = capsys.readouterr().out
    total = reported(project)["total"]
    assert f"3 of {total['jobs']}" in printed and "optimal_defense fig02" in printed and "CPU-hours" in printed
    assert "No estimate for jobs of kind 'fisher'" in printed and "GPU-hours" not in printed
    assert "Without records" not in printed
    assert main(["cost", "--json", "--gpus", "2", "--device", "gpu", "--speedup", "5:50"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["at_a_time"], found["device"], found["assumed_speedup"]) == (2, "gpu", [5, 50])
    assert main(["cost", "--device", "gpu"]) == 0
    assert "100 to 1000 multiply-adds" in capsys.readouterr().out
    assert (project.root / costs_path("smoke")).is_file()


def test_nothing_to_learn_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    empty_project(tmp_path, "optimal_defense")
    assert main(["cost"]) == 0
    assert "Without records there is no estimate: `make replicate`" in capsys.readouterr().out


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("speedup", ["7", "10:5", "0:3", "fast:faster", "1:2:3", "1:inf"])
def test_a_speedup_that_is_none(speedup: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "--speedup", speedup]) == 1
    assert f"--speedup {speedup}: expected LOW:HIGH" in capsys.readouterr().err


def test_operations_of_models_of_images_and_of_text() -> None:
    """By hand: a linear layer reads and writes its weights twice, forward and backward."""
    module._size_of_model.cache_clear()
    assert module._size_of_model(MODELS.get("linear").model_validate({}), (1, 8, 8), 10) == (2 * 640, 650)
    sizes = {"width": 32, "layers": 1, "heads": 2, "intermediate": 64, "vocabulary": 50, "positions": 12}
    small = MODELS.get("bert").model_validate(sizes)
    operations, parameters = module._size_of_model(small, (12,), 2)
    layer = 12 * (4 * 32**2 + 2 * 32 * 64)  # attention's four and the two of the hidden layer, of 12 tokens
    assert 3 * layer < operations < 4 * layer
    assert parameters > 50 * 32 + 4 * 32**2 + 2 * 32 * 64
