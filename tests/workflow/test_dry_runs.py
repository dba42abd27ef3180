"""What Snakemake would run, and how long it thinks about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from leakbench.planning.project import Project
from leakbench.report.artifacts import artifacts_at
from leakbench.report.claims import claims_of

if TYPE_CHECKING:
    from tests.workflow.conftest import Checkout

ROOT = Path(__file__).resolve().parents[2]
REFERENCES = {"mean_image", "grey", "noise", "random_sentence", "frequent_words"}
PAPERS = Project(ROOT).settings.papers
SCORECARD = "scorecard.html"


def closed_form(root: Path, scale: str, paper: str) -> Counter[str]:
    """How many jobs the configuration of a paper stands for, by multiplying the lengths of its lists."""
    counts: Counter[str] = Counter(judge=bool(claims_of(paper)))
    plan = Project(root, {"papers": [paper]}).plan(scale)
    for entry in artifacts_at(plan):
        counts["draw" if entry.kind == "figure" else "tabulate"] += 1
    for spec in plan.papers[paper].experiments.values():
        counts["merge"] += 1
        models = len(spec.datasets) * len(spec.models)
        for kind, jobs in spec.jobs.items():
            protocol = jobs.model_extra or {}
            observing = len([attack for attack in jobs.attacks if attack not in REFERENCES])
            parts = protocol["seeds"] if protocol.get("split_seeds") else 1
            counts[kind] += models * len(spec.defenses) * parts * (observing if spec.jobs[kind].attacks else 1)
            counts[kind] += models * (len(jobs.attacks) - observing) * ("none" in spec.defenses)
    return counts


def check_counts(root: Path, scale: str, jobs: Mapping[str, str]) -> None:
    """The announced jobs, rules by first output, are those that the configuration stands for."""
    found: dict[str, Counter[str]] = {paper: Counter() for paper in PAPERS}
    found[SCORECARD] = Counter()
    for path, rule in jobs.items():
        found[path.split("/")[2]][rule] += 1
    assert found.pop(SCORECARD) == {"scorecard": 1}
    assert found == {paper: closed_form(root, scale, paper) for paper in PAPERS}
    planned = Project(root, {"papers": PAPERS}).plan(scale).jobs
    assert {path for path in jobs if path.endswith(".json")} == planned.keys()


@pytest.mark.parametrize("scale", ["smoke", "laptop", "overnight"])
def test_counts_follow_from_the_configuration(untouched: Checkout, scale: str) -> None:
    """Those of ``full``: tests/slurm/test_profile.py."""
    run = untouched.make("--dry-run", "--config", f"scale={scale}", f"papers=[{','.join(PAPERS)}]")
    check_counts(untouched.root, scale, run.jobs)


def test_a_merge_asks_for_the_undefended_records_of_its_gates_only(untouched: Checkout) -> None:
    run = untouched.make("--dry-run", "results/smoke/optimal_defense/pruning/records.parquet")
    assert run.rules == {"attack": 4, "train": 2, "merge": 1}
    assert sorted(path for path in run.jobs if "/pruning/" not in path) == [
        "results/smoke/optimal_defense/undefended/digits16/small/none/ig/all.json",
        "results/smoke/optimal_defense/undefended/digits16/small/none/mean_image/all.json",
    ]


def test_a_figure_asks_for_its_own_records_only(untouched: Checkout) -> None:
    run = untouched.make("--dry-run", "figures/smoke/optimal_defense/fig04.png")
    assert run.rules == {"attack": 6, "train": 3, "merge": 2, "draw": 1}
    assert {path.split("/")[3] for path in run.jobs if path.startswith("results/")} == {"undefended", "pruning"}


def test_verdicts_ask_for_the_tables_of_their_claims_only(untouched: Checkout) -> None:
    """All of the paper's claims: no pictures, and not the experiments that no claim reads."""
    run = untouched.make("--dry-run", "figures/smoke/optimal_defense/claims.md")
    assert run.rules["judge"] == 1 and not run.rules.keys() & {"draw", "tabulate", "scorecard", "inventory"}
    merged = {path.split("/")[3] for path in run.jobs if path.endswith(".parquet")}
    assert merged == {name for entry in claims_of("optimal_defense") for name in entry.experiments}
