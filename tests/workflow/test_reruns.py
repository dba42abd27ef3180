"""What a finished run makes, and what runs again after a change: all that is affected, and nothing else."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.workflow.test_dry_runs import closed_form

from leakbench.records import read_record
from leakbench.report.artifacts import artifacts
from leakbench.workflow.snakefile import Workflow

if TYPE_CHECKING:
    from tests.workflow.conftest import Checkout, Finished

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow

PAPER = "results/tiny/optimal_defense"
FIGURES = "figures/tiny/optimal_defense"
CLAIMS = f"{FIGURES}/claims.csv"  # reads all experiments here but that without a defense, and Table 1's
PAGE = "results/tiny/scorecard.html"


def record(experiment: str, defense: str, last: str) -> str:
    return f"{PAPER}/{experiment}/digits16/small/{defense}/{last}/all.json"


def drawn_from(*experiments: str) -> set[str]:
    """The first outputs of the jobs that draw figures or write tables of an experiment."""
    ours = [entry for entry in artifacts() if entry.paper == "optimal_defense"]
    read = [entry for entry in ours if set(experiments) & set(entry.experiments)]
    assert read
    return {entry.paths("tiny")[0] for entry in read}


def downstream(*experiments: str) -> set[str]:
    """The first outputs of the jobs between experiments' records and the page."""
    merged = {f"{PAPER}/{experiment}/records.parquet" for experiment in experiments}
    return merged | drawn_from(*experiments) | {CLAIMS, PAGE}


def test_everything_is_made(finished: Finished) -> None:
    root = finished.checkout.root
    flow = Workflow(root, {})
    jobs = closed_form(finished.checkout.root, "tiny", "optimal_defense") + Counter(scorecard=1)
    records = sum(jobs[kind] for kind in ("attack", "train", "fisher", "inventory", "plotted_noise"))
    assert len(flow.targets()) == 3 * (jobs["draw"] + jobs["tabulate"] + jobs["judge"]) + jobs["scorecard"] + records
    for path in flow.targets():
        assert (root / path).stat().st_size > 0, path
    assert finished.run.rules == jobs


def test_records_say_which_job_they_are(finished: Finished) -> None:
    root = finished.checkout.root
    for path, job in Workflow(root, {}).project.plan("tiny").jobs.items():
        assert read_record(root / path).job == job.resolved()


def test_jobs_leave_a_log_and_what_they_took(finished: Finished) -> None:
    root = finished.checkout.root
    for path in finished.checkout.results():
        log = root / path.replace("results/", "logs/").replace(".json", ".log")
        assert path in log.read_text()
        seconds, *_ = log.with_suffix(".tsv").read_text().splitlines()[1].split("\t")
        assert float(seconds) > 0


def test_a_second_run_does_nothing(finished: Finished) -> None:
    times = finished.checkout.times()
    run = finished.checkout.make()
    assert run.nothing_to_do and not run.jobs
    assert finished.checkout.times() == times


def test_a_deleted_record_comes_back_with_what_shows_it(project: Checkout) -> None:
    path = record("pruning_training", "gp-80", "train")
    results, times = project.results(), project.times()
    (project.root / path).unlink()
    run = project.make()
    assert set(run.jobs) == {path, *downstream("pruning_training")}
    assert project.results() == results
    again = {file for file, time in project.times().items() if time != times[file]}
    files = ("records.parquet", "missing.csv", "gates.csv", "adaptive.csv", "provenance.csv")
    merged = {f"{PAPER}/pruning_training/{name}" for name in files}
    made = {path, PAGE, *merged, *(f"{FIGURES}/claims.{extension}" for extension in ("csv", "md", "tex"))}
    assert again == made | {f"{FIGURES}/fig03.{extension}" for extension in ("pdf", "png", "csv")}


def test_a_parameter_of_one_defense(project: Checkout) -> None:
    """Snakemake sees no changes of parameters that are functions of the output; these must not be."""
    project.edit(
        "config/papers/optimal_defense.yaml",
        lambda paper: paper.update(variants={"defenses": {"op-80": {"fraction": 0.7}}}),
    )
    run = project.make("--dry-run")
    assert set(run.jobs) == {record("pruning_training", "op-80", "train"), *downstream("pruning_training")}


def test_records_that_another_command_wrote(project: Checkout) -> None:
    """Snakemake has nothing to compare with their identity, or remembers another one."""
    path, changed = record("pruning_training", "op-80", "train"), "config/papers/optimal_defense.yaml"
    project.make("--cleanup-metadata", path)
    project.edit(changed, lambda paper: paper.update(variants={"defenses": {"op-80": {"fraction": 0.7}}}))
    assert "A run moves it aside" in project.make("--dry-run", path).output
    assert set(project.make(path).jobs) == {path}
    (aside,) = (project.root / path).parent.glob("all.json.outdated-*")
    (project.root / changed).unlink()
    aside.rename(project.root / path)
    assert project.make(path).nothing_to_do


def test_a_parameter_of_the_attack(project: Checkout) -> None:
    project.replace("config/scales/tiny.yaml", " ig: {iterations: 2}", " ig: {iterations: 3}")
    run = project.make("--dry-run")
    attacked = {
        "undefended": ["none"],
        "pruning": ["gp", "op", "halved"],
        "noise": ["dpsgd", "optimal"],
        "pictures": ["none"],
        "equal_utility": ["dpsgd-u2", "optimal-u2"],
        "readings": ["none", "optimal-probes"],
        "rounding": ["rounding", "optimal-rounding", "optimal-rounding-released"],
        "inferred_labels": ["none"],
    }
    records = {record(experiment, label, "ig") for experiment, labels in attacked.items() for label in labels}
    records |= {record("adaptive", label, "ig-adaptive") for label in ("gp", "optimal")}
    records |= {record("equal_utility", label, "ig-adaptive") for label in attacked["equal_utility"]}
    assert set(run.jobs) == records | downstream(*attacked, "adaptive")


def test_the_source_of_a_plugin(project: Checkout) -> None:
    """An edit makes the jobs of that component again, without another version; a file beside it does not."""
    (project.root / "beside.py").write_text("HALF = 2")
    assert project.make("--dry-run").nothing_to_do
    project.replace("halved.py", "steps.gradient / 2", "steps.gradient / HALF")
    project.replace("halved.py", "from leakbench.defenses", "from beside import HALF\nfrom leakbench.defenses")
    path = record("pruning", "halved", "train")
    records = {record("pruning", "halved", "ig"), path}
    assert set(project.make("--dry-run").jobs) == records | downstream("pruning")
    project.make(*records)
    assert set(json.loads((project.root / path).read_text())["provenance"]["plugins"]["halved.py"]) == {
        "beside.py",
        "halved.py",
    }
    project.replace("beside.py", "HALF = 2", "HALF = 2.0")
    assert records <= set(project.make("--dry-run").jobs)


def test_a_gate(project: Checkout) -> None:
    """It decides what numbers mean, and changes none: its experiment is merged and drawn again, and no job runs."""

    def raise_it(paper: dict[str, Any]) -> None:
        paper["experiments"] = {"pruning": {"gates": {"ig": {"margin": 60}}}}

    results = project.results()
    project.edit("config/papers/optimal_defense.yaml", raise_it)
    run = project.make()
    assert set(run.jobs) == downstream("pruning")
    assert project.results() == results
    assert "void" in (project.root / PAGE).read_text() and project.make("--dry-run").nothing_to_do
    with (project.root / FIGURES / "fig04.csv").open() as file:
        void = {(row["series"], row["void"]) for row in csv.DictReader(file)}
    assert ("optimal pruning", "True") in void and ("no defense", "False") in void


def test_the_attack_on_the_undefended_gradient_of_another_experiment(project: Checkout) -> None:
    """Its record decides on the cells of all experiments whose gates name it."""
    (project.root / record("undefended", "none", "ig")).unlink()
    run = project.make("--dry-run")
    judged = ("undefended", "pruning", "noise", "adaptive", "equal_utility", "pictures", "readings", "rounding")
    assert set(run.jobs) == {record("undefended", "none", "ig")} | downstream(*judged)


def test_the_papers_own_grid_judges_again(fresh: Checkout) -> None:
    """Coverage compares with it."""
    before = Workflow(fresh.root, {}).judging_digest("tiny", "optimal_defense")
    fresh.edit(
        "config/scales/full.yaml",
        lambda scale: scale.update(papers={"optimal_defense": {"experiments": {"noise": {"models": ["small"]}}}}),
    )
    assert Workflow(fresh.root, {}).judging_digest("tiny", "optimal_defense") != before


def digests(checkout: Checkout) -> tuple[dict[str, str], str, str, str]:
    """Of every job, and of merging, of drawing and judging, and of the page."""
    flow = Workflow(checkout.root, {})
    jobs = {path: job.digest for path, job in flow.project.plan("tiny").jobs.items()}
    merging = flow.merging_digest("tiny", "optimal_defense", "noise")
    drawing = flow.drawing_digest("tiny", "optimal_defense") + flow.judging_digest("tiny", "optimal_defense")
    return jobs, merging, drawing, flow.scorecard_digest("tiny")


def test_words_change_pictures_and_no_numbers(fresh: Checkout) -> None:
    jobs, merging, drawing, page = digests(fresh)

    fresh.replace("config/scales/tiny.yaml", "a scale for tests", "other words")
    described = digests(fresh)
    assert described[:2] == (jobs, merging)
    assert described[2] != drawing and described[3] != page

    def retitle(paper: dict[str, Any]) -> None:
        paper["title"] = "Another title"
        paper["experiments"] = {"noise": {"title": "Another title"}}

    fresh.edit("config/papers/optimal_defense.yaml", retitle)
    titled = digests(fresh)
    assert titled[:3] == described[:3]
    assert titled[3] != described[3]


def test_overrides_reach_the_jobs(fresh: Checkout) -> None:
    """A defense that only --config knows is computed, though a job is a process of its own."""
    fresh.edit("config/config.yaml", lambda config: config.update(plugins=["quick_jobs.py"]))
    path = record("pruning", "halved", "train")
    run = fresh.make(path, "--config", 'plugins=["quick_jobs.py", "halved.py"]')
    assert run.rules == {"train": 1}
    assert json.loads((fresh.root / path).read_text())["job"]["defense"]["name"] == "halved"


def test_real_jobs(tmp_path: Path, fresh: Checkout) -> None:
    """Without the quick ones: an attack and the parameters of the model, computed by torch."""
    fresh.edit("config/config.yaml", lambda config: config.update(plugins=["halved.py"]))
    path = record("pruning", "gp", "ig")
    run = fresh.make(path, f"{FIGURES}/table01.csv")
    assert run.rules == {"attack": 1, "inventory": 1, "merge": 1, "tabulate": 1}
    found = read_record(fresh.root / path)
    assert [(replicate.seed, replicate.setting) for replicate in found.replicates] == [
        (seed, {"fraction": fraction}) for seed in (0, 1, 2) for fraction in (0.5, 0.9)
    ]
    assert found.tensors is not None and (fresh.root / path).with_name(found.tensors.file).is_file()
    assert "total" in (fresh.root / FIGURES / "table01.csv").read_text()


def test_sources_of_the_digests_exist() -> None:
    """A renamed folder would make every change of the code in it go unseen."""
    for folder in ("report", "papers/optimal_defense", "theory", "defenses", "federated", "models"):
        assert list((ROOT / "src" / "leakbench" / folder).rglob("*.py"))
